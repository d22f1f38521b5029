"""What a run tells while it goes on: where it is, and the figures of each epoch, also as a line of JSON.

>>> record = EpochRecord(1, 2.5, 1e-3, {"loss": 0.7}, {"loss": 0.6, "accuracy": 0.8}, 4000.0, 0.01)
>>> dump_record(record)[:57]
'{"epoch": 1, "seconds": 2.5, "learning_rate": 0.001, "tra'
>>> parse_record(json.loads(dump_record(record))) == record
True
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.errors import OptionError


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """What an epoch came to.

    Attributes:
        epoch: counted from 1.
        seconds: it took, without its evaluation.
        learning_rate: of its last step.
        train: `loss`, the mean over its steps, and metrics by name.
        eval: the same of the evaluation after it; None where there was none.
        samples_per_second: of training, over all ranks.
        wait_share: in [0, 1]: of its time, the share in which steps waited for data.
        device_memory: bytes of the device's memory that were taken at most; None where that is not known.
    """

    epoch: int
    seconds: float
    learning_rate: float
    train: Mapping[str, float]
    eval: Mapping[str, float] | None
    samples_per_second: float
    wait_share: float
    device_memory: int | None = None


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Where a run is.

    Attributes:
        epoch, epochs: counted from 1.
        batch, batches: of this epoch and rank, counted from 1.
        metrics: `loss` and the task's, of the epoch so far, of this rank.
        samples_per_second: over all ranks, of the epoch so far.
        wait_share: of the time, in [0, 1], in which steps waited for data.
        seconds_left: of training, to the end of the run.
        device_memory: bytes of a GPU's memory that were taken at most; None elsewhere.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int
    metrics: Mapping[str, float]
    samples_per_second: float
    wait_share: float
    seconds_left: float
    device_memory: int | None


@dataclass(frozen=True)
class Listeners:
    """Who is told how a run goes: functions of one argument, called on the first rank only.

    Attributes:
        note: a line, before the first epoch.
        progress: a `TrainProgress`, about twice a second.
        epoch: an `EpochRecord`, after each epoch.
    """

    note: Callable[[str], None] = lambda _: None
    progress: Callable[[TrainProgress], None] = lambda _: None
    epoch: Callable[[EpochRecord], None] = lambda _: None


def best_record(records: Iterable[EpochRecord], metric: str, *, higher_is_better: bool = True) -> EpochRecord | None:
    """The epoch with the best evaluation, the first of equals; None where none has a finite `metric`."""
    sign = 1 if higher_is_better else -1
    finite = [record for record in records if math.isfinite((record.eval or {}).get(metric, math.nan))]
    return max(finite, key=lambda record: sign * (record.eval or {})[metric], default=None)


def scalars(record: EpochRecord) -> dict[str, float]:
    """The numbers of an epoch by the names that TensorBoard shows: ``train/loss``, ``eval/accuracy``, ``seconds``."""
    named = {f"train/{name}": value for name, value in record.train.items()}
    named |= {f"eval/{name}": value for name, value in (record.eval or {}).items()}
    named |= {name: getattr(record, name) for name in ("learning_rate", "seconds", "samples_per_second", "wait_share")}
    if record.device_memory is not None:
        named["device_memory"] = record.device_memory
    return named


def dump_record(record: EpochRecord) -> str:
    """A record as one line of JSON: an object with its attributes; what is not finite is null."""
    return json.dumps(plain(record), ensure_ascii=False, allow_nan=False)


def parse_record(data: object) -> EpochRecord:
    """The inverse of `dump_record`; null where a number belongs is NaN, and members that are not known are left out.

    Raises:
        OptionError: it is no record: what was expected of which member.
    """
    if not isinstance(data, dict):
        raise OptionError(f"expected an object, found {_brief(data)}")
    epoch, evaluated, memory = data.get("epoch"), data.get("eval"), data.get("device_memory")
    if type(epoch) is not int or epoch < 1:
        raise OptionError(f"epoch: expected a whole number from 1, found {_brief(epoch)}")
    if memory is not None and (type(memory) is not int or memory < 0):
        raise OptionError(f"device_memory: expected bytes or null, found {_brief(memory)}")
    numbers = ("seconds", "learning_rate", "samples_per_second", "wait_share")
    if missing := [name for name in numbers if name not in data]:
        raise OptionError(f"{missing[0]}: expected a number or null, found nothing")
    return EpochRecord(
        epoch=epoch,
        train=_numbers("train", data.get("train")),
        eval=None if evaluated is None else _numbers("eval", evaluated),
        device_memory=memory,
        **_numbers("record", {name: data[name] for name in numbers}),
    )


def plain(value: Any) -> Any:
    """As what JSON knows: numbers that are not finite become null; arrays, tensors, tuples and (sorted) sets lists.

    Raises:
        TypeError: of something else.

    >>> plain({"loss": float("nan"), "size": (28, 28), "classes": {"bee", "ant"}})
    {'loss': None, 'size': [28, 28], 'classes': ['ant', 'bee']}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, Set):
        return sorted(map(plain, value))
    if isinstance(value, Sequence):
        return [plain(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"expected what JSON can hold, found {type(value).__name__}")


def _numbers(where: str, values: object) -> dict[str, float]:
    if not isinstance(values, dict):
        raise OptionError(f"{where}: expected an object of numbers, found {_brief(values)}")
    for name, value in values.items():
        if value is not None and type(value) not in (int, float):
            raise OptionError(f"{where}: {_brief(name)}: expected a number or null, found {_brief(value)}")
    return {name: math.nan if value is None else float(value) for name, value in values.items()}


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
