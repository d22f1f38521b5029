"""What can be asked of a diagnosis. No torch is imported here."""

from __future__ import annotations

from typing import Literal

from tensorstore_ds.options import ANY_DEVICE, check, declared, option
from tensorstore_ds.training.options import Preset

Model = Literal[Preset, "none"]


@declared
class DiagnoseOptions:
    """What is examined, for how long, and with which limits.

    Raises:
        OptionError: one is out of its range.
    """

    split: str | None = option("The split to train on.", default=None, shown="train, or the first")
    model: Model = option(
        "The model that trains, a preset of `TrainOptions`; ``none`` examines loading alone.", default="tiny"
    )
    batch_size: int = option("Samples per step; cut to the data.", default=128, at_least=1)
    seconds: float = option("Time that the diagnosis may take, about.", default=40.0, at_least=1)
    device: str | None = option("The device to train on, such as cuda or cpu.", default=None, shown=ANY_DEVICE)
    num_threads: int | None = option(
        "The loader's threads that you use now, with which the best settings are compared.",
        default=None,
        at_least=1,
        shown="the loader's",
    )
    prefetch_factor: int | None = option(
        "The loader's prefetch_factor that you use now.", default=None, at_least=1, shown="the loader's"
    )
    pin_memory: bool | None = option("Whether you use the loader's pin_memory now.", default=None, shown="the loader's")
    cores: int | None = option("Cores that this process may use.", default=None, at_least=1, shown="as the system says")
    memory: int | None = option(
        "Memory that this process may use.", default=None, at_least=1, unit="bytes", shown="as the system says"
    )

    def __post_init__(self) -> None:
        check(self)
