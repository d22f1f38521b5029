"""What a door is: one way in which bytes of somebody else reach this program."""

from __future__ import annotations

import abc
import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from random import Random

from tensorstore_ds.errors import TsdsError
from tsds_cli.main import cli


class Door(abc.ABC):
    """One kind of input, and what the program does with it.

    Attributes:
        folder: of its own, empty at first.
        goods: inputs that are accepted; others are made from them.
    """

    def __init__(self, folder: Path, goods: Sequence[bytes]) -> None:
        self.folder = folder
        self.goods = goods

    @abc.abstractmethod
    def mutate(self, random: Random, good: bytes) -> bytes:
        """An input that is nearly right."""

    @abc.abstractmethod
    def enter(self, data: bytes) -> None:
        """Do what the program does with an input.

        Raises:
            TsdsError: the input is refused, as it should be. Anything else that is raised is a defect.
        """


def attempt(door: Door, data: bytes) -> bool:
    """Whether an input is accepted; what is refused, is refused in one line. Anything else is raised."""
    try:
        door.enter(data)
    except TsdsError as error:
        if len(str(error).splitlines()) != 1:
            raise AssertionError(f"expected a message of one line, found {str(error)!r}") from error
        return False
    return True


def run_program(*arguments: str) -> tuple[int, str]:
    """The exit status of ``tsds`` and what it prints, in this process; what it does not catch is raised."""
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace", write_through=True)  # as in `main`
    status = 0
    with redirect_stdout(stream), redirect_stderr(stream):
        try:
            cli.main(arguments, prog_name="tsds")
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0
    stream.seek(0)
    return status, stream.read()


def check_output(text: str) -> None:
    """Raise `AssertionError` where a program's output could command a terminal."""
    wrong = sorted({c for c in text if not c.isprintable() and c != "\n"})
    if wrong:
        raise AssertionError(f"expected no control characters, found {wrong}")
