"""What can be asked of a diagnosis. No torch is imported here."""

from __future__ import annotations

from typing import Literal

from tensorstore_ds.options import ANY_DEVICE, check, declared, option
from tensorstore_ds.training.options import LARGEST, Preset

Model = Literal[Preset, "none"]


@declared
class DiagnoseOptions:
    """Options of `diagnose`.

    >>> tsds.DiagnoseOptions(model="none", seconds=10).batch_size
    128

    Raises:
        OptionError: one is out of its range.
    """

    split: str | None = option("The split to train on.", default=None, shown="train, or the first split")
    model: Model = option(
        "Size of the model that is trained, as for tsds train; ``none`` examines loading alone.", default="tiny"
    )
    image_size: tuple[int, int] | None = option(
        "Decode images to this (height, width) in pixels, as tsds train does; with the model none, to a random part of "
        "each image.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="as tsds train chooses: as they are stored, or 224x224 if they differ in size",
    )
    batch_size: int = option("Samples per step, or all samples of the split if it has fewer.", default=128, at_least=1)
    seconds: float = option("Approximate seconds that the diagnosis may take.", default=40.0, at_least=1)
    device: str | None = option("The device to train on, such as cuda or cpu.", default=None, shown=ANY_DEVICE)
    num_threads: int | None = option(
        "The number of loader threads that you use now. The best settings are compared with it.",
        default=None,
        at_least=1,
        shown="that of the loader",
    )
    prefetch_factor: int | None = option(
        "Batches that wait ready for each thread of the loader that you use now: its prefetch_factor.",
        default=None,
        at_least=1,
        shown="2, as the loader's",
    )
    pin_memory: bool | None = option(
        "Whether you use pin_memory in the loader now.", default=None, shown="that of the loader"
    )
    cores: int | None = option(
        "Number of cores that this process may use.", default=None, at_least=1, shown="what the system reports"
    )
    memory: int | None = option(
        "Limit of the memory that training may use: the diagnosis tells whether an epoch fits into it.",
        default=None,
        at_least=1,
        unit="bytes",
        shown="what the system reports",
    )

    def __post_init__(self) -> None:
        check(self)
