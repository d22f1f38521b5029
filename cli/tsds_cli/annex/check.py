"""``tsds check``: find problems in the content of a store."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tensorstore_ds.annex.checking import CheckFindings, CheckOptions, SuspectObject
from tensorstore_ds.annex.pictures import save_png
from tsds_cli import text
from tsds_cli.annex.options import check_png, out_option
from tsds_cli.messages import Failure, spelled
from tsds_cli.options import Command, json_option, option, options_of, path, store_argument, store_place
from tsds_cli.progress import ProgressBar

_NAMED = 5  # findings of a kind that are printed; --json prints all
_APART = "apart from its oriented box"
_ODD = {
    "blurred": ("blurred images", "sharpness"),
    "dark": ("dark images", "99th percentile of luminance"),
    "bright": ("overexposed images", "5th percentile of luminance"),
    "aspect": ("images of an odd aspect ratio", "width / height"),
}
_SUSPECT = {
    "overlooked": "objects that were probably overlooked",
    "swapped": "objects that probably have a wrong class",
    "misplaced": "boxes that are probably misplaced",
}


@click.command(cls=Command)
@store_argument()
@click.argument("others", nargs=-1, type=store_place, metavar="[STORE...]")
@options_of(CheckOptions)
@option(
    "--picture",
    type=path,
    metavar="FILE",
    help="Draw groups of copies into this PNG file. Copies in several splits come first.",
    group="Essential",
)
@option(
    "--predictions",
    multiple=True,
    metavar="SPLIT=FILE|FIELD",
    help="Find wrong labels and objects with predictions of a model: a .npy file of shape (rows, classes), COCO "
    "results in a JSON file, or a field of the store. Once per split.",
    group="Essential",
)
@out_option(
    None,
    "Write all findings to this JSON file, which tsds filter --without and tsds erase --rows read.",
    "FILE",
    group="Essential",
)
@json_option
def check(
    store: str | Path,
    others: tuple[str | Path, ...],
    options: CheckOptions,
    picture: Path | None,
    predictions: tuple[str, ...],
    out: Path | None,
    as_json: bool,
) -> None:
    """Find duplicates, leaks and label errors in a STORE.

    Finds copies of images within a split and between splits, including resized, re-encoded and brightened copies. Also
    finds copies with different labels; images of one color, and images that cannot be decoded; images that are blurred,
    dark, overexposed or of an unusual aspect ratio; boxes of implausible size; objects without some of their keypoints;
    and classes with few samples. With --predictions, it also finds labels and objects that a model contradicts.

    With more stores, copies of images between the first STORE and the others are also found. Everything else is checked
    in the first one only.

    The exit status is 1 if problems are found. Use tsds filter --without FILE to remove the samples that --out FILE
    lists.

    \b
    Examples:
      tsds check photos.tsds
      tsds check photos.tsds --out findings.json
      tsds check photos.tsds --mirrored --picture copies.png
      tsds check photos.tsds --predictions train=probabilities.npy
      tsds check voc.tsds --predictions val=results.json
      tsds check mine.tsds benchmark.tsds --mirrored
    """
    if picture is not None:
        check_png(picture)
    for each in filter(None, (out, picture)):
        tsds.reading.check_outside_stores(each)  # before every image is read
    with ProgressBar() as bar:
        given = _predictions(predictions)
        found = tsds.check_store(store, options, others=others, predictions=given, progress=bar.update)
    if out is not None:
        found.save(out)
    if as_json:
        text.echo_json(found.dump())
    else:
        _show(found, out)
    if picture is not None and not found.copies:
        text.echo(f"{picture}: not written, because there are no copies", err=as_json)
    elif picture is not None:
        opened = {str(words.shown_path(each)): tsds.open(each) for each in others}
        save_png(tsds.checking.draw_copies(tsds.open(store), found, others=opened), picture)
        text.echo(f"{picture}: {text.count(len(found.copies), 'group')} of copies", err=as_json)
    if not found.is_clean:
        click.get_current_context().exit(1)


def _predictions(given: tuple[str, ...]) -> str | dict[str, str] | None:
    """A field, or files by split."""
    if len(given) == 1 and "=" not in given[0] and not given[0].endswith((".npy", ".json")):
        return given[0]
    by_split: dict[str, str] = {}
    for each in given:
        split, equals, file = each.partition("=")
        if not equals or split in by_split:
            expected = "SPLIT=FILE once for each split, or one FIELD"
            raise Failure(f"--predictions: expected {expected}, found {each}. Give one file for each split.")
        by_split[split] = file
    return by_split or None


def _show(found: CheckFindings, out: Path | None) -> None:
    for title, lines in _sections(found):
        if lines:
            text.head(title)
            for line in lines[:_NAMED]:
                text.echo(f"  {line}")
            if len(lines) > _NAMED:
                text.echo(f"  ... and {len(lines) - _NAMED:,} more; --json prints all")
    for note in found.notes:
        text.note(spelled(note))
    if found.is_clean:
        text.echo(f"OK: {text.count(found.samples, 'sample')}")
        return
    if dropped := sum(map(len, found.drop.values())):
        left = f"{dropped:,} of {text.count(found.samples, 'sample')}"
        findings = "FILE of --out" if out is None else shlex.quote(str(out))
        text.echo(f"to leave out {left}: {text.program()} filter STORE OUT --without {findings}")
    text.echo("exit status 1, because of these findings")


def _sections(found: CheckFindings) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each kind of finding."""
    for title, groups in (
        ("leaks between splits", [each for each in found.leaks if not each.is_across]),
        ("leaks between stores", [each for each in found.leaks if each.is_across]),
        ("copies", [each for each in found.copies if not each.is_leak]),
        ("labels that disagree", [each for each in found.copies if each.labels_disagree]),
    ):
        kinds = Counter("equal" if each.exact else "changed" for each in groups)
        lines = []
        for each in groups:
            some = each.samples[:_NAMED]
            names = [s.place + (f" ({s.label})" if each.labels_disagree else "") for s in some]
            more = f", and {len(each.samples) - len(some):,} more" if len(each.samples) > len(some) else ""
            lines.append(f"{' = '.join(names)}{more}")
        shown = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
        yield f"{title}: {text.count(len(groups), 'group')} ({shown})", lines
    singles = {
        "splits with images of other stores": [
            f"{each.split}: {text.count(each.count, 'image')} in {each.other} of {each.store}" for each in found.shared
        ],
        "images of one color": [each.place for each in found.constant],
        "images that cannot be decoded": [f"{sample.place}: {message}" for sample, message in found.unreadable],
        **{
            title: [f"{each.sample.place}: {name} {each.value:g}" for each in found.images if each.why == why]
            for why, (title, name) in _ODD.items()
        },
        "labels that are probably wrong": [
            f"{each.sample.place}: {each.label}, probably {each.suggested} (margin {each.margin:.2f})"
            for each in found.labels
        ],
        **{title: [_object(each) for each in found.objects if each.why == why] for why, title in _SUSPECT.items()},
        "boxes that are not plausible": [
            f"{each.sample.place}: object {each.object + 1} is {_APART if each.why == 'apart' else each.why}: "
            f"({', '.join(f'{v:g}' for v in each.box)})"
            for each in found.boxes
        ],
        "objects without some of their keypoints": [
            f"{e.sample.place}: object {e.object + 1} lacks {_listed(e.names)}" for e in found.keypoints
        ],
        "classes with few samples": [f"{e.name}: {e.count:,} in {e.split} ({e.field})" for e in found.classes],
    }
    for title, lines in singles.items():
        yield f"{title}: {len(lines):,}", lines


def _object(found: SuspectObject) -> str:
    where = "" if found.object is None else f"object {found.object + 1} is {found.label}, "
    box = ", ".join(f"{v:g}" for v in found.box)
    seen = f"detected {found.suggested} at ({box}), score {found.score:.2f}, IoU {found.iou:.2f}"
    return f"{found.sample.place}: {where}{seen}"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
