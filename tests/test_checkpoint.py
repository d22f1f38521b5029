"""Checkpoints: what was written, or one line; never code, never something else."""

from __future__ import annotations

import copy
import math
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from learners import randomized
from tensorstore_ds.annex.training.checkpoint import ModelCard, load, load_model, save
from tensorstore_ds.annex.training.options import ViTOptions
from tensorstore_ds.annex.training.prediction import predict
from tensorstore_ds.annex.training.tasks import ClassificationKeypoints
from tensorstore_ds.annex.training.vit import ViT
from tensorstore_ds.errors import TrainingError
from training_stores import labelled, names, one_line, small

CARD = ModelCard(
    ViTOptions((8, 12), channels=3, patch_size=4, width=8, depth=1, heads=2, mlp_width=8, dropout=0.1),
    ClassificationKeypoints(("ant", "bee"), ("left", "right"), "label", "objects"),
    mean=(0.5, 0.25, 1 / 3),
    std=(0.2, 0.1, 0.3),
    stored=(16, 20),
    fit="crop",
)


MODEL = randomized(ViT(CARD.vit, CARD.task.outputs), scale=1)
WEIGHTS = MODEL.state_dict()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(tmp_path / "best.pt", CARD, {"weights": WEIGHTS, "epoch": 3, "loss": [0.5, float("nan")]})
    return tmp_path / "best.pt"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "best.pt"
    save(path, CARD, {"weights": WEIGHTS})
    return path


def same_weights(found: Any) -> bool:
    return found.keys() == WEIGHTS.keys() and all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def refused(path: Path, call: Any = load) -> str:
    with pytest.raises(TrainingError) as error:
        call(path)
    text = one_line(error.value)
    assert text.startswith(f"{path}: expected ")
    return text


# --- written and read --------------------------------------------------------------------------------------------


def test_what_is_written_is_read(path: Path) -> None:
    card, content = load(path)
    assert card == CARD and content["epoch"] == 3 and content["loss"][0] == 0.5
    assert same_weights(content["weights"])
    assert ModelCard.from_data(CARD.as_data()) == CARD


def test_a_model_to_use(path: Path) -> None:
    found, card = load_model(os.fspath(path))
    assert card == CARD and not found.training and same_weights(found.state_dict())
    images = torch.randn(2, 3, 8, 12)
    with torch.no_grad():
        torch.testing.assert_close(found(images), MODEL.eval()(images), rtol=0, atol=0)


@pytest.mark.gpu
def test_a_checkpoint_of_a_gpu_is_read_without_one(tmp_path: Path) -> None:
    save(tmp_path / "best.pt", CARD, {"weights": {name: value.cuda() for name, value in WEIGHTS.items()}})
    assert same_weights(load(tmp_path / "best.pt")[1]["weights"])
    found, _ = load_model(tmp_path / "best.pt", device="cuda")
    assert next(found.parameters()).is_cuda


# --- damage ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 1, exclude_max=True), st.integers(1, 255))
@example(0.5, 1)  # in the middle of the weights
def test_a_byte_that_is_another(written: Path, place: float, change: int) -> None:
    data = bytearray(written.read_bytes())
    data[int(place * len(data))] ^= change
    assert_refused_or_the_same(written, data)


def test_a_tensor_that_is_marked_as_a_folder(written: Path) -> None:
    """torch would take it for empty, and leave its weights as the memory was."""
    data = bytearray(written.read_bytes())
    with zipfile.ZipFile(written) as archive:
        members = [member.filename for member in archive.infolist()]
    at = 0
    for name in members:
        at = data.index(b"PK\x01\x02", at)
        if "/data/" in name:
            data[at + 38] |= 0x10  # external file attributes
        at += 4
    changed = written.with_name("changed.pt")
    changed.write_bytes(data)
    assert "is not what was written" in refused(changed)


def assert_refused_or_the_same(written: Path, data: bytearray) -> None:
    changed = written.with_name("changed.pt")
    changed.write_bytes(data)
    try:
        found, card = load_model(changed)
    except TrainingError as error:
        assert one_line(error).startswith(f"{changed}: expected ")
    else:
        assert card == CARD and same_weights(found.state_dict())


# --- something else ----------------------------------------------------------------------------------------------


class Bomb:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("way", ["pickle", "torch", "inside"])
def test_no_code_is_run(tmp_path: Path, way: str) -> None:
    path, target = tmp_path / "best.pt", tmp_path / "exploded"
    if way == "pickle":
        path.write_bytes(pickle.dumps(Bomb(target)))
    else:
        bomb: Any = Bomb(target)
        torch.save(bomb if way == "torch" else {"format": ["tensorstore-ds checkpoint", 1], "card": bomb}, path)
    refused(path)
    refused(path, load_model)
    assert names(tmp_path) == ["best.pt"]
    torch.load(path, weights_only=False) if way != "pickle" else pickle.loads(path.read_bytes())  # noqa: S301
    assert target.exists(), "it would have run"


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "best.pt"
    path.write_bytes(b"")
    refused(path)
    path.write_text("an image, say")
    refused(path)
    torch.save(WEIGHTS, path)
    assert "not one of this library and version" in refused(path)
    torch.save({"format": ["tensorstore-ds checkpoint", 2], "card": CARD.as_data()}, path)
    assert "not one of this library and version" in refused(path)
    torch.save([1, 2], path)
    refused(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", "text")
    refused(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "missing.pt")
    with pytest.raises(IsADirectoryError):
        load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"vit": {**CARD.as_data()["vit"], "heads": 3}},  # which does not divide the width
        {"vit": {**CARD.as_data()["vit"], "another": 3}},
        {"vit": {"depth": 1}},
        {"task": {**CARD.as_data()["task"], "name": "segmentation"}},
        {"task": {**CARD.as_data()["task"], "name": "classification"}},  # which has no keypoints
        {"task": None},
        {"mean": 3},
    ],
)
def test_a_card_that_describes_no_model(tmp_path: Path, change: dict[str, Any]) -> None:
    data = {"format": ["tensorstore-ds checkpoint", 1], "card": {**CARD.as_data(), **change}, "weights": WEIGHTS}
    torch.save(data, tmp_path / "best.pt")
    refused(tmp_path / "best.pt")


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"weights": {}},
        {"weights": [1, 2]},
        {"weights": {1: WEIGHTS["class_token"]}},
        {"weights": {**WEIGHTS, "class_token": torch.zeros(1, 1, 16)}},
        {"weights": {**WEIGHTS, "class_token": 3}},
        {"weights": {**WEIGHTS, "class_token": WEIGHTS["class_token"].to(torch.complex64)}},
        {"weights": {**WEIGHTS, "another": torch.zeros(1)}},
    ],
    ids=lambda content: str([*content.get("weights", [])])[:20],
)
def test_weights_of_another_model(tmp_path: Path, content: dict[str, Any]) -> None:
    save(tmp_path / "best.pt", CARD, content)
    text = refused(tmp_path / "best.pt", load_model)
    assert text.endswith("expected the weights of the model that it describes, found others.")


# --- cards that lie ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "image.png"
    Image.new("RGB", (20, 10), (10, 200, 90)).save(path)
    return path


def test_a_compressed_checkpoint_is_refused(path: Path) -> None:
    """It could unpack to any amount."""
    packed = path.with_name("packed.pt")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            new.writestr(member.filename, old.read(member))
    assert "is compressed" in refused(packed)


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e38])
def test_weights_that_are_no_numbers_are_said_to_be(tmp_path: Path, image: Path, number: float) -> None:
    path = tmp_path / "best.pt"
    save(path, CARD, {"weights": {name: torch.full_like(value, number) for name, value in WEIGHTS.items()}})
    with pytest.raises(TrainingError) as error:
        list(predict(path, [image], device="cpu"))
    assert one_line(error.value).startswith(
        f"{path}: expected a model that says numbers, found NaN or infinity of {image}"
    )


# --- runs that are gone on with ------------------------------------------------------------------------------------

#: What another may have put into last.pt, and where.
STATES: list[tuple[tuple[Any, ...], Any]] = [
    *(((name,), wrong) for name in ("learner", "options", "tally", "loader") for wrong in (None, 3, {})),
    *(((name,), wrong) for name in ("epoch", "batch", "ranks") for wrong in (None, -1, 10**9, 0.5, True)),
    *(((name,), wrong) for name in ("seconds", "wait") for wrong in (-1.0, math.nan, "x")),
    *((("loader", name), wrong) for name in ("epoch", "batch", "seed") for wrong in (-1, "x")),
    *((("tally", name), wrong) for name in ("loss", "samples", "correct") for wrong in (3, torch.zeros(2, 3))),
    *((("learner", name), wrong) for name in ("model", "optimizer", "step") for wrong in ({}, -1)),
    *((("learner", "optimizer", name), "x") for name in ("state", "param_groups")),
    (("learner", "optimizer", "state", 0, "exp_avg"), torch.zeros(3)),
    (("learner", "optimizer", "state", 0), {}),
    (("learner", "optimizer", "param_groups", 0, "lr"), "x"),
    (("learner", "optimizer", "param_groups", 0, "params"), []),
    (("learner", "model", "class_token"), torch.zeros(3)),
    (("options", "epochs"), [[[]]]),
    (("card",), None),
    (("card", "std"), [0.0]),
    (("card", "vit", "depth"), 10**6),
    (("card", "task", "classes"), ["c"] * 10**5),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("state")
    tsds.train(labelled(folder), small(epochs=1, batch_size=30), out=folder / "run")
    return folder


@pytest.mark.slow
def test_a_run_does_not_go_on_from_a_state_that_lies(run: Path) -> None:
    whole = torch.load(run / "run" / "last.pt", weights_only=True)
    for place, value in STATES:
        changed = copy.deepcopy(whole)
        inner = changed
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = value
        torch.save(changed, run / "run" / "last.pt")
        with pytest.raises(TrainingError) as error:
            tsds.train(run / "store.tsds", small(epochs=1, batch_size=30), out=run / "run", resume=True)
        assert one_line(error.value).startswith(f"{run / 'run' / 'last.pt'}: "), (place, value)
    (run / "run" / "last.pt").write_bytes(b"cut")
    with pytest.raises(
        TrainingError, match=r"Remove it to begin again, or begin another run with `weights` from the best"
    ):
        tsds.train(run / "store.tsds", small(epochs=1, batch_size=30), out=run / "run", resume=True)
    torch.save(whole, run / "run" / "last.pt")
    assert tsds.train(run / "store.tsds", small(epochs=1, batch_size=30), out=run / "run", resume=True) is not None


def test_what_a_killed_run_had_half_written_is_removed(run: Path) -> None:
    for name in ("last.pt.partial", "best.pt.partial"):
        (run / "run" / name).write_bytes(b"half")
    (run / "run" / "mine.partial").write_bytes(b"of the user")
    assert tsds.train(run / "store.tsds", small(epochs=1, batch_size=30), out=run / "run", resume=True) is not None
    assert [path.name for path in (run / "run").glob("*.partial")] == ["mine.partial"]


def test_the_optimizers_settings_are_those_of_the_options(run: Path, tmp_path: Path) -> None:
    """Whatever a checkpoint says of them."""
    state = torch.load(run / "run" / "last.pt", weights_only=True)
    (tmp_path / "run").mkdir()
    for group in state["learner"]["optimizer"]["param_groups"]:
        group.update(betas=("x", "y"), eps=None, weight_decay="x", maximize="x")
    torch.save(state, tmp_path / "run" / "last.pt")
    assert tsds.train(run / "store.tsds", small(epochs=1, batch_size=30), out=tmp_path / "run", resume=True) is not None
