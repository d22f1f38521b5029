"""Commands that measure: ways of loading, and what slows training down."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tensorstore_ds.annex.measuring import BenchOptions, DiagnoseOptions
from tsds_cli import text
from tsds_cli.annex.options import out_option
from tsds_cli.messages import Failure, interrupted, spelled
from tsds_cli.options import Command, json_option, options_of, store_argument, store_place
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import Installation
    from tensorstore_ds.annex.measuring import Comparison, Diagnosis, Forecast

_MISSING = "-"
_PHASES: dict[Literal["load", "train"], str] = {"load": "loading", "train": "training"}
#: What limits training, by its cause.
_CAUSES = {
    "loading": "the loader: its threads do not finish batches in time",
    "handover": "the training thread: batches are finished, but the loader takes its time",
    "script": "the script: the GPU waits for it, though batches are ready",
    "training": "the model: training hardly waits for the loader",
}
_MEASURED: dict[Literal["load", "train"], str] = {"load": "loading", "train": "training a small ViT"}


@click.command(cls=Command)
@store_argument()
@options_of(BenchOptions)
@out_option(None, "Folder for bench.json.", shown="STORE.bench in the current folder", group="Essential")
@json_option
def bench(store: str | Path, options: BenchOptions, out: Path | None, as_json: bool) -> None:
    """Benchmark ways to load a STORE and its source files.

    For each way and batch size, measures epochs of loading and of training, memory, and the first epoch with cold
    files. Writes bench.json. STORE and DIR are not changed, but they are dropped from the page cache and
    read again.

    \b
    Examples:
      tsds bench photos.tsds --raw photos
      tsds bench photos.tsds --ways tensors,store --batch-sizes 256 --no-train
    """
    folder = out or Path(f"{Path(words.shown_path(store)).name}.bench")
    tsds.reading.check_outside_stores(folder / "bench.json")
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)  # before anything is measured that could not be written
    try:
        with ProgressBar() as bar:
            comparison = tsds.bench(
                store, options, progress=lambda at: bar.show("Measuring", at.done, at.total, str(at), wide=False)
            )
    except BaseException:
        if is_new:
            folder.rmdir()
        raise
    written = comparison.write(folder)
    if as_json:
        text.echo_json(comparison.as_data())
    else:
        _show_comparison(comparison)
        text.echo()
        text.echo(f"wrote {written}")
    if comparison.interrupted:
        raise interrupted("interrupted; what was measured until then is written")
    if not any(cell.seconds for cell in comparison.cells):
        raise Failure("nothing was measured; bench.json has the reasons")


def _show_comparison(comparison: Comparison) -> None:
    shape = "" if comparison.shape is None else f" of {'x'.join(map(str, comparison.shape))}"
    name = text.Styled(f"{Path(comparison.store).name}, {comparison.split}", bold=True)
    text.echo(name, f"  {text.count(comparison.samples, 'sample')}{shape}, batches on {comparison.device}")
    text.echo(", ".join(comparison.machine.values()))
    for size in comparison.batch_sizes:
        text.head(f"batch {size:,}, {text.count(-(-comparison.samples // size), 'batch')} per epoch")
        text.echo_table(_cells(comparison, size), right=range(1, 20))
    text.head("first epoch, from files that are not in memory")
    firsts = [(way.full_title, *cells) for way, cells in zip(comparison.ways, _firsts(comparison), strict=True)]
    text.echo_table([("", "preparation", "epoch", "batch", ""), *firsts], right=(1, 2, 3))
    text.head("delivered")
    rows: list[list[text.Text]] = []
    for way in comparison.ways:
        delivered = f"not measured: {spelled(way.reason)}" if way.reason else way.delivered
        rows.append([way.full_title, text.Styled(delivered, fg="red" if way.correct is False else None)])
    text.echo_table(rows)
    text.echo()
    for line in _remarks(comparison):
        text.echo(line)


def _cells(comparison: Comparison, size: int) -> Iterator[list[text.Text]]:
    """A row per way: loading, training, memory, and memory of a GPU."""
    phases = [p for p in _PHASES if any(cell.phase == p for cell in comparison.cells)]
    on_gpu = any(cell.device_memory is not None for cell in comparison.cells)
    head = [part for phase in phases for part in (_PHASES[phase], "samples/s", "ratio")]
    yield ["", *head, "memory", *(["GPU memory"] if on_gpu else [])]
    for way in comparison.ways:
        cells = [comparison.cell(way.name, phase, size) for phase in phases]
        ours = way.ours and any(cell and cell.seconds for cell in cells)
        row: list[text.Text] = [text.Styled(way.full_title, fg="green" if ours else None)]
        for cell in cells:
            row += [_if_any(cell and cell.seconds, words.duration)]
            row += [_if_any(cell and cell.rate, "{:,.0f}".format), _if_any(cell and cell.ratio, _ratio)]
        peak = max((cell.memory for cell in cells if cell and cell.memory), default=None)
        row.append(_if_any(peak, words.size))
        if on_gpu:
            row.append(_if_any(cells[-1] and cells[-1].device_memory, words.size))
        yield row


def _if_any(value: Any, shown: Callable[[Any], str]) -> str:
    return _MISSING if value is None else shown(value)


def _firsts(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """For each way: seconds before its first epoch, its seconds, the batch size, and why it was not measured."""
    for first in (way.first for way in comparison.ways):
        if first is None:
            yield _MISSING, _MISSING, _MISSING, ""
        elif first.seconds is None:
            yield _MISSING, _MISSING, f"{first.batch_size:,}", f"not measured: {spelled(first.reason)}"
        else:
            seconds = f"{'~' if first.estimated else ''}{words.duration(first.seconds)}"
            yield _if_any(first.opened, words.duration), seconds, f"{first.batch_size:,}", ""


def _remarks(comparison: Comparison) -> Iterator[text.Text]:
    yield "ratio: speed relative to the first row that was measured; ~: estimated from a part of the epoch"
    if comparison.baseline is not None:
        yield (
            "memory: the peak of a process and its workers, shared memory counted once, without page cache; "
            f"{words.size(comparison.baseline)} of it are Python and torch"
        )
    ways = {way.name: way for way in comparison.ways}
    for cell in comparison.cells:
        way = ways[cell.way]
        if cell.seconds is None and not way.reason and not comparison.interrupted:
            where = f"{_PHASES[cell.phase]}, batch {cell.batch_size:,}, {way.full_title}"
            yield f"{where}: not measured, {spelled(cell.reason)}"
    yield from map(spelled, comparison.notes)
    for phase, name in _PHASES.items():
        for group, others in (("files", "the best way from files"), ("tensors", "the best TensorDataset")):
            advantage = comparison.advantage(phase, group)
            if advantage is not None:
                low, high = map(_ratio, advantage)
                times = low if low == high else f"{low} to {high}"
                yield text.Styled(f"{name}: tensorstore-ds has {times}x the speed of {others}", bold=True)


def _ratio(value: float) -> str:
    """Two or three digits.

    >>> _ratio(1.04), _ratio(23.4), _ratio(316.2)
    ('1.0', '23', '316')
    """
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"


@click.command(cls=Command)
@click.argument("place", type=store_place, metavar="STORE|SRC")
@options_of(DiagnoseOptions)
@json_option
def doctor(place: str | Path, options: DiagnoseOptions, as_json: bool) -> None:
    """Find what slows training down, and how to speed it up.

    For a STORE, measures the loader alone, the model alone, and both together, as well as threads, copies, memory and
    storage. Prints code for the best loader settings, and their gain.

    For a folder, file or archive SRC before conversion, measures how fast torchvision loads it, and estimates how fast
    a store would load, how much of a training step this saves, and the size of the store. Up to 2,000 samples are
    converted into a temporary folder for this.

    \b
    Examples:
      tsds doctor photos
      tsds doctor photos.tsds
      tsds doctor photos.tsds --model small --batch-size 256 --threads 2
    """
    begun = time.monotonic()
    with ProgressBar() as bar:

        def progress(stage: str) -> None:
            bar.show("Measuring", time.monotonic() - begun, options.seconds, stage)

        if _is_source(place):
            found: Forecast | Diagnosis = tsds.forecast(place, options, progress=progress)
        else:
            found = tsds.diagnose(place, options, progress=progress)
    if as_json:
        text.echo_json(found)
    elif isinstance(found, tsds.measuring.Forecast):
        _show_forecast(found)
    else:
        _show_diagnosis(found)


def _is_source(place: str | Path) -> bool:
    """Whether this is not a store, so that it may be something to convert."""
    try:
        tsds.open(place)
    except tsds.FormatError as error:
        return isinstance(place, Path) and place.exists() and error.problems[0].reason == "not-a-store"
    return False


def _kernels(found: Installation) -> str:
    return found.kernels or f"none: {found.why_not}. {found.advice}"


def _show_forecast(found: Forecast) -> None:
    title = f"{found.path}, {found.split}: {text.count(found.samples, 'sample')} of the format {found.estimate.format}"
    text.echo(text.Styled(title, bold=True))
    ways = {way.name: way for way in found.comparison.ways}
    rows: list[tuple[str, ...]] = [("", "files", "store", "")]
    for phase, what in _MEASURED.items():
        files, store = found.best(phase, "files"), found.best(phase, "store")
        if store is not None:
            gain = found.gain(phase)
            rates = [cell.rate if cell is not None else None for cell in (files, store)]
            each = (words.rate(rate) if rate else "-" for rate in rates)
            rows.append((what, *each, "" if gain is None else f"{gain:.1f}x"))
            epochs = (words.duration(found.samples / rate) if rate else "-" for rate in rates)
            rows.append(("  an epoch", *epochs, "" if files is None else ways[files.way].full_title))
    text.echo_table(rows, right=[1, 2])
    estimate = found.estimate
    fits, needed = "fits" if estimate.fits else "does not fit", words.duration(estimate.seconds)
    memory = f"which {fits} into memory ({words.size(estimate.memory)})"
    text.echo(f"the store: {words.size(estimate.nbytes['memmap'])}, {memory}; about {needed} to convert")
    if found.wait is not None:
        text.echo(f"a store saves {100 * found.wait:.0f} % of the time of a training step of a small ViT")
    if found.measured < found.samples:
        text.echo(f"measured with {text.count(found.measured, 'sample')}, spread over the split {found.split}")
    for note in filter(None, [found.not_measured and f"files: {found.not_measured}", *found.comparison.notes]):
        text.echo(f"note: {spelled(note)}")
    text.echo(f"compiled kernels: {_kernels(tsds.installation())}")
    if estimate.problems:
        text.echo(f"{text.count(len(estimate.problems), 'problem')} in the source: tsds convert --dry-run names them")
    source = Path(found.path)
    out = shlex.quote(f"{source.name if source.is_dir() else source.name.partition('.')[0]}.tsds")
    gains = [gain for phase in _MEASURED if (gain := found.gain(phase)) is not None]
    if gains and max(gains) < 1:
        text.echo("as measured, a store is not faster than the files. Is the machine busy? Then measure again later")
        return
    text.echo(f"next: {text.program()} convert {shlex.quote(found.path)} {out}")


def _show_diagnosis(found: Diagnosis) -> None:
    samples = text.count(found.samples, "sample")
    title = f"{found.path}, {found.split}: {samples}, batches of {found.batch_size}, on {found.device}"
    text.echo(text.Styled(title, bold=True))
    text.echo_table(_figures(found), right=[1])
    text.echo(f"  compiled kernels: {_kernels(found.installation)}")
    if found.cause:
        text.echo(f"  limited by {_CAUSES[found.cause]}")
    for verdict in found.verdicts:
        text.head(verdict.code)
        text.echo(f"  {verdict.line}")
        text.echo(f"  {spelled(verdict.change)}")
    text.head("recommended")
    for line in found.code.splitlines():
        text.echo(f"  {line}")
    best, current = found.measured.best, found.measured.current
    if found.recommended == current.settings:
        line = "These are the settings in use: no others were found to be faster."
        if found.cause in ("script", "training"):
            line = "These are the settings in use: training does not wait for the loader."
        elif best.rate > current.rate and best.settings != current.settings:
            line = "These are the settings in use: the best ones above were not clearly faster."
        text.echo(f"  {line}")
    elif found.gain > 1:
        what = "training" if found.measured.together is not None else "loading"
        text.echo(f"  {what} was {found.gain:.2f}x faster with it than with the settings in use, in alternating rounds")
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
        beside = f"small operations take {m.disturbance:.2f}x the time"
        waits = f"waits {100 * m.together.wait:.1f} % of the time; {beside}"
        rows.append(("both together", words.rate(m.together.rate), waits))
    if (m.together or m.current).copy:
        rows.append(("the copy of a batch to the device", words.duration((m.together or m.current).copy), ""))
    room = f"limit: {words.size(m.memory.limit)}, {'they fit' if m.memory.fits else 'they do not fit'}"
    rows.append(("the samples", words.size(m.memory.nbytes), room))
    rows.append(("cores", f"{m.cores.allowed:g}", f"of {m.cores.machine}; effective cores: {m.cores.measured:.1f}"))
    return rows
