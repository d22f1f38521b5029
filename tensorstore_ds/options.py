"""Declare an option once, with its help, default, range, and whether it changes the result.

The declaration determines the check of the value, the description in the docstring of the class, the comparison of two
runs, and the flag of the command::

    @declared
    class Options:
        quality: int = option("JPEG quality.", default=90, at_least=1, at_most=95)

A `Literal` annotation lists the choices. A class with conditions that involve two options has a `__post_init__`, which
calls `check` first.

An option may be a value: an object of one of several `declared` classes, whose fields belong to it. Flags, stores and
journals have flat names instead: `flags` lists them, `flat` takes values apart, and `from_flat` puts them together.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, dataclass_transform, get_args, get_origin, get_type_hints

from tensorstore_ds.errors import OptionError, UnknownNameError, one_line

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

#: Largest integer that an option may have, unless its own limit is smaller.
LARGEST = 2**63 - 1
#: Largest number of characters of a value that a message repeats.
_LONGEST = 200
#: Names of a folder among which a misspelled one is looked for.
_MOST_NAMES = 1000
#: Common words for choices that have a different name here.
_OTHER_NAMES = {
    **{"pascal": "voc", "pascal-voc": "voc", "pascal_voc": "voc", "imagefolder": "folders", "imagenet": "folders"},
    **{"darknet": "yolo", "ultralytics": "yolo", "dlib": "imglab", "streaming": "mds"},
    **{"mnist": "idx", "csv": "list", "gpu": "cuda"},
    **{"open": "info", "crop": "fit", "crops": "objects", "split": "split-into"},
    **{"lr": "learning-rate", "size": "image-size", "n": "per-class"},
}

#: Text for a device that is None.
ANY_DEVICE = "a GPU if there is one"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option.

    `at_least` and `at_most` are inclusive limits of each number, `above` and `below` exclusive ones. `shown` is the
    text for the default if the value is not clear, and `among` the allowed texts if the type does not list them. `unit`
    is ``bytes`` for a number of bytes. `decides` tells whether the option can change the result, not only the speed,
    and `recorded` whether it is stored with the result, which paths are not, because they are private. `group` is the
    title in the help of commands. `name`, `type` (without None) and `default` come from the class.

    `values` are the classes of an option that is a value. The flat option that asks for one of them, and the value it
    then has if that is a text, are the attribute `asked` of the class. `flag` is the flat name, if it is not `name`.
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
    group: str = ""
    values: tuple[Any, ...] = ()
    flag: str = ""
    name: str = ""
    type: Any = None
    default: Any = None

    @property
    def by_name(self) -> dict[str, Any]:
        """The classes of values that their name alone stands for."""
        return {value.asked[1]: value for value in self.values if value.asked[0] == self.name}

    @property
    def item(self) -> Any:
        """The type of the items if the value is a sequence of one type, else the type."""
        return get_args(self.type)[0] if get_origin(self.type) not in (None, Literal) else self.type

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed texts, or none if any text is allowed."""
        return self.among or (get_args(self.item) if get_origin(self.item) is Literal else ())

    @property
    def expected(self) -> str:
        """The allowed values, in words.

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

    def validated(self, value: Any) -> Any:
        """Convert a value to the form in which it is stored, and check it; raises `OptionError`.

        Scalars become Python's own types, one side of a square becomes (height, width), and sequences become tuples.
        """
        if self.values:
            return self._taken_value(value)
        value, several, items = _plain(value), get_origin(self.type), get_args(self.type)
        if several is Mapping:
            return self._taken_by_name(value)
        if several is tuple and items[-1] is not Ellipsis and not isinstance(value, Iterable):
            value = (value,) * len(items)
        if several not in (tuple, Sequence):
            return self._taken_one(value, value)
        is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | Set)
        values = tuple(value) if is_list else ()
        if several is tuple and items[-1] is not Ellipsis and len(values) != len(items):
            raise refusal(self.name, "a number or (height, width)", repr(value))
        if not is_list:
            raise refusal(self.name, f"a list of {'names' if self.item is not int else 'numbers'}", _shown(value))
        if not values:
            raise refusal(self.name, "at least one name" if self.item is str else self.expected, "none")
        if several is Sequence or self.item is str:
            return tuple(self._taken_one(each, each) for each in values)
        is_size = all(type(_plain(each)) is int for each in values)
        found = "x".join(map(_shown, values)) if is_size else values
        return tuple(self._taken_one(each, found) for each in values)

    def _taken_value(self, value: Any) -> Any:
        names = self.by_name
        if isinstance(value, str) and value in names:
            return names[value]()
        if type(value) not in self.values:
            expected = f"one of {', '.join(names)}" if names else " or ".join(f"{v.__name__}(...)" for v in self.values)
            raise refusal(self.name, expected, _shown(value), names)
        return value

    def _taken_by_name(self, value: Any) -> dict[str, Any]:
        item = get_args(self.type)[1]
        example = "names and fractions, such as {'train': 0.9, 'val': 0.1}"
        if item is str:
            example = "old and new names, such as {'kitten': 'cat'}"
        if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
            raise refusal(self.name, example, _shown(value))
        one = replace(self, type=item)
        return {_text(self.name, name): one._taken_one(each, each) for name, each in value.items()}

    def _taken_one(self, value: Any, found: Any) -> Any:
        """Validate one value; errors show `found`."""
        value = _plain(value)
        if self.choices:
            if not isinstance(value, str) or value not in self.choices:
                raise refusal(self.name, self.expected, _shown(found), self.choices)
            return self.choices[self.choices.index(value)]
        if self.item is bool:
            return self._of_type(value, bool, "True or False")
        if self.item is str:
            return _text(self.name, self._of_type(value, str, "text"))
        if self.item is Path:
            if not isinstance(value, str | os.PathLike):
                raise refusal(self.name, "a path", _shown(value))
            return user_path(value)
        if self.item not in (int, float):
            return self._of_type(value, self.item, f"{self.item.__name__}")
        number = _number(value, self.item)
        if number is None or not self._is_in_range(number):
            is_fraction = (
                self.item is int and isinstance(value, Real) and not isinstance(value, bool) and number is None
            )
            expected = f"a whole number, {self.expected}" if is_fraction else self.expected
            raise refusal(self.name, expected, repr(found) if isinstance(value, str) else _shown(found))
        if isinstance(number, int) and number > LARGEST:
            raise refusal(self.name, replace(self, at_most=LARGEST).expected, _shown(found))
        return number

    def _of_type(self, value: Any, kind: type[Any], expected: str) -> Any:
        if not isinstance(value, kind):
            raise refusal(self.name, expected, _shown(value))
        return value

    def _is_in_range(self, number: float) -> bool:
        return (
            (self.at_least is None or number >= self.at_least)
            and (self.at_most is None or number <= self.at_most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )


def _once(read: Callable[[type[Any]], _T]) -> Callable[[type[Any]], _T]:
    """Let a function read each class once, since every conversion asks for the same."""
    return cast(Callable[[type[Any]], _T], functools.cache(read))


def option(help: str, *, default: Any = MISSING, **declaration: Any) -> Any:
    """A field of a `declared` class. The keywords of `declaration` are the attributes of `Option`."""
    return field(default=default, metadata={"option": Option(help, **declaration)})


def changed(declaration: Option, *, default: Any, **changes: Any) -> Any:
    """A field as another class declares it, with a different default."""
    return field(default=default, metadata={"option": replace(declaration, **changes)})


@dataclass_transform(frozen_default=True, field_specifiers=(option, changed))
def declared(cls: type[_T]) -> type[_T]:
    """Make a frozen dataclass whose docstring describes its options. They are checked, by its own method or `check`."""
    described = inspect.cleandoc(cls.__doc__ or "")  # before a dataclass writes one of its own
    if not hasattr(cls, "__post_init__"):
        cast(Any, cls).__post_init__ = check
    made = dataclass(frozen=True)(cls)
    if any(each.values for each in _raw(made)):
        init = made.__init__

        @functools.wraps(init)
        def init_flat(self: _T, **given: Any) -> None:
            fields = from_flat(made, given)
            _warn_of_flat(made, given, fields)
            init(self, **fields)

        cast(Any, made).__init__ = init_flat
    lines = [f"    {each.name}: {each.help}{f' Default: {each.shown}.' if each.shown else ''}" for each in _raw(made)]
    made.__doc__ = "\n".join([described, "", "Attributes:", *lines])
    return made


@_once
def declarations(cls: type[Any]) -> Mapping[str, Option]:
    """The options of a class, in their order."""
    hints = get_type_hints(cls)
    return {each.name: replace(each, type=_without_none(hints[each.name])) for each in _raw(cls)}


def check(options: Any) -> None:
    """Replace each option of an object by its `Option.validated`. Raises `OptionError` if one is not allowed."""
    for name, declaration in declarations(type(options)).items():
        value = getattr(options, name)
        if value is not None or declaration.default is not None:
            object.__setattr__(options, name, declaration.validated(value))  # frozen for everybody else


def takes_options(cls: type[Any], *, default: Any = MISSING) -> Callable[[_F], _F]:
    """Decorate a function whose ``**keywords`` are the options of a class, so that its signature lists them by name.

    The annotation of the keywords is the class's `TypedDict` in `keywords`. The signature shows `default`, if given.
    """

    def decorate(function: _F) -> _F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        keywords = [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=each.default if default is MISSING else default,
                annotation=_annotation(cls, each.name),
            )
            for each in [*_raw(cls), *(flags(cls)[name] for name in getattr(cls, "SHORT", ()))]
        ]
        cast(Any, function).__signature__ = signature.replace(parameters=[*own, *keywords])
        return function

    return decorate


def chosen(options: Any, cls: type[_T], keywords: Mapping[str, Any]) -> _T:
    """`options`, or the defaults if None, updated with the keywords of a function; raises `OptionError`."""
    if options is not None and not isinstance(options, cls):
        raise OptionError(
            f"options: expected {cls.__name__}, found {_kind(options)}. Pass options by name, such as "
            f"{next(iter(declarations(cls)))}=..., or {cls.__name__}(...)."
        )
    if options is None:  # not the defaults first: these may contradict what is chosen
        _check_names(keywords, cls)
        return cls(**keywords)
    return with_changes(options, keywords)


def with_changes(options: _T, changes: Mapping[str, Any]) -> _T:
    """The options with some values replaced by name. Raises `OptionError` for an unknown name."""
    cls = type(options)
    _check_names(changes, cls)
    slots = _slots(cls)
    changed = {name for name in changes if _is_flat(cls, name, changes[name])}
    touched = {slot for slot, names in slots.items() if names & changed}
    given = {each.name: getattr(options, each.name) for each in _raw(cls) if each.name not in touched}
    parts = {name: value for name, value in flat(options).items() if any(name in slots[slot] for slot in touched)}
    if not changes:
        return options
    made = from_flat(cls, {**given, **parts, **changes}, strict=changed)
    _warn_of_flat(cls, changes, made)
    return cls(**made)


def _check_names(names: Iterable[str], cls: type[Any]) -> None:
    known = {**declarations(cls), **flags(cls)}
    for name in names:
        if name not in known:
            near = _nearest(name, known)
            advice = f"Did you mean `{near}`?" if near else f"Choose one of {', '.join(known)}."
            raise OptionError(f"`{name}`: expected an option of {cls.__name__}, found another name. {advice}")


@_once
def flags(cls: type[Any]) -> Mapping[str, Option]:
    """The options of a class by their flat names, in its `ORDER`. Its attribute `FLAGS` replaces some."""
    found, order = dict[str, Option](), {name: place for place, name in enumerate(getattr(cls, "ORDER", ()))}
    for name, each in declarations(cls).items():
        if not each.values:
            found[name] = each
        elif each.by_name:
            default = None if each.default is None else each.default.asked[1]
            found[name] = replace(each, values=(), type=str, among=tuple(each.by_name), default=default)
        for own in (own for value in each.values for own in declarations(value).values()):
            default = None if own.default is MISSING else own.default
            if (flat_name := own.flag or own.name) in order:
                found.setdefault(flat_name, replace(own, name=flat_name, default=default))
    for name, each in getattr(cls, "FLAGS", {}).items():
        found[name] = replace(each, name=name)
    return dict(sorted(found.items(), key=lambda item: order.get(item[0], -1)))


def flat(options: Any) -> dict[str, Any]:
    """The options of an object by their flat names, in order."""
    held: dict[str, Any] = {}
    for name, each in declarations(type(options)).items():
        value = getattr(options, name)
        if not each.values:
            held[name] = value
        elif value is not None:
            held |= {name: getattr(value, own) for name, own in _flat_names(type(value)).items()}
            held |= {value.asked[0]: value.asked[1]} if value.asked[1] else {}
    return {name: held.get(name, each.default) for name, each in flags(type(options)).items()}


def from_flat(cls: type[Any], given: Mapping[str, Any], strict: Set[str] | None = None) -> dict[str, Any]:
    """The fields of a class, of which some may be given by flat names.

    Raises `OptionError` for a flat name that belongs to a value that is not asked for. Those that are not in `strict`
    are ignored instead.
    """
    parts = {name: value for name, value in given.items() if _is_flat(cls, name, value)}
    made = {name: value for name, value in given.items() if name not in parts}
    if not parts:
        return made
    known = flags(cls)
    parts = {n: v if v is None and known[n].default is None else known[n].validated(v) for n, v in parts.items()}
    used: set[str] = set()
    for slot, each in declarations(cls).items():
        own = [name for name in parts if name in _slots(cls).get(slot, ())]
        if not own:
            continue
        if made.get(slot) is not None and slot not in parts:
            own = [name for name in own if parts[name] is not None and (strict is None or name in strict)]
            if wrong := next(iter(own), ""):
                kind = type(made[slot]).__name__
                raise OptionError(f"`{wrong}` is a part of `{slot}`, which is given as {kind}(...): leave it out.")
            continue  # a name that another value has, too
        asked = [value for value in each.values if _is_asked(value, parts, known)]
        if len(asked) > 1:
            both = " and ".join(map(_asking, asked))
            raise OptionError(f"{both} contradict each other: leave out one of them.")
        for value in asked:
            names = _flat_names(value)
            used |= {value.asked[0], *names}
            made[slot] = value(**{names[name]: parts[name] for name in own if name in names})
    for name in parts.keys() - used if strict is None else (parts.keys() - used) & strict:
        if parts[name] != known[name].default:
            owners = [value for slot in _raw(cls) for value in slot.values if name in _flat_names(value)]
            to = " or ".join(_asking(owner) for owner in owners if owner.asked[1] != "auto")
            raise OptionError(f"`{name}` belongs to {to}: add that, or leave it out.")
    return made


def _is_flat(cls: type[Any], name: str, value: Any) -> bool:
    """Whether an option with this value is a flat one, not a field."""
    known = {each.name: each for each in _raw(cls)}
    return (bool(known[name].values) and isinstance(value, str)) if name in known else name in flags(cls)


def _warn_of_flat(cls: type[Any], given: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Warn at the caller's line of flat names that are given to a class or a function, with what to write instead."""
    short = {*getattr(cls, "SHORT", ()), *(slot.name for slot in _raw(cls) if slot.by_name)}
    old = [name for name in given if name not in short and _is_flat(cls, name, given[name])]
    if not old:
        return
    touched = [slot for slot, names in _slots(cls).items() if names & set(old)]
    new = ", ".join(f"{slot}={_pasted(made[slot])}" for slot in touched if made.get(slot) is not None)
    found = ", ".join(f"{name}={given[name]!r}" for name in old)
    level = 2
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == __package__:
        level, frame = level + 1, frame.f_back
    warnings.warn(
        f"deprecated: {found}. {f'Write {new}' if new else 'Leave it out'}.", DeprecationWarning, stacklevel=level
    )


def _pasted(value: Any) -> str:
    """A value as a program writes it."""
    where = "tsds" if type(value).__name__ in sys.modules[__package__].__all__ else "tsds.conversion"
    found = [(each, getattr(value, each.name)) for each in _raw(type(value))]
    given = [repr(v) if each.default is MISSING else f"{each.name}={v!r}" for each, v in found if v != each.default]
    return f"{where}.{type(value).__name__}({', '.join(given)})"


def _is_asked(value: Any, parts: Mapping[str, Any], known: Mapping[str, Option]) -> bool:
    name, text = value.asked
    found = parts.get(name, known[name].default)
    return bool(found == text) if text else found is not None


def _asking(value: Any) -> str:
    """How flat options ask for a value."""
    name, text = value.asked
    return f'`{name}="{text}"`' if text else f"`{name}`"


@_once
def _slots(cls: type[Any]) -> dict[str, set[str]]:
    """The flat names that belong to each option that is a value."""
    return {
        slot.name: {name for value in slot.values for name in (value.asked[0], *_flat_names(value))}
        for slot in _raw(cls)
        if slot.values
    }


@_once
def _flat_names(cls: type[Any]) -> dict[str, str]:
    """The field of each flat name of a value."""
    return {each.flag or each.name: each.name for each in _raw(cls)}


def _annotation(cls: type[Any], name: str) -> str:
    classes = (*cls.__mro__, *(value for slot in _raw(cls) for value in slot.values))
    return next(str(own[name]) for own in map(inspect.get_annotations, classes) if name in own)


def refusal(name: str, expected: str, found: object, choices: Iterable[str] = ()) -> OptionError:
    """The error for an option with an invalid value. It suggests the choice with the most similar name."""
    text = shortened(str(found))
    return OptionError(f"`{name}`: expected {expected}, found {text}.{meant(text, choices)}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raise the error for an option with a value that is none of the choices."""
    if value not in choices:
        raise refusal(name, f"one of {', '.join(choices)}", repr(value))


def unknown_name(where: object, what: str, found: object, choices: Iterable[str]) -> UnknownNameError:
    """The error for a split or field that does not exist.

    >>> print(unknown_name("photos.tsds", "split", "vall", ["train", "val"]))
    photos.tsds: expected one of the splits train, val, found 'vall'. Did you mean val?
    """
    there, text = list(choices), shortened(repr(found))
    expected = (
        f"one of the {what}s {', '.join(there)}" if len(there) > 1 else f"its only {what} {there[0]}" if there else ""
    )
    return UnknownNameError(f"{where}: expected {expected or f'no {what}'}, found {text}.{meant(str(found), there)}")


def meant(word: str, choices: Iterable[str]) -> str:
    """A question for the end of a message, if a choice is similar to the word that was found.

    >>> meant("jpg", ("raw", "jpeg", "source")), meant("shard_size", ("seed", "shard_nbytes")), meant("x", ("raw",))
    (' Did you mean jpeg?', ' Did you mean shard_nbytes?', '')
    >>> meant("pascal", ("folders", "voc"))
    ' Did you mean voc?'
    """
    near = _nearest(word, choices)
    return f" Did you mean {near}?" if near else ""


def _nearest(word: str, choices: Iterable[str]) -> str:
    known = tuple(choices)
    bare = word.lower().lstrip("-")
    other = ("--" if word.startswith("-") else "") + _OTHER_NAMES.get(bare, "")
    near = [each for each in (other, other.replace("-", "_")) if each in known]
    return next(iter(near or difflib.get_close_matches(word, known, n=1)), "")


def meant_path(path: Path) -> str:
    """A question for the end of a message, if one of the first names next to a missing path is similar."""
    with contextlib.suppress(OSError, ValueError), os.scandir(path.parent) as entries:
        names = sorted(
            (entry.name for entry in islice(entries, _MOST_NAMES)), key=lambda name: name.endswith(path.suffix)
        )
        suffix = path.suffix if names and names[-1].endswith(path.suffix) else ""  # or it is the mistake itself
        bare = {name.removesuffix(suffix): name for name in names}  # equal suffixes are not similar names
        near = _nearest(path.name.removesuffix(suffix), bare)
        return f" Did you mean {bare[near]}?" if near else ""
    return ""


def shortened(text: str) -> str:
    """A text for a message, cut off if it is long.

    >>> shortened("9" * 5000)
    '99999999999999999999... (5,000 characters)'
    """
    return text if len(text) <= _LONGEST else f"{text[:20]}... ({len(text):,} characters)"


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path that a user passed, with ``~`` replaced by the user's home folder."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  # that of Path raises for a user who does not exist


def deciding(options: Any) -> dict[str, Any]:
    """Flat names and values, as plain data, of the options that can change the result."""
    known = flags(type(options))
    return {name: _as_plain(value) for name, value in flat(options).items() if known[name].decides}


def _as_plain(value: Any) -> Any:
    if isinstance(value, Path):
        return one_line(str(value))
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


@_once
def _raw(cls: type[Any]) -> tuple[Option, ...]:
    return tuple(replace(each.metadata["option"], name=each.name, default=each.default) for each in fields(cls))


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    others = tuple(each for each in get_args(annotation) if each is not type(None))
    return others[0] if len(others) == 1 else Union[others]  # noqa: UP007  # made at run time


def _plain(value: Any) -> Any:
    """Convert a scalar of NumPy or torch to Python's, without importing them; other values are unchanged."""
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


def _number(value: Any, kind: type) -> int | float | None:
    if isinstance(value, bool):
        return None
    if kind is int:
        return int(value) if isinstance(value, Integral) else None
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _text(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise refusal(name, "text in UTF-8", "other bytes") from None
    return str.__str__(value)  # of a subclass, such as NumPy's, the text itself


def _shown(value: Any) -> str:
    """A found value, for a message; values that are not plain data by their type.

    >>> _shown(0.5), _shown((4, 4, 4)), _shown(object()), _shown(10**5000)
    ('0.5', '(4, 4, 4)', 'an object', 'a number of thousands of digits')
    """
    value = _plain(value)
    if isinstance(value, str) and value:
        return value
    if isinstance(value, tuple | list):
        value = type(value)(map(_plain, value))
    if value is None or isinstance(value, str | bytes | int | float | tuple | list | dict):
        try:
            return repr(value)
        except ValueError:  # Python does not write a number of more than some thousand digits
            return "a number of thousands of digits"
    return _kind(value)


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
