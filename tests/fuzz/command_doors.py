"""The door of whoever types: arguments of every command."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from random import Random

import click

from fuzz.door import Door, run_program
from fuzz.mutations import NAMES, NUMBERS, mutate_text
from small_stores import VALID
from stores import class_folders
from tensorstore_ds.errors import OptionError
from tsds_cli.main import COMMANDS, cli

#: Commands that only look at their options here: what they do takes seconds.
_LONG = ("train", "predict", "bench", "doctor")
_VALUES = (
    *b"source store.tsds out.tsds missing auto folders zarr memmap raw jpeg train test train=0.5,val=0.5".split(),
    *b"a=1 a=0.5,a=0.5 a=.,b=1 8 4x6 0x0 999999x999999 1GiB 1.5kb 0b 1,2 0,0,0 fail skip crop gray rgba none".split(),
    b"cuda:99",
)


class Arguments(Door):
    """Arguments of ``tsds``, one a line. No traceback: exit statuses 0, 1 and 2 alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, (b"info\nstore.tsds", b"verify\nstore.tsds", b"convert\nsource\nout.tsds"))
        class_folders(folder / "source", per_class=2)
        shutil.copytree(VALID / "detection.tsds", folder / "store.tsds")
        self._options = {name: _options(name) for name in COMMANDS if name != "demo"}

    def mutate(self, random: Random, good: bytes) -> bytes:
        if random.random() < 0.1:
            return mutate_text(random, good, (b"\n", b"\n--help", b"\n--", b"\n-", *NAMES))
        command = random.choice(list(self._options))
        paths = {"convert": [b"source", b"out.tsds"], "repack": [b"store.tsds", b"out.tsds"]}.get(
            command, [b"store.tsds"]
        )
        arguments = [path if random.random() < 0.95 else random.choice((*_VALUES, *NAMES)) for path in paths]
        for _ in range(random.randrange(5)):
            arguments.append(random.choice(self._options[command]))
            if random.random() < 0.8:
                arguments.append(random.choice((*_VALUES, *NUMBERS, *NAMES)))
        return b"\n".join([command.encode(), *arguments])

    def enter(self, data: bytes) -> None:
        arguments = [os.fsdecode(argument) for argument in data.replace(b"\0", b"").split(b"\n")]  # no argument has one
        arguments = [argument for argument in arguments if not re.match(r"[/~]|.*\.\.", argument)]  # stay in the folder
        command = arguments[0] if arguments else ""
        if command in _LONG:
            arguments = [a if a != "store.tsds" else "missing" for a in arguments]
        if command in ("serve", "view"):
            arguments = [command, "missing", *arguments[2:]]  # with a store it goes on until somebody stops it
        if command == "convert":
            arguments += ["--workers", "0"]
        before = {path.name for path in self.folder.iterdir()}
        where = Path.cwd()
        os.chdir(self.folder)
        try:
            status, output = run_program(*arguments)
        finally:
            os.chdir(where)
            for path in self.folder.iterdir():
                if path.name not in before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        if status not in (0, 1, 2):
            raise AssertionError(f"expected an exit status of 0, 1 or 2, found {status}: {output}")
        if status:
            raise OptionError("refused")


def _options(command: str) -> list[bytes]:
    """All options of a command."""
    made = cli.get_command(click.Context(cli), command)
    assert made is not None
    return [option.encode() for parameter in made.params for option in parameter.opts if option.startswith("--")]
