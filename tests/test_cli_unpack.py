from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensorstore_ds
from small_stores import VALID, tsds

STORE = VALID / "classification.tsds"


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    return tensorstore_ds.pack(STORE, tmp_path / "x.tsds.zip").path


def test_the_folder_and_what_to_do_next(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tsds"
    done = tsds("unpack", packed, out)
    assert (done.exit_code, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first.startswith(f"{out}  ")
    assert first.endswith(f", the store {tensorstore_ds.open(STORE).sha256}")
    assert last.endswith(f"info {out}")
    assert tsds("verify", out).exit_code == 0


def test_json(packed: Path, tmp_path: Path) -> None:
    store = tensorstore_ds.open(STORE)
    found = json.loads(tsds("unpack", packed, tmp_path / "out", "--json").stdout)
    assert found == {"path": str(tmp_path / "out"), "sha256": store.sha256, "nbytes": store.nbytes}


def test_errors_are_one_line(packed: Path, tmp_path: Path) -> None:
    done = tsds("unpack", STORE, tmp_path / "out")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"tsds: {STORE}: expected a packed store, found a folder. It can be used as it is.\n"
    packed.write_bytes(packed.read_bytes()[:-1])
    done = tsds("unpack", packed, tmp_path / "out")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert not (tmp_path / "out").exists()


def test_ctrl_c(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorstore_ds.unpack", stop)
    done = tsds("unpack", packed, tmp_path / "out")
    assert (done.exit_code, done.stderr) == (130, f"tsds: interrupted; {tmp_path / 'out'} was not made\n")
