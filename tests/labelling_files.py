"""Sources, written and scanned."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorstore_ds.format.kinds import ObjectsField
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Objects, Source, SourceOptions


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def scan(path: Path, format: str, **options: Any) -> tuple[Source, Contents]:
    """The source, which must be recognized as this format, and what a scan finds; as a worker process gets it."""
    source = open_source(path, options=SourceOptions(**options))
    assert source.name == format
    contents = source.contents()
    return pickle.loads(pickle.dumps(source)), contents  # noqa: S301  of this process


def keys(source: Source, contents: Contents) -> dict[str, list[str]]:
    return {name: [source.key(name, each) for each in references] for name, references in contents.splits.items()}


def reasons(problems: Any) -> list[tuple[str, str]]:
    return [(problem.where, problem.reason) for problem in problems]


def classes(contents: Contents) -> tuple[str, ...]:
    """Of the labels."""
    return contents.fields["label"].classes


def field(contents: Contents) -> ObjectsField:
    found = contents.fields["objects"]
    assert isinstance(found, ObjectsField)
    return found


def objects(source: Source, contents: Contents, split: str = "train", row: int = 0) -> Objects:
    found = source.read(split, contents.splits[split][row]).objects
    assert found is not None
    return found
