"""``tsds doctor``: what holds training back, and what to change."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import DiagnoseOptions
from tsds_cli import text
from tsds_cli.options import json_option, options_of, path_argument
from tsds_cli.spelling import spelled

if TYPE_CHECKING:
    from tensorstore_ds.diagnosis.results import Diagnosis, Measured


@click.command()
@path_argument("store")
@options_of(DiagnoseOptions)
@json_option
def doctor(store: Path, options: DiagnoseOptions, as_json: bool) -> None:
    """Measure what holds training back, and say what to change.

    Measures the loader alone, the model alone, and both together; threads, copies, memory and storage. Ends with the
    loader to use, as code to paste, and what was gained by it.

    \b
    Examples:
      tsds doctor photos.tsds
      tsds doctor photos.tsds --model small --batch-size 256 --threads 2
    """
    from tensorstore_ds import diagnose

    with _Stages(options.seconds) as stages:
        found = diagnose(str(store), options, progress=stages.show)
    if as_json:
        text.echo_json(found)
        return
    show(found)


def show(found: Diagnosis) -> None:
    """Print a diagnosis."""
    samples = text.count(found.samples, "sample")
    title = f"{found.path}, {found.split}: {samples}, batches of {found.batch_size}, on {found.device}"
    text.echo(text.Styled(title, bold=True))
    text.echo_table(_figures(found.measured), right=[1])
    for verdict in found.verdicts:
        text.head(verdict.code)
        text.echo(f"  {verdict.line}")
        text.echo(f"  {spelled(verdict.change)}")
    text.head("recommended")
    for line in found.code.splitlines():
        text.echo(f"  {line}")
    if found.recommended == found.measured.current.settings:
        text.echo("  These are the settings in use: no others were found to be quicker.")
    else:
        what = "training" if found.measured.together is not None else "loading"
        text.echo(f"  {what} was {found.gain:.2f} times as quick with it as with the settings in use, in turns")
    if found.not_measured:
        text.head("not measured, or not wholly")
        for line in found.not_measured:
            text.echo(f"  {line}")


def _figures(m: Measured) -> list[tuple[str, str, str]]:
    """Names, numbers and remarks."""
    best = m.best
    rows = [
        ("the loader, as found", _rate(m.first_epoch.rate), _resident(m)),
        ("the loader, from memory", _rate(m.current.rate), f"depth of the queue {m.current.depth:.1f}"),
        ("at best", _rate(best.rate), ", ".join(f"{k}={v}" for k, v in best.settings.arguments().items())),
    ]
    if m.model is not None:
        step = f"{m.model.name}, {text.duration(m.model.seconds)} a step of {m.model.batch_size}"
        rows.append(("the model alone", _rate(m.model.rate), step))
    if m.together is not None:
        rows.append(
            ("both together", _rate(m.together.rate), f"waits {m.together.wait:.1%} of the time".replace("%", " %"))
        )
    if m.copies is not None:
        times = f"{text.duration(m.copies.pinned)} from pinned memory, {text.duration(m.copies.pageable)} from pageable"
        rows.append(("a copy to the device", text.size(m.copies.nbytes), times))
    if m.storage.rate is not None:
        rows.append(("the storage", f"{text.size(m.storage.rate)}/s", "in order, past the page cache"))
    room = f"of {text.size(m.memory.limit)} that it may take: it {'fits' if m.memory.fits else 'does not fit'}"
    rows.append(("the samples", text.size(m.memory.nbytes), room))
    rows.append(("cores", f"{m.cores.allowed:g}", f"of {m.cores.machine}; did the work of {m.cores.measured:.1f}"))
    return rows


def _rate(samples: float) -> str:
    return f"{samples:,.0f} samples/s" if samples >= 10 else f"{samples:.2f} samples/s"


def _resident(m: Measured) -> str:
    share = ""
    if m.memory.resident is not None:
        share = f"{int(100 * m.memory.resident)} % in memory"  # 100 only if all of it is
    faults = m.first_epoch.major_faults
    return share if not faults else f"{share}; waited for storage {faults:,} times".removeprefix("; ")


class _Stages:
    """One line on stderr that says what is measured; none where stderr is no terminal. A context manager."""

    def __init__(self, seconds: float) -> None:
        self._shown = sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._began = time.monotonic()
        self._seconds = seconds

    def __enter__(self) -> _Stages:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            text.echo_status("")

    def show(self, stage: str) -> None:
        """Say what is measured next."""
        if self._shown:
            spent = time.monotonic() - self._began
            text.echo_status(f"{stage} ({spent:.0f} of about {self._seconds:.0f} s)")
