"""What can be asked of a comparison. No torch is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from tensorstore_ds.annex.training.options import LARGEST
from tensorstore_ds.options import ANY_DEVICE, check, declared, option, refusal

Group = Literal["files", "tensors", "plain", "store", "device"]
Crop = Literal["random", "center"]
GROUPS: tuple[Group, ...] = get_args(Group)

BATCH_SIZES = (100, 300, 500, 1000, 3000, 5000, 10000)
#: Up to so many samples an epoch is short, and less time is given to each measurement.
SMALL_ROWS = 10_000
#: Seconds for a measurement: of data sets up to `SMALL_ROWS`, and of larger ones.
SECONDS = (0.5, 1.5)
#: The first epoch and the check of what is delivered are done with about as many samples a batch.
MIDDLE_BATCH = 1000


@declared
class BenchOptions:
    """Options of `bench`.

    >>> options = tsds.measuring.BenchOptions(batch_sizes=[64, 256], ways=["plain", "store"], train=False)
    >>> options.batch_sizes
    (64, 256)

    Raises:
        OptionError: an option is out of its range.
    """

    raw: Path | None = option(
        "Folder that the store was converted from.",
        default=None,
        shown="loading from files is not measured",
        group="Essential",
    )
    split: str = option("Split to load.", default="train", group="Essential")
    image_size: tuple[int, int] | None = option(
        "Decode images to this (height, width) in pixels. `crop` chooses the part.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="the stored size; 224x224 if sizes differ, less if most images are smaller",
        group="Essential",
    )
    crop: Crop = option(
        "Part of an image to decode: ``random``, with random flips, as in training; or the ``center`` of the resized "
        "image, as in validation. Images with objects are resized without cropping.",
        default="random",
        group="Measurement",
    )
    batch_sizes: Sequence[int] = option(
        "Samples per batch. Sizes larger than the split are replaced with one batch of the whole split.",
        default=BATCH_SIZES,
        at_least=1,
        group="Essential",
    )
    ways: Sequence[Group] = option(
        "Ways to load: ``files``, the source files with torchvision; ``tensors``, the whole split in a TensorDataset; "
        "``plain``, the store with torch's DataLoader; ``store``, the store with this library's DataLoader; "
        "``device``, this library's DataLoader with a copy on the GPU.",
        default=GROUPS,
        group="Essential",
    )
    train: bool = option("Also measure training of a small ViT.", default=True, group="Essential")
    seconds: float | None = option(
        "Approximate seconds per measurement. Longer epochs are measured in part.",
        default=None,
        above=0,
        shown=f"{SECONDS[0]} for up to {SMALL_ROWS:,} samples, else {SECONDS[1]}",
        group="Essential",
    )
    device: str | None = option(
        "Device to load to, such as cuda or cpu.", default=None, shown=ANY_DEVICE, group="Essential"
    )
    memory: int | None = option(
        "Memory limit: ways that copy the split into memory are skipped if the copy is larger.",
        default=None,
        at_least=0,
        unit="bytes",
        shown="the memory available to this process",
        group="Measurement",
    )
    seed: int = option(
        "Random seed of orders and weights.", default=0, at_least=0, at_most=2**63 - 1, group="Measurement"
    )

    def __post_init__(self) -> None:
        check(self)
        if self.raw is not None and not Path(self.raw).is_dir():
            raise refusal("raw", "a folder", self.raw)

    def sizes(self, rows: int) -> tuple[int, ...]:
        """Return the batch sizes for a split of `rows` samples, ascending and without duplicates.

        >>> BenchOptions().sizes(1797)
        (100, 300, 500, 1000, 1797)
        """
        return tuple(sorted({min(size, rows) for size in self.batch_sizes}))

    def time_for(self, rows: int) -> float:
        """Return the seconds per measurement for a split of `rows` samples."""
        return self.seconds if self.seconds is not None else SECONDS[rows > SMALL_ROWS]


def middle(sizes: Sequence[int]) -> int:
    """The largest of ascending batch sizes up to `MIDDLE_BATCH`, else the smallest.

    >>> middle((100, 1000, 10000)), middle((5000,))
    (1000, 5000)
    """
    return max((size for size in sizes if size <= MIDDLE_BATCH), default=sizes[0])
