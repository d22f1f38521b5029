from __future__ import annotations

import json
import re
from pathlib import Path

from small_stores import VALID, class_folders, tsds


def test_what_is_shown() -> None:
    shown = tsds("stats", VALID / "classification.tsds").stdout
    statistics = json.loads(tsds("stats", VALID / "classification.tsds", "--json").stdout)["train"]["statistics"]
    assert shown.startswith("train  6 samples\n")
    for name in ("mean", "std"):
        numbers = "  ".join(f"{v:.4f}" for v in statistics["image"][name])
        assert re.search(rf"^  {name} +{re.escape(numbers)}$", shown, re.MULTILINE)
    assert "by channel, of values divided by 255\n" in shown
    assert re.search(r"height +8 to 1,080, 266.7 on average, in the source$", shown, re.MULTILINE)
    assert "8x8 (2), 480x640 (1), " in shown
    assert re.search(r"^    1  cat +2  33.3 %  █+$", shown, re.MULTILINE)


def test_objects_are_counted() -> None:
    shown = tsds("stats", VALID / "detection.tsds").stdout
    assert re.search(r"^  objects +3: 0 to 2 per image, 0.75 on average$", shown, re.MULTILINE)
    assert re.search(r"^    1  cat +2  66.7 %  █{28}$", shown, re.MULTILINE)


def test_one_split() -> None:
    store = VALID / "shards.tsds"
    assert re.findall(r"^([\w-]+)  \d+ sample", tsds("stats", store).stdout, re.MULTILINE) == ["train", "val", "test-0"]
    assert tsds("stats", store, "--split", "val").stdout.startswith("val  0 samples")
    assert list(json.loads(tsds("stats", store, "--split", "val", "--json").stdout)) == ["val"]


def test_samples_without_a_label() -> None:
    assert tsds("stats", VALID / "unlabelled.tsds").stdout.count("    1 unlabelled\n") == 1
    assert "unlabelled" not in tsds("stats", VALID / "classification.tsds").stdout


def test_many_classes_are_cut(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "src", *(f"c{i:02d}" for i in range(35)), count=1, size=(2, 2))
    (source / "c34" / "more.png").write_bytes((source / "c34" / "0.png").read_bytes())
    tsds("convert", source, tmp_path / "s.tsds", "--workers", 0)
    shown = tsds("stats", tmp_path / "s.tsds").stdout
    assert re.findall(r" (c\d\d) ", shown) == [*(f"c{i:02d}" for i in range(29)), "c34"]
    assert shown.endswith("... and 5 more; --all shows all\n")
    shown = tsds("stats", tmp_path / "s.tsds", "--all").stdout
    assert re.findall(r" (c\d\d) ", shown) == [f"c{i:02d}" for i in range(35)]
