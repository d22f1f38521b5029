"""What the commands have in common that make a store of stores."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import interrupted
from tsds_cli.progress import ProgressBar


def made(out: Path, as_json: bool, run: Callable[..., Any]) -> None:
    """Run a function of the library with a progress bar, and say what it has made."""
    try:
        with ProgressBar() as bar:
            summary = run(progress=bar.update)
    except KeyboardInterrupt:
        raise interrupted(f"interrupted; {out} was not made") from None
    if as_json:
        text.echo_json(summary)
        return
    samples = text.count(sum(summary.rows.values()), "sample")
    done = f"{samples}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}"
    text.echo(text.Styled(str(out), bold=True), f"  {done}")
    width = max(map(len, summary.rows))
    for name, rows in summary.rows.items():
        text.echo(f"  {name:<{width}}  {rows:,}")
    text.echo(f"next: {text.program()} info {shlex.quote(str(out))}")
