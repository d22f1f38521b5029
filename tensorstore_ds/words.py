"""Format sizes, durations, rates and shares as text."""

from __future__ import annotations

import contextlib
import os
import re
from importlib import metadata
from pathlib import Path

#: Packages of the extra `torch`, by the names that they are imported by.
OF_TORCH = ("torch", "torchvision", "threadpoolctl")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(nbytes: float) -> str:
    """Format a number of bytes in decimal units.

    >>> size(999), size(1536), size(4 * 1024**3), size(250e6)
    ('999 B', '1.5 kB', '4.3 GB', '250 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if nbytes < 999.5 or unit == "TB":
            break
        nbytes /= 1000
    return f"{nbytes:.0f} {unit}" if unit == "B" or nbytes >= 99.95 else f"{nbytes:.1f} {unit}"


def duration(seconds: float) -> str:
    """Format a time, with three digits below a second and tenths below a minute.

    >>> duration(0.0000123), duration(0.034), duration(9.87), duration(75), duration(7300)
    ('12.3 µs', '34 ms', '9.9 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"


def rate(samples: float) -> str:
    """Format samples per second, with three digits.

    >>> rate(1234567.0), rate(86.42), rate(0.513)
    ('1,230,000 samples/s', '86.4 samples/s', '0.513 samples/s')
    """
    if samples < 100:
        return f"{samples:.3g} samples/s"
    step = 10 ** (len(str(int(samples))) - 3)
    return f"{round(samples / step) * step:,} samples/s"


def percent(share: float) -> str:
    """Format a share in percent.

    >>> percent(0.003), percent(0.25), percent(0)
    ('0.3 %', '25 %', '0 %')
    """
    return f"{100 * share:.{1 if 0 < share < 0.0995 else 0}f} %"


def nbytes(text: str) -> int | None:
    """Parse a number of bytes such as ``4GiB``, ``500MB`` or ``65536``. None if the text is not one.

    >>> nbytes("500MB"), nbytes("1.5 GiB"), nbytes("65536"), nbytes("much")
    (500000000, 1610612736, 65536, None)
    """
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?) ?([kmgt]i?)?b?", text, re.IGNORECASE)
    number = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 2**62
    return number if number < 2**62 else None


#: A URL, possibly with a slash missing, as its beginning and the rest.
_URL = re.compile(r"([a-z][a-z0-9+.-]*:[/\\]+)(.*)", re.IGNORECASE | re.DOTALL)
#: Host and port, a path that begins with a slash, and the rest.
_PLAIN = re.compile(r"([^/?#@:]*|[^/?#@]*\[[^/?#@]*\])(:\d*)?(/[^?#]*)?[?#].*", re.DOTALL)


def shown_path(store: str | os.PathLike[str]) -> str:
    """A path as it is, or a URL without user, password, query, fragment and trailing slash.

    Text that looks like ``USER:PASSWORD@`` is removed up to the last ``@``, even if the URL is not valid.

    >>> tuple(map(shown_path, ("https://me:secret@example.org/a.tsds/?key=1", "photos.tsds", "me:se/cret@host/x")))
    ('https://example.org/a.tsds', 'photos.tsds', 'host/x')
    """
    text = os.fspath(store)
    found = _URL.match(text)
    if found is None:
        is_file = Path(text).is_absolute() or text.startswith(".")
        return text if is_file or ":" not in text.rpartition("@")[0] else text.rpartition("@")[2]
    start, rest = found.groups()
    if start.lower().startswith("file:"):
        return start + re.split(r"[?#]", rest, maxsplit=1)[0].rstrip("/")
    if plain := _PLAIN.fullmatch(rest):  # a query, or a password with ? or #: then there is no path before it
        rest = rest if plain[3] is None and "@" in rest else "".join(each or "" for each in plain.groups())
    before, _, after = rest.rpartition("@")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if ":" in before:
        rest = after
    elif "@" in host:
        rest = rest[rest[: len(host)].rindex("@") + 1 :]
    return start + re.split(r"[?#]", rest, maxsplit=1)[0].rstrip("/")


def unfit_torchvision(error: BaseException) -> str:
    """What is wrong if an error says that torchvision was built for another version of torch, else nothing."""
    if not isinstance(error, RuntimeError) or "operator torchvision::" not in str(error):
        return ""
    found = " and ".join(f"{name} {metadata.version(name)}" for name in ("torch", "torchvision"))
    return f"{found} do not fit together. Install both in one command, from the same index."


def missing_path(path: Path) -> str:
    """A path that does not exist, for a message. It may be a misspelled URL with a password, which is then removed."""
    with contextlib.suppress(OSError, ValueError):  # not below the working directory
        given = str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
        if shown_path(given) != given:
            return shown_path(given)
    return str(path)
