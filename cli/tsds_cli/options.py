"""Flags: those of a dataclass of options, made from its declarations, and those that several commands share."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin

import click

import tensorstore_ds
from tensorstore_ds import words
from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import Option, declarations, meant
from tsds_cli.messages import with_flags

#: Flags that are not their option's name with dashes.
_FLAGS = {
    "shard_nbytes": "--shard-size",
    "learning_rate": "--lr",
    "num_threads": "--threads",
    "prefetch_factor": "--prefetch",
}
#: Options that are files on the command line, with the function of the library that reads them.
READERS = {"classes": "read_classes", "keypoints": "read_keypoints", "class_map": "read_class_map"}

#: What stands for the values of texts in the help.
_TEXTS = {"channels": "NAME,...", "license": "SPDX", "citation": "TEXT|@FILE"}
#: Bytes of a text in a file.
_TEXT_LIMIT = 2**20


F = TypeVar("F", bound=Callable[..., Any])


def options_of(cls: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command a flag for each option of a class; the command gets an object of the class as ``options``."""
    names = tuple(declarations(cls))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            chosen = {name: values.pop(name) for name in names}
            for name in chosen.keys() & READERS.keys():
                if chosen[name] is not None:
                    given = _names(chosen[name]) if name == "classes" else None
                    chosen[name] = given or getattr(tensorstore_ds, READERS[name])(chosen[name])
            if chosen.get("citation") is not None:
                chosen["citation"] = text_or_file(chosen["citation"])
            return command(options=cls(**chosen), **values)

        decorated: Callable[..., Any] = run
        for name in reversed(names):
            decorated = option_of(cls, name)(decorated)
        return decorated

    return decorate


def _names(given: Path) -> tuple[str, ...] | None:
    """The names that stand in place of a file's: there is no such file, and this is no path of one."""
    if given.exists() or given.suffix or given.name != str(given):
        return None
    return tuple(name.strip() for name in given.name.split(","))


def option_of(cls: type[Any], name: str, **changes: Any) -> Callable[[F], F]:
    """The flag of one option that a class declares."""
    options = declarations(cls)
    declared, flag, default = options[name], _flag(name), options[name].default
    flags = {other: click.Option([_flag(other), other]) for other in options}
    shown: str | bool = default is not None and default is not False
    if declared.shown:
        shown = with_flags(declared.shown, flags).replace("`", "")
    elif isinstance(default, tuple):
        shown = ",".join(map(str, default))
    settings: dict[str, Any] = {"default": default, "show_default": shown}
    settings["help"] = with_flags(declared.help, flags).replace("``", "")
    if declared.type is bool:
        flag += "" if default is False else f"/--no-{name.replace('_', '-')}"
        settings["is_flag"] = True
    else:
        settings["type"], settings["metavar"] = _type(declared)
    settings.update(changes)
    if settings.get("required"):  # click takes any default, None too, for a value that was given
        del settings["default"]
    return click.option(flag, name, **settings)


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _type(declared: Option) -> tuple[Any, str | None]:
    """The click type of an option, and what stands for its value in the help."""
    origin = get_origin(declared.type)
    if declared.name in READERS:
        return click.Path(path_type=Path), "FILE|NAME,..." if declared.name == "classes" else "FILE"
    if declared.unit == "bytes":
        return nbytes, "BYTES"
    if declared.type is Path:
        return click.Path(path_type=Path), "FILE" if declared.name == "weights" else "DIR"
    if origin is tuple:
        return size, "N|HxW"
    if origin is Mapping:
        return fractions, "NAME=PART,..."
    if origin is Sequence:
        return (lambda value: _several(declared, value)), "NAME,..." if declared.choices else "N,..."
    if declared.choices:
        return Choice(declared.choices), None
    if declared.name in _TEXTS:
        return str, _TEXTS[declared.name]
    least = declared.at_least if declared.above is None else declared.above
    most = declared.at_most if declared.below is None else declared.below
    if declared.type is int:
        return click.IntRange(least, most), None  # type: ignore[arg-type]  # whole numbers
    if declared.type is float:
        return click.FloatRange(least, most, declared.above is not None, declared.below is not None), None
    return str, None


class Choice(click.Choice[str]):
    """One of several texts; an error says which of them was meant."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The choice; raises `click.BadParameter`."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            error.message += meant(str(value), self.choices)  # type: ignore[misc]  # only the type says it is final
            raise


# --- values with a grammar of their own -------------------------------------------------------------------------


def size(value: str) -> tuple[int, int]:
    """``224`` or ``480x640``: (height, width) in pixels.

    >>> size("224"), size("480x640")
    ((224, 224), (480, 640))
    """
    match = re.fullmatch(r"([1-9]\d{0,5})(?:[xX×]([1-9]\d{0,5}))?", value)
    if match is None:
        raise click.BadParameter(f"expected pixels or HEIGHTxWIDTH, such as 224 or 480x640, found {value!r}.")
    return int(match[1]), int(match[2] or match[1])


def nbytes(value: str | int) -> int:
    """``4GiB``, ``500MB``, ``1.5g``, ``65536``: a number of bytes.

    >>> nbytes("500MB"), nbytes("1.5 GiB"), nbytes("65536")
    (500000000, 1610612736, 65536)
    """
    if isinstance(value, int):  # a default
        return value
    number = words.nbytes(value)
    if not number:
        raise click.BadParameter(f"expected a number of bytes, such as 4GiB or 500MB, found {value!r}.")
    return number


def fractions(value: str) -> dict[str, float]:
    """``train=0.9,val=0.1`` or ``train=90%,val=10%``: fractions by name; the library judges both.

    >>> fractions("train=0.9, val=.1"), fractions("train=90%,val=10%")
    ({'train': 0.9, 'val': 0.1}, {'train': 0.9, 'val': 0.1})
    """
    parts: dict[str, float] = {}
    for item in value.split(","):
        match = re.fullmatch(r"\s*([^=\s]+)\s*=\s*(\d{0,9}\.?\d{1,9})(%?)\s*", item)
        if match is None or match[1] in parts:
            raise click.BadParameter(f"expected names and fractions, such as train=0.9,val=0.1, found {value!r}.")
        parts[match[1]] = float(match[2]) / (100 if match[3] else 1)
    return parts


def rows(value: str) -> tuple[int, ...]:
    """``1,5,7``: row numbers.

    >>> rows("1,5,7")
    (1, 5, 7)
    """
    if not re.fullmatch(r"\d{1,18}(,\d{1,18})*", value):
        raise click.BadParameter(f"expected row numbers, such as 1,5,7, found {value!r}.")
    return tuple(int(row) for row in value.split(","))


def text_or_file(value: str) -> str:
    """A text, or with ``@FILE`` the text in a file, without white space at its ends."""
    if not value.startswith("@"):
        return value
    try:
        with Path(value[1:]).open("rb") as file:
            data = file.read(_TEXT_LIMIT + 1)
        if len(data) > _TEXT_LIMIT:
            raise click.BadParameter(f"expected a file of at most 1 MiB, found a larger one: {value[1:]}.")
        return data.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise click.BadParameter(f"expected a file in UTF-8, found other bytes in {value[1:]}.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        raise click.BadParameter(f"expected a text or @FILE, found {value}: {reason}.") from None


def _several(declared: Option, value: Any) -> tuple[Any, ...]:
    """``100,1000`` or ``files,store``: the values of an option that has several."""
    if isinstance(value, tuple):  # a default
        return value
    parts = [part.strip() for part in value.split(",")]
    numbers = declared.item is int and all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts)
    several = tuple(map(int, parts)) if numbers else tuple(parts)
    try:
        declared.taken(several)
    except OptionError:
        expected = f"some of {', '.join(declared.choices)}" if declared.choices else "numbers, such as 100,1000"
        raise click.BadParameter(f"expected {expected}, found {value!r}.") from None
    return several


def digest(value: str) -> str:
    """64 hexadecimal digits, by which a store is known."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise click.BadParameter(f"expected 64 hexadecimal digits, as tsds info shows them, found {value!r}.")
    return value.lower()


def path(value: str | Path) -> Path:
    """A path; an empty one would be the folder that the command is called in."""
    if not os.fspath(value):
        raise click.BadParameter("expected a path, found an empty text. Write . for this folder.")
    return Path(value)


# --- arguments and options that several commands share ------------------------------------------------------------


def path_argument(name: str, metavar: str | None = None, *, required: bool = True) -> Callable[[F], F]:
    """A path that the library will check, so that one message serves the command and Python."""
    return click.argument(name, type=path, metavar=metavar or name.upper(), required=required)


def store_argument(name: str = "store", metavar: str | None = None) -> Callable[[F], F]:
    """A store: its path, or its URL."""
    return click.argument(name, type=store_place, metavar=metavar or name.upper())


def store_place(value: str | Path) -> str | Path:
    """A URL as it is, or a path."""
    return value if isinstance(value, str) and "://" in value else path(value)


def out_option(default: str | None, help: str, metavar: str = "DIR", *, shown: str | None = None) -> Callable[[F], F]:
    """``--out``: where a command writes."""
    return click.option(
        "--out", type=path, metavar=metavar, default=default, show_default=shown or default is not None, help=help
    )


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for other programs to read.")
sha256_option = click.option(
    "--sha256",
    type=digest,
    metavar="DIGEST",
    help="Accept only the store that tsds info shows with this digest, of the store or of its content.",
)
splits_option = click.option(
    "--split",
    "splits",
    metavar="NAME",
    multiple=True,
    help="Only this split; repeat it for several splits.",
)
