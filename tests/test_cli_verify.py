from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from small_stores import INVALID, VALID, tsds


def test_a_sound_store() -> None:
    done = tsds("verify", VALID / "detection.tsds")
    files = [p for p in (VALID / "detection.tsds").rglob("*") if p.is_file()]
    assert done.exit_code == 0
    size = f"{sum(p.stat().st_size for p in files) / 1000:.1f} kB"
    assert done.stdout == f"OK: {len(files)} files, {size}\n"
    assert done.stderr == ""


def test_every_problem_is_a_line(tmp_path: Path) -> None:
    store = shutil.copytree(VALID / "detection.tsds", tmp_path / "s")
    for name in ("objects/boxes/c/0/0", "objects/labels/c/0"):
        path = store / "train" / "00000" / name
        path.write_bytes(b"\xff" + path.read_bytes()[1:])
    done = tsds("verify", store)
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(re.match(r"checksum: train/00000/objects/(boxes|labels)/c/", line) for line in lines)
    assert done.stderr == f"tsds: {store}: 2 problems.\n"


#: One store for each reason code; test_conformance.py verifies all of them.
OF_EACH_CODE = {path.name.split("--")[0]: path for path in sorted(INVALID.iterdir())}


@pytest.mark.parametrize("reason", OF_EACH_CODE)
def test_an_invalid_store_is_found_out(reason: str) -> None:
    done = tsds("verify", OF_EACH_CODE[reason])
    assert done.exit_code == 1
    assert done.stdout.startswith(f"{reason}: ")


def test_json() -> None:
    found = json.loads(tsds("verify", VALID / "minimal.tsds", "--json").stdout)
    assert found["ok"] is True and found["problems"] == []
    done = tsds("verify", INVALID / "checksum--data.tsds", "--json")
    problems = json.loads(done.stdout)["problems"]
    assert done.exit_code == 1 and done.stderr == ""
    assert problems[0]["reason"] == "checksum"


def test_only_the_store_that_is_meant(tmp_path: Path) -> None:
    store, other = VALID / "minimal.tsds", VALID / "gray16.tsds"
    shown = re.search(r"^ *sha256 +([0-9a-f]{64})\n", tsds("info", store).stdout, re.MULTILINE)
    assert shown is not None
    digest = shown[1]
    assert json.loads(tsds("info", store, "--json").stdout)["sha256"] == digest
    content = re.search(r"content sha256 +([0-9a-f]{64})\n", tsds("info", store).stdout)
    assert content is not None
    assert json.loads(tsds("info", store, "--json").stdout)["content_sha256"] == content[1] != digest
    for command in ("verify", "info"):
        assert tsds(command, store, "--sha256", digest.upper()).exit_code == 0
        assert tsds(command, store, "--sha256", content[1]).exit_code == 0
        refused = tsds(command, other, "--sha256", digest)
        assert refused.exit_code == 1
        text = refused.stdout + refused.stderr
        assert f"expected the store {digest}, found the store " in text and "Traceback" not in text
        assert tsds(command, store, "--sha256", digest[1:]).exit_code == 2
