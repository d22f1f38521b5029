"""What a training run leaves behind in figures: a line an epoch in `history.jsonl`, TensorBoard's files, a report."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Self

from tensorstore_ds.conversion.shard_writer import sync
from tensorstore_ds.durable import replacing, unwritable, write_all
from tensorstore_ds.errors import OptionError
from tensorstore_ds.training.epoch_record import EpochRecord, best_record, dump_record, parse_record, plain, scalars
from tensorstore_ds.training.tensorboard_events import EventFile, tensorboard_available

__all__ = ["EpochRecord", "History", "best_record", "load_history", "write_report"]

HISTORY = "history.jsonl"
REPORT = "report.json"
TENSORBOARD = "tensorboard"


class History:
    """Writes `history.jsonl` in a run's folder, and TensorBoard's files in `tensorboard/` below it, if it is installed.

    A context manager: the folder is made, or what lies in it is taken up, when the block begins. Only one process may
    write, such as rank 0. A line is on disk when `add` returns. Write it before the checkpoint of the same epoch: a run
    that is killed between the two begins the epoch again, and drops the line.

    Args:
        folder: of the run.
        keep_epochs: on resuming, whole epochs that the checkpoint has behind it: their lines are kept, others dropped,
            and so is a last line that a killed process has written half. 0 for a new run.

    Attributes:
        records: the epochs kept and added.

    Raises:
        OptionError: a line of `history.jsonl` is no record (when the block begins).
        TrainingError: a file cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep_epochs: int = 0) -> None:
        self.folder = Path(folder)
        self.keep_epochs = keep_epochs
        self.records: list[EpochRecord] = []
        self._file: BinaryIO | None = None
        self._board: EventFile | None = None
        self._opened = ExitStack()

    @property
    def path(self) -> Path:
        """Of `history.jsonl`."""
        return self.folder / HISTORY

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._take_up()
                self._file = opened.enter_context(open(self.path, "ab", buffering=0))
                sync(self.folder)
            except OSError as error:
                raise unwritable(self.path, error) from error
            if tensorboard_available():
                board = EventFile(self.folder / TENSORBOARD, first_step=self.keep_epochs + 1)
                self._board = opened.enter_context(board)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._file = self._board = None
        self._opened.close()

    def add(self, record: EpochRecord) -> None:
        """Append an epoch: its line is on disk when this returns.

        Raises:
            OptionError: its number does not follow those before.
            TrainingError: it could not be written.
            ValueError: the block has ended, or not begun.
        """
        if self._file is None:
            raise ValueError("History: expected to add inside of its `with` block, found it closed.")
        _check_order(self.path.name, self.records, record)
        try:
            write_all(self._file, _encoded(dump_record(record) + "\n"))
            os.fsync(self._file.fileno())
        except OSError as error:
            raise unwritable(self.path, error) from error
        self.records.append(record)
        if self._board is not None:
            self._board.add(scalars(record), record.epoch)

    def _take_up(self) -> None:
        """Keep the lines of the first epochs, as they are; the file is replaced only if others are in it."""
        found = self.path.read_bytes() if self.path.exists() else b""
        kept = [(line, record) for line, record in _lines(found, self.path) if record.epoch <= self.keep_epochs]
        wanted = b"".join(line + b"\n" for line, _ in kept)
        if wanted != found:
            with replacing(self.path) as file:
                file.write(wanted)
        self.records = [record for _, record in kept]


def load_history(path: str | os.PathLike[str]) -> list[EpochRecord]:
    """The epochs of a run.

    Args:
        path: of `history.jsonl`, or of the folder that it is in.

    Returns:
        Their records, in order. A last line that was written half is left out.

    Raises:
        OptionError: a line is no record.
        OSError: the file cannot be read.
    """
    path = Path(path)
    path = path / HISTORY if path.is_dir() else path
    return [record for _, record in _lines(path.read_bytes(), path)]


def write_report(folder: str | os.PathLike[str], data: Mapping[str, Any]) -> Path:
    """Write `report.json`, indented, in the order of `data`; see `plain` for what may be in it.

    Returns:
        Its path. A report that is there is replaced in one step.

    Raises:
        TrainingError: it could not be written.
    """
    path = Path(folder) / REPORT
    text = json.dumps(plain(data), indent=2, ensure_ascii=False, allow_nan=False)
    with replacing(path) as file:
        file.write(_encoded(text + "\n"))
    return path


def _lines(content: bytes, path: Path) -> list[tuple[bytes, EpochRecord]]:
    """Lines with their records, without the last one where it was written half."""
    *whole, last = content.split(b"\n")
    lines: list[tuple[bytes, EpochRecord]] = []
    for number, line in enumerate([*whole, last], 1):
        try:
            record = parse_record(json.loads(line))
            _check_order("epoch", [r for _, r in lines[-1:]], record)
        except (ValueError, OverflowError, RecursionError) as error:
            if number > len(whole):  # what follows the last newline: nothing, or a line that was written half
                break
            what = error if isinstance(error, OptionError) else "expected JSON, found something else"
            raise OptionError(f"{path}, line {number}: {what}. Remove that line, or the file.") from error
        lines.append((line, record))
    return lines


def _check_order(where: str, before: Sequence[EpochRecord], record: EpochRecord) -> None:
    if before and record.epoch <= before[-1].epoch:
        raise OptionError(f"{where}: expected an epoch after {before[-1].epoch}, found {record.epoch}")


def _encoded(text: str) -> bytes:
    """UTF-8; half of a surrogate pair, which has none, as JSON's own escape."""
    return text.encode("utf-8", "backslashreplace")
