"""Conditions on the samples of a split, in a small part of Python's syntax. Nothing of it is executed."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.numbers import calculate, compare, negative
from tensorstore_ds.errors import FormatError, OptionError, Problem, one_line
from tensorstore_ds.format.kinds import ImageField, KeyField, ObjectsField, SizeField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.options import meant
from tensorstore_ds.reading.columns import RaggedColumn
from tensorstore_ds.reading.store import Split

_LONGEST = 4096  # characters of a condition
_DEEPEST = 50  # nested conditions
_ROWS = 10_000  # evaluated together
_QUOTES = " Texts, as names of classes, are in quotes"

Values = NDArray[Any]
#: Returns a column's values for rows [start, stop).
Column = Callable[[int, int], Values]

_COMPARE: Mapping[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class Condition:
    """A condition such as ``label == 'cat' and width > 200``; raises `OptionError` if it cannot be parsed.

    Names are `columns`. The operators are ``and``, ``or``, ``not``, comparisons, ``in`` and ``not in`` with a list, a
    text, ``classes`` or ``labels``, and ``+ - * /``, with numbers, quoted texts and parentheses.
    """

    def __init__(self, text: str) -> None:
        self._text = text.strip()
        if len(text) > _LONGEST:
            raise self._wrong(f"at most {_LONGEST} characters", str(len(text)))
        try:
            self._tree = ast.parse(self._text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            found = error.msg if isinstance(error, SyntaxError) else str(error)
            if re.search(r"(?<![=<>!])=(?!=)", self._text):
                found = "to compare, write =="
            raise self._wrong(
                "a condition such as label == 'cat' and width > 200", f"{text[:80]!r} ({found})"
            ) from error

    def rows(self, split: Split) -> NDArray[np.int64]:
        """The sorted rows of a split that meet the condition; raises `OptionError` for an unknown column."""
        known, met = columns(split), []
        for start in range(0, len(split), _ROWS):
            stop = min(start + _ROWS, len(split))
            found = self._evaluate(self._tree, partial(self._column, known, start, stop), 0)
            if not isinstance(found, np.ndarray) or found.dtype != np.bool_:
                raise self._wrong("a condition, which is true or false", self._shown(self._tree))
            met.append(start + np.flatnonzero(np.broadcast_to(found, stop - start)))
        return np.concatenate([np.empty(0, np.int64), *met])

    def no_sample_meets(self, fields: Mapping[str, Field]) -> NoSampleError:
        """The error if no sample of a store meets the condition; names texts that are no classes of its `fields`."""
        classes = [*dict.fromkeys(each for field in fields.values() for each in field.classes)]
        nodes = list(ast.walk(self._tree))
        uses_keys = any(isinstance(node, ast.Name) and node.id == "key" for node in nodes)
        texts = (node.value for node in nodes if isinstance(node, ast.Constant) and classes and not uses_keys)
        unknown = (text for text in texts if isinstance(text, str) and text and text not in classes)
        hints = "".join(f" There is no class {text!r}.{meant(text, classes)}" for text in unknown)
        return NoSampleError(f"`where`: expected a condition that some samples meet, found none that do.{hints}")

    def _column(self, known: Mapping[str, Column], start: int, stop: int, name: str) -> Values:
        if name not in known:
            raise self._wrong(f"a column ({', '.join(sorted(known))})", f"{name}.{meant(name, known) or _QUOTES + '.'}")
        return known[name](start, stop)

    def _evaluate(self, node: ast.expr, column: Callable[[str], Values], depth: int) -> Any:
        def part(inner: ast.expr) -> Any:
            return self._evaluate(inner, column, depth + 1)

        if depth > _DEEPEST:
            raise self._wrong(f"at most {_DEEPEST} conditions within one another", "more")
        if isinstance(node, ast.Name):
            return column(node.id)
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float):
            return node.value
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            return [part(each) for each in node.elts]
        if isinstance(node, ast.BoolOp):
            joined = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
            return np.asarray(reduce(joined, [self._truth(each, part(each)) for each in node.values]))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return np.asarray(~self._truth(node.operand, part(node.operand)))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return negative(self._number(node.operand, part(node.operand)))
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = (self._number(each, part(each)) for each in (node.left, node.right))
            try:
                return calculate(_ARITHMETIC[type(node.op)], left, right)
            except OverflowError as error:
                raise self._wrong("numbers that are less than 1.8e308", self._shown(node)) from error
        if isinstance(node, ast.Compare):
            sides = [(each, part(each)) for each in (node.left, *node.comparators)]
            found = [self._compare(op, *a, *b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)]
            return np.asarray(reduce(np.logical_and, found))
        raise self._wrong("columns, numbers, texts, comparisons, and, or, not, in", self._shown(node))

    def _compare(self, op: ast.cmpop, left_node: ast.expr, left: Any, right_node: ast.expr, right: Any) -> Any:
        if isinstance(op, ast.In | ast.NotIn):
            found = self._contains(left_node, left, right_node, right)
            return ~found if isinstance(op, ast.NotIn) else found
        kinds = {_kind(left), _kind(right)}
        if type(op) not in _COMPARE or len(kinds) > 1 or not kinds <= {"number", "text"}:
            shown = f"{self._shown(left_node, 40)} and {self._shown(right_node, 40)}"
            if kinds == {"number", "text"}:
                shown += f".{_QUOTES}; numbers are not."
            raise self._wrong("two numbers or two texts to compare", shown)
        if kinds == {"number"}:
            return compare(_COMPARE[type(op)], left, right)
        return np.asarray(_COMPARE[type(op)](np.asarray(left, object), np.asarray(right, object)), np.bool_)

    def _contains(self, left_node: ast.expr, left: Any, right_node: ast.expr, right: Any) -> NDArray[np.bool_]:
        if isinstance(right, list) and all(not isinstance(each, np.ndarray | list) for each in right):
            if isinstance(left, np.ndarray) and left.ndim == 1 and {_kind(each) for each in right} <= {_kind(left)}:
                if _kind(left) == "text":
                    return _each(left, lambda text: text in right)
                matches = (compare(operator.eq, left, each) for each in right)
                return reduce(np.logical_or, matches, np.zeros(len(left), np.bool_))
        elif isinstance(left, str) and isinstance(right, np.ndarray) and _kind(right) in ("text", "names"):
            return _each(right, lambda value: left in value)
        shown = f"{self._shown(left_node, 40)} in {self._shown(right_node, 40)}"
        if _kind(left) == "text" and isinstance(right, list):
            shown += f".{_QUOTES}."
        raise self._wrong("a column in a list of values, or a text in key, labels or classes", shown)

    def _truth(self, node: ast.expr, value: Any) -> NDArray[np.bool_]:
        if isinstance(value, np.ndarray) and value.dtype == np.bool_:
            return value
        raise self._wrong("conditions beside and, or, not", self._shown(node))

    def _number(self, node: ast.expr, value: Any) -> Any:
        if _kind(value) != "number":
            raise self._wrong("a number", self._shown(node))
        return value

    def _shown(self, node: ast.expr, longest: int = 80) -> str:
        """A part of the condition as written."""
        return one_line((ast.get_source_segment(self._text, node) or "")[:longest])

    def _wrong(self, expected: str, found: str) -> OptionError:
        return OptionError(f"`where`: expected {expected}, found {found}")


def columns(split: Split) -> dict[str, Column]:
    """The columns that a condition can use.

    ``key``; ``label``, the class name, empty if unknown; ``labels``, the names of the classes known to apply; ``width``
    and ``height`` of the image, in its source if the store records it; ``objects``, their number; ``classes``, the
    class names of the objects; and each field with one number per sample.
    """
    found: dict[str, Column] = {}
    for name, field in split.fields.items():
        if field.joins_classes and not field.class_value:
            found[name] = partial(_named, split, name)
        elif field.is_number:
            found[name] = partial(_numbers, split, name)
    sizes = split.first(SizeField)
    if sizes is not None or isinstance(split.fields.get("image"), ImageField):
        found |= {name: partial(_sides, split, sizes, axis) for axis, name in enumerate(("height", "width"))}
    if (keys := split.first(KeyField)) is not None:
        found["key"] = partial(_keys, split, keys)
    if (things := split.first(ObjectsField)) is not None:
        table, field = split.table(things), split.fields[things]
        found["objects"] = partial(_counts, table)
        if field.classes and "labels" in table.values:
            found["classes"] = partial(_named, split, things)
    return found


def class_rows(split: Split, name: str, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """`Field.class_rows` of some rows of a field; raises `FormatError` for a number that is none of its classes."""
    field = split.fields[name]
    owners, labels = field.class_rows(split[name].take(rows))
    least, count = UNLABELLED if owners is None else 0, len(field.classes)
    if labels.size and not least <= labels.min() <= labels.max() < count:
        where = "/".join(filter(None, (split.name, name, field.class_value)))
        message = f"expected labels in [{least}, {count}), found {labels.min()} to {labels.max()}."
        raise FormatError(Problem(where, "label-range", message), "Convert again.")
    return owners, labels


def _named(split: Split, name: str, start: int, stop: int) -> Values:
    """The class name of each row, or a set of them."""
    owners, numbers = class_rows(split, name, np.arange(start, stop))
    names = np.array([*split.fields[name].classes, ""], object)[numbers]  # -1 is the last one
    if owners is None:
        return np.asarray(names)
    edges = owners.searchsorted(np.arange(start + 1, stop) - start)
    return _objects([{*each} for each in np.split(names, edges)])


def _numbers(split: Split, name: str, start: int, stop: int) -> Values:
    return np.asarray(split[name][start:stop])


def _sides(split: Split, sizes: str | None, axis: int, start: int, stop: int) -> Values:
    shapes = split.image_shapes[start:stop] if sizes is None else np.asarray(split[sizes][start:stop])
    return shapes[:, axis]


def _keys(split: Split, name: str, start: int, stop: int) -> Values:
    return _objects([str(key) for key in split[name][start:stop]])


def _counts(table: RaggedColumn, start: int, stop: int) -> Values:
    return np.diff(table.offsets[start : stop + 1])


def _objects(values: list[Any]) -> Values:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _each(values: Values, test: Callable[[Any], bool]) -> NDArray[np.bool_]:
    return np.fromiter(map(test, values), np.bool_, len(values))


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype == object:  # of one row or more
        return "names" if isinstance(value[0], set) else "text" if isinstance(value[0], str) else "number"
    if isinstance(value, str):
        return "text"
    return "number" if isinstance(value, int | float) or (isinstance(value, np.ndarray) and value.ndim <= 1) else "list"


class NoSampleError(OptionError):
    """No sample meets the condition, or has any of the keys."""
