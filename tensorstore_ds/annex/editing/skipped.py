"""``skipped.jsonl``: the samples, boxes and files that a conversion left out, with the changes by later steps."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from tensorstore_ds.errors import FormatError, Problem
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.store_files import SKIPPED

#: The reason of a line that takes back all lines before it with the same ``where``.
MENDED = "mended"


@dataclass(frozen=True, slots=True)
class MoreSkipped:
    """A step's changes to the file: `lines` at its end, and `left`, the rest if lines are removed, or None.

    `counts` are ``skipped`` and ``left_out`` of the provenance afterwards.
    """

    lines: Sequence[Problem] = ()
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    left: bytes | None = None


def more_skipped(
    store: Store, skipped: Iterable[Problem], left_out: Iterable[Problem], stored: Set[str]
) -> MoreSkipped:
    """The problems of a step that a store does not list; entries of samples that are now `stored` are taken back."""
    before, now = skipped_in(store), {"skipped": dict.fromkeys(skipped), "left_out": dict.fromkeys(left_out)}
    counts = _counts(store)
    gone = {p.where for p in before if p.where in stored and p not in now["skipped"]}
    lines = [Problem(where, MENDED, "the store has this sample now. Lines before this one are void.") for where in gone]
    lines.sort(key=lambda problem: problem.where)
    _uncount(counts, (problem for problem in before if problem.where in gone))
    there = {problem for problem in before if problem.where not in gone}
    for name, problems in now.items():
        new = [problem for problem in problems if problem not in there]
        counts[name].update(problem.reason for problem in new)
        lines += new
    return MoreSkipped(lines, {name: dict(+each) for name, each in counts.items()} if lines else {})


def fewer_skipped(store: Store, chosen: Callable[[Sequence[Problem]], Set[Problem]]) -> MoreSkipped:
    """The file without the lines of the `chosen` problems."""
    lines = _lines(store)
    problems = _parsed(lines)
    gone = chosen(problems)
    if not gone:
        return MoreSkipped()
    counts = _counts(store)
    _uncount(counts, (problem for problem in _valid(problems) if problem in gone))
    left = b"".join(line for line, each in zip(lines, problems, strict=True) if each not in gone)
    return MoreSkipped((), {name: dict(+each) for name, each in counts.items()}, left)


def _counts(store: Store) -> dict[str, Counter[str]]:
    """``skipped`` and ``left_out`` of the provenance."""
    known = store.manifest.provenance
    names = "skipped", "left_out"
    return {name: Counter(each if isinstance(each := known.get(name), Mapping) else {}) for name in names}


def _uncount(counts: Mapping[str, Counter[str]], problems: Iterable[Problem]) -> None:
    for problem in problems:
        counts["skipped" if counts["skipped"][problem.reason] > 0 else "left_out"][problem.reason] -= 1


def skipped_bytes(store: Store) -> bytes:
    """The file of a store; empty if it has none."""
    listed = store.manifest.files.get(SKIPPED)
    if listed is None:
        return b""
    with store.open_file(SKIPPED) as file:
        data = file.read()
    if (found := hashlib.sha256(data).hexdigest()) != listed.sha256:
        message = f"expected SHA-256 {listed.sha256[:12]}..., found {found[:12]}...."
        raise FormatError(Problem(SKIPPED, "checksum", message), "Copy the store again.")
    return data


def skipped_in(store: Store) -> list[Problem]:
    """The skipped samples and boxes of a store and the files that were left out, without those that were mended."""
    return _valid(_parsed(_lines(store)))


def _lines(store: Store) -> list[bytes]:
    return [line + b"\n" for line in skipped_bytes(store).split(b"\n") if line]


def _valid(problems: Sequence[Problem]) -> list[Problem]:
    """Problems that no later line takes back."""
    mended = {problem.where: i for i, problem in enumerate(problems) if problem.reason == MENDED}
    return [problem for i, problem in enumerate(problems) if i > mended.get(problem.where, -1)]


def _parsed(lines: Iterable[bytes]) -> list[Problem]:
    """The problem of each line."""
    try:
        objects = [json.loads(line.decode()) for line in lines]
        return [Problem(*(_text(each[name]) for name in ("where", "reason", "message"))) for each in objects]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = Problem(SKIPPED, "manifest", f"expected a JSON object a line ({error}).")
        raise FormatError(problem) from error


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("a member is no text")
    return value
