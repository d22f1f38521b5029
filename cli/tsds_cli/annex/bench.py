"""``tsds bench``: ways to load a data set, side by side on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from tensorstore_ds import BenchOptions, words
from tsds_cli import text
from tsds_cli.messages import interrupted, spelled
from tsds_cli.options import Command, json_option, options_of, out_option, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import Comparison

_MISSING = "-"
_PHASES: dict[Literal["load", "train"], str] = {"load": "loading", "train": "training"}


@click.command(cls=Command)
@store_argument()
@options_of(BenchOptions)
@out_option(
    None,
    "Folder for bench.json and bench.png.",
    shown="STORE.bench in the current folder",
    group="Essential",
)
@json_option
def bench(store: str | Path, options: BenchOptions, out: Path | None, as_json: bool) -> None:
    """Benchmark ways to load a STORE and its source files.

    For each way and batch size, measures epochs of loading and of training, memory, and the first epoch with cold
    files. Writes bench.json and bench.png. STORE and DIR are not changed, but they are dropped from the page cache and
    read again.

    \b
    Examples:
      tsds bench photos.tsds --raw photos
      tsds bench photos.tsds --ways tensors,store --batch-sizes 256 --no-train
    """
    import tensorstore_ds as tsds

    folder = out or Path(f"{Path(words.place(store)).name}.bench")
    tsds.check_outside_stores(folder / "bench.json")
    folder.mkdir(parents=True, exist_ok=True)  # before anything is measured that could not be written
    with ProgressBar() as bar:
        comparison = tsds.bench(
            store,
            options,
            progress=lambda event: bar.show("Measuring", event.done, event.total, str(event), wide=False),
        )
    written = comparison.write(folder)
    drawn = tsds.draw_comparison(comparison, folder / "bench.png")
    if as_json:
        text.echo_json(comparison.as_data())
    else:
        _show(comparison)
        text.echo()
        text.echo(f"wrote {written}" + (f" and {folder / 'bench.png'}" if drawn else ""))
        if not drawn:
            text.echo(
                "bench.png: not drawn, matplotlib is not installed. pip install '.[plots]' in a clone of tensorstore-ds"
            )
    if comparison.interrupted:
        raise interrupted("interrupted; what was measured until then is written")


def _show(comparison: Comparison) -> None:
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
    """A row per way: loading, training, memory; on a GPU its memory and use, too."""
    phases = [p for p in _PHASES if any(cell.phase == p for cell in comparison.cells)]
    on_gpu = any(cell.device_memory is not None for cell in comparison.cells)
    head = [part for phase in phases for part in (_PHASES[phase], "samples/s", "ratio")]
    yield ["", *head, "memory", *(["GPU memory", "GPU busy"] if on_gpu else [])]
    for way in comparison.ways:
        cells = [comparison.cell(way.name, phase, size) for phase in phases]
        ours = way.ours and any(cell and cell.seconds for cell in cells)
        row: list[text.Text] = [text.Styled(way.full_title, fg="green" if ours else None)]
        for cell in cells:
            row += [_time(cell.seconds, cell.reckoned) if cell else _MISSING]
            row += [_if_any(cell and cell.rate, "{:,.0f}".format), _if_any(cell and cell.ratio, _ratio)]
        peak = max((cell.memory for cell in cells if cell and cell.memory), default=None)
        row.append(_if_any(peak, words.size))
        if on_gpu:
            last = cells[-1]
            row += [_if_any(last and last.device_memory, words.size), _if_any(last and last.utilisation, words.percent)]
        yield row


def _if_any(value: Any, shown: Callable[[Any], str]) -> str:
    return _MISSING if value is None else shown(value)


def _time(seconds: float | None, reckoned: bool) -> str:
    return _MISSING if seconds is None else f"{'~' if reckoned else ''}{words.duration(seconds)}"


def _firsts(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Of each way: seconds before its first epoch, its seconds, the batch size, and why it was not measured."""
    for first in (way.first for way in comparison.ways):
        if first is None:
            yield _MISSING, _MISSING, _MISSING, ""
        elif first.seconds is None:
            yield _MISSING, _MISSING, f"{first.batch_size:,}", f"not measured: {spelled(first.reason)}"
        else:
            time = _time(first.seconds, first.reckoned)
            yield _if_any(first.opened, words.duration), time, f"{first.batch_size:,}", ""


def _remarks(comparison: Comparison) -> Iterator[text.Text]:
    yield "ratio: speed relative to the first row; ~: estimated from a part of an epoch, see bench.json"
    if comparison.baseline is not None:
        yield (
            "memory: the peak of a process and its workers, shared memory counted once, without page cache; "
            f"{words.size(comparison.baseline)} of it are Python and torch"
        )
    if comparison.device != "cpu":
        yield from {cell.reason for cell in comparison.cells if cell.seconds is not None and cell.reason}
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
