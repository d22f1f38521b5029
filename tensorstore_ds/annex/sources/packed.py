"""Sources whose samples share files, such as archives and databases."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tensorstore_ds.errors import Problem, SourceError, TsdsError
from tensorstore_ds.regular_files import check_machine
from tensorstore_ds.sources.base import Reference, Source, SourceOptions
from tensorstore_ds.sources.files import encoding_problem, glance, walk_files
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.paths import inside


class PackedSource(Source):
    """A source whose samples are in `_files`. A reference as text is the sample's key, NUL, and where the sample is."""

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._files: list[Path] = []

    def _where(self, number: int) -> str:
        """Name of a file for messages, relative to the source."""
        file = self._files[number]
        return file.name if file == self.path else file.relative_to(self.path).as_posix()

    def files(self, reference: Reference) -> tuple[str, ...]:
        return ()

    def common_files(self) -> tuple[Path, ...]:
        return tuple(self._files)


def files_at(path: Path, suffixes: Collection[str], *, alone: Collection[str] = (), quick: bool = False) -> list[Path]:
    """Files with these suffixes below a folder; of a single file, the suffix may also be one of `alone`.

    With `quick`, some of them, for detecting the format.
    """
    if not path.is_dir():
        return [path] if path.name.lower().endswith((*suffixes, *alone)) else []
    names = sorted(glance(path)) if quick else walk_files(path, suffixes)
    return [path / name for name in names if name.lower().endswith(tuple(suffixes))]


def keyed(split: str, rows: Sequence[tuple[object, str]]) -> Iterator[str]:
    """References of a split from (path, rest) pairs. Keys are the paths if these are unique, else numbers."""
    paths = [inside(path) if isinstance(path, str) and path else None for path, _ in rows]
    named = len(set(paths)) == len(paths) and not any(path is None or encoding_problem(path) for path in paths)
    for i, (path, (_, rest)) in enumerate(zip(paths, rows, strict=True)):
        yield f"{path if named else f'{split}/{i:05d}'}\0{rest}"


@contextmanager
def damage(where: str, what: str, advice: str) -> Iterator[None]:
    """Raise errors of other libraries at a file that is not a valid `what` as `SourceError` `packed-file`.

    Errors of the machine are raised as in `check_machine`; errors of this project stay as they are.
    """
    try:
        yield
    except (TsdsError, FormError):
        raise
    except Exception as error:  # Arrow and HDF5 raise errors of their own, and OSError without a number
        check_machine(where, error)
        message = f"expected {what}, found it damaged: {' '.join(str(error).split())[:200]}."
        raise SourceError(Problem(where, "packed-file", message), advice) from error
