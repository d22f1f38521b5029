from __future__ import annotations

import hashlib
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds
from small_stores import tsds
from tensorstore_ds.annex import demo

pytestmark = pytest.mark.slow


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of a few digits and scenes."""
    images, labels = demo.load_digits()
    monkeypatch.setattr(demo, "load_digits", lambda: (images[:100], labels[:100]))
    monkeypatch.setattr(demo, "SCENES", 6)
    monkeypatch.setattr(demo, "_TRAIN_SCENES", 4)
    monkeypatch.setattr(
        "tensorstore_ds.conversion.shard_conversion.usable_cores", lambda: 0
    )  # processes take long to start


def tree(path: Path) -> dict[str, str]:
    """SHA-256 of every file, by relative path."""
    files = (p for p in sorted(path.rglob("*")) if p.is_file())
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_digits_are_real_and_whole(tmp_path: Path) -> None:
    images, labels = demo.load_digits()
    assert images.shape == (1797, 8, 8) and images.dtype == np.uint8 and images.max() == 255
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    demo.write_digits(tmp_path / "d", images[:50], labels[:50])
    files = sorted((tmp_path / "d").rglob("*.png"))
    assert len(files) == 50
    assert {p.relative_to(tmp_path / "d").parts[0] for p in files} == {"train", "test"}
    for path in files:
        i = int(path.stem)
        assert path.parent.name == str(labels[i])
        np.testing.assert_array_equal(np.asarray(Image.open(path)), images[i])


@pytest.mark.usefixtures("small")
def test_everything_is_made_and_holds_what_was_written(tmp_path: Path) -> None:
    steps = list(demo.run(tmp_path / "demo"))
    assert len(steps) == 9 and all(step.path.exists() and step.seconds > 0 for step in steps)
    digits = tensorstore_ds.open(tmp_path / "demo" / "digits.tsds")
    assert {name: len(digits[name]) for name in digits} == {"train": 80, "test": 20}
    images, labels = demo.load_digits()
    test = np.arange(100) % 5 == 4
    stored = {k: digits["test"]["image"][i] for i in range(20) for k in [digits["test"]["key"][i]]}
    for i in np.flatnonzero(test):
        np.testing.assert_array_equal(stored[f"test/{labels[i]}/{i:04d}.png"][:, :, 0], images[i])
    scenes = tensorstore_ds.open(tmp_path / "demo" / "scenes.tsds")
    assert {name: len(scenes[name]) for name in scenes} == {"train": 4, "val": 2}
    assert scenes["train"].fields["image"].spec.shape == (120, 160, 3)
    boxes = json.loads((tmp_path / "demo" / "scenes-coco" / "annotations" / "instances_val.json").read_text())
    assert len(boxes["annotations"]) == sum(len(each["boxes"]) for each in scenes["val"]["objects"][:])
    for name in ("digits.png", "scenes.png"):
        with Image.open(tmp_path / "demo" / name) as sheet:
            assert min(sheet.size) > 200
    for split in scenes:
        for row in range(len(scenes[split])):
            pixels = scenes[split]["image"][row].astype(float).mean(axis=2)
            objects = scenes[split]["objects"][row]
            assert len(objects["boxes"])
            for x1, y1, x2, y2 in objects["boxes"].astype(int):
                inside = pixels[y1:y2, x1:x2]
                around = np.median(pixels[max(0, y1 - 2) : y2 + 2, max(0, x1 - 2) : x2 + 2])
                assert np.ptp(inside) > 50 and abs(inside - around).max() > 25  # ink, that stands out


@pytest.mark.usefixtures("small")
def test_the_same_is_written_every_time(tmp_path: Path) -> None:
    images, labels = demo.load_digits()
    for name in ("a", "b"):
        demo.write_scenes(tmp_path / name, images, labels)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert len({h for p, h in tree(tmp_path / "a").items() if p.endswith(".jpg")}) == 6


@pytest.mark.usefixtures("small")
def test_a_second_demo_replaces_the_first_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    list(demo.run(out))
    mine = out / "notes.txt"
    mine.write_text("mine")
    (out / "digits" / "stale.png").write_text("stale")
    (out / "scenes.tsds.partial").mkdir()
    list(demo.run(out))
    assert mine.read_text() == "mine"
    assert not (out / "digits" / "stale.png").exists() and not (out / "scenes.tsds.partial").exists()


def test_a_folder_with_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "mine.png").write_text("mine")
    before = tree(tmp_path)
    done = tsds("demo", "--out", tmp_path)
    assert done.exit_code == 1
    assert "Choose another --out." in done.stderr
    assert tree(tmp_path) == before


def test_without_scikit_learn_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    done = tsds("demo", "--out", tmp_path / "demo")
    assert done.exit_code == 1
    assert done.stderr.startswith("tsds: demo: ") and "pip install '.[demo]'" in done.stderr
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("small")
def test_an_unsound_store_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tensorstore_ds.errors.Problem("train", "checksum", "expected one, found another.")
    monkeypatch.setattr(demo, "verify", lambda _: [problem])
    with pytest.raises(tensorstore_ds.TsdsError, match="expected a sound store"):
        list(demo.run(tmp_path / "demo"))


@pytest.mark.usefixtures("small")
def test_the_command_says_what_was_done_and_what_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shown = tsds("demo", "--no-train").stdout
    for word in ("wrote", "converted", "verified", "drew"):
        assert shown.count(f"  {word} ") == 2
    assert "demo/digits.tsds" in shown and "demo/scenes.png" in shown
    assert "tsds info demo/digits.tsds" in shown
    assert (tmp_path / "demo" / "scenes.tsds").is_dir()
    assert "  in all\n" in shown
    assert "elsewhere/scenes.tsds" in tsds("demo", "--out", "elsewhere", "--no-train").stdout


def test_a_stopped_demo_does_not_advise_what_it_cannot_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise tensorstore_ds.errors.TrainingStopped("stopped. Go on with `resume`.", 15)

    monkeypatch.setattr(demo, "run", lambda out: iter([]))
    monkeypatch.setattr(demo, "train_digits", stopped)
    done = tsds("demo", "--out", tmp_path)
    assert (done.exit_code, done.stderr) == (
        143,
        "tsds: interrupted. The same command starts again from the beginning.\n",
    )


@pytest.mark.usefixtures("small")
def test_it_ends_with_a_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "TRAINING", {**demo.TRAINING, "epochs": 2, "device": "cpu"})
    done = tsds("demo", "--out", tmp_path / "demo")
    assert done.exit_code == 0, done.stderr
    run = tmp_path / "demo" / "digits.run"
    assert {"best.pt", "last.pt", "history.jsonl", "report.json", "curves.png"} <= {p.name for p in run.iterdir()}
    assert "trained 2 epochs" in done.stdout
    assert re.search(rf"  drew curves\.png +{run}/curves\.png$", done.stdout, re.M)
    assert re.search(r"accuracy of images not seen  [▁▂▃▄▅▆▇█]{2}  0\.\d{3}", done.stdout)
    again = tsds("demo", "--out", tmp_path / "demo")  # what it left is replaced
    assert again.exit_code == 0, again.stderr
