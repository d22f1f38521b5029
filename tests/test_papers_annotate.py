"""License, citation and description in a store that is there."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.conversion.licenses import license_expression


@pytest.fixture
def store(tmp_path: Path) -> tsds.Store:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (6, 5, 3), np.uint8), "label": i % 2} for i in range(6)]
    return store_of(tmp_path / "s.tsds", samples, ("a", "b"))


def files(store: tsds.Store) -> dict[str, bytes]:
    return {str(p.relative_to(store.path)): p.read_bytes() for p in store.path.rglob("*") if p.is_file()}


def test_the_manifest_alone_changes(store: tsds.Store) -> None:
    before = files(store)
    made = tsds.annotate(store.path, license="cc-by-4.0", citation="We, 2026", description="Noise.")
    assert (made.manifest.license, made.manifest.citation) == ("CC-BY-4.0", "We, 2026")
    assert made.manifest.provenance["description"] == "Noise."
    assert made.sha256 != store.sha256
    after = files(made)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == ["zarr.json"]
    assert tsds.verify(store.path) == []
    # The digest as the specification computes it.
    data = after["zarr.json"]
    digest = json.loads(data)["attributes"]["tsds_sha256"].encode()
    assert data.count(digest) == 1
    assert hashlib.sha256(data.replace(digest, b"0" * 64)).hexdigest().encode() == digest


def test_what_is_not_given_stays_and_what_is_empty_goes(store: tsds.Store) -> None:
    made = tsds.annotate(store.path, license="MIT", citation="c", description="d")
    status = (store.path / "zarr.json").stat()
    assert tsds.annotate(store.path, license="mit").sha256 == made.sha256
    assert (store.path / "zarr.json").stat() == status  # nothing is written if nothing changes
    made = tsds.annotate(store.path, citation="other")
    assert (made.manifest.license, made.manifest.citation) == ("MIT", "other")
    made = tsds.annotate(store.path, license="", citation="", description="")
    assert (made.manifest.license, made.manifest.citation) == (None, None)
    assert "description" not in made.manifest.provenance


def test_members_of_a_later_version_stay(store: tsds.Store) -> None:
    document = json.loads((store.path / "zarr.json").read_bytes())
    document["attributes"]["tsds"] |= {"later": {"x": [1, 2.5]}, "format_version": "1.9"}
    document["attributes"] |= {"thumbnails": {"of": "somebody else"}, "tsds_sha256": "0" * 64}
    data = json.dumps(document).encode()
    sealed = re.sub(b"0{64}", hashlib.sha256(data).hexdigest().encode(), data)
    (store.path / "zarr.json").write_bytes(sealed)
    tsds.annotate(store.path, license="MIT")
    found = json.loads((store.path / "zarr.json").read_bytes())["attributes"]
    assert found["tsds"]["later"] == {"x": [1, 2.5]}
    assert found["thumbnails"] == {"of": "somebody else"}
    assert found["tsds"]["format_version"] == "1.9"
    assert tsds.verify(store.path) == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40) | st.just('"tsds_sha256": "' + "0" * 64 + '"') | st.just("0" * 64))
def test_any_text_is_kept(store: tsds.Store, text: str) -> None:
    made = tsds.annotate(store.path, citation=text, description=text)
    assert (made.manifest.citation or "") == text
    assert made.manifest.provenance.get("description", "") == text


def test_a_reader_that_is_open_goes_on(store: tsds.Store) -> None:
    images = store["train"]["image"].take([0, 1])
    tsds.annotate(store.path, license="MIT")
    assert np.array_equal(store["train"]["image"].take([0, 1]), images)
    assert store["train"]["label"].take([0]).tolist() == [0]  # not mapped before
    assert store.manifest.license != "MIT"
    assert tsds.open(store.path)["train"]["label"].take([0]).tolist() == [0]
    with pytest.raises(tsds.FormatError, match="expected the store"):  # it is another one by its digest
        tsds.open(store.path, sha256=store.sha256)


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({}, "expected what is to be noted, found nothing"),
        ({"license": "CC BY 4.0"}, r"found CC BY 4\.0\. Did you mean CC-BY-4\.0\?"),
        ({"license": 4}, "expected text, found 4"),
        ({"citation": "\ud800"}, "`citation`: expected text in UTF-8"),
        ({"description": b"x"}, "`description`: expected text"),
    ],
)
def test_what_cannot_be_noted_is_refused(store: tsds.Store, given_: Any, message: str) -> None:
    before = files(store)
    with pytest.raises(tsds.OptionError, match=message):
        tsds.annotate(store.path, **given_)
    assert files(store) == before


def test_a_link_in_the_place_of_the_new_manifest_is_not_followed(store: tsds.Store, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    (store.path / "zarr.json.partial").symlink_to(other)
    with pytest.raises(tsds.errors.OutputError, match=r"zarr\.json: expected to write it"):
        tsds.annotate(store.path, license="MIT")
    assert other.read_text() == "mine"


def test_licenses_are_written_as_spdx_has_them_and_one_that_is_none_is_named_with_a_near_one() -> None:
    ours = ("Apache-2.0 or LicenseRef-Ours", "Apache-2.0 OR LicenseRef-Ours")
    for given_, expected in (("mit", "MIT"), ours, ("cc0-1.0", "CC0-1.0")):
        assert license_expression(given_) == expected == tsds.ConvertOptions(license=given_).license
    for given_, near in (("CC-BY-4", "CC-BY-4.0"), ("MIT License", "MIT"), ("Apache 2.0", "Apache-2.0"), ("", "")):
        with pytest.raises(tsds.OptionError) as caught:
            tsds.ConvertOptions(license=given_)
        text = str(caught.value)
        assert "\n" not in text and "LicenseRef-NAME" in text
        assert (f"Did you mean {near}?" in text) == bool(near)


def test_a_conversion_notes_them_and_a_repacked_store_keeps_them(store: tsds.Store, tmp_path: Path) -> None:
    samples = [{"image": np.zeros((3, 3, 1), np.uint8)}]
    manifest = store_of(tmp_path / "n.tsds", samples, license="cc-by-4.0", citation="We").manifest
    assert (manifest.license, manifest.citation) == ("CC-BY-4.0", "We")
    tsds.annotate(store.path, license="MIT", citation="c", description="d")
    tsds.repack(store.path, tmp_path / "z.tsds", layout="zarr")
    tsds.repack(store.path, tmp_path / "j.tsds", encoding="jpeg", workers=0)
    for name in ("z.tsds", "j.tsds"):
        manifest = tsds.open(tmp_path / name).manifest
        assert (manifest.license, manifest.citation, manifest.provenance["description"]) == ("MIT", "c", "d")
