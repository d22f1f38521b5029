"""The flat keywords of earlier versions: they work for one release, with a warning that shows what to write instead."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds as tsds
from small_stores import class_folders
from tensorstore_ds import ConvertOptions
from tensorstore_ds.options import flat, from_flat, with_changes

C = "tsds.conversion"


@pytest.mark.parametrize(
    ("given", "new"),
    [
        ({"encoding": "jpeg", "quality": 80}, "encoding=tsds.Jpeg(quality=80)"),
        ({"quality": 80}, f"encoding={C}.Auto(quality=80)"),
        ({"encoding": "source", "check": "headers"}, f"encoding={C}.SourceFiles(check='headers')"),
        ({"encoding": "raw", "channels": "a,b"}, f"encoding={C}.Raw(channels='a,b')"),
        ({"size": 9, "fit": "crop", "min_visibility": 0.5}, "fit=tsds.Fit((9, 9), how='crop', min_visibility=0.5)"),
        ({"max_side": 512}, f"fit={C}.Shrink(512)"),
        ({"tiles": 64, "empty_tiles": 0.5}, f"cut={C}.ImageTiles((64, 64), empty=0.5)"),
        ({"objects": "crops", "margin": 0.2}, f"cut={C}.ObjectCrops(margin=0.2)"),
    ],
)
def test_a_warning_shows_what_to_write(given: dict[str, Any], new: str) -> None:
    with pytest.warns(DeprecationWarning) as caught:
        old = ConvertOptions(**given)
    assert [str(each.message).partition(". Write ")[2] for each in caught] == [f"{new}."]
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert eval(f"ConvertOptions({new})") == old  # noqa: S307  # what the warning shows
        assert ConvertOptions(**from_flat(ConvertOptions, flat(old))) == old


def test_a_call_warns_once_at_its_line(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", "cat")
    with pytest.warns(DeprecationWarning) as caught:
        tsds.convert(photos, tmp_path / "a.tsds", ConvertOptions(workers=0), encoding="jpeg", quality=80)
    assert [(each.filename, str(each.message)) for each in caught] == [
        (__file__, "deprecated: quality=80. Write encoding=tsds.Jpeg(quality=80).")
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tsds.convert(photos, tmp_path / "b.tsds", size=8, encoding="jpeg", workers=0)
        tsds.convert(photos, tmp_path / "c.tsds", encoding=tsds.Jpeg(quality=80), workers=0)
    assert tsds.open(tmp_path / "a.tsds").content_sha256 == tsds.open(tmp_path / "c.tsds").content_sha256


def test_an_option_that_was_given_overrides_a_part_of_a_value() -> None:
    options = ConvertOptions(fit=tsds.Fit(8, "crop"), cut=tsds.conversion.ImageTiles(64))
    with pytest.warns(DeprecationWarning, match="overlap=0.5"):
        assert with_changes(options, {"size": 9, "overlap": 0.5}) == ConvertOptions(
            fit=tsds.Fit(9, "crop"), cut=tsds.conversion.ImageTiles(64, overlap=0.5)
        )


def test_a_part_and_its_value_exclude_each_other() -> None:
    with pytest.raises(tsds.OptionError, match=r"`quality` is a part of `encoding`, which is given as Jpeg\(...\)"):
        ConvertOptions(encoding=tsds.Jpeg(), quality=80)
    assert ConvertOptions(fit=tsds.Fit(8), size=None).fit == tsds.Fit(8)


def test_a_name_of_two_values_is_no_obstacle_to_a_change_of_one() -> None:
    """`min_visibility` belongs to `fit` and to `cut`."""
    before = tsds.ConvertOptions(fit=tsds.Fit((8, 8), "crop", min_visibility=0.5))
    after = with_changes(before, {"cut": tsds.conversion.ObjectCrops()})
    assert (after.fit, after.cut) == (before.fit, tsds.conversion.ObjectCrops())
    with pytest.warns(DeprecationWarning):
        assert with_changes(before, {"objects": "crops"}) == after
