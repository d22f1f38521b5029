"""A conversion in parts on the command line: one part of a plan, or a plan for Slurm."""

from __future__ import annotations

import re
from pathlib import Path

import click

import tensorstore_ds as tsds
from tensorstore_ds import ConvertOptions, words
from tsds_cli import text
from tsds_cli.progress import working


def task_of(value: str) -> tuple[int, int | None]:
    """``3/16`` is part 3 of 16, from 0; ``3`` takes the number of parts from the plan.

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
    """Convert the shards of a task, and print the result."""
    with working("interrupted; finished shards are kept, the same command goes on from there") as bar:
        done = tsds.clusters.convert_task(out, *task, workers=workers, scratch=scratch, progress=bar.update)
    if as_json:
        text.echo_json(done)
        return
    name = f"{out} {task[0]}" + ("" if task[1] is None else f"/{task[1]}")
    counted = f"{text.count(done.shards, 'shard')}, {text.count(done.samples, 'sample')}"
    text.title(name, f"{counted}, {words.duration(done.seconds)}")
    if done.there:
        text.echo(f"there already: {text.count(done.there, 'shard')}")


def with_slurm(source: Path, out: Path, options: ConvertOptions, submit: bool, as_json: bool) -> None:
    """Plan, and print the script of a job array, or submit it."""
    with working(f"interrupted; {out} was not planned") as bar:
        planned = tsds.clusters.plan(source, out, options, progress=bar.update)
    if not submit:
        script = tsds.clusters.slurm_script(planned)
        if as_json:
            text.echo_json({"script": script, "tasks": planned.tasks})
        else:
            text.echo_lines(script)
        return
    jobs = tsds.clusters.submit_slurm(planned)
    if as_json:
        text.echo_json(jobs)
        return
    text.title(out, f"{text.count(planned.tasks, 'task')} submitted as job {jobs.array}")
    text.echo(f"the store appears when job {jobs.commit} has committed it; logs are written into this folder")
