"""Places on the Hugging Face Hub: ``hf://datasets/NAME[@REVISION][/PATH]``. huggingface_hub (the extra ``hub``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

from tensorstore_ds.errors import OptionError, RemoteError

_REVISION = r"refs/(?:pr|convert)/[^/]+|[^/]+"
_URL = re.compile(
    rf"hf://datasets/(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>{_REVISION}))?(?:/(?P<path>.*))?", re.IGNORECASE
)
_SECONDS = 30  # to wait for an answer


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A folder of a data set ``USER/NAME`` on the Hub.

    The `revision` None is the main branch. `path` has no slashes around it, and is empty for the whole data set.
    """

    name: str
    revision: str | None
    path: str

    @property
    def url(self) -> str:
        """The URL of the folder."""
        revision = self.revision or ""
        if not re.fullmatch(_REVISION, revision):  # such as a branch with a slash
            revision = quote(revision, safe="")
        at, path = (f"@{revision}" if revision else ""), (f"/{self.path}" if self.path else "")
        return f"hf://datasets/{self.name}{at}{path}"


def parse(url: str) -> HubPlace:
    """Read a URL; raises `OptionError`."""
    found = _URL.fullmatch(url)
    path = (found["path"] or "").strip("/") if found else ""
    if found is None or {"", ".", ".."} & set(path.split("/") if path else ()):
        raise OptionError(f"{url}: expected hf://datasets/USER/NAME[@REVISION][/PATH], found something else.")
    return HubPlace(found["name"], unquote(found["revision"]) if found["revision"] else None, path)


def api() -> Any:
    """The client of huggingface_hub, with its endpoint and token; raises `OptionError` if it is not installed."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise OptionError(
            "huggingface_hub is not installed: pip install '.[hub]' in a clone of tensorstore-ds"
        ) from None
    return HfApi()


def resolved(url: str) -> tuple[str, str, dict[str, str]]:
    """The URL with its revision as a commit, the URL of its files, and headers; raises `OptionError`, `RemoteError`."""
    place, client = parse(url), api()
    from huggingface_hub import get_token

    try:
        commit = client.dataset_info(place.name, revision=place.revision, timeout=_SECONDS).sha
    except Exception as error:  # also from the HTTP library, which changes with the version
        raise failure(place, error) from None
    if not re.fullmatch(r"[0-9a-f]{7,64}", commit or ""):
        raise RemoteError(f"{place.url}: expected the hash of a commit, the server sent something else.")
    path = f"/{quote(place.path)}" if place.path else ""
    token = get_token()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    web = f"{client.endpoint}/datasets/{place.name}/resolve/{commit}{path}"
    return HubPlace(place.name, commit, place.path).url, web, headers


def failure(place: HubPlace, error: Exception) -> RemoteError:
    """The error for an exception of huggingface_hub, whose own message may contain a signed URL."""
    from huggingface_hub import errors

    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RevisionNotFoundError):
        return RemoteError(f"{place.url}: there is no such revision. Check its name.", "missing")
    if status in (401, 403) or isinstance(error, errors.RepositoryNotFoundError | errors.GatedRepoError):
        advice = "Check the name, and log in with: hf auth login"
        return RemoteError(f"{place.url}: there is no such data set, or access is refused. {advice}", "refused")
    what = f"the server answers {status}" if status else "the server cannot be reached, or does not answer"
    return RemoteError(f"{place.url}: {what}. Check the network, and try again.", "unreachable")
