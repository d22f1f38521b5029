"""``tsds convert``: a data set in another format becomes a store."""

from __future__ import annotations

import dataclasses
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tsds_cli import text
from tsds_cli.failure import Failure, Interrupted
from tsds_cli.options import FORMATS, fractions, json_option, nbytes, path_argument, size
from tsds_cli.progress import ProgressBar

if TYPE_CHECKING:
    from tensorstore_ds import ConvertOptions, Estimate, Problem, Summary

_NEVER_SKIPPED = "shapes-differ"  # images of differing sizes or colours: it may be most of them
_NAMED = 10  # problems printed one by one; --json prints all


@click.command()
@path_argument("src")
@path_argument("out")
@click.option(
    "--format", type=click.Choice(FORMATS), default="auto", show_default=True, help="Format of SRC; auto looks at it."
)
@click.option(
    "--layout",
    type=click.Choice(["memmap", "zarr"]),
    default="memmap",
    show_default=True,
    help="memmap: uncompressed, to train from. zarr: compressed, to share.",
)
@click.option(
    "--encoding",
    type=click.Choice(["raw", "jpeg", "source"]),
    default="raw",
    show_default=True,
    help="How images are kept: raw pixels, JPEG, or the bytes of the source's files.",
)
@click.option(
    "--quality", type=click.IntRange(1, 95), default=90, show_default=True, help="JPEG quality, with --encoding jpeg."
)
@click.option(
    "--size",
    type=size,
    metavar="N|HxW",
    help="Resize every image to N x N, or to height H and width W; boxes go along.",
)
@click.option(
    "--fit",
    type=click.Choice(["crop", "pad", "stretch"]),
    default="pad",
    show_default=True,
    help="How to reach --size: cut off what is too long, add a black edge, or change the aspect.",
)
@click.option(
    "--color",
    type=click.Choice(["auto", "gray", "rgb", "rgba"]),
    default="auto",
    show_default=True,
    help="Channels kept; auto keeps gray or colour as it is, makes both RGB where mixed, drops alpha.",
)
@click.option(
    "--classes", type=click.Path(path_type=Path), metavar="FILE", help="Class names in their order, one a line."
)
@click.option(
    "--keypoints",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Landmark names in their order, with flip pairs.",
)
@click.option(
    "--images",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the images are, if not beside SRC's annotations.",
)
@click.option(
    "--split",
    type=fractions,
    metavar="NAME=PART,...",
    help="Divide the samples: train=0.9,val=0.1. Classes keep their shares.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of --split.")
@click.option(
    "--shard-size",
    type=nbytes,
    metavar="BYTES",
    default="4GiB",
    show_default=True,
    help="Size of a shard, about; an interrupted conversion goes on after the last whole one.",
)
@click.option(
    "--workers", type=click.IntRange(0), help="Worker processes; 0 for none. [default: the cores you may use]"
)
@click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="At a bad sample: stop and name it, or leave it out and list it in OUT/skipped.jsonl.",
)
@click.option(
    "--max-pixels",
    type=click.IntRange(1),
    default=89_478_485,
    show_default=True,
    help="Refuse images with more pixels: a small file can unpack to more than memory holds.",
)
@click.option("--license", metavar="TEXT", help="The data's licence, noted in the store.")
@click.option("--citation", metavar="TEXT", help="How to cite the data, noted in the store.")
@click.option(
    "--dry-run", is_flag=True, help="Only say what would be done: samples, classes, sizes, time. Write nothing."
)
@json_option
def convert(src: Path, out: Path, dry_run: bool, as_json: bool, **chosen: Any) -> None:
    """Convert the data set SRC into a new store OUT.

    SRC is a folder or a file: class folders, Pascal VOC, dlib's imglab XML, a list in a text or CSV file, MNIST's idx
    files, or NumPy arrays. It is never modified. OUT appears when it is whole; until then the work lies in OUT.partial,
    and after an interruption the same command goes on from there.

    \b
    Examples:
      tsds convert photos photos.tsds --size 224 --fit crop
      tsds convert VOCdevkit voc.tsds --size 480x640 --on-error skip
      tsds convert photos photos.tsds --split train=0.9,val=0.1
      tsds convert photos photos.tsds --size 224 --dry-run
    """
    options = _options(chosen)
    if dry_run:
        _dry_run(src, options, as_json)
        return
    from tensorstore_ds import convert as run

    try:
        with ProgressBar() as bar:
            summary = run(src, out, options, progress=bar.update)
    except KeyboardInterrupt:
        raise Interrupted(_interrupted(out)) from None
    if as_json:
        text.echo_json(summary)
    else:
        _show(summary, out)


def _options(chosen: dict[str, Any]) -> ConvertOptions:
    """The library's options from the command's; files named among them are read."""
    from tensorstore_ds import ConvertOptions

    chosen["shard_nbytes"] = chosen.pop("shard_size")
    if chosen["classes"] is not None:
        from tensorstore_ds.sources.classes import read_classes

        chosen["classes"] = read_classes(chosen["classes"])
    if chosen["keypoints"] is not None:
        from tensorstore_ds.sources.keypoints import read_keypoints

        chosen["keypoints"] = read_keypoints(chosen["keypoints"])
    return ConvertOptions(**chosen)


def _interrupted(out: Path) -> str:
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists():
        return f"interrupted; finished shards are kept in {partial}, the same command goes on from there"
    return f"interrupted before a shard was finished; nothing is left of {out}"


# --- what is shown ----------------------------------------------------------------------------------------------


def _show(summary: Summary, out: Path) -> None:
    rows = sum(summary.rows.values())
    rate = f"{rows / summary.seconds:,.0f} samples/s" if summary.seconds else ""
    done = f"{text.count(rows, 'sample')}, {text.size(summary.nbytes)}, {text.duration(summary.seconds)}, {rate}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    text.echo_table([(name, text.number(n)) for name, n in summary.rows.items()], right=[1])
    if summary.resumed:
        text.echo(f"used again: {text.count(summary.resumed, 'shard')} that an earlier run had finished")
    if summary.skipped:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in summary.skipped.items())
        text.echo(text.Styled(f"skipped: {sum(summary.skipped.values()):,} ({reasons})", fg="yellow"))
    if summary.left_out:
        counts = Counter(problem.reason for problem in summary.left_out)
        text.echo(f"not taken in: {', '.join(f'{reason} {n:,}' for reason, n in counts.items())}")
    if summary.skipped or summary.left_out:
        text.echo(f"each is named, with its reason, in {out / 'skipped.jsonl'}")
    name, tsds = shlex.quote(str(out)), text.program()
    text.echo(f"next: {tsds} info {name}  ·  {tsds} preview {name}")


def _dry_run(src: Path, options: ConvertOptions, as_json: bool) -> None:
    from tensorstore_ds import estimate

    # Always as if bad samples were skipped: a dry run names all of them, not only the first.
    found = estimate(src, dataclasses.replace(options, on_error="skip"))
    if as_json:
        described = {name: field.dump() for name, field in found.fields.items()}
        text.echo_json({f.name: getattr(found, f.name) for f in dataclasses.fields(found)} | {"fields": described})
    else:
        _show_estimate(src, found)
    fatal = [p for p in found.problems if options.on_error == "fail" or p.reason == _NEVER_SKIPPED]
    if fatal:
        advice = "" if fatal[0].reason == _NEVER_SKIPPED else " Mend the source, or pass --on-error skip."
        raise Failure(f"{text.count(len(fatal), 'problem')} would stop the conversion.{advice}")


def _show_estimate(src: Path, found: Estimate) -> None:
    samples = sum(found.rows.values())
    text.echo(text.Styled(str(src), bold=True), f"  {found.format}, {text.count(samples, 'sample')}")
    lines = [(name, text.number(n)) for name, n in found.rows.items()]
    if found.classes:
        names = ", ".join(found.classes[:_NAMED]) + (", ..." if len(found.classes) > _NAMED else "")
        lines.append(("classes", f"{len(found.classes):,}: {names}"))
    sizes = sorted(found.sizes.items(), key=lambda item: -item[1])
    if sizes:
        named = ", ".join(f"{size} ({n:,})" for size, n in sizes[:_NAMED]) + (", ..." if len(sizes) > _NAMED else "")
        lines.append(("sizes", f"{named}, height x width"))
    lines += [(f"as {layout}", text.size(nbytes)) for layout, nbytes in found.nbytes.items()]
    fits = "fits into" if found.fits else "is more than"
    lines.append(("memory", f"memmap {fits} the {text.size(found.memory)} that you may use"))
    lines.append(("time", f"about {text.duration(found.seconds)}"))
    text.echo_table(lines)
    for note in found.notes:
        text.echo(text.Styled(f"note: {note}", fg="yellow"))
    _show_problems("problems", found.problems)
    _show_problems("not taken in", found.left_out)


def _show_problems(title: str, problems: Sequence[Problem]) -> None:
    if not problems:
        return
    text.head(f"{title}: {len(problems):,}")
    for problem in problems[:_NAMED]:
        text.echo(f"  {problem.reason}: {problem}")
    if len(problems) > _NAMED:
        text.echo(f"  ... and {len(problems) - _NAMED:,} more; --json prints all")
