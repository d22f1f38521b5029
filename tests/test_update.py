"""A store that is updated from its source: compared with a conversion of the source, under readers."""

from __future__ import annotations

import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import class_folders, tsds as command, voc
from tensorstore_ds.annex.editing import append as append_module, in_place, rows
from tensorstore_ds.conversion.partial import Partial
from tensorstore_ds.errors import FormatError, OptionError
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.format.statistics import ImageSums

BOXES = (("cat", 1, 2, 8, 9),)


def converted(source: Path, out: Path, **options: Any) -> Path:
    tsds.convert(source, out, tsds.ConvertOptions(**{"workers": 0, "shard_nbytes": 700, **options}))
    return out


def images(root: Path, *names: str, seed: int = 0) -> None:
    for i, name in enumerate(names):
        pixels = np.random.default_rng([seed, i]).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(root / name)


def boxes_of(root: Path, *names: str) -> Path:
    if root.exists():
        for folder in ("Annotations", "JPEGImages"):
            shutil.copytree(
                voc(root.with_name("more"), *names, boxes=BOXES) / folder, root / folder, dirs_exist_ok=True
            )
            shutil.rmtree(root.with_name("more"))
    else:
        voc(root, *names, boxes=BOXES)
    images(root / "JPEGImages", *(f"{name}.png" for name in names))
    return root


def edit(root: Path, name: str, old: str, new: str) -> None:
    path = root / "Annotations" / f"{name}.xml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def values(store: tsds.Store) -> str:
    return repr({name: [store[name][row] for row in range(len(store[name]))] for name in store})


WAYS: list[dict[str, Any]] = [
    {"size": (16, 16)},
    {"size": (16, 16), "layout": "zarr"},
    {"encoding": "jpeg"},
    {"encoding": "source"},
]


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("options", WAYS, ids=["raw", "zarr", "jpeg", "source"])
def test_an_updated_store_is_that_of_the_changed_source(tmp_path: Path, options: dict[str, Any]) -> None:
    root = boxes_of(tmp_path / "voc", *"abcdef")
    path = converted(root, tmp_path / "s.tsds", **options)
    edit(root, "b", "<xmin>1<", "<xmin>3<")
    edit(root, "d", "<name>cat<", "<name>dog<")
    images(root / "JPEGImages", "e.png", seed=7)
    opened, before = tsds.open(path), values(tsds.open(path))
    done = tsds.update(path, root, workers=0)
    keys = [f"JPEGImages/{name}.png" for name in "abcdef"]
    assert done.updated.keys == [keys[1], keys[3], keys[4]]
    assert done.updated_fields == {"objects": 2, "image": 1}
    assert done.already_there.keys == [keys[0], keys[2], keys[5]]
    whole = tsds.open(converted(root, tmp_path / "whole.tsds", **options))
    assert tsds.editing.compare_stores(path, whole.path).is_empty
    assert tsds.verify(path) == []
    updated = tsds.open(path)
    one, other = (each["train"].statistics for each in (updated, whole))
    assert one["size"] == other["size"] and one["objects"].keys() == other["objects"].keys()
    assert {**one["objects"], "class_counts": []} == {
        **other["objects"],
        "class_counts": [],
    }  # classes in another order
    if "size" in options:
        np.testing.assert_allclose(one["image"]["mean"], other["image"]["mean"], rtol=1e-12)
    assert updated["train"].class_counts == whole["train"].class_counts
    assert values(opened) == before  # whoever has it open reads what it was, also from shards not opened before
    assert updated.manifest.provenance["history"][-1]["updated"] == {"objects": 2, "image": 1}
    assert tsds.update(path, root, workers=0).updated.count == 0
    assert tsds.open(path).sha256 == updated.sha256  # nothing is written where nothing has changed
    assert sorted(os.listdir(tmp_path)) == ["s.tsds", "voc", "whole.tsds"]


def test_only_changed_shards_are_written(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"abcdef")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    before = tsds.open(path).manifest.splits["train"]
    edit(root, "c", "<xmin>1<", "<xmin>3<")
    tsds.update(path, root, workers=0)
    after = tsds.open(path).manifest.splits["train"]
    assert (before.numbers, after.numbers, after.replaced) == ([0, 1, 2, 3, 4, 5], [0, 1, 6, 3, 4, 5], (2,))
    assert (path / shard_path("train", 2)).is_dir()  # for readers
    edit(root, "a", "<xmin>1<", "<xmin>3<")
    tsds.update(path, root, workers=0)
    last = tsds.open(path).manifest.splits["train"]
    assert (last.numbers, last.replaced) == ([7, 1, 6, 3, 4, 5], (0,))
    assert not (path / shard_path("train", 2)).exists()
    assert tsds.verify(path) == []


def test_files_above_the_shards_are_read_on(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"abc")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    before = tsds.open(path)
    edit(root, "a", "<xmin>1<", "<xmin>3<")
    tsds.update(path, root, workers=0)
    with before.open_file("train/zarr.json") as file:
        assert file.read() == (path / "train/zarr.json").read_bytes()
    (path / "train/zarr.json").write_text("{}")  # of whatever store this is
    with pytest.raises(FormatError, match="another is in its place"):
        before.open_file("train/zarr.json")


def test_copies_of_an_updated_store_are_the_same(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"abc")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    edit(root, "a", "<xmin>1<", "<xmin>3<")
    tsds.update(path, root, workers=0)
    expected = values(tsds.open(path))
    tsds.pack(path, tmp_path / "s.tsds.zip")
    tsds.copy(path, tmp_path / "copy.tsds")
    tsds.pull(str(path), tmp_path / "part.tsds", fields=["objects", "key"])
    tsds.repack(path, tmp_path / "zarr.tsds", tsds.conversion.RepackOptions(layout="zarr"))
    tsds.editing.filter_store(path, tmp_path / "all.tsds", "width > 0")
    for name in ("s.tsds.zip", "copy.tsds", "zarr.tsds", "all.tsds"):
        assert values(tsds.open(tmp_path / name)) == expected, name
        assert tsds.verify(tmp_path / name) == [], name
    assert tsds.verify(tmp_path / "part.tsds") == []
    reader = Path(__file__).parents[1] / "formats/v1/examples/minimal_reader.py"
    done = subprocess.run(
        [sys.executable, reader, path, "train", "0", "objects"], capture_output=True, text=True, check=True
    )
    assert "[3., 2., 8., 9.]" in done.stdout.replace("  ", " ")


def test_classes_of_other_samples_stay_where_a_new_one_sorts_first(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"abcd")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16), shard_nbytes=10**6)
    edit(root, "b", "<name>cat<", "<name>ant<")
    tsds.update(path, root, workers=0)
    split = tsds.open(path)["train"]
    names = split.fields["objects"].classes
    assert [[names[n] for n in split["objects"][row]["labels"]] for row in range(4)] == [
        ["cat"],
        ["ant"],
        ["cat"],
        ["cat"],
    ]


def test_what_the_source_lacks_is_kept(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"abcd")
    edit(root, "a", "<name>cat</name>", "<name>cat</name><difficult>1</difficult>")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    edit(root, "a", "<difficult>1</difficult>", "")
    edit(root, "c", "<xmin>1<", "<xmin>3<")
    (root / "Annotations/d.xml").unlink()
    (root / "JPEGImages/d.png").unlink()
    boxes_of(root, "e")
    done = tsds.update(path, root, workers=0)
    assert done.updated.keys == ["JPEGImages/c.png"] and done.not_added.keys == ["JPEGImages/e.png"]
    assert done.only_in_store == 1 and done.rows == {"train": 4}
    objects = tsds.open(path)["train"]["objects"]
    assert [objects[row]["difficult"].tolist() for row in range(4)] == [[1], [0], [0], [0]]
    assert tsds.append(path, root, update=True, workers=0).added.keys == ["JPEGImages/e.png"]
    assert tsds.verify(path) == []


def test_a_value_that_is_new_comes_to_all_samples(tmp_path: Path) -> None:
    """And all shards are written anew; whoever has the store open, or pickled, reads on."""
    root = boxes_of(tmp_path / "voc", *"abcd")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    opened, pickled = tsds.open(path), pickle.dumps(tsds.open(path))
    before = values(opened)
    edit(root, "b", "<name>cat</name>", "<name>cat</name><difficult>1</difficult>")
    events: list[tsds.conversion.Progress] = []
    done = tsds.update(path, root, workers=0, progress=events.append)
    note = "adds objects.difficult to the 4 samples of s.tsds: unknown, stored as 0."
    assert note in done.notes and tsds.conversion.Progress("copy", 0, 0, note=note) in events
    objects = tsds.open(path)["train"]["objects"]
    assert [objects[row]["difficult"].tolist() for row in range(4)] == [[0], [1], [0], [0]]
    assert tsds.editing.compare_stores(path, converted(root, tmp_path / "w.tsds", size=(16, 16))).is_empty
    assert values(opened) == before and values(pickle.loads(pickled)) == before  # noqa: S301
    edit(root, "a", "<xmin>1<", "<xmin>3<")
    tsds.update(path, root, workers=0)  # which removes the shards of the first store
    with pytest.raises(FormatError, match="expected the store"):
        values(pickle.loads(pickled))  # noqa: S301
    assert tsds.verify(path) == []


def test_a_loader_with_worker_processes_reads_on(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"abcdefgh")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    expected = tsds.open(path)["train"]["image"][:].copy()
    loader = tsds.DataLoader(tsds.StoreDataset(path, "train"), batch_size=2, num_workers=1)
    batches = iter(loader)
    first = next(batches)["image"].numpy()
    images(root / "JPEGImages", *(f"{name}.png" for name in "abcdefgh"), seed=9)
    tsds.update(path, root, workers=0)
    found = np.concatenate([first, *(batch["image"].numpy() for batch in batches)])
    np.testing.assert_array_equal(found.transpose(0, 2, 3, 1), expected)
    assert not np.array_equal(tsds.open(path)["train"]["image"][:], expected)


def test_labels_texts_and_images_of_class_folders(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", "cat", "dog")
    path = converted(root, tmp_path / "s.tsds")
    names = tmp_path / "names.txt"
    names.write_text("cat = animal\ndog = animal\n")
    done = command("update", path, root, "--class-map", names, "--workers", 0)
    assert done.exit_code == 0, done.output
    assert "updated: 6 samples" in done.output and "label of 6" in done.output
    assert tsds.open(path)["train"].class_counts["label"] == {"cat": 0, "dog": 0, "animal": 6}


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"ab")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    edit(root, "a", "<xmin>1<", "<xmin>3<")
    state = sorted((str(file), file.read_bytes()) for file in path.rglob("*") if file.is_file())
    found = json.loads(command("update", path, root, "--dry-run", "--json", "--workers", 0).stdout)
    assert (found["updated"]["keys"], found["updated_fields"]) == (["JPEGImages/a.png"], {"objects": 1})
    shown = command("update", path, root, "--dry-run", "--workers", 0).output
    assert "updated: 1 sample: JPEGImages/a.png (objects of 1)" in shown and "nothing was changed" in shown
    words = [str(path), str(root), "--workers", "0"]
    last = shlex.split(shown.splitlines()[-1])
    assert last[:1] == ["next:"] and last[2:] == ["update", *words], "the command without --dry-run"
    assert sorted((str(file), file.read_bytes()) for file in path.rglob("*") if file.is_file()) == state
    assert sorted(os.listdir(tmp_path)) == ["s.tsds", "voc"]
    assert command(*last[2:]).exit_code == 0 and f" info {path}" in command("update", *words).output


def test_a_key_that_is_taken_is_an_error_unless_decided(tmp_path: Path) -> None:
    root = boxes_of(tmp_path / "voc", *"ab")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    images(root / "JPEGImages", "b.png", seed=3)
    boxes_of(root, "c")
    state = (path / "zarr.json").read_bytes()
    refused = command("append", path, root, "--workers", 0)
    expected = "found 1 that differ from the stored sample with the same key: JPEGImages/b.png (image). Pass --update"
    assert refused.exit_code == 1 and expected in refused.output and "--key-prefix" in refused.output
    assert (path / "zarr.json").read_bytes() == state
    done = tsds.append(path, root, compare=False, workers=0)
    assert done.added.keys == ["JPEGImages/c.png"] and done.not_compared.count == 2
    assert command("append", path, root, "--key-prefix", "june/", "--workers", 0).exit_code == 0
    split = tsds.open(path)["train"]
    assert [split["key"][row] for row in range(6)] == [
        *(f"JPEGImages/{name}.png" for name in "abc"),
        *(f"june/JPEGImages/{name}.png" for name in "abc"),
    ]
    assert tsds.append(path, root, update=True, workers=0).updated.keys == ["JPEGImages/b.png"]
    again = command("append", path, root, "--workers", 0)
    assert again.exit_code == 0 and "nothing new" in again.output and "already there: 3 samples" in again.output


def test_a_moved_file_and_another_source_are_named(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", "cat", "dog")
    path = converted(root, tmp_path / "s.tsds", size=(16, 16))
    moved = min((root / "cat").iterdir())
    moved.rename(root / "dog" / f"moved{moved.suffix}")
    told = command("update", path, root, "--workers", 0).output
    assert "nothing changed" in told and "nothing new" not in told
    assert (
        f"not added: 1 sample: dog/moved{moved.suffix}" in told
        and f"kept: 1 sample that SRC lacks: cat/{moved.name}\n" in told
    )
    assert "A moved or renamed file has a new key: to drop its old sample, convert SRC again." in told
    told = command("update", path, class_folders(tmp_path / "others", "emu"), "--workers", 0).output
    assert "The store has none of the keys of SRC" in told and "moved or renamed" not in told
    converted(root, tmp_path / "again.tsds", size=(16, 16))  # as advised
    assert len(tsds.open(tmp_path / "again.tsds")["train"]) == len(tsds.open(path)["train"])


def test_files_in_another_class_folder_are_named(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for name in ("cat", "dog"):
        (root / name).mkdir(parents=True)
    images(root / "cat", "one.png", "two's.png", "gone.png", "more.png", seed=1)
    images(root / "dog", "one.png", "other.png", seed=2)
    path = converted(root, tmp_path / "s.tsds")
    (root / "cat" / "two's.png").rename(root / "dog" / "two's.png")
    (root / "cat" / "gone.png").unlink()
    images(root / "dog", "gone.png", seed=3)  # has its name, and is another image
    done = command("update", path, root, "--workers", 0).output
    assert "note: 1 new sample has the image of a stored sample that the source no longer contains, such as " in done
    assert "dog/two's.png (stored as cat/two's.png). The store keeps the old ones. If you moved or" in done
    done = command("append", path, root, "--workers", 0).output
    assert "no longer contains, such as dog/two's.png (stored as cat/two's.png). The store keeps both." in done
    where = done.split("tsds filter, condition: ")[1].splitlines()[0].removesuffix(".")
    tsds.editing.filter_store(path, tmp_path / "new.tsds", where)  # as advised
    split = tsds.open(tmp_path / "new.tsds")["train"]
    assert [split.key(row) for row in range(len(split))].count("dog/two's.png") == 1
    assert len(split) == 7 and "cat/two's.png" not in {split.key(row) for row in range(7)}
    assert "moved" not in command("append", path, root, "--workers", 0).stderr


def test_arguments_in_the_other_order(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", "cat")
    path = converted(root, tmp_path / "s.tsds")
    for name in ("append", "update"):
        done = command(name, root, path)
        assert done.exit_code == 1 and "expected the store first and the source second" in done.output
    with pytest.raises(OptionError, match="Put stores together with tsds merge"):
        tsds.append(path, path)
    with pytest.raises(OptionError, match="`update` compares the samples"):
        tsds.append(path, root, update=True, compare=False)


def test_images_of_another_size_are_advised_about(tmp_path: Path) -> None:
    """The advice leads to success."""
    path = converted(class_folders(tmp_path / "photos", "cat"), tmp_path / "s.tsds")
    (tmp_path / "more/cat").mkdir(parents=True)
    Image.new("L", (50, 33)).save(tmp_path / "more/cat/new.png")
    refused = command("append", path, tmp_path / "more", "--workers", 0)
    height, width, _ = tsds.open(path)["train"]["image"].spec.shape
    assert f"Pass --size {height}x{width} and --color rgb." in refused.output
    done = command("append", path, tmp_path / "more", "--size", f"{height}x{width}", "--color", "rgb", "--workers", 0)
    assert done.exit_code == 0, done.output
    assert tsds.verify(path) == []


def test_images_of_several_sizes_are_refused_before_they_are_converted(tmp_path: Path) -> None:
    path = converted(class_folders(tmp_path / "photos", "cat"), tmp_path / "s.tsds", encoding="raw")
    (tmp_path / "more/cat").mkdir(parents=True)
    for i in range(3):
        Image.new("RGB", (10 + i, 12)).save(tmp_path / "more/cat" / f"new{i}.png")
    stages: list[tsds.conversion.Progress] = []
    with pytest.raises(OptionError, match="found images of several sizes"):
        tsds.append(path, tmp_path / "more", workers=0, progress=stages.append)
    assert not any(stage.note or stage.stage == "copy" or stage.done > 1 for stage in stages)
    assert not (tmp_path / "s.tsds.append").exists()


def test_nothing_new_leaves_nothing_of_an_interrupted_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = boxes_of(tmp_path / "src", *"abcd")
    path = converted(source, tmp_path / "s.tsds")
    with monkeypatch.context() as patch:
        patch.setattr(append_module, "_found", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(Partial, "remove", lambda _: None)  # as if the process had been killed
        with pytest.raises(KeyboardInterrupt):
            tsds.append(path, source, workers=0)
    assert (tmp_path / "s.tsds.append").exists()
    summary = tsds.append(path, source, compare=False, workers=0)
    assert summary.not_compared.count == 4 and not (tmp_path / "s.tsds.append").exists()


def test_classes_of_samples_that_are_not_added(tmp_path: Path) -> None:
    """A class that no sample of the store gets is not added; one that a corrected sample has is."""
    root = tmp_path / "photos"
    for name in ("cat/0", "dog/1", "dog/2"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((5, 4, 3), 9, np.uint8)).save(root / f"{name}.png")
    table = tmp_path / "list.csv"

    def write(*rows: str) -> None:
        table.write_text("\n".join(["path,label", *rows]) + "\n")

    write("cat/0.png,cat", "dog/1.png,dog")
    store, options = tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, images=root)
    tsds.convert(table, store, options)
    write("cat/0.png,cat", "dog/1.png,elk", "dog/2.png,fox")
    summary = tsds.update(store, table, images=root, workers=0)
    assert (summary.updated.count, summary.not_added.count) == (1, 1)
    split = tsds.open(store)["train"]
    assert split.fields["label"].classes == ("cat", "dog", "elk")
    assert split["label"][:].tolist() == [0, 2]
    assert tsds.verify(store) == []
    tsds.append(store, table, images=root, workers=0)
    assert tsds.open(store)["train"].fields["label"].classes == ("cat", "dog", "elk", "fox")


def test_a_box_that_is_dropped_later_is_listed_and_a_sample_that_is_kept_is_not(tmp_path: Path) -> None:
    source, path = boxes_of(tmp_path / "src", "a", "b", "c"), tmp_path / "s.tsds"
    converted(source, path)
    edit(source, "a", "<xmin>1</xmin>", "<xmin>9</xmin>")
    (source / "JPEGImages" / "b.png").write_bytes(b"none")
    summary = tsds.update(path, source, workers=0, on_error="skip")
    assert summary.updated.count == 1 and sum(summary.skipped.values()) == 2

    def listed() -> list[tuple[str, str]]:
        lines = [json.loads(line) for line in (path / "skipped.jsonl").read_text().splitlines()]
        return [(line["where"], line["reason"]) for line in lines]

    reversed_box = (summary.updated.keys[0], "box-reversed")
    assert listed() == [reversed_box]
    assert tsds.open(path).manifest.provenance["skipped"] == {"box-reversed": 1}
    edit(source, "a", "<xmin>9</xmin>", "<xmin>2</xmin>")
    tsds.update(path, source, workers=0, on_error="skip")
    assert listed() == [reversed_box, (summary.updated.keys[0], "mended")]
    assert tsds.open(path).manifest.provenance["skipped"] == {}


def test_only_pixels_that_change_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = boxes_of(tmp_path / "src", *"abcdef")
    path = converted(source, tmp_path / "s.tsds", size=(16, 16))
    images(source / "JPEGImages", "b.png", seed=7)
    fresh = converted(source, tmp_path / "fresh.tsds", size=(16, 16))
    counted = list[int]()

    def of_image(pixels: Any) -> Any:
        counted.append(len(pixels))
        return of_pixels(pixels)

    def count_changed(*arguments: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(ImageSums, "of_pixels", of_image)
            return original(*arguments)

    of_pixels, original = ImageSums.of_pixels, rows.count_changed
    monkeypatch.setattr(in_place, "count_changed", count_changed)
    monkeypatch.setattr(in_place, "count_rows", None)
    assert tsds.update(path, source).updated.count == 1
    assert counted == [1, 1]  # the old and the new ones of the image that changed
    assert tsds.open(path)["train"].statistics == tsds.open(fresh)["train"].statistics


@pytest.mark.parametrize("encoding", ["source", "jpeg"])
def test_statistics_of_replaced_files_are_joined(tmp_path: Path, encoding: str) -> None:
    source = boxes_of(tmp_path / "src", *"abcd")
    path = converted(source, tmp_path / "s.tsds", encoding=encoding)
    before = tsds.open(path)["train"].statistics["image"]
    images(source / "JPEGImages", "b.png", seed=7)
    assert tsds.update(path, source).updated_fields == {"image": 1}
    after = tsds.open(path)["train"].statistics["image"]
    assert after.keys() == before.keys()
    np.testing.assert_allclose(after["mean"], before["mean"], rtol=0.05)
