"""Objects and masks that lie in a field of images of another name."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from tensorstore_ds.annex.pictures.contact_sheet import preview
from tensorstore_ds.format.root import change_root

STORE = Path(__file__).parents[1] / "formats/v1/conformance/valid/two-images.tsds"


def test_the_manifest_says_in_which_image_they_lie() -> None:
    fields = tsds.open(STORE)["train"].fields
    assert (fields["objects"].image, fields["mask"].image) == ("photo", "photo")
    assert fields["objects"].dump()["image"] == fields["mask"].dump()["image"] == "photo"


def test_transforms_of_another_image_are_refused_and_reading_is_not() -> None:
    plain = tsds.StoreDataset(STORE, "train")[0]
    assert np.asarray(plain["photo"]).size == 8 * 12 * 3
    with pytest.raises(tsds.OptionError, match="photo"):
        tsds.StoreDataset(STORE, "train", decode=tsds.RandomCrop(2))
    with pytest.raises(tsds.OptionError, match="photo"):
        tsds.StoreDataset(STORE, "train", transform=lambda sample: sample)
    with pytest.raises(tsds.OptionError, match="photo"):
        tsds.DataLoader(tsds.StoreDataset(STORE, "train"), 1, batch_transform=tsds.RandomHorizontalFlip())
    assert set(tsds.StoreDataset(STORE, "train", fields=["image"], transform=lambda s: s)[0]) == {"image"}


def test_merged_objects_stay_in_their_image_and_others_are_refused(tmp_path: Path) -> None:
    keyed = tsds.editing.merge_stores([STORE, STORE], tmp_path / "m.tsds")
    assert tsds.verify(keyed.path) == []
    fields = tsds.open(keyed.path)["train"].fields
    assert (fields["objects"].image, fields["mask"].image) == ("photo", "photo")
    other = Path(shutil.copytree(STORE, tmp_path / "o.tsds"))
    root = other / "zarr.json"
    root.write_bytes(change_root(root.read_bytes(), lambda m: m["fields"]["objects"].pop("image")))
    with pytest.raises(tsds.OptionError):
        tsds.editing.merge_stores([STORE, other], tmp_path / "n.tsds")


def test_boxes_are_not_drawn_on_another_image(tmp_path: Path) -> None:
    bare = Path(shutil.copytree(STORE, tmp_path / "bare.tsds"))
    tsds.pull(STORE, tmp_path / "images.tsds", fields=["image"])
    one, other = (preview(tsds.open(path)["train"], [0]) for path in (bare, tmp_path / "images.tsds"))
    assert one.tobytes() == other.tobytes()


def test_a_check_compares_boxes_with_their_own_image() -> None:
    """The photo has 12 x 8 pixels, the other image 6 x 4."""
    assert tsds.check_store(STORE).boxes == ()
    assert [odd.why for odd in tsds.check_store(STORE, max_box=0.6).boxes] == ["large"]  # 64 of 96 pixels


def test_objects_and_masks_of_another_image_are_not_resized(tmp_path: Path) -> None:
    tsds.repack(STORE, tmp_path / "small.tsds", encoding="raw", size=(2, 3), workers=0)
    assert tsds.verify(tmp_path / "small.tsds") == []
    small, before = (tsds.open(path)["train"] for path in (tmp_path / "small.tsds", STORE))
    assert small["image"].shape == (1, 2, 3, 1)
    for name in ("photo", "mask"):
        np.testing.assert_array_equal(small[name][0], before[name][0])
    np.testing.assert_array_equal(small["objects"][0]["boxes"], before["objects"][0]["boxes"])


@pytest.mark.parametrize(("to", "left"), [("folders", {"photo", "mask", "objects"}), ("npy", {"objects"})])
def test_an_export_counts_another_image(to: str, left: set[str], tmp_path: Path) -> None:
    assert tsds.export(STORE, tmp_path / "out", to).left_out.keys() == left
