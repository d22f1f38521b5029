"""The end of a command that fails: one line on stderr, and an exit status.

The library writes options in backticks, as in Python; a command shows the flag instead.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import click

from tsds_cli import signals, text

_OPTION = re.compile(r"(?<!`)`([a-z_0-9]+)(?:=([^`]*))?`(?!`)")


class Failure(click.ClickException):
    """An error that the user can correct, or found problems: one line, or none if the output is sufficient."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # only the type says that it is final

    def show(self, file: IO[Any] | None = None) -> None:
        """Print ``tsds: message`` on stderr."""
        if self.message:
            text.echo(f"tsds: {self.message}", err=True)


def interrupted(message: str = "interrupted") -> Failure:
    """The failure after Ctrl-C or SIGTERM."""
    return Failure(message, 128 + signals.number)  # as shells have it


def not_made(out: Path, *, resumable: bool = False, otherwise: str = "") -> Failure:
    """The failure of an interrupted command that makes `out`, which may be complete already."""
    partial = out.with_name(f"{out.name}.partial")
    if resumable and partial.exists():
        return interrupted(f"interrupted; finished shards are kept in {partial}, the same command goes on from there")
    return interrupted("interrupted" if os.path.lexists(out) else otherwise or f"interrupted; {out} was not made")


def failure_of(error: BaseException, command: click.Command | None = None) -> Failure | None:
    """The failure to show for an exception; None for a defect, which no user can cause."""
    from tensorstore_ds import TsdsError
    from tensorstore_ds.errors import TrainingStopped
    from tensorstore_ds.words import OF_TORCH, unfit_torchvision

    if isinstance(error, KeyboardInterrupt) or isinstance(error.__cause__, KeyboardInterrupt):
        return interrupted()  # Python 3.11 makes another error of it where a class is being made
    if type(error) is RuntimeError and isinstance(error.__context__, KeyboardInterrupt):
        return interrupted()  # it came while a thread was waited for, whose lock is then released twice
    if isinstance(error, TsdsError):
        return Failure(spelled(str(error), command), 128 + error.signal if isinstance(error, TrainingStopped) else 1)
    if isinstance(error, ModuleNotFoundError) and error.name in OF_TORCH:
        advice = "Install it with: pip install '.[torch]' in a clone of tensorstore-ds"
        return Failure(f"this command needs {error.name}. {advice}")
    if unfit := unfit_torchvision(error):
        return Failure(unfit)
    # A closed pipe is not an error: click ends the command silently.
    if isinstance(error, OSError) and error.errno is not None and error.errno != errno.EPIPE:
        where = f"{error.filename}: " if isinstance(error.filename, str) else ""  # or a descriptor
        return Failure(f"{where}{error.strerror}.")
    return None


def make_readable(error: click.ClickException) -> None:
    """Escape and shorten the repeated parts of the command line, and suggest the intended option."""
    from tensorstore_ds.options import meant, shortened

    message = error.message
    if isinstance(error, click.NoSuchOption):
        options = error.ctx.command.get_params(error.ctx) if error.ctx is not None else []
        message += meant(error.option_name, [name for each in options for name in (*each.opts, *each.secondary_opts)])
        error.possibilities = None  # type: ignore[misc]  # only the type says that it is final
    message = re.sub(r"\S{200,}", lambda match: shortened(match[0]), message)
    error.message = text.printable(message)  # type: ignore[misc]


def described(error: click.ClickException) -> dict[str, Any]:
    """The error for ``--json``: its message, the reason code of its first problem, and the exit status."""
    reason = getattr(error.__cause__, "reason", None)
    return {"error": {"message": error.format_message(), "reason": reason, "status": error.exit_code}}


def spelled(message: str, command: click.Command | None = None) -> str:
    """A message of the library with the flags of a command, else of those that it names, or of `tsds convert`."""
    context = click.get_current_context(silent=True)
    if context is None:
        return message
    whole = context.find_root().command
    names = ("convert", *re.findall(r"\btsds ([a-z]+)", message))
    advised = [whole.get_command(context, name) for name in names] if isinstance(whole, click.Group) else []
    known = [p for each in (*advised, command or context.command) if each is not None for p in each.params]
    return with_flags(message, {str(p.name): p for p in known})


def with_flags(message: str, parameters: Mapping[str, click.Parameter]) -> str:
    """A message with the flags of these parameters.

    >>> flags = {"on_error": click.Option(["--on-error"]), "train": click.Option(["--train/--no-train"])}
    >>> with_flags('Pass `on_error="skip"` or `train=False`, `other`.', flags)
    'Pass --on-error skip or --no-train, `other`.'
    >>> with_flags("Pass `size=(480, 640)`.", {"size": click.Option(["--size"])})
    'Pass --size 480x640.'
    """

    def flag(match: re.Match[str]) -> str:
        parameter, value = parameters.get(match[1]), match[2] and match[2].strip('"')
        if parameter is None:
            return match[0]
        if value and (pair := re.fullmatch(r"\((\d+), (\d+)\)", value)):  # a size
            value = f"{pair[1]}x{pair[2]}"
        if isinstance(parameter, click.Argument):
            return parameter.human_readable_name
        if value == "False" and parameter.secondary_opts:
            return parameter.secondary_opts[0]
        return parameter.opts[0] if value in (None, "True") else f"{parameter.opts[0]} {value}"

    return _OPTION.sub(flag, message)
