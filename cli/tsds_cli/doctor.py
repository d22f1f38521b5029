"""``tsds doctor``: what holds training back, and what to change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import DiagnoseOptions, words
from tsds_cli import text
from tsds_cli.messages import spelled
from tsds_cli.options import json_option, options_of, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import Diagnosis


@click.command()
@store_argument()
@options_of(DiagnoseOptions)
@json_option
def doctor(store: str | Path, options: DiagnoseOptions, as_json: bool) -> None:
    """Measure what holds training back, and say what to change.

    Measures the loader alone, the model alone, and both together; threads, copies, memory and storage. Ends with the
    loader to use, as code to paste, and with what it gains.

    \b
    Examples:
      tsds doctor photos.tsds
      tsds doctor photos.tsds --model small --batch-size 256 --threads 2
    """
    from tensorstore_ds import diagnose

    begun = time.monotonic()
    with ProgressBar() as bar:
        progress = lambda stage: bar.show("Measuring", time.monotonic() - begun, options.seconds, stage)  # noqa: E731
        found = diagnose(store, options, progress=progress)
    if as_json:
        text.echo_json(found)
    else:
        _show(found)


def _show(found: Diagnosis) -> None:
    samples = text.count(found.samples, "sample")
    title = f"{found.path}, {found.split}: {samples}, batches of {found.batch_size}, on {found.device}"
    text.echo(text.Styled(title, bold=True))
    text.echo_table(_figures(found), right=[1])
    for verdict in found.verdicts:
        text.head(verdict.code)
        text.echo(f"  {verdict.line}")
        text.echo(f"  {spelled(verdict.change)}")
    text.head("recommended")
    for line in found.code.splitlines():
        text.echo(f"  {line}")
    if found.recommended == found.measured.current.settings:
        best, current = found.measured.best, found.measured.current
        line = "These are the settings in use: no others were found to be faster."
        if best.rate > current.rate and best.settings != current.settings:
            line = "These are the settings in use. The best ones above were not faster when compared in turns."
        text.echo(f"  {line}")
    else:
        what = "training" if found.measured.together is not None else "loading"
        text.echo(f"  {what} was {found.gain:.2f} times as fast with it as with the settings in use, in turns")
    if found.not_measured:
        text.head("not measured, or only in part")
        for line in found.not_measured:
            text.echo(f"  {line}")


def _figures(found: Diagnosis) -> list[tuple[str, str, str]]:
    """Names, numbers and remarks."""
    m, best = found.measured, found.measured.best
    arguments = ", ".join(f"{name}={value}" for name, value in best.settings.arguments().items())
    waited = f"waited for storage {m.first_epoch.major_faults:,} times" if m.first_epoch.major_faults else ""
    resident = "" if m.memory.resident is None else f"{int(100 * m.memory.resident)} % in memory"  # 100 only if all is
    notes = resident, waited
    rows = [
        ("the loader, before anything is warmed", words.rate(m.first_epoch.rate), "; ".join(filter(None, notes))),
        ("the loader, from memory", words.rate(m.current.rate), f"depth of the queue {m.current.depth:.1f}"),
        ("at best", words.rate(best.rate), arguments),
    ]
    if m.model is not None:
        step = f"{m.model.name}, {words.duration(m.model.seconds)} per step of {m.model.batch_size}"
        rows.append(("the model alone", words.rate(m.model.rate), step))
    if m.together is not None:
        rows.append(("both together", words.rate(m.together.rate), f"waits {100 * m.together.wait:.1f} % of the time"))
    if m.copies is not None:
        pinned, pageable = words.duration(m.copies.pinned), words.duration(m.copies.pageable)
        times = f"{pinned} from pinned memory, {pageable} from pageable"
        rows.append(("a copy to the device", words.size(m.copies.nbytes), times))
    if m.storage.rate is not None:
        rows.append(("the storage", f"{words.size(m.storage.rate)}/s", "in order, past the page cache"))
    room = f"limit: {words.size(m.memory.limit)}, {'they fit' if m.memory.fits else 'they do not fit'}"
    rows.append(("the samples", words.size(m.memory.nbytes), room))
    rows.append(("cores", f"{m.cores.allowed:g}", f"of {m.cores.machine}; effective cores: {m.cores.measured:.1f}"))
    g = m.gathers
    whole, misaligned = words.size(g.whole), words.size(g.misaligned)
    rows.append(("copies of rows", f"{words.size(g.aligned)}/s", f"in one piece {whole}/s, misaligned {misaligned}/s"))
    return rows
