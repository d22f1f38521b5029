"""``tsds info``: what a store holds, at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tsds_cli import figures, text
from tsds_cli.options import json_option, path_argument, sha256_option

if TYPE_CHECKING:
    from tensorstore_ds.page_cache.residency import Residency
    from tensorstore_ds.reading.store import Store

_NOUNS = {"class_counts": "samples", "object_counts": "objects"}
_BAR = 28  # columns of the longest bar
_CLASSES = 24  # classes shown; `tsds stats` shows all
_SPLIT_COLUMNS = 4  # beside the sum, no more splits than these get a column of their own


@click.command()
@path_argument("store")
@sha256_option
@json_option
def info(store: Path, sha256: str | None, as_json: bool) -> None:
    """Show what a STORE holds.

    Its fields, splits, classes and sizes, where it comes from, and how much of it is in memory. Reads the manifest and
    no data, so that it answers at once whatever the size.

    \b
    Examples:
      tsds info photos.tsds
      tsds info photos.tsds --json
    """
    from tensorstore_ds import open as open_store
    from tensorstore_ds.page_cache.residency import residency

    opened = open_store(store, sha256=sha256)
    resident = residency(opened)
    if as_json:
        text.echo_json(_as_data(opened, resident))
        return
    _show_head(opened, store)
    _show_fields(opened)
    _show_splits(opened)
    for _, classes, key in figures.class_lists(opened):
        found = {name: figures.counts(opened[name].statistics, key, len(classes)) for name in opened}
        _show_classes(_NOUNS[key], classes, {name: counts for name, counts in found.items() if counts is not None})
    _show_residency(resident)


def _as_data(store: Store, resident: Mapping[str, Residency]) -> dict[str, Any]:
    manifest = store.manifest
    return {
        "path": str(store.path),
        "sha256": store.sha256,
        "format_version": manifest.version,
        "layout": store.layout,
        "nbytes": store.nbytes,
        "fields": {name: field.dump() for name, field in manifest.fields.items()},
        "splits": {
            name: {
                "rows": len(store[name]),
                "shards": len(manifest.splits[name].shards),
                "nbytes": _split_nbytes(store, name),
                "statistics": store[name].statistics,
            }
            for name in store
        },
        "provenance": manifest.provenance,
        "license": manifest.license,
        "citation": manifest.citation,
        "residency": resident,
    }


def _split_nbytes(store: Store, name: str) -> int:
    return sum(file.size for shard in store.manifest.splits[name].shards for file in shard.files.values())


# --- what is shown ----------------------------------------------------------------------------------------------


def _show_head(store: Store, path: Path) -> None:
    manifest, origin = store.manifest, store.manifest.provenance
    rows = sum(len(store[name]) for name in store)
    facts = (text.count(rows, "sample"), text.size(store.nbytes), store.layout, f"format {manifest.version}")
    text.echo(text.Styled(str(path), bold=True), f"  {' · '.join(facts)}")
    lines = [("sha256", store.sha256)]
    if "source" in origin:
        made = f"{origin.get('tool', '?')} {origin.get('tool_version', '')}".strip()
        when = f", {origin['created']}" if "created" in origin else ""
        lines.append(("from", f"{origin['source']} ({origin.get('source_format', '?')}), by {made}{when}"))
    for name in ("skipped", "left_out"):
        counts = origin.get(name)
        if isinstance(counts, Mapping) and counts:
            lines.append((name.replace("_", " "), ", ".join(f"{reason} {n}" for reason, n in counts.items())))
    lines += [(name, value) for name, value in (("licence", manifest.license), ("cite", manifest.citation)) if value]
    text.echo_table(lines)


def _show_fields(store: Store) -> None:
    text.head("fields")
    fields = store.manifest.fields.items()
    rows = [(name, field.kind if field.kind != name else "", field.describe()) for name, field in fields]
    text.echo_table(rows)


def _show_splits(store: Store) -> None:
    text.head("splits")
    rows = []
    for name in store:
        shards = text.count(len(store.manifest.splits[name].shards), "shard")
        cells = [name, text.number(len(store[name])), "samples", text.size(_split_nbytes(store, name)), shards]
        objects = figures.objects(store[name].statistics)
        rows.append([*cells, text.count(objects["total"], "object") if objects else ""])
    text.echo_table(rows, right=[1, 3, 4])


def _show_classes(title: str, classes: tuple[str, ...], counts: Mapping[str, list[int]]) -> None:
    """Classes with bars: all in their order, or if there are many those that occur most."""
    if not counts:
        return
    totals = [sum(found[i] for found in counts.values()) for i in range(len(classes))]
    shown = list(range(len(classes)))
    if len(classes) > _CLASSES:
        shown = sorted(sorted(shown, key=lambda i: -totals[i])[:_CLASSES])
    most = max(totals, default=0) or 1
    splits = list(counts) if 1 < len(counts) <= _SPLIT_COLUMNS else []
    text.head(f"classes, by {title}")
    rows: list[list[text.Text]] = [["#", "class", *splits, "all" if splits else "", ""]]
    for i in shown:
        columns = [text.number(counts[split][i]) for split in splits]
        drawn = text.Styled(text.bar(totals[i] / most, _BAR), fg="cyan")
        rows.append([str(i), classes[i], *columns, text.number(totals[i]), drawn])
    text.echo_table(rows, right=[0, *range(2, len(splits) + 3)])
    if len(classes) > _CLASSES:
        rest = sorted(totals, reverse=True)[_CLASSES:]
        text.echo(f"  and {len(rest):,} more with {rest[-1]:,} to {rest[0]:,} each; tsds stats shows all")


def _show_residency(resident: Mapping[str, Residency]) -> None:
    text.head("in memory (page cache)")
    rows: list[list[text.Text]] = []
    for column, found in resident.items():
        if found.share is None:
            rows.append([column, text.size(found.nbytes), "?", found.reason])
        else:
            percent = f"{found.share:.0%}".replace("%", " %")
            rows.append([column, text.size(found.nbytes), percent, text.Styled(text.bar(found.share, 10), fg="green")])
    text.echo_table(rows, right=[1, 2])
