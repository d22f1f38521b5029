"""Settings of all tests, and of the processes that they start."""

from __future__ import annotations

import os

# Read by torch when it is first imported. Its models are tiny here: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
