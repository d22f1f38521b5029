"""The reader in C of formats/v1/examples: all conformance stores, and stores that this library wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from tests.stores import detections, store_of

pytestmark = pytest.mark.slow

V1 = Path(__file__).parents[1] / "formats" / "v1"
SOURCE = V1 / "examples" / "c" / "reader.c"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2"]
SANITIZED = ["-std=c11", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def compiled(folder: Path, *flags: str, compiler: str = "cc") -> Path:
    """The reader as a program. Skips the test if this machine cannot build it."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    empty = folder / "needs.c"
    empty.write_text("#include <zstd.h>\nint main(void) { return ZSTD_versionNumber() == 0; }\n")
    for needed, lacking in (
        ([], "zstd.h and libzstd (libzstd-dev)"),
        (list(flags), f"{' '.join(flags)} of {compiler}"),
    ):
        probe = subprocess.run(
            [compiler, *needed, empty, "-o", folder / "needs", "-lzstd"], capture_output=True, check=False
        )
        if probe.returncode:
            pytest.skip(f"{lacking} cannot be used")
    program = folder / "reader"
    done = subprocess.run(
        [compiler, *flags, SOURCE, "-o", program, "-lzstd"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.drawn(1)
@pytest.mark.parametrize("flags", [STRICT, SANITIZED], ids=["strict", "sanitized"])
def test_all_conformance_stores(tmp_path: Path, flags: list[str]) -> None:
    program = compiled(tmp_path, *flags)
    checker = V1 / "conformance" / "check_reader.py"
    done = subprocess.run([sys.executable, checker, "--decode", program], capture_output=True, text=True, check=False)
    cases = len(json.loads((V1 / "conformance" / "cases.json").read_text("utf-8"))["cases"])
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"All {cases} answers are right."), done.stdout


def test_clang_has_no_warnings(tmp_path: Path) -> None:
    compiled(tmp_path, *STRICT, compiler="clang")


def arrays_of(group: zarr.Group, prefix: str = "") -> dict[str, Any]:
    """What the reader is to answer, from zarr-python."""
    found: dict[str, Any] = {}
    for name, member in group.members():
        if isinstance(member, zarr.Group):
            found |= arrays_of(member, f"{prefix}{name}/")
            continue
        assert isinstance(member, zarr.Array)
        values = np.asarray(member[...])
        digest = hashlib.sha256(values.astype(values.dtype.newbyteorder("<")).tobytes()).hexdigest()
        found[prefix + name] = {"dtype": values.dtype.name, "shape": list(values.shape), "sha256": digest}
    return found


def test_stores_of_this_library(tmp_path: Path) -> None:
    program = compiled(tmp_path, *STRICT)
    for layout in ("memmap", "zarr"):
        store = store_of(tmp_path / f"{layout}.tsds", detections(), ["cat", "dog"], layout=layout).path
        done = subprocess.run([program, store, "decode"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        expected = arrays_of(zarr.open_group(store, mode="r"))
        assert json.loads(done.stdout) == {"arrays": expected}
        assert len(expected) > 3


def test_hostile_json_is_refused(tmp_path: Path) -> None:
    program = compiled(tmp_path, *SANITIZED)
    store = tmp_path / "store"
    store.mkdir()
    for text in (b"[" * 1_000_000, b'{"a":' * 100_000, b'{"a": [' + b"[]," * 2_000_000 + b"[]]}", b"{" + b'"a":1,' * 9):
        (store / "zarr.json").write_bytes(text)
        done = subprocess.run([program, store, "open"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, json.loads(done.stdout)) == (1, {"reason": "manifest-json"})
