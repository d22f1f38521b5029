"""Kernels in C, if they could be compiled. Each is called once for a batch, by the caller's threads.

Without them, everything works more slowly, with equal results. They know no store, and start no threads.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

import numpy as np

from tensorstore_ds.native.compile import HERE, NOTE, sources_digest

_AXIS = np.dtype(
    [("origin", "f8"), ("extent", "f8"), ("resized", "i4"), ("first", "i4"), ("count", "i4"), ("at", "i4")]
)
#: One image of `core.crops`, the struct `crop_job` in core.h, which explains each number.
JOB = np.dtype(
    [
        *((name, "i8") for name in ("begin", "end", "marks", "mark_count")),
        *((name, "i4") for name in ("shard", "find", "height", "width", "components", "scale", "flip", "reserved")),
        ("y", _AXIS),
        ("x", _AXIS),
    ]
)
#: How the parts of a file are found: not at all, by restart markers, by entries.
FIND_NONE, FIND_RESTARTS, FIND_ENTRIES = range(3)

core: Any = None  #: the compiled module, or None
why_not = ""  #: why there is none
advice = ""  #: what to do about it


def _load() -> tuple[Any, str]:
    """The compiled module, or None and the reason."""
    if os.environ.get("TSDS_NATIVE") == "0":
        return None, "the environment variable TSDS_NATIVE is 0"
    try:
        found = importlib.import_module("tensorstore_ds.native._core")
    except ModuleNotFoundError:
        try:
            return None, f"not compiled at installation: {(HERE / NOTE).read_text(encoding='utf-8').strip()}"
        except (OSError, ValueError):
            return None, "not compiled"
    except ImportError as error:  # made for another machine, or for a newer C library
        return None, f"cannot be loaded: {error}"
    digest = sources_digest()
    if digest and digest != (found.sources() if hasattr(found, "sources") else ""):
        return None, "compiled from the sources of another version"
    return found, ""


core, why_not = _load()
if os.environ.get("TSDS_NATIVE") == "0":
    advice = "Unset TSDS_NATIVE."
elif core is None:
    advice = f"With a C compiler and Python's headers, run: {sys.executable} -m tensorstore_ds.native"


_threads = threading.local()


def own_context() -> Any:
    """This thread's private memory for kernels."""
    context = getattr(_threads, "context", None)
    if context is None:
        context = _threads.context = core.context()
    return context


def index(data: Any) -> bytes:
    """The index entries of a JPEG file, 12 bytes each (formats/v1/spec.md, 6.7); empty without kernels."""
    return b"" if core is None else bytes(core.index(own_context(), data))


def walk(data: Any) -> tuple[bytes, tuple[int, ...]]:
    """The index entries of a JPEG file, and the sum of each channel of its pixels and then of its squares.

    Both are empty without kernels, and the sums if the kernels cannot decode all of the file as libjpeg does.
    """
    return (b"", ()) if core is None else core.walk(own_context(), data)


def encode(head: bytes, pixels: Any) -> tuple[bytes, bytes] | None:
    """A JPEG file of uint8 pixels (H, W, C) behind a header, and its restarts; None where libjpeg does it better."""
    return None if core is None else core.encode(own_context(), head, pixels)


def decode(data: Any, out: Any) -> bool:
    """Whether a JPEG file's pixels are now in `out`, uint8 (H, W, C), as they are stored; else libjpeg tells of it."""
    return core is not None and bool(core.decode(own_context(), data, out))


def resize(pixels: Any, box: tuple[float, float, float, float], out: Any) -> bool:
    """Whether `box` (left, top, right, bottom) of RGB pixels (H, W, 3) is now resized in `out`, with Pillow's bits.

    Newer versions of Pillow resize down before across in some cases, which is left to them.
    """
    (height, width, channels), (to_height, to_width) = pixels.shape, out.shape[:2]
    if core is None or channels != 3 or height - to_height > max(0, 2 * (width - to_width)):
        return False
    left, top, right, bottom = np.array(box, np.float32)  # Pillow subtracts in float32, too
    axes = (float(top), float(bottom - top), to_height), (float(left), float(right - left), to_width)
    return bool(core.resize(own_context(), np.ascontiguousarray(pixels), (height, width), axes, out))
