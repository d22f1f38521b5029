"""Train a Keras model from a tf.data pipeline.

tsds demo
python examples/clients/tensorflow_fit.py demo/digits.tsds
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

import tensorstore_ds as tsds  # tsds


def batches(split: tsds.Split, *, shuffle: bool) -> tf.data.Dataset:
    """Batches (images, labels): (B, H, W, C) uint8 and (B,) int64; a batch is one `take` of each column."""
    rng = np.random.default_rng(0)  # tsds

    def generate() -> Iterator[tuple[np.ndarray, np.ndarray]]:  # tsds
        order = rng.permutation(len(split)) if shuffle else np.arange(len(split))
        for first in range(0, len(split), 32):
            rows = order[first : first + 32]
            yield split["image"].take(rows), split["label"].take(rows)

    image = split.fields["image"].spec  # tsds
    shapes = (tf.TensorSpec((None, *image.shape), image.dtype), tf.TensorSpec((None,), tf.int64))  # tsds
    found = tf.data.Dataset.from_generator(generate, output_signature=shapes)  # tsds
    return found.apply(tf.data.experimental.assert_cardinality(-(-len(split) // 32))).prefetch(2)


def main() -> None:
    """Train on the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    tf.keras.utils.set_random_seed(0)

    train, test = (tsds.open(options.store)[name] for name in ("train", "test"))  # tsds
    layers = tf.keras.layers
    scores = layers.Dense(len(train.fields["label"].classes))
    model = tf.keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(64, "relu"), scores])
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf.keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
    model.fit(batches(train, shuffle=True), epochs=options.epochs, verbose=0)  # tsds
    _, accuracy = model.evaluate(batches(test, shuffle=False), verbose=0)  # tsds
    print(f"accuracy {accuracy:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
