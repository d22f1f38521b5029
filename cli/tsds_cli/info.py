"""``tsds info``: what a store holds, at a glance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import spelled
from tsds_cli.options import json_option, sha256_option, store_argument
from tsds_cli.stats import class_bar, titles
from tsds_cli.warm import shown_share

if TYPE_CHECKING:
    from tensorstore_ds import Residency, Store

_CLASSES = 24  # classes shown; `tsds stats --all` shows all
_NOUNS = {"label": "samples", "labels": "samples", "objects": "objects"}  # what is counted, by kind of field
_SPLIT_COLUMNS = 4  # beside the sum, no more splits than these get a column of their own


@click.command()
@store_argument()
@sha256_option
@json_option
def info(store: str | Path, sha256: str | None, as_json: bool) -> None:
    """Show the splits, fields, classes and size of a STORE.

    Also shows where the data comes from, and how much of the store is in memory. Only the manifest is read, so this
    takes no longer for a large store.

    \b
    Examples:
      tsds info photos.tsds
      tsds info photos.tsds --json
    """
    import tensorstore_ds as tsds

    opened = tsds.open(store, sha256=sha256)
    resident = tsds.residency(opened)
    if as_json:
        text.echo_json(_as_data(opened, resident))
        return
    _show_head(opened, store)
    text.head("fields")
    fields = opened.manifest.fields.items()
    text.echo_table([(name, field.kind if field.kind != name else "", field.describe()) for name, field in fields])
    if opened.manifest.unreadable:
        text.head("fields that cannot be read")
        text.echo_table([(name, field.describe()) for name, field in opened.manifest.unreadable.items()])
    _show_splits(opened)
    for name, field in opened.manifest.fields.items():
        counted = {split: counts[name] for split in opened if name in (counts := opened[split].class_counts)}
        if counted and field.kind in _NOUNS:
            is_alone = [each.kind for each in opened.manifest.fields.values()].count(field.kind) == 1
            title = f"classes{'' if is_alone else f' of {name}'}, by {_NOUNS[field.kind]}"
            _show_classes(title, field.classes, counted)
            if unlabelled := {split: n for split in opened if (n := opened[split].unlabelled.get(name))}:
                shown = ", ".join(f"{n:,} in {split}" for split, n in unlabelled.items())
                text.echo(f"  {sum(unlabelled.values()):,} unlabelled{f': {shown}' if len(opened) > 1 else ''}")
    text.head("in memory (page cache)")
    columns = [(name, words.size(column.nbytes), *shown_share(column)) for name, column in resident.items()]
    text.echo_table(columns, right=[1, 2])


def _as_data(store: Store, resident: Mapping[str, Residency]) -> dict[str, Any]:
    manifest = store.manifest
    return {
        "path": store.place,
        "sha256": store.sha256,
        "content_sha256": store.content_sha256,
        "format_version": manifest.version,
        "layout": store.layout,
        "nbytes": store.nbytes,
        "fields": {name: field.dump() for name, field in manifest.fields.items()},
        "unreadable": {name: field.reason for name, field in manifest.unreadable.items()},
        "splits": {
            name: {
                "rows": len(store[name]),
                "shards": len(manifest.splits[name].shards),
                "nbytes": _split_nbytes(store, name),
                "statistics": store[name].statistics,
            }
            for name in store
        },
        "replaced": dict(zip(("shards", "nbytes"), store.replaced, strict=True)),
        "provenance": manifest.provenance,
        "license": manifest.license,
        "citation": manifest.citation,
        "residency": resident,
    }


def _split_nbytes(store: Store, name: str) -> int:
    return sum(shard.nbytes for shard in store.manifest.splits[name].shards)


def _show_head(store: Store, path: str | Path) -> None:
    manifest, origin = store.manifest, store.manifest.provenance
    rows = sum(len(store[name]) for name in store)
    facts = (text.count(rows, "sample"), words.size(store.nbytes), store.layout, f"format {manifest.version}")
    text.echo(text.Styled(words.place(path), bold=True), f"  {' · '.join(facts)}")
    lines = [("sha256", store.sha256), ("content sha256", store.content_sha256)]
    if "source" in origin:
        made = f"{origin.get('tool', '?')} {origin.get('tool_version', '')}".strip()
        when = f", {origin['created']}" if "created" in origin else ""
        lines.append(("from", f"{origin['source']} ({origin.get('source_format', '?')}), by {made}{when}"))
    for name in ("skipped", "left_out"):
        counts = origin.get(name)
        if isinstance(counts, Mapping) and counts:
            lines.append((name.replace("_", " "), ", ".join(f"{reason} {n}" for reason, n in counts.items())))
    if isinstance(origin.get("description"), str):
        lines.append(("about", origin["description"]))
    lines += [(name, value) for name, value in (("license", manifest.license), ("cite", manifest.citation)) if value]
    if replaced := replaced_shards(store):
        lines.append(("note", replaced))
    lines += [("note", spelled(note)) for split in map(store.__getitem__, store) for note in split.notes(split.fields)]
    text.echo_table(lines)


def replaced_shards(store: Store) -> str:
    """How many replaced shards are still there, and what removes them; empty for none."""
    shards, nbytes = store.replaced
    if not shards:
        return ""
    what = f"{text.count(shards, 'replaced shard')}, {words.size(nbytes)}"
    until = f"the next tsds append, update, erase or drop removes {'it' if shards == 1 else 'them'}"
    return f"{what}, still on this disk: {until}"


def _show_splits(store: Store) -> None:
    text.head("splits")
    rows = []
    for name in store:
        shards = text.count(len(store.manifest.splits[name].shards), "shard")
        known = {title: store[name].statistics_of(each) for each, title in titles(store[name], "objects", "")}
        totals = {title: each["total"] for title, each in known.items() if "total" in each}
        counted = ", ".join(f"{n:,} {title}" if title else text.count(n, "object") for title, n in totals.items())
        rows.append([name, f"{len(store[name]):,}", "samples", words.size(_split_nbytes(store, name)), shards, counted])
    text.echo_table(rows, right=[1, 3, 4])


def _show_classes(title: str, classes: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> None:
    """Classes with bars: all in their order, or if there are many those that occur most."""
    totals = [sum(split[name] for split in counts.values()) for name in classes]
    most_first = sorted(range(len(classes)), key=lambda i: -totals[i])
    splits = list(counts) if 1 < len(counts) <= _SPLIT_COLUMNS else []
    text.head(title)
    rows: list[list[text.Text]] = [["#", "class", *splits, "all" if splits else "", ""]]
    for i in sorted(most_first[:_CLASSES]):
        columns = [f"{counts[split][classes[i]]:,}" for split in splits]
        rows.append([str(i), classes[i], *columns, f"{totals[i]:,}", class_bar(totals[i], totals[most_first[0]])])
    text.echo_table(rows, right=[0, *range(2, len(splits) + 3)])
    rest = [totals[i] for i in most_first[_CLASSES:]]
    if rest:
        text.echo(f"  and {len(rest):,} more with {rest[-1]:,} to {rest[0]:,} each; tsds stats --all shows all")
