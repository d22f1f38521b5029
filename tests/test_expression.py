"""Conditions: random ones, over columns of all dtypes, against an evaluator that takes one row after the other.

The evaluator shares nothing with the library. It has Python's integers, compares fractions, and rounds by `struct`.
"""

from __future__ import annotations

import itertools
import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorstore_ds as tsds
from small_stores import VALID
from tensorstore_ds.annex.editing import expression
from tensorstore_ds.annex.editing.expression import Condition
from tensorstore_ds.annex.editing.numbers import calculate, compare

#: Of `struct`, in standard size: only there, what is beyond the range of a float32 is an error, and not infinite.
FLOATS = {"float16": "<e", "float32": "<f", "float64": "<d"}
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
CLASSES = ("cat", "dog", "Dog")
ROWS = 24


def values_of(dtype: str) -> list[Any]:
    """Values at which dtypes end, wrap around or round, as Python's numbers."""
    rng = np.random.default_rng(list(dtype.encode()))
    if dtype in FLOATS:
        some = np.array([0.0, -0.0, 0.1, 0.3, -2.5, 1.0, 20.0, np.inf, -np.inf, np.nan, np.finfo(dtype).max, 1e-8])
        return [float(each) for each in np.resize(some, ROWS).astype(dtype)]
    limits = np.iinfo(dtype)
    ends = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 20, 100]
    near = [n for n in (2**53, 2**53 + 1, -(2**53) - 1, 2**63, 2**31, 255, -20) if limits.min <= n <= limits.max]
    drawn = rng.integers(limits.min, limits.max, ROWS, dtype, endpoint=True).tolist()
    return [*ends, *near, *drawn][:ROWS]


COLUMNS = {dtype: values_of(dtype) for dtype in (*INTEGERS, *FLOATS)}


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> tsds.Split:
    path = tmp_path_factory.mktemp("expression") / "a.tsds"
    with tsds.Writer(path, classes=CLASSES) as writer:
        for row in range(ROWS):
            numbers = {dtype: np.dtype(dtype).type(values[row]) for dtype, values in COLUMNS.items()}
            writer.append("train", image=np.full((2, 2, 3), row, np.uint8), label=row % 3, **numbers)
    opened = tsds.open(path)["train"]
    for dtype, values in COLUMNS.items():  # they are stored as they were meant
        assert opened.fields[dtype].arrays[""].dtype == dtype
        np.testing.assert_array_equal(opened[dtype][:], np.array(values, dtype))
    return opened


@dataclass(frozen=True)
class Part:
    """A part of a condition: its text, and what it is in a row.

    Attributes:
        digits: the `struct` format of the floating-point numbers that it has, where it depends on the row.
        is_constant: whether it is the same in every row.
    """

    text: str
    value: Callable[[int], Any]
    digits: str = ""
    is_constant: bool = False


def rounded(value: Any, digits: str) -> Any:
    try:
        return struct.unpack(digits, struct.pack(digits, float(value)))[0]
    except OverflowError:
        return value


def exact(value: Any) -> Any:
    return Fraction(value) if isinstance(value, int) or math.isfinite(value) else value


def compared(operation: Callable[[Any, Any], bool], a: Part, b: Part, row: int) -> bool:
    left, right = a.value(row), b.value(row)
    if a.is_constant and b.digits:
        left = rounded(left, b.digits)
    if b.is_constant and a.digits:
        right = rounded(right, a.digits)
    return operation(exact(left), exact(right))


def calculated(sign: str, left: Any, right: Any) -> Any:
    if sign != "/" and isinstance(left, int) and isinstance(right, int):
        return {"+": left + right, "-": left - right, "*": left * right}[sign]
    left, right = float(left), float(right)
    if sign != "/":
        return {"+": operator.add, "-": operator.sub, "*": operator.mul}[sign](left, right)
    if right:
        return left / right
    return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)


def column(dtype: str) -> Part:
    return Part(dtype, lambda row: COLUMNS[dtype][row], FLOATS.get(dtype, ""))


def constant(value: float) -> Part:
    return Part(repr(value), lambda row: value, is_constant=True)


def negated(part: Part) -> Part:
    return Part(f"-({part.text})", lambda row: -part.value(row), part.digits, part.is_constant)


def arithmetic(a: Part, sign: str, b: Part) -> Part:
    is_constant = a.is_constant and b.is_constant
    result = Part(f"({a.text}) {sign} ({b.text})", lambda row: calculated(sign, a.value(row), b.value(row)))
    digits = "<d" if not is_constant and isinstance(result.value(0), float) else ""
    return Part(result.text, result.value, digits, is_constant)


def truth(condition: Part) -> Part:
    """A condition as a number, 0 or 1."""
    return Part(f"({condition.text})", lambda row: int(condition.value(row)), "", condition.is_constant)


COMPARE = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt}
EDGES = [0.1, 0.3, -0.1, 255, 256, -1, -20, 127, 128, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 65504, 70000, 1e39, 2.5]
constants = st.one_of(
    st.sampled_from(EDGES), st.integers(-(2**70), 2**70), st.floats(0, allow_nan=False, allow_infinity=False)
).map(lambda value: negated(constant(-value)) if value < 0 else constant(value))
columns = st.sampled_from(list(COLUMNS)).map(column)


def comparison(parts: list[Part], signs: list[str]) -> Part:
    """``a < b < c``, as long as there are parts and signs."""
    chain = list(zip(parts, signs, parts[1:], strict=False))
    text = f"({parts[0].text})" + "".join(f" {sign} ({b.text})" for _, sign, b in chain)
    is_constant = all(part.is_constant for part in parts[: len(chain) + 1])
    return Part(text, lambda row: all(compared(COMPARE[s], a, b, row) for a, s, b in chain), "", is_constant)


def contained(part: Part, items: list[Part], is_in: bool) -> Part:
    text = f"({part.text}) {'in' if is_in else 'not in'} [{', '.join(item.text for item in items)}]"
    return Part(text, lambda row: any(compared(operator.eq, part, item, row) for item in items) is is_in)


def joined(a: Part, word: str, b: Part) -> Part:
    both = {"and": lambda x, y: x and y, "or": lambda x, y: x or y}[word]
    return Part(f"({a.text}) {word} ({b.text})", lambda row: both(a.value(row), b.value(row)))


numbers = st.recursive(
    columns | constants,
    lambda inner: st.one_of(
        inner.map(negated),
        st.builds(arithmetic, inner, st.sampled_from("+-*/"), inner),
        st.builds(lambda a, sign, b: truth(comparison([a, b], [sign])), inner, st.sampled_from(list(COMPARE)), inner),
    ),
    max_leaves=5,
)
comparisons = st.builds(
    comparison, st.lists(numbers, min_size=2, max_size=4), st.lists(st.sampled_from(list(COMPARE)), min_size=1)
)
rows_of_numbers = numbers.filter(lambda part: not part.is_constant)
memberships = st.builds(contained, rows_of_numbers, st.lists(constants, max_size=3), st.booleans())
labels = st.builds(
    lambda sign, name: Part(f"label {sign} {name!r}", lambda row: COMPARE[sign](CLASSES[row % 3], name)),
    st.sampled_from(list(COMPARE)),
    st.sampled_from([*CLASSES, "", "dog\0"]),
).map(lambda part: Part(part.text.replace("\0", "\\0"), part.value))
conditions = st.recursive(
    comparisons | memberships | labels,
    lambda inner: st.one_of(
        st.builds(joined, inner, st.sampled_from(["and", "or"]), inner),
        inner.map(lambda part: Part(f"not ({part.text})", lambda row: not part.value(row))),
    ),
    max_leaves=3,
)


@settings(max_examples=100, deadline=None)
@given(condition=conditions)
def test_any_condition(split: tsds.Split, condition: Part) -> None:
    expected = [row for row in range(ROWS) if condition.value(row)]
    assert Condition(condition.text).rows(split).tolist() == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("-uint8 > 0", []),
        ("-uint8 < -100", lambda n: -n["uint8"] < -100),
        ("-uint64 < -3", lambda n: n["uint64"] > 3),
        ("-int8 == 128", lambda n: n["int8"] == -128),
        ("-int64 == 9223372036854775808", lambda n: n["int64"] == -(2**63)),
        ("uint64 + 1 == 18446744073709551616", lambda n: n["uint64"] == 2**64 - 1),
        ("int64 == 9007199254740993.0", lambda n: n["int64"] == 2**53),
        ("uint64 == 1.8446744073709552e19", []),
        (f"uint64 * uint64 * uint64 > {(2**64 - 1) ** 3 - 1}", lambda n: n["uint64"] == 2**64 - 1),
        ("float32 == 0.1", lambda n: n["float32"] == struct.unpack("f", struct.pack("f", 0.1))[0]),
        ("float16 in (0.1, 7)", lambda n: n["float16"] == struct.unpack("e", struct.pack("e", 0.1))[0]),
        ("float32 < 0.1 and float32 > 0.0999", []),
        ("float16 < 70000", lambda n: n["float16"] < math.inf),
        ("float16 > 1" + "0" * 400, lambda n: n["float16"] == math.inf),
        ("50 < 100", range(ROWS)),
        ("50 < 100 < int8", lambda n: n["int8"] > 100),
        ("int8 > 100 > 50", lambda n: n["int8"] > 100),
        ("1 > 2 and int8 > 0", []),
        ("not 1 == 1", []),
        ("-(int8 > 3) == -1", lambda n: n["int8"] > 3),
        ("(int8 > 3) + (int8 > 30) == 2", lambda n: n["int8"] > 30),
        ("int8 in ()", []),
        (f"int8 * {2**1016} < 0", lambda n: n["int8"] < 0),
        ("uint8 in [1" + "0" * 300 + ", 20]", lambda n: n["uint8"] == 20),
        ("int8 < 0x" + "f" * 3000, range(ROWS)),
        ("label == 'dog\\0'", []),
    ],
)
def test_edges_of_dtypes(split: tsds.Split, where: str, expected: Any) -> None:
    if callable(expected):
        expected = [row for row in range(ROWS) if expected({name: each[row] for name, each in COLUMNS.items()})]
        assert expected, "a case that finds something"
    assert Condition(where).rows(split).tolist() == list(expected)


@pytest.mark.parametrize("where", ["int8 > 20", "uint8 == uint16 or label == 'dog'", "50 < 100"])
def test_rows_that_are_looked_at_in_steps(split: tsds.Split, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = Condition(where).rows(split).tolist()
    monkeypatch.setattr(expression, "_ROWS", 7)
    assert at_once and Condition(where).rows(split).tolist() == at_once


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("int8 + 1" + "0" * 400 + " > 3", "expected numbers that are less than 1.8e308, found int8"),
        ("int8 * 1" + "0" * 400 + " > 0.5", "expected numbers that are less than 1.8e308, found int8"),
        ("1" + "0" * 400 + " / 3 > int8", "expected numbers that are less than 1.8e308, found 1000"),
        ("~" * 2000 + "int8", "expected columns, numbers, texts, .*, found ~~~"),
        (".".join("a" * 1000), "expected columns, numbers, texts, .*, found a.a.a"),
        ("int8 > 1 or (int8\n% 3)", r"expected columns, numbers, texts, .*, found int8\\n% 3"),
    ],
)
def test_refused_in_one_line(split: tsds.Split, where: str, message: str) -> None:
    with pytest.raises(tsds.OptionError, match=f"^`where`: {message}") as caught:
        Condition(where).rows(split)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "name", ["detection", "classification", "unlabelled", "shards", "encoded-source", "array-fields"]
)
def test_columns_of_some_rows_are_those_of_the_fields(name: str) -> None:
    store = tsds.open(VALID / f"{name}.tsds")
    for split in (store[each] for each in store):
        expected: dict[str, list[object]] = {}
        for field, kind in split.fields.items():
            if kind.kind == "label":
                expected[field] = [kind.classes[i] if i >= 0 else "" for i in np.asarray(split[field]).tolist()]
            elif kind.kind == "key":
                expected["key"] = [split[field][row] for row in range(len(split))]
            elif kind.kind == "objects":
                objects = [split[field][row] for row in range(len(split))]
                expected["objects"] = [len(each["boxes"]) for each in objects]
                if objects and kind.classes and "labels" in objects[0]:
                    expected["classes"] = [{kind.classes[i] for i in each["labels"].tolist()} for each in objects]
        found = expression.columns(split)
        assert expected.keys() <= found.keys()
        assert "size" not in split.fields or {"height", "width"} <= found.keys()
        if "size" in split.fields:
            sizes = np.asarray(split["size"])
            expected |= {"height": sizes[:, 0].tolist(), "width": sizes[:, 1].tolist()}
        for column, values in expected.items():
            for start, stop in itertools.combinations(range(len(split) + 1), 2):
                assert list(found[column](start, stop)) == values[start:stop]


def test_an_empty_column_can_be_calculated_with() -> None:
    """Such as the objects of a split that has none."""
    empty = np.empty(0, np.int32)
    assert np.asarray(calculate(operator.mul, 2, empty)).shape == (0,)
    assert compare(operator.lt, calculate(operator.add, empty, empty), 5).shape == (0,)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("checksum--first", "label != 'a'"),
        ("label-range--object", "'a' in classes"),
        ("label-range--object-negative", "'a' in classes"),
    ],
)
def test_labels_that_are_no_classes(name: str, where: str, tmp_path: Path) -> None:
    with pytest.raises(tsds.FormatError, match=r"expected labels in \[-?\d, \d\), found"):
        tsds.editing.filter_store(VALID.with_name("invalid") / f"{name}.tsds", tmp_path / "f.tsds", where)
