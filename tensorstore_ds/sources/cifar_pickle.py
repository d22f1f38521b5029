"""The pickles of CIFAR's Python version, read without unpickling: nothing of what a file names is imported or called.

`pickletools` tells the operations apart; those that such a file has are followed here, and all others are refused. An
array is what NumPy's own pickles of one are: its place in the file is noted.
"""

from __future__ import annotations

import pickletools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError

_MOST = 2_000_000  # operations of a file
#: Members with texts. Others, but for labels and pixels, are not looked at.
_TEXTS = (b"label_names", b"fine_label_names", b"coarse_label_names", b"filenames")
#: Members that tell nothing of a sample.
_ABOUT = (b"batch_label", b"num_vis", b"num_cases_per_batch")
_RECONSTRUCT = ("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct")
_NDARRAY, _DTYPE = "numpy ndarray", "numpy dtype"
_ADVICE = "Download it again, or use the binary version."
#: Bytes from an operation to the bytes that it has.
_TEXT_AT = {"SHORT_BINSTRING": 2, "SHORT_BINBYTES": 2, "BINSTRING": 5, "BINBYTES": 5, "BINBYTES8": 9}
_LABELS = {b"labels": "label", b"fine_labels": "label", b"coarse_labels": "coarse"}
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1", "INT")


@dataclass(frozen=True)
class PickledBatch:
    """What a file holds.

    Attributes:
        texts: lists of texts by the name of their member, such as ``label_names``.
        offset: where the pixels of the first image begin in the file.
        labels: for each field of labels one a row, (n,).
        keys: the file names of the images.
        others: names of members that are not read.
    """

    texts: Mapping[bytes, Sequence[bytes]]
    offset: int = 0
    labels: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    keys: Sequence[str] = ()
    others: Sequence[str] = ()


@dataclass(frozen=True)
class _Bytes:
    """Bytes, and where they begin in the file."""

    data: bytes
    offset: int


@dataclass
class _Array:
    """What an ndarray or a dtype will be when its state is known."""

    name: str
    arguments: tuple[Any, ...]
    state: Any = None


class _Global(str):
    """The name of something that a file would import."""

    __slots__ = ()


_MARK = object()


def read_batch(data: bytes, where: str, row_nbytes: int) -> PickledBatch:
    """What a batch, or a file of names, holds.

    Args:
        row_nbytes: of an image; 0: the file has none.

    Raises:
        SourceError: `array-file`.
    """
    try:
        values = _values(data)
    except (ValueError, IndexError, TypeError, KeyError, AttributeError, RecursionError, UnicodeError) as error:
        message = f"expected a pickled dict of lists, texts and one array, found something else ({error})."
        raise SourceError(Problem(where, "array-file", message[:300]), _ADVICE) from error
    texts = {name: found for name in _TEXTS if (found := _flat_texts(values.get(name), len(data))) is not None}
    unread = values.keys() - {*_TEXTS, *_ABOUT, *((b"data", *_LABELS) if row_nbytes else ())}
    others = [name.decode("utf-8", "replace")[:60] for name in sorted(unread)]
    if not row_nbytes:
        return PickledBatch(texts, others=others)
    array = values.get(b"data")
    state = array.state if isinstance(array, _Array) and array.name == _NDARRAY else None
    labels = {name: values[key] for key, name in _LABELS.items() if key in values}
    count = len(labels["label"]) if isinstance(labels.get("label"), list) else -1
    if not isinstance(state, tuple) or len(state) != 5 or state[1:2] != ((count, row_nbytes),):
        message = f"expected an array of {max(count, 0):,} rows of {row_nbytes:,} bytes, found something else."
        raise SourceError(Problem(where, "array-file", message), _ADVICE)
    kind, fortran, pixels = state[2:]
    is_bytes = isinstance(kind, _Array) and [_bytes(each) for each in kind.arguments[:1]] == [b"u1"]
    if not is_bytes or fortran or not isinstance(pixels, _Bytes) or len(pixels.data) != count * row_nbytes:
        raise SourceError(Problem(where, "array-file", "expected pixels of 8 bits, found something else."), _ADVICE)
    for name, listed in labels.items():
        if not isinstance(listed, list) or len(listed) != count or not all(type(n) is int for n in listed):
            message = f"expected {count:,} whole numbers as {name}, found something else."
            raise SourceError(Problem(where, "array-file", message), _ADVICE)
        if listed and not 0 <= min(listed) <= max(listed) < 2**16:
            message = f"expected labels from 0 up, found {min(listed)} to {max(listed)}."
            raise SourceError(Problem(where, "array-file", message), _ADVICE)
    names = texts.get(b"filenames", [])
    keys = [] if any(b"\0" in each for each in names) else [each.decode("utf-8", "replace") for each in names]
    numbers = {name: np.array(listed, np.int64) for name, listed in labels.items()}
    return PickledBatch(texts, pixels.offset, numbers, keys if len(keys) == count else [], others)


def _flat_texts(value: Any, nbytes: int) -> list[bytes] | None:
    """A list of texts that has no more bytes than the file; else None, because a list may name a text many times."""
    if not isinstance(value, list) or not all(isinstance(each, _Bytes) for each in value):
        return None
    texts = [each.data for each in value]
    return texts if sum(map(len, texts)) <= nbytes else None


def _bytes(value: Any) -> bytes:
    """The bytes of a text; none for another value, which may be deeper or longer than memory is large."""
    return value.data if isinstance(value, _Bytes) else b""


def _values(data: bytes) -> dict[bytes, Any]:
    """The dict that a file holds, its texts as `_Bytes`."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    for count, (operation, found, at) in enumerate(pickletools.genops(data)):
        name, argument = operation.name, cast(Any, found)
        if count > _MOST:
            raise ValueError("too many operations")
        if name in ("PROTO", "FRAME"):
            continue
        if name == "STOP":
            (result,) = stack
            if not isinstance(result, dict):
                raise ValueError("no dict")
            return result
        if name in _TEXT_AT:
            raw = argument if isinstance(argument, bytes) else argument.encode("latin-1")
            stack.append(_Bytes(raw, int(at or 0) + _TEXT_AT[name]))
        elif name in ("BINUNICODE", "SHORT_BINUNICODE"):
            stack.append(_Bytes(argument.encode(), -1))
        elif name in _NUMBERS:
            stack.append(int(argument))
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        else:
            _build(name, argument, stack)
    raise ValueError("no end")


def _build(name: str, argument: Any, stack: list[Any]) -> None:
    """Follow an operation that makes or changes a list, a tuple, a dict or an array."""
    if name == "MARK":
        stack.append(_MARK)
    elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
        stack.append({"EMPTY_DICT": {}, "EMPTY_LIST": [], "EMPTY_TUPLE": ()}[name])
    elif name == "APPEND":
        value = stack.pop()
        _list(stack).append(value)
    elif name == "APPENDS":
        values = _marked(stack)
        _list(stack).extend(values)
    elif name in ("SETITEM", "SETITEMS"):
        values = _marked(stack) if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
        if not isinstance(stack[-1], dict):
            raise ValueError("members of no dict")
        for key, value in zip(values[::2], values[1::2], strict=True):
            stack[-1][key.data] = value
    elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
        length = int(name[-1])
        if len(stack) < length:
            raise ValueError("too few values")
        stack[-length:] = [tuple(stack[-length:])]
    elif name == "TUPLE":
        values = _marked(stack)
        stack.append(tuple(values))
    elif name == "GLOBAL":
        stack.append(_known(argument))
    elif name == "STACK_GLOBAL":
        member, module = stack.pop(), stack.pop()
        stack.append(_known((_bytes(module) + b" " + _bytes(member)).decode("latin-1")))
    elif name == "REDUCE":
        arguments, function = stack.pop(), stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple) or function == _NDARRAY:
            raise ValueError("a call of something else than NumPy's array")
        made = _DTYPE if function == _DTYPE else _NDARRAY
        if made == _NDARRAY and arguments[:1] != (_NDARRAY,):
            raise ValueError("an array of another class")
        stack.append(_Array(made, arguments))
    elif name == "BUILD":
        state = stack.pop()
        if not isinstance(stack[-1], _Array):
            raise ValueError("a state of something else than an array")
        stack[-1].state = state
    else:
        raise ValueError(f"the operation {name}")


def _known(name: str) -> _Global:
    if name not in (*_RECONSTRUCT, _NDARRAY, _DTYPE):
        raise ValueError(f"the name {name[:60]}")
    return _Global(name)


def _list(stack: list[Any]) -> list[Any]:
    if not isinstance(stack[-1], list):
        raise ValueError("items of no list")
    found: list[Any] = stack[-1]
    return found


def _marked(stack: list[Any]) -> list[Any]:
    """The values behind the last mark, which are taken away with it."""
    for i in range(len(stack) - 1, -1, -1):
        if stack[i] is _MARK:
            values = stack[i + 1 :]
            del stack[i:]
            return values
    raise ValueError("no mark")
