"""Commands that show the content of a store, and whether it is intact.

A manifest is untrusted, and may be from a later version of the format: statistics of an unexpected form count as
absent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.memory import shown_share
from tsds_cli.messages import Failure, spelled
from tsds_cli.options import json_option, option, path, sha256_option, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import Split, Store
    from tensorstore_ds.annex.editing import ReceiptCheck
    from tensorstore_ds.page_cache import Residency

_CLASSES = 24  # classes that `tsds info` shows; `tsds stats --all` shows all
_NOUNS = {"label": "samples", "labels": "samples", "objects": "objects"}  # what is counted, by kind of field
_SPLIT_COLUMNS = 4  # beside the sum, no more splits than these get a column of their own
_STATS_CLASSES = 30  # classes that `tsds stats` shows without --all
_BAR = 28  # columns of the longest bar


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
    text.title(words.shown_path(path), " · ".join(facts))
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
    if replaced := _replaced_shards(store):
        lines.append(("note", replaced))
    lines += [("note", spelled(note)) for split in map(store.__getitem__, store) for note in split.notes(split.fields)]
    text.echo_table(lines)


def _replaced_shards(store: Store) -> str:
    """The number of replaced shards that still exist, and how to remove them; empty for none."""
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
        known = {title: store[name].statistics_of(each) for each, title in _titles(store[name], "objects", "")}
        totals = {title: each["total"] for title, each in known.items() if "total" in each}
        counted = ", ".join(f"{n:,} {title}" if title else text.count(n, "object") for title, n in totals.items())
        rows.append([name, f"{len(store[name]):,}", "samples", words.size(_split_nbytes(store, name)), shards, counted])
    text.echo_table(rows, right=[1, 3, 4])


def _show_classes(title: str, classes: Sequence[str], counts: Mapping[str, Mapping[str, int]]) -> None:
    """Classes with bars: all in their order, or the most frequent of many."""
    totals = [sum(split[name] for split in counts.values()) for name in classes]
    most_first = sorted(range(len(classes)), key=lambda i: -totals[i])
    splits = list(counts) if 1 < len(counts) <= _SPLIT_COLUMNS else []
    text.head(title)
    rows: list[list[text.Text]] = [["#", "class", *splits, "all" if splits else "", ""]]
    for i in sorted(most_first[:_CLASSES]):
        columns = [f"{counts[split][classes[i]]:,}" for split in splits]
        rows.append([str(i), classes[i], *columns, f"{totals[i]:,}", _class_bar(totals[i], totals[most_first[0]])])
    text.echo_table(rows, right=[0, *range(2, len(splits) + 3)])
    rest = [totals[i] for i in most_first[_CLASSES:]]
    if rest:
        text.echo(f"  and {len(rest):,} more with {rest[-1]:,} to {rest[0]:,} each; tsds stats --all shows all")


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
    opened = tsds.open(store)
    splits = list(map(opened.__getitem__, opened)) if split is None else [opened[split]]
    if as_json:
        text.echo_json({each.name: _split_data(each) for each in splits})
        return
    for i, each in enumerate(splits):
        if i:
            text.echo()
        _show_split(each, every=every)


def _show_split(split: Split, *, every: bool) -> None:
    text.title(split.name, text.count(len(split), "sample"))
    text.echo_table([*_channels(split), *_objects(split), *_keypoints(split), *_sizes(split)])
    for name, counts in split.class_counts.items():
        _show_class_shares(name, split.fields[name].kind, counts, len(split), every=every)
        if unknown := sum(split.statistics_of(name).get("unknown", ())):
            text.echo(f"    {unknown:,} of {len(counts) * len(split):,} are unknown")
        if "ignored" in (known := split.statistics_of(name)):
            text.echo(f"    {known['ignored']:,} pixels are ignored")
        if unlabelled := split.unlabelled.get(name):
            text.echo(f"    {unlabelled:,} unlabelled")


def _show_class_shares(name: str, kind: str, counts: Mapping[str, int], samples: int, *, every: bool) -> None:
    total = samples if kind == "labels" else sum(counts.values()) or 1  # several classes can apply to a sample
    text.echo(f"  classes of {name}{ {'mask': ', by pixels', 'labels': ', by samples'}.get(kind, '') }")
    labels, numbers = [*counts], [*counts.values()]
    most_first = sorted(range(len(labels)), key=lambda i: -numbers[i])
    shown = sorted(most_first[: len(labels) if every else _STATS_CLASSES])
    rows: list[list[text.Text]] = []
    for i in shown:
        n = numbers[i]
        bar = _class_bar(n, numbers[most_first[0]])
        rows.append([str(i), labels[i], f"{n:,}", f"{100 * n / total:.1f} %", bar])
    text.echo_table(rows, right=[0, 2, 3], indent="    ")
    if len(labels) > len(shown):
        text.echo(f"    ... and {len(labels) - len(shown):,} more; --all shows all")


def _class_bar(count: int, largest: int) -> text.Styled:
    """A bar for a count, with the full length for the largest."""
    return text.Styled(text.bar(count / (largest or 1), _BAR), fg="cyan")


def _channels(split: Split) -> Iterator[tuple[str, str]]:
    for name, title in _titles(split, "image", ""):
        known = split.statistics_of(name)
        for moment in ("mean", "std") if "mean" in known else ():
            yield f"{title} {moment}".strip(), "  ".join(f"{value:.4f}" for value in known[moment])
        if known.get("scale", 1) != 1:
            yield "", f"by channel, of values divided by {known['scale']:g}"
        if "mean" not in known and len(split):
            unknown = "unknown: images were not decoded, or have other channels than gray and RGB"
            yield f"{title} mean, std".strip(), unknown


def _objects(split: Split) -> Iterator[tuple[str, str]]:
    for name, title in _titles(split, "objects", "objects"):
        if "total" in (known := split.statistics_of(name)):
            spread = f"{known['min']:,} to {known['max']:,} per image, {known['mean']:.2f} on average"
            yield title, f"{known['total']:,}: {spread}"


def _keypoints(split: Split) -> Iterator[tuple[str, str]]:
    for found in split.absent_keypoints.values():
        most_first = sorted(found.items(), key=lambda item: -item[1][0])
        for i, (name, (absent, objects)) in enumerate(each for each in most_first if each[1][0]):
            yield "" if i else "keypoints", f"{name}: absent in {absent:,} of {objects:,}"


def _split_data(split: Split) -> dict[str, Any]:
    found = split.absent_keypoints
    absent = {"absent_keypoints": found} if found else {}
    return {"rows": len(split), "statistics": split.statistics, **absent}


def _sizes(split: Split) -> Iterator[tuple[str, str]]:
    for name, title in _titles(split, "size", ""):
        known = split.statistics_of(name)
        for side in ("height", "width"):
            if found := known.get(side):
                spread = f"{found['min']:,} to {found['max']:,}, {found['mean']:.1f} on average"
                shown = spread if found["min"] < found["max"] else format(found["min"], ",")
                yield f"{title} {side}".strip(), f"{shown}, in the source"
        if distinct := known.get("distinct"):
            yield f"{title} sizes".strip(), ", ".join(f"{size} ({n:,})" for size, n in distinct.items())


def _titles(split: Split, kind: str, alone: str) -> list[tuple[str, str]]:
    """The fields of a kind with the names shown: `alone` if there is one, else their own."""
    names = [name for name, field in split.fields.items() if field.kind == kind]
    return [(name, name if len(names) > 1 else alone) for name in names]


@click.command()
@store_argument()
@option(
    "--threads",
    type=click.IntRange(1, 256),
    help="Number of reading threads.",
    show_default="the cores available to this process",
)
@sha256_option
@option(
    "--receipt",
    type=path,
    metavar="FILE",
    help="Also check that the samples of this receipt of tsds erase are erased from the STORE.",
)
@json_option
def verify(store: str | Path, threads: int | None, sha256: str | None, receipt: Path | None, as_json: bool) -> None:
    """Verify the integrity of a STORE, byte by byte.

    Compares every file and the manifest with their SHA-256, and checks chunks and values against the rules of the
    format. Prints one line per problem. The exit status is 1 if there are problems.

    The checksums are stored in the store, so they do not protect against intentional changes. For that, pass --sha256
    with a digest from the author of the store. tsds info prints it.

    \b
    Examples:
      tsds verify photos.tsds
      tsds verify photos.tsds --threads 4 --json
      tsds verify photos.tsds --receipt receipt.json
    """
    root: str | Path = store
    if isinstance(store, str):
        root = tsds.open(store, sha256=sha256).path
    with ProgressBar() as bar:
        problems = tsds.verify(store, sha256=sha256, threads=threads, progress=partial(bar.update_bytes, "Checking"))
    splits = {} if problems else tsds.open(root).manifest.splits
    unchecked = {Path(root, name, f"{n:05d}") for name, split in splits.items() for n in split.replaced}
    # Existing files, because a damaged store may not list them; links are not followed.
    paths = [Path(root)] if Path(root).is_file() else []
    for folder, below, names in os.walk(root):
        below[:] = [each for each in below if Path(folder, each) not in unchecked]
        paths += [Path(folder, name) for name in names]
    sizes = [path.lstat().st_size for path in paths]
    files, nbytes = len(sizes), sum(sizes)
    unreadable = {} if problems else tsds.open(root).manifest.unreadable
    checked = None if receipt is None or problems else tsds.editing.check_receipt(root, receipt)
    if as_json:
        text.echo_json(
            {
                "path": words.shown_path(store),
                "ok": not problems and (checked is None or checked.is_erased),
                "files": files,
                "nbytes": nbytes,
                "problems": problems,
                "unreadable": {name: field.reason for name, field in unreadable.items()},
                **({} if checked is None else {"receipt": {**asdict(checked), "is_erased": checked.is_erased}}),
            }
        )
    elif problems:
        for problem in problems:
            text.echo(f"{problem.reason}: {problem}")
    else:
        text.echo(text.Styled("OK", fg="green"), f": {text.count(files, 'file')}, {words.size(nbytes)}")
        for name, field in unreadable.items():
            text.echo(f"{name}: only sizes and hashes were checked, because {field.describe()}.")
        if replaced := _replaced_shards(tsds.open(root)):
            text.echo(f"not checked: {replaced}")
    if checked is not None and not as_json:
        text.echo(f"receipt: {_receipt_line(checked)}")
    if problems:
        raise Failure("" if as_json else f"{words.shown_path(store)}: {text.count(len(problems), 'problem')}.")
    if checked is not None and not checked.is_erased:
        raise Failure("" if as_json else f"{words.shown_path(store)}: this store does not match the receipt.")


def _receipt_line(checked: ReceiptCheck) -> str:
    """What a receipt and a store say of each other."""
    samples = text.count(sum(checked.erased.values()), "sample")
    if checked.state == "before":
        return f"{samples} erased on {checked.created}, but not from this copy. Refresh it with tsds pull --update"
    if checked.found:
        rows = text.counts({name: len(rows) for name, rows in checked.found.items()})
        return f"found samples with an erased key or image: {rows}. --json prints their rows"
    if checked.state == "restored":
        return f"some of the {samples} erased on {checked.created} were restored: their tombstones are gone"
    searched = "keys and images were not compared, because there are no tombstones"
    if checked.compared:
        searched = f"no key or image of the {checked.compared:,} samples is an erased one"
    if checked.state == "other":
        return f"it is the receipt of a different store, or of a state that this store does not know; {searched}"
    return f"{samples} erased on {checked.created}; {searched}"
