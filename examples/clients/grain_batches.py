"""Read batches with Grain, and train a linear model with JAX.

tsds demo
python examples/clients/grain_batches.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import grain
import jax
import jax.numpy as jnp

import tensorstore_ds as tsds  # tsds


def loss_of(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy of a batch."""
    scores = jax.nn.log_softmax(images.reshape(len(images), -1) / 255.0 @ weights)
    return -scores[jnp.arange(len(labels)), labels].mean()


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    store = tsds.open(options.store)  # tsds

    pipeline = grain.MapDataset.source(store["train"]).seed(0).shuffle().repeat(options.epochs)  # tsds
    batches = pipeline.map(lambda sample: (sample["image"], sample["label"])).batch(32).to_iter_dataset()
    weights = jnp.zeros((store["train"]["image"][0].size, len(store["train"].fields["label"].classes)))  # tsds
    step = jax.jit(lambda weights, *batch: weights - 0.5 * jax.grad(loss_of)(weights, *batch))
    for images, labels in batches:
        weights = step(weights, images, labels)

    test = store["test"]  # tsds
    images, labels = test["image"][:], test["label"][:]  # tsds
    accuracy = float(((images.reshape(len(test), -1) @ weights).argmax(1) == labels).mean())
    print(f"accuracy {accuracy:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
