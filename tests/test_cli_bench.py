from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tensorstore_ds
from stores import class_folders
from tensorstore_ds.annex.measuring import BenchOptions
from tensorstore_ds.annex.measuring.bench_results import Cell, Comparison, Way
from tsds_cli.annex import measure as command
from tsds_cli.messages import failure_of


def run(*arguments: object) -> Result:
    """As the group runs it: what a user can cause is one line."""
    result = CliRunner().invoke(command.bench, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        failure = failure_of(result.exception)
        if failure is None:
            raise result.exception
    return result


@pytest.mark.slow
@pytest.mark.drawn(2, of="races")
def test_a_table_of_all_ways_and_batch_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and the store, on one core's worth of workers, over 18 images."""
    folder, source = tmp_path, class_folders(tmp_path / "raw", per_class=9)
    tensorstore_ds.convert(source, folder / "s.tsds", tensorstore_ds.ConvertOptions(workers=0))
    monkeypatch.setattr("tensorstore_ds.annex.measuring.bench.usable_cores", lambda: 1)
    monkeypatch.setattr("tensorstore_ds.annex.measuring.bench.ROUNDS", 1)
    arguments = ["--raw", source, "--seconds", 0.04, "--batch-sizes", "5,100", "--device", "cpu"]
    done = run(folder / "s.tsds", *arguments, "--ways", "files,store,device", "--out", folder / "out")
    assert done.exit_code == 0, done.output
    assert "s.tsds, train  18 samples of 6x5x1, batches on cpu" in done.stdout
    assert "batch 5, 4 batches per epoch" in done.stdout and "batch 18, 1 batch per epoch" in done.stdout
    time = r"[\d.]+ [mµ]?s +[\d,]+ +[\d,.]+"
    for title in ("files (ImageFolder), 0 workers", "files (ImageFolder), 1 worker", "store, tensorstore-ds"):
        assert len(re.findall(rf"^  {re.escape(title)} +{time} +{time} +[\d.]+ [MG]B$", done.stdout, re.MULTILINE)) == 2
    firsts = re.findall(r"^  files \(ImageFolder\), 0 workers +[\d.]+ m?s +[\d.]+ m?s +18", done.stdout, re.MULTILINE)
    assert firsts or "could not be dropped" in done.stdout or "does not tell" in done.stdout
    assert done.stdout.count("all 18 samples: pixels and labels as stored") == 3
    assert "store, tensorstore-ds on the GPU" in done.stdout and "not measured: there is no GPU" in done.stdout
    for phase in ("loading", "training"):
        said = rf"^{phase}: tensorstore-ds has [\d,.]+( to [\d,.]+)?x the speed of the best way from files$"
        assert re.search(said, done.stdout, re.MULTILINE)
    assert "as fast as the best TensorDataset" not in done.stdout

    data = json.loads((folder / "out" / "bench.json").read_text())
    assert data["samples"] == 18 and data["batch_sizes"] == [5, 18] and not data["interrupted"]
    cells = {(cell["way"], cell["phase"], cell["batch_size"]): cell for cell in data["cells"]}
    assert len(cells) == 4 * 2 * 2
    assert all((cell["seconds"] is None) == (cell["way"] == "device") for cell in cells.values())
    assert cells["files-0", "load", 5]["ratio"] == 1
    correct = {row["name"]: row["correct"] for row in data["ways"] if row["correct"] is not None}
    assert correct == dict.fromkeys(("files-0", "files-1", "store"), True)
    assert len(list(source.rglob("*.png"))) == 36 and not list(folder.rglob("VOCdevkit"))  # the source is as it was


# --- without measuring -----------------------------------------------------------------------------------------------


def comparison(**changes: Any) -> Comparison:
    facts: dict[str, Any] = {"store": "/data/s.tsds", "split": "train", "samples": 1000, "shape": None, "device": "cpu"}
    facts |= {"machine": {"cpu": "AMD"}, "batch_sizes": (100,), "seconds": 1.0, "took": 3.0, "interrupted": False}
    ways = [Way("files-0", "files, 0 workers", "files", 0, False), Way("store", "ours", "store", 0, True)]
    cells = [Cell("files-0", "load", 100, 4.0, (4.0, 4.0), 250.0, 1.0, 5 * 10**8)]
    cells += [Cell("store", "load", 100, reason="it broke")]
    return Comparison(**{**facts, "baseline": None, "ways": ways, "cells": cells, **changes})


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command asks the library for; answered with what is put first."""
    seen: list[Any] = [comparison()]

    def bench(store: Path, options: BenchOptions, *, progress: object) -> Comparison:
        seen.append(options)
        found: Comparison = seen[0]
        return found

    monkeypatch.setattr("tensorstore_ds.bench", bench)
    return seen


def test_what_is_shown(asked: list[Any], tmp_path: Path) -> None:
    shown = run("s.tsds", "--out", tmp_path).stdout
    assert re.search(r"^  files, 0 workers +4.0 s +250 +1.0 +500 MB$", shown, re.MULTILINE)
    assert re.search(r"^  ours +- +- +- +-$", shown, re.MULTILINE)
    assert "loading, batch 100, ours: not measured, it broke" in shown
    wrong = Way("store", "ours", "store", 0, True, delivered="990 samples, the store has 1,000", correct=False)
    asked[0] = comparison(ways=[wrong], cells=[], notes=["training was not measured: it was left out"])
    shown = run("s.tsds", "--out", tmp_path).stdout
    assert re.search(r"^  ours +990 samples, the store has 1,000$", shown, re.MULTILINE)
    assert "training was not measured: it was left out" in shown
    found = Cell("store", "load", 100, 4.0, (4.0, 4.0), 250.0, 1.0, 5 * 10**8, 10**9)
    asked[0] = comparison(device="NVIDIA H200", cells=[found])
    shown = run("s.tsds", "--out", tmp_path).stdout
    assert re.search(r"memory +GPU memory$", shown, re.MULTILINE)
    assert re.search(r"^  ours +4.0 s +250 +1.0 +500 MB +1.0 GB$", shown, re.MULTILINE)


def test_json_and_ctrl_c(asked: list[Any], tmp_path: Path) -> None:
    done = run("s.tsds", "--out", tmp_path, "--json")
    assert json.loads(done.stdout) == json.loads((tmp_path / "bench.json").read_text()) == asked[0].as_data()
    asked[0] = comparison(interrupted=True)
    done = run("s.tsds", "--out", tmp_path)
    assert done.exit_code == 130
    assert "interrupted; what was measured until then is written" in done.stderr
    assert json.loads((tmp_path / "bench.json").read_text())["interrupted"] is True


def test_the_folder_is_named_after_the_store(asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("/data/s.tsds").exit_code == 0
    assert (tmp_path / "s.tsds.bench" / "bench.json").exists()
