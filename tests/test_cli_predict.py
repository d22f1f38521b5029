from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import tensorstore_ds
from small_stores import tsds
from training_stores import annotated, labelled, trained
from tsds_cli.annex.training import _line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run; `source` beside it has the images."""
    folder = tmp_path_factory.mktemp("predict")
    trained(labelled(folder), folder / "run", epochs=3, learning_rate=5e-3, augment="none")
    return folder


def test_it_says_what_the_evaluation_saw(run: Path) -> None:
    """Predicted from the files of the evaluated split, as many are right as the report says."""
    folder = run / "source" / "test"
    images = sorted(folder.glob("*/*.png"))
    done = tsds("predict", run / "run" / "best.pt", folder, "--device", "cpu", "--json")
    assert done.exit_code == 0 and done.stderr == ""
    found = json.loads(done.stdout)
    assert [entry["path"] for entry in found] == [str(path) for path in images]
    right = sum(entry["class"] == path.parent.name for entry, path in zip(found, images, strict=True))
    report = json.loads((run / "run" / "report.json").read_text("utf-8"))
    assert right / len(images) == pytest.approx(report["best"]["accuracy"])
    for entry in found:
        assert entry["best"][0] == {"class": entry["class"], "probability": entry["probability"]}
        assert sum(other["probability"] for other in entry["best"]) == pytest.approx(1, abs=1e-4)
    done = tsds("predict", run / "run" / "last.pt", images[0])
    share = r"\d+\.\d%"
    assert re.fullmatch(rf"{images[0]}: [abc] {share} \([abc] {share}, [abc] {share}\)\n", done.stdout)
    assert tsds("predict", run / "run" / "best.pt").exit_code == 2


def test_a_packed_store_of_any_name(run: Path, tmp_path: Path) -> None:
    tensorstore_ds.pack(run / "store.tsds", tmp_path / "packed.zip")
    said = [
        tsds("predict", run / "run" / "best.pt", place).output
        for place in (run / "store.tsds", tmp_path / "packed.zip")
    ]
    assert said[0].split(":")[1:] == said[1].split(":")[1:] and "accuracy" in said[0]
    refused = tsds("predict", run / "run" / "best.pt", tmp_path / "packed.zip", "--on-error", "skip")
    assert (refused.exit_code, refused.stderr.count("\n")) == (1, 1) and "found a store. Leave it out" in refused.stderr


@pytest.mark.parametrize(
    ("scores", "line"),
    [
        ([0.9, 0.2], "cat 90.0% at (1, 2, 3, 4)"),
        ([0.42, 0.2], "no object of 50% or more, the best has 42.0%: pass --score 0.42"),
        ([], "no object of 50% or more"),
    ],
)
def test_objects_below_the_score(scores: list[float], line: str) -> None:
    objects = [{"class": "cat", "score": score, "box": (1, 2, 3, 4)} for score in scores]
    assert _line(SimpleNamespace(says={"objects": objects}), 0.5) == line


@pytest.mark.parametrize(
    ("checkpoint", "image", "message"),
    [
        ("missing.pt", "source/test/a/0000.png", "missing.pt: No such file or directory."),
        ("source/test/a/0000.png", "source/test/a/0000.png", "expected a checkpoint of tsds train"),
        ("run/best.pt", "nowhere.png", "nowhere.png: cannot be read: No such file or directory."),
        ("run/best.pt", "empty", "empty: expected image files, found none. Give files, a folder of images, or a"),
        ("run/best.pt", "run/report.json", "report.json"),
    ],
)
def test_one_line_for_what_cannot_be(run: Path, checkpoint: str, image: str, message: str) -> None:
    (run / "empty").mkdir(exist_ok=True)
    done = tsds("predict", run / checkpoint, run / image)
    assert done.exit_code == 1 and len(done.stderr.splitlines()) == 1
    assert message in done.stderr and done.stderr.startswith("tsds: ")


def test_metrics_of_a_store_are_those_of_the_evaluation(run: Path) -> None:
    best = json.loads((run / "run" / "report.json").read_text("utf-8"))["best"]
    options = ("--split", "test", "--device", "cpu")
    done = tsds("predict", run / "run" / "best.pt", run / "store.tsds", *options, "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found.pop("split"), found.pop("samples")) == ("test", 21)
    assert set(found) == {"loss", "accuracy", "balanced_accuracy"}
    assert found == pytest.approx({name: best[name] for name in found}, rel=1e-5)
    lines = tsds("predict", run / "run" / "best.pt", run / "store.tsds", *options).stdout.splitlines()
    assert lines[0] == f"{run / 'store.tsds'}, test: 21 samples"
    assert f"accuracy {best['accuracy']:.3f}" in lines[1]
    message = "best.pt: expected a model for detection, found one for classification."
    with pytest.raises(tensorstore_ds.errors.TrainingError, match=message):
        tensorstore_ds.training.predict_store(run / "run" / "best.pt", run / "store.tsds", device="cpu")


@pytest.mark.parametrize(
    ("task", "pattern"),
    [
        ("keypoints", r"(\w+=\(-?\d+\.\d, -?\d+\.\d\) ?){2}"),
        ("multilabel", r"none|(small|large) .*"),
        ("classification+keypoints", r"(small|large) \d+\.\d% .*; (\w+=\(.*\) ?){2}"),
    ],
)
def test_lines_and_metrics_of_other_tasks(task: Any, pattern: str, tmp_path: Path) -> None:
    store = annotated(tmp_path / "s.tsds")
    report, _ = trained(store, tmp_path / task, task=task, epochs=1, augment="none", eval_split="train")
    found = tensorstore_ds.training.evaluate(tmp_path / task / "best.pt", store, device="cpu")
    assert found.split == "train" and found.samples == 24
    assert found.metrics == pytest.approx({name: report.best[name] for name in found.metrics}, rel=1e-5)
    image = tmp_path / "image.png"
    Image.new("L", (32, 16)).save(image)
    done = tsds("predict", tmp_path / task / "best.pt", image)
    assert done.exit_code == 0, done.stderr
    assert re.fullmatch(pattern, done.stdout.removeprefix(f"{image}: ").strip()), done.stdout


def test_files_of_detectors_beside_probabilities_are_refused(run: Path, tmp_path: Path) -> None:
    flags = ("--probabilities", tmp_path / "p.npy", "--results", tmp_path / "r.json")
    done = tsds("predict", run / "run" / "best.pt", run / "store.tsds", *flags)
    assert done.exit_code == 1 and "--results: expected it without --probabilities, found both." in done.stderr
    assert not list(tmp_path.iterdir())
