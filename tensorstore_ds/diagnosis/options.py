"""What can be asked of a diagnosis. No torch is imported here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from tensorstore_ds.training.options import Preset, check

Model = Preset | Literal["none"]
MODELS: tuple[str, ...] = (*get_args(Preset), "none")


@dataclass(frozen=True, slots=True)
class DiagnoseOptions:
    """What is examined, for how long, and with which limits.

    Attributes:
        split: its name; None: `train`, or the first one.
        model: that trains: a name of `PRESETS`, or ``auto``, by the images' size; ``none``: loading alone.
        batch_size: samples of a step; cut to the data.
        seconds: that the diagnosis may take, about.
        device: ``cuda``, ``cpu``, ...; None: a GPU if there is one.
        num_threads, prefetch_factor, pin_memory: of the `DataLoader` that is examined; None: its defaults. What is
            recommended is compared with these.
        cores: that this process may use; None: as the system says.
        memory: bytes that this process may use; None: as the system says.

    Raises:
        OptionError: one is out of its range.
    """

    split: str | None = None
    model: Model = "tiny"
    batch_size: int = 128
    seconds: float = 40.0
    device: str | None = None
    num_threads: int | None = None
    prefetch_factor: int | None = None
    pin_memory: bool | None = None
    cores: int | None = None
    memory: int | None = None

    def __post_init__(self) -> None:
        check(self.model in MODELS, "model", f"one of {', '.join(MODELS)}", self.model)
        check(1 <= self.seconds < math.inf, "seconds", "1 or more", self.seconds)
        for name in ("batch_size", "num_threads", "prefetch_factor", "cores", "memory"):
            value = getattr(self, name)
            check(value is None or value >= 1, name, "at least 1", value)
