"""``tsds stats``: the statistics of each split, as they were computed by the conversion.

A manifest may come from anywhere, and from a later version of the format: what is not of the expected form in its
statistics is taken for absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import click

from tsds_cli import text
from tsds_cli.options import json_option, store_argument

if TYPE_CHECKING:
    from tensorstore_ds import Split

_CLASSES = 30  # classes shown without --all
_BAR = 28  # columns of the longest bar


@click.command()
@store_argument()
@click.option("--split", metavar="NAME", help="Only this split.")
@click.option("--all", "every", is_flag=True, help="Show all classes, not only those that occur most.")
@json_option
def stats(store: str | Path, split: str | None, every: bool, as_json: bool) -> None:
    """Print the statistics of a STORE, for each split.

    Samples per class, objects per image, pixels per class of a mask, mean and standard deviation of each channel, and
    image sizes in the source. The mean and the standard deviation are those of the stored pixels scaled to [0, 1], as
    Normalize takes them.

    \b
    Examples:
      tsds stats photos.tsds
      tsds stats photos.tsds --split train --json
    """
    from tensorstore_ds import open as open_store

    opened = open_store(store)
    splits = list(map(opened.__getitem__, opened)) if split is None else [opened[split]]
    if as_json:
        text.echo_json({each.name: {"rows": len(each), **each.statistics, **_absent(each)} for each in splits})
        return
    for i, each in enumerate(splits):
        if i:
            text.echo()
        _show(each, every=every)


def _show(split: Split, *, every: bool) -> None:
    text.echo(text.Styled(split.name, bold=True), f"  {text.count(len(split), 'sample')}")
    text.echo_table([*_channels(split), *_objects(split), *_keypoints(split), *_sizes(split)])
    for name, counts in split.class_counts.items():
        _show_classes(name, split.fields[name].kind, counts, every=every)
        ignored = _ignored(split, name)
        if ignored is not None:
            text.echo(f"    {ignored:,} pixels are ignored")
        if unlabelled := split.unlabelled.get(name):
            text.echo(f"    {unlabelled:,} unlabelled")


def _show_classes(name: str, kind: str, counts: Mapping[str, int], *, every: bool) -> None:
    total = sum(counts.values()) or 1
    text.echo(f"  classes of {name}{', by pixels' if kind == 'mask' else ''}")
    rows: list[list[text.Text]] = [
        [str(i), label, f"{n:,}", f"{100 * n / total:.1f} %", class_bar(n, counts.values())]
        for i, (label, n) in enumerate(counts.items())
    ]
    numbers = [*counts.values()]
    most_first = sorted(range(len(rows)), key=lambda i: -numbers[i])
    shown = sorted(most_first[: len(rows) if every else _CLASSES])
    text.echo_table([rows[i] for i in shown], right=[0, 2, 3], indent="    ")
    if len(rows) > len(shown):
        text.echo(f"    ... and {len(rows) - len(shown):,} more; --all shows all")


def class_bar(count: int, counts: Collection[int]) -> text.Styled:
    """A bar for one of the counts, which is as long as it can be for the largest."""
    return text.Styled(text.bar(count / (max(counts) or 1), _BAR), fg="cyan")


def _channels(split: Split) -> Iterator[tuple[str, str]]:
    if split.channel_moments is not None:
        *moments, scale = split.channel_moments
        for name, values in zip(("mean", "std"), moments, strict=True):
            yield name, "  ".join(f"{value:.4f}" for value in values)
        if scale != 1:
            yield "", f"by channel, of values divided by {scale:g}"
    elif len(split) and "image" in split.fields:
        yield "mean, std", "unknown: images were not decoded, or have other channels than gray and RGB"


def _objects(split: Split) -> Iterator[tuple[str, str]]:
    found = object_counts(split)
    if found is not None:
        spread = f"{found['min']:,} to {found['max']:,} per image, {found['mean']:.2f} on average"
        yield "objects", f"{found['total']:,}: {spread}"


def _keypoints(split: Split) -> Iterator[tuple[str, str]]:
    for found in split.absent_keypoints.values():
        most_first = sorted(found.items(), key=lambda item: -item[1][0])
        for i, (name, (absent, objects)) in enumerate(each for each in most_first if each[1][0]):
            yield "" if i else "keypoints", f"{name}: absent in {absent:,} of {objects:,}"


def _absent(split: Split) -> dict[str, Any]:
    found = split.absent_keypoints
    return {"absent_keypoints": found} if found else {}


def _sizes(split: Split) -> Iterator[tuple[str, str]]:
    sizes = split.statistics.get("sizes")
    if not isinstance(sizes, Mapping):
        return
    for side in ("height", "width"):
        found = _range(sizes.get(side), "min", "max")
        if found is not None:
            spread = f"{found['min']:,} to {found['max']:,}, {found['mean']:.1f} on average"
            yield side, f"{spread if found['min'] < found['max'] else format(found['min'], ',')}, in the source"
    distinct = sizes.get("distinct")
    named = [f"{size} ({n:,})" for size, n in distinct.items() if _is_count(n)] if isinstance(distinct, Mapping) else []
    if named:
        yield "sizes", ", ".join(named)


# --- statistics of the expected form ----------------------------------------------------------------------------


def object_counts(split: Split) -> Mapping[str, Any] | None:
    """``total``, ``min``, ``max`` and ``mean`` of the objects per image."""
    return _range(split.statistics.get("objects"), "total", "min", "max")


def _ignored(split: Split, name: str) -> int | None:
    """Pixels that are ignored, of a field of masks."""
    masks = split.statistics.get("masks")
    entry = masks.get(name) if isinstance(masks, Mapping) else None
    found = entry.get("ignored") if isinstance(entry, Mapping) else None
    return found if _is_count(found) else None


def _range(value: object, *counts: str) -> Mapping[str, Any] | None:
    if not isinstance(value, Mapping) or type(value.get("mean")) not in (int, float):
        return None
    return value if all(_is_count(value.get(name)) for name in counts) else None


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int
