"""A conversion in parts, as the command line shows it: one part of a plan, or a plan for Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tensorstore_ds import ConvertOptions, words
from tsds_cli import text
from tsds_cli.messages import interrupted
from tsds_cli.progress import ProgressBar


def task_of(value: str) -> tuple[int, int | None]:
    """``3/16``: part 3 of 16, from 0; ``3``: of as many as the plan says.

    >>> task_of("3/16"), task_of("3")
    ((3, 16), (3, None))
    """
    match = re.fullmatch(r"(\d{1,9})(?:/(\d{1,9}))?", value)
    if match is None:
        raise click.BadParameter(f"expected a part and how many there are, such as 3/16, found {value!r}.")
    return int(match[1]), int(match[2]) if match[2] else None


def convert_task(
    out: Path, task: tuple[int, int | None], workers: int | None, scratch: Path | None, as_json: bool
) -> None:
    """Convert the shards of a task, and say what was done."""
    from tensorstore_ds import convert_task as run

    try:
        with ProgressBar() as bar:
            done = run(out, *task, workers=workers, scratch=scratch, progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted("interrupted; finished shards are kept, the same command goes on from there") from None
    if as_json:
        text.echo_json(done)
        return
    name = f"{out} {task[0]}" + ("" if task[1] is None else f"/{task[1]}")
    counted = f"{text.count(done.shards, 'shard')}, {text.count(done.samples, 'sample')}"
    text.echo(text.Styled(name, bold=True), f"  {counted}, {words.duration(done.seconds)}")
    if done.there:
        text.echo(f"there already: {text.count(done.there, 'shard')}")


def with_slurm(source: Path, out: Path, options: ConvertOptions, submit: bool, as_json: bool) -> None:
    """Plan, and print the script of a job array, or submit it."""
    from tensorstore_ds import plan, slurm_script, submit_slurm

    try:
        with ProgressBar() as bar:
            planned = plan(source, out, options, progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted(f"interrupted; {out} was not planned") from None
    if not submit:
        script = slurm_script(planned)
        if as_json:
            text.echo_json({"script": script, "tasks": planned.tasks})
        else:
            for line in script.splitlines():
                text.echo(line)
        return
    jobs = submit_slurm(planned)
    if as_json:
        text.echo_json(jobs)
        return
    text.echo(text.Styled(str(out), bold=True), f"  {text.count(planned.tasks, 'task')} submitted as job {jobs.array}")
    text.echo(f"the store appears when job {jobs.commit} has committed it; logs are written into this folder")
