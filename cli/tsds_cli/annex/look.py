"""Commands that look into a store, or compare two."""

from __future__ import annotations

import shlex
import time
import webbrowser
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tensorstore_ds.annex.pictures import save_png
from tsds_cli import text
from tsds_cli.annex.options import check_png, out_option, seed_option, server_options
from tsds_cli.messages import Failure
from tsds_cli.options import json_option, option, path, rows as row_numbers, store_argument
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds.annex.editing import SampleCount

#: Files that a store or a training run contains, but not a folder of images.
_KNOWN = ("zarr.json", "history.jsonl")


@click.command()
@store_argument("target")
@option("--run", "runs", multiple=True, type=path, metavar="DIR", help="Also show the curves of this training run.")
@option("--findings", type=path, metavar="FILE", help="Also show the findings in this file of tsds check --out.")
@option(
    "--keys",
    type=path,
    metavar="FILE",
    help="Show samples whose keys a file lists, as in tsds filter --keys. A button of the page shows all.",
)
@option(
    "--export",
    "out",
    type=path,
    metavar="DIR",
    help="Write the page and the store to this folder, instead of serving them.",
)
@server_options(port=0, note="The connection is not encrypted.")
@option(
    "--open/--no-open",
    "is_opened",
    default=True,
    help="Open the page in the browser of this machine.",
    show_default=True,
)
@json_option
def view(target: str | Path, keys: Path | None, out: Path | None, is_opened: bool, as_json: bool, **given: Any) -> None:
    """View a store, a training run or images in the browser.

    TARGET is a path, or the URL of a store. You can scroll through all samples, filter and sort them, look at boxes and
    masks, and save the rows of a selection. A folder of images is first converted into a temporary store. Tags are
    saved in STORE.tags.json. The address contains a token, without which the page cannot be opened. Stop the command
    with Ctrl-C.

    \b
    Examples:
      tsds view photos.tsds
      tsds view photos.tsds --findings findings.json
      tsds view runs/vit --run runs/other
      tsds view photos.tsds --keys hard.parquet
      tsds view photos.tsds --export site
    """
    if keys is not None and out is not None:
        raise click.UsageError("--keys selects samples of a page that is served: leave out --export.")
    rows = None if keys is None else tsds.editing.find_keys(target, keys)
    if out is not None:
        made = tsds.viewing.export_view(target, out, runs=given["runs"], findings=given["findings"])
        if as_json:
            text.echo_json({"path": str(made)})
        else:
            text.echo(f"wrote {made}; any web server that answers ranges can serve this folder")
        return
    if isinstance(target, Path) and target.is_dir() and not any((target / n).exists() for n in _KNOWN):
        text.echo(f"converting {target} into a temporary store", err=True)
    try:
        with tsds.view(target, **given, rows=rows, notify=partial(text.note, err=True)) as url:
            place = words.shown_path(target)
            if as_json:
                text.echo_json({"target": place, "url": url})
            else:
                text.echo(f"showing {shlex.quote(place)} at ", text.Styled(url, bold=True))
            if is_opened:
                webbrowser.open(url)
            while True:
                time.sleep(3600)
    except KeyboardInterrupt:
        if not as_json:
            text.echo("stopped")


@click.command()
@store_argument()
@option("--split", metavar="NAME", help="Split to show.", show_default="train, or the first split with samples")
@option("--count", type=click.IntRange(1, 1000), default=24, show_default=True, help="Number of random samples.")
@option("--rows", type=row_numbers, metavar="N,N,...", help="Show these rows instead of random samples.")
@seed_option("the samples")
@out_option("preview.png", "PNG file to write. An existing file is replaced.", "FILE")
def preview(
    store: str | Path, split: str | None, count: int, rows: tuple[int, ...] | None, seed: int, out: Path
) -> None:
    """Draw samples of a STORE as a contact sheet (PNG).

    Samples are drawn with their classes, boxes, keypoints and masks, from the bytes that training reads.

    \b
    Examples:
      tsds preview photos.tsds
      tsds preview voc.tsds --split val --count 12 --out val.png
      tsds preview voc.tsds --rows 0,17,204
    """
    check_png(out)
    tsds.reading.check_outside_stores(out)
    opened = tsds.open(store)
    filled = sorted((name for name in opened if len(opened[name])), key=lambda name: name != "train")
    if split is None and not filled:
        raise Failure(f"{words.shown_path(store)}: it has no samples to show.")
    chosen = opened[split or filled[0]]
    sheet = tsds.preview(chosen, rows, count=count, seed=seed)
    save_png(sheet, out)
    shown = text.count(min(count, len(chosen)) if rows is None else len(rows), "sample")
    text.echo(f"{out}: {shown} of {chosen.name}, {sheet.width} x {sheet.height} pixels")


@click.command()
@store_argument("first", "A")
@store_argument("second", "B")
@option(
    "--by",
    type=click.Choice(["key", "row"]),
    default="key",
    show_default=True,
    help="How to match samples: by key, or by row, their position in the splits.",
)
@option(
    "--quick",
    is_flag=True,
    help="Compare recorded digests instead of values. For a store by URL, this downloads little more than keys. All "
    "samples in the shard of a changed file may differ.",
)
@json_option
def compare(first: str | Path, second: str | Path, by: Literal["key", "row"], quick: bool, as_json: bool) -> None:
    """Compare the stores A and B, and list the differences.

    Samples are matched by key, labels by class name. If the bytes of images differ, their pixels are compared. The exit
    status is 1 if there are differences.

    If A is a folder of classes, B is compared with the images and labels that torchvision's ImageFolder reads from A:
    all labels and orientations, and the pixels of up to 100 images in each split.

    \b
    Examples:
      tsds compare monday.tsds tuesday.tsds
      tsds compare photos.tsds exported-again.tsds --by row
      tsds compare photos.tsds https://example.org/photos.tsds --quick --json
      tsds compare photos photos.tsds
    """
    if isinstance(first, Path) and first.is_dir() and not (first / "zarr.json").exists():
        if quick or by != "key":
            flag = "--quick" if quick else "--by"
            raise click.UsageError(f"{flag} compares two stores, and A is a folder of images.")
        _compare_folder(first, second, as_json)
        return
    with ProgressBar() as bar:
        found = tsds.editing.compare_stores(first, second, by=by, quick=quick, progress=bar.update)
    if as_json:
        text.echo_json({**asdict(found), "equal": found.is_empty})
    elif found.is_same:
        text.echo("equal to the byte")
    elif found.is_empty:
        both = sum(each.both for each in found.splits.values())
        text.echo(f"the same {text.count(both, 'sample')}, stored otherwise")
    else:
        for line in found.fields:
            text.echo(line)
        for name, split in found.splits.items():
            may_differ = {f"{field} may differ": some for field, some in split.may_differ.items()}
            _tell(name, {"only in A": split.only_first, "only in B": split.only_second, **split.fields, **may_differ})
            for what, counts in split.classes.items():
                text.echo(f"{name}  samples {_CLASSES[what]}, by class: {text.counts(counts)}")
        if by == "key" and found.splits and not any(each.both for each in found.splits.values()):
            text.echo("no key is in both: --by row compares samples by their places")
    if not found.is_empty:
        click.get_current_context().exit(1)


_CLASSES = {"only_first": "only in A", "only_second": "only in B", "changed": "that differ, by A"}


def _tell(split: str, parts: Mapping[str, SampleCount]) -> None:
    for what, differing in parts.items():
        if differing.count:
            some = text.some(differing.keys, len(differing.keys), differing.count)
            text.echo(f"{split}  {what}: {text.count(differing.count, 'sample')}: {some}")


def _compare_folder(folder: Path, store: str | Path, as_json: bool) -> None:
    with ProgressBar() as bar:
        found = tsds.editing.compare_folder(folder, store, progress=bar.update)
    is_equal = all(each.is_empty for each in found.values())
    if as_json:
        text.echo_json({"splits": {name: asdict(each) for name, each in found.items()}, "equal": is_equal})
    else:
        for name, each in found.items():
            pixels = "stored in other sizes or encoded anew, pixels not compared"
            if not each.resized:
                pixels = f"pixels of {text.count(each.compared, 'sample')} compared, {each.pixels.count} differ"
            text.echo(f"{name}  in both: {text.count(each.both, 'sample')}; {pixels}")
            parts = {
                "only ImageFolder reads": each.only_folder,
                **{f"only in the store, {suffix}": some for suffix, some in each.only_store.items()},
                "turned by EXIF, as ImageFolder does not": each.turned,
                "other labels": each.labels,
                "other pixels": each.pixels,
            }
            _tell(name, parts)
            if each.classes:
                text.echo(f"{name}  classes in another order: {each.classes}")
    if not is_equal:
        click.get_current_context().exit(1)
