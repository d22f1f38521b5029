"""Statistics of stores with several fields of a kind, against NumPy."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import VALID, image_field, label_field, tsds as command, write_store

FIELDS = ["image", "depth", "label", "coarse", "objects", "faces", "mask", "parts", "size", "other-size"]


def several(path: Path, rows: int, seed: int = 0) -> tsds.Store:
    """A store with two fields of each kind that has statistics, without statistics."""
    rng = np.random.default_rng(seed)
    images, depths = rng.integers(0, 256, (rows, 6, 8, 3), np.uint8), rng.integers(0, 65536, (rows, 5, 4, 1), np.uint16)
    masks = {"mask": rng.integers(0, 3, (rows, 6, 8), np.uint8), "parts": rng.integers(0, 2, (rows, 6, 8), np.uint8)}
    sizes = {name: rng.integers(1, 4, (rows, 2)).astype(np.int32) for name in ("size", "other-size")}
    labels = {"label": rng.integers(-1, 3, rows), "coarse": rng.integers(0, 2, rows)}
    arrays: dict[str, Any] = {"image": images, "depth": depths, **labels, **masks, **sizes}
    fields = {
        "image": image_field(images),
        "depth": image_field(depths),
        "label": label_field("cat", "dog", "ant"),
        "coarse": label_field("vertebrate", "insect"),
    }
    for name, classes in {"objects": ["car", "bus"], "faces": ["young", "old", "none"]}.items():
        lengths = rng.integers(0, 4, rows)
        arrays[f"{name}/offsets"] = np.concatenate([[0], np.cumsum(lengths)])
        arrays[f"{name}/labels"] = rng.integers(0, len(classes), lengths.sum())
        own = {"classes": classes, "keypoints": [], "flip_pairs": []}
        fields[name] = {"kind": "objects", "values": {"labels": {"dtype": "int64", "shape": []}}, **own}
    fields["mask"] = {"kind": "mask", "dtype": "uint8", "shape": [6, 8], "classes": ["back", "cat"], "ignored": 2}
    fields["parts"] = {"kind": "mask", "dtype": "uint8", "shape": [6, 8], "classes": ["back", "wheel"]}
    fields |= {name: {"kind": "size", "dtype": "int32", "shape": [2]} for name in sizes}
    assert list(fields) == FIELDS
    return tsds.open(write_store(path, fields, ("train", rows, arrays)))


def check(split: tsds.Split) -> None:
    """Whether the statistics of all fields are those of what is stored."""
    statistics = split.statistics
    assert list(statistics) == FIELDS
    for name, scale in {"image": 255, "depth": 65535}.items():
        values = split.column(name)[:].astype(np.float64) / scale
        assert statistics[name].keys() == {"mean", "std", "scale"} and statistics[name]["scale"] == scale
        np.testing.assert_allclose(statistics[name]["mean"], values.mean((0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(statistics[name]["std"], values.std((0, 1, 2)), rtol=1e-9)
    for name in ("label", "coarse"):
        counts = [int((split.column(name)[:] == i).sum()) for i in range(len(split.fields[name].classes))]
        assert statistics[name] == {"class_counts": counts}
        assert split.unlabelled[name] == len(split) - sum(counts)
    for name in ("objects", "faces"):
        lengths, labels = np.diff(split.table(name).offsets), split.table(name)["labels"][:]
        assert statistics[name] == {
            "class_counts": [int((labels == i).sum()) for i in range(len(split.fields[name].classes))],
            "total": len(labels),
            "min": lengths.min(),
            "max": lengths.max(),
            "mean": lengths.mean(),
        }
    for name in ("mask", "parts"):
        counts = [int((split.column(name)[:] == i).sum()) for i in range(3)]
        assert statistics[name] == {"class_counts": counts[:2], "ignored": counts[2]}
    for name in ("size", "other-size"):
        for side, values in zip(("height", "width"), split.column(name)[:].T, strict=True):
            expected = {"min": values.min(), "max": values.max(), "mean": values.mean()}
            assert statistics[name][side] == pytest.approx(expected, rel=1e-12)
        assert sum(statistics[name]["distinct"].values()) == len(split)
    assert split.class_counts.keys() == {"label", "coarse", "objects", "faces", "mask", "parts"}
    assert split.channel_moments == (statistics["image"]["mean"], statistics["image"]["std"], 255)


def test_every_field_is_counted_and_joined(tmp_path: Path) -> None:
    whole = several(tmp_path / "a.tsds", 23)
    assert whole["train"].class_counts == {} and whole["train"].channel_moments is None
    for name, dropped in {"b": [], "c": [3, 4, 9, 22]}.items():
        tsds.editing.filter_store(whole.path, tmp_path / f"{name}.tsds", drop={"train": dropped})
        check(tsds.open(tmp_path / f"{name}.tsds")["train"])
    # Those of pixels and masks are joined here, and counted again where one store does not tell them.
    tsds.editing.filter_store(several(tmp_path / "d.tsds", 5, seed=1).path, tmp_path / "e.tsds")
    for name, others in {"f": "be", "g": "ad", "h": "bd", "i": "ab"}.items():
        paths = [tmp_path / f"{other}.tsds" for other in others]
        tsds.editing.merge_stores(paths, tmp_path / f"{name}.tsds")
        check(tsds.open(tmp_path / f"{name}.tsds")["train"])


def test_fields_that_are_left_out_take_their_statistics_along(tmp_path: Path) -> None:
    tsds.editing.filter_store(several(tmp_path / "a.tsds", 6).path, tmp_path / "b.tsds")
    statistics = tsds.open(tmp_path / "b.tsds")["train"].statistics
    for fields in (["depth", "coarse"], ["faces", "parts", "other-size"]):
        path = tmp_path / f"{fields[0]}.tsds"
        tsds.pull(tmp_path / "b.tsds", path, fields=fields, verify=True)
        part = tsds.open(path)["train"]
        assert part.statistics == {name: statistics[name] for name in fields}
        moments = [statistics["depth"][name] for name in ("mean", "std", "scale")]
        assert part.channel_moments == (tuple(moments) if "depth" in fields else None)


def test_each_field_is_shown_with_its_name(tmp_path: Path) -> None:
    tsds.editing.filter_store(several(tmp_path / "a.tsds", 6).path, tmp_path / "b.tsds")
    split = tsds.open(tmp_path / "b.tsds")["train"]
    shown = command("stats", tmp_path / "b.tsds").stdout
    for name in ("image", "depth"):
        for moment in ("mean", "std"):
            numbers = "  ".join(f"{value:.4f}" for value in split.statistics[name][moment])
            assert re.search(rf"^  {name} {moment} +{re.escape(numbers)}$", shown, re.MULTILINE)
    for name in ("objects", "faces"):
        assert re.search(rf"^  {name} +{split.statistics[name]['total']}: ", shown, re.MULTILINE)
    for name in split.class_counts:
        assert f"\n  classes of {name}" in shown
    assert re.search(r"^  other-size height +\d", shown, re.MULTILINE)
    found = json.loads(command("stats", tmp_path / "b.tsds", "--json").stdout)["train"]
    assert found == {"rows": 6, "statistics": split.statistics}
    shown = command("info", tmp_path / "b.tsds").stdout
    totals = {name: split.statistics[name]["total"] for name in ("objects", "faces")}
    assert f"{totals['objects']} objects, {totals['faces']} faces\n" in shown
    for title in ("label, by samples", "coarse, by samples", "objects, by objects", "faces, by objects"):
        assert f"classes of {title}\n" in shown
    card = tsds.card(tmp_path / "b.tsds").path.joinpath("README.md").read_text()
    assert re.search(r"\| split \| samples \| objects \| faces \| size \|", card)
    assert f"| {totals['objects']} | {totals['faces']} |" in card


def test_statistics_of_before_fields_had_names_are_not_known(tmp_path: Path) -> None:
    """The form of earlier snapshots is read as no statistics, and gives way to the new one."""
    images = np.arange(6, dtype=np.uint8).repeat(16).reshape(6, 4, 4, 1)
    fields, arrays = {"image": image_field(images), "label": label_field("a", "b")}, {"label": np.arange(6) % 2}
    moments = {"mean": [2.5 / 255], "std": [images.std() / 255], "scale": 255}
    old = {"class_counts": [3, 3], "channels": moments, "sizes": {"distinct": {"4x4": 6}}, "masks": {}}
    path = write_store(tmp_path / "a.tsds", fields, ("train", 6, {"image": images, **arrays}), statistics=old)
    before = tsds.open(path)["train"]
    assert before.statistics == old
    assert before.class_counts == before.unlabelled == {} and before.channel_moments is None
    assert command("stats", path).exit_code == command("info", path).exit_code == 0
    with pytest.raises(tsds.OptionError, match="none in the statistics of the store"):
        tsds.Normalize.from_split(before)
    tsds.editing.filter_store(path, tmp_path / "b.tsds")
    statistics = tsds.open(tmp_path / "b.tsds")["train"].statistics
    assert statistics["label"] == {"class_counts": [3, 3]}
    for name, value in moments.items():
        assert statistics["image"][name] == pytest.approx(value)


def test_a_later_member_is_passed_over() -> None:
    split = tsds.open(VALID / "later-minor.tsds")["train"]
    assert split.statistics["objects"] == 7 and "later" in split.statistics
    assert split.class_counts == {"label": {"a": 1, "b": 1}}
    assert split.statistics_of("label") == {"class_counts": [1, 1]}
    assert split.statistics_of("objects") == split.statistics_of("later") == split.statistics_of("image") == {}
