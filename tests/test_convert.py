"""Conversions end to end: what is stored, what is refused and how, what survives an interruption."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorstore
import zarr
from PIL import Image

import tensorstore_ds as tsds
from stores import Samples, class_folders, detections, interrupted, no_room, store_of
from tensorstore_ds import words
from tensorstore_ds.conversion import result, shard_writer as writer, workers
from tensorstore_ds.conversion.convert import convert_source
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import ArrayField
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.sources.base import Contents, Sample, Source

SKIP = ConvertOptions(on_error="skip", workers=0)
FAIL = ConvertOptions(workers=0)
IMAGE = np.zeros((5, 4, 3), np.uint8)


@pytest.fixture
def folders(tmp_path):
    return class_folders(tmp_path / "src")


def tree(root):
    return {p.relative_to(root).as_posix(): p.stat().st_mtime_ns for p in root.rglob("*")}


def no_store(out):
    """Nothing that looks like a store is left, and nothing at all without finished shards."""
    partial = out.with_name(out.name + ".partial")
    return not out.exists() and not (partial / "store" / "zarr.json").exists()


@pytest.mark.parametrize("count", [0, 2])
def test_pixels_labels_and_keys_are_the_sources(folders, tmp_path, count):
    before = tree(folders)
    summary = tsds.convert(folders, tmp_path / "out.tsds", ConvertOptions(workers=count))
    assert tree(folders) == before
    assert summary.rows == {"train": 8, "test": 8}
    store = tsds.open(tmp_path / "out.tsds")
    assert tsds.verify(store.path) == []
    assert summary.nbytes == store.nbytes
    for name in store:
        split = store[name]
        for i in range(len(split)):
            key = split["key"][i]
            np.testing.assert_array_equal(split["image"][i][:, :, 0], np.asarray(Image.open(folders / key)))
            assert split.fields["label"].classes[split["label"][i]] == key.split("/")[1]
        assert sorted(split["key"][i] for i in range(len(split))) == sorted(
            p.relative_to(folders).as_posix() for p in (folders / name).rglob("*.png")
        )
    pixels = np.asarray(store["train"]["image"]) / 255
    channels = store["train"].statistics["image"]
    np.testing.assert_allclose(channels["mean"], [pixels.mean()])
    np.testing.assert_allclose(channels["std"], [pixels.std()])
    assert store["train"].statistics["label"]["class_counts"] == [4, 4]


def test_statistics_of_jpeg_files_are_those_of_the_pixels_that_were_encoded(tmp_path):
    images = [np.random.default_rng(i).integers(0, 256, (20 + i, 30, 3), np.uint8) for i in range(5)]
    store = store_of(tmp_path / "s.tsds", [{"image": image} for image in images], encoding=tsds.Jpeg(20))
    pixels = np.concatenate([image.reshape(-1, 3) for image in images]) / 255
    np.testing.assert_allclose(store["train"].statistics["image"]["mean"], pixels.mean(0), rtol=1e-12)
    np.testing.assert_allclose(store["train"].statistics["image"]["std"], pixels.std(0), rtol=1e-9)


@pytest.mark.parametrize(("layout", "shard_nbytes"), [("memmap", 2**30), ("zarr", 2**30), ("zarr", 2000)])
def test_every_zarr_reader_reads_the_same(tmp_path, layout, shard_nbytes):
    samples = detections(9)
    store = store_of(tmp_path / "s.tsds", samples, ["a", "b"], layout=layout, shard_nbytes=shard_nbytes)
    root = zarr.open_group(store.path, mode="r")
    assert root.attrs["zarr_conventions"][0]["name"] == "tsds"
    shards = len(store.manifest.splits["train"].shards)
    assert shards == (1 if shard_nbytes == 2**30 else 2)
    for column, name in [
        (store["train"]["image"], "image"),
        (store["train"]["size"], "size"),
        (store["train"]["objects"]["keypoints"], "objects/keypoints"),
        (store["train"]["key"]["bytes"], "key/bytes"),
    ]:
        expected = np.asarray(column)
        parts = [f"train/{i:05d}/{name}" for i in range(shards)]
        np.testing.assert_array_equal(np.concatenate([root[part][...] for part in parts]), expected)
        opened = [
            tensorstore.open(
                {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(store.path / part)}}, open=True
            ).result()
            for part in parts
        ]
        np.testing.assert_array_equal(np.concatenate([a.read().result() for a in opened]), expected)


def test_a_black_image_does_not_move_later_rows(tmp_path):
    samples = [np.full((2, 2), v, np.uint8) for v in (0, 0, 7)]
    store = store_of(tmp_path / "s.tsds", samples)
    file = store.path / "train/00000/image/c/0/0/0/0"
    assert file.read_bytes()[:12] == bytes(8) + bytes([7] * 4)


# --- bad input --------------------------------------------------------------------------------------------------


def dangling(path):
    path.unlink()
    path.symlink_to("nowhere")


#: By the reason: how a file becomes bad.
BAD = {
    "truncated-image": lambda path: path.write_bytes(path.read_bytes()[:60]),
    "not-an-image": lambda path: path.write_text("not an image"),
    "too-many-pixels": lambda path: Image.new("1", (10_000, 10_000)).save(path),
    "unreadable-file": dangling,
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_image_stops_the_conversion_or_is_left_out_and_named(folders, tmp_path, reason):
    key = "train/ant/2.png"
    BAD[reason](folders / key)
    out = tmp_path / "s.tsds"
    with pytest.raises(tsds.SourceError) as caught:
        tsds.convert(folders, out, FAIL)
    assert caught.value.reason == reason
    assert key in str(caught.value)
    assert "\n" not in str(caught.value)
    assert no_store(out)
    summary = tsds.convert(folders, out, SKIP)
    assert summary.rows == {"train": 7, "test": 8}
    assert summary.skipped == {reason: 1}
    line = json.loads((out / "skipped.jsonl").read_text())
    assert (line["where"], line["reason"]) == (key, reason)
    store = tsds.open(out)
    assert tsds.verify(out) == []
    assert store.manifest.provenance["skipped"] == {reason: 1}
    for i in range(7):  # what came after has moved up, whole
        path = folders / store["train"]["key"][i]
        np.testing.assert_array_equal(store["train"]["image"][i][:, :, 0], np.asarray(Image.open(path)))


def test_gaps_are_closed_over_blocks(tmp_path, monkeypatch):
    """Many blocks, most of them with a hole: rows move down by different distances."""
    monkeypatch.setattr("tensorstore_ds.conversion.plan.BLOCK_ROWS", 3)
    monkeypatch.setattr(writer, "COPY_NBYTES", 7)
    samples = [np.full((3, 5), i, np.uint8) for i in range(40)]
    for i in (0, 1, 2, 7, 20, 21, 39):
        samples[i] = np.zeros(0, np.uint8)  # no image
    out = tmp_path / "s.tsds"
    tsds.convert(Samples([samples[3], *samples]), out, SKIP)  # the first sample tells the fields
    store = tsds.open(out)
    expected = [3, *(i for i in range(40) if samples[i].size)]
    assert np.asarray(store["train"]["image"])[:, 0, 0, 0].tolist() == expected
    assert (np.asarray(store["train"]["image"]) == np.array(expected).reshape(-1, 1, 1, 1)).all()
    assert tsds.verify(out) == []


def test_a_split_that_loses_every_sample_stays_as_an_empty_one(folders, tmp_path):
    for path in (folders / "test").rglob("*.png"):
        path.write_text("x")
    summary = tsds.convert(folders, tmp_path / "s.tsds", SKIP)
    assert summary.rows == {"train": 8, "test": 0}
    store = tsds.open(tmp_path / "s.tsds")
    assert np.asarray(store["test"]["image"]).shape == (0, 6, 5, 1)
    assert store["test"]["key"].take([]).offsets.tolist() == [0]
    assert tsds.verify(store.path) == []


def test_nothing_but_bad_files(folders, tmp_path):
    for path in folders.rglob("*.png"):
        path.write_text("x")
    with pytest.raises(tsds.SourceError):
        tsds.convert(folders, tmp_path / "s.tsds", SKIP)
    assert not list(tmp_path.glob("s.tsds*"))


def test_paths_in_errors_are_tidy_but_behind_a_link(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    monkeypatch.chdir(tmp_path / "a")
    for given, shown in ((Path("b", "..", "x"), "a/x"), (Path("..", "link", "..", "x"), "a/../link/../x")):
        with pytest.raises(tsds.SourceError) as caught:
            tsds.convert(given, tmp_path / "o.tsds")
        assert caught.value.problems[0].where == str(tmp_path / shown)
        (tmp_path / "a" / "x").mkdir()
        with pytest.raises(tsds.errors.StoreExistsError, match=f"^{re.escape(str(tmp_path / shown))}:"):
            tsds.convert([np.zeros((2, 2), np.uint8)], given)
        (tmp_path / "a" / "x").rmdir()


def test_bad_boxes_stop_or_are_dropped_and_named(tmp_path):
    samples = detections(4)
    samples[2]["boxes"][1] = [5, 5, 5, 9]
    with pytest.raises(
        tsds.SourceError, match=r'train/00002: object 2 of 2: the box .* has no area.*`on_error="skip"`'
    ):
        store_of(tmp_path / "s.tsds", samples, ["a", "b"])
    store = store_of(tmp_path / "s.tsds", samples, ["a", "b"], on_error="skip")
    assert len(store["train"]) == 4
    assert np.diff(store["train"]["objects"].offsets).tolist() == [0, 1, 1, 3]
    assert json.loads((store.path / "skipped.jsonl").read_text())["reason"] == "box-empty"
    np.testing.assert_allclose(store["train"]["objects"][2]["boxes"][0], samples[2]["boxes"][0], rtol=1e-6)


def test_where_a_store_must_not_go(folders, tmp_path):
    with pytest.raises(tsds.OptionError, match="inside the source"):
        tsds.convert(folders, folders / "s.tsds", FAIL)
    with pytest.raises(tsds.OptionError, match="lies inside it"):
        tsds.convert(folders, tmp_path, FAIL)
    assert not (folders / "s.tsds.partial").exists()


# --- what goes wrong on the way ---------------------------------------------------------------------------------


def test_a_file_that_vanishes_during_the_run(folders, tmp_path):
    def vanish(progress):
        if progress.done:
            (folders / "test/bee/3.png").unlink(missing_ok=True)

    options = ConvertOptions(workers=0, shard_nbytes=60)
    with pytest.raises(tsds.SourceError, match=r"test/bee/3\.png.*cannot be read") as caught:
        tsds.convert(folders, tmp_path / "s.tsds", options, progress=vanish)
    assert caught.value.reason == "unreadable-file"
    assert no_store(tmp_path / "s.tsds")


def test_a_full_disk(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", no_room)
    with pytest.raises(tsds.errors.ConversionError, match=r"the disk is full.*run the same command again"):
        tsds.convert(folders, tmp_path / "s.tsds", FAIL)
    assert not list(tmp_path.glob("s.tsds*"))


def test_too_little_room_is_said_beforehand(folders, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(tsds.errors.ConversionError, match=r"free on this disk, found 100 B\. .*smaller `size`"):
        tsds.convert(folders, tmp_path / "s.tsds", FAIL)


def test_room_for_the_shards_that_are_missing_is_enough(folders, tmp_path, monkeypatch):
    options = ConvertOptions(fit=tsds.Fit((6, 5)), shard_nbytes=60, workers=0)  # two images
    interrupted(folders, tmp_path / "s.tsds", 6, options)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=13 * 30))
    assert tsds.convert(folders, tmp_path / "s.tsds", options).resumed == 2


def test_a_file_of_the_far_future(folders, tmp_path):
    for path in folders.rglob("*.png"):
        with contextlib.suppress(OverflowError, OSError):  # its file system may have no such time
            os.utime(path, (0, 1e10))
    assert sum(tsds.convert(folders, tmp_path / "s.tsds", FAIL).rows.values())


class Sparse(Source):
    """A plug-in's source, whose second sample has neither objects nor a label."""

    name = "sparse"
    is_audited = False
    score: Any = np.int64(3)

    def scan(self):
        objects = ObjectsField.of("boxes", "labels", "polygons", classes=("ant",))
        fields = {"objects": objects, "label": LabelField(classes=("ant",)), "score": ArrayField(ArraySpec("int64"))}
        return Contents(fields, {"train": range(2)})

    def read(self, split, reference):
        given = {"boxes": np.array([[1.0, 1, 3, 3]]), "labels": np.zeros(1, np.int64), "polygons": [np.ones((3, 2))]}
        first, arrays = reference == 0, {"score": np.asarray(self.score)}
        return Sample(self.key(split, reference), IMAGE, 0 if first else None, given if first else None, arrays=arrays)


def test_a_source_may_leave_out_objects_and_labels(tmp_path):
    convert_source(Sparse(tmp_path, FAIL), tmp_path / "s.tsds", FAIL, lambda event: None)
    split = tsds.open(tmp_path / "s.tsds")["train"]
    assert split["label"][:].tolist() == [0, -1] and split["objects"].offsets.tolist() == [0, 1, 1]
    assert split["objects"][1]["polygons"] == [] and tsds.verify(tmp_path / "s.tsds") == []


@pytest.mark.parametrize("score", [0.5, [3], np.float32(3)])
def test_an_array_that_is_not_of_its_field_is_refused(tmp_path, score):
    source = Sparse(tmp_path, FAIL)
    source.score = score
    with pytest.raises(tsds.SourceError, match=r"train/00000: expected score to be int64 \(\), found (float|int)"):
        convert_source(source, tmp_path / "s.tsds", FAIL, lambda event: None)


class Deadly(Samples):
    """A sample that takes its process along."""

    def __getitem__(self, index):
        if index == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def test_a_dead_worker_is_an_error_and_not_a_hang(tmp_path):
    samples = Deadly([np.zeros((4, 4), np.uint8)] * 10)
    with pytest.raises(tsds.errors.ConversionError, match="a worker process died"):
        tsds.convert(samples, tmp_path / "s.tsds", ConvertOptions(workers=2))
    assert not list(tmp_path.glob("s.tsds*"))


def test_an_exception_in_the_loop_leaves_no_process(folders, tmp_path):
    def interrupt(progress):
        if progress.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.convert(folders, tmp_path / "s.tsds", ConvertOptions(workers=2), progress=interrupt)
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        commands = [Path(f"/proc/{child}/cmdline").read_text() for child in children.read_text().split()]
        # multiprocessing keeps a process of its own, once a test in this one has spawned
        assert [c for c in commands if "resource_tracker" not in c] == []
    assert no_store(tmp_path / "s.tsds")


def test_workers_of_a_threaded_process_are_programs(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(workers.threading, "active_count", lambda: 2)
    assert workers.start_method() == "program"
    tsds.convert(folders, tmp_path / "s.tsds", ConvertOptions(workers=1))
    assert tsds.verify(tmp_path / "s.tsds") == []


# --- interruption and resumption --------------------------------------------------------------------------------

IN_SHARDS = ConvertOptions(workers=0, shard_nbytes=60)  # two images of 6x5


def test_finished_shards_are_used_again(folders, tmp_path):
    out = tmp_path / "s.tsds"
    interrupted(folders, out, 9, IN_SHARDS)
    assert no_store(out)
    kept = {p: p.stat().st_mtime_ns for p in (tmp_path / "s.tsds.partial/store").rglob("c/*") if p.is_file()}
    summary = tsds.convert(folders, out, IN_SHARDS)
    assert summary.resumed == 4
    assert kept
    for path, written in kept.items():
        assert (out / path.relative_to(tmp_path / "s.tsds.partial/store")).stat().st_mtime_ns == written
    assert not (tmp_path / "s.tsds.partial").exists()
    assert tsds.verify(out) == []
    tsds.convert(folders, tmp_path / "whole.tsds", IN_SHARDS)
    whole = tsds.open(tmp_path / "whole.tsds").manifest
    assert tsds.open(out).manifest.splits == whole.splits


def test_other_options_are_refused_with_what_differs(folders, tmp_path):
    interrupted(folders, tmp_path / "s.tsds", 9, IN_SHARDS)
    options = ConvertOptions(workers=0, shard_nbytes=60, fit=tsds.Fit((6, 5), "crop"))
    with pytest.raises(tsds.OptionError, match=r"`fit` was pad, is now crop; `size` was not given, is now \(6, 5\)"):
        tsds.convert(folders, tmp_path / "s.tsds", options)
    assert tsds.convert(folders, tmp_path / "s.tsds", IN_SHARDS).resumed == 4


def test_a_file_more_or_less_is_noticed(folders, tmp_path):
    interrupted(folders, tmp_path / "s.tsds", 9, IN_SHARDS)
    (folders / "train/ant/1.png").unlink()
    assert tsds.convert(folders, tmp_path / "s.tsds", IN_SHARDS).rows == {"train": 7, "test": 8}
    split = tsds.open(tmp_path / "s.tsds")["train"]
    for i in range(7):
        expected = np.asarray(Image.open(folders / split["key"][i]))
        np.testing.assert_array_equal(split["image"][i][:, :, 0], expected)


def test_after_a_bad_file_the_advice_works(folders, tmp_path):
    """Stopped at a bad file with shards finished, the same command with --on-error skip goes on from them."""
    (folders / "train/bee/3.png").write_text("x")
    out = tmp_path / "s.tsds"
    with pytest.raises(tsds.SourceError):
        tsds.convert(folders, out, IN_SHARDS)
    summary = tsds.convert(folders, out, ConvertOptions(workers=0, shard_nbytes=60, on_error="skip"))
    assert summary.resumed == 3
    assert summary.skipped == {"not-an-image": 1}


def test_a_shard_that_skipped_is_not_used_where_nothing_may_be_skipped(folders, tmp_path):
    (folders / "train/ant/0.png").write_text("x")
    interrupted(folders, tmp_path / "s.tsds", 9, ConvertOptions(workers=0, shard_nbytes=60, on_error="skip"))
    with pytest.raises(tsds.SourceError, match=r"train/ant/0\.png"):
        tsds.convert(folders, tmp_path / "s.tsds", IN_SHARDS)


@pytest.mark.slow
def test_killed_with_its_workers(tmp_path):
    """SIGKILL: `out` is not there, no process stays, and the next run completes it."""
    source = class_folders(tmp_path / "src", per_class=30)
    out = tmp_path / "s.tsds"
    code = (
        "import sys, tensorstore_ds as t\n"
        "o = t.ConvertOptions(workers=2, shard_nbytes=300)\n"
        "p = lambda p: (print(p.done, flush=True), sys.stdin.read(1))\n"
        f"t.convert({str(source)!r}, {str(out)!r}, o, progress=p)"
    )
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    while int(run.stdout.readline()) < 60:
        run.stdin.write("x")
        run.stdin.flush()
    children = psutil.Process(run.pid).children()
    run.kill()
    run.communicate()
    assert len(children) == 2
    assert psutil.wait_procs(children, timeout=20)[1] == [], "a worker outlived its parent"
    assert not out.exists()
    summary = tsds.convert(source, out, ConvertOptions(workers=0, shard_nbytes=300))
    assert summary.rows == {"train": 60, "test": 60} and summary.resumed > 0
    assert tsds.verify(out) == []


@pytest.mark.parametrize("step", ["rename of the store", "look at the result"])
def test_killed_while_it_commits(folders, tmp_path, step, monkeypatch):
    """Stopped just before the store appears: the next run needs no sample to be converted again."""
    stopped = "Partial.put_store" if step == "rename of the store" else "open_store"

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"tensorstore_ds.conversion.build.{stopped}", stop)
        with pytest.raises(KeyboardInterrupt):
            tsds.convert(folders, tmp_path / "s.tsds", IN_SHARDS)
    assert not (tmp_path / "s.tsds").exists()
    summary = tsds.convert(folders, tmp_path / "s.tsds", IN_SHARDS)
    assert summary.resumed == 8
    assert tsds.verify(tmp_path / "s.tsds") == []


def test_torchvision_data_sets(tmp_path):
    datasets = pytest.importorskip("torchvision.datasets")
    folder = class_folders(tmp_path / "src")
    source = {"train": datasets.ImageFolder(folder / "train"), "test": datasets.ImageFolder(folder / "test")}
    tsds.convert(source, tmp_path / "s.tsds", ConvertOptions(workers=0, color="gray"))
    store = tsds.open(tmp_path / "s.tsds")
    assert store["train"].fields["label"].classes == ("ant", "bee")
    image, label = source["test"][5]
    np.testing.assert_array_equal(store["test"]["image"][5][:, :, 0], np.asarray(image.convert("L")))
    assert store["test"]["label"][5] == label


@pytest.mark.parametrize("encoding", ["raw", "jpeg", "source"])
def test_an_estimate_is_from_headers(folders, tmp_path, encoding):
    estimate = tsds.estimate(folders, ConvertOptions(workers=1, encoding=encoding))
    tsds.convert(folders, tmp_path / "s.tsds", ConvertOptions(workers=0, encoding=encoding))
    store = tsds.open(tmp_path / "s.tsds")
    assert estimate.rows == {"train": 8, "test": 8}
    assert estimate.classes == ("ant", "bee")
    assert estimate.sizes == {"6x5": 16}
    assert estimate.fields == store.manifest.fields
    assert estimate.fits
    data = [p.stat().st_size for p in store.path.rglob("*") if p.is_file() and p.suffix != ".json"]
    others = {each.options["encoding"]: each.nbytes for each in estimate.encodings}
    for found in (estimate.nbytes["memmap"], others[encoding]):  # a file has 24 to 32 bytes beside its rows
        assert sum(data) - 34 * len(data) <= found < sum(data)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("value", ["abc", "-1", "1" * 12, "1.5", " 1"])
def test_a_wrong_source_date_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    class_folders(tmp_path / "src")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", value)
    with pytest.raises(tsds.OptionError, match="SOURCE_DATE_EPOCH: expected whole seconds since 1970"):
        tsds.convert(tmp_path / "src", tmp_path / "s.tsds")
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_a_store_much_larger_than_its_files_is_told(tmp_path, monkeypatch):
    (tmp_path / "photos/cat").mkdir(parents=True)
    nbytes = 0
    for i in range(6):
        path = tmp_path / "photos/cat" / f"{i}.jpg"
        Image.new("RGB", (64, 48), (i, 90, 200)).save(path)
        nbytes += path.stat().st_size

    def notes(out, **options):
        done = tsds.convert(tmp_path / "photos", tmp_path / out, tsds.ConvertOptions(shard_nbytes=30_000, **options))
        return [note for note in done.notes if "of its images" in note]

    assert notes("small.tsds", workers=0) == []
    monkeypatch.setattr(result, "LARGER_NBYTES", 1000)
    (note,) = notes("raw.tsds", workers=0)
    stored = sum(shard.nbytes for shard in tsds.open(tmp_path / "raw.tsds").manifest.splits["train"].shards)
    expected = f"the store has {words.size(stored)}, {stored / nbytes:.1f}x the {words.size(nbytes)} of its images"
    assert note.startswith(expected)
    assert notes("again.tsds", workers=2) == [note]
    monkeypatch.setattr(result, "LARGER_NBYTES", 20_000)
    assert notes("source.tsds", workers=0, encoding="source") == []  # as advised
    assert notes("smaller.tsds", workers=0, size=(24, 32)) == []
