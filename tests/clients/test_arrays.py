"""Frameworks that take NumPy arrays: Grain, tf.data, JAX, and NumPy itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from clients.conftest import Example, of_example
from clients.test_classification import accuracy, expected, samples_of

works, limit = pytest.mark.works, pytest.mark.limit


# --- Grain --------------------------------------------------------------------------------------------------------


@works("Grain", "`MapDataset.source(split)`, shuffled, mapped and in batches")
@pytest.mark.parametrize("threads", [0, 4])
def test_grain_map_dataset(digits: Path, threads: int) -> None:
    import grain

    source = grain.MapDataset.source(tsds.open(digits)["train"]).seed(3).shuffle()
    batches = source.batch(32).to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=8))
    assert samples_of((batch["image"], batch["label"]) for batch in batches) == expected(digits)


@works("Grain", "`DataLoader` with worker processes, which open the store themselves")
@pytest.mark.parametrize("workers", [0, 2])
def test_grain_data_loader(digits: Path, workers: int) -> None:
    import grain
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # as `absl.app.run` does, which Grain's workers expect
    split = tsds.open(digits)["train"]
    sampler = grain.samplers.IndexSampler(len(split), shuffle=True, seed=1, num_epochs=1)
    loader = grain.DataLoader(
        data_source=split, sampler=sampler, operations=[grain.transforms.Batch(40)], worker_count=workers
    )
    assert samples_of((batch["image"], batch["label"]) for batch in loader) == expected(digits)


@works("Grain", "resuming by `get_state`")
def test_grain_goes_on(digits: Path) -> None:
    import grain

    def keys() -> Any:
        return iter(grain.MapDataset.source(tsds.open(digits)["train"]).seed(3).shuffle().to_iter_dataset())

    whole = keys()
    for _ in range(150):
        next(whole)
    again = keys()
    again.set_state(whole.get_state())
    rest = [sample["key"] for sample in whole]
    assert [sample["key"] for sample in again] == rest and len(rest) == 250


@limit("Grain", "batches of images with different numbers of objects: map them to one shape first")
def test_grain_cannot_batch_objects(scenes: Path) -> None:
    import grain

    split = tsds.open(scenes)["train"]
    assert len({len(split[row]["objects"]["boxes"]) for row in range(len(split))}) > 1
    with pytest.raises(ValueError, match="same structure"):
        next(iter(grain.MapDataset.source(split).batch(8)))


@works("Grain", "training with JAX")
def test_grain_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("clients/grain_batches.py", digits, "--epochs", 6)) > 0.8


# --- tf.data ------------------------------------------------------------------------------------------------------


@works("tf.data, Keras", "`from_generator` over whole batches")
@pytest.mark.parametrize("shuffle", [False, True])
def test_tf_data(digits: Path, shuffle: bool) -> None:
    batches = of_example("tensorflow_fit.py")["batches"]
    dataset = batches(tsds.open(digits)["train"], shuffle=shuffle)
    assert len(dataset) == 13
    epochs = [[(images.numpy(), labels.numpy()) for images, labels in dataset] for _ in range(2)]
    assert all(samples_of(epoch) == expected(digits) for epoch in epochs)
    assert np.array_equal(epochs[0][0][0], epochs[1][0][0]) is not shuffle


@works("tf.data, Keras", "`fit` and `evaluate`")
def test_keras_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("clients/tensorflow_fit.py", digits, "--epochs", 6)) > 0.8


# --- JAX, NumPy ---------------------------------------------------------------------------------------------------


@works("JAX", "batches by `take`: `jnp.asarray` of them")
def test_jax_takes_batches(digits: Path) -> None:
    import jax.numpy as jnp

    split = tsds.open(digits)["train"]
    rows = np.random.default_rng(0).permutation(len(split))
    batches = [
        (jnp.asarray(split["image"].take(some)), jnp.asarray(split["label"].take(some)))
        for some in np.array_split(rows, 13)
    ]
    assert samples_of(batches) == expected(digits)


@works("JAX", "training in a plain loop")
def test_jax_learns(digits: Path, example: Example) -> None:
    assert accuracy(example("clients/jax_loop.py", digits, "--epochs", 6)) > 0.8


@works("NumPy", "single samples by `split[i]`, batches by `take`")
def test_numpy(digits: Path, example: Example) -> None:
    split = tsds.open(digits)["train"]
    batches = [(split["image"].take([row]), split["label"].take([row])) for row in range(len(split))]
    assert samples_of(batches) == expected(digits)
    alone = [([split[row]["image"]], [split[row]["label"]]) for row in range(len(split))]
    assert samples_of(alone) == expected(digits)
    assert accuracy(example("clients/numpy_loop.py", digits)) > 0.8
