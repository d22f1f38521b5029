"""The manifest: literal bytes, round trips, every problem at once, and the JSON Schema beside the parser."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.arrays import dump_json
from tensorstore_ds.format.kinds import (
    EncodedImageField,
    KeyField,
    LabelField,
    ObjectsField,
    RaggedImageField,
    RawImageField,
    SizeField,
)
from tensorstore_ds.format.kinds.base import ArrayField, Field, UnknownArrayField, UnknownTableField
from tensorstore_ds.format.manifest import (
    File,
    Manifest,
    Shard,
    SplitEntry,
    dump,
    shard_path,
)
from tensorstore_ds.format.manifest_parser import parse, parse_shard
from tensorstore_ds.format.schema import DTYPES, LAYOUTS, ArraySpec

V1 = Path(__file__).parents[1] / "formats" / "v1"
SCHEMA = jsonschema.Draft202012Validator(json.loads((V1 / "manifest.schema.json").read_text("utf-8")))


def manifest_of(store: Path) -> Any:
    return json.loads((store / "zarr.json").read_text("utf-8"))["attributes"]["tsds"]


GOLDEN = {path.stem: manifest_of(path) for path in sorted((V1 / "conformance" / "valid").iterdir())}

# --- strategies -------------------------------------------------------------------------------------------------

DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))}
NAMES = st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,63}", fullmatch=True).filter(lambda name: name not in DEVICES)
SIZES = st.integers(0, 2**53 - 1)
SHA256 = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
TEXTS = st.lists(st.text(max_size=8), unique=True, max_size=4).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FILES = st.dictionaries(
    st.from_regex(r"[a-z0-9_]{4,9}/zarr\.json|[A-Z]{2}\.[a-z0-9]{1,9}|skipped\.jsonl", fullmatch=True),
    st.builds(File, SIZES, SHA256),
    max_size=3,
)
SHAPES = st.lists(st.integers(1, 2**16), max_size=3).map(tuple)
SPECS = st.builds(ArraySpec, st.sampled_from(DTYPES), SHAPES, st.none() | st.sampled_from(LAYOUTS))
VALUES = st.builds(ArraySpec, st.sampled_from(DTYPES), SHAPES, st.none() | st.sampled_from(LAYOUTS), st.booleans())


@st.composite
def unknown_tables(draw: st.DrawFn) -> Field:
    names = draw(st.lists(NAMES.filter(lambda name: name != "offsets"), min_size=1, max_size=4, unique=True))
    specs = {name: draw(VALUES) for name in names}
    split = draw(st.integers(1, len(names)))
    values, per_row = ({name: specs[name] for name in part} for part in (names[:split], names[split:]))
    entry = {"kind": "graph", "values": {name: spec.dump() for name, spec in values.items()}}
    return UnknownTableField(
        values, {**entry, "per_row": {n: s.dump() for n, s in per_row.items()}} if per_row else entry, per_row=per_row
    )


FIELDS: st.SearchStrategy[Field] = st.one_of(
    st.builds(
        RawImageField,
        st.builds(ArraySpec, st.sampled_from(DTYPES), st.tuples(*[st.integers(1, 5000)] * 2, st.just(2))),
        channels=st.none() | st.just(("near", "far")),
        range=st.none() | st.just((0, 2.5)),
    ),
    st.builds(RaggedImageField.of, st.sampled_from(DTYPES), st.integers(0, 2**53 - 1)),
    st.sampled_from([KeyField(), SizeField(), EncodedImageField(encoding="smart"), EncodedImageField()]),
    st.builds(LabelField, classes=TEXTS),
    st.builds(ArrayField, SPECS),
    SPECS.map(lambda spec: UnknownArrayField(spec, {"kind": "pose", **spec.dump(), "unit": "m"})),
    unknown_tables(),
    st.builds(
        lambda classes, keypoints: ObjectsField.of(
            "boxes",
            "labels",
            *["keypoints"] * bool(keypoints),
            classes=classes,
            keypoints=keypoints,
            flip_pairs=((0, 1),) if len(keypoints) > 1 else (),
        ),
        TEXTS,
        TEXTS,
    ),
)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    fields: dict[str, Field] = draw(st.dictionaries(NAMES, FIELDS, max_size=4))
    tables = [group for name, field in fields.items() for group in field.groups(name)]
    shards = st.builds(Shard, st.integers(0, 2**40), st.fixed_dictionaries(dict.fromkeys(tables, SIZES)), SIZES, SHA256)
    splits = st.builds(
        SplitEntry, st.lists(shards, max_size=2).map(tuple), st.dictionaries(st.text(max_size=9), JSON, max_size=2)
    )
    return Manifest(
        layout=draw(st.sampled_from(LAYOUTS)),
        chunk_size=draw(st.integers(1, 2**53 - 1)),
        fields=fields,
        splits=draw(st.dictionaries(NAMES, splits, max_size=3)),
        files=draw(FILES),
        provenance=draw(st.dictionaries(st.text(max_size=9), JSON, max_size=3)),
        license=draw(st.none() | st.text(max_size=9)),
        citation=draw(st.none() | st.text(max_size=9)),
        version=draw(st.sampled_from(["1.0", "1.1", "1.9999"])),
    )


def problems_of(data: object) -> list[tuple[str, str]]:
    with pytest.raises(FormatError) as caught:
        parse(data)
    return [(problem.where, problem.reason) for problem in caught.value.problems]


def parent_of(data: Any, place: tuple[Any, ...]) -> Any:
    """The object or list that holds the value at a place."""
    for key in place[:-1]:
        data = data[key]
    return data


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


@settings(deadline=None)
@given(manifests())
def test_what_is_dumped_is_parsed_to_the_same_and_fits_the_schema(manifest: Manifest) -> None:
    data = json.loads(dump_json(dump(manifest)))
    assert parse(data) == manifest
    SCHEMA.validate(data)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_manifests_parse_and_fit_the_schema(name: str) -> None:
    SCHEMA.validate(GOLDEN[name])
    known = parse(GOLDEN[name])
    assert parse(dump(known)) == known


@given(st.builds(Shard, SIZES, st.dictionaries(NAMES, SIZES, max_size=3), SIZES, SHA256, st.none() | SIZES))
def test_a_shard_is_parsed_as_it_was_dumped(shard: Shard) -> None:
    assert parse_shard(json.loads(dump_json(shard.dump()))) == shard


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
    parent_of(data, place)[place[-1]] = value
    assert (where, reason) in problems_of(data)


@pytest.mark.parametrize("data", [None, True, 1, "1.0", [], {}, {"format_version": 1.0}])
def test_what_is_no_manifest_is_refused(data: object) -> None:
    assert problems_of(data)


# --- fuzz -------------------------------------------------------------------------------------------------------


def check(data: Any) -> None:
    """A manifest that survives a round trip, or an error of one printable line; never accepted against the schema."""
    try:
        manifest = parse(data)
    except FormatError as error:
        assert error.problems
        assert str(error).isprintable()
    else:
        SCHEMA.validate(data)
        assert parse(dump(manifest)) == manifest


@settings(deadline=None)
@given(JSON)
def test_any_json_is_a_manifest_or_an_error(data: object) -> None:
    check(data)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a JSON value."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


PLACES = [(name, place) for name in ("detection", "shards", "encoded-source") for place in places(GOLDEN[name])[1:]]
#: Values that are nearly right, which arbitrary JSON seldom is.
NEAR = st.sampled_from(
    [0, 1, -1, 2**53, 1.0, True, "memmap", "", "train", "uint8", "int64", "raw", [], [2], [4], [3, 2], [[0, 1]], {}]
)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(PLACES), st.sampled_from(["replace", "delete", "add"]), JSON | NEAR, st.text(max_size=9) | NAMES)
def test_a_manifest_with_one_change_is_a_manifest_or_an_error(
    place: tuple[str, tuple[Any, ...]], how: str, value: Any, name: str
) -> None:
    golden, path = place
    data = copy.deepcopy(GOLDEN[golden])
    parent = parent_of(data, path)
    if how == "replace":
        parent[path[-1]] = value
    elif how == "delete":
        del parent[path[-1]]
    elif isinstance(parent, dict):
        parent[name] = value
    else:
        parent.append(value)
    check(data)
