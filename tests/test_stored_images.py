"""What a writer allowed is read by default, as far as memory goes."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from PIL import Image, ImageOps

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg, oriented
from small_stores import tsds as command
from stores import png_bytes, store_of
from tensorstore_ds.errors import SourceError
from tensorstore_ds.imaging import MAX_PIXELS
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.imaging.jpeg import JpegSegment, find_restarts
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.reading import stored_images
from tensorstore_ds.reading.stored_images import decode_part, decode_stored, stored_shape


def test_a_store_with_a_huge_image_is_verified_shown_and_loaded(tmp_path: Path) -> None:
    """More pixels than are converted without --max-pixels, and than Pillow opens without a warning."""
    height, width = 9000, 10000
    assert height * width > MAX_PIXELS
    sample = {"image": np.zeros((height, width, 1), np.uint8), "boxes": np.array([[0, 0, width, height]])}
    path = store_of(tmp_path / "s.tsds", [sample], encoding="jpeg", max_pixels=10**8).path
    assert tsds.verify(path) == []
    assert StoreDataset(path)[0]["image"].shape == (1, height, width)
    shown = command("preview", path, "--out", tmp_path / "sheet.png")
    assert shown.exit_code == 0 and (tmp_path / "sheet.png").exists()


def test_an_image_that_memory_cannot_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    image = png_bytes(np.zeros((6, 9, 3), np.uint8))
    monkeypatch.setattr(stored_images, "MAX_PIXELS", 53)
    assert decode_stored(image, key="a").shape == (6, 9, 3)
    monkeypatch.setattr(stored_images, "memory_limit", lambda: 54 * 32 - 1)
    assert stored_shape(image, key="a") == (6, 9, 3)
    with pytest.raises(SourceError, match=r"a: this image has 9x6 pixels, and memory has room for 53") as caught:
        decode_stored(image, key="a")
    assert caught.value.reason == "too-many-pixels"


def test_pillows_limit_is_back_when_the_last_thread_has_left() -> None:
    before, meeting = Image.MAX_IMAGE_PIXELS, Barrier(2)

    def first() -> None:
        with quiet_pillow():
            meeting.wait()
            meeting.wait()  # the second is inside, too

    def second() -> int | None:
        meeting.wait()
        with quiet_pillow():
            meeting.wait()
            thread.result()
            return Image.MAX_IMAGE_PIXELS

    with ThreadPoolExecutor(2) as threads:
        thread = threads.submit(first)
        assert threads.submit(second).result() is None
    assert before is not None and before == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("orientation", range(1, 9))
def test_parts_of_turned_images_are_those_that_pillow_shows(orientation: int) -> None:
    data = oriented(drawn(80, 112), orientation, restart_marker_blocks=1)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
    height, width = shown.shape[:2]
    for part in (
        JpegSegment(3, 5, 20, 30),
        JpegSegment(height - 20, width - 31, height, width),
        JpegSegment(30, 2, 41, 9),
    ):
        for restarts in (find_restarts(data), None):
            found = decode_part(data, part, shape=shown.shape, restarts=restarts)
            top, left = part.top - found.top, part.left - found.left
            cut = found.array[top : top + part.height, left : left + part.width]
            np.testing.assert_array_equal(cut, shown[part.top : part.bottom, part.left : part.right])
            assert (found.array.shape == shown.shape) == (restarts is None)


@pytest.mark.parametrize(("width", "is_whole"), [(88, False), (90, True), (112, True)])
def test_a_part_of_more_than_four_fifths_is_decoded_with_all(width: int, is_whole: bool) -> None:
    data = jpeg(drawn(80, 112), restart_marker_blocks=1)
    found = decode_part(data, JpegSegment(0, 0, 80, width), shape=(80, 112, 3), restarts=find_restarts(data))
    assert (found.array.shape[1] == 112) == is_whole
