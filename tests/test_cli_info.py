from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds
from small_stores import VALID, image_field, label_field, tsds, write_store

IMAGES = np.zeros((3, 4, 4, 1), np.uint8)


@pytest.mark.parametrize("store", sorted(p.name for p in VALID.iterdir()))
def test_every_valid_store_is_shown(store: str) -> None:
    done = tsds("info", VALID / store)
    assert done.exit_code == 0
    for part in ("fields", "splits", "in memory (page cache)"):
        assert f"\n{part}\n" in done.stdout
    assert tsds("info", VALID / store, "--json").exit_code == 0


def test_what_is_shown() -> None:
    shown = tsds("info", VALID / "classification.tsds").stdout
    assert "  6 samples · 6.9 kB · memmap · format 1.0\n" in shown
    assert re.search(r"from +pets \(folders\), by make_conformance.py 1, 2025-01-02T03:04:05Z\n", shown)
    assert re.search(r"skipped +truncated-image 1\n", shown)
    assert re.search(r"license +CC0-1.0\n", shown)
    assert re.search(r"cite +Conformance stores", shown)
    assert re.search(r"^  image +uint8 8 x 8 x 3$", shown, re.MULTILINE)
    assert re.search(r"^  label +int64 · 3 classes$", shown, re.MULTILINE)
    assert re.search(r"^  train +6 +samples +[\d.]+ kB +1 shard$", shown, re.MULTILINE)
    assert re.search(r"^  2  dög +2  █{28}$", shown, re.MULTILINE)
    assert re.search(r"^  train/image +1.2 kB +(100|\d{1,2}) %", shown, re.MULTILINE)


def test_objects_are_described_and_counted() -> None:
    shown = tsds("info", VALID / "detection.tsds").stdout
    assert "boxes, labels, keypoints, difficult, truncated, occluded · 2 classes · 3 keypoints\n" in shown
    assert re.search(r"train +4 +samples .* 3 objects$", shown, re.MULTILINE)
    assert re.search(r"^  0  face +1  █{14}$", shown, re.MULTILINE)


def test_splits_stand_beside_each_other(tmp_path: Path) -> None:
    arrays = {"image": IMAGES, "label": np.array([0, 0, 1])}
    fields = {"image": image_field(IMAGES), "label": label_field("cat", "dog")}
    counts = {"label": {"class_counts": [2, 1]}}
    write_store(tmp_path / "s", fields, ("train", 3, arrays), ("val", 3, arrays), statistics=counts)
    shown = tsds("info", tmp_path / "s").stdout
    assert re.search(r"^  #  class +train +val +all$", shown, re.MULTILINE)
    assert re.search(r"^  0  cat +2 +2 +4  █{28}\n  1  dog +1 +1 +2  █{14}$", shown, re.MULTILINE)


def test_of_many_classes_the_most_frequent_are_shown(tmp_path: Path) -> None:
    counts = [*range(1, 31), 500]
    fields = {"image": image_field(IMAGES), "label": label_field(*(f"class-{n:03d}" for n in counts))}
    arrays = {"image": IMAGES, "label": np.array([0, 0, 0])}
    write_store(tmp_path / "s", fields, ("train", 3, arrays), statistics={"label": {"class_counts": counts}})
    shown = tsds("info", tmp_path / "s").stdout
    assert re.findall(r"class-(\d+) ", shown) == [f"{n:03d}" for n in [*range(8, 31), 500]]
    assert "and 7 more with 1 to 7 each; tsds stats --all shows all" in shown


def test_columns_align_whatever_the_script(tmp_path: Path) -> None:
    fields = {"image": image_field(IMAGES), "label": label_field("猫", "dog\x1b[31m\n")}
    arrays = {"image": IMAGES, "label": np.array([0, 0, 1])}
    write_store(tmp_path / "s", fields, ("train", 3, arrays), statistics={"label": {"class_counts": [2, 1]}})
    shown = tsds("info", tmp_path / "s").stdout
    assert "\x1b" not in shown  # a store from elsewhere does not steer the terminal
    assert f"  0  猫{' ' * 13}2  " in shown
    assert "  1  dog\\x1b[31m\\n  1  " in shown


@pytest.mark.parametrize(
    "statistics",
    [
        {"label": "many", "objects": [1], "image": {"mean": 1}, "size": {"height": 3}},
        {"label": {"class_counts": "many"}, "objects": {"total": 1}, "image": {"mean": ["a"], "std": [1]}, "size": []},
        {"label": {"class_counts": [1]}, "objects": {"total": 1, "min": 0, "max": 1, "mean": 1e300}, "size": None},
        {
            "label": {"class_counts": [1, None]},
            "objects": {"class_counts": [True, 2]},
            "image": {"mean": [], "std": []},
        },
        {"size": {"height": {"min": 1, "max": "x", "mean": 2}, "width": {"mean": 9e200}, "distinct": {"a": "b"}}},
        {"class_counts": [2, 1], "objects": {"total": "2"}, "channels": {"mean": [0], "std": [1], "scale": 255}},
    ],
)
@pytest.mark.parametrize("command", ["info", "stats"])
def test_statistics_of_another_form_are_passed_over(command: str, statistics: object, tmp_path: Path) -> None:
    fields = {"image": image_field(IMAGES), "label": label_field("cat", "dog")}
    arrays = {"image": IMAGES, "label": np.array([0, 0, 1])}
    provenance = {"source": 3, "skipped": ["x"], "created": None}
    write_store(tmp_path / "s", fields, ("train", 3, arrays), statistics=statistics, provenance=provenance)
    done = tsds(command, tmp_path / "s")
    assert done.exit_code == 0
    assert tensorstore_ds.open(tmp_path / "s")["train"].class_counts == {}
    assert "█" not in re.sub(r"train/.*", "", done.stdout)


def test_json_has_it_all() -> None:
    found = json.loads(tsds("info", VALID / "classification.tsds", "--json").stdout)
    assert found["layout"] == "memmap"
    assert found["fields"]["label"]["classes"] == ["bird", "cat", "dög"]
    assert found["splits"]["train"]["rows"] == 6
    assert found["splits"]["train"]["shards"] == 1
    assert found["splits"]["train"]["statistics"]["label"] == {"class_counts": [2, 2, 2]}
    assert found["license"] == "CC0-1.0"
    assert found["provenance"]["source"] == "pets"
    assert found["residency"]["train/image"]["nbytes"] == 6 * 8 * 8 * 3 + 24


@pytest.mark.parametrize(
    ("command", "status", "shown"),
    [
        ("info", 0, r"train/image +\d+ B +\?  not available on plan9$"),
        ("warm", 0, r"train/image +\d+ B +\? +\?  not available on plan9$"),
        ("evict", 1, r"^tsds: \S+minimal\.tsds: expected Linux [^\n]+, found plan9\.$"),
    ],
)
def test_elsewhere_residency_is_not_known(
    command: str, status: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "plan9")
    done = tsds(command, VALID / "minimal.tsds")
    assert done.exit_code == status and re.search(shown, done.output, re.MULTILINE)


def test_samples_without_a_label(tmp_path: Path) -> None:
    images = [np.full((4, 4), i, np.uint8) for i in range(5)]
    labels = {"train": [0, None, 1, -1], "test": [None]}
    for splits, shown in (
        (["train"], "  2 unlabelled\n"),
        (["train", "test"], "  3 unlabelled: 2 in train, 1 in test\n"),
    ):
        out = tmp_path / f"{len(splits)}.tsds"
        with tensorstore_ds.Writer(out, classes=["ant", "bee"]) as writer:
            for split in splits:
                for image, label in zip(images, labels[split], strict=False):
                    writer.append(split, image=image, label=label)
        assert shown in tsds("info", out).stdout
