"""Train with JAX in a plain loop: a batch is one `take` of each column.

tsds demo
python examples/clients/jax_loop.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import jax
import jax.numpy as jnp
import numpy as np

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
    train, test = (tsds.open(options.store)[name] for name in ("train", "test"))  # tsds

    rng = np.random.default_rng(0)
    weights = jnp.zeros((train["image"][0].size, len(train.fields["label"].classes)))
    step = jax.jit(lambda weights, *batch: weights - 0.5 * jax.grad(loss_of)(weights, *batch))
    for _ in range(options.epochs):
        for rows in np.array_split(rng.permutation(len(train)), len(train) // 32):
            weights = step(weights, train["image"].take(rows), train["label"].take(rows))  # tsds

    images, labels = test["image"][:], test["label"][:]  # tsds
    accuracy = float(((images.reshape(len(test), -1) @ weights).argmax(1) == labels).mean())
    print(f"accuracy {accuracy:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
