"""``tsds bench``: ways to load a data set, side by side on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tensorstore_ds import BenchOptions
from tsds_cli import text
from tsds_cli.failure import Interrupted
from tsds_cli.options import json_option, options_of, out_option, path_argument
from tsds_cli.progress import ProgressBar
from tsds_cli.spelling import spelled

if TYPE_CHECKING:
    from tensorstore_ds.comparison.bench import BenchProgress
    from tensorstore_ds.comparison.results import Cell, Comparison, First, Way

_MISSING = "-"


@click.command()
@path_argument("store")
@options_of(BenchOptions)
@out_option(None, "The folder to write bench.json and bench.png to.", shown="the name of STORE, and .bench")
@json_option
def bench(store: Path, options: BenchOptions, out: Path | None, as_json: bool) -> None:
    """Compare ways to load a STORE, and the files that it was made of.

    Measures epochs of loading alone and of training, memory, and the first epoch from files that are not in memory, for
    each way and batch size, in turn. Writes bench.json and bench.png. STORE and DIR are not changed; they are dropped
    from the page cache, and read again.

    \b
    Examples:
      tsds bench photos.tsds --raw photos
      tsds bench photos.tsds --ways tensors,store --batch-sizes 256 --no-train
    """
    from tensorstore_ds import bench as run
    from tensorstore_ds.comparison.chart import draw_comparison

    folder = out or Path(f"{store.name}.bench")
    folder.mkdir(parents=True, exist_ok=True)  # before anything is measured that could not be written
    bar = _Bar()
    with bar:
        comparison = run(store, options, progress=bar.update_bench)
    written = comparison.write(folder)
    drawn = draw_comparison(comparison, folder / "bench.png")
    if as_json:
        text.echo_json(comparison.as_data())
    else:
        _show(comparison)
        text.echo()
        text.echo(f"wrote {written}" + (f" and {folder / 'bench.png'}" if drawn else ""))
        if not drawn:
            text.echo("bench.png: not drawn, matplotlib is not installed. pip install 'tensorstore-ds[plots]'")
    if comparison.interrupted:
        raise Interrupted("interrupted; what was measured until then is written")


class _Bar(ProgressBar):
    def update_bench(self, event: BenchProgress) -> None:
        """Show what is measured."""
        self._show("measuring", event.done, event.total, 0, f"{event.done}/{event.total} · {event.doing}")


# --- the table --------------------------------------------------------------------------------------------------


def _show(comparison: Comparison) -> None:
    shape = "" if comparison.shape is None else f" of {'x'.join(map(str, comparison.shape))}"
    name = text.Styled(f"{Path(comparison.store).name}, {comparison.split}", bold=True)
    text.echo(name, f"  {text.count(comparison.samples, 'sample')}{shape}, batches on {comparison.device}")
    text.echo(", ".join(comparison.machine.values()))
    for size in comparison.batch_sizes:
        batches = -(-comparison.samples // size)
        text.head(f"batch {size:,}, {batches:,} {'batch' if batches == 1 else 'batches'} an epoch")
        text.echo_table(_cells(comparison, size), right=range(1, 20))
    text.head("first epoch, from files that are not in memory")
    text.echo_table(_firsts(comparison), right=(1, 2, 3))
    text.head("delivered")
    delivered: list[list[text.Text]] = [[_title(row), _delivered(row)] for row in comparison.ways]
    text.echo_table(delivered)
    _show_remarks(comparison)


def _cells(comparison: Comparison, size: int) -> list[list[text.Text]]:
    """A row a way: loading, training, memory; on a GPU its memory and use, too."""
    phases = [p for p in ("load", "train") if any(cell.phase == p for cell in comparison.cells)]
    on_gpu = any(cell.device_memory is not None for cell in comparison.cells)
    names = {"load": "loading", "train": "training"}
    head = [part for p in phases for part in (names[p], "samples/s", "ratio")]
    rows: list[list[text.Text]] = [["", *head, "memory", *(["GPU memory", "GPU busy"] if on_gpu else [])]]
    for row in comparison.ways:
        cells = [comparison.cell(row.name, p, size) for p in phases]  # type: ignore[arg-type]
        found = [part for cell in cells for part in _times(cell)]
        peak = max((cell.memory for cell in cells if cell and cell.memory), default=None)
        ours = row.ours and any(cell and cell.seconds for cell in cells)
        line: list[text.Text] = [text.Styled(_title(row), fg="green" if ours else None), *found]
        rows.append([*line, _MISSING if peak is None else text.size(peak), *(_gpu(cells[-1]) if on_gpu else [])])
    return rows


def _times(cell: Cell | None) -> list[str]:
    if cell is None or cell.seconds is None or cell.rate is None or cell.ratio is None:
        return [_MISSING, _MISSING, _MISSING]
    return [f"{'~' if cell.reckoned else ''}{text.duration(cell.seconds)}", f"{cell.rate:,.0f}", _ratio(cell.ratio)]


def _gpu(cell: Cell | None) -> list[str]:
    if cell is None:
        return [_MISSING, _MISSING]
    memory = _MISSING if cell.device_memory is None else text.size(cell.device_memory)
    return [memory, _MISSING if cell.utilisation is None else f"{cell.utilisation:.0%}".replace("%", " %")]


def _firsts(comparison: Comparison) -> list[list[str]]:
    rows = [["", "before it", "epoch", "batch", ""]]
    for row in comparison.ways:
        rows.append([_title(row), *_first(row.first)])
    return rows


def _first(first: First | None) -> list[str]:
    if first is None:
        return [_MISSING, _MISSING, _MISSING, ""]
    if first.seconds is None or first.opened is None:
        return [_MISSING, _MISSING, f"{first.batch_size:,}", f"not measured: {spelled(first.reason)}"]
    epoch = f"{'~' if first.reckoned else ''}{text.duration(first.seconds)}"
    return [text.duration(first.opened), epoch, f"{first.batch_size:,}", ""]


def _delivered(row: Way) -> text.Text:
    if row.reason:
        return f"not measured: {spelled(row.reason)}"
    return text.Styled(row.delivered, fg="red") if row.correct is False else row.delivered


def _show_remarks(comparison: Comparison) -> None:
    text.echo()
    for line in _remarks(comparison):
        text.echo(line)


def _remarks(comparison: Comparison) -> Iterator[text.Text]:
    yield "ratio: how many times as fast as the first row; ~: reckoned from a part of an epoch, as bench.json tells"
    if comparison.baseline is not None:
        yield (
            "memory: the peak of a process and its workers, what they share counted once, without page cache; "
            f"{text.size(comparison.baseline)} of it are Python and torch"
        )
    if comparison.device != "cpu":
        yield from {cell.reason for cell in comparison.cells if cell.seconds is not None and cell.reason}
    for cell in comparison.cells:
        way = next(row for row in comparison.ways if row.name == cell.way)
        if cell.seconds is None and not way.reason and not comparison.interrupted:
            phase = "loading" if cell.phase == "load" else "training"
            yield f"{phase}, batch {cell.batch_size:,}, {_title(way)}: not measured, {spelled(cell.reason)}"
    yield from comparison.notes
    for phase, name in (("load", "loading"), ("train", "training")):
        for group, others in (("files", "the best way from files"), ("tensors", "the best TensorDataset")):
            found = comparison.advantage(phase, group)  # type: ignore[arg-type]
            if found is not None:
                low, high = map(_ratio, found)
                times = low if low == high else f"{low} to {high}"
                yield text.Styled(f"{name}: tensorstore-ds is {times} times as fast as {others}", bold=True)


def _title(row: Way) -> str:
    from tensorstore_ds.comparison.chart import title_of

    return title_of(row)


def _ratio(value: float) -> str:
    """Two or three digits.

    >>> _ratio(1.04), _ratio(23.4), _ratio(316.2)
    ('1.0', '23', '316')
    """
    return f"{value:.1f}" if value < 9.95 else f"{value:,.0f}"
