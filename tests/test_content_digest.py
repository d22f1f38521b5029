"""The digest of the content, the signature, and names of root files."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, strategies as st

import tensorstore_ds as tsds
from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.root import change_root
from tensorstore_ds.format.strict_json import canonical, load_object

CONFORMANCE = Path(__file__).parents[1] / "formats/v1/conformance"
CASES = [case for case in json.loads((CONFORMANCE / "cases.json").read_text("utf-8"))["cases"] if case["valid"]]

NUMBERS = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
@example([1e-6, 1e-7, 9.99e-7, 1e20, 1e21, 1.2345678901234568e20, -0.0, 0.1, 5e-324, 1.7976931348623157e308])
@example({"\U00010000": 1, "\ufffd": 2, "z": '\u2028\x7f\x1f\n"\\'})
def test_the_canonical_form_is_that_of_rfc_8785(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(st.binary(min_size=8, max_size=8))
def test_any_float64_is_written_as_ecmascript_writes_it(data: bytes) -> None:
    (number,) = struct.unpack("<d", data)
    if math.isfinite(number):
        assert canonical(number) == rfc8785.dumps(number)


@pytest.mark.parametrize("case", CASES, ids=[Path(case["path"]).stem for case in CASES])
def test_it_is_the_one_of_the_conformance_stores(case: Any) -> None:
    manifest = load_object((CONFORMANCE / case["path"] / "zarr.json").read_bytes())["attributes"]["tsds"]
    shards = {name: [shard["sha256"] for shard in split["shards"]] for name, split in manifest["splits"].items()}
    oracle = hashlib.sha256(rfc8785.dumps({"fields": manifest["fields"], "splits": shards})).hexdigest()
    assert case["content"] == oracle == tsds.open(CONFORMANCE / case["path"]).content_sha256


@pytest.fixture
def signed(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CONFORMANCE / "valid/signed.tsds", tmp_path / "s.tsds"))


def test_notes_change_the_store_and_not_its_content(signed: Path) -> None:
    before = tsds.open(signed)
    after = tsds.annotate(signed, license="CC-BY-4.0", citation="https://doi.org/10.5281/zenodo.1")
    assert after.sha256 != before.sha256
    assert after.content_sha256 == before.content_sha256
    assert tsds.open(signed, sha256=before.content_sha256).sha256 == after.sha256
    assert tsds.open(signed, sha256=after.sha256.upper()).sha256 == after.sha256
    with pytest.raises(FormatError) as caught:
        tsds.open(signed, sha256=before.sha256)
    assert caught.value.reason == "checksum"
    assert after.sha256 in str(caught.value) and after.content_sha256 in str(caught.value)
    assert tsds.verify(signed, sha256=before.content_sha256) == []
    assert [p.reason for p in tsds.verify(signed, sha256="0" * 64)] == ["checksum"]


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["fields"]["label"]["classes"].append("c"),
        lambda m: m["splits"].update(val={"rows": 0, "shards": []}),
    ],
    ids=["class", "split"],
)
def test_fields_and_splits_change_the_content(signed: Path, change: Any) -> None:
    before = tsds.open(signed).content_sha256
    root = signed / "zarr.json"
    changed = change_root(root.read_bytes(), change)
    (signed / "val").mkdir()
    root.write_bytes(changed)
    try:
        found = tsds.open(signed).content_sha256
    except FormatError as error:  # a split whose zarr.json is not listed
        assert "val/zarr.json" in str(error)
        return
    assert found != before


def test_the_signature_goes_where_the_store_goes(signed: Path, tmp_path: Path) -> None:
    names = ("zarr.json.sig", "README.md", "LICENSE", "thumbs_1-a.v2.Bin")
    data = {name: (signed / name).read_bytes() for name in names}
    tsds.copy(signed, tmp_path / "copy.tsds")
    tsds.pack(signed, tmp_path / "s.tsds.zip")
    tsds.unpack(tmp_path / "s.tsds.zip", tmp_path / "again.tsds")
    for folder in ("copy.tsds", "again.tsds"):
        assert {name: (tmp_path / folder / name).read_bytes() for name in names} == data
    for store in ("copy.tsds", "s.tsds.zip", "again.tsds"):
        assert tsds.verify(tmp_path / store) == []


def test_a_signature_may_come_later_and_go(signed: Path) -> None:
    digest = tsds.open(signed).sha256
    (signed / "zarr.json.sig").unlink()
    assert tsds.verify(signed, sha256=digest) == []
    (signed / "zarr.json.sig").write_bytes(b"another")
    assert tsds.verify(signed, sha256=digest) == []


def test_rows_are_erased_from_the_store_that_either_digest_means(signed: Path) -> None:
    store = tsds.open(signed)
    with pytest.raises(FormatError):
        tsds.erase(signed, rows={"train": [0]}, sha256="0" * 64)
    tsds.erase(signed, rows={"train": [0]}, sha256=store.content_sha256)
    assert tsds.open(signed)["train"]["label"].take([0]).tolist() == [0]
    with pytest.raises(FormatError):  # other rows, other content
        tsds.erase(signed, rows={"train": [0]}, sha256=store.content_sha256)
