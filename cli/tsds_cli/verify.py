"""``tsds verify``: every byte of a store against its checksum, every rule of the format."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.info import replaced_shards
from tsds_cli.messages import Failure
from tsds_cli.options import json_option, option, sha256_option, store_argument
from tsds_cli.progress import ProgressBar


@click.command()
@store_argument()
@option(
    "--threads",
    type=click.IntRange(1, 256),
    help="Number of reading threads.",
    show_default="the cores available to this process",
)
@sha256_option
@json_option
def verify(store: str | Path, threads: int | None, sha256: str | None, as_json: bool) -> None:
    """Verify the integrity of a STORE, byte by byte.

    Compares every file and the manifest with their SHA-256, and checks chunks and values against the rules of the
    format. Prints one line per problem. The exit status is 1 if there are problems.

    The checksums are stored in the store, so they do not protect against intentional changes. For that, pass --sha256
    with a digest from the author of the store. tsds info prints it.

    \b
    Examples:
      tsds verify photos.tsds
      tsds verify photos.tsds --threads 4 --json
    """
    from tensorstore_ds import open as open_store, verify as run

    root: str | Path = store
    if isinstance(store, str):
        root = open_store(store, sha256=sha256).path
    with ProgressBar() as bar:
        problems = run(store, sha256=sha256, threads=threads, progress=partial(bar.update_bytes, "Checking"))
    # Of the files that are there, which a damaged store may not list; links are not followed.
    paths = [Path(root)] if Path(root).is_file() else [Path(f, name) for f, _, names in os.walk(root) for name in names]
    sizes = [path.lstat().st_size for path in paths]
    files, nbytes = len(sizes), sum(sizes)
    unreadable = {} if problems else open_store(root).manifest.unreadable
    if as_json:
        text.echo_json(
            {
                "path": words.place(store),
                "ok": not problems,
                "files": files,
                "nbytes": nbytes,
                "problems": problems,
                "unreadable": {name: field.reason for name, field in unreadable.items()},
            }
        )
    elif problems:
        for problem in problems:
            text.echo(f"{problem.reason}: {problem}")
    else:
        text.echo(text.Styled("OK", fg="green"), f": {text.count(files, 'file')}, {words.size(nbytes)}")
        for name, field in unreadable.items():
            text.echo(f"{name}: only sizes and hashes were checked, because {field.describe()}.")
        if replaced := replaced_shards(open_store(root)):
            text.echo(f"not checked: {replaced}")
    if problems:
        raise Failure("" if as_json else f"{words.place(store)}: {text.count(len(problems), 'problem')}.")
