"""What the commands have in common that make a store of stores."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import interrupted, not_made
from tsds_cli.progress import ProgressBar


def made(
    out: Path,
    as_json: bool,
    run: Callable[..., Any],
    *,
    again: str = "",
    told: Callable[[], None] = lambda: None,
    following: str = "",
) -> None:
    """Run a function of the library with a progress bar, and say what it has made.

    Args:
        again: what to say when it was interrupted, if not that `out` was not made.
        told: prints more of what was done.
        following: the command to run next, if not `tsds info`.
    """
    try:
        with ProgressBar() as bar:
            summary = run(progress=bar.update)
    except KeyboardInterrupt:
        raise (interrupted(f"interrupted; {again}") if again else not_made(out)) from None
    if as_json:
        text.echo_json(summary)
        return
    samples = text.count(sum(summary.rows.values()), "sample")
    done = f"{samples}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    width = max(map(len, summary.rows))
    for name, rows in summary.rows.items():
        text.echo(f"  {name:<{width}}  {rows:,}")
    told()
    text.echo(f"next: {text.program()} {following or f'info {shlex.quote(str(out))}'}")
