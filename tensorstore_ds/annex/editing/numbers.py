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

#: A number, or a column (n,) of any numeric dtype; of dtype object, it has whole numbers.
Value = int | float | NDArray[Any]

_LARGEST = 2**1024  # the end of float64


def compare(operation: Callable[[Any, Any], Any], left: Value, right: Value) -> NDArray[np.bool_]:
    """Apply ``==``, ``<`` and so on to each row; (n,), or () for two numbers."""
    left, right = _rounded_to(left, right), _rounded_to(right, left)
    has_bool = any(isinstance(each, np.ndarray) and each.dtype == np.bool_ for each in (left, right))
    if has_bool or _is_whole(left) != _is_whole(right):  # NumPy is exact for two integers of any types
        left, right = _exact(left), _exact(right)
    with np.errstate(invalid="ignore"):  # a comparison with NaN is false, except !=
        return np.asarray(operation(left, right), np.bool_)


def calculate(operation: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:
    """Apply ``+``, ``-``, ``*`` or ``/``; raises OverflowError beyond the range of float64."""
    result: Value
    if operation is operator.truediv or not (_is_whole(left) and _is_whole(right)):
        with np.errstate(all="ignore"):
            result = operation(_float64(left), _float64(right))
            return result
    result = operation(_exact(left), _exact(right))
    if np.max(np.abs(result), initial=0) >= _LARGEST:
        raise OverflowError
    return result


def negative(value: Value) -> Value:
    """Apply unary ``-`` to each row."""
    return calculate(operator.sub, 0, value) if _is_whole(value) else -value


def _exact(value: Value) -> NDArray[Any]:
    """The same as Python's numbers, which have no limits and are compared exactly."""
    return np.asarray(value).astype(object)


def _is_whole(value: Value) -> bool:
    return value.dtype.kind in "buiO" if isinstance(value, np.ndarray) else isinstance(value, int)


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


def _float64(value: Value) -> Any:
    return value.astype(np.float64) if isinstance(value, np.ndarray) else np.float64(value)
