"""What can be asked of a diagnosis. No torch is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tensorstore_ds.annex.training.options import LARGEST, Preset
from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import ANY_DEVICE, declared, option

Model = Literal[Preset, "none"]


@declared
class DiagnoseOptions:
    """Options of `diagnose`.

    >>> tsds.measuring.DiagnoseOptions(model="none", seconds=10).batch_size
    128

    Raises:
        OptionError: an option is out of its range.
    """

    split: str | None = option("Split to train on.", default=None, shown="train, or the first split", group="Essential")
    model: Model = option(
        "Size of the model to train, as in tsds train. ``none`` examines loading alone.",
        default="tiny",
        group="Essential",
    )
    image_size: tuple[int, int] | None = option(
        "Decode images to this (height, width) in pixels, as in tsds train. With the model none, decode a random part "
        "of each image.",
        default=None,
        at_least=1,
        at_most=LARGEST,
        shown="as in tsds train: the stored size, or 224x224 if sizes differ",
        group="Essential",
    )
    batch_size: int = option(
        "Samples per step. If the split has fewer, all of them.", default=128, at_least=1, group="Essential"
    )
    seconds: float = option(
        "Approximate duration of the diagnosis in seconds.", default=40.0, at_least=1, group="Essential"
    )
    device: str | None = option(
        "Device to train on, such as cuda or cpu.", default=None, shown=ANY_DEVICE, group="Essential"
    )
    num_threads: int | None = option(
        "Number of loader threads that you use now. The best settings are compared with it.",
        default=None,
        at_least=1,
        shown="as in the loader",
        group="Current loader",
    )
    prefetch_factor: int | None = option(
        "Batches to prefetch per thread in the loader that you use now (prefetch_factor).",
        default=None,
        at_least=1,
        shown="2, as in the loader",
        group="Current loader",
    )
    memory: int | None = option(
        "Memory available to training. The diagnosis reports whether an epoch fits into it.",
        default=None,
        at_least=1,
        unit="bytes",
        shown="the memory available to this process",
        group="Machine",
    )


def split_of(asked: str | None, names: Sequence[str]) -> str:
    """The split to measure: the one that is asked for, else ``train``, else the first."""
    name = asked or ("train" if "train" in names else next(iter(names), ""))
    if name not in names:
        raise OptionError(f"`split`: expected one of {', '.join(names) or 'none at all'}, found {name or 'none'}.")
    return name
