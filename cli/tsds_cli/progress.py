"""A progress bar on stderr: rate, bytes and time left. Where stderr is no terminal there is none."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tsds_cli import text
from tsds_cli.spelling import spelled

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress, TaskID

    from tensorstore_ds import Progress, TrainProgress

_LABELS = {
    "scan": "Scanning",
    "convert": "Converting",
    "compress": "Repacking",
    "checksum": "Checking",
    "warm": "Warming",
}
_COUNTS_BYTES = frozenset({"checksum", "warm"})
_SECONDS = 0.1  # between two drawings


class ProgressBar:
    """A bar for each stage of a job, drawn while it runs and gone after. A context manager.

    It is drawn when the job reports, and by no thread of its own, so that worker processes may be forked meanwhile.
    """

    def __init__(self) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bar: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._next = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, event: Progress) -> None:
        """Show an event of `convert` or `repack`; its note is printed, where there is no bar, too."""
        if event.note:
            self.clear()
            text.echo(text.Styled(f"note: {spelled(event.note)}", fg="yellow"), err=True)
        self._show(event.stage, event.done, event.total, event.nbytes)

    def update_bytes(self, done: int, total: int, *, stage: str = "checksum") -> None:
        """Show how far `verify` or `warm` is."""
        self._show(stage, done, total, 0)

    def update_training(self, event: TrainProgress) -> None:
        """Show where a training run is."""
        metrics = " ".join(f"{name} {value:.3f}" for name, value in event.metrics.items())
        memory = "" if event.device_memory is None else f" · {text.size(event.device_memory)}"
        detail = (
            f"{event.batch:,}/{event.batches:,} · {metrics} · {event.samples_per_second:,.0f}/s"
            f" · waited {event.wait_share:.0%}{memory} · {text.duration(event.seconds_left)} left"
        )
        self._show(f"epoch {event.epoch}/{event.epochs}", event.batch, event.batches, 0, detail)

    def clear(self) -> None:
        """Take the bar away, for lines to be printed; it comes again with the next event."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
            self._tasks.clear()

    def _show(self, stage: str, done: int, total: int, nbytes: int, detail: str = "") -> None:
        now = time.monotonic()
        if not self._shown or (now < self._next and stage in self._tasks and done < total):
            return
        self._next = now + _SECONDS
        if self._bar is None:
            self._bar = _new_bar(narrow=bool(detail))
            self._bar.start()
        if stage not in self._tasks:
            for task in self._tasks.values():
                self._bar.update(task, visible=False)
            label = text.printable(_LABELS.get(stage, stage.capitalize()))
            self._tasks[stage] = self._bar.add_task(label, detail="")
        task = self._tasks[stage]
        self._bar.update(task, completed=done, total=total or None)
        rate = self._bar.tasks[task].speed or 0.0
        self._bar.update(task, detail=text.printable(detail or _detail(stage, done, total, nbytes, rate)))
        self._bar.refresh()


def _detail(stage: str, done: int, total: int, nbytes: int, rate: float) -> str:
    """What stands beside a bar.

    >>> _detail("convert", 1200, 5000, 3_000_000, 400.0)
    '1,200/5,000 · 400 samples/s · 3.0 MB'
    >>> _detail("checksum", 1_000_000, 2_000_000, 0, 5e8)
    '1.0 MB/2.0 MB · 500 MB/s'
    """
    if stage in _COUNTS_BYTES:
        parts = [f"{text.size(done)}/{text.size(total)}", f"{text.size(rate)}/s" if rate else ""]
    else:
        counted = f"{done:,}/{total:,}" if total else f"{done:,}"
        parts = [counted, f"{rate:,.0f} samples/s" if rate else "", text.size(nbytes) if nbytes else ""]
    return " · ".join(part for part in parts if part)


def _new_bar(*, narrow: bool) -> RichProgress:
    """A bar; `narrow` where its detail is long, and says how much time is left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = BarColumn(bar_width=8 if narrow else 24)
    detail = TextColumn("{task.fields[detail]}", markup=False)
    percentage = TextColumn("{task.percentage:>3.0f} %", markup=False)
    wide: list[Any] = [percentage, detail, TimeRemainingColumn(compact=True), TextColumn("left", markup=False)]
    console = Console(file=sys.stderr)
    return Progress(
        TextColumn("{task.description}", markup=False),
        bar,
        *([detail] if narrow else wide),
        console=console,
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
