"""Doors to a conversion that is continued: what an interrupted run, a crash or a bad disk has left of its notes."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import tensorstore_ds as tsds
from fuzz.door import Door
from fuzz.mutations import JSON_TOKENS, mutate_bytes, mutate_text
from stores import class_folders, contents, interrupted

_OPTIONS = tsds.ConvertOptions(workers=0, shard_nbytes=200)


class WorkFile(Door):
    """A file of ``OUT.partial``: the same command either refuses it, or ends with the store of a run without a stop."""

    def __init__(self, folder: Path, file: str) -> None:
        self._source = class_folders(folder / "source", per_class=3)
        self._out, self._partial, self._left = (folder / name for name in ("out.tsds", "out.tsds.partial", "left"))
        tsds.convert(self._source, self._out, _OPTIONS)
        self._expected = contents(self._out)
        shutil.rmtree(self._out)
        interrupted(self._source, self._out, 8, _OPTIONS)
        self._partial.rename(self._left)
        self._file = next(self._left.glob(file)).relative_to(self._left)
        super().__init__(folder, [(self._left / self._file).read_bytes()])

    def mutate(self, random: Random, good: bytes) -> bytes:
        return mutate_text(random, good, JSON_TOKENS) if random.random() < 0.7 else mutate_bytes(random, good)

    def enter(self, data: bytes) -> None:
        for path in (self._out, self._partial):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self._left, self._partial)
        (self._partial / self._file).write_bytes(data)
        summary = tsds.convert(self._source, self._out, _OPTIONS)
        found = contents(self._out)
        if found != self._expected:
            names = sorted(n for n in {*found, *self._expected} if found.get(n) != self._expected.get(n))
            raise AssertionError(f"expected the store of a run without a stop, found others: {names}")
        if data in self.goods and not summary.resumed:
            raise AssertionError("expected the finished shards to be used again")
