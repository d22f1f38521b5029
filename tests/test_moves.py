"""Samples that were moved or renamed in the source are found by `update` and `append`, and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import class_folders, instructions, tsds as command, voc


def converted(source: Path, out: Path, **options: Any) -> Path:
    tsds.convert(source, out, workers=0, **options)
    return out


def images(root: Path, *names: str, seed: int) -> None:
    for i, name in enumerate(names):
        Image.fromarray(np.random.default_rng([seed, i]).integers(0, 256, (12, 10, 3), np.uint8)).save(root / name)


def moved_source(tmp_path: Path, encoding: str) -> tuple[Path, Path]:
    root = class_folders(tmp_path / "photos/train", "cat", "dog", count=4).parent
    for name in ("cat", "dog"):
        (root / "val" / name).mkdir(parents=True)
        images(root / "val" / name, "v.png", seed=len(name) + ord(name[0]))
    return root, converted(root, tmp_path / "s.tsds", encoding=encoding)


@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_renames_and_moves_are_found_by_their_images(tmp_path: Path, encoding: str) -> None:
    """Another name in another class folder, beside a file that is new."""
    root, path = moved_source(tmp_path, encoding)
    before, (old, new) = tsds.open(path).sha256, ("train/cat/1.png", "train/dog/xx.png")
    (root / old).rename(root / new)
    images(root / "train/dog", "fresh.png", seed=77)
    done = tsds.update(path, root, workers=0)
    assert (
        done.moved_from == {new: old} and done.kept == (old,) and {*done.not_added.keys} == {new, "train/dog/fresh.png"}
    )
    assert [f"such as {new} (stored as {old})" in note for note in done.notes] == [True]
    assert tsds.open(path).sha256 == before
    told = command("append", path, root, "--workers", 0).output
    assert (
        f"note: 1 new sample has the image of a stored sample that the source no longer contains, such as {new}" in told
    )
    assert f"condition: key not in ['{old}']." in told


def test_samples_in_another_split_are_reported(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", "a", "b", "c", "d")
    lists = root / "ImageSets/Main"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("a\nb\nc\n")
    (lists / "val.txt").write_text("d\n")
    path = converted(root, tmp_path / "s.tsds")
    before = tsds.open(path).sha256
    assert tsds.update(path, root, workers=0).other_split.count == 0
    (lists / "train.txt").write_text("a\nc\n")
    (lists / "val.txt").write_text("b\nd\n")
    for grow in (tsds.update, tsds.append):
        done = grow(path, root, workers=0)
        (key,) = done.other_split.keys
        assert key.endswith("b.png") and done.already_there.count == 4
        assert [f"such as {key} (train in the store, val in the source)" in note for note in done.notes] == [True]
    assert tsds.open(path).sha256 == before
    tsds.editing.split_store(path, tmp_path / "t.tsds", {"train": 0.5, "val": 0.5})  # it has splits of its own
    assert tsds.update(tmp_path / "t.tsds", root, workers=0).other_split.count == 0


def test_new_samples_of_a_divided_store_are_told_where_they_go(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", "cat", count=6)
    path = converted(root, tmp_path / "s.tsds", split_into={"train": 0.5, "val": 0.5})
    images(root / "cat", "new.png", "newer.png", seed=5)
    told = command("append", path, root, "--workers", 0, "--dry-run").output
    assert "new samples are not divided: 2 to train. To divide them, give --split-into train=0.5,val=0.5." in told
    done = command("append", path, root, "--workers", 0, "--split-into", "train=0.5,val=0.5")  # as advised
    assert done.exit_code == 0 and "not divided" not in done.output
    assert {name: len(tsds.open(path)[name]) for name in ("train", "val")} == {"train": 4, "val": 4}
    images(root / "cat", "newest.png", seed=6)  # fewer than the splits that are asked for
    shares = {"train": 0.6, "test": 0.4}
    assert tsds.append(path, root, split_into=shares, workers=0).rows == {"train": 5, "val": 4}


def test_moves_of_equal_images_take_time_in_proportion(tmp_path: Path) -> None:
    """Each is compared with the stored samples that have its image, of which there are as many."""

    def work(count: int) -> int:
        folder = tmp_path / f"{count}/train/cat"
        folder.mkdir(parents=True)
        images(folder, "stays.png", seed=count)
        for i in range(count):
            Image.new("RGB", (10, 12)).save(folder / f"{i}.png")
        path = converted(tmp_path / f"{count}", tmp_path / f"{count}.tsds")
        for i in range(count):
            (folder / f"{i}.png").rename(folder / f"new {i}.png")

        def update() -> None:
            done = tsds.update(path, tmp_path / f"{count}", workers=0)
            assert done.moved.count == count and {*done.moved_from.values()} == {"train/cat/0.png"}

        return instructions("append.py", update)

    assert work(200) < 7 * work(50)  # 4 times as many; 16 if each goes through all
