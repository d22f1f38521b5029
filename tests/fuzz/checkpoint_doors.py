"""Doors to the use of a trained model: the bytes of a checkpoint, and what its card says."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from random import Random

import torch
from PIL import Image

from fuzz.door import Door, check_output, run_program
from fuzz.mutations import mutate_bytes, mutate_json
from tensorstore_ds.annex.training.checkpoint import FORMAT, ModelCard, load_model
from tensorstore_ds.annex.training.options import ViTOptions
from tensorstore_ds.annex.training.tasks import ClassificationKeypoints
from tensorstore_ds.annex.training.vit import ViT
from tensorstore_ds.errors import TrainingError

CARD = ModelCard(
    ViTOptions((8, 12), channels=1, patch_size=4, width=8, depth=1, heads=2, mlp_width=8),
    ClassificationKeypoints(("ant", "bee"), ("left", "right"), "label", "objects"),
    mean=(0.5,),
    std=(0.25,),
    stored=(8, 12),
)
_TOKENS = (
    *(b"PK\1\2", b"PK\3\4", b"\xff\xff\xff\xff", b"\0\0\0\0", b"c__builtin__\neval\n", b"R.", b"q\0", b"K\xff"),
    b"\x8a\xff",
)


def checkpoint_bytes(card: object) -> bytes:
    """A checkpoint of a small model, with a card that may say anything."""
    torch.manual_seed(0)
    weights = ViT(CARD.vit, CARD.task.outputs).state_dict()
    buffer = io.BytesIO()
    torch.save({"format": list(FORMAT), "card": card, "weights": weights, "epoch": 3}, buffer)
    return buffer.getvalue()


class CheckpointBytes(Door):
    """A checkpoint's file, changed as a whole, or within a part of it whose checksum is then right."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [checkpoint_bytes(CARD.as_data())])

    def mutate(self, random: Random, good: bytes) -> bytes:
        if random.random() < 0.3:
            return mutate_bytes(random, good, _TOKENS)
        with zipfile.ZipFile(io.BytesIO(good)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        pickled = next(name for name in members if name.endswith("data.pkl"))
        name = pickled if random.random() < 0.7 else random.choice(list(members))
        members[name] = mutate_bytes(random, members[name], _TOKENS)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, content in members.items():
                archive.writestr(zipfile.ZipInfo(member), content)
        return buffer.getvalue()

    def enter(self, data: bytes) -> None:
        path = self.folder / "best.pt"
        path.write_bytes(data)
        load_model(path)


class CheckpointCard(Door):
    """A checkpoint's card: the model is made, and predicts an image."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [json.dumps(CARD.as_data()).encode()])
        Image.new("L", (12, 8), 90).save(folder / "image.png")

    def mutate(self, random: Random, good: bytes) -> bytes:
        return mutate_json(random, good)

    def enter(self, data: bytes) -> None:
        try:
            card = json.loads(data)
        except (ValueError, RecursionError):
            raise TrainingError("no card: JSON only carries it here, a checkpoint has plain values") from None
        (self.folder / "best.pt").write_bytes(checkpoint_bytes(card))
        load_model(self.folder / "best.pt")
        image, model = (str(self.folder / name) for name in ("image.png", "best.pt"))
        status, output = run_program("predict", model, image, "--device", "cpu")
        check_output(output)
        if status:
            raise TrainingError("the model was refused when it was used")
