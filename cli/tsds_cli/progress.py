"""A progress bar on stderr with rate, bytes and time left, if stderr is a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import interrupted, not_made, spelled

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from tensorstore_ds.annex.training import TrainProgress
    from tensorstore_ds.conversion import Progress

_SECONDS = 0.1  # between two drawings
_LINE_SECONDS = 30.0  # between two lines about a training run where there is no bar


class ProgressBar:
    """A bar for the current stage of a job, which disappears at the end. A context manager.

    It is drawn when the job reports, without a thread, so that worker processes may be forked meanwhile.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar: RichProgress | None = None
        self._label = ""
        self._next = 0.0
        self._next_line = time.monotonic() + _LINE_SECONDS

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def update(self, event: Progress) -> None:
        """Show an event of `convert` or `repack`; its note is printed even without a bar."""
        if event.note:
            self.clear()
            text.note(spelled(event.note), err=True)
        label = event.doing
        if event.stage == "checksum":
            self.update_bytes(label, event.done, event.total)
            return
        counted = f"{event.done:,}/{event.total:,}" if event.total else f"{event.done:,}"
        size = f" · {words.size(event.nbytes)}" if event.nbytes else ""
        self.show(label, event.done, event.total, counted, lambda rate: words.rate(rate) + size)

    def update_bytes(self, label: str, done: int, total: int) -> None:
        """Show the number of bytes done."""
        counted = f"{words.size(done)}/{words.size(total)}"
        self.show(label, done, total, counted, lambda rate: f"{words.size(rate)}/s")

    def update_training(self, event: TrainProgress) -> None:
        """Show the progress of a training run; without a bar, as an occasional line."""
        if not self._shown and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            text.echo(f"epoch {event.epoch}/{event.epochs} · {event}", err=True)
        self.show(f"Epoch {event.epoch}/{event.epochs}", event.batch, event.batches, str(event), wide=False)

    def show(
        self,
        label: str,
        done: float,
        total: float,
        detail: str,
        rate: Callable[[float], str] | None = None,
        *,
        wide: bool = True,
    ) -> None:
        """Draw the bar of a stage instead of the previous one, unless it was drawn just now.

        A `total` of 0 is unknown. `detail` is shown next to the bar, as is the `rate` per second. If `wide`, there is
        room for the percentage and the time left.
        """
        now = time.monotonic()
        if not self._shown or (label == self._label and now < self._next and done < total):
            return
        self._next = now + _SECONDS
        if self._bar is None or label != self._label:
            self.clear()
            self._label, self._bar = label, _new_bar(wide)
            self._bar.start()
            self._bar.add_task(text.printable(label), detail="")
        (task,) = self._bar.tasks
        self._bar.update(task.id, completed=done, total=total or None)
        speed = f" · {rate(task.speed)}" if rate is not None and task.speed else ""
        self._bar.update(task.id, detail=text.printable(detail + speed))
        self._bar.refresh()

    def clear(self) -> None:
        """Remove the bar before lines are printed; the next event draws it again."""
        if self._bar is not None:
            self._bar.stop()
        self._bar, self._label = None, ""


@contextmanager
def working(told: str | Path, *, resumable: bool = False) -> Iterator[ProgressBar]:
    """A bar while a command works. Ctrl-C ends it with this message, or with one about the path that it makes."""
    try:
        with ProgressBar() as bar:
            yield bar
    except KeyboardInterrupt:
        raise (interrupted(told) if isinstance(told, str) else not_made(told, resumable=resumable)) from None


def _new_bar(wide: bool) -> RichProgress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    detail = TextColumn("{task.fields[detail]}", markup=False)
    percentage = TextColumn("{task.percentage:>3.0f} %", markup=False)
    left = (TimeRemainingColumn(compact=True), TextColumn("left", markup=False))
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24 if wide else 8),
        *((percentage, detail, *left) if wide else (detail,)),
        console=Console(file=sys.stderr),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
