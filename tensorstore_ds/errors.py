"""Exceptions of this library. Each also derives from a built-in exception::

    TsdsError
    ├── FormatError       a store, or a part of it, breaks a rule of the format       (ValueError)
    ├── ResourceError     this machine has too little memory, disk, files or time     (RuntimeError)
    ├── SourceError       a data set cannot be converted as it is                     (ValueError)
    ├── OptionError       options contradict each other or the data                   (ValueError)
    │   └── UnknownNameError  a store or split has no split or field of this name     (KeyError)
    ├── ConversionError   the machine failed during a conversion: disk, worker        (RuntimeError)
    ├── ResidencyError    a store cannot be held or dropped on this machine           (RuntimeError)
    ├── TrainingError     a training run cannot continue: loss, memory, checkpoint    (RuntimeError)
    │   └── TrainingStopped  a signal stopped the run, which wrote a checkpoint first
    ├── RemoteError       a server is unreachable, refuses access or sends wrong data (ConnectionError)
    ├── OutputError       a checkpoint, report or picture cannot be written           (RuntimeError)
    └── StoreExistsError  the target of a conversion already exists                   (FileExistsError)

A message is one line. It states where the error is, what was expected, what was found, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ConversionError",
    "FormatError",
    "OptionError",
    "OutputError",
    "Problem",
    "RemoteError",
    "ResidencyError",
    "ResourceError",
    "SourceError",
    "StoreExistsError",
    "TrainingError",
    "TrainingStopped",
    "TsdsError",
    "UnfinishedError",
    "UnknownNameError",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """One error at one place in a store or a source.

    >>> Path("photos.tsds/val/00000/label/zarr.json").unlink()
    >>> problem = tsds.verify("photos.tsds")[0]
    >>> problem.where, problem.reason
    ('val/00000/label/zarr.json', 'missing-file')

    Attributes:
        where: file, sample or place in the manifest, relative to the store or source.
        reason: a code from ``formats/v1/reasons.md``, such as ``file-size``.
        message: text that states the expected and the found value.
    """

    where: str
    reason: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.where}: {self.message.removeprefix(f'{self.where}: ')}")


class TsdsError(Exception):
    """Base class of all exceptions of this library.

    Catch it to handle every error of this library. Its message is one line. An error about a store or a source has a
    `reason`, a code that stays the same when the message changes:

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

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""  # without other members; a `KeyError` would add quotes


class _ProblemError(TsdsError):
    """An error with the list of problems that caused it."""

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


class FormatError(_ProblemError, ValueError):
    """A store breaks a rule of the format. ``problems`` lists every broken rule that was found.

    >>> Path("photos.tsds/val/00000/zarr.json").unlink()
    >>> try:
    ...     tsds.open("photos.tsds")["val"]["image"][0]
    ... except tsds.FormatError as error:
    ...     print(error.problems[0].where, error.reason)
    val/00000/zarr.json missing-file
    """


class ResourceError(_ProblemError, RuntimeError):
    """The work needs more memory, disk space, open files or time than there is. The store or the source may be whole.

    Nothing is removed because of it: what is finished is kept, and the same call goes on.

    >>> from tensorstore_ds.machine import check_fits
    >>> try:
    ...     check_fits("train/image", 2**62)
    ... except tsds.errors.ResourceError as error:
    ...     print(error.reason)
    too-large
    """


class SourceError(_ProblemError, ValueError):
    """A source, or a sample in it, cannot be converted. ``problems`` lists every problem that was found.

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
    """Options contradict each other or the data.

    >>> try:
    ...     tsds.ConvertOptions(size=24, fit=tsds.conversion.Shrink(32))
    ... except tsds.OptionError as error:  # also a ValueError
    ...     print(error)
    `size` is a part of `fit`, which is given as Shrink(...): leave it out.
    """


class UnknownNameError(OptionError, KeyError):
    """The store has no split of this name, or the split has no field of this name.

    >>> try:
    ...     tsds.open("photos.tsds")["train"]["lable"]
    ... except tsds.errors.UnknownNameError as error:
    ...     print(error)
    split train: expected one of the fields image, label, size, key, found 'lable'. Did you mean label?
    """


class ConversionError(TsdsError, RuntimeError):
    """The machine stopped a conversion, for example because the disk is full or a worker process died."""


class UnfinishedError(ConversionError):
    """Shards of a planned conversion are missing.

    >>> _ = tsds.clusters.plan("photos", "out.tsds", tasks=2)
    >>> _ = tsds.clusters.convert_task("out.tsds", 0, workers=0)
    >>> try:
    ...     tsds.clusters.commit("out.tsds")
    ... except tsds.errors.UnfinishedError as error:
    ...     print(error.tasks, error.of)
    1 2

    Attributes:
        tasks: tasks of the missing shards, in the form of a job array, such as ``3,7-9``.
        of: number of tasks.
    """

    def __init__(self, message: str, tasks: str, of: int) -> None:
        super().__init__(message, tasks, of)
        self.tasks, self.of = tasks, of


class ResidencyError(TsdsError, RuntimeError):
    """This machine cannot hold or drop a store's bytes as requested."""


class TrainingError(TsdsError, RuntimeError):
    """Training cannot continue, for example because the loss is not finite, memory is full or a checkpoint damaged."""


class TrainingStopped(TrainingError):
    """A signal stopped the training run, which wrote a checkpoint first.

    Attributes:
        signal: number of the signal.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message, signal)
        self.signal = signal


class RemoteError(TsdsError, ConnectionError):
    """A server cannot be reached, refuses access, or sends something other than the requested data.

    Attributes:
        reason: ``missing``, ``no-bucket``, ``refused``, ``replaced``, ``unreachable``, ``no-ranges`` or ``wrong``.
    """

    def __init__(self, message: str, reason: str = "wrong") -> None:
        super().__init__(message, reason)
        self.reason = reason

    def __str__(self) -> str:
        return one_line(str(self.args[0]))


class OutputError(TsdsError, RuntimeError):
    """A checkpoint, report or picture cannot be written, for example because a disk is full or a folder missing."""


class StoreExistsError(TsdsError, FileExistsError):
    """The target of a conversion already exists. It is left unchanged.

    >>> try:
    ...     tsds.convert("photos", "photos.tsds")
    ... except tsds.errors.StoreExistsError:  # also a FileExistsError
    ...     print("There is a store.")
    There is a store.
    """


def one_line(text: str) -> str:
    """Escape control characters in ``text``, such as a newline in a file's name."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
