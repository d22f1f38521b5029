"""Damaged and hostile input at every door through which bytes come in: files, names, arguments.

``make test`` tries a little of it, after every input of ``corpus/``; ``make fuzz`` as much as there is time for.
"""

from __future__ import annotations

import os

# Read by torch when it is first imported. One thread is enough, and processes with one thread can be forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")
