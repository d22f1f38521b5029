"""What can be asked of a comparison. No torch is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from tensorstore_ds.options import ANY_DEVICE, check, declared, option, refusal
from tensorstore_ds.training.options import LARGEST

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

    >>> options = tsds.BenchOptions(batch_sizes=[64, 256], ways=["plain", "store"], train=False)
    >>> options.batch_sizes
    (64, 256)

    Raises:
        OptionError: one is out of its range.
    """

    raw: Path | None = option(
        "The folder that the store was converted from.",
        default=None,
        shown="none, and loading from files is not measured",
    )
    split: str = option("The split to load.", default="train")
    image_size: tuple[int, int] | None = option(
        "Decode images to this (height, width) in pixels; `crop` chooses the part.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="as they are stored; if they differ in size, 224x224, or less if most are smaller",
    )
    crop: Crop = option(
        "The part of an image that is decoded to the size: ``random``, mirrored at random, as in training; or the "
        "``center`` of the resized image, as in validation. Images with objects are resized whole.",
        default="random",
    )
    batch_sizes: Sequence[int] = option(
        "Samples per batch. Sizes larger than the split are replaced by one batch of the whole split.",
        default=BATCH_SIZES,
        at_least=1,
    )
    ways: Sequence[Group] = option(
        "What to compare: ``files``, the source through torchvision; ``tensors``, all of it in a TensorDataset; "
        "``plain``, the store through torch's DataLoader; ``store``, through this library's; ``device``, "
        "through this library's from a copy on the GPU.",
        default=GROUPS,
    )
    train: bool = option("Whether to measure training of a small ViT, too.", default=True)
    seconds: float | None = option(
        "Approximate seconds for each measurement. What takes longer is measured on a part of the epoch.",
        default=None,
        above=0,
        shown=f"{SECONDS[0]} up to {SMALL_ROWS:,} samples, else {SECONDS[1]}",
    )
    device: str | None = option("The device to load to, such as cuda or cpu.", default=None, shown=ANY_DEVICE)
    memory: int | None = option(
        "Limit: a way that copies the split into memory is measured only if the copy is not larger.",
        default=None,
        at_least=0,
        unit="bytes",
        shown="what this process may use",
    )
    seed: int = option("Seed of orders and weights.", default=0, at_least=0, at_most=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)
        if self.raw is not None and not Path(self.raw).is_dir():
            raise refusal("raw", "a folder", self.raw)

    def sizes(self, rows: int) -> tuple[int, ...]:
        """The batch sizes for a split of `rows` samples, each once, in rising order.

        >>> BenchOptions().sizes(1797)
        (100, 300, 500, 1000, 1797)
        """
        return tuple(sorted({min(size, rows) for size in self.batch_sizes}))

    def time_for(self, rows: int) -> float:
        """Seconds for a measurement on a split of `rows` samples."""
        return self.seconds if self.seconds is not None else SECONDS[rows > SMALL_ROWS]


def middle(sizes: Sequence[int]) -> int:
    """The largest of rising batch sizes that is no more than `MIDDLE_BATCH`, else the smallest.

    >>> middle((100, 1000, 10000)), middle((5000,))
    (1000, 5000)
    """
    return max((size for size in sizes if size <= MIDDLE_BATCH), default=sizes[0])
