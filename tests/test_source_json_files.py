"""JSON files that are read by pieces: the same values as of `json`, wherever the pieces end."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tensorstore_ds.annex.sources import json_files
from tensorstore_ds.annex.sources.json_files import JsonPieces
from tensorstore_ds.sources.forms import FormError

#: Elements with what may be taken for the end of one: objects in lists, in texts, and beside texts that end with \.
ELEMENTS: list[Any] = [
    {"a": [{"b": 1}, {"c": {"d": []}}, {"e": 2}], "f": 'x}, {"y": "z'},
    {"path": "C:\\", "next": {"k": "},{"}, "deep": [[[{}, {}]]]},
    {"圖": "ü", "escaped": '\u2028 " \\ }, {', "many": list(range(40))},
    {},
    7,
    -1.5e-3,
    None,
    True,
    "}, {",
    [{"a": 1}, {"a": 2}],
]


def written(value: Any, rng: random.Random) -> bytes:
    separators = rng.choice([(",", ":"), (", ", ": "), (" ,\n\t", "\r\n: ")])
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, None, 1]), separators=separators)
    return f"{rng.choice(['', ' '])}{text}{rng.choice(['', chr(10)])}".encode()


@pytest.mark.parametrize("nbytes", [1, 7, 64, 1000])
def test_all_values_wherever_the_pieces_end(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "_PIECE", nbytes)
    monkeypatch.setattr(json_files, "_FIRST", max(1, nbytes // 4))
    rng = random.Random(nbytes)
    for _ in range(60):
        lists = {name: rng.choices(ELEMENTS, k=rng.randrange(12)) for name in ("images", "x", "\u00fc\\")}
        content = {"info": rng.choice(ELEMENTS), **lists, "n": 12345, "none": None, "last": rng.choice(ELEMENTS)}
        data = written(content, rng)
        pieces = JsonPieces(io.BytesIO(data))
        assert list(pieces.members) == list(content)
        assert all(json.loads(pieces.read(name)) == value for name, value in content.items())
        assert all(data[a:b] == data[a:b].strip() for a, b in pieces.members.values())
        for name, values in lists.items():
            found = [
                (at, bytes(raw))
                for each in pieces.pieces(name)
                for at, raw in zip(each.begins(), each.values, strict=False)
            ]
            assert [json.loads(raw) for _, raw in found] == values
            assert all(data[at : at + len(raw)] == raw for at, raw in found)
        assert list(pieces.pieces("none")) == list(pieces.pieces("missing")) == []
        with pytest.raises(FormError, match="n: expected a list, found another value"):
            pieces.pieces("n")


@pytest.mark.parametrize("nbytes", [1, 7, 64, 1000])
def test_damaged_files(nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_files, "_PIECE", nbytes)
    monkeypatch.setattr(json_files, "_FIRST", max(1, nbytes // 4))
    rng = random.Random(nbytes)
    data = json.dumps({"info": {}, "images": ELEMENTS, "last": [1, 2]}).encode()  # a text is checked when it is read
    for damaged in (
        *(data[:end] for end in range(0, len(data), 5)),
        *(data[:at] + bytes([rng.choice(b']}{[,:"x')]) + data[at + 1 :] for at in range(0, len(data), 5)),
        data + b" {}",
        data + b"]",
        b'{"images": ' + b"[" * 5000,
        b'{"images": [1,,2]}',
        b'{"images": [1 2]}',
        b'{"images" [1]}',
        b'{"images": [1],}',
        b"{1: 2}",
        b"",
    ):
        try:
            expected = json.loads(damaged)
        except (ValueError, RecursionError):
            with pytest.raises(FormError, match="expected JSON"):
                _ = JsonPieces(io.BytesIO(damaged)).members
        else:
            assert list(JsonPieces(io.BytesIO(damaged)).members) == list(expected)


def test_the_place_of_an_error_is_the_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b'{"images": [' + b'{"id": 1}, ' * 200_000 + b'{"id": ?}]}')
    with path.open("rb") as file, pytest.raises(FormError) as caught:
        _ = JsonPieces(file).members
    assert f"(byte {path.stat().st_size - 4})" in str(caught.value)


def test_short_lists_are_read_once() -> None:
    """Each took a piece of 1 MiB, also where it has two numbers."""

    class Counted(io.BytesIO):
        nbytes = 0

        def read(self, size: int | None = -1, /) -> bytes:
            data = super().read(size)
            self.nbytes += len(data)
            return data

    file = Counted(json.dumps({f"{i}.jpg": [i, [i]] for i in range(5000)}).encode())
    assert len(JsonPieces(file).members) == 5000
    assert file.nbytes < 5000 * 10 * 4096


def test_a_member_that_comes_twice() -> None:
    with pytest.raises(FormError, match="expected each member once, found 'a' again"):
        _ = JsonPieces(io.BytesIO(b'{"a": [1], "b": 2, "a": []}')).members
