"""Progress of a run, and its epochs, each a line in `history.jsonl`.

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorstore_ds import words
from tensorstore_ds.durable import write_all, write_file, writing
from tensorstore_ds.errors import OptionError, one_line
from tensorstore_ds.progress import notebook_bar


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """Results of an epoch."""

    epoch: int  #: Number of the epoch, from 1.
    seconds: float  #: Duration of the training, without the evaluation.
    learning_rate: float  #: Learning rate of the last step.
    train: Mapping[str, float]  #: `loss`, the mean over all steps, and the metrics of the task by name.
    eval: Mapping[str, float] | None  #: `loss` and metrics of the evaluation after the epoch; None if there was none.
    samples_per_second: float  #: Samples per second of training, over all ranks.
    wait_share: float  #: Share of the time, in [0, 1], in which steps waited for data; on a GPU, in which it was idle.
    #: Peak bytes of GPU memory that torch reserved in this epoch; None on other devices.
    device_memory: int | None = None
    #: Share of the time of steps, in [0, 1], in which the training thread had a core; None unless on a CPU.
    core_share: float | None = None


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """Progress of a training run."""

    epoch: int  #: Number of the epoch, from 1.
    epochs: int  #: Number of epochs of the run.
    batch: int  #: Number of the batch, from 1.
    batches: int  #: Number of batches of this epoch and rank.
    metrics: Mapping[str, float]  #: `loss` and the metrics of the task, of the epoch so far, on this rank.
    samples_per_second: float  #: Samples per second over all ranks, of the epoch so far.
    wait_share: float  #: Share of the time, in [0, 1], in which steps waited for data; on a GPU, in which it was idle.
    seconds_left: float  #: Estimated seconds of training until the end of the run.
    device_memory: int | None  #: Peak bytes of GPU memory that torch reserved in this epoch; None on other devices.
    #: Share of the time of steps, in [0, 1], in which the training thread had a core; None unless on a CPU.
    core_share: float | None = None

    def __str__(self) -> str:
        metrics = " ".join(f"{name} {value:.3f}" for name, value in self.metrics.items())
        memory = "" if self.device_memory is None else f" · {words.size(self.device_memory)}"
        core = "" if self.core_share is None else f" · on a core {self.core_share:.0%}"
        left = f" · {words.duration(self.seconds_left)} left" if self.seconds_left else ""
        return (
            f"{self.batch:,}/{self.batches:,} · {metrics} · {self.samples_per_second:,.0f}/s"
            f" · waited {self.wait_share:.0%}{core}{memory}{left}"
        )


def _in_notebook() -> Callable[[TrainProgress], None]:
    draw = notebook_bar()
    return lambda event: draw(f"Epoch {event.epoch}/{event.epochs} · {event}", event.batch, event.batches)


@dataclass(frozen=True)
class Listeners:
    """Functions that `train` calls with its progress on the first rank. Each has one argument.

    >>> losses = []
    >>> listeners = tsds.training.Listeners(epoch=lambda record: losses.append(record.train["loss"]))
    >>> options = tsds.training.TrainOptions(epochs=2, model="seed", device="cpu", torch_threads=1)
    >>> _ = tsds.train("photos.tsds", options, out="run", listeners=listeners)
    >>> len(losses)
    2
    """

    #: Called with a line before the first epoch, and when the number of torch's threads changes.
    note: Callable[[str], None] = lambda _: None
    #: Called about twice per second. By default, a notebook shows a bar.
    progress: Callable[[TrainProgress], None] = field(default_factory=_in_notebook)
    epoch: Callable[[EpochRecord], None] = lambda _: None  #: Called after each epoch.


def best_record(records: Iterable[EpochRecord], metric: str, *, higher_is_better: bool = True) -> EpochRecord | None:
    """The epoch with the best evaluation, the first of equals; None if no epoch has a finite `metric`."""
    sign = 1 if higher_is_better else -1
    finite = [record for record in records if math.isfinite((record.eval or {}).get(metric, math.nan))]
    return max(finite, key=lambda record: sign * (record.eval or {})[metric], default=None)


# --- as JSON ------------------------------------------------------------------------------------------------------


def dump_record(record: EpochRecord) -> str:
    """A record as one line of JSON: an object with its attributes; numbers that are not finite become null."""
    return json.dumps(plain(record), ensure_ascii=False, allow_nan=False)


def parse_record(data: Any) -> EpochRecord:
    """The inverse of `dump_record`; null becomes NaN, unknown members are ignored. Raises builtin errors if invalid."""
    epoch, evaluated, memory, share = data["epoch"], data.get("eval"), data.get("device_memory"), data.get("core_share")
    if type(epoch) is not int or epoch < 1 or not (memory is None or (type(memory) is int and memory >= 0)):
        raise ValueError(f"epoch {epoch}, device_memory {memory}")
    return EpochRecord(
        epoch=epoch,
        train=_numbers(data["train"]),
        eval=None if evaluated is None else _numbers(evaluated),
        device_memory=memory,
        core_share=None if share is None else _number(share),
        **_numbers({name: data[name] for name in ("learning_rate", "seconds", "samples_per_second", "wait_share")}),
    )


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    return {name: _number(value) for name, value in values.items()}


def _number(value: object) -> float:
    if value is not None and not (isinstance(value, int | float) and type(value) is not bool):
        raise TypeError(f"expected a number or null, found {type(value).__name__}")
    return math.nan if value is None else float(value)


def plain(value: Any) -> Any:
    """Convert to JSON values: numbers that are not finite become null; arrays, tensors and tuples lists; paths text.

    >>> plain({"loss": float("nan"), "size": (28, 28), "folder": Path("run")})
    {'loss': None, 'size': [28, 28], 'folder': 'run'}
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [plain(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    raise TypeError(f"expected what JSON can hold, found {type(value).__name__}")


def first_line(error: Exception) -> str:
    """The beginning of an error's text, or its type if it has none."""
    return one_line(str(error).splitlines()[0].rstrip(".")[:120]) if str(error) else type(error).__name__


def encoded(text: str) -> bytes:
    """Encode as UTF-8; unpaired surrogates, which UTF-8 lacks, become JSON escapes."""
    return text.encode("utf-8", "backslashreplace")


def parse_lines(content: bytes, path: Path) -> list[tuple[bytes, EpochRecord]]:
    """Lines of `history.jsonl` with their records, without an incomplete last line."""
    *whole, last = content.split(b"\n")
    lines: list[tuple[bytes, EpochRecord]] = []
    for number, line in enumerate([*whole, last], 1):
        try:
            record = parse_record(json.loads(line))
            _check_order("epoch", [r for _, r in lines[-1:]], record)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            if number > len(whole):  # what follows the last newline: nothing, or a line that was written half
                break
            what = error if isinstance(error, OptionError) else "expected an epoch as JSON, found something else"
            raise OptionError(f"{path}, line {number}: {what}. Remove that line, or the file.") from error
        lines.append((line, record))
    return lines


def _check_order(where: str, before: Sequence[EpochRecord], record: EpochRecord) -> None:
    if before and record.epoch <= before[-1].epoch:
        raise OptionError(f"{where}: expected an epoch after {before[-1].epoch}, found {record.epoch}")


# --- in files -----------------------------------------------------------------------------------------------------


class History:
    """Writes `history.jsonl` in a run's folder, which it makes, or continues its file.

    Only one process may write, such as rank 0. A line is on disk when `add` returns. Write it after the checkpoint of
    the same epoch: a run that is killed between the two evaluates the epoch again.

    On resuming, `keep_epochs` is the number of whole epochs in the checkpoint: their lines are kept, later or
    incomplete lines dropped. Raises an `OptionError` that names an invalid line.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep_epochs: int = 0) -> None:
        self.path = Path(folder, "history.jsonl")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            content = self.path.read_bytes() if self.path.exists() else None
            kept = [(line, r) for line, r in parse_lines(content or b"", self.path) if r.epoch <= keep_epochs]
            wanted = b"".join(line + b"\n" for line, _ in kept)
            if wanted != content:  # lines that are kept stay as they are
                write_file(self.path, wanted)
        self.records = [record for _, record in kept]  # those kept and added

    def add(self, record: EpochRecord) -> None:
        """Append the next epoch; its line is on disk when this returns."""
        _check_order(self.path.name, self.records, record)
        with writing(self.path), open(self.path, "ab", buffering=0) as file:
            write_all(file, encoded(dump_record(record) + "\n"))
            os.fsync(file.fileno())
        self.records.append(record)
