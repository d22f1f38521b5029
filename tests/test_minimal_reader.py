"""The example reader of formats/v1/examples: what it reads, and what it asks a server for."""

from __future__ import annotations

import ast
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from benchmarks.range_server import Served, served

V1 = Path(__file__).parents[1] / "formats" / "v1"
READER = V1 / "examples" / "minimal_reader.py"
VALID = V1 / "conformance" / "valid"
STORES = sorted(path.stem for path in VALID.iterdir())
#: Stores with an array that is compressed.
COMPRESSED = [name for name in STORES if tsds.open(VALID / f"{name}.tsds").layout == "zarr"]
has_zstd = pytest.mark.skipif(sys.version_info < (3, 14), reason="compression.zstd came with Python 3.14")
Open = Callable[[str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(VALID) as account:
        yield account


@pytest.fixture(params=["folder", "http"])
def open_store(request: pytest.FixtureRequest, server: Served) -> Open:
    """Opens a conformance store by its name with the example."""
    place = VALID if request.param == "folder" else server.url
    return lambda name: reader()(f"{place}/{name}.tsds")


def reader() -> Any:
    return runpy.run_path(str(READER))["Store"]


def expected(column: tsds.Column | tsds.RaggedColumn, row: int) -> Any:
    """A row as this library reads it: arrays, lists of them, dicts by the name of the value."""
    if isinstance(column, tsds.Column):
        return column[row]
    start, stop = column.offsets[row : row + 2].tolist()
    values = {name: each[start:stop] for name, each in column.values.items()}
    if set(values) == {"items"}:
        return values["items"]
    return {**values, **{name: [expected(each, i) for i in range(start, stop)] for name, each in column.lists.items()}}


def assert_same(found: Any, wanted: Any) -> None:
    """Equal in structure, shapes, dtypes and every byte, so that NaN equals NaN."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for key in wanted:
            assert_same(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert (found.shape, found.dtype, found.tobytes()) == (wanted.shape, wanted.dtype, wanted.tobytes())


@pytest.mark.parametrize("name", [pytest.param(n, marks=has_zstd) if n in COMPRESSED else n for n in STORES])
def test_it_reads_what_this_library_reads(name: str, open_store: Open) -> None:
    store, own = open_store(name), tsds.open(VALID / f"{name}.tsds")
    for split in own.splits:
        columns = {field: own[split][field] for field in own[split].fields}
        per_row = {
            f"{field}/{value}": each
            for field, column in columns.items()
            if isinstance(column, tsds.RaggedColumn)
            for value, each in column.per_row.items()
        }
        for row in range(len(own[split])):
            assert_same(store.sample(split, row), {field: expected(column, row) for field, column in columns.items()})
            if per_row:
                wanted = {path: expected(column, row) for path, column in per_row.items()}
                assert_same(store.sample(split, row, list(per_row)), wanted)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python decompresses")
def test_without_zstandard_a_compressed_array_is_refused_and_others_are_read(open_store: Open) -> None:
    store = open_store("zarr-encoded")
    with pytest.raises(ValueError, match=r"label/c/0 is compressed: use Python 3\.14, or `tsds repack"):
        store.sample("train", 0, ["label"])


def test_requests_and_bytes(server: Served) -> None:
    root = len((VALID / "shards.tsds/zarr.json").read_bytes())
    server.requests.clear()
    store = reader()(f"{server.url}/shards.tsds/")
    assert server.requests == [("shards.tsds/zarr.json", root)]
    server.requests.clear()
    store.sample("train", 4, ["image"])
    assert server.requests == [("shards.tsds/train/00001/image/c/0/0/0/0", 12)]
    server.requests.clear()
    assert bytes(store.sample("train", 4, ["key"])["key"]["bytes"]) == b"4.png"
    assert server.requests == [
        ("shards.tsds/train/00001/key/offsets/c/0", 16),
        ("shards.tsds/train/00001/key/bytes/c/0", 5),
    ]


def test_an_encoded_image_takes_two_requests(server: Served) -> None:
    store, own = reader()(f"{server.url}/encoded-jpeg.tsds"), tsds.open(VALID / "encoded-jpeg.tsds")
    server.requests.clear()
    jpeg = bytes(store.sample("train", 1, ["image"])["image"]["bytes"])
    assert jpeg == own["train"]["image"][1]
    assert [size for _, size in server.requests] == [16, len(jpeg)]
    server.requests.clear()
    assert store.sample("train", 1, ["image/shape"])["image/shape"].tolist() == [8, 8, 1]
    assert [size for _, size in server.requests] == [12]


def test_rows_outside_and_stores_that_are_damaged_are_refused(tmp_path: Path) -> None:
    store = reader()(VALID / "minimal.tsds")
    for row in (-1, 2):
        with pytest.raises(IndexError, match="train has no such row"):
            store.sample("train", row)
    for name, message in (
        ("checksum--digest", "digest is another"),
        ("checksum--manifest", "digest is another"),
        ("unknown-version--2.0", "not of format 1"),
    ):
        with pytest.raises(ValueError, match=message):
            reader()(V1 / f"conformance/invalid/{name}.tsds")
    for name, message in (
        ("offsets--fall", "offsets are damaged"),
        ("offsets--beyond", "offsets are damaged"),
        ("file-size--short", "too short"),
    ):
        store = reader()(V1 / f"conformance/invalid/{name}.tsds")
        with pytest.raises(ValueError, match=message):
            for row in range(store.manifest["splits"]["train"]["rows"]):
                store.sample("train", row)
    copy = Path(shutil.copytree(VALID / "minimal.tsds", tmp_path / "copy.tsds"))
    data = copy / "train/00000/image/c/0/0/0/0"
    data.rename(tmp_path / "elsewhere")
    data.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a symbolic link"):
        reader()(copy).sample("train", 0)


def test_a_name_of_the_manifest_is_no_path_out_of_the_store() -> None:
    store = reader()(VALID / "minimal.tsds")
    store.manifest["splits"]["../train"] = store.manifest["splits"]["train"]
    with pytest.raises(ValueError, match="no path in a store"):
        store.sample("../train", 0)


def test_a_server_without_ranges_is_named() -> None:
    with served(VALID, ranges=False) as account:
        store = reader()(f"{account.url}/minimal.tsds")
        with pytest.raises(ValueError, match="does not answer ranges"):
            store.sample("train", 1)


def test_the_command_prints_a_sample(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [str(READER), str(VALID / "classification.tsds"), "train", "0", "label", "size"])
    runpy.run_path(str(READER), run_name="__main__")
    sample = {"label": np.int64(0), "size": np.array([8, 8], np.int32)}
    assert capsys.readouterr().out == f"{sample}\n"


def test_it_is_short_and_needs_numpy_alone() -> None:
    text = READER.read_text("utf-8")
    assert text.count("\n") < 112
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name for node in imports]
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | {"numpy", "compression"}
