"""What kinds of fields read and check, at the limits of their rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.kinds import EncodedImageField, KeyField, MaskField, RaggedImageField, RawImageField
from tensorstore_ds.format.kinds.key_index import _ROWS
from tensorstore_ds.format.manifest_values import ManifestValues
from tensorstore_ds.format.schema import ArraySpec, EncodedSample


@dataclass
class Column:
    """An array of a row per sample as a check reads it."""

    values: NDArray[Any]

    @property
    def spec(self) -> ArraySpec:
        return ArraySpec(self.values.dtype.name, self.values.shape[1:])

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self.values[rows]


@dataclass
class Table:
    """Rows as a check reads them."""

    values: dict[str, NDArray[Any]]
    offsets: NDArray[np.int64]
    per_row: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.values[name]


def keys(texts: list[bytes]) -> Table:
    data = np.frombuffer(b"".join(texts), np.uint8)
    return Table({"bytes": data}, np.cumsum([0, *map(len, texts)]))


def findings(made: Any, table: Table) -> list[tuple[str, str]]:
    return list(made.check(table, {}))


def parsed(kind: type[Any], data: dict[str, Any]) -> tuple[Any, list[str]]:
    values = ManifestValues()
    made = kind.parse(values, "fields.x", data)
    return made, [f"{problem.where}: {problem.message}" for problem in values.problems]


@pytest.mark.parametrize(
    ("first", "second"), [(0, 1), (0, _ROWS - 1), (_ROWS - 1, _ROWS), (0, _ROWS), (_ROWS, _ROWS + 1), (3, _ROWS + 1)]
)
def test_a_key_that_is_there_twice_is_found_wherever_it_is(first: int, second: int) -> None:
    texts = [b"%d" % i for i in range(_ROWS + 2)]
    assert findings(KeyField(), keys(texts)) == []
    texts[second] = texts[first]
    found = f"expected keys that differ, found {first} twice: in rows {first} and {second}."
    assert findings(KeyField(), keys(texts)) == [("key-text", found)]


@pytest.mark.parametrize("row", [0, 5, _ROWS - 1, _ROWS, _ROWS + 1])
def test_a_key_that_is_no_text_is_found_wherever_it_is(row: int) -> None:
    texts = [b"%d" % i for i in range(_ROWS + 2)]
    texts[row] = b"\xe4"
    assert findings(KeyField(), keys(texts)) == [("key-text", f"expected UTF-8, found other bytes at row {row}.")]


def mask(ignored: int, classes: int = 3, dtype: str = "uint8") -> list[str]:
    data = {"dtype": dtype, "shape": [4, 6], "classes": [f"c{i}" for i in range(classes)], "ignored": ignored}
    return parsed(MaskField, data)[1]


def test_the_ignored_value_of_a_mask_is_no_class_and_fits_its_dtype() -> None:
    assert mask(3) == mask(255) == mask(65535, dtype="uint16") == mask(255, classes=255) == []
    for ignored in (0, 2, 256):
        message = f"expected a value in [3, 256), which is no class, found {ignored}."
        assert mask(ignored) == [f"fields.x.ignored: {message}"]
    assert mask(65536, dtype="uint16")
    assert mask(255, classes=256)  # 255 is a class
    assert mask(255, classes=257) == ["fields.x.classes: expected at most 256 classes of uint8, found 257."]


def test_a_mask_has_a_byte_per_pixel_while_that_is_enough() -> None:
    for classes, dtype, ignored in ((1, "uint8", 255), (255, "uint8", 255), (256, "uint16", 65535)):
        made = MaskField.of(tuple(map(str, range(classes))))
        assert (made.spec.dtype, made.ignored) == (dtype, ignored)


def test_the_channels_of_an_image_have_as_many_names() -> None:
    data = {"encoding": "raw", "dtype": "uint8", "shape": [4, 6, 2]}
    made, problems = parsed(RawImageField, {**data, "channels": ["near", "far"]})
    assert (made.channels, problems) == (("near", "far"), [])
    for names in (["near"], ["near", "far", "both"]):
        problems = parsed(RawImageField, {**data, "channels": names})[1]
        assert problems == [f"fields.x.channels: expected 2 names, found {len(names)}."]


@pytest.mark.parametrize("shape", [(1, 7, 3), (7, 1, 3), (1, 1, 1)])
def test_an_image_may_be_a_line_or_a_pixel(shape: tuple[int, int, int]) -> None:
    made = RaggedImageField.of("uint8", 7)
    pixels = np.arange(np.prod(shape), dtype=np.uint8)
    found = made.value({"pixels": pixels}, {"shape": np.array(shape)}.__getitem__, "images[0]")
    np.testing.assert_array_equal(found, pixels.reshape(shape))
    table = Table({"pixels": pixels}, np.array([0, len(pixels)]), {"shape": Column(np.array([shape], np.int32))})
    assert findings(made, table) == []


@pytest.mark.parametrize("shape", [(0, 7, 3), (7, -1, 3), (2, 2, 1), (-1, -3, 1)])
def test_an_image_has_as_many_numbers_as_its_shape_says(shape: tuple[int, int, int]) -> None:
    made = RaggedImageField.of("uint8", 100)
    pixels = np.zeros(3, np.uint8)
    with pytest.raises(FormatError, match="found 3"):
        made.value({"pixels": pixels}, {"shape": np.array(shape)}.__getitem__, "images[0]")
    table = Table({"pixels": pixels}, np.array([0, 3]), {"shape": Column(np.array([shape], np.int32))})
    assert [reason for reason, _ in findings(made, table)] == ["image-shape"]


def test_an_image_has_no_more_pixels_than_all_may_have() -> None:
    table = Table(
        {"pixels": np.zeros(24, np.uint8)}, np.array([0, 24]), {"shape": Column(np.array([[2, 4, 3]], np.int32))}
    )
    assert findings(RaggedImageField.of("uint8", 8), table) == []
    expected = "expected at most 7 pixels, found [2, 4, 3] in row 0."
    assert findings(RaggedImageField.of("uint8", 7), table) == [("image-shape", expected)]


def sample(restarts: list[int] | None) -> EncodedSample:
    found = None if restarts is None else np.array(restarts, np.uint32)
    return EncodedSample("k", b"bytes", (4, 6), (4, 6, 3), np.dtype(np.uint8), restarts=found)


def test_restarts_of_each_image_one_behind_the_other() -> None:
    lengths, values = EncodedImageField().lists("image", [sample([5, 9]), sample(None), sample([7])])["restarts"]
    assert lengths.tolist() == [2, 0, 1]
    assert (values["items"].tolist(), values["items"].dtype) == ([5, 9, 7], np.uint32)


@pytest.mark.parametrize(
    ("positions", "is_right"),
    [
        ([10, 13], True),
        ([], True),
        ([10], False),
        ([13], False),
        ([10, 14], False),
        ([9, 13], False),
        ([10, 13, 13], False),
    ],
)
def test_the_restart_markers_of_a_file_are_all_listed(positions: list[int], is_right: bool) -> None:
    data = np.frombuffer(b"\xff\xd8\xff\xda\x00\x02ab\xff\xd0c\xff\xd1\xff\x00\xff\xd9\xff\xd2", np.uint8)
    restarts = [np.array(positions, np.uint32)]
    table = Table({"bytes": data}, np.array([0, len(data)]), {"restarts": restarts})
    found = findings(EncodedImageField(), table)
    assert [reason for reason, _ in found] == ([] if is_right else ["image-restarts"])
