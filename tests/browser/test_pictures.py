"""Pictures in the viewer: pixels, boxes and masks are those of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from browser.conftest import Open, Tab, View
from stores import Samples, store_of


def pixels(opened: Tab, selector: str) -> Any:
    """Of a canvas (H, W, 3)."""
    data, width = opened.page.evaluate(
        """(selector) => {
          const canvas = document.querySelector(selector);
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          return [Array.from(data), canvas.width];
        }""",
        selector,
    )
    return np.array(data, np.uint8).reshape(-1, width, 4)[:, :, :3]


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
@pytest.mark.parametrize("layout", ["memmap", "zarr"])
def test_pictures_are_those_of_the_store(encoding: str, layout: str, tmp_path: Path, tab: Open, view: View) -> None:
    y, x = np.mgrid[:75, :150]
    image = np.stack([y * 3, x, 255 - x], -1).astype(np.uint8)
    store = store_of(tmp_path / "s.tsds", Samples([{"image": image}]), encoding=encoding, layout=layout, workers=0)
    opened = tab().open(view(store.path), "overlays=off")
    shown = pixels(opened, ".tile canvas")
    assert shown.shape == image.shape
    assert np.abs(shown.astype(int) - image).mean() < (1 if encoding == "raw" else 4)


def test_the_file_of_a_photograph_stands_upright(tmp_path: Path, tab: Open, view: View) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = np.zeros((40, 80, 3), np.uint8)
    image[:, 40:, 0] = 255  # the right half is red: the lower one, upright
    (tmp_path / "src" / "a").mkdir(parents=True)
    Image.fromarray(image).save(tmp_path / "src" / "a" / "p.jpg", exif=exif, quality=95)
    tsds.convert(tmp_path / "src", tmp_path / "s.tsds", encoding="source", workers=0)
    shown = pixels(tab().open(view(tmp_path / "s.tsds")), ".tile canvas")
    assert shown.shape[0] == 2 * shown.shape[1]
    assert shown[-10:, :, 0].mean() > 240 and shown[:10, :, 0].mean() < 15


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_other_numbers_are_scaled_to_what_can_be_shown(dtype: Any, tmp_path: Path, tab: Open, view: View) -> None:
    ramp = np.linspace(0, 1, 100)[None, :, None].repeat(50, 0)
    most = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1
    image = (ramp * most).astype(dtype)
    store = store_of(tmp_path / "s.tsds", Samples([{"image": image}]), workers=0)
    shown = pixels(tab().open(view(store.path), "size=96"), ".tile canvas")
    row = shown[shown.shape[0] // 2, :, 0].astype(int)
    assert row[0] < 8 and row[-1] > 247 and abs(row[len(row) // 2] - 127) < 8


def test_boxes_are_drawn_where_they_are(tmp_path: Path, tab: Open, view: View) -> None:
    objects = {"boxes": np.array([[20, 10, 60, 40]], np.float32), "labels": np.array([0])}
    sample = {"image": np.full((75, 150, 3), 128, np.uint8), "objects": objects}
    store = store_of(tmp_path / "s.tsds", Samples([sample]), ["thing"], workers=0)
    shown = pixels(tab().open(view(store.path)), ".tile canvas").astype(int)
    red = np.argwhere((shown[:, :, 0] > 200) & (shown[:, :, 1] < 120))
    assert np.abs(red.min(0) - [10 - 1, 20 - 1]).max() <= 16 and np.abs(red.max(0) - [40, 60]).max() <= 2
    inside, outside = shown[28:36, 30:50], shown[50:, 80:]  # below the name
    assert (inside == 128).all() and (outside == 128).all()
    plain = pixels(tab().open(view(store.path), "overlays=off"), ".tile canvas")
    assert (plain == 128).all()


def test_masks_and_objects_of_another_image_are_not_drawn(tab: Open, view: View) -> None:
    store = Path(__file__).parents[2] / "formats/v1/conformance/valid/two-images.tsds"  # they are of its photo
    bare, drawn = (pixels(tab().open(view(store), overlays), ".tile canvas") for overlays in ("overlays=off", ""))
    np.testing.assert_array_equal(drawn, bare)


def test_a_mask_is_laid_over(tmp_path: Path, tab: Open, view: View) -> None:
    mask = np.zeros((75, 150), np.uint8)
    mask[:, 75:] = 1
    sample = {"image": np.full((75, 150, 3), 100, np.uint8), "mask": mask}
    store = store_of(tmp_path / "s.tsds", Samples([sample]), ["background", "sky"], workers=0)
    shown = pixels(tab().open(view(store.path)), ".tile canvas").astype(int)
    assert (shown[:, :74] == 100).all() and (np.abs(shown[:, 77:] - 100).max(-1) > 20).all()
