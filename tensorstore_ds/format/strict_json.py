"""Untrusted JSON with one possible reading, whose size is limited before objects are created. No input or output."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tensorstore_ds.format.schema import LIMIT

#: Limits of values in an object or list, in all its depth, and of nesting.
MAX_VALUES = 2**21
MAX_DEPTH = 64
#: Maximum characters of a number: 64-bit integers and floats have at most 25.
MAX_NUMBER = 64

_BLOCK_NBYTES = 1024**2
_OTHERS = bytes(sorted(set(range(256)) - set(b"[]{},")))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def load_object(text: bytes, max_values: int = MAX_VALUES) -> dict[str, Any]:
    """Read a JSON object in UTF-8. Raises ValueError with the problem, as the end of a sentence.

    It rejects, beyond invalid JSON: a name twice in an object, NaN and Infinity (also as ``1e999``), lone surrogates, a
    byte order mark, numbers of more than `MAX_NUMBER` characters, integers of `LIMIT` and more or below its negative,
    more than `max_values` values, and nesting deeper than `MAX_DEPTH`. The last two are counted on the bytes: a few MiB
    of ``[],`` would become hundreds of MiB of lists.
    """
    _check_shape(text, max_values)
    value = json.loads(
        text.decode("utf-8"),
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_float,
        parse_constant=_constant,
    )
    if not isinstance(value, dict):
        raise ValueError(f"a JSON object was expected, not a {type(value).__name__}")
    if _ESCAPED_SURROGATE.search(text):
        json.dumps(value, ensure_ascii=False).encode()  # rejects a surrogate without a partner
    return value


def canonical(value: object) -> bytes:
    """Return the canonical form of a JSON value that `load_object` returns (RFC 8785), equal for equal values.

    >>> canonical({"b": [1.0, 0.5], "a": None})
    b'{"a":null,"b":[1,0.5]}'
    """
    return _canonical(value).encode()


def _canonical(value: object) -> str:
    if isinstance(value, dict):
        names = sorted(value, key=lambda name: name.encode("utf-16-be"))
        return "{" + ",".join(f"{_canonical(name)}:{_canonical(value[name])}" for name in names) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_canonical, value)) + "]"
    if not isinstance(value, float):
        return json.dumps(value, ensure_ascii=False)
    digits = repr(value or 0.0)  # the shortest that is read as the same number, as ECMAScript has it; no -0
    if 1e-6 <= abs(value) < 1e21 or value == 0:
        return format(Decimal(digits), "f").removesuffix(".0")
    mantissa, _, exponent = digits.partition("e")
    return f"{mantissa}e{int(exponent):+d}"


def same_json(found: object, expected: object) -> bool:
    """Whether two JSON values have the same value and type: 2.0 is not 2, and false is not 0."""
    return json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True)


def _check_shape(text: bytes, max_values: int) -> None:
    shape = _brackets_and_commas(text)
    # Every value except the first follows a bracket or a comma.
    values = shape.count(b",") + shape.count(b"[")
    if values > max_values or shape.count(b"]") > max_values:
        raise ValueError(f"it has more than {max_values:,} values")
    brackets = shape.translate(None, b",")
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")  # the innermost ones
    if brackets:
        raise ValueError(f"brackets are not closed, or nested deeper than {MAX_DEPTH}")


def _brackets_and_commas(text: bytes) -> bytes:
    """Return all brackets and commas outside of strings in order, with braces as brackets."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote now begins or ends a string
    kept, inside = [], False
    for start in range(0, len(text), _BLOCK_NBYTES):
        pieces = text[start : start + _BLOCK_NBYTES].split(b'"')
        kept.append(b"".join(pieces[inside::2]).translate(_ALIKE, _OTHERS))
        inside ^= len(pieces) % 2 == 0
    return b"".join(kept)


def _object(members: list[tuple[str, Any]]) -> Mapping[str, Any]:
    value = dict(members)
    if len(value) != len(members):
        name = Counter(name for name, _ in members).most_common(1)[0][0]
        raise ValueError(f"an object has the name {name[:40]!r} twice")
    return value


def _integer(digits: str) -> int:
    if len(digits) > MAX_NUMBER:
        raise ValueError(f"a number has {len(digits)} digits")
    value = int(digits)
    if abs(value) >= LIMIT:
        raise ValueError(f"an integer is beyond 2^53 - 1: {digits}")
    return value


def _float(digits: str) -> float:
    value = float(digits) if len(digits) <= MAX_NUMBER else math.inf
    if math.isinf(value):
        raise ValueError(f"a number is too long or too large: {digits[:20]}")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
