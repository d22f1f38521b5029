"""zarrita, in JavaScript under Node: the example read.mjs, and the valid conformance stores."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds as tsds
from benchmarks.range_server import served
from remote.servers import nginx

ROOT = Path(__file__).parents[2]
V1 = ROOT / "formats" / "v1"
VALID = V1 / "conformance" / "valid"
MODULES = ROOT / ".venv-clients" / "node_modules"
#: They have arrays of float16, for which JavaScript has a type since Node 24.
HALVES = {"valid/array-fields.tsds", "valid/later-minor.tsds"}

pytestmark = pytest.mark.skipif(
    not shutil.which("node") or not (MODULES / "zarrita").is_dir(), reason="Node or zarrita is not here"
)


def program(path: Path, folder: Path) -> Path:
    """A copy of a program beside the packages that it imports."""
    (folder / "node_modules").symlink_to(MODULES)
    return Path(shutil.copy(path, folder))


def run(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["node", script, *map(str, arguments)], capture_output=True, text=True, check=False)


def expected(path: Path, split: str, row: int) -> dict[str, Any]:
    """What the example should print of a row."""
    own = tsds.open(path)[split]
    sample: dict[str, Any] = {}
    for name, field in own.fields.items():
        value = own[name][row]
        if field.kind in ("key", "text"):
            sample[name] = value
        elif field.kind == "label":
            classes = own.fields[name].classes
            sample[name] = {"label": int(value), "class": classes[value] if value >= 0 else None}
        elif field.kind == "image":
            data = value if isinstance(value, bytes) else value.tobytes()
            shape = [len(data)] if isinstance(value, bytes) else list(value.shape)
            digest = hashlib.sha256(data).hexdigest()
            sample[name] = {"encoding": field.dump()["encoding"], "shape": shape, "sha256": digest}
    return sample


@pytest.mark.parametrize(
    ("name", "split", "row"),
    [
        ("classification", "train", 3),
        ("shards", "train", 4),
        ("gray16", "train", 2),
        ("encoded-jpeg", "train", 1),
        ("zarr-encoded", "train", 2),
        ("zarr-detection", "train", 0),
        ("zarr-chunks", "train", 12),
        ("unlabelled", "test", 1),
        ("encoded-smart", "train", 1),
        ("raw-sizes", "train", 1),
        ("zarr-raw-sizes", "train", 0),
        ("captions", "train", 0),
        ("captions", "train", 1),
        ("captions", "train", 2),
    ],
)
def test_the_example_prints_a_row(name: str, split: str, row: int, tmp_path: Path) -> None:
    script = program(V1 / "examples" / "read.mjs", tmp_path)
    done = run(script, VALID / f"{name}.tsds", split, row)
    assert json.loads(done.stdout) == expected(VALID / f"{name}.tsds", split, row), done.stderr


def test_the_example_reads_over_http(tmp_path: Path) -> None:
    script = program(V1 / "examples" / "read.mjs", tmp_path)
    with served(VALID) as account:
        done = run(script, f"{account.url}/classification.tsds", "train", 3)
    assert json.loads(done.stdout) == expected(VALID / "classification.tsds", "train", 3), done.stderr


@pytest.mark.parametrize("token", [None, "a-token-of-the-tests"])
def test_the_example_reads_what_tsds_serves(token: str | None, tmp_path: Path) -> None:
    script = program(V1 / "examples" / "read.mjs", tmp_path)
    store = VALID / "classification.tsds"
    packed = tsds.pack(store, tmp_path / "classification.tsds.zip").path
    for place in (store, packed):
        with tsds.serve(place, token=token) as url:
            done = run(script, url, "train", 3)
        assert json.loads(done.stdout) == expected(store, "train", 3), done.stderr


def test_the_example_reads_from_nginx(tmp_path: Path) -> None:
    script = program(V1 / "examples" / "read.mjs", tmp_path)
    with nginx(VALID, tmp_path / "nginx") as url:
        done = run(script, f"{url}/classification.tsds", "train", 3)
    assert json.loads(done.stdout) == expected(VALID / "classification.tsds", "train", 3), done.stderr


def test_the_example_refuses_a_changed_manifest_and_a_row_outside(tmp_path: Path) -> None:
    script = program(V1 / "examples" / "read.mjs", tmp_path)
    done = run(script, V1 / "conformance/invalid/checksum--manifest.tsds", "train", 0)
    assert done.returncode
    assert "its digest is another" in done.stderr
    assert "train has no row 2" in run(script, VALID / "minimal.tsds", "train", 2).stderr


def test_it_reads_the_valid_stores(tmp_path: Path) -> None:
    script = program(V1 / "conformance" / "readers" / "zarrita.mjs", tmp_path)
    words = [sys.executable, V1 / "conformance" / "check_reader.py", "--valid-only", "node", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert {line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("valid/")} <= HALVES, done.stdout
