"""Tell classes apart with NumPy alone: the nearest mean of a class.

tsds demo
python examples/clients/numpy_loop.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import numpy as np

import tensorstore_ds as tsds  # tsds


def main() -> None:
    """Take the means of the split `train`, test on the split `test`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    options = parser.parse_args()
    train, test = (tsds.open(options.store)[name] for name in ("train", "test"))  # tsds

    sums = np.zeros((len(train.fields["label"].classes), *train["image"][0].shape))
    counts = np.zeros(len(sums))
    for first in range(0, len(train), 32):
        rows = np.arange(first, min(first + 32, len(train)))
        images, labels = train["image"].take(rows), train["label"].take(rows)  # tsds
        np.add.at(sums, labels, images)
        counts += np.bincount(labels, minlength=len(counts))

    means = sums / counts[:, None, None, None]
    right = 0
    for row in range(len(test)):
        sample = test[row]  # tsds
        right += int(np.square(means - sample["image"]).sum((1, 2, 3)).argmin() == sample["label"])
    print(f"accuracy {right / len(test):.3f} on {len(test)} images")


if __name__ == "__main__":
    main()
