"""``tsds stats``: the statistics of each split, as they were computed by the conversion.

A manifest may come from anywhere, and from a later version of the format: what is not of the expected form in its
statistics is taken for absent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tsds_cli import text
from tsds_cli.options import json_option, option, store_argument

if TYPE_CHECKING:
    from tensorstore_ds import Split

_CLASSES = 30  # classes shown without --all
_BAR = 28  # columns of the longest bar


@click.command()
@store_argument()
@option("--split", metavar="NAME", help="Use only the split NAME.")
@option("--all", "every", is_flag=True, help="Show all classes. By default, only the most frequent classes are shown.")
@json_option
def stats(store: str | Path, split: str | None, every: bool, as_json: bool) -> None:
    """Print statistics of the classes and pixels of a STORE.

    Shows samples per class, objects per image, pixels per class of a mask, mean and standard deviation of each channel,
    and image sizes in the source, for each split. Mean and standard deviation are for pixels scaled to [0, 1], as
    Normalize expects them.

    \b
    Examples:
      tsds stats photos.tsds
      tsds stats photos.tsds --split train --json
    """
    from tensorstore_ds import open as open_store

    opened = open_store(store)
    splits = list(map(opened.__getitem__, opened)) if split is None else [opened[split]]
    if as_json:
        text.echo_json({each.name: _as_data(each) for each in splits})
        return
    for i, each in enumerate(splits):
        if i:
            text.echo()
        _show(each, every=every)


def _show(split: Split, *, every: bool) -> None:
    text.echo(text.Styled(split.name, bold=True), f"  {text.count(len(split), 'sample')}")
    text.echo_table([*_channels(split), *_objects(split), *_keypoints(split), *_sizes(split)])
    for name, counts in split.class_counts.items():
        _show_classes(name, split.fields[name].kind, counts, len(split), every=every)
        if unknown := sum(split.statistics_of(name).get("unknown", ())):
            text.echo(f"    {unknown:,} of {len(counts) * len(split):,} are unknown")
        if "ignored" in (known := split.statistics_of(name)):
            text.echo(f"    {known['ignored']:,} pixels are ignored")
        if unlabelled := split.unlabelled.get(name):
            text.echo(f"    {unlabelled:,} unlabelled")


def _show_classes(name: str, kind: str, counts: Mapping[str, int], samples: int, *, every: bool) -> None:
    total = samples if kind == "labels" else sum(counts.values()) or 1  # several classes can apply to a sample
    text.echo(f"  classes of {name}{ {'mask': ', by pixels', 'labels': ', by samples'}.get(kind, '') }")
    labels, numbers = [*counts], [*counts.values()]
    most_first = sorted(range(len(labels)), key=lambda i: -numbers[i])
    shown = sorted(most_first[: len(labels) if every else _CLASSES])
    rows: list[list[text.Text]] = []
    for i in shown:
        n = numbers[i]
        bar = class_bar(n, numbers[most_first[0]])
        rows.append([str(i), labels[i], f"{n:,}", f"{100 * n / total:.1f} %", bar])
    text.echo_table(rows, right=[0, 2, 3], indent="    ")
    if len(labels) > len(shown):
        text.echo(f"    ... and {len(labels) - len(shown):,} more; --all shows all")


def class_bar(count: int, largest: int) -> text.Styled:
    """A bar for one of the counts, which has the full length for the largest."""
    return text.Styled(text.bar(count / (largest or 1), _BAR), fg="cyan")


def _channels(split: Split) -> Iterator[tuple[str, str]]:
    for name, title in titles(split, "image", ""):
        known = split.statistics_of(name)
        for moment in ("mean", "std") if "mean" in known else ():
            yield f"{title} {moment}".strip(), "  ".join(f"{value:.4f}" for value in known[moment])
        if known.get("scale", 1) != 1:
            yield "", f"by channel, of values divided by {known['scale']:g}"
        if "mean" not in known and len(split):
            unknown = "unknown: images were not decoded, or have other channels than gray and RGB"
            yield f"{title} mean, std".strip(), unknown


def _objects(split: Split) -> Iterator[tuple[str, str]]:
    for name, title in titles(split, "objects", "objects"):
        if "total" in (known := split.statistics_of(name)):
            spread = f"{known['min']:,} to {known['max']:,} per image, {known['mean']:.2f} on average"
            yield title, f"{known['total']:,}: {spread}"


def _keypoints(split: Split) -> Iterator[tuple[str, str]]:
    for found in split.absent_keypoints.values():
        most_first = sorted(found.items(), key=lambda item: -item[1][0])
        for i, (name, (absent, objects)) in enumerate(each for each in most_first if each[1][0]):
            yield "" if i else "keypoints", f"{name}: absent in {absent:,} of {objects:,}"


def _as_data(split: Split) -> dict[str, Any]:
    found = split.absent_keypoints
    absent = {"absent_keypoints": found} if found else {}
    return {"rows": len(split), "statistics": split.statistics, **absent}


def _sizes(split: Split) -> Iterator[tuple[str, str]]:
    for name, title in titles(split, "size", ""):
        known = split.statistics_of(name)
        for side in ("height", "width"):
            if found := known.get(side):
                spread = f"{found['min']:,} to {found['max']:,}, {found['mean']:.1f} on average"
                shown = spread if found["min"] < found["max"] else format(found["min"], ",")
                yield f"{title} {side}".strip(), f"{shown}, in the source"
        if distinct := known.get("distinct"):
            yield f"{title} sizes".strip(), ", ".join(f"{size} ({n:,})" for size, n in distinct.items())


def titles(split: Split, kind: str, alone: str) -> list[tuple[str, str]]:
    """The fields of a kind with the names that they are shown by: `alone` if there is one, else their own."""
    names = [name for name, field in split.fields.items() if field.kind == kind]
    return [(name, name if len(names) > 1 else alone) for name in names]
