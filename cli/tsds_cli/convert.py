"""``tsds convert``: convert a data set in another format into a store."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import tensorstore_ds as tsds
from tensorstore_ds import ConvertOptions, Sources, words
from tensorstore_ds.options import flags
from tsds_cli import text
from tsds_cli.messages import Failure, not_made, spelled
from tsds_cli.options import Choice, Command, json_option, option, options_of, path
from tsds_cli.progress import ProgressBar
from tsds_cli.tasks import convert_task, task_of, with_slurm

if TYPE_CHECKING:
    from tensorstore_ds.conversion import Estimate, Summary
    from tensorstore_ds.errors import Problem

_NEVER_SKIPPED = "shapes-differ"  # images of differing sizes or channels: it may be most of them
_OF_TASKS = ("places", "task", "workers", "scratch", "as_json")  # what --task goes together with
_NOT_READ = "not-read"  # a problem for each kind of data that is not read
_NAMED = 10  # problems printed one by one; --json prints all


@click.command(cls=Command)
@click.argument("places", type=path, nargs=-1, required=True, metavar="SRC... OUT")
@options_of(ConvertOptions)
@option(
    "--task",
    type=task_of,
    metavar="I/N",
    help="Convert part I of N, from 0, of a store planned with tsds plan: tsds convert OUT --task I/N. Without N, the "
    "plan has the number of parts. Only --workers and --scratch can be combined with it.",
    group="Cluster",
)
@option(
    "--scratch",
    type=path,
    metavar="DIR",
    help="With --task: folder on a local disk, in which shards are written before they are copied.",
    group="Cluster",
    show_default="next to the store",
)
@option(
    "--engine",
    type=Choice(("local", "dask", "ray", "slurm")),
    default="local",
    show_default=True,
    help="Where to convert: local, this process and its workers; dask or ray, a cluster; or slurm, which prints a job "
    "script.",
    group="Cluster",
)
@option(
    "--scheduler",
    metavar="ADDRESS",
    help="Address of the Dask or Ray cluster.",
    group="Cluster",
    show_default="DASK_SCHEDULER_ADDRESS or RAY_ADDRESS, or else a temporary cluster on this machine",
)
@option(
    "--submit",
    is_flag=True,
    help="With --engine slurm: submit the script, and a job that commits the store afterwards.",
    group="Cluster",
)
@option(
    "--dry-run",
    is_flag=True,
    help="Write nothing. Print the number of samples and classes, the size in each layout, whether it fits into "
    "memory, the estimated time, and problems in annotations and image headers.",
    group="Essential",
)
@json_option
@click.pass_context
def convert(
    ctx: click.Context,
    places: tuple[Path, ...],
    options: ConvertOptions,
    task: tuple[int, int | None] | None,
    scratch: Path | None,
    engine: Any,
    scheduler: str | None,
    submit: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Convert a data set of images SRC into a new store OUT.

    SRC is a folder, a file, or a ZIP or tar archive: class folders, Pascal VOC, COCO, YOLO, CVAT, labelme, Label
    Studio, dlib's imglab XML, .pts files, a list in a text or CSV file, WebDataset, Parquet, MNIST's idx files,
    or NumPy arrays. With several, their samples are joined. SRC is never modified.

    OUT appears when it is complete. Until then, the work is in OUT.partial. After an interruption, the same command
    continues.

    \b
    Examples:
      tsds convert photos photos.tsds --size 224 --fit crop
      tsds convert VOCdevkit voc.tsds --size 480x640 --on-error skip
      tsds convert photos photos.tsds --split-into train=0.9,val=0.1
      tsds convert voc more/coco both.tsds --size 640 --class-map names.txt
      tsds convert faces faces.tsds --objects crops --size 112
      tsds convert photos photos.tsds --size 224 --dry-run
      tsds convert photos.tsds --task 3/16
      tsds convert photos photos.tsds --shard-size 500MB --engine slurm
    """
    *paths, out = places
    if task is not None:
        _check_alone(ctx, paths)
        convert_task(out, task, options.workers, scratch, as_json)
        return
    if not paths:
        raise click.UsageError("Missing argument 'OUT': name what is to be converted, and the store.")
    source = paths[0] if len(paths) == 1 else Sources(*paths)
    if scratch is not None:
        raise click.UsageError("--scratch belongs to --task: add that, or leave it out.")
    if scheduler is not None and engine not in ("dask", "ray"):
        raise click.UsageError("--scheduler belongs to --engine dask or ray: add that, or leave it out.")
    if submit and engine != "slurm":
        raise click.UsageError("--submit belongs to --engine slurm: add that, or leave it out.")
    if dry_run:
        _dry_run(source, out, options, as_json)
        return
    if engine != "local" and isinstance(source, Sources):
        raise click.UsageError(f"--engine {engine} takes one SRC: convert each, and put them together with tsds merge.")
    if engine == "slurm":
        with_slurm(paths[0], out, options, submit, as_json)
        return
    try:
        with ProgressBar() as bar:
            if engine == "local":
                summary = tsds.convert(source, out, options, progress=bar.update)
            else:
                summary = tsds.clusters.convert_on(
                    engine, paths[0], out, options, scheduler=scheduler, progress=bar.update
                )
    except tsds.SourceError as error:
        message = spelled(str(error))
        raise Failure(
            f"{message} --dry-run lists all of them except damaged pixels." if "--on-error skip" in message else message
        ) from error
    except KeyboardInterrupt:
        nothing = f"interrupted before a shard was finished; nothing is left of {out}"
        again = "Run the same command again; a smaller --shard-size keeps more"
        raise not_made(out, resumable=True, otherwise=f"{nothing}. {again}") from None
    if as_json:
        text.echo_json(summary)
        return
    rate = f"{sum(summary.rows.values()) / summary.seconds:,.0f} samples/s" if summary.seconds else ""
    show_store(summary, out, f"{words.duration(summary.seconds)}, {rate}")


def _check_alone(ctx: click.Context, sources: Sequence[Path]) -> None:
    """Raise for arguments that contradict the plan of a task."""
    if sources:
        raise click.UsageError(
            "With --task, name the store alone: tsds convert OUT --task I/N. The plan has the source."
        )
    given = ParameterSource.COMMANDLINE
    for each in ctx.command.params:
        if each.name not in _OF_TASKS and each.name is not None and ctx.get_parameter_source(each.name) is given:
            planned = each.name in flags(ConvertOptions)
            why = "is in the plan: leave it out, or plan again with it" if planned else "has no effect with --task"
            raise click.UsageError(f"{each.opts[0]} {why}.")


def show_store(summary: Summary, out: Path, took: str) -> None:
    """Print the content of a new store, and the time that it took."""
    text.title(out, f"{text.count(sum(summary.rows.values()), 'sample')}, {words.size(summary.nbytes)}, {took}")
    text.echo_table([(name, f"{n:,}") for name, n in summary.rows.items()], right=[1])
    if summary.resumed:
        text.echo(f"used again: {text.count(summary.resumed, 'shard')} that an earlier run had finished")
    if summary.skipped:
        kinds = ((summary.skipped_images, "image", "images"), (summary.skipped_boxes, "box", "boxes"))
        what = " and ".join(f"{n:,} {one if n == 1 else more}" for n, one, more in kinds if n)
        text.echo(text.Styled(f"skipped: {what} ({text.counts(summary.skipped)})", fg="yellow"))
    if summary.left_out:
        text.echo(f"left out: {text.counts(Counter(problem.reason for problem in summary.left_out))}")
        examples = _examples(summary.left_out)
        for problem in examples[:_NAMED]:
            text.echo(f"  {problem.reason}: {spelled(str(problem))}")
        if len(examples) > _NAMED:
            text.echo(f"  ... and {text.count(len(examples) - _NAMED, 'more kind')}")
    if summary.skipped or summary.left_out:
        text.echo(f"each is named, with its reason, in {out / 'skipped.jsonl'}")
    text.echo(f"next: {text.call('info', out)}  ·  {text.call('preview', out)}")


def _dry_run(src: Path | Sources, out: Path, options: ConvertOptions, as_json: bool) -> None:
    # Skip bad samples, so that a dry run lists all of them, not only the first.
    found = tsds.estimate(src, dataclasses.replace(options, on_error="skip"), out=out)
    if as_json:
        described = {name: field.dump() for name, field in found.fields.items()}
        text.echo_json({f.name: getattr(found, f.name) for f in dataclasses.fields(found)} | {"fields": described})
    else:
        _show_estimate(src, found)
    fatal = [p for p in found.problems if options.on_error == "fail" or p.reason == _NEVER_SKIPPED]
    if fatal:
        advice = "" if fatal[0].reason == _NEVER_SKIPPED else " Correct the source, or pass --on-error skip."
        raise Failure(f"{text.count(len(fatal), 'problem')} would stop the conversion.{advice}")


def _show_estimate(src: Path | Sources, found: Estimate) -> None:
    text.title(src, f"{found.format}, {text.count(sum(found.rows.values()), 'sample')}")
    lines = [(name, f"{n:,}") for name, n in found.rows.items()]
    if found.classes:
        lines.append(("classes", f"{len(found.classes):,}: {text.some(found.classes, _NAMED)}"))
    if found.sizes:
        sizes = sorted(found.sizes.items(), key=lambda item: -item[1])
        shown = text.some([f"{size} ({n:,})" for size, n in sizes], _NAMED)
        lines.append(("sizes", f"{shown}, height x width"))
    lines += [(f"as {layout}", words.size(nbytes)) for layout, nbytes in found.nbytes.items()]
    fits = "fits into" if found.fits else "is more than"
    lines.append(("memory", f"memmap {fits} the {words.size(found.memory)} that you may use"))
    lines.append(("time", f"about {words.duration(found.seconds)}"))
    text.echo_table(lines)
    if found.encodings:
        text.head("encodings, from a few images")
        rows = [("", "store", "decoded by all cores")]
        for each in found.encodings:
            flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in each.options.items())
            rows.append((flags, words.size(each.nbytes), f"{each.rate:,.0f} images/s"))
        text.echo_table(rows, right=[1, 2])
    text.echo("checked: annotations, image headers, and the pixels of a few images. The conversion checks all pixels.")
    for note in found.notes:
        text.note(spelled(note))
    _show_problems("problems", found.problems)
    _show_problems("left out", found.left_out)


def _show_problems(title: str, problems: Sequence[Problem]) -> None:
    if not problems:
        return
    text.head(f"{title}: {len(problems):,} ({text.counts(Counter(problem.reason for problem in problems))})")
    firsts = _examples(problems)
    for problem in [*firsts, *(problem for problem in problems if problem not in firsts)][:_NAMED]:
        text.echo(f"  {problem.reason}: {spelled(str(problem))}")
    if len(problems) > _NAMED:
        text.echo(f"  ... and {len(problems) - _NAMED:,} more; --json prints all")


def _examples(problems: Sequence[Problem]) -> list[Problem]:
    """The first problem of each reason, and each that represents a kind of unread data."""
    firsts = {problem.reason: problem for problem in reversed(problems)}
    return [each for each in problems if each.reason == _NOT_READ or firsts[each.reason] is each]
