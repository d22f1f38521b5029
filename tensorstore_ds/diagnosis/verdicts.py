"""From numbers to verdicts: what holds training back, the heaviest first. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable

from tensorstore_ds.diagnosis.device_verdicts import (
    batch_too_small,
    copy_bound,
    model_bound,
    pageable_copies,
    too_many_torch_threads,
)
from tensorstore_ds.diagnosis.findings import Measured, Verdict
from tensorstore_ds.diagnosis.loading_verdicts import (
    compressed,
    cores_limited,
    decode_bound,
    does_not_fit,
    gather_bound,
    storage_bound,
    too_few_threads,
    transform_bound,
    transform_holds_gil,
)

CAUSES: tuple[Callable[[Measured], Verdict | None], ...] = (
    storage_bound,
    does_not_fit,
    too_many_torch_threads,
    model_bound,
    transform_holds_gil,
    compressed,
    decode_bound,
    too_few_threads,
    copy_bound,
    pageable_copies,
    transform_bound,
    cores_limited,
    gather_bound,
    batch_too_small,
)


def judge(m: Measured) -> tuple[Verdict, ...]:
    """All verdicts that the numbers bear out, at least one.

    Either the model is the limit, or training waits for the loader; then the kind of the store and what its threads do
    always come to a verdict, whatever else there is.
    """
    return tuple(verdict for cause in CAUSES if (verdict := cause(m)) is not None)
