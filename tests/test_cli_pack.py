from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensorstore_ds
from small_stores import VALID, tsds

STORE = VALID / "classification.tsds"


def test_the_file_and_what_to_do_next(tmp_path: Path) -> None:
    out = tmp_path / "x.tsds.zip"
    done = tsds("pack", STORE, out)
    assert (done.exit_code, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first == f"{out}  {out.stat().st_size / 1000:.1f} kB, the store {tensorstore_ds.open(STORE).sha256}"
    assert last.endswith(f"info {out}")
    done = tsds("verify", out)
    assert (done.exit_code, done.stdout) == (0, f"OK: 1 file, {out.stat().st_size / 1000:.1f} kB\n")


def test_json(tmp_path: Path) -> None:
    out = tmp_path / "x.tsds.zip"
    sha256 = tensorstore_ds.open(STORE).sha256
    found = json.loads(tsds("pack", STORE, out, "--sha256", sha256, "--json").stdout)
    assert found == {"path": str(out), "sha256": sha256, "nbytes": out.stat().st_size}


@pytest.mark.parametrize("command", ["info", "stats", "warm", "evict"])
def test_commands_take_the_file(command: str, tmp_path: Path) -> None:
    out = tmp_path / "x.tsds.zip"
    tsds("pack", STORE, out)
    done = tsds(command, out, "--json")
    assert done.exit_code == 0
    found, expected = json.loads(done.stdout), json.loads(tsds(command, STORE, "--json").stdout)
    assert found.keys() == expected.keys()
    if command == "stats":
        assert found == expected
    done = tsds("preview", out, "--out", tmp_path / "preview.png")
    assert done.exit_code == 0


def test_errors_are_one_line(tmp_path: Path) -> None:
    out = tmp_path / "x.tsds.zip"
    out.write_text("mine")
    done = tsds("pack", STORE, out)
    assert (done.exit_code, done.stdout) == (1, "")
    expected = "expected a new path, found a file. Choose another path, or remove this one first."
    assert done.stderr == f"tsds: {out}: {expected}\n"
    done = tsds("info", out)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"tsds: {out}: this is not a store: it is a file, but no ZIP file of a store")
    assert done.stderr.count("\n") == 1
    assert tsds("pack", STORE, tmp_path / "y", "--sha256", "0" * 64).exit_code == 1


def test_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorstore_ds.pack", stop)
    done = tsds("pack", STORE, tmp_path / "x.zip")
    assert (done.exit_code, done.stderr) == (130, f"tsds: interrupted; {tmp_path / 'x.zip'} was not made\n")
