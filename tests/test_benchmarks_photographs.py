"""Benchmarks of photographs on tiny sizes: what is drawn, what a loader must deliver, and the page."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import figures
from benchmarks.__main__ import main
from benchmarks.measure import Settings, as_result, cpu_seconds
from benchmarks.photographs import FFCV_JPEG, SIDE, STORES, TORCHVISION, race
from benchmarks.photographs.conversion import copy_files
from benchmarks.photographs.drawing import (
    CLASSES,
    LONG_SIDE,
    SAVED,
    draw_photograph,
    draw_shape,
    write_class_folders,
    write_voc,
)
from benchmarks.photographs.runner import Counted, WayFeed, WayRunner
from tensorstore_ds.annex.comparison.lane import answered
from tensorstore_ds.sources.voc.layout import find_layout


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(race, "say", lambda text: None)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photographs") / "drawn"
    write_class_folders(folder, 12, long_side=120)
    return folder


def spectrum_slope(pixels: np.ndarray) -> float:
    """Of the power over the frequency, both as logarithms, in the middle of a photograph."""
    side = 256
    gray = pixels.mean(axis=2)[:side, :side]
    window = np.hanning(side)
    power = np.abs(np.fft.fft2((gray - gray.mean()) * window[:, None] * window)) ** 2
    frequency = np.hypot(*np.meshgrid(*2 * [np.fft.fftfreq(side)]))
    bands = np.geomspace(0.02, 0.35, 10)
    means = [power[(frequency >= low) & (frequency < high)].mean() for low, high in pairwise(bands)]
    return float(np.polyfit(np.log(np.sqrt(bands[1:] * bands[:-1])), np.log(means), 1)[0])


def test_drawn_photographs_have_the_statistics_of_photographs() -> None:
    nbytes, slopes, correlations = [], [], []
    for seed in range(4):
        pixels, boxes, classes = draw_photograph(np.random.default_rng(seed), 375, 500)
        assert pixels.shape == (375, 500, 3) and pixels.dtype == np.uint8 and len(boxes) == len(classes)
        assert (boxes[:, :2] < boxes[:, 2:]).all() and (boxes >= 0).all() and (boxes <= [500, 375, 500, 375]).all()
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "JPEG", **SAVED)
        nbytes.append(file.tell() / (375 * 500))
        slopes.append(spectrum_slope(pixels))
        correlations.append(np.corrcoef(pixels.reshape(-1, 3).T)[0, 1])
    assert 0.22 < np.mean(nbytes) < 0.34  # ImageNet's, at this size and quality: 0.25 to 0.3
    assert -3.8 < np.mean(slopes) < -2  # photographs: from -2 to -3.2
    assert np.mean(correlations) > 0.6


def test_a_photograph_follows_from_its_seed_and_shapes_differ() -> None:
    first, second = (draw_photograph(np.random.default_rng(3), 60, 80)[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    rng = np.random.default_rng(0)
    shapes = [draw_shape(rng) for _ in range(200)]
    assert max(max(shape) for shape in shapes) == LONG_SIDE and len(set(shapes)) > 20
    assert 20 < sum(height > width for height, width in shapes) < 100


def test_class_folders_and_voc_folders_are_what_sources_read(drawn: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in drawn.iterdir()) == list(CLASSES)
    assert len(list(drawn.glob("*/*.jpg"))) == 12
    write_voc(tmp_path / "voc", 3, long_side=120)
    layout = find_layout(tmp_path / "voc")
    assert layout.annotations == "VOCdevkit/VOC2007/Annotations/"
    image, objects = race.dataset_of("detect", tmp_path / "voc")[0]
    assert image.dtype == torch.uint8 and objects["boxes"].shape == (len(objects["labels"]), 4)


def test_given_photographs_are_copied_as_often_as_asked(drawn: Path, tmp_path: Path) -> None:
    settings = Settings(tmp_path, tmp_path, "", 1, photographs=drawn)
    folder, name = race.folder_of_photographs(settings, times=3)
    assert len(list(folder.glob("*/*.jpg"))) == 36 and name == "36 photographs of drawn"


def test_sizes_of_photographs_are_described(tmp_path: Path) -> None:
    for name, side in (("a", 100), ("b", 300), ("c", 700)):
        Image.new("RGB", (side, 50)).save(tmp_path / f"{name}.jpg")
    assert race.describe(sorted(tmp_path.glob("*.jpg"))) == (
        f"300x50 pixels, {(tmp_path / 'b.jpg').stat().st_size / 1e3:.0f} kB; 33% have a side of more than 500 pixels"
    )


def test_cpu_time_of_workers_counts_while_they_run_and_afterwards() -> None:
    burn = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    before = cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None and worker.stdout.readline()
        running = cpu_seconds() - before
    assert 0.3 <= running <= cpu_seconds() - before + 0.02


def test_every_epoch_has_its_cpu_time() -> None:
    loader = Counted([1, 2, 3])
    assert [*loader] == [*loader] == [1, 2, 3] and len(loader.epochs) == 2 and min(loader.epochs) >= 0


@pytest.mark.parametrize("task", ["train", "validate"])
def test_what_torchvision_delivers_is_right_and_anything_else_is_not(drawn: Path, tmp_path: Path, task: str) -> None:
    way = TORCHVISION.with_threads(0)
    runner = WayRunner(WayFeed(task, way, drawn, tmp_path), 0, torch.device("cpu"))
    facts = race.expected_of(task, drawn, tmp_path, 5)
    assert answered(lambda: runner.verify_crops(5, **facts))["state"] == "ok"
    np.save(tmp_path / "expected.npy", np.roll(np.load(tmp_path / "expected.npy"), 1) * 2)
    assert "every label" in answered(lambda: runner.verify_crops(5, **facts))["reason"]


def test_other_images_in_validation_are_no_result(drawn: Path, tmp_path: Path) -> None:
    runner = WayRunner(WayFeed("validate", TORCHVISION.with_threads(0), drawn, tmp_path), 0, torch.device("cpu"))
    facts = race.expected_of("validate", drawn, tmp_path, 5)
    np.save(tmp_path / "images.npy", np.load(tmp_path / "images.npy")[::-1])
    assert "its images differ" in answered(lambda: runner.verify_crops(5, **facts))["reason"]


def test_crops_of_another_shape_are_no_result(drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = WayFeed("train", TORCHVISION.with_threads(0), drawn, tmp_path)
    monkeypatch.setattr(feed.module, "columns", lambda batch: {"image": batch[0][..., 1:], "label": batch[1]})
    facts = race.expected_of("train", drawn, tmp_path, 5)
    answer = answered(lambda: WayRunner(feed, 0, torch.device("cpu")).verify_crops(5, **facts))
    assert "expected uint8 images (B, 3, 224, 224)" in answer["reason"]


@pytest.mark.slow
@pytest.mark.drawn(2, of="races")
def test_a_race_of_whole_images_proves_pixels_and_boxes(tmp_path: Path) -> None:
    write_voc(tmp_path / "voc", 6, long_side=120)
    (ours, files) = race.race("detect", tmp_path / "voc", [STORES["source"], TORCHVISION], tmp_path / "race", 1)
    assert files["rate"] and files["cpu_rate"] and files["nbytes"] and not files["reason"]
    assert not (tmp_path / "race").exists()
    assert ours["rate"] and not ours["reason"]


def ways(*rates: float | None) -> list[dict[str, Any]]:
    every = (STORES["jpeg"], STORES["source"], FFCV_JPEG, TORCHVISION)
    return [
        {
            **{"title": way.title, "mode": way.mode, "threads": 2, "version": "", "rate": rate},
            **{"seconds": [1 / rate] if rate else [], "reason": "" if rate else "it broke", "nbytes": 50_000},
            **{"cpu_rate": rate and rate / 2, "cpu_seconds": [2 / rate, 3 / rate] if rate else []},
        }
        for way, rate in zip(every, rates, strict=True)
    ]


def test_targets_the_page_and_the_chart_are_made_of_the_races(tmp_path: Path) -> None:
    every = ways(2800, 1000, 800, None)
    races = [{"task": "train", "title": "training", "ways": [*every, {**every[0], "threads": 1, "rate": 1400.0}]}]
    result = as_result(race.figures_of_races(races), races=races, photographs="500x375 pixels")
    met = [figure["met"] for figure in result["figures"]]
    assert met == [True, True, None, None, False, False, None, None, True]
    assert result["figures"][-1]["value"] == 2 and "2 threads, relative to one" in result["figures"][-1]["what"]
    kernel = {"encoding": "jpeg", "task": "train", "threads": 2, "ratio": 2.0, "cpu_ratio": 3.0}
    kernel |= {"with": race.rates_of([0.001], [0.002]), "without": race.rates_of([0.002], [0.006])}
    kernels = as_result([], kernels="avx2", photographs="12 drawn ones", rows=[kernel])
    page = figures.page({"photographs": result, "photograph_kernels": kernels})
    rates = "2,800 (2,800 to 2,800) | 1,400 (933 to 1,400)"
    assert f"| **tensorstore-ds, jpeg** | 50 | {rates} |" in page and "not measured: it broke" in page
    assert "| **tensorstore-ds, jpeg, 1 thread** |" in page and "photographs: 500x375 pixels." in page
    kernel_rates = "500 (500 to 500) | 167 (167 to 167)"
    assert f"| `jpeg`, train, 2 threads | {kernel_rates} | 3.0 x | 2.0 x |" in page and "(avx2; 12 drawn ones)" in page
    assert "encoding `jpeg`, relative to FFCV, jpg | at least 3.0 x | 3.5 x, met | 3.5 x, met |" in page
    pytest.importorskip("matplotlib")
    figures.draw_photographs(result, tmp_path / "chart.png")
    with Image.open(tmp_path / "chart.png") as image:
        assert len(image.convert("RGB").getcolors(10**6) or ()) > 10


def test_files_are_copied_into_one(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text(name * SIDE)
    copy_files([tmp_path / "a", tmp_path / "b"], tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "a" * SIDE + "b" * SIDE


def test_a_folder_without_photographs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as error:
        main(["photographs", "--photographs", str(tmp_path)])
    assert error.value.code == 2
