"""JSON with one reading, and bounded before objects are made of it; json itself is the oracle for what is accepted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, strategies as st

from tensorstore_ds.format.strict_json import MAX_DEPTH, MAX_VALUES, load_object, same_json

TEXTS = st.text(st.characters(exclude_categories=("Cs",)) | st.sampled_from('\\"[]{},:'), max_size=12)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(1 - 2**53, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_what_json_writes_is_read(value: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    assert load_object(json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()) == value


@given(st.binary(max_size=40) | st.text('{}[]",:\\u0dD8a1 -.eNIn', max_size=30).map(str.encode))
def test_any_bytes_are_an_object_that_json_reads_too_or_a_value_error(data: bytes) -> None:
    try:
        value = load_object(data)
    except ValueError:
        return
    assert value == json.loads(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a": 1, "a": 1}', "the name 'a' twice"),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "the name 'b' twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": [-Infinity]}', "-Infinity is not JSON"),
        (b'{"a": 9007199254740992}', "beyond 2"),
        (b'{"a": -9007199254740992}', "beyond 2"),
        (b'{"a": 1e999}', "too long or too large"),
        (b'{"a": ' + b"1" * 65 + b"}", "65 digits"),
        (b'{"a": 0.' + b"1" * 65 + b"}", "too long or too large"),
        (b'{"a": "\\ud800"}', "surrogates not allowed"),
        (b'{"a": {"\\uDC00": 1}}', "surrogates not allowed"),
        (b'{"a": "\xed\xa0\x80"}', "can't decode"),  # the same, not escaped
        (b'\xef\xbb\xbf{"a": 1}', "BOM"),
        (b'{"a": 1}'.decode().encode("utf-16"), "can't decode"),
        (b"[1]", "not a list"),
        (b'{"a": 1} x', "Extra data"),
        (b"", "Expecting value"),
        (b'{"a": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", "nested deeper than 64"),
        (b'{"a": [[[', "not closed"),
    ],
)
def test_what_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_object(text)


def test_what_is_just_allowed() -> None:
    pair = {"a": "\U0001f600", "\\": '\\"[[[['}
    assert load_object(json.dumps(pair).encode()) == pair
    deep = b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1)
    assert load_object(b'{"a": ' + deep + b"}")
    assert load_object(b'{"a": "' + b"[{," * MAX_VALUES + b'"}')  # text, not structure
    assert load_object(b'{"a": [9007199254740991, -9007199254740991]}') == {"a": [2**53 - 1, 1 - 2**53]}
    assert load_object(b'{"a": ' + b"9" * 62 + b".0}") == {"a": float("9" * 62)}


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("item", [b"[],", b"{},", b'"",', b"1,", b"]", b'"a":{"a":[', b'"\\"",'])
def test_many_values_are_refused_before_objects_are_made(item: bytes) -> None:
    """In 64 MiB, the largest manifest: with no more memory than a few copies of the text."""
    code = (
        "import resource, sys\n"
        "from tensorstore_ds.format.strict_json import load_object\n"
        f"text = b'{{\"a\": [' + {item!r} * (64 * 2**20 // {len(item)})\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    load_object(text)\n"
        "except ValueError as error:\n"
        "    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, error)\n"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    grown, message = output.split(" ", 1)
    assert message == f"it has more than {MAX_VALUES:,} values\n" or "\\" in str(item)
    assert int(grown) < 4 * 64


def test_the_same_in_type_too() -> None:
    assert same_json({"a": [1, "x"], "b": 0.0}, {"b": 0.0, "a": [1, "x"]})
    for found, expected in ((2.0, 2), (False, 0), (True, 1), (-0.0, 0.0), ("1", 1), ([1], [1, 2]), ({}, [])):
        assert not same_json(found, expected)


@pytest.mark.parametrize(
    ("text", "values"),
    [(b"{}", 1), (b'{"a": 1}', 1), (b'{"a": 1, "b": 2}', 2), (b'{"a": [0, 0, 0]}', 4), (b'{"a": {}}', 2)],
)
def test_values_are_counted(text: bytes, values: int) -> None:
    assert load_object(text, values) == json.loads(text)
    with pytest.raises(ValueError, match=f"it has more than {values - 1} values"):
        load_object(text, values - 1)
