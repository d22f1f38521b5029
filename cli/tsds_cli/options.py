"""Flags, their help, flags made from a dataclass of options, and flags that several commands share."""

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
from tensorstore_ds.options import Option, flags as flags_of, from_flat, meant
from tensorstore_ds.remote.location import is_url
from tsds_cli import text
from tsds_cli.messages import with_flags

#: Flags that are not their option's name with dashes.
_FLAGS = {
    "shard_nbytes": "--shard-size",
    "learning_rate": "--lr",
    "num_threads": "--threads",
    "prefetch_factor": "--prefetch",
}
#: Groups of options in the help of a command with many of them, in this order; and options that begin a group.
GROUPS: dict[str, tuple[str, ...]] = {
    "Essential": (
        *("size", "fit", "color", "encoding", "quality", "format", "classes", "split_into", "objects"),
        *("on_error", "dry_run", "workers", "task", "model", "epochs", "batch_size"),
    ),
    "Source": ("images", "class_map", "keypoints", "via"),
    "Encoding": ("layout", "subsampling"),
    **dict.fromkeys(("Output", "Fields", "Splits"), ()),
    "Objects": ("margin", "min_side", "tiles", "overlap", "empty_tiles"),
    **dict.fromkeys(("Cluster", "Metadata", "Model", "Optimization", "Augmentation", "Speed", "Measurement"), ()),
    **dict.fromkeys(("Current loader", "Machine", "Copies", "Annotations", "Images", "Predictions", "General"), ()),
}
#: Options that are files on the command line, with the function of the library that reads them.
READERS = {"classes": "read_classes", "keypoints": "read_keypoints", "class_map": "read_class_map"}

#: Placeholders in the help for values that are texts.
_TEXTS = {
    "channels": "NAME,...",
    "license": "SPDX",
    "citation": "TEXT|@FILE",
    "key_prefix": "PREFIX",
    "label_from": "COLUMN|REGEX",
    "via": "FORMAT",
    "split_by": "GROUP",
    "groups": "GROUP",
    "stratify": "FIELD",
    "fold": "I/K",
    "device": "DEVICE",
    "split": "NAME",
    "train_split": "NAME",
    "eval_split": "NAME",
}
#: A command with more options shows the essential ones, and all with ``--help-all``.
_MANY = 12
#: In the `meta` of a click context: whether all is shown.
_SHOWS_ALL = "tsds_cli.shows_all"
#: A longer list of choices is shown in the description, not as the placeholder.
_LONGEST_CHOICES = 34
#: A larger limit of a range is one of the format or of Python, and not shown.
_LARGEST_SHOWN = 2**16
#: Bytes of a text in a file.
_TEXT_LIMIT = 2**20


F = TypeVar("F", bound=Callable[..., Any])


class Flag(click.Option):
    """An option with a `group` in the help, empty in commands without groups, and its default and range in words."""

    def __init__(self, *arguments: Any, group: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.group = group
        if isinstance(self.type, click.IntRange | click.FloatRange):  # what messages call a value
            self.type.name = "whole number" if isinstance(self.type, click.IntRange) else "number"
        if self._has_long_choices and not all(choice in (self.help or "") for choice in self._choices):
            self.help = f"{self.help} One of {', '.join(self._choices)}."

    @property
    def _choices(self) -> tuple[str, ...]:
        return tuple(self.type.choices) if isinstance(self.type, click.Choice) else ()

    @property
    def _has_long_choices(self) -> bool:
        return len("|".join(self._choices)) > _LONGEST_CHOICES

    @property
    def shown_default(self) -> str:
        """The default in words; empty if there is none, or it is not shown."""
        if isinstance(self.show_default, str):
            return self.show_default
        if not self.show_default:
            return ""
        if self.secondary_opts:
            return self.opts[0] if self.default else self.secondary_opts[0]
        if isinstance(self.default, tuple):
            return ",".join(map(str, self.default))
        return _number(self.default) if isinstance(self.default, int | float | str) else ""

    @property
    def shown_range(self) -> str:
        """The range of a number in words; empty for any number."""
        if not isinstance(self.type, click.IntRange | click.FloatRange):
            return ""
        low, high = self.type.min, self.type.max
        if (low, high) == (0, 1) and not self.type.min_open and not self.type.max_open:
            return ""  # a fraction
        least = "" if low is None else f"{'above' if self.type.min_open else 'at least'} {_number(low)}"
        if high is None or high >= _LARGEST_SHOWN:
            return "" if low in (0, 1) and not self.type.min_open else least
        if low is None or self.type.min_open or self.type.max_open:
            most = f"{'below' if self.type.max_open else 'at most'} {_number(high)}"
            return f"{least}, {most}" if least else most
        return f"{_number(low)} to {_number(high)}"

    def make_metavar(self, ctx: click.Context) -> str:
        """Placeholder for the value."""
        if self.metavar is not None:
            return self.metavar
        if self._has_long_choices:
            return self.opts[0].rpartition("-")[2].upper()
        if isinstance(self.type, click.FloatRange):
            return "FRACTION" if self.type.max == 1 else "NUMBER"
        return "N" if isinstance(self.type, click.IntRange) else super().make_metavar(ctx)

    def get_help_extra(self, ctx: click.Context) -> Any:
        """The text in brackets after the description."""
        extra: Any = super().get_help_extra(ctx)
        for name, shown in (("default", self.shown_default), ("range", self.shown_range)):
            extra.pop(name, None)
            if shown:
                extra[name] = shown
        return extra


def _number(value: object) -> str:
    """A number as help shows it; a text unchanged.

    >>> _number(0.0), _number(0.05), _number(8000), _number(65536), _number("auto")
    ('0', '0.05', '8000', '65,536', 'auto')
    """
    if isinstance(value, float):
        return f"{value:g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and value >= 10_000 else str(value)


def help_all(help: str) -> Flag:
    """``--help-all``: the help with everything."""

    def show(ctx: click.Context, _: click.Parameter, is_wanted: bool) -> None:
        if is_wanted and not ctx.resilient_parsing:
            ctx.meta[_SHOWS_ALL] = True
            text.echo_lines(ctx.get_help())
            ctx.exit()

    settings: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": show}
    return Flag(["--help-all"], help=help, group="General", **settings)


def shows_all(ctx: click.Context) -> bool:
    """Whether ``--help-all`` was given."""
    return bool(ctx.meta.get(_SHOWS_ALL))


class Command(click.Command):
    """A command with options in groups, whose help shows only the essential ones of many."""

    @functools.cached_property
    def _help_all(self) -> tuple[Flag, ...]:
        many = sum(isinstance(each, click.Option) for each in self.params)
        return (help_all(f"Show all {many} options."),) if many > _MANY else ()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Arguments and options."""
        *found, its_help = super().get_params(ctx)
        return [*found, *self._help_all, its_help]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options."""
        groups = grouped(self.get_params(ctx))
        is_short = bool(self._help_all) and not shows_all(ctx)
        for title, options in groups.items():
            if not is_short or title in ("Essential", "General"):
                with formatter.section(title or "Options"):
                    formatter.write_dl([record for each in options if (record := each.get_help_record(ctx))])
        if is_short:
            more = sum(len(options) for title, options in groups.items() if title not in ("Essential", "General"))
            formatter.write_paragraph()
            formatter.write_text(f"{more} more options: {ctx.command_path} --help-all")


def grouped(parameters: Sequence[click.Parameter]) -> dict[str, list[click.Option]]:
    """Options by the titles of their groups, in the order of `GROUPS`; without groups, under an empty title."""
    options = [each for each in parameters if isinstance(each, click.Option) and not each.hidden]
    titles = [each.group if isinstance(each, Flag) else "General" for each in options]
    if not set(titles) - {"", "General"}:
        return {"": options}
    found: dict[str, list[click.Option]] = {}
    for title, first in {**GROUPS, "": ()}.items():
        own = [each for each, its in zip(options, titles, strict=True) if its == title]
        places = {name: place for place, name in enumerate(first)}
        if own:
            found[title] = sorted(own, key=lambda each: places.get(str(each.name), len(places)))
    return found


def option(*names: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with the class `Flag`."""
    return click.option(*names, cls=Flag, **settings)


def options_of(cls: type[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a flag to a command for each option of a class; the command gets an object of the class as ``options``."""
    names = tuple(flags_of(cls))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            chosen = {name: values.pop(name) for name in names}
            for name in chosen.keys() & READERS.keys():
                if chosen[name] is not None:
                    given = _names(chosen[name]) if name == "classes" else None
                    chosen[name] = given or getattr(tensorstore_ds.conversion, READERS[name])(chosen[name])
            if chosen.get("citation") is not None:
                chosen["citation"] = text_or_file(chosen["citation"])
            return command(options=cls(**from_flat(cls, chosen)), **values)

        decorated: Callable[..., Any] = run
        for name in reversed(names):
            decorated = option_of(cls, name)(decorated)
        return decorated

    return decorate


def _names(given: Path) -> tuple[str, ...] | None:
    """Names given instead of a file: no such file exists, and this is not a path."""
    if given.exists() or given.suffix or given.name != str(given):
        return None
    return tuple(name.strip() for name in given.name.split(","))


def option_of(cls: type[Any], name: str, **changes: Any) -> Callable[[F], F]:
    """The flag of one option that a class declares."""
    options = flags_of(cls)
    declared, flag, default = options[name], _flag(name), options[name].default
    flags = {other: click.Option([_flag(other), other]) for other in options}
    shown: str | bool = default is not None and default is not False
    if declared.shown:
        shown = with_flags(declared.shown, flags).replace("`", "")
    settings: dict[str, Any] = {"default": default, "show_default": shown, "group": declared.group}
    help = with_flags(declared.help, flags)
    # The remaining names are parameters of the function in Python, and have their own flags here.
    settings["help"] = re.sub(r"(?<!`)`([a-z_]+)`(?!`)", lambda match: _flag(match[1]), help).replace("``", "")
    if declared.type is bool:
        flag += "" if default is False else f"/--no-{name.replace('_', '-')}"
        settings["is_flag"] = True
    else:
        settings["type"], settings["metavar"] = _type(declared)
    settings.update(changes)
    if settings.get("required"):  # click takes any default, None too, for a value that was given
        del settings["default"]
    return option(flag, name, **settings)


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _type(declared: Option) -> tuple[Any, str | None]:
    """The click type of an option, and the placeholder for its value in the help."""
    origin = get_origin(declared.type)
    if declared.name in READERS:
        return click.Path(path_type=Path), "FILE|NAME,..." if declared.name == "classes" else "FILE"
    if declared.unit == "bytes":
        return nbytes, "SIZE"
    if declared.type is Path:
        return click.Path(path_type=Path), "FILE" if declared.name == "weights" else "DIR"
    if origin is tuple:
        return size, "N|HxW"
    if origin is Mapping:
        return fractions, "NAME=FRACTION,..."
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
    """One of several texts; an error suggests the intended one."""

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
    """The values ``100,1000`` or ``files,store`` of an option that has several."""
    if isinstance(value, tuple):  # a default
        return value
    parts = [part.strip() for part in value.split(",")]
    numbers = declared.item is int and all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts)
    several = tuple(map(int, parts)) if numbers else tuple(parts)
    try:
        declared.validated(several)
    except OptionError:
        expected = f"some of {', '.join(declared.choices)}" if declared.choices else "numbers, such as 100,1000"
        raise click.BadParameter(f"expected {expected}, found {value!r}.") from None
    return several


def digest(value: str) -> str:
    """64 hexadecimal digits that identify a store."""
    if not re.fullmatch(r"[0-9a-fA-F]{64}", value):
        raise click.BadParameter(f"expected 64 hexadecimal digits, as tsds info shows them, found {value!r}.")
    return value.lower()


def path(value: str | Path) -> Path:
    """A path; an empty one is refused, because it would mean the current folder."""
    if not os.fspath(value):
        raise click.BadParameter("expected a path, found an empty text. Write . for this folder.")
    if is_url(value):
        advice = "Copy a store from it with tsds pull, or to it with tsds push."
        raise click.BadParameter(f"expected a path, found the URL {words.shown_path(value)}. {advice}")
    return Path(value)


# --- arguments and options that several commands share ------------------------------------------------------------


def path_argument(name: str, metavar: str | None = None) -> Callable[[F], F]:
    """A path that the library checks, so that the command and Python share one message."""
    return click.argument(name, type=path, metavar=metavar or name.upper())


def store_argument(name: str = "store", metavar: str | None = None) -> Callable[[F], F]:
    """A store: its path, or its URL."""
    return click.argument(name, type=store_place, metavar=metavar or name.upper())


def store_place(value: str | Path) -> str | Path:
    """A URL as it is, or a path."""
    return value if isinstance(value, str) and "://" in value else path(value)


json_option = option("--json", "as_json", is_flag=True, group="General", help="Print JSON, for other programs to read.")
sha256_option = option(
    "--sha256",
    type=digest,
    metavar="DIGEST",
    help="Fail unless the store has this digest, of the store or of its content, as tsds info shows it.",
)
splits_option = option(
    "--split",
    "splits",
    metavar="NAME",
    multiple=True,
    help="Use only the split NAME. Repeat the option for several splits.",
)
