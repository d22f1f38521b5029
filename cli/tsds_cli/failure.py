"""How a command ends when it cannot do what was asked: one line on stderr, and an exit status."""

from __future__ import annotations

import errno
from typing import IO, Any

import click

from tsds_cli import text
from tsds_cli.spelling import spelled


class Failure(click.ClickException):
    """An error that is the user's to mend, or problems found: one line, or none where the output has said it all."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print ``tsds: message`` on stderr."""
        if self.message:
            text.echo(f"tsds: {self.message}", err=True)


class Stopped(Failure):
    """A signal ended the job, which kept what it had."""

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal  # type: ignore[misc]  # as shells have it


class Interrupted(Failure):
    """The user pressed Ctrl-C."""

    exit_code = 130  # as shells have it: 128 + SIGINT


def failure_of(error: BaseException, command: click.Command | None = None) -> Failure | None:
    """What to tell the user of a command about an exception; None for one that no user can cause: a defect."""
    from tensorstore_ds import TrainingStopped, TsdsError

    if isinstance(error, KeyboardInterrupt):
        return Interrupted("interrupted")
    if isinstance(error, TrainingStopped):
        return Stopped(spelled(str(error), command), error.signal)
    if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "torchvision"):
        return Failure(f"this command needs {error.name}. Install it with: pip install 'tensorstore-ds[torch]'")
    if isinstance(error, TsdsError):
        return Failure(spelled(str(error), command))
    # A closed pipe is nobody's error: click ends the command without a word.
    if isinstance(error, OSError) and error.errno is not None and error.errno != errno.EPIPE:
        where = f"{error.filename}: " if error.filename is not None else ""
        return Failure(f"{where}{error.strerror}.")
    return None
