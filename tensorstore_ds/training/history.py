"""The epochs of a run: a line each in `history.jsonl`, and TensorBoard's files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Self

from tensorstore_ds.durable import replacing, sync, unwritable, write_all
from tensorstore_ds.errors import OptionError
from tensorstore_ds.training.records import EpochRecord, dump_record, parse_record, scalars


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
        OutputError: a file cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep_epochs: int = 0) -> None:
        self.folder = Path(folder)
        self.path, self.board_path = self.folder / "history.jsonl", self.folder / "tensorboard"
        self.keep_epochs = keep_epochs
        self.records: list[EpochRecord] = []
        self._file: BinaryIO | None = None
        self._board: Any = None

    def __enter__(self) -> Self:
        with _writing(self.path), ExitStack() as opened:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._take_up()
            self._file = opened.enter_context(open(self.path, "ab", buffering=0))
            sync(self.folder)
            if tensorboard_available():
                from torch.utils.tensorboard import SummaryWriter

                with _writing(self.board_path):  # epochs of other files that are trained again are hidden
                    self._board = SummaryWriter(self.board_path, purge_step=self.keep_epochs + 1)
            opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        board, self._file, self._board = self._board, None, None
        if board is not None:
            with _writing(self.board_path):
                board.close()

    def add(self, record: EpochRecord) -> None:
        """Append an epoch: its line is on disk when this returns.

        Raises:
            OptionError: its number does not follow those before.
            OutputError: it could not be written.
            ValueError: the block has ended, or not begun.
        """
        if self._file is None:
            raise ValueError("History: expected to add inside of its `with` block, found it closed.")
        _check_order(self.path.name, self.records, record)
        with _writing(self.path):
            write_all(self._file, encoded(dump_record(record) + "\n"))
            os.fsync(self._file.fileno())
        self.records.append(record)
        board, self._board = self._board, None  # one that fails would fail again when it is closed
        if board is not None:
            with _writing(self.board_path):
                for name, value in scalars(record).items():
                    board.add_scalar(name, value, record.epoch)
                board.flush()
            self._board = board

    def _take_up(self) -> None:
        """Keep the lines of the first epochs, as they are; the file is replaced only if others are in it."""
        content = self.path.read_bytes() if self.path.exists() else b""
        kept = [(line, record) for line, record in parse_lines(content, self.path) if record.epoch <= self.keep_epochs]
        wanted = b"".join(line + b"\n" for line, _ in kept)
        if wanted != content:
            with replacing(self.path) as file:
                file.write(wanted)
        self.records = [record for _, record in kept]


def tensorboard_available() -> bool:
    """Whether the package tensorboard can be imported."""
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        return False
    return True


def encoded(text: str) -> bytes:
    """UTF-8; half of a surrogate pair, which has none, as JSON's own escape."""
    return text.encode("utf-8", "backslashreplace")


def parse_lines(content: bytes, path: Path) -> list[tuple[bytes, EpochRecord]]:
    """Lines of `history.jsonl` with their records, without the last one where it was written half.

    Raises:
        OptionError: a line is no record.
    """
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


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """An `OutputError` about `path` where the system refuses to write."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error
