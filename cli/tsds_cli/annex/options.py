"""Flags that several commands of the annexes share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from tsds_cli.messages import Failure
from tsds_cli.options import F, option, path


def out_option(
    default: str | None, help: str, metavar: str = "DIR", *, shown: str | None = None, group: str = ""
) -> Callable[[F], F]:
    """``--out``: where a command writes."""
    return option(
        "--out",
        type=path,
        metavar=metavar,
        default=default,
        show_default=shown or default is not None,
        help=help,
        group=group,
    )


def server_options(port: int, note: str) -> Callable[[F], F]:
    """``--port`` and ``--host``."""
    ports = {"type": click.IntRange(0, 65535), "default": port, "show_default": True if port else "a free port"}

    def decorate(command: F) -> F:
        addresses = "Address to listen on, such as 0.0.0.0 for all networks."
        command = option("--host", default="127.0.0.1", show_default=True, help=f"{addresses} {note}")(command)
        zero = " 0 chooses a free port." if port else ""
        return option("--port", **ports, help=f"Port to listen on.{zero}")(command)

    return decorate


def seed_option(of: str) -> Callable[[F], F]:
    """``--seed``."""
    return option("--seed", type=click.IntRange(0), default=0, show_default=True, help=f"Random seed of {of}.")


def check_png(file: Path) -> None:
    """Raise for a name that does not belong to a PNG file."""
    if file.suffix.lower() != ".png":
        expected = "expected a name that ends in .png, because the picture is a PNG file"
        raise Failure(f"{file}: {expected}. Choose another name.")
