"""The project's benchmarks on tiny sizes: races that prove what was delivered, and the page that is made of results."""

from __future__ import annotations

import copy
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from benchmarks import batch_transforms, figures, folds, loading, row_sizes, tiles, torchvision_transforms, training
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.figures import CHART, END, HEADLINE, INDEX, PAGE, README, headline, load_results, page, short_table
from benchmarks.loading import data_of, entries_of
from benchmarks.measure import FIGURE_HEAD, Figure, Settings, as_result, figures_of, table, write_result
from benchmarks.peers import FFCV, MEMCPY, OURS, PEERS
from benchmarks.photographs import STORES, TORCHVISION, race as photographs
from benchmarks.photographs.drawing import CLASSES, draw_photograph, write_class_folders, write_voc
from benchmarks.race import Data, Entry, ModuleFeed, ModuleRunner, as_data, race, with_ratios
from benchmarks.samples import make_noise, open_arrays
from stores import store_of
from tensorstore_ds import native
from tensorstore_ds.annex.measuring.delivery import agree, marks_of
from tensorstore_ds.annex.measuring.lane import answered
from training_stores import labelled

RESULTS = load_results()
SAMPLES, SHAPE = 21, (8, 6, 3)


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Data:
    folder = tmp_path_factory.mktemp("benchmarks") / "noise"
    make_noise(folder, SAMPLES, SHAPE)
    return data_of("", folder)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs") / "drawn"
    write_class_folders(folder, 12, long_side=120)
    return folder


# --- races --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2)])
def test_a_batch_with_axes_in_any_order_has_the_marks_of_what_is_stored(noise: Data, axes: tuple[int, ...]) -> None:
    images, labels = (torch.from_numpy(np.array(array)) for array in open_arrays(noise.source))
    order = np.random.default_rng(0).permutation(SAMPLES)
    feed = ModuleFeed(entries_of(MEMCPY, 4)[0], noise.source, noise.source)
    feed.open()
    batch = {"image": images[order].permute(axes), "label": labels[order]}
    stored = np.load(noise.facts["marks"])
    assert agree(marks_of(feed.columns(batch), pixels=True), stored, whole=True) and feed.count(batch) == SAMPLES
    batch["label"] = batch["label"].roll(1)
    assert not agree(marks_of(feed.columns(batch), pixels=True), stored, whole=True)
    with pytest.raises(ValueError, match=r"expected images of \(8, 6, 3\), found \(3, 8, 7\)"):
        feed.columns({"image": torch.zeros(2, 3, 8, 7), "label": labels[:2]})


@pytest.mark.slow
def test_a_race_of_ways_that_work_one_that_fails_and_one_that_delivers_something_else(
    noise: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.race.AT_LEAST", 0.01)
    whole = Entry("TensorDataset", "whole batches", 4, group="tensors", threads=0)
    others = [whole, *entries_of(MEMCPY, 4, ["1 thread"]), Entry("Broken", "", 4, group="nonsense")]
    found = race(noise, entries_of(OURS, 4), others, tmp_path / "race", repeat=2)
    assert [way["title"] for way in found] == ["tensorstore-ds", "TensorDataset", "memcpy", "Broken"]
    assert all(way["rate"] and way["cpu_rate"] and way["ratio"] and len(way["seconds"]) == 2 for way in found[:3])
    assert found[0]["ratio"] == 1 and found[3]["rate"] is None and "nonsense" in found[3]["reason"]
    assert not list((tmp_path / "race").iterdir())  # what was converted is gone
    np.save(tmp_path / "marks.npy", np.arange(SAMPLES, dtype=np.uint64))
    wrong = replace(noise, facts={**noise.facts, "marks": str(tmp_path / "marks.npy")})
    (result,) = race(wrong, entries_of(MEMCPY, 4, ["1 thread"]), [], tmp_path / "wrong", repeat=1)
    assert result["rate"] is None and "not what is stored" in result["reason"]


@pytest.mark.slow
def test_a_race_of_whole_photographs_proves_pixels_and_boxes(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc", 6, long_side=120)
    ways = photographs.race_of("detect", tmp_path / "voc", [STORES["source"], TORCHVISION], tmp_path / "race", 1)
    assert all(way["rate"] and way["cpu_rate"] and way["nbytes"] and not way["reason"] for way in ways)
    assert not (tmp_path / "race").exists()


@pytest.mark.parametrize("task", ["train", "validate"])
def test_crops_that_torchvision_delivers_are_right_and_others_are_not(drawn: Path, tmp_path: Path, task: str) -> None:
    runner = ModuleRunner(
        ModuleFeed(replace(TORCHVISION, task=task, threads=0), drawn, tmp_path), 0, torch.device("cpu")
    )
    facts = photographs.data_of(task, drawn, tmp_path, 5).facts
    assert answered(lambda: runner.verify_crops(5, **facts))["state"] == "ok"
    assert (
        "expected uint8 images (B, 3, 9, 9)"
        in answered(lambda: runner.verify_crops(5, **{**facts, "side": 9}))["reason"]
    )
    if task == "validate":
        np.save(tmp_path / "images.npy", np.load(tmp_path / "images.npy")[::-1])
        assert "its images differ" in answered(lambda: runner.verify_crops(5, **facts))["reason"]
    np.save(tmp_path / "expected.npy", np.roll(np.load(tmp_path / "expected.npy"), 1) * 2)
    assert "every label" in answered(lambda: runner.verify_crops(5, **facts))["reason"]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    entries = [entry for peer in (OURS, MEMCPY, *PEERS) for entry in entries_of(peer, 4)]
    ways = with_ratios([as_data(entry, [], "ModuleNotFoundError: no") for entry in entries])
    share, two, ffcv = loading.large_figures(ways)
    assert ffcv.met is share.met is two.met is None and ffcv.row[2] == "not measured"
    assert ffcv.note == f"not installed: {FFCV.install}" and "ffcv" not in sys.modules
    files = {"title": "files (VOCDetection)", "mode": "", "rate": 10.0, "reason": ""}
    (figure,) = loading.objects_figures([{"title": OURS.title, "mode": "list", "rate": 250.0}, files])
    assert figure.value == 25 and figure.met is True
    folder = Path(loading.__file__).parent / "peers"
    assert {file.stem for file in folder.glob("*.py")} == {
        "__init__",
        *(peer.module for peer in (OURS, MEMCPY, *PEERS)),
    }


def test_photographs_are_drawn_and_copied(drawn: Path, tmp_path: Path) -> None:
    first, second = (draw_photograph(np.random.default_rng(3), 60, 80)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert sorted(path.name for path in drawn.iterdir()) == list(CLASSES)
    folder, name = photographs.folder_of_photographs(Settings(tmp_path, tmp_path, "", 1, photographs=drawn), times=3)
    assert len(list(folder.glob("*/*.jpg"))) == 36 and name == "36 photographs of drawn"
    assert photographs.describe(sorted(folder.glob("*/*.jpg"))).endswith("0% have a side of more than 500 pixels")


# --- single measurements ------------------------------------------------------------------------------------------


def test_each_kind_of_measurement_on_tiny_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training.trained(labelled(tmp_path), tmp_path / "run", 32, 2)
    assert run["accuracy"] == run["curve"][-1]["accuracy"] and run["seconds"] > 0
    source = np.arange(32 * 1024, dtype=np.uint64).view(np.uint8)
    assert min(row_sizes.measure_size(source, np.zeros(64 * 1024 + 4096, np.uint8), 64, 1).values()) > 0
    tiles.write(tmp_path / "t.tsds", [np.zeros((700, 700, 3), np.uint8)], "jpeg")
    data = tsds.Tiles(tsds.StoreDataset(tmp_path / "t.tsds"), 640)
    assert tiles.timed(data, np.random.default_rng(0)) > 0 and tiles.private_megabytes() > 10
    assert folds.staying(folds.Case("", 60, 3, 20), 0, np.random.default_rng(0)) == 1
    assert 0.5 < folds.staying(folds.Case("", 60), 1, np.random.default_rng(0)) < 1
    if native.core is not None:
        samples = [{"image": np.full((16, 16, 1), i, np.uint8), "label": 0} for i in range(150)]
        store_of(tmp_path / "s.tsds", samples, ("a",))
        rows = batch_transforms.kernels_of(tsds.StoreDataset(tmp_path / "s.tsds"), "noise", 1)
        assert native.core is not None and all(row["of_without"] > 0 for row in rows)
    (tmp_path / "faces").mkdir()
    Image.new("RGB", (50, 40), (9, 8, 7)).save(tmp_path / "faces" / "0.jpg")
    monkeypatch.setattr(torchvision_transforms, "SIZES", ((16, 3, 1e-9),))
    monkeypatch.setattr(torchvision_transforms, "_LEAST_SECONDS", 0)
    result = torchvision_transforms.measure(Settings(tmp_path, tmp_path, "", 1, photographs=tmp_path))
    shown = page({"torchvision_transforms": json.loads(json.dumps(result))})
    assert "| 16x16x3, batch 3, uint8 |" in shown and "| Mosaic |  |  |" in shown


def test_a_measurement_becomes_a_file_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    (tmp_path / "train").mkdir()
    machine = {"cpu": "AMD", "memory": "1 GiB"}
    monkeypatch.setattr("benchmarks.__main__.MEASUREMENTS", {"one": lambda _: {"machine": machine, "figures": []}})
    monkeypatch.setattr(figures, "main", written.append)
    arguments = ["one", "--mnist", str(tmp_path), "--results", str(tmp_path / "out")]
    main(arguments)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["one.json"] and not written
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path / "out")
    main(arguments)
    assert written == [[]]


@pytest.mark.parametrize(
    "arguments", ["nonsense", "--repeat=0", "--mnist=/nowhere", "--voc=/nowhere", "--photographs=/none"]
)
def test_wrong_usage(arguments: str) -> None:
    with pytest.raises(SystemExit) as error:
        main([arguments])
    assert error.value.code == 2


# --- results and pages --------------------------------------------------------------------------------------------


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    found = [Figure("speed", 2.0, 1.0, "x", at_least=True), Figure("time", None, 3.0, "s", note="not here")]
    write_result(tmp_path / "new" / "one.json", as_result(found, races=[{"name": "a"}], took=1.5))
    result = json.loads((tmp_path / "new" / "one.json").read_text())
    assert figures_of(result) == found and result["races"] == [{"name": "a"}] and result["took"] == 1.5
    assert table(FIGURE_HEAD, [found[0].row])[-1] == "| speed | at least 1.00 x | 2.00 x, met |  |"
    assert set(RESULTS) <= {*MEASUREMENTS, "gpu"}
    known = {"cpu", "libc", "python", "torch", "numpy", "date"}
    assert all(known <= each["machine"].keys() for each in (result, *RESULTS.values()))


def test_pages_are_made_of_the_results(tmp_path: Path) -> None:
    assert PAGE.read_text() == page(RESULTS), "python -m benchmarks.figures writes it"
    readme, index = README.read_text(), INDEX.read_text()
    assert readme == figures.text_with(readme, short_table(RESULTS["loading"])) and readme.count(END) == 1
    assert index == figures.text_with(index, headline(RESULTS["loading"]), *HEADLINE)
    (rate,) = re.findall(r"\*\*([\d,]+) images per second\*\*", index)
    assert f"**tensorstore-ds** | **{rate}** (" in readme
    results = copy.deepcopy(RESULTS)
    results["loading"]["races"][0]["ways"][0]["rate"] = 1234.4
    results["loading"]["races"][0]["ways"][-1].update(rate=None, reason="it broke")
    assert "| **1,234** (" in page(results) and "| not measured: it broke |" in page(results)
    assert "**1,234**" in short_table(results["loading"])
    assert "## Loading" not in page({"startup": RESULTS["startup"]})
    pytest.importorskip("matplotlib")
    figures.draw(RESULTS["loading"], tmp_path / "chart.png")
    figures.draw_photographs(RESULTS["photographs"], tmp_path / "photographs.png")
    with Image.open(tmp_path / "chart.png") as image, Image.open(CHART) as committed:
        assert image.size == committed.size and len(image.convert("RGB").getcolors(10**6) or ()) > 10


def test_the_factors_of_photographs_are_those_of_their_rates() -> None:
    found = figures_of(RESULTS["photographs"])
    assert [figure.value for figure in photographs.figures_of_races(RESULTS["photographs"]["races"])] == pytest.approx(
        [figure.value for figure in found], rel=0.005
    )
    crops = "speed, photographs, training crops, encoding `jpeg`, relative to"
    shown = [f"{figure.value:.1f}x" for figure in found if figure.what.startswith(crops)]
    (sentence,) = re.findall(r"training crops of photographs come [^.]*\.[^.]*\.[^.]*\.", README.read_text())
    assert re.findall(r"[\d.]+x", sentence) == shown
