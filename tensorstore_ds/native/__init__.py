"""Kernels in C, where they could be compiled: each is called once for a batch, by the threads that there are.

Everything works without them, slower, with equal results. They know no store, and use no thread of their own.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

core: Any = None  #: the compiled module, or None
why_not = ""  #: why there is none

if os.environ.get("TSDS_NATIVE") == "0":
    why_not = "TSDS_NATIVE=0 forbids it"
else:
    try:
        core = importlib.import_module("tensorstore_ds.native._core")
    except ImportError as error:
        why_not = str(error)
