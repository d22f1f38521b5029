"""``tsds stats``: the statistics of each split, as they were computed by the conversion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tsds_cli import figures, text
from tsds_cli.failure import Failure
from tsds_cli.options import json_option, path_argument

if TYPE_CHECKING:
    from tensorstore_ds.reading.store import Store

_BAR = 28


@click.command()
@path_argument("store")
@click.option("--split", metavar="NAME", help="Only this split.")
@json_option
def stats(store: Path, split: str | None, as_json: bool) -> None:
    """Print the statistics of a STORE, for each split.

    Samples of each class, objects an image, pixels of each class of a mask, mean and standard deviation of each
    channel, sizes in the source. The mean and the deviation are those of the stored pixels scaled to [0, 1]: give them
    to Normalize as they are.

    \b
    Examples:
      tsds stats photos.tsds
      tsds stats photos.tsds --split train --json
    """
    from tensorstore_ds import open as open_store

    opened = open_store(store)
    if split is not None and split not in opened:
        raise Failure(f"{store}: there is no split {split}. Choose one of {', '.join(opened.splits)}.")
    names = opened.splits if split is None else (split,)
    if as_json:
        text.echo_json({name: {"rows": len(opened[name]), **opened[name].statistics} for name in names})
        return
    for i, name in enumerate(names):
        if i:
            text.echo()
        _show(opened, name)


def _show(store: Store, name: str) -> None:
    statistics = store[name].statistics
    text.echo(text.Styled(name, bold=True), f"  {text.count(len(store[name]), 'sample')}")
    text.echo_table([*_channels(statistics), *_objects(statistics), *_sizes(statistics)])
    for title, classes, key in figures.class_lists(store):
        found = figures.counts(statistics, key, len(classes))
        if found is not None:
            _show_classes(title, list(zip(classes, found, strict=True)))
    for title, pixels, ignored in figures.masks(store, name):
        _show_classes(f"{title}, by pixels", pixels)
        text.echo(f"    {ignored:,} pixels are ignored")


def _channels(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    from tensorstore_ds.format.statistics import channel_moments

    found = channel_moments(statistics)
    if found is None:
        return []
    mean, std, scale = found
    lines = [("mean", _numbers(mean)), ("std", _numbers(std))]
    return lines if scale == 1 else [*lines, ("", f"by channel, of values divided by {scale:g}")]


def _objects(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = figures.objects(statistics)
    if found is None:
        return []
    spread = f"{found['min']:,} to {found['max']:,} an image, {found['mean']:.2f} on average"
    return [("objects", f"{found['total']:,}: {spread}")]


def _sizes(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    sides, distinct = figures.sizes(statistics)
    lines = []
    for side, found in sides.items():
        spread = f"{found['min']:,} to {found['max']:,}, {found['mean']:.1f} on average, in the source"
        lines.append((side, spread if found["min"] < found["max"] else f"{found['min']:,}, in the source"))
    if distinct:
        lines.append(("sizes", ", ".join(f"{size} ({n:,})" for size, n in distinct.items())))
    return lines


def _show_classes(title: str, counts: list[tuple[str, int]]) -> None:
    most = max((n for _, n in counts), default=0) or 1
    total = sum(n for _, n in counts) or 1
    text.echo(f"  classes of {title}")
    rows: list[list[text.Text]] = []
    for i, (label, n) in enumerate(counts):
        drawn = text.Styled(text.bar(n / most, _BAR), fg="cyan")
        rows.append([str(i), label, text.number(n), f"{100 * n / total:.1f} %", drawn])
    text.echo_table(rows, right=[0, 2, 3], indent="    ")


def _numbers(values: list[float]) -> str:
    return "  ".join(f"{value:.4f}" for value in values)
