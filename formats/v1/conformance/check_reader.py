"""Judge any reader by the conformance stores: ``python check_reader.py [--valid-only] COMMAND [ARGUMENT ...]``.

It runs ``COMMAND STORE STAGE`` for every case of ``cases.json``, a process a store. STAGE is how far the reader is to
go: `open`, `map` (read every array), `verify`, or `decode` (also the images that have entries). The reader answers with
one JSON object on stdout:

- a store that it accepts: exit status 0, and every array of the store by its path,
  ``{"arrays": {"train/00000/image": {"dtype": "uint8", "shape": [2, 4, 4, 1], "sha256": DIGEST}}}``. DIGEST is the
  SHA-256 of the array's little-endian bytes in C order. At the stage `open` it may answer ``{}``.
- a store that it refuses: any other exit status, and the reason code of the first problem in the order of spec.md,
  ``{"reason": "file-size"}``. With ``--any``, a reader may report all of its problems, ``{"reasons": ["offsets",
  "file-size"]}``, and the expected one must be among them.

This file needs the standard library alone, and nothing of any reader.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 60
STAGES = ("valid", "open", "map", "verify", "decode")


def problem(
    case: Mapping[str, Any], command: Sequence[str], stage: str, *, of_zarr: bool = False, any_reason: bool = False
) -> str | None:
    """What is wrong with a reader's answer, or None; a Zarr reader also finds the arrays of replaced shards."""
    words = [*command, str(HERE / case["path"]), stage]
    try:
        done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {SECONDS} s"
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return f"status {done.returncode}, no JSON object on stdout: {said[-1] if said else 'nothing on stderr'}"
    if case["valid"]:
        if done.returncode:
            return f"refused: {answer.get('reason')}"
        found = answer.get("arrays")
        if of_zarr and isinstance(found, dict):
            replaced = replaced_shards(HERE / case["path"])
            found = {path: array for path, array in found.items() if not path.startswith(replaced)}
        return difference(case["arrays"], found)
    if not done.returncode:
        return f"accepted, expected {case['reason']}: {case['why']}"
    reasons = [answer.get("reason")]
    if any_reason and isinstance(answer.get("reasons"), list):
        reasons += answer["reasons"]
    found = ", ".join(str(reason) for reason in reasons if reason)
    return None if case["reason"] in reasons else f"refused with {found}, expected {case['reason']}: {case['why']}"


def replaced_shards(store: Path) -> tuple[str, ...]:
    """What the paths of arrays in replaced shards begin with, which a manifest notes and a Zarr reader cannot know."""
    splits = json.loads((store / "zarr.json").read_text("utf-8"))["attributes"]["tsds"]["splits"]
    return tuple(f"{name}/{number:05d}/" for name, split in splits.items() for number in split.get("replaced", ()))


def difference(expected: Mapping[str, Any], found: object) -> str | None:
    """How the arrays that a reader found differ from those of a store, or None."""
    if not isinstance(found, dict):
        return "no member arrays"
    wrong = [f"{path} missing" for path in expected.keys() - found.keys()]
    wrong += [f"{path} unexpected" for path in found.keys() - expected.keys()]
    for path in expected.keys() & found.keys():
        if found[path] != expected[path]:
            wrong.append(f"{path}: expected {json.dumps(expected[path])}, found {json.dumps(found[path])}")
    return "; ".join(sorted(wrong)) or None


def judge(
    command: Sequence[str], *, last: str = "verify", any_reason: bool = False, jobs: int | None = None
) -> tuple[dict[str, list[int]], list[str]]:
    """Run a reader on all cases up to a stage. At the stage `valid`, for Zarr readers, only valid stores are tried.

    Returns:
        By name of a stage, the number of cases and of right answers; and what differs.
    """
    of_zarr, stages = last == "valid", STAGES[: STAGES.index(last) + 1]
    work = []
    for case in json.loads((HERE / "cases.json").read_text("utf-8"))["cases"]:
        if case["valid"] or case["stage"] in stages[1:]:
            work.append((case, "map" if of_zarr else case.get("stage", last)))
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        options = {"of_zarr": of_zarr, "any_reason": any_reason}
        wrong = list(pool.map(lambda each: problem(each[0], command, each[1], **options), work))
    counts: dict[str, list[int]] = {}
    for (case, stage), answer in zip(work, wrong, strict=True):
        count = counts.setdefault("valid" if case["valid"] else f"invalid, {stage}", [0, 0])
        count[0] += 1
        count[1] += answer is None
    return counts, [f"{case['path']}: {answer}" for (case, _), answer in zip(work, wrong, strict=True) if answer]


def main() -> int:
    """Run the cases, print what differs and a table; 0 if all answers are right, else 1."""
    parser = argparse.ArgumentParser(description="Judge a reader by the conformance stores.")
    parser.add_argument("--valid-only", action="store_true", help="the stores to be accepted alone, for Zarr readers")
    parser.add_argument("--no-verify", action="store_true", help="leave out what only a verifier finds")
    parser.add_argument("--decode", action="store_true", help="also what only a reader finds that uses entries")
    parser.add_argument("--any", action="store_true", help="the expected reason may be any of those that are reported")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time (one a core)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the reader; STORE and STAGE are added")
    options = parser.parse_args()
    if not options.command:
        parser.error("the reader's command is missing")
    last = "valid" if options.valid_only else "map" if options.no_verify else "decode" if options.decode else "verify"
    counts, wrong = judge(options.command, last=last, any_reason=options.any, jobs=options.jobs)
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{'stores':<16}  cases  right")
    for name, (cases, right) in counts.items():
        print(f"{name:<16}  {cases:>5}  {right:>5}")
    total = sum(cases for cases, _ in counts.values())
    print(f"{len(wrong)} of {total} answers are wrong." if wrong else f"All {total} answers are right.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
