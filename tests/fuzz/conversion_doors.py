"""Doors to a conversion that is continued: what an interrupted run, a crash or a bad disk has left of its notes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random

import tensorstore_ds as tsds
from fuzz.door import Door
from fuzz.mutations import JSON_TOKENS, mutate_bytes, mutate_text
from stores import class_folders

_OPTIONS = tsds.ConvertOptions(workers=0, shard_nbytes=200)


def contents(root: Path) -> dict[str, bytes]:
    """Every file of a store, by path; without the moment in which it was made, and the digest that depends on it."""
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    attributes = json.loads(files.pop("zarr.json"))["attributes"]
    del attributes["tsds"]["provenance"]["created"]
    return {**files, "manifest": json.dumps(attributes["tsds"], sort_keys=True).encode()}


class WorkFile(Door):
    """A file of ``OUT.partial``: the same command either refuses it, or ends with the store of a run without a stop."""

    def __init__(self, folder: Path, file: str) -> None:
        self._source = class_folders(folder / "source", per_class=3)
        self._out, self._partial, self._left = (folder / name for name in ("out.tsds", "out.tsds.partial", "left"))
        tsds.convert(self._source, self._out, _OPTIONS)
        self._expected = contents(self._out)
        shutil.rmtree(self._out)
        self._stop()
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

    def _stop(self) -> None:
        """Interrupt a conversion when some shards are finished."""

        def stop(progress: tsds.conversion.Progress) -> None:
            if progress.stage == "convert" and progress.done > 7:
                raise KeyboardInterrupt

        try:
            tsds.convert(self._source, self._out, _OPTIONS, progress=stop)
        except KeyboardInterrupt:
            return
        raise AssertionError("the conversion was not stopped")
