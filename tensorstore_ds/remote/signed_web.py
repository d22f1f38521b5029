"""Read files by a URL with a query, such as a signature, with Python's own client.

obstore sends the previous URL, with the query, to the host of a redirect (the header Referer), and has no option
against that. This client sends no such header, and secrets go to the host of the URL alone.
"""

from __future__ import annotations

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
#: Seconds before the second attempt, twice as long before each further one, up to the longest pause.
_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_BUSY = (429, 500, 502, 503, 504)


Span = tuple[int, int]


@dataclass
class Answer:
    """A server's answer, in the form of obstore's `GetResult`.

    `range` is [first, stop) of the bytes. `meta` has the file's ``size`` and ``e_tag``. `attributes` is empty.
    """

    range: Span
    meta: Mapping[str, Any]
    _response: http.client.HTTPResponse
    _deadline: float
    attributes: Mapping[str, str] = field(default_factory=dict)

    def stream(self, min_chunk_size: int) -> Iterator[bytes]:
        """Yield the bytes in pieces as they arrive."""
        missing = self.range[1] - self.range[0]
        with self._response as response:
            while piece := response.read1(min_chunk_size):
                missing -= len(piece)
                yield piece
                if time.monotonic() > self._deadline:
                    raise TimeoutError("the answer takes too long")
        if missing:
            raise OSError("the answer has another length than was announced")


class SignedWeb:
    """A folder by an http or https URL with a query, which is sent with each request.

    `headers` go to the host of the URL only. `seconds` limits the wait for a silent server, and for a whole answer, and
    `patience` the seconds after which a failed request is not repeated.
    """

    def __init__(self, url: str, headers: Mapping[str, str], seconds: tuple[float, float], patience: float) -> None:
        self._url, self._headers = urlsplit(url), headers
        self._silence, self._seconds = seconds
        self._patience = patience
        self._opener = urllib.request.build_opener(_Redirects)

    def get(self, name: str, options: Mapping[str, Any]) -> Answer:
        """Read a file with the options ``range``, ``if_match`` and ``head`` of `obstore.get`."""
        headers = {"accept-encoding": "identity"}
        if "range" in options:
            headers["range"] = f"bytes={options['range'][0]}-{options['range'][1] - 1}"
        if "if_match" in options:
            headers["if-match"] = options["if_match"]
        path = f"{self._url.path.rstrip('/')}/{quote(name)}"
        url = urlunsplit(self._url._replace(path=path, fragment=""))
        request = urllib.request.Request(url, headers=headers, method="HEAD" if options.get("head") else "GET")  # noqa: S310
        for header, value in self._headers.items():
            request.add_unredirected_header(header, value)
        deadline = time.monotonic() + self._seconds
        response = self._retried(lambda: self._opener.open(request, timeout=self._silence))
        length = response.headers.get("content-length", "")
        if not length.isdecimal():
            response.close()
            raise OSError("an answer without its length")
        size = int(length)
        span = (0, size)
        if "range" in options:
            found = _RANGE.fullmatch(response.headers.get("content-range", ""))
            if response.status != 206 or found is None:
                response.close()
                raise OSError("a non-partial answer")
            span, size = (int(found[1]), int(found[2]) + 1), int(found[3])
        return Answer(span, {"size": size, "e_tag": response.headers.get("etag")}, response, deadline)

    def _retried(self, ask: Callable[[], Any]) -> Any:
        last, pause = time.monotonic() + self._patience, _PAUSE
        failed: Exception
        while True:
            try:
                return ask()
            except urllib.error.HTTPError as error:
                error.close()
                failed, may_pass = _of_status(error.code), error.code in _BUSY
            except (OSError, http.client.HTTPException) as error:
                failed, may_pass = error, True
            if not may_pass or time.monotonic() > last:
                raise failed from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, except from https to anything else; secrets are sent to the same host only."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if after.scheme not in ("https", before.scheme):
            fp.close()
            raise ValueError("BadScheme")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        if found is not None and (before.scheme, before.netloc) == (after.scheme, after.netloc):
            found.unredirected_hdrs.update(req.unredirected_hdrs)
        return found


def _of_status(status: int) -> Exception:
    """The exception that obstore raises for a status."""
    from obstore.exceptions import PreconditionError

    if status in (404, 410):
        return FileNotFoundError()
    if status == 412:
        return PreconditionError()
    return OSError(f"{status} {http.client.responses.get(status, 'Unknown').title()}")
