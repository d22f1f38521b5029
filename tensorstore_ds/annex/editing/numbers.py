"""Compare and calculate with columns and numbers of any dtype, without wrapping around and without silent rounding.

Whole numbers, which include true (1) and false (0), are exact in comparisons and in ``+``, ``-`` and ``*``, however
large they get. ``/``, and any calculation with a floating-point number, is done in float64. A single number that is
compared with a floating-point column is first rounded to the dtype of the column, as NumPy and PyTorch do:
``0.1`` equals the float32 value that was stored for 0.1.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A number, or a column (n,) of any numeric dtype; of dtype object, it has whole numbers that exceed 64 bits.
Value = int | float | NDArray[Any]

_FLOAT64_EXACT = 2**53  # up to here, all whole numbers are float64 values
_LARGEST = 2**1024  # the end of float64


def compare(operation: Callable[[Any, Any], Any], left: Value, right: Value) -> NDArray[np.bool_]:
    """Apply ``==``, ``<`` and so on to each row; (n,), or () for two numbers."""
    left, right = _plain(left), _plain(right)
    left, right = _rounded_to(left, right), _rounded_to(right, left)
    if _is_whole(left) != _is_whole(right):
        whole = left if _is_whole(left) else right
        least, most = _ends(whole)
        kind = np.float64 if max(-least, most) <= _FLOAT64_EXACT else object  # Python compares exactly
        left, right = np.asarray(left, kind), np.asarray(right, kind)
    with np.errstate(invalid="ignore"):  # a comparison with NaN is false, except !=
        return np.asarray(operation(left, right), np.bool_)


def calculate(operation: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """Apply ``+``, ``-``, ``*`` or ``/``; raises OverflowError beyond the range of float64."""
    left, right = _plain(left), _plain(right)
    if operation is operator.truediv or not (_is_whole(left) and _is_whole(right)):
        with np.errstate(all="ignore"):
            result: Value = operation(_float64(left), _float64(right))
            return result
    ends = [operation(a, b) for a in _ends(left) for b in _ends(right)]
    if max(map(abs, ends)) >= _LARGEST:
        raise OverflowError
    if isinstance(left, int) and isinstance(right, int):
        return int(ends[0])
    limits, ends = np.iinfo(np.int64), [*ends, *_ends(left), *_ends(right)]
    kind = np.int64 if limits.min <= min(ends) and max(ends) <= limits.max else object
    calculated: Value = operation(np.asarray(left, kind), np.asarray(right, kind))
    return calculated


def negative(value: Value) -> Value:
    """Apply unary ``-`` to each row."""
    value = _plain(value)
    return calculate(operator.sub, 0, value) if _is_whole(value) else -value


def _plain(value: Value) -> Value:
    """A column of numbers, converted from bool, or a Python number."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        number: Value = value.item()
        return number
    return value.astype(np.int8) if value.dtype == np.bool_ else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or (not isinstance(value, float) and value.dtype.kind in "uiO")


def _rounded_to(number: Value, column: Value) -> Any:
    """A number in the dtype of a floating-point column, unless it is out of range; other values unchanged."""
    if isinstance(number, np.ndarray) or not isinstance(column, np.ndarray) or column.dtype.kind != "f":
        return number
    try:
        with np.errstate(over="ignore"):
            rounded = column.dtype.type(number)
            return rounded if np.isfinite(rounded) else np.float64(number)
    except OverflowError:
        return number


def _ends(value: Value) -> tuple[int, int]:
    """Minimum and maximum of whole numbers."""
    return (int(value.min()), int(value.max())) if isinstance(value, np.ndarray) else (int(value), int(value))


def _float64(value: Value) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray) else np.float64(value)
