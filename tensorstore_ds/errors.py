"""The exceptions of this library, each with the built-in class that it also is::

    TsdsError
    ├── FormatError       a store, or a part of it, is not what the format says   (ValueError)
    ├── SourceError       a data set to be converted cannot be read as it is      (ValueError)
    ├── OptionError       options that contradict each other or the data          (ValueError)
    │   └── UnknownNameError  a split or field that a store does not have         (KeyError)
    ├── ConversionError   the machine failed during a conversion: disk, worker    (RuntimeError)
    ├── ResidencyError    bytes that cannot be held, locked or dropped here       (RuntimeError)
    ├── TrainingError     a run that cannot go on: loss, memory, checkpoint       (RuntimeError)
    │   └── TrainingStopped  a run that was asked to stop, and kept what it had
    ├── RemoteError       a server that cannot be reached, refuses or is wrong    (ConnectionError)
    ├── OutputError       a checkpoint, report or picture that cannot be written  (RuntimeError)
    └── StoreExistsError  the target of a conversion is already there             (FileExistsError)

A message is one line: where, what was expected and what was found, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in one place of a store or a source.

    >>> Path("photos.tsds/val/00000/label/zarr.json").unlink()
    >>> problem = tsds.verify("photos.tsds")[0]
    >>> problem.where, problem.reason
    ('val/00000/label/zarr.json', 'missing-file')

    Attributes:
        where: file, sample or place in the manifest, relative to the store or source.
        reason: a code from ``formats/v1/reasons.md``, such as ``file-size``.
        message: text with what was expected and what was found.
    """

    where: str
    reason: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.message}")


class TsdsError(Exception):
    """Base of all errors raised here; its message is one line.

    You can catch all errors of this library as one. An error about a store or a source has a `reason`, a code that
    stays the same when the message changes:

    >>> try:
    ...     tsds.open("nothing.tsds")
    ... except tsds.TsdsError as error:
    ...     print(type(error).__name__, error.reason)
    FormatError not-a-store
    >>> try:
    ...     tsds.open("photos.tsds")["test"]
    ... except tsds.TsdsError as error:
    ...     print(error)
    photos.tsds: expected one of the splits train, val, found 'test'.
    """


class _ProblemError(TsdsError, ValueError):
    """An error that carries the list of problems behind it."""

    def __init__(self, problems: Problem | Sequence[Problem] | str, advice: str = "") -> None:
        if isinstance(problems, str):  # torch makes an exception of a worker process anew, from its traceback
            problems = Problem("worker process", "worker", (problems.strip() or "failed").splitlines()[-1])
        self.problems: tuple[Problem, ...] = (problems,) if isinstance(problems, Problem) else tuple(problems)
        self.advice = advice
        super().__init__(self.problems, advice)

    @property
    def reason(self) -> str:
        """The reason code of the first problem."""
        return self.problems[0].reason

    def __str__(self) -> str:
        more = len(self.problems) - 1
        text = str(self.problems[0]) + (f" (and {more} more)" if more else "")
        return f"{text} {self.advice}".rstrip()


class FormatError(_ProblemError):
    """A store breaks a rule of the format; ``problems`` holds every rule found broken.

    >>> Path("photos.tsds/val/00000/zarr.json").unlink()
    >>> try:
    ...     tsds.open("photos.tsds")["val"]["image"][0]
    ... except tsds.FormatError as error:
    ...     print(error.problems[0].where, error.reason)
    val/00000/zarr.json missing-file
    """


class SourceError(_ProblemError):
    """A source, or a sample of it, cannot be converted; ``problems`` holds all that was found.

    >>> _ = Path("photos/train/cat/broken.png").write_bytes(b"no image")
    >>> try:
    ...     tsds.convert("photos", "out.tsds", workers=0)
    ... except tsds.SourceError as error:
    ...     print(error.problems[0].where, error.problems[0].reason)
    train/cat/broken.png not-an-image
    >>> tsds.convert("photos", "out.tsds", workers=0, on_error="skip").skipped
    {'not-an-image': 1}
    """


class OptionError(TsdsError, ValueError):
    """Options that contradict each other or the data.

    >>> try:
    ...     tsds.ConvertOptions(size=24, max_side=32)
    ... except tsds.OptionError as error:  # also a ValueError
    ...     print(error)
    `size` gives all images one size, `max_side` each its own: leave out one of them.
    """


class UnknownNameError(OptionError, KeyError):
    """A store has no split of this name, or a split no field of it.

    >>> try:
    ...     tsds.open("photos.tsds")["train"]["lable"]
    ... except tsds.UnknownNameError as error:
    ...     print(error)
    split train: expected one of the fields image, label, size, key, found 'lable'. Did you mean label?
    """

    def __str__(self) -> str:
        return str(self.args[0])  # a `KeyError` shows its message in quotes


class ConversionError(TsdsError, RuntimeError):
    """A conversion was stopped by the machine: a full disk, a dead worker process."""


class UnfinishedError(ConversionError):
    """Shards of a planned conversion are missing.

    >>> _ = tsds.plan("photos", "out.tsds", tasks=2)
    >>> _ = tsds.convert_task("out.tsds", 0, workers=0)
    >>> try:
    ...     tsds.commit("out.tsds")
    ... except tsds.UnfinishedError as error:
    ...     print(error.tasks, error.of)
    1 2

    Attributes:
        tasks: tasks of the missing shards, in the form of a job array, such as ``3,7-9``.
        of: number of tasks.
    """

    def __init__(self, message: str, tasks: str, of: int) -> None:
        super().__init__(message, tasks, of)
        self.tasks, self.of = tasks, of

    def __str__(self) -> str:
        return str(self.args[0])


class ResidencyError(TsdsError, RuntimeError):
    """This machine cannot hold, lock or drop a store's bytes as it was asked to."""


class TrainingError(TsdsError, RuntimeError):
    """A training run that cannot go on: the loss is no number, memory is full, a checkpoint is damaged."""


class TrainingStopped(TrainingError):
    """A run that was asked to stop by a signal, and wrote a checkpoint first.

    Attributes:
        signal: number of the signal.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message, signal)
        self.signal = signal

    def __str__(self) -> str:
        return str(self.args[0])


class RemoteError(TsdsError, ConnectionError):
    """A server cannot be reached, refuses, or sends something else than what was asked for.

    Attributes:
        reason: ``missing``, ``no-bucket``, ``refused``, ``replaced``, ``unreachable``, ``no-ranges`` or ``wrong``.
    """

    def __init__(self, message: str, reason: str = "wrong") -> None:
        super().__init__(message, reason)
        self.reason = reason

    def __str__(self) -> str:
        return one_line(str(self.args[0]))


class OutputError(TsdsError, RuntimeError):
    """A checkpoint, a report or a picture that cannot be written: a full disk, a folder that is missing."""


class StoreExistsError(TsdsError, FileExistsError):
    """The target of a conversion exists already; nothing was touched.

    >>> try:
    ...     tsds.convert("photos", "photos.tsds")
    ... except tsds.StoreExistsError:  # also a FileExistsError
    ...     print("There is a store.")
    There is a store.
    """


def one_line(text: str) -> str:
    """``text`` with control characters (a newline in a file's name, say) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
