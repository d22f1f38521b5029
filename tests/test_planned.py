"""A conversion by several processes: the same bytes as by one, whatever the tasks; and what is refused, and how."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from mask_sources import write_folders
from mds_files import COLUMNS, row, write_mds
from stores import class_folders, png_bytes, store_of
from tensorstore_ds.annex.clusters.tasks import ranges
from tensorstore_ds.conversion import plain
from tensorstore_ds.format.arrays import dump_json

OPTIONS = tsds.ConvertOptions(workers=0, shard_nbytes=100)
JPEG = {"encoding": "jpeg", "size": (8, 8), "color": "rgb"}
_BOX = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>7</xmax><ymax>8</ymax></bndbox></object>"


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "src")


def contents(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def by_one(source: Path, tmp_path: Path, options: tsds.ConvertOptions = OPTIONS) -> dict[str, bytes]:
    tsds.convert(source, tmp_path / "one.tsds", options)
    return contents(tmp_path / "one.tsds")


def run_all(out: Path, tasks: int) -> None:
    for task in reversed(range(tasks)):
        tsds.clusters.convert_task(out, task, tasks)


# --- every format: what a scan has found comes through the plan -----------------------------------------------------


def _voc(path: Path) -> tsds.ConvertOptions:
    for i, names in enumerate([("cat",), ("dog", "cat"), (), ("bird",)]):
        _image(path / "JPEGImages" / f"{i}.png", 12, 9 + i)
        (path / "Annotations").mkdir(exist_ok=True)
        text = "".join(_BOX.format(name) for name in names)
        (path / "Annotations" / f"{i}.xml").write_text(f"<annotation><filename>{i}.png</filename>{text}</annotation>")
    return OPTIONS


def _imglab(path: Path) -> tsds.ConvertOptions:
    images = ""
    for i in range(5):
        _image(path / f"{i}.png", 20, 20)
        part = f"<part name='{i % 2}' x='3' y='{4 + i}'/>"
        images += f"<image file='{i}.png'><box top='1' left='2' width='9' height='8'>{part}</box></image>"
    (path / "faces.xml").write_text(f"<dataset><images>{images}</images></dataset>")
    return OPTIONS


def _coco(path: Path) -> tsds.ConvertOptions:
    images, annotations = [], []
    for i in range(5):
        _image(path / f"{i}.png", 20, 20)
        images.append({"id": f"i{i}", "file_name": f"{i}.png", "height": 20, "width": 20})
        square = {"bbox": [1, 2, 9, 8], "segmentation": [[1, 2, 10, 2, 10, 10]], "keypoints": [1, 2, 2]}
        annotations += [{"id": 9 * i + k, "image_id": f"i{i}", "category_id": 7, **square} for k in range(i)]
    category = {"id": 7, "name": "cat", "keypoints": ["nose"]}
    data = {"images": images, "annotations": annotations, "categories": [category]}
    (path / "labels.json").write_text(json.dumps(data))
    return OPTIONS


def _yolo(path: Path) -> tsds.ConvertOptions:
    for i in range(5):
        _image(path / "images" / f"{i}.png", 20, 30)
        (path / "labels").mkdir(exist_ok=True)
        rows = "1 0.5 0.5 0.2 0.2 0.4 0.4 2\n" * (i % 3)
        (path / "labels" / f"{i}.txt").write_text(rows)
    (path / "data.yaml").write_text("train: images\nnames: [a, b]\nkpt_shape: [1, 3]\n")
    return OPTIONS


def _labelme(path: Path) -> tsds.ConvertOptions:
    for i in range(5):
        _image(path / f"{i}.png", 20, 30)
        box = {"label": "ab"[i % 2], "shape_type": "rectangle", "points": [[1, 2], [9, 8]]}
        ring = {"label": "c", "shape_type": "polygon", "points": [[1, 2], [9, 2], [9, i + 5]]}
        data = {"version": "5", "shapes": [box, ring][: i % 3], "imagePath": f"{i}.png"}
        (path / f"{i}.json").write_text(json.dumps(data))
    return OPTIONS


def _cvat(path: Path) -> tsds.ConvertOptions:
    images = ""
    for i in range(5):
        _image(path / "images" / f"{i}.png", 20, 30)
        shape = f"<polygon label='{'ab'[i % 2]}' points='1,2;9,2;9,{i + 5}' occluded='1'/>"
        images += f"<image name='{i}.png' width='30' height='20'>{shape}</image>"
    (path / "annotations.xml").write_text(f"<annotations>{images}</annotations>")
    return OPTIONS


def _labelstudio(path: Path) -> tsds.ConvertOptions:
    tasks = []
    for i in range(5):
        _image(path / f"{i}.png", 20, 30)
        corners = {"points": [[10, 10], [50, 10], [50, 40 + i]], "polygonlabels": ["ab"[i % 2]]}
        size = {"original_width": 30, "original_height": 20}
        results = [{"id": "r", "type": "polygonlabels", "value": corners, **size}][: i % 3]
        tasks.append(
            {"id": i, "data": {"image": f"/data/upload/1/{i}.png"}, "annotations": [{"id": i, "result": results}]}
        )
    (path / "export.json").write_text(json.dumps(tasks))
    return OPTIONS


def _list(path: Path) -> tsds.ConvertOptions:
    rows = ["path,label,split"]
    for i in range(8):
        _image(path / f"{i}.png", 6, 6)
        rows.append(f"{i}.png,{'ab'[i % 2]},{'train' if i < 6 else 'test'}")
    (path / "all.csv").write_text("\n".join(rows))
    return OPTIONS


def _arrays(path: Path) -> tsds.ConvertOptions:
    path.mkdir()
    rng = np.random.default_rng(0)
    np.savez_compressed(path / "train.npz", x=rng.integers(0, 256, (9, 5, 5), np.uint8), y=np.arange(9) % 3)
    np.savez_compressed(path / "test.npz", x=rng.integers(0, 256, (4, 5, 5), np.uint8), y=np.arange(4) % 3)
    return OPTIONS


def _pts(path: Path) -> tsds.ConvertOptions:
    path.mkdir(parents=True)
    for i in range(5):
        _image(path / f"{i}.png", 12, 10)
        (path / f"{i}.pts").write_text(f"version: 1\nn_points: 2\n{{\n{i + 5} 3\n4 5.5\n}}\n")
    return OPTIONS


def _dota(path: Path) -> tsds.ConvertOptions:
    (path / "labelTxt").mkdir(parents=True)
    for i in range(5):
        _image(path / f"images/{i}.png", 12, 10)
        (path / f"labelTxt/{i}.txt").write_text(f"gsd:0.1\n1 2 {i + 5} 3 8 8 0 6 ship {i % 2}\n")
    return OPTIONS


def _lmdb(path: Path) -> tsds.ConvertOptions:
    lmdb = pytest.importorskip("lmdb")
    for name, count in {"train": 7, "val": 3}.items():
        (path / name).mkdir(parents=True)
        with lmdb.open(str(path / name)) as env, env.begin(write=True) as transaction:
            for i in range(count):
                pixels = np.full((8, 9, 3), i, np.uint8)
                transaction.put(f"{'ab'[i % 2]}/{i}.png".encode(), png_bytes(pixels))
    return OPTIONS


def _hdf5(path: Path) -> tsds.ConvertOptions:
    h5py = pytest.importorskip("h5py")
    path.mkdir(parents=True)
    with h5py.File(path / "a.h5", "w") as file:
        pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 10, 3), np.uint8)
        file.create_dataset("train/images", data=pixels, chunks=(4, 8, 10, 3), compression="gzip")
        file.create_dataset("val/images", data=pixels[:4])
        file["train/labels"], file["val/labels"] = ["cat", "dog", "cat"] * 3, ["dog", "cat"] * 2
    return OPTIONS


def _mds(path: Path) -> tsds.ConvertOptions:
    write_mds(path, COLUMNS, [row(0), row(1)], [row(2)])
    return OPTIONS


def _mds(path: Path) -> tsds.ConvertOptions:
    write_mds(path / "train", COLUMNS, [row(i) for i in range(6)], compression="gz")
    write_mds(path / "val", COLUMNS, [row(i) for i in range(3)])
    return OPTIONS


def _masks(path: Path) -> tsds.ConvertOptions:
    write_folders(path)
    return OPTIONS


def _divided(path: Path) -> tsds.ConvertOptions:
    class_folders(path)
    shutil.rmtree(path / "test")
    return replace(OPTIONS, split_into={"train": 0.7, "val": 0.3}, seed=5, classes=("bee", "ant"))


def _mixed(path: Path) -> tsds.ConvertOptions:
    """Images of differing sizes and colors, which a conversion by one process finds out on its way."""
    for i in range(6):
        (path / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        pixels = np.full((8 + i, 7, 3)[: 2 + (i != 4)], 30 * i, np.uint8)
        Image.fromarray(pixels).save(path / "ab"[i % 2] / f"{i}.png")
    return OPTIONS


def _image(path: Path, height: int, width: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(path.name.encode()))
    path.write_bytes(png_bytes(rng.integers(0, 256, (height, width, 3), np.uint8)))


def _exported(path: Path, to: str) -> tsds.ConvertOptions:
    rng = np.random.default_rng(5)
    images = rng.integers(0, 256, (5, 20, 30, 3), np.uint8)
    boxes = [{"boxes": [[1, 2, 9, 9 + i]], "labels": [i % 2]} for i in range(5)]
    samples = [{"image": image, "objects": each} for image, each in zip(images, boxes, strict=True)]
    store = store_of(path.with_name("written.tsds"), samples, ("a", "b"))
    tsds.export(store.path, path, to)
    shutil.rmtree(store.path)
    return OPTIONS


def _labels_in_names(path: Path) -> tsds.ConvertOptions:
    path.mkdir()
    for i in range(6):
        (path / f"{'cat' if i % 2 else 'dog'}_{i}.png").write_bytes(png_bytes(np.full((8, 8, 3), i, np.uint8)))
    return replace(OPTIONS, label_from="^([a-z]+)_")


_webdataset, _parquet = partial(_exported, to="webdataset"), partial(_exported, to="parquet")


@pytest.mark.parametrize(
    "make",
    [
        _voc,
        _imglab,
        _coco,
        _yolo,
        _labelme,
        _cvat,
        _labelstudio,
        _list,
        _webdataset,
        _parquet,
        _pts,
        _dota,
        _hdf5,
        _lmdb,
        _mds,
        _arrays,
        _masks,
        _divided,
        _mixed,
        _labels_in_names,
    ],
)
@pytest.mark.parametrize("changes", [{}, pytest.param(JPEG, marks=[pytest.mark.slow, pytest.mark.drawn(4)])])
def test_every_format(
    make: Callable[[Path], tsds.ConvertOptions], changes: dict[str, Any], tmp_path: Path, out: Path
) -> None:
    options = replace(make(tmp_path / "src"), **changes)
    planned = tsds.clusters.plan(tmp_path / "src", out, options, tasks=3)
    assert planned.is_new and len(planned.shards) > 2
    run_all(out, 3)
    summary = tsds.clusters.commit(out)
    assert contents(out) == by_one(tmp_path / "src", tmp_path, options)
    assert tsds.verify(out) == []
    assert sum(summary.rows.values()) == planned.samples
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.tsds", "one.tsds", "src"]


@pytest.mark.parametrize(("tasks", "workers"), [(1, 0), (1, 2), (2, 1), (7, 0), (100, 0)])
def test_any_number_of_tasks_and_workers(folders: Path, tmp_path: Path, out: Path, tasks: int, workers: int) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    done = [tsds.clusters.convert_task(out, task, tasks, workers=workers) for task in range(tasks)]
    assert sum(each.samples for each in done) == 16
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


def test_bad_samples_are_skipped_and_named_as_by_one(folders: Path, tmp_path: Path, out: Path) -> None:
    next(folders.rglob("*.png")).write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    (folders / "notes.doc").write_text("beside the images")
    options = replace(OPTIONS, on_error="skip")
    tsds.clusters.plan(folders, out, options)
    run_all(out, 4)
    summary = tsds.clusters.commit(out)
    assert sum(summary.skipped.values()) == 1 and len(summary.left_out) == 1
    assert contents(out) == by_one(folders, tmp_path, options)


def test_a_bad_sample_stops_its_task_alone(folders: Path, tmp_path: Path, out: Path) -> None:
    bad = sorted(folders.rglob("*.png"))[-1]
    good = bad.read_bytes()
    planned = tsds.clusters.plan(folders, out, OPTIONS)
    bad.write_bytes(good[:40])
    failed = []
    for task in range(planned.tasks):
        try:
            tsds.clusters.convert_task(out, task)
        except tsds.SourceError as error:
            failed.append(task)
            assert bad.name in str(error)
    assert len(failed) == 1
    with pytest.raises(tsds.errors.UnfinishedError, match="shards are missing") as missing:
        tsds.clusters.commit(out)
    assert (missing.value.tasks, missing.value.of) == (str(failed[0]), planned.tasks)
    bad.write_bytes(good)
    assert tsds.clusters.convert_task(out, failed[0]).shards == 1
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


# --- processes that die, and that do the same work --------------------------------------------------------------------


def process(*words: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tsds_cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Images that take a second or so to convert."""
    rng = np.random.default_rng(0)
    for i in range(60):
        path = tmp_path / "many" / "ab"[i % 2] / f"{i:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (200, 200, 3), np.uint8)).save(path)
    return tmp_path / "many"


def test_processes_at_the_same_shards_and_one_that_is_killed(many: Path, tmp_path: Path, out: Path) -> None:
    options = tsds.ConvertOptions(shard_nbytes=10**6, layout="zarr", workers=1)
    tsds.clusters.plan(many, out, options)
    several = [process("convert", out, "--task", "0/1") for _ in range(3)]
    deadline = time.monotonic() + 120
    while not any((tmp_path / "o.tsds.partial" / "journal").glob("*.json")):
        assert time.monotonic() < deadline and all(each.poll() is None for each in several)
        time.sleep(0.01)
    several[0].send_signal(signal.SIGKILL)
    for each in several[1:]:
        _, errors = each.communicate(timeout=60)
        assert (each.returncode, errors) == (0, b"")
    several[0].communicate()
    tsds.clusters.commit(out)
    assert contents(out) == by_one(many, tmp_path, options)
    assert not (tmp_path / "o.tsds.partial").exists()


@pytest.mark.slow
def test_two_plans_and_two_commits_at_once(folders: Path, tmp_path: Path, out: Path) -> None:
    words = ("plan", folders, out, "--shard-size", "100", "--workers", "0")
    ends = [(each.communicate()[1], each.returncode) for each in [process(*words) for _ in range(3)]]
    assert any(code == 0 for _, code in ends)
    for errors, code in ends:
        assert code == 0 or b"another conversion is writing here" in errors
    tsds.clusters.convert_task(out, 0, 1)
    ends = [(each.communicate()[1], each.returncode) for each in [process("commit", out) for _ in range(3)]]
    assert sorted(code for _, code in ends) == [0, 1, 1]
    for errors, code in ends:
        assert code == 0 or b"found a store" in errors or b"another conversion" in errors or b"no plan" in errors
    assert contents(out) == by_one(folders, tmp_path)


def test_a_scratch_folder_on_another_disk(folders: Path, tmp_path: Path, out: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other disk: /dev/shm")
    tsds.clusters.plan(folders, out, OPTIONS)
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        tsds.clusters.convert_task(out, 0, 1, scratch=scratch)
        assert os.listdir(scratch) == []
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


def test_what_a_killed_task_left_in_the_scratch_folder(folders: Path, tmp_path: Path, out: Path) -> None:
    """It is removed by the next one; a folder that a living process has locked is not."""
    fcntl = pytest.importorskip("fcntl")
    scratch = tmp_path / "scratch"
    for name in ("tsds-dead.scratch", "tsds-alive.scratch", "of-others"):
        (scratch / name).mkdir(parents=True)
        (scratch / name / "shard").write_bytes(b"rows")
    (scratch / "tsds-link.scratch").symlink_to("of-others")
    tsds.clusters.plan(folders, out, OPTIONS)
    alive = os.open(scratch / "tsds-alive.scratch", os.O_RDONLY)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX)
        tsds.clusters.convert_task(out, 0, 1, scratch=scratch)
    finally:
        os.close(alive)
    assert {path.name for path in scratch.iterdir()} == {"tsds-alive.scratch", "tsds-link.scratch", "of-others"}
    assert {path.parent.name for path in scratch.rglob("shard")} == {"tsds-alive.scratch", "of-others"}


def test_a_shard_whose_files_are_gone_is_missing(folders: Path, tmp_path: Path, out: Path) -> None:
    planned = tsds.clusters.plan(folders, out, OPTIONS, tasks=4)
    run_all(out, 4)
    store = tmp_path / "o.tsds.partial" / "store"
    names = list(planned.shards)
    shutil.rmtree(store / "train" / "00000")
    (store / "train" / "00001" / "image" / "c" / "0" / "0" / "0" / "0").write_bytes(b"short")
    with pytest.raises(tsds.errors.UnfinishedError, match="2 of 6 shards are missing") as error:
        tsds.clusters.commit(out)
    tasks = sorted({names.index(("train", i)) % 4 for i in (0, 1)})
    assert error.value.tasks == ranges(tasks)
    assert [tsds.clusters.convert_task(out, task).shards for task in tasks] == [1] * len(tasks)
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


# --- what is refused --------------------------------------------------------------------------------------------------


def change_plan(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A plan that says something else, with a checksum that is right."""
    path = out.with_name("o.tsds.partial") / "plan" / "plan.json"
    data = json.loads(path.read_bytes().partition(b"\n")[2])
    change(data)
    text = dump_json(data)
    path.write_bytes(f"{hashlib.sha256(text).hexdigest()}\n".encode() + text)


def test_another_version_is_refused(folders: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    change_plan(out, lambda data: data["versions"].__setitem__(1, "Pillow 1.0"))
    with pytest.raises(tsds.OptionError, match=r"planned with .*Pillow 1\.0.*Install the same versions"):
        tsds.clusters.convert_task(out, 0)


def test_records_of_another_plan_are_refused(folders: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    run_all(out, 2)
    change_plan(out, lambda data: data.__setitem__("notes", ["another plan"]))
    with pytest.raises(tsds.errors.ConversionError, match="is of another plan"):
        tsds.clusters.commit(out)
    assert tsds.clusters.convert_task(out, 0, 1).shards == 6  # none of the others' is taken for its own
    tsds.clusters.commit(out)


def test_another_source_is_refused(folders: Path, tmp_path: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    folders.rename(tmp_path / "away")
    with pytest.raises(tsds.SourceError, match="does not see the source that was planned"):
        tsds.clusters.convert_task(out, 0)
    folders.mkdir()
    with pytest.raises(tsds.SourceError, match="expected the file that was planned with, found another or none"):
        tsds.clusters.convert_task(out, 0)


def test_a_list_that_all_samples_share_must_be_the_same(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    np.save(source / "x.npy", np.arange(600, dtype=np.uint8).reshape(6, 10, 10))
    tsds.clusters.plan(source, out, OPTIONS)
    np.save(source / "x.npy", np.arange(1, 601, dtype=np.uint8).reshape(6, 10, 10))
    with pytest.raises(tsds.SourceError, match="expected the file that was planned with"):
        tsds.clusters.convert_task(out, 0)


def test_a_damaged_plan(folders: Path, tmp_path: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    references = tmp_path / "o.tsds.partial" / "plan" / "train.references"
    data = references.read_bytes()
    references.write_bytes(data.replace(b"0", b"1"))
    with pytest.raises(tsds.errors.ConversionError, match="its files are damaged"):
        tsds.clusters.convert_task(out, 0, 1)
    references.write_bytes(data)
    plan = references.with_name("plan.json")
    plan.write_bytes(plan.read_bytes()[:-9])
    for call in (
        lambda: tsds.clusters.convert_task(out, 0),
        lambda: tsds.clusters.commit(out),
        lambda: tsds.clusters.plan(folders, out, OPTIONS),
    ):
        with pytest.raises(tsds.errors.ConversionError, match="the plan cannot be read"):
            call()


def test_what_goes_with_a_plan(folders: Path, tmp_path: Path, out: Path) -> None:
    with pytest.raises(tsds.OptionError, match="there is no plan here"):
        tsds.clusters.commit(out)
    with pytest.raises(tsds.OptionError, match="there is no plan here"):
        tsds.clusters.convert_task(out)
    with pytest.raises(tsds.OptionError, match="expected a path, which other processes can read"):
        tsds.clusters.plan([(np.zeros((2, 2)), 0)], out)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("o.tsds*"))
    first = tsds.clusters.plan(folders, out, OPTIONS)
    again = tsds.clusters.plan(folders, out, OPTIONS)
    assert (again.sha256, again.is_new) == (first.sha256, False)
    with pytest.raises(tsds.OptionError, match="the plan of another conversion is here: `seed` was 0, is now 7"):
        tsds.clusters.plan(folders, out, replace(OPTIONS, seed=7))
    with pytest.raises(tsds.OptionError, match="a plan for several processes is here"):
        tsds.convert(folders, out, OPTIONS)
    for task, tasks in ((6, None), (-1, 3), (3, 3)):
        with pytest.raises(tsds.OptionError, match="`task`: expected 0 to"):
            tsds.clusters.convert_task(out, task, tasks)
    with pytest.raises(tsds.OptionError, match="the plan has no shard train/00009"):
        tsds.clusters.convert_task(out, shards=[("train", 9)])
    with pytest.raises(tsds.OptionError, match="`scratch`: expected a folder"):
        tsds.clusters.convert_task(out, scratch=tmp_path / "none")
    run_all(out, 2)
    tsds.clusters.commit(out)
    for call in (lambda: tsds.clusters.commit(out), lambda: tsds.clusters.convert_task(out)):
        with pytest.raises(tsds.errors.StoreExistsError, match="expected a plan that is not committed, found a store"):
            call()
    with pytest.raises(tsds.errors.StoreExistsError, match="expected a new path, found a store"):
        tsds.clusters.plan(folders, out)


def test_a_conversion_by_one_process_is_not_mixed_with_a_plan(folders: Path, tmp_path: Path, out: Path) -> None:
    def stop(event: tsds.conversion.Progress) -> None:
        if event.done > 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.convert(folders, out, OPTIONS, progress=stop)
    with pytest.raises(tsds.OptionError, match="finished shards of a conversion by one process"):
        tsds.clusters.plan(folders, out, OPTIONS)
    assert tsds.convert(folders, out, OPTIONS).resumed


# --- plain data -------------------------------------------------------------------------------------------------------

_KEYS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.booleans(), st.none())
_VALUES = st.recursive(
    st.one_of(
        _KEYS, st.floats(allow_nan=False), st.builds(Path, st.text(st.characters(exclude_categories=["Cs", "Cc"])))
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(_KEYS, inner),
        st.sets(_KEYS),
        st.frozensets(_KEYS),
    ),
    max_leaves=20,
)


@given(_VALUES)
def test_plain_data_comes_back(value: Any) -> None:
    again = plain.load(json.loads(json.dumps(plain.dump(value))))
    assert again == value and type(again) is type(value)


def test_plain_data_is_nothing_else() -> None:
    assert plain.load(plain.dump("a\udcffb\n")) == "a\udcffb\n"
    with pytest.raises(TypeError, match="expected plain data, found Random"):
        import random

        plain.dump({"state": random.Random()})
    with pytest.raises(KeyError):
        plain.load({"Popen": {"args": ["ls"]}})


@pytest.mark.parametrize("what", ["store", "split", "shard", "folder in a shard", "file"])
def test_commit_follows_no_link(folders: Path, tmp_path: Path, out: Path, what: str) -> None:
    expected = by_one(folders, tmp_path)
    tsds.clusters.plan(folders, out, OPTIONS, tasks=1)
    tsds.clusters.convert_task(out, 0)
    store = out.with_name("o.tsds.partial") / "store"
    places = {"store": ".", "split": "train", "shard": "train/00000", "folder in a shard": "train/00000/image"}
    place = (store / places.get(what, "train/00000/label/c/0")).resolve()
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = contents(tmp_path / "elsewhere") if what != "file" else {}
    with pytest.raises(
        tsds.errors.ConversionError, match=r"expected a file or folder .*, found a symbolic link\."
    ) as caught:
        tsds.clusters.commit(out)
    assert str(place) in str(caught.value) and "\n" not in str(caught.value)
    assert not os.path.lexists(out)
    assert what == "file" or contents(tmp_path / "elsewhere") == before
    place.unlink()  # as the message says
    tsds.clusters.convert_task(out, 0)
    with contextlib.suppress(tsds.errors.ConversionError):  # of a file that is missing, its shard is found out here
        tsds.clusters.commit(out)
    if not out.exists():
        tsds.clusters.convert_task(out, 0)
        tsds.clusters.commit(out)
    assert contents(out) == expected


def test_a_task_follows_no_link(folders: Path, tmp_path: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS, tasks=1)
    (tmp_path / "victim").mkdir()
    link = out.with_name("o.tsds.partial") / "store" / "train"
    link.symlink_to(tmp_path / "victim", target_is_directory=True)
    with pytest.raises(tsds.OptionError, match="found something else as its folder store/train"):
        tsds.clusters.convert_task(out, 0)
    assert os.listdir(tmp_path / "victim") == []


@pytest.mark.parametrize("name", ["EXTRA", "image/c/0/0/0/1", "new/zarr.json"])
def test_a_shard_with_one_more_file_is_not_committed(folders: Path, tmp_path: Path, out: Path, name: str) -> None:
    expected = by_one(folders, tmp_path)
    tsds.clusters.plan(folders, out, OPTIONS, tasks=1)
    tsds.clusters.convert_task(out, 0)
    more = out.with_name("o.tsds.partial") / "store/train/00000" / name
    more.parent.mkdir(parents=True, exist_ok=True)
    more.write_text("x")
    with pytest.raises(
        tsds.errors.ConversionError, match="expected the files that its shard lists, found one more"
    ) as caught:
        tsds.clusters.commit(out)
    assert str(more) in str(caught.value) and not os.path.lexists(out)
    more.unlink()
    tsds.clusters.commit(out)
    assert contents(out) == expected and tsds.verify(out) == []
