from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageColor, ImageFont

import tensorstore_ds
from small_stores import VALID, image_field, label_field, write_store
from tensorstore_ds import OptionError
from tensorstore_ds.annex.pictures.contact_sheet import preview
from tensorstore_ds.annex.pictures.lettering import lettering, shortened
from tensorstore_ds.reading.store import Split

BACK = (10, 200, 30)


def split_of(path: Path, images: np.ndarray[Any, Any], fields: dict[str, Any] | None = None, **arrays: Any) -> Split:
    fields = {"image": image_field(images), **(fields or {})}
    named = {name.replace("__", "/"): array for name, array in arrays.items()}
    write_store(path / "s", fields, ("train", len(images), {"image": images, **named}))
    return tensorstore_ds.open(path / "s")["train"]


def plain(count: int, height: int, width: int) -> np.ndarray[Any, Any]:
    return np.broadcast_to(np.array(BACK, np.uint8), (count, height, width, 3)).copy()


def extent(sheet: Image.Image, color: tuple[int, int, int], tolerance: int = 0) -> tuple[int, int, int, int] | None:
    """Box of all pixels of a color, left top right bottom."""
    distance = np.abs(np.asarray(sheet).astype(int) - color).max(axis=2)
    rows, columns = np.nonzero(distance <= tolerance)
    return None if not len(rows) else (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)


def detection(
    path: Path, boxes: Any, labels: Any, keypoints: Any = None, classes: tuple[str, ...] = ("a", "b")
) -> Split:
    """One picture of 320 x 320 pixels, so that it is neither enlarged nor reduced."""
    values = {"boxes": np.array(boxes, np.float32).reshape(-1, 4), "labels": np.array(labels, np.int64)}
    names = []
    if keypoints is not None:
        values["keypoints"] = np.array(keypoints, np.float32)
        names = [str(i) for i in range(values["keypoints"].shape[1])]
    specs = {name: {"dtype": v.dtype.name, "shape": list(v.shape[1:])} for name, v in values.items()}
    field = {"kind": "objects", "values": specs, "classes": list(classes), "keypoints": names, "flip_pairs": []}
    arrays: dict[str, Any] = {f"objects__{name}": value for name, value in values.items()}
    arrays["objects__offsets"] = np.array([0, len(values["labels"])])
    return split_of(path, plain(1, 320, 320), {"objects": field}, **arrays)


# --- pictures ---------------------------------------------------------------------------------------------------


def test_tiny_images_are_magnified_by_a_whole_number(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
    pixels[0, 0, 0] = pixels[0, 7, 7] = BACK
    sheet = preview(split_of(tmp_path, pixels), [0])
    box = extent(sheet, BACK)
    assert box is not None
    expected = np.repeat(np.repeat(pixels[0], 14, axis=0), 14, axis=1)
    np.testing.assert_array_equal(np.asarray(sheet.crop(box)), expected)


def test_large_images_are_reduced(tmp_path: Path) -> None:
    box = extent(preview(split_of(tmp_path, plain(1, 400, 800)), [0]), BACK)
    assert box is not None
    assert (box[2] - box[0], box[3] - box[1]) == (176, 88)


@pytest.mark.parametrize("dtype", ["uint16", "float32", "int32"])
def test_wide_numbers_are_spread_over_their_range(dtype: str, tmp_path: Path) -> None:
    pixels = np.full((1, 2, 2, 1), 100, dtype)
    pixels[0, 0, 0], pixels[0, 1, 1] = 60, 140
    sheet = np.asarray(preview(split_of(tmp_path, pixels), [0]))
    for gray in (0, 128, 255):
        assert ((sheet == gray).all(axis=2)).sum() >= 56 * 56


def test_transparency_shows_a_checkerboard(tmp_path: Path) -> None:
    pixels = np.zeros((1, 64, 64, 4), np.uint8)
    pixels[0, :, 32:] = (*BACK, 255)
    sheet = np.asarray(preview(split_of(tmp_path, pixels), [0]))
    assert (sheet == 205).all(axis=2).sum() > 500 and (sheet == 240).all(axis=2).sum() > 500
    assert (sheet == BACK).all(axis=2).sum() >= 32 * 64


@pytest.mark.parametrize(
    "pixels",
    [
        *(np.ones((1, 4, 4, channels), np.uint8) for channels in (2, 5)),
        *(np.full((1, 2, 2, 1), value, np.float32) for value in (np.nan, 7)),
    ],
)
def test_what_no_picture_has_is_drawn(pixels: Any, tmp_path: Path) -> None:
    assert preview(split_of(tmp_path, pixels), [0]).mode == "RGB"


@pytest.mark.parametrize("store", ["encoded-jpeg.tsds", "encoded-source.tsds", "zarr-detection.tsds", "gray16.tsds"])
def test_stores_of_all_kinds(store: str) -> None:
    split = tensorstore_ds.open(VALID / store)["train"]
    sheet = preview(split, range(len(split)))
    assert sheet.mode == "RGB" and np.asarray(sheet).std() > 5


# --- objects ----------------------------------------------------------------------------------------------------


def test_boxes_have_the_color_of_their_class(tmp_path: Path) -> None:
    split = detection(tmp_path, [[100, 120, 200, 220], [230, 240, 300, 300]], [0, 1])
    sheet = preview(split, [0])
    origin = extent(sheet, BACK)
    assert origin is not None
    pixels = np.asarray(sheet)[origin[1] : origin[3], origin[0] : origin[2]]
    for (x1, y1, x2, y2), color in (((100, 120, 200, 220), "#ff4b4b"), ((230, 240, 300, 300), "#2f9bff")):
        outline = pixels[y1 + 2, (x1 + x2) // 2]
        assert np.abs(outline.astype(int) - ImageColor.getrgb(color)).max() < 40
        np.testing.assert_array_equal(pixels[(y1 + y2) // 2, (x1 + x2) // 2], BACK)  # nothing hides what is inside


def test_in_a_crowd_lines_are_thin_and_each_class_is_named_once(tmp_path: Path) -> None:
    boxes = [[x, y, x + 40, y + 40] for y in (30, 110, 190) for x in (20, 120, 220)]
    red, blue = map(ImageColor.getrgb, ("#ff4b4b", "#2f9bff"))
    drawn = {}
    for count in (8, 9):
        sheet = preview(detection(tmp_path / str(count), boxes[:count], [0, 1] * 4 + [0] * (count - 8)), [0])
        origin = extent(sheet, BACK)
        assert origin is not None
        pixels = np.asarray(sheet).astype(int)[origin[1] : origin[3], origin[0] : origin[2]]
        of_class = [np.abs(pixels - color).max(2) < 60 for color in (red, blue)]
        names = [sum(bool(found[y - 10, x + 1]) for x, y, *_ in boxes) for found in of_class]
        lines = int(of_class[0][45, 18:30].sum())  # across the left side of the first box
        drawn[count] = (names, lines)
    assert drawn == {8: ([4, 4], 2), 9: ([1, 1], 1)}


def test_landmarks_are_dots_and_absent_ones_are_not_drawn(tmp_path: Path) -> None:
    points = [[[50, 60], [np.nan, np.nan], [150, 160]]]
    sheet = preview(detection(tmp_path, [[10, 10, 310, 310]], [0], points), [0])
    origin = extent(sheet, BACK)
    assert origin is not None
    found = extent(sheet.crop(origin), (255, 240, 77), tolerance=30)
    assert found is not None
    assert np.abs(np.array(found) - (50, 60, 150, 160)).max() <= 3
    one = preview(detection(tmp_path / "x", [[10, 10, 310, 310]], [0], np.full((1, 2, 2), np.nan)), [0])
    assert extent(one, (255, 240, 77), tolerance=30) is None


def test_objects_that_no_writer_should_have_written(tmp_path: Path) -> None:
    boxes = [[np.nan, 0, 5, 5], [50, 50, 10, 10], [-1e9, -1e9, 1e9, 1e9], [10, 10, 10.2, 10.2]]
    assert preview(detection(tmp_path, boxes, [0, 1, 7, -1]), [0]).size


def test_a_legend_and_names(tmp_path: Path) -> None:
    with_names = preview(detection(tmp_path, [[100, 120, 200, 220]], [1]), [0])
    without = preview(detection(tmp_path / "x", [[100, 120, 200, 220]], [1], classes=()), [0])
    blue = ImageColor.getrgb("#2f9bff")
    assert extent(with_names, blue)[1] < extent(without, blue)[1]  # type: ignore[index]
    assert with_names.height > without.height


# --- letters ----------------------------------------------------------------------------------------------------


def test_class_names_in_any_script(tmp_path: Path) -> None:
    names = ("猫", "żółw", "новый", "line\nbreak", "\U0010fffe", "🐈", "a" * 500)
    labels = np.arange(len(names), dtype=np.int64)
    images = plain(len(names), 28, 28)
    sheet = preview(split_of(tmp_path, images, {"label": label_field(*names)}, label=labels), range(len(names)))
    assert sheet.width < 1500


def test_lettering_escapes_what_no_font_has_and_finds_a_font_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = {"cat": "cat", "café": "café", "a\U0010fffdb": "a\\U0010fffdb", "a\nb": "a\\nb"}
    assert {text: lettering(text, 12)[0] for text in shown} == shown
    font = lettering("x", 12)[1]
    assert shortened("short", font, 100) == "short"
    cut = shortened("train/a/very/long/path/0001.png", font, 80)  # from its beginning
    assert cut.startswith("...") and "train/a/very/long/path/0001.png".endswith(cut[3:])
    assert 60 < font.getlength(cut) <= 80
    wider = ImageFont.load_default(12)
    monkeypatch.setattr("tensorstore_ds.annex.pictures.lettering._fonts", lambda size: [wider])
    monkeypatch.setattr("tensorstore_ds.annex.pictures.lettering._has", lambda font, character: font is wider)
    assert lettering("猫", 12) == ("猫", wider)


# --- refusals ---------------------------------------------------------------------------------------------------


def test_rows_that_cannot_be_drawn(tmp_path: Path) -> None:
    split = split_of(tmp_path, plain(3, 4, 4))
    for rows in ([], [3], [-1]):
        with pytest.raises(OptionError, match="train: expected"):
            preview(split, rows)
    with pytest.raises(OptionError, match="expected a field of images, found none"):
        preview(tensorstore_ds.open(VALID / "array-fields.tsds")["train"], [0])


def test_a_sample_without_a_label_gets_no_class(tmp_path: Path) -> None:
    """Below its picture it says so, where the last class would stand if its label were an index."""
    images = plain(1, 20, 20)
    texts = {}
    for name, classes, label in (("a", ("ant", "bee"), -1), ("b", ("ant", "bee"), 1), ("c", ("no label",), 0)):
        split = split_of(tmp_path / f"{name}.tsds", images, {"label": label_field(*classes)}, label=np.array([label]))
        texts[name] = preview(split).tobytes()
    assert texts["a"] == texts["c"] != texts["b"]
