"""Each way, measured in this process: what it delivers, and what it answers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from stores import class_folders, detections, store_of
from tensorstore_ds.annex.measuring import measure_training
from tensorstore_ds.annex.measuring.bench_results import Way, ways_of
from tensorstore_ds.annex.measuring.delivery import marks_of_split
from tensorstore_ds.annex.measuring.lane import answered
from tensorstore_ds.annex.measuring.measure_training import Student
from tensorstore_ds.annex.measuring.runner import Runner, device_of, start
from tsds_cli.messages import failure_of

CPU_WAYS = [way for way in ways_of(("files", "tensors", "plain", "store"), 1) if way.workers == 0]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 22 gray images with labels, made of class folders beside it."""
    folder = tmp_path_factory.mktemp("labelled")
    class_folders(folder / "raw", per_class=11)
    tsds.convert(folder / "raw", folder / "s.tsds", tsds.ConvertOptions(workers=0))
    return folder / "s.tsds"


@pytest.fixture(scope="module")
def with_objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 13 images with objects, and no source."""
    return store_of(tmp_path_factory.mktemp("objects") / "s.tsds", detections(13), ("a", "b")).path


def started(way: Way, store: Path, scratch: Path, **changes: Any) -> tuple[Runner, dict[str, Any]]:
    raw = str(store.parent / "raw") if way.group == "files" else None
    assignment = {"store": str(store), "split": "train", "raw": raw, "scratch": str(scratch), "device": "cpu"}
    return start({**assignment, "memory": None, "seed": 0, "way": asdict(way), **changes})


def runner(*given: Any, **changes: Any) -> Runner:
    return started(*given, **changes)[0]


def marks(store: Path, tmp_path: Path, fields: dict[str, str]) -> str:
    found = marks_of_split(tsds.open(store)["train"], fields, pixels=True)
    np.save(tmp_path / "marks.npy", found)
    return str(tmp_path / "marks.npy")


@pytest.mark.parametrize("way", CPU_WAYS, ids=lambda way: way.name)
def test_every_way_delivers_what_is_stored(way: Way, labelled: Path, tmp_path: Path) -> None:
    file = marks(labelled, tmp_path, {"image": "image", "label": "label"})
    found = runner(way, labelled, tmp_path).verify(5, 60, file, pixels=True)
    assert (found["samples"], found["of"], found["whole"], found["same"]) == (22, 22, True, True)
    assert found["reader"] == ("ImageFolder" if way.group == "files" else "")
    other = marks(labelled, tmp_path, {"image": "image"})  # without their labels
    assert runner(way, labelled, tmp_path).verify(5, 60, other, pixels=True)["same"] is False


@pytest.mark.parametrize("way", CPU_WAYS[1:], ids=lambda way: way.name)
def test_objects_of_all_ways_are_the_same_in_every_value(way: Way, with_objects: Path, tmp_path: Path) -> None:
    file = marks(with_objects, tmp_path, {"image": "image", "objects": "objects"})
    made = runner(way, with_objects, tmp_path)
    found = made.verify(5, 60, file, pixels=True)
    assert (found["samples"], found["whole"], found["same"]) == (13, True, True)
    stored = tsds.open(with_objects)["train"]
    by_image = {stored["image"][row].tobytes(): stored["objects"][row] for row in range(13)}
    for item in made.feed.loader(5):
        batch = made.feed.batch(item)
        offsets = batch["objects"]["offsets"].tolist()
        for i, image in enumerate(batch["image"].permute(0, 2, 3, 1)):
            expected = by_image[image.numpy().tobytes()]
            for name in ("boxes", "labels", "keypoints"):
                values = batch["objects"][name][offsets[i] : offsets[i + 1]].numpy()
                np.testing.assert_array_equal(values, expected[name])


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize("way", CPU_WAYS, ids=lambda way: way.name)
def test_loading_training_and_a_first_epoch_are_timed(way: Way, labelled: Path, tmp_path: Path) -> None:
    made = runner(way, labelled, tmp_path)
    cold = made.cold(10, 60)
    assert (cold["batches"], cold["samples"], cold["ended"]) == (3, 22, True)
    assert cold["left"] is not None or cold["why"]
    for timed in (made.load(10, 0.01), made.train(10, 0.01)):
        assert timed["samples"] > 0 and timed["seconds"] >= 0.01 and not timed["ended"]
    made.rest()
    json.dumps(made.load(22, 0.01))


def test_the_weights_learn(labelled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    students = []

    def student_of(*arguments: Any) -> Student:
        students.append(measure_training.student_of(*arguments))
        return students[-1]

    monkeypatch.setattr("tensorstore_ds.annex.measuring.runner.student_of", student_of)
    made = runner(CPU_WAYS[-1], labelled, tmp_path)
    made.train(10, 0.01)
    parameters = students[0].step.__self__.module.parameters  # type: ignore[attr-defined]  # of its learner
    before = [weights.clone() for weights in parameters()]
    made.train(10, 0.01)
    assert any(not torch.equal(a, b) for a, b in zip(before, parameters(), strict=True))
    assert len(students) == 1  # one model a batch size


def test_an_epoch_that_lacks_samples_is_no_result(labelled: Path, tmp_path: Path) -> None:
    made = runner(CPU_WAYS[-1], labelled, tmp_path)
    made.whole = True
    made.feed.open()
    few = [next(iter(made.feed.loader(10)))]
    made._batches = (10, few, itertools.repeat(few))
    with pytest.raises(RuntimeError, match="expected an epoch of 22 samples, found 10"):
        made.load(10, 0.0)


def test_a_copy_in_memory_has_to_fit(labelled: Path, with_objects: Path, tmp_path: Path) -> None:
    way = Way("tensors", "TensorDataset", "tensors")
    needed = 22 * (6 * 5 + 8)
    made = runner(way, labelled, tmp_path, memory=needed)
    made.feed.open()
    assert sum(tensor.nbytes for tensor in made.feed.dataset.tensors) == needed
    refused = runner(way, labelled, tmp_path, memory=needed - 1)
    assert answered(lambda: refused.load(10, 1)) == {
        "state": "failed",
        "reason": f"expected {needed - 1:,} bytes at most, found {needed:,}: it does not fit",
    }
    padded = runner(way, with_objects, tmp_path)
    padded.feed.open()
    with pytest.raises(tsds.errors.ResidencyError, match="it does not fit"):
        total = sum(tensor.nbytes for tensor in padded.feed.dataset.tensors)
        runner(way, with_objects, tmp_path, memory=total - 1).feed.open()


def test_a_store_with_nothing_to_learn_is_loaded_only(tmp_path: Path) -> None:
    samples = [{"image": np.full((4, 4, 1), i, np.uint8), "label": 0} for i in range(5)]
    made, facts = started(CPU_WAYS[-1], store_of(tmp_path / "s.tsds", samples, ("only",)).path, tmp_path)
    assert "expected two classes or more" in facts["untrainable"]
    assert facts["fields"] == {"image": "image", "label": "label"}
    assert made.load(5, 0.01)["samples"] % 5 == 0


def photographs(folder: Path, images: Iterable[Image.Image]) -> Path:
    """A store of images that differ in size, made of class folders beside it."""
    for i, image in enumerate(images):
        path = folder / "raw" / "train" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    tsds.convert(folder / "raw", folder / "s.tsds", tsds.ConvertOptions(workers=0))
    return folder / "s.tsds"


def test_images_that_differ_in_size_are_loaded_as_crops(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    drawn = (Image.fromarray(rng.integers(0, 256, (40 + i, 60, 3), np.uint8)) for i in range(8))
    store = photographs(tmp_path, drawn)
    # The side: a multiple of 16 that most images have.
    for asked, size in ((None, (32, 32)), ((24, 20), (24, 20))):
        for way in CPU_WAYS:
            made, facts = started(way, store, tmp_path, image_size=asked)
            assert facts["image_size"] == size
            if way.group == "tensors":
                with pytest.raises(tsds.errors.ResidencyError, match="found crops, which differ in each epoch"):
                    made.feed.open()
                continue
            made.feed.open()
            batches = [made.feed.batch(item)["image"] for item in made.feed.loader(3)]
            assert sorted(len(batch) for batch in batches) == [2, 3, 3]
            assert all(batch.shape[1:] == (3, *size) for batch in batches)


def test_centers_of_images_are_those_of_torchvision(tmp_path: Path) -> None:
    """In every way to load; they are compared by the mean of their pixels, since each way has an order of its own."""
    rng = np.random.default_rng(0)
    means, images = [], []
    for i in range(8):
        small = rng.integers(0, 256, (8, 8 + i, 3), np.uint8)
        image = Image.fromarray(small).resize((90 + 8 * i, 80), Image.Resampling.BICUBIC)
        scale = 32 / min(image.size)  # the shorter side of 28 * 8 / 7
        whole = image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BILINEAR)
        left, top = round((whole.width - 28) / 2), round((whole.height - 28) / 2)
        means.append(np.asarray(whole.crop((left, top, left + 28, top + 28))).mean())
        images.append(image)
    store = photographs(tmp_path, images)
    for way in (each for each in CPU_WAYS if each.group != "tensors"):
        made = runner(way, store, tmp_path, image_size=(28, 28), crop="center")
        made.feed.open()
        found = torch.cat([made.feed.batch(item)["image"] for item in made.feed.loader(3)])
        assert found.shape == (8, 3, 28, 28)
        np.testing.assert_allclose(np.sort(found.float().mean((1, 2, 3)).numpy()), np.sort(means), atol=0.5)


def test_encoded_images_are_loaded_only_and_not_as_tensors(tmp_path: Path) -> None:
    class_folders(tmp_path / "raw")
    tsds.convert(tmp_path / "raw", tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    reason = "images are kept as source, and the ways are compared in training with pixels of one size only. "
    for way in CPU_WAYS:
        made, facts = started(way, tmp_path / "s.tsds", tmp_path)
        assert facts["untrainable"].startswith(reason)
        if way.group == "tensors":
            message = "expected images kept as pixels of one size, found source"
            with pytest.raises(tsds.errors.ResidencyError, match=message):
                made.feed.open()
        else:
            assert made.load(3, 0.01)["samples"] > 0


@pytest.mark.parametrize("name", ["cuda:9", "mps", "nonsense"])
def test_a_device_that_is_not_here_is_refused(name: str) -> None:
    found = answered(lambda: {"device": str(device_of(name))})
    assert found["state"] == "refused" and found["reason"].startswith("`device`: expected") and name in found["reason"]


def test_a_failure_is_one_line_and_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(text: str) -> dict[str, Any]:
        raise RuntimeError(text)

    found = answered(partial(fail, "stack expects\neach tensor"))
    assert found == {"state": "failed", "reason": "RuntimeError: stack expects"}
    assert "Traceback" in capsys.readouterr().err
    unfit = "operator torchvision::nms does not exist"
    expected = (
        f"torch {metadata.version('torch')} and torchvision {metadata.version('torchvision')} do not fit together. "
        "Install both in one command, from the same index."
    )
    failure = failure_of(RuntimeError(unfit))
    assert answered(partial(fail, unfit))["reason"] == expected and failure is not None and failure.message == expected


@pytest.mark.gpu
@pytest.mark.parametrize("group", ["files", "tensors", "plain", "store", "device"])
def test_on_a_gpu(group: Any, labelled: Path, tmp_path: Path) -> None:
    file = marks(labelled, tmp_path, {"image": "image", "label": "label"})
    made = runner(Way(group, group, group), labelled, tmp_path, device="cuda")
    assert made.verify(5, 60, file, pixels=True)["same"]
    work: Callable[[int, float], dict[str, Any]]
    for work in (made.load, made.train):
        found = work(10, 0.3)
        assert found["device_memory"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_there_is_no_way_on_it(labelled: Path, tmp_path: Path) -> None:
    with pytest.raises(tsds.errors.ResidencyError, match="there is no GPU"):
        runner(Way("device", "", "device"), labelled, tmp_path)
