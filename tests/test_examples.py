from __future__ import annotations

import difflib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import tensorstore_ds as tsds
from mask_sources import write_folders
from small_stores import ROOT
from stores import store_of
from tensorstore_ds.annex import demo
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.format.schema import Keypoints

EXAMPLES = ROOT / "examples"
#: What Lightning's and Accelerate's own lines set off, and what Lightning says of any loader without worker processes.
LIGHTNING = (
    "ignore:.*LeafSpec.. is deprecated:FutureWarning",
    "ignore:.*does not have many workers",
    "ignore:.*number of training batches .* is smaller than the logging interval",
    "ignore:.*GPU available but not used",
)
Example = Callable[..., str]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 digits, in folders and, as `digits.tsds` beside them, as a store of RGB images."""
    root = tmp_path_factory.mktemp("examples")
    images, labels = demo.load_digits()
    demo.write_digits(root / "digits", images[:500], labels[:500])
    tsds.convert(root / "digits", root / "digits.tsds", ConvertOptions(color="rgb", workers=0))
    return root / "digits.tsds"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """Runs an example in this process, as if from the command line; returns the one line that it printed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        (line,) = capsys.readouterr().out.splitlines()
        return line

    yield run
    torch.set_num_threads(threads)


def number(line: str, name: str) -> float:
    """What a line says of something."""
    found = re.search(rf"\b{name} (\d+\.\d+)", line)
    assert found, line
    return float(found[1])


def test_cross_validation(example: Example, digits: Path) -> None:
    line = example("cross_validation.py", digits, "-k", 3, "--epochs", 3)
    found = re.fullmatch(r"accuracy (0\.\d{3}) ± 0\.\d{3} in 3 folds of \d+ images", line)
    assert found is not None and float(found[1]) > 0.7


def test_classification_learns_digits(example: Example, digits: Path) -> None:
    line = example("classification.py", digits, "--epochs", 4)
    assert line.endswith("on 100 images after 4 epochs")
    assert number(line, "accuracy") > 0.8


def test_latents_are_stored_once_and_trained_on(example: Example, digits: Path, tmp_path: Path) -> None:
    store = tmp_path / "some.tsds"
    tsds.editing.sample_store(digits, store, 4)
    lines = {example("latents.py", store, "--epochs", 3) for _ in range(2)}  # the second reads what the first stored
    (found,) = (re.findall(r"0\.\d+", line) for line in lines)
    assert float(found[1]) < float(found[0])
    assert tsds.open(store)["test"]["latent"].shape[1:] == (4, 2, 2)


@pytest.mark.slow
def test_a_vision_transformer_learns_digits(example: Example, digits: Path) -> None:
    line = example("mnist_vit.py", digits, "--epochs", 12, "--batch-size", 50)
    assert "of 100 after 12 epochs" in line and number(line, "accuracy") > 0.6


@pytest.mark.slow
def test_writing_makes_the_same_store_with_any_number_of_processes(tmp_path: Path) -> None:
    for count in (1, 3):
        words = [EXAMPLES / "writing.py", tmp_path / f"{count}.tsds", "--processes", str(count)]
        run = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, timeout=60)
        assert run.stdout.startswith("200 images with ") and run.stdout.endswith(" discs\n")
    one, three = (tsds.open(tmp_path / f"{count}.tsds") for count in (1, 3))
    assert one.manifest.splits == three.manifest.splits
    assert three["train"]["key"][199] == "seed-000199" and not list(tmp_path.glob("*.parts"))


@pytest.mark.slow
def test_detection_takes_a_folder_of_images_of_differing_sizes(example: Example, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for row in range(6):
        height, width = rng.integers(60, 120, 2).tolist()
        pixels = rng.integers(0, 90, (height, width, 3), np.uint8)
        pixels[10:40, 20:50] = 255
        write_voc(tmp_path / "VOC", f"{row}", pixels, ("square", 20, 10, 50, 40))
    line = example("detection.py", tmp_path / "VOC", "--steps", 2)
    assert 0 < number(line, "loss") < 100
    dataset = tsds.StoreDataset(tmp_path / "VOC.tsds")
    assert len({tuple(shape) for shape in dataset.split.image_shapes.tolist()}) > 1
    for how in ("list", "padded"):
        for batch in tsds.DataLoader(dataset, 3, collate_images=how):
            boxes = [objects["boxes"].tolist() for objects in batch["objects"]]
            assert boxes == [[[20, 10, 50, 40]]] * 3  # those of the XML
            for image in batch["image"]:
                assert (image[:, 10:40, 20:50] == 255).all() and (image[:, :10] < 90).all()


def write_voc(root: Path, stem: str, pixels: np.ndarray, *objects: tuple[str, int, int, int, int]) -> None:
    """Add an image to a folder in Pascal VOC."""
    for folder in ("Annotations", "JPEGImages"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(root / "JPEGImages" / f"{stem}.png")
    text = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        "</bndbox></object>"
        for name, x1, y1, x2, y2 in objects
    )
    (root / "Annotations" / f"{stem}.xml").write_text(
        f"<annotation><filename>{stem}.png</filename>{text}</annotation>", "utf-8"
    )


@pytest.mark.slow
def test_detection_takes_lists_of_targets(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "SCENES", 6)
    monkeypatch.setattr(demo, "_TRAIN_SCENES", 5)
    demo.write_scenes(tmp_path / "scenes", *demo.load_digits())
    tsds.convert(tmp_path / "scenes", tmp_path / "scenes.tsds", ConvertOptions(workers=0))
    line = example("detection.py", tmp_path / "scenes.tsds", "--steps", 2)
    assert 0 < number(line, "loss") < 100
    assert line.endswith("after 2 steps, of loss_box_reg, loss_classifier, loss_objectness, loss_rpn_box_reg")


def test_keypoints_are_learned_though_some_are_absent(example: Example, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = []
    for row in range(96):
        image = rng.integers(0, 20, (16, 20, 3), np.uint8)
        x, y = rng.integers(2, [18, 14])
        image[y - 2 : y + 2, x - 2 : x + 2, 0] = 255
        points = np.array([[[x, y], [np.nan, np.nan] if row % 3 else [x, y]]], np.float32)
        box = np.array([[x - 2, y - 2, x + 2, y + 2]], np.float32)
        objects = {"boxes": box, "labels": np.zeros(1, np.int64), "keypoints": points}
        none = {name: value[:0] for name, value in objects.items()}
        samples.append({"image": image, **(none if row % 12 == 11 else objects)})
    names = Keypoints(("left", "right"), ((0, 1),))
    store_of(tmp_path / "points.tsds", samples, classes=["square"], keypoints=names)
    first = example("keypoints.py", tmp_path / "points.tsds", "--epochs", 1)
    line = example("keypoints.py", tmp_path / "points.tsds", "--epochs", 12)
    assert line.endswith("pixels, 120 keypoints after 12 epochs")  # 88 samples with one, 32 of them with a second
    assert number(line, "distance") < 0.5 * number(first, "distance")


def test_segmentation_finds_squares(example: Example, tmp_path: Path) -> None:
    write_folders(tmp_path / "city", 16)
    tsds.convert(tmp_path / "city", tmp_path / "city.tsds", ConvertOptions(workers=0))
    line = example("segmentation.py", tmp_path / "city.tsds", "--epochs", 8)
    assert line.endswith("on 16 images after 8 epochs")
    assert number(line, "IoU") > 0.8


@pytest.mark.filterwarnings(*LIGHTNING)
def test_lightning_learns_digits(example: Example, digits: Path) -> None:
    pytest.importorskip("lightning")
    line = example("lightning_module.py", digits, "--epochs", 6)
    assert line.endswith("after 6 epochs")
    assert number(line, "accuracy") > 0.8


def test_accelerate_learns_digits(example: Example, digits: Path) -> None:
    pytest.importorskip("accelerate")
    line = example("accelerate_loop.py", digits, "--epochs", 6)
    assert line.endswith("on 100 images after 6 epochs")
    assert number(line, "accuracy") > 0.8


def draw_photographs(folder: Path) -> None:
    """160 JPEG files of differing sizes, a disc on any background in each: the color of the disc is the class."""
    rng = np.random.default_rng(0)
    for row in range(160):
        width, height = (int(side) for side in rng.integers(60, 140, 2))
        image = Image.new("RGB", (width, height), tuple(rng.integers(0, 160, 3).tolist()))
        radius = int(min(width, height) * rng.uniform(0.25, 0.4))
        name = ("blue", "green", "red")[row % 3]
        ImageDraw.Draw(image).circle((width // 2, height // 2), radius, fill=name)
        path = folder / ("test" if row % 4 == 3 else "train") / name / f"{row:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)


def two_ranks(name: str, *arguments: object) -> list[str]:
    """The lines that an example printed that torchrun started in two processes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    command = [*torchrun, str(EXAMPLES / name), *map(str, arguments)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


@pytest.mark.slow
def test_photographs_are_learned_by_two_ranks(tmp_path: Path) -> None:
    draw_photographs(tmp_path / "photos")
    tsds.convert(tmp_path / "photos", tmp_path / "photos.tsds")
    options = ("--epochs", 6, "--batch-size", 8, "--size", 48)
    *epochs, line = two_ranks("imagenet.py", tmp_path / "photos.tsds", *options)
    assert [each[:8] for each in epochs] == [f"epoch {i + 1}:" for i in range(6)]
    assert line.endswith("of 40 after 6 epochs") and number(line, "accuracy") > 0.6
    assert number(line, "accuracy") * 40 == pytest.approx(round(number(line, "accuracy") * 40))  # each sample once


@pytest.mark.slow
def test_two_ranks_of_accelerate_see_every_sample(digits: Path) -> None:
    pytest.importorskip("accelerate")
    (line,) = two_ranks("accelerate_loop.py", digits, "--epochs", 6)
    assert line.endswith("on 100 images after 6 epochs")
    assert number(line, "accuracy") > 0.6  # half as many steps


@pytest.mark.slow
def test_migrating_changes_three_lines_and_no_sample(example: Example, digits: Path) -> None:
    before, after = EXAMPLES / "migrating_before.py", EXAMPLES / "migrating_after.py"
    changed = [
        line
        for line in difflib.unified_diff(before.read_text().splitlines(), after.read_text().splitlines(), n=0)
        if line[0] in "+-" and line[:3] not in ("+++", "---") and '"""' not in line
    ]
    (shown,) = re.findall(r"```diff\n(.*?)```", (EXAMPLES / "README.md").read_text("utf-8"), re.DOTALL)
    assert changed == shown.splitlines()
    assert [line[0] for line in changed].count("+") == 3

    loaded = []
    for path, argument in ((before, digits.with_suffix("")), (after, digits)):
        batches = list(runpy.run_path(str(path))["make_loader"](str(argument)))
        assert [len(labels) for _, labels in batches] == [32] * 12 + [16]
        samples = [
            (int(n), image.numpy().tobytes())
            for images, labels in batches
            for image, n in zip(images, labels, strict=True)
        ]
        loaded.append(sorted(samples))
        assert number(example(path.name, argument, "--epochs", 8), "accuracy") > 0.8
    assert loaded[0] == loaded[1]


def test_readme_names_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    names = [path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("*.py")]  # tests/clients runs clients/
    missing = [name for name in names if f"{name} " not in text and f"`{name}`" not in text]
    assert not missing
