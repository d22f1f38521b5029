"""Judge any reader by the conformance stores: ``python check_reader.py [--valid-only] COMMAND [ARGUMENT ...]``.

It runs ``COMMAND STORE STAGE`` for every case of ``cases.json``, a process a store. STAGE is how far the reader is to
go: `open`, `map` (read every array), `verify`, or `decode` (also the images that have entries). The reader answers with
one JSON object on stdout:

- a store that it accepts: exit status 0, and every array of the store by its path,
  ``{"arrays": {"train/00000/image": {"dtype": "uint8", "shape": [2, 4, 4, 1], "sha256": DIGEST}}}``. DIGEST is the
  SHA-256 of the array's little-endian bytes in C order. At the stage `open` it may answer ``{}``.
- a store that it refuses: any other exit status, and the reason code, ``{"reason": "file-size"}``.

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


def problem(case: Mapping[str, Any], command: Sequence[str], stage: str, *, of_zarr: bool = False) -> str | None:
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
    reason = answer.get("reason")
    return None if reason == case["reason"] else f"refused with {reason}, expected {case['reason']}: {case['why']}"


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


def main() -> int:
    """Run the cases, print what differs and a table; 0 if all answers are right, else 1."""
    parser = argparse.ArgumentParser(description="Judge a reader by the conformance stores.")
    parser.add_argument("--valid-only", action="store_true", help="the stores to be accepted alone, for Zarr readers")
    parser.add_argument("--no-verify", action="store_true", help="leave out what only a verifier finds")
    parser.add_argument("--decode", action="store_true", help="also what only a reader finds that uses entries")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time (one a core)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the reader; STORE and STAGE are added")
    options = parser.parse_args()
    if not options.command:
        parser.error("the reader's command is missing")
    last = "map" if options.valid_only or options.no_verify else "decode" if options.decode else "verify"
    left_out = {"verify", "decode"} if options.no_verify else set() if options.decode else {"decode"}
    jobs = []
    for case in json.loads((HERE / "cases.json").read_text("utf-8"))["cases"]:
        stage = case.get("stage", last)
        if case["valid"] or not (options.valid_only or stage in left_out):
            jobs.append((case, options.command, stage))
    with ThreadPoolExecutor(options.jobs) as pool:
        problems = list(pool.map(lambda job: problem(*job, of_zarr=options.valid_only), jobs))
    counts: dict[str, list[int]] = {}
    for (case, _, stage), wrong in zip(jobs, problems, strict=True):
        count = counts.setdefault("valid" if case["valid"] else f"invalid, {stage}", [0, 0])
        count[0] += 1
        count[1] += wrong is None
        if wrong:
            print(f"{case['path']}: {wrong}")
    print(f"{'stores':<16}  cases  right")
    for name, (cases, right) in counts.items():
        print(f"{name:<16}  {cases:>5}  {right:>5}")
    failed = sum(wrong is not None for wrong in problems)
    print(f"{failed} of {len(jobs)} answers are wrong." if failed else f"All {len(jobs)} answers are right.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
