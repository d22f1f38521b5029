"""Settings of all tests, and of the processes that they start."""

from __future__ import annotations

import os
import signal

# Read by torch when it is first imported. Its models are tiny here: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Shells start jobs in the background with SIGINT ignored, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
