"""The metadata of a store's root: what is no store, and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.kinds import KeyField
from tensorstore_ds.format.manifest import Manifest
from tensorstore_ds.format.root import change_root, dump_root, parse_root

MANIFEST = Manifest(layout="memmap", chunk_size=524288, fields={"key": KeyField()}, splits={}, provenance={})


def test_the_digest_is_that_of_the_bytes_with_zeros_in_its_place() -> None:
    data = dump_root(MANIFEST)
    manifest, digest = parse_root(data)
    assert manifest == MANIFEST
    assert hashlib.sha256(data.replace(digest.encode(), b"0" * 64)).hexdigest() == digest
    assert json.loads(data)["attributes"]["tsds_sha256"] == digest


def test_members_that_are_not_known_stay() -> None:
    root = json.loads(dump_root(MANIFEST))
    root["attributes"]["other"] = {"tsds_sha256": "0" * 64}
    changed = change_root(json.dumps(root).encode(), lambda manifest: manifest.update(license="CC0-1.0"))
    manifest, digest = parse_root(changed)
    assert manifest.license == "CC0-1.0"
    assert json.loads(changed)["attributes"]["other"] == {"tsds_sha256": "0" * 64}
    assert digest != "0" * 64


@pytest.mark.parametrize(
    "change",
    [
        lambda root: root.update(zarr_format=2),
        lambda root: root.update(node_type="array"),
        lambda root: root.update(attributes=[]),
        lambda root: root.pop("zarr_format"),
        lambda root: root.pop("node_type"),
        lambda root: root.pop("attributes"),
        lambda root: root["attributes"].pop("tsds"),
    ],
)
def test_one_thing_that_makes_it_no_store(change: Callable[[dict[str, Any]], Any]) -> None:
    root = json.loads(dump_root(MANIFEST))
    change(root)
    with pytest.raises(FormatError) as caught:
        parse_root(json.dumps(root).encode())
    assert [(problem.where, problem.reason) for problem in caught.value.problems] == [("zarr.json", "not-a-store")]


@pytest.mark.parametrize("digest", [5, "0" * 63, "0" * 65, "A" * 64, "0" * 64, ""])
def test_a_digest_that_is_none(digest: Any) -> None:
    root = json.loads(dump_root(MANIFEST))
    root["attributes"]["tsds_sha256"] = digest
    with pytest.raises(FormatError) as caught:
        parse_root(json.dumps(root).encode())
    assert [problem.reason for problem in caught.value.problems] == ["checksum"]
