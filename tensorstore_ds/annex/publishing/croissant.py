"""The data as Croissant describes them, for search engines, reviewers and tools: https://docs.mlcommons.org/croissant."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tensorstore_ds.annex.publishing.citing import license_url, person
from tensorstore_ds.annex.publishing.facts import COUNTED, Facts, options_of
from tensorstore_ds.format.kinds import KeyField, LabelField, LabelsField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.reading.store_files import open_file

#: A store of more files has a FileSet for each field instead.
_MOST_FILES = 300

#: Names of Croissant's own vocabulary.
_TERMS = re.findall(
    r"\w+",
    "arrayShape citeAs column containedIn equivalentProperty extract field fileObject fileProperty fileSet format "
    "includes isArray isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace "
    "samplingRate separator source subField transform",
)
#: What the names of version 1.1 stand for.
_CONTEXT: Mapping[str, Any] = dict(
    sorted(
        {
            **{name: f"cr:{name}" for name in _TERMS},
            "@language": "en",
            "@vocab": "https://schema.org/",
            "conformsTo": "dct:conformsTo",
            "cr": "http://mlcommons.org/croissant/",
            "data": {"@id": "cr:data", "@type": "@json"},
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
            "dct": "http://purl.org/dc/terms/",
            "description": {"@container": "@language"},
            "examples": {"@id": "cr:examples", "@type": "@json"},
            "name": {"@container": "@language"},
            "rai": "http://mlcommons.org/croissant/RAI/",
            "sc": "https://schema.org/",
        }.items()
    )
)

#: Answers by the name that Croissant's vocabulary for responsible AI gives them.
_RAI = {
    "rai:dataCollection": "collection",
    "rai:dataBiases": "biases",
    "rai:personalSensitiveInformation": "sensitive_information",
    "rai:dataUseCases": "use_cases",
    "rai:dataSocialImpact": "social_impact",
    "rai:dataReleaseMaintenancePlan": "maintenance",
}


def croissant_json(facts: Facts, previews: Mapping[str, bytes]) -> str:
    """The text of ``croissant.json``, which is next to the folder of the store.

    `previews` are the bytes of the preview of each split that has one.
    """
    manifest, answers = facts.store.manifest, facts.answers
    document: dict[str, Any] = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": ["http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"],
        "name": facts.title,
        "description": facts.description or f"{facts.rows} images.",
        "version": facts.version,
        "keywords": [*dict.fromkeys((*facts.tasks, *answers.get("tags", ()), "tsds", "zarr"))],
    }
    optional = {
        "license": license_url(manifest.license or "") or manifest.license,
        "url": answers.get("url"),
        "citeAs": manifest.citation,
        "datePublished": facts.published,
        "creator": [_party(name) for name in facts.creators],
        "publisher": [_party(answers["publisher"])] if "publisher" in answers else None,
        **_responsible(facts),
    }
    document |= {name: value for name, value in optional.items() if value}
    document["distribution"] = [*_files(facts), *(_preview_file(name, data) for name, data in previews.items())]
    classes = [_classes(name, kind_and_names[1]) for name, kind_and_names in facts.classes.items()]
    document["recordSet"] = [_splits(facts), *classes, *(_preview(facts, name) for name in previews)]
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _party(name: str) -> dict[str, str]:
    """A person, or an organization."""
    family, given = person(name)
    return {"@type": "sc:Person", "name": f"{given} {family}"} if given else {"@type": "sc:Organization", "name": name}


def _responsible(facts: Facts) -> dict[str, Any]:
    """Responsible-AI properties, as NeurIPS and others require, from the answers and the conversion."""
    answers = facts.answers
    found: dict[str, Any] = {name: answers[answer] for name, answer in _RAI.items() if answer in answers}
    options = ", ".join(f"{name}: {value}" for name, value in options_of(facts.store).items())
    converted = [f"Converted to a Zarr store by tensorstore-ds with the options {options}."] if options else []
    found["rai:dataPreprocessingProtocol"] = [*filter(None, [answers.get("preprocessing")]), *converted]
    totals = {name: sum(facts.totals(name).values()) for name in facts.classes}
    counted = [f"{n} {COUNTED.get(facts.classes[name][0], 'values')} in {name}" for name, n in totals.items() if n]
    noted = [f"With a class are {', '.join(counted)}."] if counted and "annotation" in answers else []
    found["rai:dataAnnotationProtocol"] = [*filter(None, [answers.get("annotation")]), *noted]
    left_out = ", ".join(f"{reason} {count}" for reason, (count, _) in facts.faults.items())
    faults = [f"Left out by the conversion, by reason: {left_out}."] if left_out else []
    found["rai:dataLimitations"] = [*filter(None, [answers.get("limitations")]), *faults]
    return found


# --- files --------------------------------------------------------------------------------------------------------


def _files(facts: Facts) -> list[dict[str, Any]]:
    """The files of the store; if there are many, grouped by field."""
    store = facts.store
    with open_file(store.path, "zarr.json") as file:
        root = file.read()
    found = [_stored(facts, "zarr.json", len(root), hashlib.sha256(root).hexdigest())]
    found += [_stored(facts, name, file.size, file.sha256) for name, file in store.manifest.files.items()]
    lists: list[dict[str, Any]] = []
    for split in store:
        for number, shard in enumerate(store.manifest.splits[split].shards):
            path = f"{store.manifest.shard_path(split, number)}/"
            with open_file(store.path, f"{path}zarr.json") as file:
                lists.append(_stored(facts, f"{path}zarr.json", len(file.read()), shard.sha256))
            files = store.listing(split, number).items()
            lists += [_stored(facts, path + name, file.size, file.sha256) for name, file in files]
            if len(lists) > _MOST_FILES:
                return [*found, *_file_sets(facts)]
    return found + lists


def _stored(facts: Facts, path: str, size: int, sha256: str) -> dict[str, Any]:
    """A file of the store."""
    kinds = {"json": "application/json", "jsonl": "application/jsonlines"}
    return _file(f"{facts.name}/{path}", size, sha256, kinds.get(path.rpartition(".")[2], "application/octet-stream"))


def _file(path: str, size: int, sha256: str, kind: str, **more: str) -> dict[str, Any]:
    named = {"@type": "cr:FileObject", "@id": path, "name": path, **more, "contentUrl": path}
    return {**named, "contentSize": f"{size} B", "encodingFormat": kind, "sha256": sha256}


def _file_sets(facts: Facts) -> list[dict[str, Any]]:
    """File sets; their digests are in the `zarr.json` of each shard, whose digests are in that of the root."""
    fields = facts.store.manifest.fields
    told = "The zarr.json of each shard lists its files with size and SHA-256; the root's has the SHA-256 of these."
    lists = {"shards": ("The lists of files of the shards.", f"{facts.name}/*/*/zarr.json", "application/json")}
    sets = {f"files-of-{n}": (f"The arrays of the field {n}. {told}", f"{facts.name}/*/*/{n}/**", None) for n in fields}
    return [
        {
            "@type": "cr:FileSet",
            "@id": name,
            "name": name,
            "description": text,
            "includes": includes,
            "encodingFormat": kind or "application/octet-stream",
        }
        for name, (text, includes, kind) in {**lists, **sets}.items()
    ]


def _preview_file(split: str, data: bytes) -> dict[str, Any]:
    told = f"Some small samples of the split {split}, for viewers."
    sha256 = hashlib.sha256(data).hexdigest()
    return _file(f"preview/{split}.parquet", len(data), sha256, "application/x-parquet", description=told)


# --- records ------------------------------------------------------------------------------------------------------


def _splits(facts: Facts) -> dict[str, Any]:
    fields = [
        _field("splits/name", "sc:Text", "The name of the split."),
        _field("splits/samples", "sc:Integer", "Its samples."),
    ]
    data = [{"splits/name": name, "splits/samples": len(facts.store[name])} for name in facts.store]
    return _records("splits", "name", "cr:Split", fields, data)


def _classes(field: str, classes: tuple[str, ...]) -> dict[str, Any]:
    name = f"classes-{field}"
    fields = [
        _field(f"{name}/index", "sc:Integer", "The number that stands for the class."),
        _field(f"{name}/name", "sc:Text", "The name of the class."),
    ]
    data = [{f"{name}/index": i, f"{name}/name": each} for i, each in enumerate(classes)]
    return _records(name, "index", "sc:Enumeration", fields, data)


def _records(name: str, key: str, data_type: str, fields: list[dict[str, Any]], data: list[Any]) -> dict[str, Any]:
    named = {"@type": "cr:RecordSet", "@id": name, "name": name, "dataType": data_type}
    return {**named, "key": {"@id": f"{name}/{key}"}, "field": fields, "data": data}


def _preview(facts: Facts, split: str) -> dict[str, Any]:
    name, fields = f"preview-{split}", facts.store.manifest.fields
    found = [_column(name, split, "image", "sc:ImageObject", "The image, made small.", path="bytes")]
    if any(field.moves for field in fields.values()):
        found.append(
            _column(name, split, "drawn", "sc:ImageObject", "With what is annotated drawn on it.", path="bytes")
        )
    for each in of_kind(fields, LabelField):
        found.append(_column(name, split, each, "sc:Integer", f"The class: an index of classes-{each}."))
    for each in of_kind(fields, LabelsField):
        told = f"The classes that apply: indices of classes-{each}."
        found.append(_column(name, split, each, "sc:Integer", told, shape="-1"))
    for each, field in of_kind(fields, ObjectsField).items():
        if "boxes" in field.values:
            told = "Boxes of the objects: x, y, width and height in pixels of the small image."
            found.append(_column(name, split, each, "sc:Float", told, path="bbox", shape="-1,4"))
        if "labels" in field.values:
            told = f"Classes of the objects: indices of classes-{each}."
            found.append(_column(name, split, each, "sc:Integer", told, path="category", shape="-1"))
    for each in of_kind(fields, TextField):
        found.append(_column(name, split, each, "sc:Text", "Texts of the image, such as captions.", shape="-1"))
    if of_kind(fields, KeyField):
        found.append(_column(name, split, "key", "sc:Text", "What the sample is called in its source."))
    told = f"Some samples of the split {split}, with small images. The data themselves are in {facts.name}."
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": told, "field": found}


def _field(name: str, data_type: str, description: str) -> dict[str, Any]:
    return {"@type": "cr:Field", "@id": name, "name": name, "description": description, "dataType": data_type}


def _column(
    records: str, split: str, column: str, data_type: str, description: str, *, path: str = "", shape: str = ""
) -> dict[str, Any]:
    """A field of the preview's records for a column, or for a member of its values."""
    member = f"/{path}" if path and path != "bytes" else ""
    field = _field(f"{records}/{column}{member}", data_type, description)
    source: dict[str, Any] = {"fileObject": {"@id": f"preview/{split}.parquet"}, "extract": {"column": column}}
    if path:
        source["transform"] = {"jsonPath": path}
    return {**field, "source": source, **({"isArray": True, "arrayShape": shape} if shape else {})}
