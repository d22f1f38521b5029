"""``tsds check``: what is wrong with the content of a store."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

import tensorstore_ds
from tensorstore_ds import CheckFindings, CheckOptions
from tsds_cli import text
from tsds_cli.messages import Failure, interrupted, spelled
from tsds_cli.options import json_option, options_of, out_option, path, store_argument
from tsds_cli.progress import ProgressBar

_NAMED = 5


@click.command()
@store_argument()
@options_of(CheckOptions)
@click.option(
    "--picture",
    type=path,
    metavar="FILE",
    help="Draw copies side by side into this PNG file, those of several splits first.",
)
@out_option(None, "Write all findings into this JSON file, which tsds filter --without takes.", "FILE")
@json_option
def check(store: str | Path, options: CheckOptions, picture: Path | None, out: Path | None, as_json: bool) -> None:
    """Say what is wrong with the content of a STORE.

    Finds images that are copies of each other, equal ones and such as were resized, encoded again or made brighter,
    within a split and between splits; labels of copies that disagree; images of one color, and such as cannot be
    decoded; boxes of sizes that are not plausible; objects that lack some of their keypoints; and classes with few
    samples. The exit status is 1 if something was found. What --out writes, tsds filter --without takes.

    \b
    Examples:
      tsds check photos.tsds
      tsds check photos.tsds --out findings.json
      tsds check photos.tsds --mirrored --picture copies.png
    """
    if picture is not None and picture.suffix.lower() != ".png":
        raise Failure(f"{picture}: expected a name that ends in .png, because the picture is a PNG file.")
    for each in (out, picture):
        if each is not None:
            tensorstore_ds.check_outside_stores(each)  # before every image is read
    try:
        with ProgressBar() as bar:
            found = tensorstore_ds.check_store(store, options, progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted("interrupted") from None
    if out is not None:
        found.save(out)
    if as_json:
        text.echo_json(found.dump())
    else:
        _show(found, out)
    if picture is not None and found.copies:
        tensorstore_ds.draw_copies(tensorstore_ds.open(store), found).save(picture, "PNG")
        text.echo(f"{picture}: {text.count(len(found.copies), 'group')} of copies", err=as_json)
    if not found.is_clean:
        click.get_current_context().exit(1)


def _show(found: CheckFindings, out: Path | None) -> None:
    leaks = found.leaks
    within = [each for each in found.copies if not each.is_leak]
    disagree = [each for each in found.copies if each.labels_disagree]
    for title, groups in (("leaks between splits", leaks), ("copies", within), ("labels that disagree", disagree)):
        if groups:
            kinds = Counter("equal" if each.exact else "changed" for each in groups)
            shown = ", ".join(f"{n:,} {kind}" for kind, n in kinds.items())
            text.head(f"{title}: {text.count(len(groups), 'group')} ({shown})")
            for each in groups[:_NAMED]:
                some = each.samples[:_NAMED]
                names = [s.place + (f" ({s.label})" if each.labels_disagree else "") for s in some]
                more = f", and {len(each.samples) - len(some):,} more" if len(each.samples) > len(some) else ""
                text.echo(f"  {' = '.join(names)}{more}")
            _more(len(groups))
    for title, lines in (
        ("images of one color", [each.place for each in found.constant]),
        ("images that cannot be decoded", [f"{s.place}: {message}" for s, message in found.unreadable]),
        (
            "boxes that are not plausible",
            [
                f"{each.sample.place}: object {each.object + 1} is {each.why}: "
                f"({', '.join(f'{v:g}' for v in each.box)})"
                for each in found.boxes
            ],
        ),
        (
            "objects without some of their keypoints",
            [f"{e.sample.place}: object {e.object + 1} lacks {_listed(e.names)}" for e in found.keypoints],
        ),
        ("classes with few samples", [f"{e.name}: {e.count:,} in {e.split} ({e.field})" for e in found.classes]),
    ):
        if lines:
            text.head(f"{title}: {len(lines):,}")
            for line in lines[:_NAMED]:
                text.echo(f"  {line}")
            _more(len(lines))
    for note in found.notes:
        text.echo(text.Styled(f"note: {spelled(note)}", fg="yellow"))
    dropped = sum(map(len, found.drop.values()))
    if found.is_clean:
        text.echo(f"OK: {text.count(found.samples, 'sample')}")
    elif dropped:
        left = f"{dropped:,} of {text.count(found.samples, 'sample')}"
        findings = "FILE of --out" if out is None else shlex.quote(str(out))
        text.echo(f"to leave out {left}: {text.program()} filter STORE OUT --without {findings}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _more(count: int) -> None:
    if count > _NAMED:
        text.echo(f"  ... and {count - _NAMED:,} more; --json prints all")
