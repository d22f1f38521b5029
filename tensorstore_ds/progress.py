"""Progress of long work: sums of what is done, and bars in notebooks."""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Callable
from threading import Lock

from tensorstore_ds import words

_SECONDS = 0.2  # between two drawings


def adding(total: int, progress: Callable[[int, int], None]) -> Callable[[int], None]:
    """Return a function that adds up what is done, in any thread, and reports the sum and the total."""
    done, lock = 0, Lock()

    def add(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(done, total)

    return add


def notebook_bar() -> Callable[[str, float, float], None]:
    """Return a function that draws (text, done, total) in place in a notebook, just the text if the total is 0."""
    ipython = sys.modules.get("IPython")  # who runs a notebook has imported it
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return lambda text, done, total: None
    from IPython.display import display

    handle, next_drawing = None, 0.0

    def draw(text: str, done: float, total: float) -> None:
        nonlocal handle, next_drawing
        now = time.monotonic()
        if now < next_drawing and done != total:
            return
        next_drawing = now + _SECONDS
        bar = f'<progress max="{total}" value="{done}"></progress> ' if total else ""
        shown = {"text/plain": text, "text/html": f"{bar}{html.escape(text)}"}
        if handle is None:
            handle = display(shown, raw=True, display_id=True)
        else:
            handle.update(shown, raw=True)

    return draw


def notebook_bytes(doing: str) -> Callable[[int, int], None]:
    """Return a bar for (bytes done, total bytes) of work such as ``Checking``."""
    draw = notebook_bar()
    return lambda done, total: draw(f"{doing} {words.size(done)}/{words.size(total)}", done, total)
