"""The benchmark of loaders on tiny sizes: its data, its lanes, and its proof of what was delivered."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from benchmarks import (
    batch_transforms,
    folds,
    loading,
    row_sizes,
    tiles,
    torchvision_transforms as transforms,
    training,
)
from benchmarks.figures import page
from benchmarks.loading import Data, Entry, Result, against, entries_of, large_figures, objects_figures, race
from benchmarks.measure import FIGURE_HEAD, Figure, Settings, as_result, figures_of, table, write_result
from benchmarks.peers import ALL, FFCV, MEMCPY, OURS, PEERS, Peer, runner, store as ours
from benchmarks.samples import Arrays, make_digits, make_noise, open_arrays
from stores import detections, store_of
from tensorstore_ds import native
from tensorstore_ds.annex.comparison.delivery import agree, marks_of, marks_of_split
from tensorstore_ds.annex.comparison.lane import answered
from tensorstore_ds.imaging.jpeg import find_restarts
from training_stores import labelled

SAMPLES, SHAPE = 21, (8, 6, 3)


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks") / "noise"
    make_noise(folder, SAMPLES, SHAPE)
    return folder


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "say", lambda text: None)


def feed(noise: Path, columns: Any) -> runner.PeerFeed:
    """Of a peer that hands out what a test says, in place of batches of its own."""
    module = SimpleNamespace(__name__="peer", write=lambda *_: None, columns=columns)
    made = runner.PeerFeed(module, "", noise, noise)
    made.open()
    return made


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_a_batch_with_axes_in_any_order_has_the_marks_of_what_is_stored(noise: Path, axes: tuple[int, ...]) -> None:
    images, labels = (torch.from_numpy(np.array(array)) for array in open_arrays(noise))
    order = np.random.default_rng(0).permutation(SAMPLES)
    peer = feed(noise, lambda rows: {"image": images[rows].permute(axes), "label": labels[rows]})
    stored = np.load(Data("", noise, None).marks)
    delivered = marks_of(peer.columns(order, pixels=True, boxes=True), pixels=True)
    assert agree(delivered, stored, whole=True) and peer.count(order) == peer.samples == SAMPLES
    other = marks_of(peer.columns(np.append(order[1:], order[1]), pixels=True, boxes=True), pixels=True)
    assert not agree(other, stored, whole=True)


def test_images_of_another_shape_are_no_result(noise: Path) -> None:
    peer = feed(noise, lambda _: {"image": torch.zeros(2, 3, 8, 7)})
    with pytest.raises(ValueError, match=r"expected images of \(8, 6, 3\), found \(3, 8, 7\)"):
        peer.columns(None, pixels=True, boxes=True)


def test_boxes_count_in_any_order_within_their_image(tmp_path: Path) -> None:
    split = store_of(tmp_path / "s.tsds", detections(7), ("a", "b"))["train"]
    fields = {"image": "image", "objects": "objects"}
    stored = marks_of_split(split, fields, pixels=True, boxes=True)

    def delivered(change: Any) -> bool:
        objects = [change({n: torch.from_numpy(v.copy()) for n, v in split["objects"][i].items()}) for i in range(7)]
        columns = ours.columns({"image": split["image"].take(np.arange(7)), "objects": objects})
        plain = {name: np.asarray(value) for name, value in columns.items()}
        return agree(marks_of(plain, pixels=True), stored, whole=True)

    assert delivered(lambda one: one)
    assert delivered(lambda one: {**one, "boxes": one["boxes"].flip(0), "labels": one["labels"].flip(0)})
    assert not delivered(lambda one: {**one, "labels": 1 - one["labels"]})
    assert not delivered(lambda one: {**one, "boxes": one["boxes"] + 1})
    assert not delivered(lambda one: {**one, "boxes": one["boxes"].flip(1)})


def test_digits_are_those_of_the_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in "01":
        (tmp_path / "files" / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (5, 4), np.uint8)).save(tmp_path / "files" / label / f"{i}.png")
    make_digits(tmp_path / "digits", tmp_path / "files")
    image, label = Arrays(tmp_path / "digits")[5]
    assert label == 1
    with Image.open(tmp_path / "files" / "1" / "2.png") as file:
        np.testing.assert_array_equal(image[..., 0], np.asarray(file))


@pytest.mark.slow
@pytest.mark.drawn(2, of="races")
def test_a_race_of_ways_that_work_and_one_that_fails(noise: Path, tmp_path: Path) -> None:
    fixed = entries_of(OURS, 4)
    others = [Entry("TensorDataset", "whole batches", 4, None, "tensors"), *entries_of(MEMCPY, 4, ["1 thread"])]
    broken = Entry("Broken", "", 4, None, "nonsense")
    found = race(Data("", noise, None), fixed, [*others, broken], tmp_path, repeat=2)
    assert [way["title"] for way in found] == ["tensorstore-ds", "TensorDataset", "memcpy", "Broken"]
    assert all(way["rate"] and way["ratio"] and not way["reason"] for way in found[:3])
    assert found[0]["ratio"] == 1
    assert found[3]["rate"] is None and "nonsense" in found[3]["reason"]
    assert not list(tmp_path.iterdir())  # what was converted is gone


@pytest.mark.slow
def test_a_loader_that_delivers_something_else_is_no_result(noise: Path, tmp_path: Path) -> None:
    data = Data("", noise, None)
    data.marks = tmp_path / "marks.npy"
    np.save(data.marks, np.arange(SAMPLES, dtype=np.uint64))
    (tmp_path / "race").mkdir()
    (result,) = race(data, entries_of(MEMCPY, 4, ["1 thread"]), [], tmp_path / "race", repeat=1)
    assert result["rate"] is None and "not what is stored" in result["reason"]


def test_a_peer_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALL, "absent", Peer("Absent", "absent", "absent", install="pip install absent"))
    answer = answered(lambda: runner.start({"module": "absent", "mode": "", "source": "", "target": ""})[1])
    result = Result(Entry("Absent", "", 4, ALL["absent"]), reason=answer["reason"])
    assert result.missing and result.as_data(1)["reason"] == "not installed: pip install absent"


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    entries = [entry for peer in (OURS, MEMCPY, *PEERS) for entry in entries_of(peer, 4)]
    ways = loading.with_ratios([Result(entry, reason="ModuleNotFoundError: no").as_data(1) for entry in entries])
    share, two, ffcv = large_figures(ways)
    assert ffcv.met is None and ffcv.row[2] == "not measured" and "pip install ffcv" in ffcv.note
    assert share.met is None and two.met is None and against("", ways, FFCV.title, 2).value is None
    files = {"title": "files (VOCDetection)", "mode": "", "rate": 10.0, "reason": ""}
    (figure,) = objects_figures([{"title": OURS.title, "mode": "list", "rate": 250.0}, files])
    assert figure.value == 25 and figure.met is True


def test_every_peer_has_its_module_and_says_how_to_get_it() -> None:
    folder = Path(runner.__file__).parent
    assert {file.stem for file in folder.glob("*.py")} - {"__init__", "runner"} == set(ALL)
    assert all(peer.install and peer.package for peer in PEERS)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    figures = [Figure("speed", 2.0, 1.0, "x", at_least=True), Figure("time", None, 3.0, "s", note="not here")]
    write_result(tmp_path / "new" / "one.json", as_result(figures, races=[{"name": "a"}], took=1.5))
    result = json.loads((tmp_path / "new" / "one.json").read_text())
    assert figures_of(result) == figures and result["races"] == [{"name": "a"}] and result["took"] == 1.5
    assert {"cpu", "libc", "torch", "numpy", "date"} <= result["machine"].keys()
    assert table(FIGURE_HEAD, [figures[0].row])[-1] == "| speed | at least 1.00 x | 2.00 x, met |  |"
    assert "ffcv" not in sys.modules  # peers are imported in processes of their own


def test_a_run_of_a_batch_size_has_the_rate_that_it_took(tmp_path: Path) -> None:
    run = training.trained(labelled(tmp_path), tmp_path / "run", 32, 2)
    assert run["learning_rate"] == 0.001 and len(run["curve"]) == 2
    assert run["accuracy"] == run["curve"][-1]["accuracy"] and run["seconds"] > 0


def test_transforms_against_torchvision_become_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faces").mkdir()
    for i in range(2):
        noise = np.random.default_rng(i).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / "faces" / f"{i}.jpg")
    monkeypatch.setattr(transforms, "SIZES", ((16, 3, 1e-9),))
    monkeypatch.setattr(transforms, "_LEAST_SECONDS", 0)
    threads = torch.get_num_threads()
    result = transforms.measure(Settings(tmp_path, tmp_path, "", 1, photographs=tmp_path))
    assert torch.get_num_threads() == threads and result["images"] == "crops of 2 photographs"
    assert [figure["met"] for figure in result["figures"]] == [True, True]
    rows = {(row["data"][-5:], row["transform"]): row for row in result["transforms"]}
    assert len(rows) == len(result["transforms"]) == 36
    for row in rows.values():
        assert row["ours"]["cpu_ratio"] == row["ours"]["ratio"] == 1 and row["ours, contiguous"]["rate"] > 0
    without = [name for _, name in rows if rows["uint8", name]["image by image"] is None]
    assert set(without) == {"Mixup", "CutMix", "Mosaic"}
    assert rows["uint8", "Mixup"]["whole batch"] is None and rows["oat32", "Mixup"]["whole batch"]["rate"] > 0
    shown = page({"torchvision_transforms": json.loads(json.dumps(result))})
    assert "| 16x16x3, batch 3, uint8 |" in shown and "| Mosaic |  |  |" in shown
    assert "in one thread on a CPU" in shown and "crops of 2 photographs" in shown


@pytest.mark.parametrize("row_nbytes", [64, 4096])
def test_rates_of_rows_of_one_size(row_nbytes: int) -> None:
    source = np.arange(32 * 1024, dtype=np.uint64).view(np.uint8)
    found = row_sizes.measure_size(source, np.zeros(64 * 1024 + 4096, np.uint8), row_nbytes, 1)
    assert found["row_nbytes"] == row_nbytes and min(found.values()) > 0
    assert found.keys() == {"row_nbytes", "memcpy", "aligned", "misaligned", "aligned_share", "misaligned_share"}


@pytest.mark.skipif(native.core is None, reason="the kernels are not compiled here")
def test_the_loader_is_measured_with_kernels_and_without(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (16, 16, 1), np.uint8), "label": 0} for _ in range(150)]
    store_of(tmp_path / "s.tsds", samples, ("a",))
    core = native.core
    rows = batch_transforms.kernels_of(tsds.StoreDataset(tmp_path / "s.tsds"), "noise", 1)
    assert native.core is core
    assert [(row["threads"], row["batch"]) for row in rows[::4]] == [(1, 1000), (1, 100), (2, 1000), (2, 100)]
    assert all(row["of_without"] > 0 for row in rows)
    figure = batch_transforms.kernel_figure("noise", rows, 2.5)
    assert figure.value == rows[2]["of_without"] and "batch 1000" in figure.what


def test_tiles_are_timed_of_files_with_and_without_markers(tmp_path: Path) -> None:
    numbers = itertools.count(1)
    pixels = tiles.mosaic((np.full((330, 500, 3), next(numbers), np.uint8) for _ in itertools.count()), 1000)
    assert len(np.unique(pixels)) == 8
    assert pixels.min() == 1
    found = {encoding: tiles.encoded(pixels, encoding) for encoding in ("jpeg", "source")}
    assert len(find_restarts(found["jpeg"])) > 100
    assert len(find_restarts(found["source"])) == 0
    tiles.write(tmp_path / "s.tsds", [pixels], "jpeg")
    data = tsds.Tiles(tsds.StoreDataset(tmp_path / "s.tsds"), 640)
    assert tiles.timed(data, np.random.default_rng(0)) > 0
    assert tiles.private_megabytes() > 10


@pytest.mark.parametrize("case", [folds.Case("", 60), folds.Case("", 60, 3, 20), folds.Case("", 60, 3, 0, True)])
def test_rows_stay_in_their_folds(case: folds.Case) -> None:
    assert folds.staying(case, 0, np.random.default_rng(0)) == 1
    shares = [folds.staying(case, 1, np.random.default_rng(0)) for _ in range(2)]
    assert shares[0] == shares[1] and 0.5 < shares[0] < 1
