"""Paths in annotations, which must stay inside the source."""

from __future__ import annotations

import re

_DRIVE = re.compile(r"[A-Za-z]:(/|$)")


def inside(text: str, folder: str = "") -> str | None:
    r"""Path relative to the source, without ``.`` and ``..``, of a `text` that begins in `folder`.

    ``\\`` separates folders like ``/``. None for an empty path, or one that leads out of the source.

    >>> inside("../images/a.jpg", "labels/"), inside("..\\a.jpg"), inside("/etc/passwd")
    ('images/a.jpg', None, None)
    """
    path = text.replace("\\", "/")
    if path.startswith("/") or _DRIVE.match(path) or "\0" in path:
        return None
    parts: list[str] = []
    for part in f"{folder}{path}".split("/"):
        if part == "..":
            if not parts:
                return None
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts) or None
