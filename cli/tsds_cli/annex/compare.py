"""``tsds compare``: what differs between two stores."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Literal

import click

import tensorstore_ds
from tsds_cli import text
from tsds_cli.messages import interrupted
from tsds_cli.options import json_option, option, store_argument
from tsds_cli.progress import ProgressBar


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
@json_option
def compare(first: str | Path, second: str | Path, by: Literal["key", "row"], as_json: bool) -> None:
    """Compare the stores A and B, and list the differences.

    Samples are matched by key, labels by class name. If the bytes of images differ, their pixels are compared. The exit
    status is 1 if there are differences.

    If A is a folder of classes, B is compared with the images and labels that torchvision's ImageFolder reads from A:
    all labels and orientations, and the pixels of 100 images in each split.

    \b
    Examples:
      tsds compare monday.tsds tuesday.tsds
      tsds compare photos.tsds exported-again.tsds --by row
      tsds compare photos.tsds https://example.org/photos.tsds --json
      tsds compare photos photos.tsds
    """
    if isinstance(first, Path) and first.is_dir() and not (first / "zarr.json").exists():
        _compare_folder(first, second, as_json)
        return
    try:
        with ProgressBar() as bar:
            found = tensorstore_ds.compare_stores(first, second, by=by, progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted("interrupted") from None
    if as_json:
        text.echo_json({**asdict(found), "equal": found.is_empty})
    elif found.is_same:
        text.echo("equal to the byte")
    elif found.is_empty:
        text.echo(
            f"the same {text.count(sum(each.both for each in found.splits.values()), 'sample')}, stored otherwise"
        )
    else:
        for line in found.fields:
            text.echo(line)
        for name, split in found.splits.items():
            parts = {"only in A": split.only_first, "only in B": split.only_second, **split.fields}
            for what, differing in parts.items():
                if differing.count:
                    some = ", ".join(differing.keys) + (", ..." if differing.count > len(differing.keys) else "")
                    text.echo(f"{name}  {what}: {text.count(differing.count, 'sample')}: {some}")
        if by == "key" and found.splits and not any(each.both for each in found.splits.values()):
            text.echo("no key is in both: --by row compares samples by their places")
    if not found.is_empty:
        click.get_current_context().exit(1)


def _compare_folder(folder: Path, store: str | Path, as_json: bool) -> None:
    try:
        with ProgressBar() as bar:
            found = tensorstore_ds.compare_folder(folder, store, progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted("interrupted") from None
    if as_json:
        equal = all(each.is_empty for each in found.values())
        text.echo_json({"splits": {name: asdict(each) for name, each in found.items()}, "equal": equal})
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
            for what, differing in parts.items():
                if differing.count:
                    some = ", ".join(differing.keys) + (", ..." if differing.count > len(differing.keys) else "")
                    text.echo(f"{name}  {what}: {text.count(differing.count, 'sample')}: {some}")
            if each.classes:
                text.echo(f"{name}  classes in another order: {each.classes}")
    if not all(each.is_empty for each in found.values()):
        click.get_current_context().exit(1)
