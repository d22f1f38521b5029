"""An option is declared once: with its help, its default, its range, and whether it decides what comes out.

From the declaration follow the check of its value, the description in its class's docstring, what two runs are compared
by, and the flags of the command::

    @declared
    class Options:
        quality: int = option("JPEG quality.", default=90, at_least=1, at_most=95)

        def __post_init__(self) -> None:
            check(self)

Choices are those of a `Literal` annotation. What relates two options is checked by the class itself.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, dataclass_transform, get_args, get_origin, get_type_hints

from tensorstore_ds.errors import OptionError

_T = TypeVar("_T")

#: What `shown` is for a device that is None.
ANY_DEVICE = "a GPU if there is one"


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option.

    Attributes:
        help: what it does, in sentences.
        at_least, at_most: ends of its range, which belong to it; of each number where it has several.
        above, below: likewise, but they do not belong to it.
        shown: what the default comes to, where its value does not say so.
        among: what a text may be, where its type does not say so.
        unit: ``bytes`` for a number of bytes.
        decides: whether it may change what comes out, and not only how fast or whether.
        recorded: whether it is noted in what was made; a path is not, because it is private.
        name, type, default: as the class declares them; the type without None.
    """

    help: str
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    shown: str = ""
    among: tuple[str, ...] = ()
    unit: str = ""
    decides: bool = True
    recorded: bool = True
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def item(self) -> Any:
        """The type of a value's items where it has several of one type, else the type."""
        return get_args(self.type)[0] if get_origin(self.type) not in (None, Literal) else self.type

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that a text may have; none: any."""
        return self.among or (get_args(self.item) if get_origin(self.item) is Literal else ())

    @property
    def expected(self) -> str:
        """The values that it may have, in words.

        >>> Option("", at_least=1, at_most=95).expected, Option("", at_least=0, below=1).expected
        ('1 to 95', 'in [0, 1)')
        >>> Option("", at_least=1, type=int).expected, Option("", above=0, type=float).expected
        ('1 or more', 'a positive number')
        """
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:,} to {self.at_most:,}"
        if self.at_least is not None and self.below is not None:
            return f"in [{self.at_least:g}, {self.below:g})"
        if self.at_least is not None:
            return f"{self.at_least:,} or more"
        return "a positive number" if self.above == 0 else "a number"

    def allows(self, value: Any) -> bool:
        """Whether a value, or each of several, is in the range."""
        if self.choices or self.item not in (int, float):
            return not self.choices or value in self.choices
        if not isinstance(value, Integral if self.item is int else Real):
            return False
        if not isinstance(value, Integral) and not math.isfinite(value):
            return False
        number: Any = value
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )


def option(help: str, *, default: Any = MISSING, **declaration: Any) -> Any:
    """A field of a `declared` class; the declaration has the attributes of `Option`."""
    return field(default=default, metadata={"option": Option(help, **declaration)})


def changed(declaration: Option, *, default: Any, **changes: Any) -> Any:
    """A field as another class declares it, with another default."""
    return field(default=default, metadata={"option": replace(declaration, **changes)})


@dataclass_transform(frozen_default=True, field_specifiers=(option, changed))
def declared(cls: type[_T]) -> type[_T]:
    """Make a frozen dataclass whose docstring describes its options."""
    described = inspect.cleandoc(cls.__doc__ or "")  # before a dataclass writes one of its own
    made = dataclass(frozen=True)(cls)
    lines = [f"    {each.name}: {each.help}{f' Default: {each.shown}.' if each.shown else ''}" for each in _raw(made)]
    made.__doc__ = "\n".join([described, "", "Attributes:", *lines])
    return made


def declarations(cls: type[Any]) -> Mapping[str, Option]:
    """The options of a class, in their order."""
    hints = get_type_hints(cls)
    return {each.name: replace(each, type=_without_none(hints[each.name])) for each in _raw(cls)}


def check(options: Any) -> None:
    """Raise an `OptionError` for an option whose value is not in its range or among its choices."""
    for name, declaration in declarations(type(options)).items():
        value = getattr(options, name)
        if value is None and declaration.default is None:
            continue
        several = declaration.item is not declaration.type and not isinstance(value, Mapping)
        if declaration.type == tuple[str, ...] and not _is_names(value):
            raise refusal(name, 'a list of names, such as ["cat", "dog"]', repr(value))
        values = tuple(value) if several and isinstance(value, Iterable) else (value,)
        if not values or not all(map(declaration.allows, values)):
            separator = "x" if get_origin(declaration.type) is tuple else ", "
            raise refusal(name, declaration.expected, separator.join(map(str, values)) or "none")


def refusal(name: str, expected: str, found: object) -> OptionError:
    """The error of an option whose value cannot be taken."""
    return OptionError(f"`{name}`: expected {expected}, found {found}.")


def deciding(options: Any) -> dict[str, Any]:
    """Names and values, as plain data, of the options that decide what comes out."""
    known, values = declarations(type(options)), asdict(options)
    plain = {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
    return {name: value for name, value in plain.items() if known[name].decides}


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _raw(cls: Any) -> list[Option]:
    return [replace(each.metadata["option"], name=each.name, default=each.default) for each in fields(cls)]


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    others = tuple(each for each in get_args(annotation) if each is not type(None))
    return others[0] if len(others) == 1 else Union[others]  # noqa: UP007  # made at run time
