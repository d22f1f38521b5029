"""torchvision's detectors as `tsds train` calls them, and their weights from files."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import box_iou

import tensorstore_ds as tsds
from tensorstore_ds.annex.checking.boxes import box_ious
from tensorstore_ds.annex.training.detector import detector, letterboxed_back
from tensorstore_ds.annex.training.models import model_options
from tensorstore_ds.annex.training.options import DETECTORS, DetectorOptions, TrainOptions
from tensorstore_ds.annex.training.tasks import Classification, Detection
from tensorstore_ds.annex.training.weights import load_weights
from tensorstore_ds.errors import OptionError, TsdsError
from training_stores import one_line

BUILDERS = {"ssdlite": ssdlite320_mobilenet_v3_large, "fasterrcnn_mobilenet": fasterrcnn_mobilenet_v3_large_320_fpn}
SIZE = (64, 96)


def made(model: Any, outputs: int = 4, **more: Any) -> torch.nn.Module:
    torch.manual_seed(3)
    return detector(DetectorOptions(model, SIZE, **more), outputs)


def scene(images: int = 2, channels: int = 3) -> tuple[Tensor, list[dict[str, Tensor]]]:
    generator = torch.Generator().manual_seed(5)
    pixels = torch.randn(images, channels, *SIZE, generator=generator)
    boxes = torch.tensor([[4.0, 6, 40, 50], [50, 10, 90, 60]])
    return pixels, [{"boxes": boxes[: 1 + i % 2], "labels": torch.tensor([1, 3])[: 1 + i % 2]} for i in range(images)]


@pytest.mark.parametrize("model", DETECTORS)
def test_it_is_torchvisions(model: str) -> None:
    """With torchvision's own transform, which neither resizes nor normalizes here: the same losses and detections."""
    ours = made(model)
    theirs = BUILDERS[model](weights=None, weights_backbone=None, num_classes=4)
    theirs.load_state_dict(ours.state_dict())
    theirs.transform = GeneralizedRCNNTransform(1, 1, [0.0] * 3, [1.0] * 3, size_divisible=1, fixed_size=SIZE[::-1])
    images, targets = scene()
    losses = []
    for each, given in ((ours.train(), images), (theirs.train(), list(images))):
        torch.manual_seed(1)
        losses.append(each(given, targets))
    assert losses[0].keys() == losses[1].keys() and len(losses[0]) >= 2
    for name, loss in losses[0].items():
        torch.testing.assert_close(loss, losses[1][name], rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        found, expected = ours.eval()(images), theirs.eval()(list(images))
    for a, b in zip(found, expected, strict=True):
        assert len(a["boxes"])
        for name in ("boxes", "labels", "scores"):
            torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-4)


def test_gray_images_are_repeated_and_so_is_a_batch_of_one() -> None:
    """The last layers of SSDlite see one pixel, of which batch norm cannot compute a deviation."""
    model, (images, _) = made("ssdlite", channels=1).eval(), scene(channels=1)
    with torch.inference_mode():
        gray, color = model(images), model(images.expand(-1, 3, -1, -1))
    for a, b in zip(gray, color, strict=True):
        torch.testing.assert_close(a["scores"], b["scores"])
    images, targets = scene(1)
    twice = made("ssdlite").train()(images.expand(2, -1, -1, -1), targets * 2)
    for name, loss in made("ssdlite").train()(images, targets).items():
        torch.testing.assert_close(loss, twice[name])


@pytest.mark.parametrize("model", DETECTORS)
def test_coordinates_are_not_rounded_to_16_bits(model: Any) -> None:
    images, targets = scene()
    with torch.autocast("cpu", torch.bfloat16):
        losses = made(model).train()(images.bfloat16(), targets)
        found = made(model).eval()(images.bfloat16())
    assert all(loss.isfinite() for loss in losses.values())
    boxes = torch.cat([out["boxes"] for out in found]).detach()
    assert boxes.dtype == torch.float32 and not torch.equal(boxes, boxes.bfloat16().float())


# --- weights ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("model", "form"), [("fasterrcnn_mobilenet", "pt"), ("ssdlite", "safetensors"), ("ssdlite", "checkpoint")]
)
def test_weights_of_a_file(tmp_path: Path, model: Any, form: str) -> None:
    source = BUILDERS[model](weights=None, weights_backbone=None, num_classes=4).state_dict()
    path = tmp_path / f"weights.{'safetensors' if form == 'safetensors' else 'pth'}"
    if form == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(source, path)
    else:
        torch.save({"model": source, "epoch": 3} if form == "checkpoint" else source, path)
    frozen = model == "fasterrcnn_mobilenet"  # as torchvision's builder does for trained weights
    loaded = made(model, frozen_norm=frozen)
    assert load_weights(loaded, path) == ""
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, source[name]), name
    assert any(p.requires_grad and "bn" in n for n, p in loaded.named_parameters()) is False
    norms = [m for m in loaded.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert bool(norms) != frozen


@pytest.mark.parametrize("model", DETECTORS)
def test_other_classes_begin_at_random(tmp_path: Path, model: Any) -> None:
    source = made(model, 91).state_dict()
    torch.save(source, tmp_path / "w.pth")
    loaded = made(model, 4)
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    note = load_weights(loaded, tmp_path / "w.pth")
    assert "another number of classes" in note and "\n" not in note
    kept = [name for name, value in before.items() if value.shape != source[name].shape]
    assert f"{len(kept)} tensors" in note and kept
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, before[name] if name in kept else source[name])


class Harmful:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_bad_files_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made("ssdlite")
    good = {name: value.clone() for name, value in model.state_dict().items()}
    first = next(name for name in good if name.endswith("weight"))
    saved: dict[str, tuple[Any, str]] = {
        "model": (made("fasterrcnn_mobilenet").state_dict(), "expected the weights of the model, found a file"),
        "shape": ({**good, first: torch.zeros(3)}, "(3,)"),
        "numbers": ({**good, first: good[first] * float("nan")}, f"NaN or infinity in {first}"),
        "tensors": ({"a": 1}, "no tensors by name"),
    }
    messages = {f"{name}.pth": message for name, (_, message) in saved.items()}
    for name, (content, _) in saved.items():
        torch.save(content, tmp_path / f"{name}.pth")
    cut = (tmp_path / "model.pth").read_bytes()
    written = {"text.pth": b"weights", "harmful.pth": pickle.dumps(Harmful()), "cut.pth": cut[: len(cut) // 2]}
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(tmp_path / "tensors.pth") as parts,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as whole,
    ):
        for member in parts.namelist():
            whole.writestr(member, parts.read(member))
    written["packed.pth"] = packed.getvalue()  # torch would unpack any amount
    written["half.safetensors"] = b"\x10\x00\x00\x00\x00\x00\x00\x00{"
    for name, data in written.items():
        (tmp_path / name).write_bytes(data)
    messages |= dict.fromkeys([*written, "missing.pth"], "expected a state dict of torch or safetensors")
    for name, message in messages.items():
        with pytest.raises(OptionError) as error:
            load_weights(model, tmp_path / name)
        assert message in one_line(error.value), name
    assert all(torch.equal(value, good[name]) for name, value in model.state_dict().items())
    assert "executed" not in capsys.readouterr().out


# --- shapes and places ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "task", "message"),
    [
        ({"model": "tiny"}, Detection(("a",)), "`model`: expected a detector"),
        ({"model": "ssdlite"}, Classification(("a", "b")), "expected a vision transformer"),
        ({"depth": 3}, Detection(("a",)), "`depth`: expected no value for ssdlite"),
        ({"grad_checkpointing": True}, Detection(("a",)), "count each batch twice"),
        ({"compile": True}, Detection(("a",)), "`compile`: expected False"),
        ({"cuda_graphs": True}, Detection(("a",)), "`cuda_graphs`: expected False"),
        ({"image_size": 16}, Detection(("a",)), "`image_size`: expected 32 to"),
    ],
)
def test_options_that_cannot_be(changes: Any, task: Any, message: str) -> None:
    with pytest.raises(TsdsError) as error:
        model_options(TrainOptions(**changes), task, (64, 64), 3)
    assert message in one_line(error.value)
    with pytest.raises(OptionError, match="expected images of 1 or 3 channels, found 4"):
        model_options(TrainOptions(), Detection(("a",)), (64, 64), 4)


@pytest.mark.parametrize("size", [(40, 90), (90, 40), (64, 96), (7, 300), (301, 200)])
def test_boxes_come_back_from_a_letterbox(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    corner = rng.uniform(0, 0.5, (5, 2)) * size[::-1]
    boxes = np.hstack([corner, corner + 0.4 * np.array(size[::-1])])
    packed = tsds.loading.PackedObjects(torch.tensor([0, 5]), {"boxes": torch.from_numpy(boxes).float()})
    batch = {"image": torch.zeros(1, 3, *size), "objects": packed}
    moved = tsds.transforms.Letterbox(SIZE)(batch)["objects"].values["boxes"].double().numpy()
    np.testing.assert_allclose(letterboxed_back(moved, size, SIZE), boxes, atol=2e-3)


def test_overlaps_are_torchvisions() -> None:
    rng = np.random.default_rng(1)
    first, second = (np.sort(rng.uniform(0, 9, (n, 2, 2)), axis=1).reshape(n, 4) for n in (6, 4))
    expected = box_iou(torch.from_numpy(first), torch.from_numpy(second)).numpy()
    np.testing.assert_allclose(box_ious(first, second), expected)
    assert box_ious(first, np.zeros((0, 4))).shape == (6, 0)
