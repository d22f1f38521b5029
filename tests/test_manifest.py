"""The manifest: literal bytes, round trips, every problem at once, and the JSON Schema beside the parser."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import operator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.arrays import dump_json
from tensorstore_ds.format.kinds import KeyField, LabelField
from tensorstore_ds.format.manifest import Manifest, Shard, SplitEntry, dump, shard_path
from tensorstore_ds.format.manifest_parser import parse

V1 = Path(__file__).parents[1] / "formats" / "v1"
SCHEMA = jsonschema.Draft202012Validator(json.loads((V1 / "manifest.schema.json").read_text("utf-8")))


def manifest_of(store: Path) -> Any:
    return json.loads((store / "zarr.json").read_text("utf-8"))["attributes"]["tsds"]


GOLDEN = {path.stem: manifest_of(path) for path in sorted((V1 / "conformance" / "valid").iterdir())}


def problems_of(data: object) -> list[tuple[str, str]]:
    with pytest.raises(FormatError) as caught:
        parse(data)
    return [(problem.where, problem.reason) for problem in caught.value.problems]


# --- dump and parse ---------------------------------------------------------------------------------------------

SMALL = Manifest(
    layout="memmap",
    chunk_size=524288,
    fields={"label": LabelField(classes=("cat", "dög")), "key": KeyField()},
    splits={"train": SplitEntry((Shard(2, {"key": 7}, 99, "0f" * 32),), {"label": {"class_counts": [1, 1]}})},
    provenance={"source": "pets"},
    license="CC0-1.0",
)
SMALL_BYTES = """{
 "format_version": "1.0",
 "layout": "memmap",
 "chunk_size": 524288,
 "fields": {
  "label": {"kind": "label", "dtype": "int64", "shape": [], "classes": ["cat", "dög"]},
  "key": {
   "kind": "key",
   "values": {
    "bytes": {"dtype": "uint8", "shape": []}
   }
  }
 },
 "splits": {
  "train": {
   "rows": 2,
   "shards": [
    {"rows": 2, "lengths": {"key": 7}, "nbytes": 99, "sha256": "DIGEST"}
   ],
   "statistics": {
    "label": {"class_counts": [1, 1]}
   }
  }
 },
 "files": {},
 "provenance": {"source": "pets"},
 "license": "CC0-1.0"
}
""".replace("DIGEST", "0f" * 32)


def test_a_small_manifest_byte_by_byte() -> None:
    assert dump_json(dump(SMALL)) == SMALL_BYTES.encode()
    assert parse(json.loads(SMALL_BYTES)) == SMALL


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_manifests_parse_and_fit_the_schema(name: str) -> None:
    SCHEMA.validate(GOLDEN[name])
    known = parse(GOLDEN[name])
    dumped = json.loads(dump_json(dump(known)))
    SCHEMA.validate(dumped)
    assert parse(dumped) == known


def test_shards_are_numbered_with_five_digits() -> None:
    assert shard_path("train", 7) == "train/00007"
    assert shard_path("train", 123456) == "train/123456"


# --- problems ---------------------------------------------------------------------------------------------------


def test_every_problem_is_reported_at_once() -> None:
    data = copy.deepcopy(GOLDEN["detection"])
    data["layout"] = "zip"
    data["fields"]["image"]["shape"] = [16, 20]
    data["fields"]["objects"]["flip_pairs"] = [[0, 3]]
    data["splits"]["train"]["rows"] = True
    data["splits"]["train"]["shards"][0]["sha256"] = "0F" * 32
    data["splits"]["Val"] = {}
    del data["files"]
    assert sorted(problems_of(data)) == [
        ("fields.image", "manifest"),
        ("fields.objects.flip_pairs[0]", "manifest"),
        ("files", "manifest"),
        ("layout", "manifest"),
        ("splits.Val", "unsafe-path"),
        ("splits.train.rows", "manifest"),
        ("splits.train.rows", "manifest"),  # no integer, and so not the sum
        ("splits.train.shards[0].sha256", "manifest"),
    ]


@pytest.mark.parametrize(
    ("provenance", "options"),
    [({"options": {"size": [8, 8]}}, {"size": [8, 8]}), ({"options": None}, {}), ({"options": [1]}, {}), ({}, {})],
)
def test_options_of_the_conversion_are_what_is_recorded_if_anything(provenance: Any, options: Any) -> None:
    assert dataclasses.replace(SMALL, provenance=provenance).conversion_options == options


IMAGE, KEYS, OBJECTS = (("fields", name) for name in ("image", "key", "objects"))
SHARD = ("splits", "train", "shards", 0)


def array(*shape: int) -> Any:
    return {"kind": "array", "dtype": "int8", "shape": list(shape)}


@pytest.mark.parametrize(
    ("place", "value", "where", "reason"),
    [
        (("format_version",), "2.0", "format_version", "unknown-version"),
        (("format_version",), "10.0", "format_version", "unknown-version"),
        (("format_version",), "1", "format_version", "unknown-version"),
        (("format_version",), "1.٣", "format_version", "unknown-version"),  # a digit, but not of ASCII
        (("format_version",), "1.0\n", "format_version", "unknown-version"),
        (("license",), None, "license", "manifest"),
        (("provenance",), [], "provenance", "manifest"),
        (("fields", "Image"), array(1), "fields.Image", "unsafe-path"),
        ((*IMAGE, "kind"), 3, "fields.image.kind", "manifest"),
        ((*IMAGE, "layout"), 3, "fields.image.layout", "manifest"),
        ((*IMAGE, "requires"), "deltas", "fields.image.requires", "manifest"),
        (("requires",), {}, "requires", "manifest"),
        ((*IMAGE, "channels"), ["r", "g"], "fields.image.channels", "manifest"),
        ((*IMAGE, "range"), [0, "1"], "fields.image.range", "manifest"),
        ((*IMAGE, "range"), [1, 0], "fields.image.range", "manifest"),
        (("chunk_size",), 0, "chunk_size", "manifest"),
        (("fields", "x"), {"kind": "graph"}, "fields.x.shape", "manifest"),
        (("fields", "x"), {"kind": "graph", "values": {}}, "fields.x", "manifest"),
        ((*IMAGE, "shape"), [16, 0, 3], "fields.image.shape", "manifest"),
        ((*IMAGE, "shape"), [16, 20.0, 3], "fields.image.shape[1]", "manifest"),
        (
            (*IMAGE, "shape"),
            [2**20 + 1, 2**40 - 2**20 + 1, 16],
            "fields.image.shape",
            "manifest",
        ),  # 16 in numbers of 64 bits
        (("fields", "x"), array(*[2**52] * 20), "fields.x.shape", "manifest"),  # more than a float can tell
        (("fields", "x"), array(*[1] * 32), "fields.x.shape", "manifest"),
        ((*KEYS, "values"), {"text": {"dtype": "uint8", "shape": []}}, "fields.key", "manifest"),
        ((*OBJECTS, "values", "offsets"), {"dtype": "int64", "shape": []}, "fields.objects", "manifest"),
        ((*OBJECTS, "values", "boxes", "dtype"), "float64", "fields.objects", "manifest"),
        ((*OBJECTS, "keypoints"), ["a", "b"], "fields.objects", "manifest"),
        ((*OBJECTS, "flip_pairs"), [[0, 1], [1, 2]], "fields.objects.flip_pairs", "manifest"),
        ((*OBJECTS, "flip_pairs"), [[1, 1]], "fields.objects.flip_pairs", "manifest"),
        ((*SHARD, "lengths"), {"key": 20}, "splits.train.shards[0].lengths", "manifest"),
        (("files", "a/../b"), {}, "files", "unsafe-path"),
        (("files", "a\n"), {}, "files", "unsafe-path"),
        (("files", "a\\b"), {}, "files", "unsafe-path"),
        (("files", "train/zarr.json", "size"), -1, "files[train/zarr.json].size", "manifest"),
        (("files", "train/zarr.json", "size"), 2**53, "files[train/zarr.json].size", "manifest"),
    ],
)
def test_one_thing_wrong_is_named(place: tuple[Any, ...], value: Any, where: str, reason: str) -> None:
    data = copy.deepcopy(GOLDEN["detection"])
    *parents, last = place
    functools.reduce(operator.getitem, parents, data)[last] = value
    assert (where, reason) in problems_of(data)


@pytest.mark.parametrize("data", [None, True, 1, "1.0", [], {}, {"format_version": 1.0}])
def test_what_is_no_manifest_is_refused(data: object) -> None:
    assert problems_of(data)
