"""Kernels in C, where they could be compiled: each is called once for a batch, by the threads that there are.

Everything works without them, slower, with equal results. They know no store, and use no thread of their own.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

_AXIS = np.dtype(
    [("origin", "f8"), ("extent", "f8"), ("resized", "i4"), ("first", "i4"), ("count", "i4"), ("at", "i4")]
)
#: One image of `core.crops`: `crop_job` in core.h, which says what each number is.
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

if os.environ.get("TSDS_NATIVE") == "0":
    why_not = "TSDS_NATIVE=0 forbids it"
else:
    try:
        core = importlib.import_module("tensorstore_ds.native._core")
    except ImportError as error:
        why_not = str(error)
