"""Image files are predicted as if they had been converted."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from learners import randomized
from stores import Samples, png_bytes
from tensorstore_ds.annex.training import prediction
from tensorstore_ds.annex.training.augmentation import eval_transform, normalize
from tensorstore_ds.annex.training.checkpoint import ModelCard, save
from tensorstore_ds.annex.training.data import task_of
from tensorstore_ds.annex.training.options import TrainOptions, ViTOptions
from tensorstore_ds.annex.training.prediction import Prediction, predict
from tensorstore_ds.annex.training.tasks import Classification, Keypoints
from tensorstore_ds.annex.training.vit import ViT
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import OptionError, SourceError, TrainingError
from tensorstore_ds.format.schema import Keypoints as Names
from tensorstore_ds.imaging.codecs import Color
from tensorstore_ds.imaging.placement import FITS, Fit
from training_stores import one_line

pytestmark = pytest.mark.usefixtures("one_thread")

STORED = (12, 20)  # height, width
#: The stored size, others of its aspect, wider, higher, and very small.
SIZES = [STORED, (24, 40), (6, 10), (12, 50), (31, 9), (1, 3)]
OPTIONS = TrainOptions(augment="none")


def files(folder: Path, shape: tuple[int, ...] = (3,), sizes: Any = SIZES) -> list[Path]:
    """An image file of each size, in class folders."""
    rng = np.random.default_rng(0)
    paths = []
    for i, size in enumerate(sizes):
        path = folder / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png_bytes(rng.integers(0, 256, (*size, *shape), np.uint8)))
        paths.append(path)
    return paths


def model(vit: ViTOptions, outputs: int) -> ViT:
    made: ViT = randomized(ViT(vit, outputs).eval())
    return made


def shape(size: tuple[int, int] = STORED, channels: int = 3) -> ViTOptions:
    return ViTOptions(size, channels, patch_size=4, width=8, depth=1, heads=2, mlp_width=8)


def kept(path: Path, made: ViT, store: tsds.Store, fit: Fit = "pad") -> Path:
    """A checkpoint as a run on the store writes it."""
    split = store["train"]
    normalized = normalize(split)
    card = ModelCard(made.options, task_of(split), normalized.mean, normalized.std, STORED, fit)
    save(path, card, {"weights": made.state_dict()})
    return path


def by_hand(made: ViT, store: tsds.Store) -> dict[str, list[float]]:
    """Probabilities of the stored images by the name of their file."""
    split = store["train"]
    images = torch.from_numpy(np.asarray(split["image"]).copy()).permute(0, 3, 1, 2)
    with torch.no_grad():
        outputs = made(eval_transform(split, OPTIONS, made.options)({"image": images})["image"])
    rows = outputs.softmax(1).tolist()
    return {Path(split["key"][row]).name: rows[row] for row in range(len(split))}


def probabilities(said: Prediction, classes: str = "ab") -> list[float]:
    found = {one["class"]: one["probability"] for one in said.says["best"]}
    assert said.says["class"] == max(found, key=found.__getitem__)
    assert said.says["probability"] == max(found.values())
    return [found[name] for name in classes]


# --- classes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [STORED, (8, 8)], ids=["own size", "another"])
def test_files_are_fitted_as_the_conversion_did(tmp_path: Path, fit: Fit, size: tuple[int, int]) -> None:
    paths = files(tmp_path / "images")
    tsds.convert(tmp_path / "images", tmp_path / "s.tsds", ConvertOptions(workers=0, fit=tsds.Fit(STORED, fit)))
    store = tsds.open(tmp_path / "s.tsds")
    made = model(shape(size), 2)
    expected = by_hand(made, store)
    found = list(predict(kept(tmp_path / "best.pt", made, store, fit), paths))
    assert [said.path for said in found] == paths
    for said in found:
        assert probabilities(said) == pytest.approx(expected[said.path.name], abs=1e-5)
    assert len({round(said.says["probability"], 4) for said in found}) > 2


@pytest.mark.parametrize(("color", "channels"), [("gray", 1), ("rgb", 3), ("rgba", 4)])
def test_files_get_the_colors_of_the_store(tmp_path: Path, color: Color, channels: int) -> None:
    paths = files(tmp_path / "images", sizes=[STORED] * 4)
    for path, kind in zip(paths[:3], ((), (2,), (4,)), strict=True):  # gray, gray with alpha, color with alpha
        pixels = np.random.default_rng(7).integers(0, 256, (*STORED, *kind), np.uint8)
        path.write_bytes(png_bytes(pixels))
    tsds.convert(tmp_path / "images", tmp_path / "s.tsds", ConvertOptions(workers=0, color=color))
    store = tsds.open(tmp_path / "s.tsds")
    made = model(shape(channels=channels), 2)
    expected = by_hand(made, store)
    for said in predict(kept(tmp_path / "best.pt", made, store), paths):
        assert probabilities(said) == pytest.approx(expected[said.path.name], abs=1e-5)


def test_the_orientation_that_a_file_asks_for_is_applied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    upright = Image.fromarray(rng.integers(0, 256, (*STORED, 3), np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise by 90 degrees
    (tmp_path / "images" / "a").mkdir(parents=True)
    upright.save(tmp_path / "images" / "a" / "up.png")
    upright.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "images" / "a" / "turned.png", exif=exif)
    files(tmp_path / "images", sizes=[STORED] * 2)
    tsds.convert(tmp_path / "images", tmp_path / "s.tsds", ConvertOptions(workers=0))
    checkpoint = kept(tmp_path / "best.pt", model(shape(), 2), tsds.open(tmp_path / "s.tsds"))
    up, turned = predict(checkpoint, [tmp_path / "images" / "a" / name for name in ("up.png", "turned.png")])
    assert up.says == turned.says


@pytest.mark.parametrize("stored", [STORED, None])
def test_avif_and_heic_files(tmp_path: Path, stored: tuple[int, int] | None) -> None:
    made = model(shape(), 2)
    card = ModelCard(shape(), Classification(("a", "b"), label_field="label"), (0.5,) * 3, (0.2,) * 3, stored)
    save(tmp_path / "best.pt", card, {"weights": made.state_dict()})
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (30, 44, 3), np.uint8))
    pillow_heif.from_pillow(image).save(tmp_path / "a.heic")
    image.save(tmp_path / "b.avif")
    Image.fromarray(np.asarray(pillow_heif.open_heif(tmp_path / "a.heic"))).save(tmp_path / "a.png")
    Image.open(tmp_path / "b.avif").save(tmp_path / "b.png")
    names = ("a.heic", "b.avif", "a.png", "b.png")
    heic, avif, *pixels = (said.says for said in predict(tmp_path / "best.pt", [tmp_path / name for name in names]))
    assert [heic, avif] == pixels


def test_any_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "BATCH", 2)
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = files(tmp_path / "images")
    tsds.convert(tmp_path / "images", tmp_path / "s.tsds", ConvertOptions(workers=0, size=STORED))
    checkpoint = kept(tmp_path / "best.pt", model(shape(), 2), tsds.open(tmp_path / "s.tsds"))
    together = list(predict(str(checkpoint), iter(map(str, paths[:5])), device="cpu"))
    assert [said.path for said in together] == paths[:5]
    for path, other in zip(paths, together, strict=False):
        (one,) = predict(checkpoint, [f"~/{path.relative_to(tmp_path)}"])  # the user's own folder
        assert one.path == path and probabilities(one) == pytest.approx(probabilities(other), abs=1e-6)
    assert list(predict(checkpoint, [])) == []


# --- keypoints ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [STORED, (8, 8)], ids=["own size", "another"])
def test_points_come_back_to_where_they_are_in_the_file(tmp_path: Path, fit: Fit, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    paths = files(tmp_path / "images", sizes=SIZES)
    truth = [rng.uniform(-3, 40, (1, 2, 2)) for _ in SIZES]
    samples = [
        {"image": np.asarray(Image.open(path)), "keypoints": points, "boxes": np.array([[0.0, 0, w, h]])}
        for path, points, (h, w) in zip(paths, truth, SIZES, strict=True)
    ]
    options = ConvertOptions(workers=0, fit=tsds.Fit(STORED, fit), keypoints=Names(("left", "right")))
    tsds.convert(Samples(samples), tmp_path / "s.tsds", options)
    store = tsds.open(tmp_path / "s.tsds")
    assert isinstance(task_of(store["train"]), Keypoints)
    for row, (path, points) in enumerate(zip(paths, truth, strict=True)):
        made = ViT(shape(size), 4)
        stored = store["train"]["objects"][row]["keypoints"][0]
        torch.nn.init.zeros_(made.heads.head.weight)
        made.heads.head.bias.data = torch.from_numpy(stored / (STORED[1], STORED[0]) - 0.5).float().flatten()
        (said,) = predict(kept(tmp_path / "best.pt", made, store, fit), [path])
        assert list(said.says["keypoints"]) == ["left", "right"]
        np.testing.assert_allclose(list(said.says["keypoints"].values()), points[0], atol=1e-3)


# --- what cannot be predicted ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("errors") / "best.pt"
    card = ModelCard(shape(), Classification(("a", "b"), label_field="label"), (0.5,) * 3, (0.2,) * 3, STORED)
    save(path, card, {"weights": model(shape(), 2).state_dict()})
    return path


def bytes_of(pixels: Any, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read: No such file or directory."),
        (b"", "expected an image file, found an empty file."),
        (b"an essay\nof two lines", "expected an image file, found something else."),
        (bytes_of(np.random.default_rng(0).integers(0, 256, STORED, np.uint8))[:-60], "this image is damaged"),
        (bytes_of(np.zeros(STORED, np.uint16)), "expected uint8 with 3 channels, found uint16 with 3."),
        (bytes_of(np.zeros(STORED, np.float32), "TIFF"), "expected uint8 with 3 channels, found float32 with 3."),
    ],
    ids=["missing", "empty", "text", "truncated", "16 bits", "floating-point"],
)
def test_an_image_that_cannot_be_read(tmp_path: Path, checkpoint: Path, content: bytes | None, text: str) -> None:
    good, bad = files(tmp_path / "images")[0], tmp_path / "bad\nname.png"
    if content is not None:
        bad.write_bytes(content)
    with pytest.raises(SourceError) as error:
        list(predict(checkpoint, [good, bad]))
    assert "bad\\nname.png: " in one_line(error.value) and text in str(error.value)
    (alone,) = predict(checkpoint, good)
    assert alone.path == good
    first, skipped, last = predict(checkpoint, [good, bad, good], on_error="skip")
    assert (first, last) == (alone, alone) and skipped.path == bad
    assert list(skipped.says) == ["error"] and text in skipped.says["error"]
    assert [each.path for each in predict(checkpoint, bad, on_error="skip")] == [bad]


def test_a_folder_without_images_and_a_pipe(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(OptionError) as error:
        list(predict(checkpoint, [tmp_path]))
    assert "expected image files, found none." in one_line(error.value)
    os.mkfifo(tmp_path / "x.png")  # nobody writes to it: it would be waited for
    with pytest.raises(SourceError, match=r"x\.png: expected a file, found a pipe\."):
        list(predict(checkpoint, [tmp_path / "x.png"]))


def test_a_checkpoint_or_a_device_that_cannot_be_used(tmp_path: Path, checkpoint: Path) -> None:
    with pytest.raises(FileNotFoundError) as missing:
        list(predict(tmp_path / "missing.pt", []))
    assert "\n" not in str(missing.value)
    data = checkpoint.read_bytes()
    (tmp_path / "damaged.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(TrainingError) as error:
        list(predict(tmp_path / "damaged.pt", []))
    assert "damaged.pt: expected a checkpoint of tsds train" in one_line(error.value)
    with pytest.raises(OptionError) as refused:
        list(predict(checkpoint, [], device="xpu:7"))
    assert "`device`: expected one that this machine has, found xpu:7" in one_line(refused.value)
