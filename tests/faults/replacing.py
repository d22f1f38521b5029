"""Trials of commands that change what is there already, or add to it: a store that grows, files that are replaced.

After a fault each file is the old one or the new one; a store is the one or the other as a whole, and whoever had it
open reads on, unless samples were erased. After the same command again it is as after an undisturbed one, and nothing
is beside it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tensorstore_ds
from faults.bench import Bench, Sweep, differences, snapshot, unexpected
from faults.harness import Action, Class, Fault, Result


@dataclass(frozen=True)
class Replacing:
    """A command of server.py; ``OUT`` in its words is what it changes.

    Attributes:
        before: what is copied to ``OUT`` before each trial; None for nothing.
        source: a store that it reads besides.
        erases: whether it removes what readers may have open.
        nothing_left: what the same command says when all is done; empty if it succeeds again.
    """

    name: str
    before: Path | None
    words: tuple[str, ...]
    source: Path | None = None
    erases: bool = False
    nothing_left: str = ""

    @property
    def is_store(self) -> bool:
        """Whether ``OUT`` is a store, whose root decides which one it is."""
        return self.before is not None and self.before.suffix == ".tsds"

    def argv(self, out: Path) -> list[str]:
        """The command for what is at `out`."""
        return [str(out) if word == "OUT" else word for word in self.words]

    def lay_out(self, folder: Path) -> Path:
        """Put what is there before into a folder; returns where ``OUT`` is."""
        out = folder / ("out.tsds" if self.is_store else "out")
        if self.before is not None and self.before.is_dir():
            shutil.copytree(self.before, out)
        elif self.before is not None:
            shutil.copy(self.before, out)
        return out


class Reader:
    """Whoever has opened a store, and read nothing yet, when a command begins to change it."""

    def __init__(self, path: Path) -> None:
        self._store = tensorstore_ds.open(path)
        self._expected = _values(tensorstore_ds.open(path))

    def wrong(self, *, may_be_gone: bool = False) -> Iterator[str]:
        """What the reader sees that is not as it was."""
        try:
            if _values(self._store) != self._expected:
                yield "an open reader sees other values"
        except tensorstore_ds.TsdsError as error:
            is_replaced = isinstance(error, tensorstore_ds.FormatError) and error.reason == "replaced"
            if not (may_be_gone and is_replaced):
                yield f"an open reader is refused: {error}"


def _values(store: tensorstore_ds.Store) -> str:
    """All values of a small store."""
    return repr({name: [store[name][row] for row in range(len(store[name]))] for name in store})


class Trials:
    """One command under one kind of fault.

    Attributes:
        operations: those that it does undisturbed and the fault counts.
    """

    def __init__(self, bench: Bench, case: Replacing, fault: Fault) -> None:
        self._bench, self._case, self._fault = bench, case, fault
        folder = bench.fresh()
        out = case.lay_out(folder)
        self._old = snapshot(folder)
        self.operations = bench.server.operations(case.argv(out), fault, folder)
        assert not case.is_store or tensorstore_ds.verify(out) == []
        self._new = snapshot(folder)
        assert self._new != self._old

    def trial(self, at: int, sweep: Sweep) -> None:
        """The fault at one operation, and the same command again."""
        bench, case, folder = self._bench, self._case, self._bench.fresh()
        wrong = list(bench.source_changed(case.source))
        out = case.lay_out(folder)
        reader = Reader(out) if case.is_store else None
        result = bench.server.run(case.argv(out), self._fault, at, folder)
        sweep.trials += 1
        sweep.outcomes[result.outcome if result.fired else f"{result.outcome}, not met"] += 1
        root = f"{out.name}/zarr.json"
        is_new = reader is not None and snapshot(folder)[root] == self._new[root]
        gone = is_new and case.erases
        wrong += [*self._after_fault(out, result), *(reader.wrong(may_be_gone=gone) if reader else ())]
        if is_new or case.erases:
            reader = None  # the command again, which finds nothing new, removes the shards that this reader has open
        wrong += [*self.again(out, sweep), *(reader.wrong() if reader else ()), *bench.source_changed(case.source)]
        sweep.failures += [f"operation {at}, {result.what}: {text}" for text in wrong]

    def _after_fault(self, out: Path, result: Result) -> Iterator[str]:
        old, new, found = self._old, self._new, snapshot(out.parent)
        yield from unexpected(result, self._fault)
        if self._case.is_store:
            root = f"{out.name}/zarr.json"
            stands = new if found.get(root) == new[root] else old
            is_new = stands is new
            if bad := [name for name in stands if found.get(name) != stands[name]]:
                yield f"neither the old store nor the new one: {', '.join(bad)}"
            if problems := [each for each in tensorstore_ds.verify(out) if each.reason != "unlisted-file"]:
                yield f"verify: {problems[0]}"
        else:
            stands = old | new
            is_new = all(found.get(name) == new[name] for name in new)
            if bad := [name for name in stands if found.get(name) not in (old.get(name), new.get(name))]:
                yield f"neither as before nor as after: {', '.join(bad)}"
        if result.outcome == "done" and not is_new:
            yield "success was told, but not all is new"
        is_pull = self._case.words[1] == "pull"
        is_unsynced = "whole, but its folder could not be synced" in result.text
        where = result.what.partition(" ")[2]
        is_reading = self._fault.counted & Class.READS and f"{where}/".startswith(f"./{out.name}/")  # what it has made
        is_left = (self._case.erases or is_pull) and "from the store, but their old files" in result.text
        if result.outcome == "refused" and is_new and not is_unsynced and not is_reading and not is_left:
            yield f"failure was told, but all is new: {result.last_line}"
        if is_new and new != old and "Nothing was changed" in result.text:
            yield f"all is new, and this was told: {result.last_line}"
        left = sorted(name for name in found.keys() - stands.keys() if not _is_named(name, out, result.text))
        work = f"{out.name}.partial" if is_pull else f"{out.name}.append"
        parts = ("plan.json",) if is_pull else ("new.partial", "known.partial")
        is_begun = any(f"{work}/{part}" in found for part in parts)
        if is_begun or set(left) <= {work, f"{work}/tsds.lock"}:  # to go on from, or empty
            left = [name for name in left if name.partition("/")[0] != work]
        is_removal = result.what.startswith(("unlink", "rmdir"))  # what could not be removed stays
        may_leave = result.outcome == "killed" or self._fault.action is Action.FAIL_FROM or is_removal
        may_leave |= self._case.erases and is_new  # the same command goes on
        if left and (result.outcome == "done" or not may_leave):
            yield f"{result.outcome}, and this is left: {', '.join(left)}: {result.last_line}"

    def again(self, out: Path, sweep: Sweep) -> list[str]:
        """Run the command without a fault; not twice on the same files, from which follows what it does."""
        key = hashlib.sha256(f"{self._case.name} {sorted(snapshot(out.parent).items())}".encode()).hexdigest()
        if key not in self._bench.known:
            sweep.reruns += 1
            self._bench.known[key] = list(self._run_again(out))
        return self._bench.known[key]

    def _run_again(self, out: Path) -> Iterator[str]:
        result = self._bench.server.run(self._case.argv(out))
        is_nothing_left = bool(self._case.nothing_left) and self._case.nothing_left in result.text
        if result.outcome != "done" and not is_nothing_left:
            yield f"again: {result.outcome}: {result.last_line}"
        replaced = _replaced(out) if self._case.is_store else ()  # the command again removes what the first has left
        found, new = (
            {name: value for name, value in each.items() if not f"{name}/".startswith(replaced)}
            for each in (snapshot(out.parent), self._new)
        )
        if bad := differences(found, new):
            yield f"after it, this is not as after an undisturbed run: {bad}"


def _replaced(out: Path) -> tuple[str, ...]:
    """Folders of the shards that an update has replaced, which stay for readers."""
    splits = tensorstore_ds.open(out).manifest.splits
    return tuple(f"{out.name}/{name}/{n:05d}/" for name, split in splits.items() for n in split.replaced)


def _is_named(name: str, out: Path, text: str) -> bool:
    """Whether a text names what is left, or the folder beside `out` or in it that it lies in."""
    places = {out.parent / place for place in (name, *Path(name).parents)} - {out, out.parent}
    return any(str(place) in text for place in places)
