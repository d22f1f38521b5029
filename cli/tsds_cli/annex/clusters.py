"""Commands of a conversion in parts, on one machine or many."""

from __future__ import annotations

from pathlib import Path

import click

import tensorstore_ds as tsds
from tensorstore_ds import ConvertOptions, words
from tsds_cli import text
from tsds_cli.convert import show_store
from tsds_cli.messages import Failure, interrupted
from tsds_cli.options import Command, json_option, option, options_of, path_argument
from tsds_cli.progress import working


@click.command(cls=Command)
@path_argument("source", "SRC")
@path_argument("out")
@options_of(ConvertOptions)
@option(
    "--tasks",
    type=click.IntRange(1),
    help="Number of tasks to divide the shards into.",
    group="Cluster",
    show_default="one per shard, at most 1,000",
)
@json_option
def plan(source: Path, out: Path, options: ConvertOptions, tasks: int | None, as_json: bool) -> None:
    """Plan the conversion of SRC into OUT as parallel tasks.

    The plan is stored in OUT.partial. Then run tsds convert OUT --task I/N for each I from 0 to N-1, on any machine
    that sees SRC and OUT.partial at the same paths. At the end, run tsds commit OUT.

    \b
    Examples:
      tsds plan photos photos.tsds --size 224 --fit crop --color rgb
      tsds plan photos photos.tsds --shard-size 256MB --tasks 16
    """
    with working(f"interrupted; {out} was not planned") as bar:
        made = tsds.clusters.plan(source, out, options, tasks=tasks, progress=bar.update)
    if as_json:
        shards = [{"split": split, "index": index, "samples": rows} for (split, index), rows in made.shards.items()]
        text.echo_json(
            {"path": out, "sha256": made.sha256, "tasks": made.tasks, "shards": shards, "is_new": made.is_new}
        )
        return
    counted = f"{text.count(made.samples, 'sample')}, {text.count(len(made.shards), 'shard')}"
    text.title(out, f"{counted}, {text.count(made.tasks, 'task')}")
    if not made.is_new:
        text.echo("the plan was here already")
    last = made.tasks - 1
    text.echo(f"next: {text.call('convert', out)} --task I/{made.tasks}, for each I from 0 to {last}")
    text.echo(f"last: {text.call('commit', out)}")


@click.command()
@path_argument("out")
@json_option
def commit(out: Path, as_json: bool) -> None:
    """Complete a planned store OUT once all tasks are done.

    If parts are missing, the command lists their tasks in the form of a job array: --array=3,7-9.

    \b
    Examples:
      tsds commit photos.tsds
      tsds commit photos.tsds --json
    """
    try:
        summary = tsds.clusters.commit(out)
    except tsds.errors.UnfinishedError as error:
        again = f"{text.call('convert', out)} --task I/{error.of}"
        raise Failure(f"{error} That is: {again}, or with Slurm --array={error.tasks}") from None
    except KeyboardInterrupt:
        raise interrupted("interrupted; run the same command again") from None
    if as_json:
        text.echo_json(summary)
    else:
        show_store(summary, out, words.duration(summary.seconds))
