"""The project's benchmarks on tiny sizes, and the page that is made of results."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks import figures, torchvision_transforms, training
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.figures import CHART, PAGE, README, chart_of, draw, load_results, page
from benchmarks.gpu.run import PARTS, main as gpu, share_of
from benchmarks.loading import data_of, entries_of
from benchmarks.measure import Settings
from benchmarks.peers import MEMCPY, OURS
from benchmarks.race import Entry, race
from benchmarks.samples import make_noise
from training_stores import labelled

RESULTS = load_results()


@pytest.mark.slow
@pytest.mark.drawn(2, of="races")
def test_a_race_of_ways_that_work_one_that_fails_and_one_that_delivers_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.race.AT_LEAST", 0.01)
    make_noise(tmp_path / "noise", 21, (8, 6, 3))
    noise = data_of("", tmp_path / "noise")
    whole = Entry("TensorDataset", "whole batches", 4, group="tensors", threads=0)
    others = [whole, *entries_of(MEMCPY, 4, ["1 thread"]), Entry("Broken", "", 4, group="nonsense")]
    found = race(noise, entries_of(OURS, 4), others, tmp_path / "race", repeat=2)
    assert [way["title"] for way in found] == ["tensorstore-ds", "TensorDataset", "memcpy", "Broken"]
    assert all(way["rate"] and way["cpu_rate"] and way["ratio"] and len(way["seconds"]) == 2 for way in found[:3])
    assert found[0]["ratio"] == 1 and found[3]["rate"] is None and "nonsense" in found[3]["reason"]
    assert not list((tmp_path / "race").iterdir())  # what was converted is gone
    np.save(tmp_path / "marks.npy", np.arange(21, dtype=np.uint64))
    wrong = replace(noise, facts={**noise.facts, "marks": str(tmp_path / "marks.npy")})
    (result,) = race(wrong, entries_of(MEMCPY, 4, ["1 thread"]), [], tmp_path / "wrong", repeat=1)
    assert result["rate"] is None and "not what is stored" in result["reason"]


@pytest.mark.slow
def test_a_measurement_becomes_a_file_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = training.trained(labelled(tmp_path), tmp_path / "run", 32, 2)
    assert run["accuracy"] == run["curve"][-1]["accuracy"] and run["seconds"] > 0
    (tmp_path / "faces").mkdir()
    Image.new("RGB", (50, 40), (9, 8, 7)).save(tmp_path / "faces" / "0.jpg")
    monkeypatch.setattr(torchvision_transforms, "SIZES", ((16, 3, 1e-9),))
    monkeypatch.setattr(torchvision_transforms, "_LEAST_SECONDS", 0)
    result = torchvision_transforms.measure(Settings(tmp_path, tmp_path, "", 1, photographs=tmp_path))
    shown = page({"torchvision_transforms": json.loads(json.dumps(result))})
    assert "| 16x16x3, batch 3, uint8: the slowest batch transform" in shown
    written: list[Any] = []
    (tmp_path / "train").mkdir()
    monkeypatch.setattr("benchmarks.__main__.MEASUREMENTS", {"one": lambda _: result})
    monkeypatch.setattr(figures, "main", written.append)
    for results, pages in ((Path("elsewhere"), []), (tmp_path / "out", [[]])):  # only the project's become the page
        monkeypatch.setattr("benchmarks.__main__.RESULTS", results)
        main(["one", "--mnist", str(tmp_path), "--results", str(tmp_path / "out")])
        assert [file.name for file in (tmp_path / "out").iterdir()] == ["one.json"] and written == pages


def test_pages_are_made_of_the_results() -> None:
    assert set(RESULTS) <= {*MEASUREMENTS, "gpu"}
    assert PAGE.read_text() == page(RESULTS), "python -m benchmarks.figures writes it"
    readme = README.read_text()
    assert readme == figures.text_with(readme, chart_of(RESULTS["photographs"]))
    assert CHART.read_text() == draw(RESULTS["photographs"])


def test_the_readme_has_no_other_figures_than_the_page() -> None:
    text = re.sub(r"^```.*?^```", "", README.read_text(), flags=re.MULTILINE | re.DOTALL)
    rates = re.findall(r"\d+,\d{3}", text)
    assert rates and {*rates} <= {*re.findall(r"\d+,\d{3}", PAGE.read_text())}


@pytest.mark.parametrize("command", [main, gpu])
@pytest.mark.parametrize("arguments", [["nonsense"], ["--out", "/nowhere/at/all.json"], ["--photographs=/none"]])
def test_wrong_usage(command: Any, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command(arguments)
    assert ended.value.code == 2 and capsys.readouterr().err
    assert gpu(["--list"]) == 0
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == list(PARTS)


def test_all_parts_for_a_gpu_begin_within_its_minutes() -> None:
    left, limits = 480.0, [part.limit for part in PARTS.values()]
    for place, limit in enumerate(limits):
        share = share_of(left, limits[place:])
        assert 20 <= share <= limit
        left -= share
    assert left >= 0 and share_of(1000, [50, 60]) == 50
