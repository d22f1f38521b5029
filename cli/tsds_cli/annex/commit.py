"""``tsds commit``: the store of a plan appears."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.convert import show_store
from tsds_cli.messages import Failure, interrupted
from tsds_cli.options import json_option, path_argument


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
    from tensorstore_ds import UnfinishedError, commit as run

    try:
        summary = run(out)
    except UnfinishedError as error:
        again = f"{text.program()} convert {shlex.quote(str(out))} --task I/{error.of}"
        raise Failure(f"{error} That is: {again}, or with Slurm --array={error.tasks}") from None
    except KeyboardInterrupt:
        raise interrupted("interrupted; run the same command again") from None
    if as_json:
        text.echo_json(summary)
    else:
        show_store(summary, out, words.duration(summary.seconds))
