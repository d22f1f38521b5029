"""Arguments of transforms, checked: sizes, paddings, probabilities, ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from tensorstore_ds.options import refusal
from tensorstore_ds.tiling import MOST_SIDE as MOST_SIDE, size_of as size_of

Range = tuple[float, float]


def visibility(share: float) -> float:
    """Check a share for `min_visibility`."""
    return number("min_visibility", share, most=1, expected="a share in [0, 1]")


def sides_of(padding: int | Sequence[int]) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) from 1, 2 or 4 numbers."""
    sides = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        raise refusal("padding", "one, two or four numbers of at least 0", padding)
    left, top, right, bottom = sides * (4 // len(sides))
    return left, top, right, bottom


def probability(p: float) -> float:
    """Check a probability."""
    return number("p", p, most=1, expected="a probability in [0, 1]")


def limits(name: str, value: object, *, least: float = -math.inf, most: float = math.inf, expected: str) -> Range:
    """Return (low, high) from two numbers, sorted, in [least, most]."""
    try:
        low, high = map(float, value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low = high = math.nan
    if not (least <= low <= high <= most and math.isfinite(high - low)):
        raise refusal(name, expected, value)
    return low, high


def number(name: str, value: float, *, most: float, expected: str) -> float:
    """Check a number in [0, most]."""
    if not isinstance(value, Real) or not 0 <= value <= most:
        raise refusal(name, expected, repr(value))
    return float(value)


def around(name: str, value: float | Sequence[float]) -> Range:
    """Return (low, high) from two numbers, or from one: (-value, value)."""
    if isinstance(value, Real):
        value = (-abs(float(value)), abs(float(value)))
    return limits(name, value, expected="a number, or two, the smaller first")
