"""``tsds plan``: what several processes will convert, on one machine or many."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tensorstore_ds import ConvertOptions
from tsds_cli import text
from tsds_cli.messages import interrupted
from tsds_cli.options import Command, json_option, option, options_of, path_argument
from tsds_cli.progress import ProgressBar


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
    from tensorstore_ds import plan as run

    try:
        with ProgressBar() as bar:
            made = run(source, out, options, tasks=tasks, progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted(f"interrupted; {out} was not planned") from None
    if as_json:
        shards = [{"split": split, "index": index, "samples": rows} for (split, index), rows in made.shards.items()]
        text.echo_json(
            {"path": out, "sha256": made.sha256, "tasks": made.tasks, "shards": shards, "is_new": made.is_new}
        )
        return
    counted = f"{text.count(made.samples, 'sample')}, {text.count(len(made.shards), 'shard')}"
    text.echo(text.Styled(str(out), bold=True), f"  {counted}, {text.count(made.tasks, 'task')}")
    if not made.is_new:
        text.echo("the plan was here already")
    name, tsds = shlex.quote(str(out)), text.program()
    text.echo(f"next: {tsds} convert {name} --task I/{made.tasks}, for each I from 0 to {made.tasks - 1}")
    text.echo(f"last: {tsds} commit {name}")
