"""The checker of readers: what it says of right and of wrong ones."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

CONFORMANCE = Path(__file__).parents[1] / "formats" / "v1" / "conformance"
CHECKER, READERS = CONFORMANCE / "check_reader.py", CONFORMANCE / "readers"
CASES = json.loads((CONFORMANCE / "cases.json").read_text("utf-8"))["cases"]
VALID = next(case for case in CASES if case["path"] == "valid/minimal.tsds")
INVALID = next(case for case in CASES if case["path"] == "invalid/file-size--short.tsds")


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, CHECKER, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def judged(case: dict[str, Any], answer: str, *, status: int = 0) -> str | None:
    """What the checker says of a reader that prints `answer` and ends with `status`."""
    code = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"
    command = [sys.executable, "-c", code, answer, str(status)]
    found: str | None = runpy.run_path(str(CHECKER))["problem"](case, command, "map")
    return found


def test_right_answers() -> None:
    assert judged(VALID, json.dumps({"arrays": VALID["arrays"]})) is None
    assert judged(INVALID, '{"reason": "file-size"}', status=3) is None


@pytest.mark.parametrize(
    ("case", "answer", "status", "message"),
    [
        (VALID, '{"arrays": {}}', 0, "train/00000/image missing"),
        (
            VALID,
            '{"arrays": {"train/00000/image": {"dtype": "int8"}}}',
            0,
            'train/00000/image: expected {"dtype": "uint8"',
        ),
        (VALID, json.dumps({"arrays": {**VALID["arrays"], "x": {}}}), 0, "x unexpected"),
        (VALID, "{}", 0, "no member arrays"),
        (VALID, '{"reason": "manifest"}', 1, "refused: manifest"),
        (VALID, "no JSON", 0, "status 0, no JSON object on stdout: nothing on stderr"),
        (INVALID, '{"arrays": {}}', 0, "accepted, expected file-size: "),
        (INVALID, '{"reason": "manifest"}', 1, "refused with manifest, expected file-size: "),
        (INVALID, "[]", 1, "status 1, no JSON object"),
    ],
)
def test_wrong_answers(case: dict[str, Any], answer: str, status: int, message: str) -> None:
    assert str(judged(case, answer, status=status)).startswith(message)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_reader_that_is_killed_has_refused_nothing() -> None:
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
    assert runpy.run_path(str(CHECKER))["problem"](INVALID, command, "map") == "ended by signal 11"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "stages"),
    [("--jobs=2", ["verify"]), ("--decode", ["decode", "verify"]), ("--no-verify", []), ("--valid-only", None)],
)
def test_the_stages_that_are_tried(option: str, stages: list[str] | None) -> None:
    table = check(option, sys.executable, "-S", "-E", "-c", "print('{}')").stdout.splitlines()
    found = sorted(line.split()[1] for line in table if line.startswith("invalid, "))
    assert found == ([] if stages is None else sorted(["map", "open", *stages]))


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["tensorstore_ds_python", "zarr_python", "tensorstore_python"])
def test_a_reader_answers_right(reader: str, eighth: slice) -> None:
    """All cases nightly, elsewhere one in eight: test_conformance.py has all of them in one process."""
    problem, of_zarr = runpy.run_path(str(CHECKER))["problem"], reader != "tensorstore_ds_python"
    command = [sys.executable, str(READERS / f"{reader}.py")]
    cases = [case for case in CASES if case["valid"] or not (of_zarr or case["stage"] == "decode")]
    assert len(cases) > 30
    stages = [(case, "map" if of_zarr else case.get("stage", "verify")) for case in cases[eighth]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda each: problem(each[0], command, each[1], of_zarr=of_zarr), stages))
    assert [(case["path"], wrong) for (case, _), wrong in zip(stages, answers, strict=True) if wrong] == []


@pytest.mark.slow
def test_a_reader_that_accepts_everything_fails() -> None:
    done = check("--no-verify", "--jobs", 2, sys.executable, "-S", "-c", "print('{}')")
    counts = {line[:16].strip(): line.split()[-2:] for line in done.stdout.splitlines()[-5:]}
    assert done.returncode == 1
    assert counts["invalid, map"][1] == counts["valid"][1] == "0"
    assert "invalid, verify" not in counts
