"""What a disk may hold after the power went, from the changes that a program made: `read_log` and `Disk`.

The models of what survives:

strict      the data of files and the names in folders as of their last sync: all that POSIX promises
names-empty every change of a name, in its order; of data what was synced: a new file is empty
names-zeros the same, but a file has its size, and zeros
names-half  the same, and the first half of the data is there
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODELS = ("strict", "names-empty", "names-zeros", "names-half")

Folder = dict[str, int]


@dataclass(frozen=True)
class Change:
    """One change of a file or a name below a folder.

    Attributes:
        path, other: relative to that folder, which is ``.``; `other` is the new name.
        offset: of written data; or the size of a truncated file.
    """

    operation: str
    path: str
    other: str = "."
    offset: int = 0
    data: bytes = b""


def read_log(log: Path, root: Path) -> list[Change]:
    """What faultfs.c has noted."""
    content, changes, at = log.read_bytes(), list[Change](), 0
    while at < len(content):
        end = content.index(b"\n", at)
        operation, path, other, offset, length = content[at:end].decode("utf-8", "surrogateescape").split("\t")
        at = end + 1
        data = b""
        if operation == "write":
            data = content[at : at + int(length)]
            at += int(length)
        paths = (os.path.relpath(name, root) if name else "." for name in (path, other))
        changes.append(Change(operation, *paths, int(offset), data))
    return changes


class Disk:
    """Files and folders by number, each as it is now and as it was when it was last synced; 0 is the root."""

    def __init__(self) -> None:
        self._now: dict[int, Folder | bytearray] = {0: {}}
        self._synced: dict[int, Folder | bytearray] = {0: {}}

    def apply(self, change: Change) -> None:
        """Take in one change."""
        operation, path = change.operation, change.path
        if operation == "sync":
            self._sync(self._find(path))
        elif operation in ("write", "truncate", "extend"):
            self._change_data(change)
        elif operation == "rename":
            self._above(change.other)[_name(change.other)] = self._above(path).pop(_name(path))
        elif operation == "link":
            self._above(change.other)[_name(change.other)] = self._find(path)
        elif operation in ("unlink", "rmdir"):
            del self._above(path)[_name(path)]
        elif operation in ("create", "touch", "mkdir"):
            here = self._above(path)
            if _name(path) not in here:
                here[_name(path)] = len(self._now)
                self._now[len(self._now)] = {} if operation == "mkdir" else bytearray()
            elif operation == "create":
                self._now[self._find(path)] = bytearray()
        else:
            raise ValueError(f"{operation} of {path}: this model does not know it")

    def after_power_loss(self, model: str) -> dict[str, bytes | None]:
        """What is found: bytes of files and None for folders, by relative path, folders first."""
        return dict(self._found(model, 0, ""))

    def unsynced(self, path: str) -> list[str]:
        """What at and below `path` has changed since it was last synced."""
        return [name for name, number in self._below(self._find(path), path) if not self._is_synced(number)]

    def _sync(self, number: int) -> None:
        self._synced[number] = copy.copy(self._now[number])
        if not isinstance(self._now[number], dict):
            return
        inner = {i for _, i in _entries(self._now[number]) if isinstance(self._now[i], dict)}
        for other, folder in self._synced.items():  # a folder has one name: it is no longer found under an old one
            if other != number and isinstance(folder, dict):
                for name in [name for name, i in folder.items() if i in inner]:
                    del folder[name]

    def _found(self, model: str, number: int, path: str) -> Iterator[tuple[str, bytes | None]]:
        folder = self._synced.get(number, {}) if model == "strict" else self._now[number]
        for name, inner in _entries(folder):
            below = f"{path}{name}"
            if isinstance(self._now[inner], dict):
                yield below, None
                yield from self._found(model, inner, f"{below}/")
            else:
                yield below, self._data(model, inner)

    def _data(self, model: str, number: int) -> bytes:
        now, synced = _bytes(self._now[number]), _bytes(self._synced.get(number, bytearray()))
        if self._is_synced(number) or model == "names-half":
            return now if self._is_synced(number) else now[: len(now) // 2]
        return synced.ljust(len(now), b"\0")[: len(now)] if model == "names-zeros" else synced

    def _is_synced(self, number: int) -> bool:
        return self._synced.get(number) == self._now[number]

    def _below(self, number: int, path: str) -> Iterator[tuple[str, int]]:
        yield path, number
        if isinstance(self._now[number], dict):
            for name, inner in _entries(self._now[number]):
                yield from self._below(inner, f"{path}/{name}")

    def _find(self, path: str) -> int:
        number = 0
        for part in Path(path).parts:
            number = dict(_entries(self._now[number]))[part]
        return number

    def _above(self, path: str) -> Folder:
        folder = self._now[self._find(str(Path(path).parent))]
        if not isinstance(folder, dict):
            raise ValueError(f"{path} lies in a file")
        return folder

    def _change_data(self, change: Change) -> None:
        data = self._now[self._find(change.path)]
        if not isinstance(data, bytearray):
            raise ValueError(f"{change.path} is a folder")
        data.extend(bytes(max(0, change.offset - len(data))))
        if change.operation == "write":
            data[change.offset : change.offset + len(change.data)] = change.data
        elif change.operation == "truncate":
            del data[change.offset :]


def laid_out(folder: Path) -> Iterator[Change]:
    """The changes that make what is in a folder, all of it synced."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        yield Change("mkdir" if path.is_dir() else "create", name)
        if path.is_file():
            yield Change("write", name, data=path.read_bytes())
            yield Change("sync", name)
    for path in (*folder.rglob("*"), folder):
        if path.is_dir():
            yield Change("sync", path.relative_to(folder).as_posix())


def lay_out(found: dict[str, bytes | None], folder: Path) -> None:
    """Make files and folders of what was found."""
    for name, data in found.items():
        if data is None:
            (folder / name).mkdir(mode=0o700)
        else:
            (folder / name).write_bytes(data)


def _name(path: str) -> str:
    return Path(path).name


def _entries(folder: Folder | bytearray) -> Iterator[tuple[str, int]]:
    if not isinstance(folder, dict):
        raise ValueError("expected a folder, found a file")
    return iter(folder.items())


def _bytes(data: Folder | bytearray) -> bytes:
    if isinstance(data, dict):
        raise ValueError("expected a file, found a folder")
    return bytes(data)
