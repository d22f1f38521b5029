from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensorstore_ds
from small_stores import VALID, tsds

STORE = VALID / "classification.tsds"
SHA256 = tensorstore_ds.open(STORE).sha256


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tensorstore_ds.pack(STORE, tmp_path / "x.tsds.zip").path


def test_what_is_made_and_what_to_do_next(packed: Path, tmp_path: Path) -> None:
    size = f"{packed.stat().st_size / 1000:.1f} kB"
    for command, source, shown, verified in (
        ("pack", STORE, size, f"OK: 1 file, {size}\n"),
        ("unpack", packed, "", "OK: "),
    ):
        out = tmp_path / command
        done = tsds(command, source, out)
        assert (done.exit_code, done.stderr) == (0, "")
        first, last = done.stdout.splitlines()
        assert first.startswith(f"{out}  {shown}") and first.endswith(f", the store {SHA256}")
        assert last.endswith(f"info {out}")
        done = tsds("verify", out)
        assert done.exit_code == 0 and done.stdout.startswith(verified)


def test_json(packed: Path, tmp_path: Path) -> None:
    for command, source, nbytes in (
        ("pack", STORE, packed.stat().st_size),
        ("unpack", packed, tensorstore_ds.open(STORE).nbytes),
    ):
        out = tmp_path / command
        found = json.loads(tsds(command, source, out, "--sha256", SHA256, "--json").stdout)
        assert found == {"path": str(out), "sha256": SHA256, "nbytes": nbytes}


@pytest.mark.parametrize("command", ["info", "stats", "warm", "evict"])
def test_commands_take_the_file(command: str, packed: Path) -> None:
    done = tsds(command, packed, "--json")
    assert done.exit_code == 0
    found, expected = json.loads(done.stdout), json.loads(tsds(command, STORE, "--json").stdout)
    assert found.keys() == expected.keys()
    assert command != "stats" or found == expected
    assert tsds("preview", packed, "--out", packed.with_name("preview.png")).exit_code == 0


def test_a_file_that_was_cut_short_is_one_line(packed: Path, tmp_path: Path) -> None:
    packed.write_bytes(packed.read_bytes()[:-1])
    done = tsds("unpack", packed, tmp_path / "out")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "out").exists()
