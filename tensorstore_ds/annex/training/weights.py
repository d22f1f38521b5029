"""Weights of a model from a file: of torch, of safetensors, or a checkpoint of a run."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tensorstore_ds.annex.training.checkpoint import FORMAT, ModelCard, check_sums
from tensorstore_ds.annex.training.history import first_line
from tensorstore_ds.annex.training.tasks import Task
from tensorstore_ds.errors import OptionError, one_line

#: Beginnings of the names of the layers whose shapes depend on the number of classes.
HEADS = ("roi_heads.box_predictor.", "head.classification_head.", "heads.")


def load_weights(model: nn.Module, path: Path, task: Task | None = None) -> str:
    """Load a file of weights into a model; returns a line about layers that stay random, or an empty text.

    Those are the layers that predict, if they have another shape, or if a checkpoint names other classes than `task`.
    """
    (weights, learned), own = _read(path), model.state_dict()
    # Frozen norms have no count of batches, and nothing else needs it.
    weights = {
        name: value for name, value in weights.items() if name in own or not name.endswith("num_batches_tracked")
    }
    weights |= {name: own[name] for name in own if name.endswith("num_batches_tracked") and name not in weights}
    expected = "expected the weights of the model"
    if strange := sorted(own.keys() ^ weights.keys()):
        which = "lacks" if strange[0] in own else "also has"
        raise OptionError(
            f"{path}: {expected}, found a file that {which} {one_line(strange[0])[:100]}. Choose its `model`."
        )
    renamed = task is not None and learned is not None and learned != (task.classes, task.keypoints)
    other = [n for n, v in weights.items() if v.shape != own[n].shape or (renamed and n.startswith(HEADS))]
    for name in other:
        if not name.startswith(HEADS):
            found, shape = tuple(weights[name].shape), tuple(own[name].shape)
            advice = "Choose its `model` and `image_size`."
            raise OptionError(f"{path}: {expected}, {name} {shape}, found {found}. {advice}")
        weights[name] = own[name]
    if broken := next((n for n, v in weights.items() if v.is_floating_point() and not v.isfinite().all()), None):
        raise OptionError(f"{path}: expected numbers, found NaN or infinity in {broken}. Use another file.")
    model.load_state_dict(weights)
    differs = "other classes or keypoints, or another order of them" if renamed else "another number of classes"
    return f"{path} has {differs}: {len(other)} tensors that predict them begin at random" if other else ""


def _read(path: Path) -> tuple[dict[str, Tensor], tuple[tuple[str, ...], tuple[str, ...]] | None]:
    """The tensors of a file by name, and the classes and keypoints that a checkpoint of a run predicts."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            data: Any = load_file(path)
        else:
            with path.open("rb") as file:
                if zipfile.is_zipfile(file):  # else in torch's older form
                    check_sums(file)
                file.seek(0)
                data = torch.load(file, map_location="cpu", weights_only=True)
        learned = None
        if isinstance(data, Mapping) and data.get("format") == list(FORMAT):
            task = ModelCard.from_data(data["card"]).task
            learned = (task.classes, task.keypoints)
        for inside in ("weights", "model"):  # of a checkpoint, of `tsds train` or torchvision's reference script
            if isinstance(data, Mapping) and isinstance(data.get(inside), Mapping):
                data = data[inside]
        if not isinstance(data, Mapping) or not data or not all(type(value) is Tensor for value in data.values()):
            raise ValueError("no tensors by name")
        return dict(data), learned
    except ImportError:
        raise OptionError(f"{path}: safetensors is not installed: pip install safetensors") from None
    except Exception as error:  # whatever a damaged file makes a reader stumble over
        raise OptionError(
            f"`weights`: expected a state dict of torch or safetensors, found {path}, which cannot be read "
            f"({first_line(error)}). Use another file."
        ) from error
