"""Read ``data.yaml`` of a YOLO data set, or the lists of names that other programs write instead."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import TEXT_LIMIT, is_file, read_file, read_head
from tensorstore_ds.sources.files import encoding_problem, glance
from tensorstore_ds.sources.names import KEYPOINTS_LIMIT, flip_pairs
from tensorstore_ds.sources.xml import shown

SPLITS = ("train", "val", "test")
CLASSES_LIMIT = 1 << 16
_YAML_LIMIT = 256 << 10  # bytes; the parser takes a second for so many
_LISTS_OF_NAMES = (
    "classes.txt",
    "labels/classes.txt",
    "obj.names",
    "data/obj.names",
    "data.names",
    "predefined_classes.txt",
    "_darknet.labels",
    *(f"{split}/_darknet.labels" for split in ("train", "valid", "test")),  # of Roboflow
)
#: Splits, and their keys in Darknet's ``obj.data``.
_DARKNET = {"train": "train", "val": "valid", "test": "test"}
#: Members of ``data.yaml`` and of ``obj.data`` that tell nothing of an image, or are read.
_KNOWN = frozenset(
    {*SPLITS, "path", "nc", "names", "task", "kpt_shape", "kpt_names", "flip_idx", "channels", "download", "roboflow"}
    | {"author", "date", "description", "docs", "info", "license", "stride", "url", "version", "yaml_file"}
)
_KNOWN_DARKNET = frozenset({*_DARKNET.values(), "names", "classes", "backup", "eval", "results"})
_CORRECT = "Correct the file."


@dataclass(frozen=True, slots=True)
class Config:
    """Properties of a data set besides images and labels."""

    file: str = ""  #: that says so, relative to the source; none where there is none
    names: Mapping[int, str] | None = None  #: of the classes; None where they are numbers
    path: str = ""  #: the folder that the paths of splits begin at, as written
    splits: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: folders or lists of each, as written
    keypoints: Keypoints | None = None
    dimensions: int = 0  #: of each keypoint: 2 for x y, 3 for x y and visibility
    task: str = ""  #: as written, such as ``obb``
    names_file: str = ""  #: the list of names that was read, relative to the source
    notes: tuple[str, ...] = ()  #: what the user should know of it
    unread: tuple[str, ...] = ()  #: members that are not read

    @property
    def folder(self) -> str:
        """Folder of the file, with a trailing ``/``."""
        return self.file[: self.file.rfind("/") + 1]


def is_config(path: Path) -> bool:
    """Whether a file looks like a ``data.yaml``: it names a split, and the classes or their number."""
    head = read_head(path, _YAML_LIMIT) if path.suffix.lower() in (".yaml", ".yml") else b""
    return bool(re.search(rb"^(train|val)\s*:", head, re.M) and re.search(rb"^(names|nc)\s*:", head, re.M))


def find_config(root: Path) -> str | None:
    """The ``data.yaml`` of a folder, whatever its name, as a relative path; the topmost one."""
    files = [file for file in glance(root) if file.lower().endswith((".yaml", ".yml")) and is_config(root / file)]
    depth = min((file.count("/") for file in files), default=0)
    highest = [file for file in files if file.count("/") == depth]
    named = [file for file in highest if re.search(r"(^|/)(data|dataset)\.ya?ml$", file)]
    best = named if len(named) == 1 else highest
    if len(best) > 1:
        message = f"expected one file such as data.yaml, found {', '.join(sorted(best)[:3])}."
        raise SourceError(Problem(str(root), "several-datasets", message), "Convert one of these files.")
    return best[0] if best else None


def read_config(root: Path, where: str | None) -> Config:
    """Read the file `where`, or without it a list of names."""
    if where is None:
        listed, names = _listed_names(root)
        return _darknet(root) or Config(listed, names, names_file=listed)
    data = _load(root / where, where)
    names, listed = _names(data.get("names"), where), ""
    count = _whole(data["nc"], f"{where}: nc") if data.get("nc") else 0
    differs = count and names is not None and count != len(names)
    notes = (f"{where}: nc is {count}, but names has {len(names or ())}. The names are read.",) if differs else ()
    if names is None:
        listed, names = _listed_names(root)
        names = names or ({i: str(i) for i in range(count)} if count else None)
    keypoints, dimensions = _keypoints(data, where)
    splits = {name: _paths(data.get(name), f"{where}: {name}") for name in SPLITS}
    path = data.get("path") or ""
    if not isinstance(path, str):
        raise _bad(f"{where}: path", "expected a folder", path)
    named = {name: paths for name, paths in splits.items() if paths}
    task = data.get("task")
    task = task.strip().lower() if isinstance(task, str) else ""
    unread = tuple(name for name, value in data.items() if value and name not in _KNOWN)
    return Config(where, names, path, named, keypoints, dimensions, task, listed, notes, unread)


class _Loader(yaml.BaseLoader):  # type: ignore[misc]
    """Reads texts, lists and mappings. YAML's own loaders take the last of two equal keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        if twice := [key for key, count in counts.items() if count > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} twice", node.start_mark)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def _load(path: Path, where: str) -> Mapping[str, Any]:
    """Mapping in a YAML file. Values are texts, lists and mappings only: ``no`` is a text."""
    data = read_file(path, where, _YAML_LIMIT)
    try:
        # All that YAML can do beyond that is in other loaders: types, merged mappings, objects of Python.
        content = yaml.load(data.decode("utf-8-sig"), Loader=_Loader)  # noqa: S506
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, OverflowError, RecursionError) as error:
        text = " ".join(str(error).split())[:200]
        raise SourceError(Problem(where, "data-yaml", f"expected YAML in UTF-8, found: {text}."), _CORRECT) from error
    if not isinstance(content, dict):
        raise _bad(where, "expected names and values such as train: images/train", content)
    return content


def _bad(where: str, expected: str, found: object) -> SourceError:
    text = shown(found if isinstance(found, str) else None if found is None else type(found).__name__)
    return SourceError(Problem(where, "data-yaml", f"{expected}, found {text}."), _CORRECT)


def _whole(value: object, where: str, limit: int = CLASSES_LIMIT) -> int:
    if isinstance(value, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", value, re.A) and int(value) <= limit:
        return int(value)
    raise _bad(where, f"expected a whole number up to {limit}", value)


def _paths(value: object, where: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    paths = [each for each in values if each not in (None, "", "null", "~")]
    if not all(isinstance(path, str) for path in paths):
        raise _bad(where, "expected a folder, a list of images, or several of them", value)
    return tuple(map(str, paths))


def _names(value: object, where: str) -> dict[int, str] | None:
    """Class names by number, from a list or a mapping."""
    if not value or value in ("null", "~"):
        return None
    if isinstance(value, dict):
        items = {_whole(key, f"{where}: names"): name for key, name in value.items()}
    elif isinstance(value, list):
        items = dict(enumerate(value))
    else:
        raise _bad(f"{where}: names", "expected a list, or numbers with names", value)
    return _checked(items, f"{where}: names")


def _checked(items: Mapping[int, object], where: str) -> dict[int, str]:
    names: dict[int, str] = {}
    numbers: dict[str, int] = {}
    if len(items) > CLASSES_LIMIT:
        raise _bad(where, f"expected at most {CLASSES_LIMIT} classes", str(len(items)))
    for number in sorted(items):
        name = items[number]
        if not isinstance(name, str) or not name.strip() or encoding_problem(name):  # half of a pair, as an escape
            raise _bad(where, f"expected a name for class {number}", name)
        names[number] = name = name.strip()
        if numbers.setdefault(name, number) != number:
            message = f"expected each name once, found {shown(name)} for the classes {numbers[name]} and {number}."
            raise SourceError(Problem(where, "data-yaml", message), _CORRECT)
    return names


def _darknet(root: Path) -> Config | None:
    """Read the single ``obj.data`` of a folder: lists of images, and the list of names."""
    files = [file for file in glance(root) if file.lower().endswith(".data")]
    files = [file for file in files if {"train", "names"} <= _assigned(read_head(root / file, _YAML_LIMIT)).keys()]
    if len(files) != 1:
        return None
    (file,) = files
    values = _assigned(read_file(root / file, file, _YAML_LIMIT))
    splits = {name: [values[key]] for name, key in _DARKNET.items() if values.get(key)}
    config = Config(file, splits=splits, unread=tuple(key for key in values if key not in _KNOWN_DARKNET))
    listed = _listed_names(root, [*candidates(values["names"], config.folder), *_LISTS_OF_NAMES])
    return replace(config, names=listed[1], names_file=listed[0])


def _assigned(data: bytes) -> dict[str, str]:
    """Values of lines ``key = value``, by key."""
    lines = (line.partition("=") for line in data.decode("utf-8-sig", "surrogateescape").splitlines())
    return {key.strip(): value.strip() for key, equals, value in lines if equals}


def _listed_names(root: Path, files: Sequence[str] = _LISTS_OF_NAMES) -> tuple[str, dict[int, str] | None]:
    """``classes.txt`` or similar, and its names, one per line from class 0."""
    file = next((file for file in files if is_file(root / file)), "")
    if not file:
        return "", None
    try:
        lines = read_file(root / file, file, TEXT_LIMIT).decode("utf-8-sig").rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise SourceError(
            Problem(file, "data-yaml", "expected names in UTF-8, found other bytes."), _CORRECT
        ) from error
    return file, _checked(dict(enumerate(lines)), file) or None


def _keypoints(data: Mapping[str, Any], where: str) -> tuple[Keypoints | None, int]:
    """Keypoints from ``kpt_shape``, ``kpt_names`` and ``flip_idx``, and the numbers of each: 2 or 3."""
    shape = data.get("kpt_shape")
    if not shape:
        return None, 0
    if not isinstance(shape, list) or len(shape) != 2:
        raise _bad(f"{where}: kpt_shape", "expected two numbers, such as [17, 3]", shape)
    limit = min(CLASSES_LIMIT, KEYPOINTS_LIMIT)
    count, dimensions = (_whole(value, f"{where}: kpt_shape", limit) for value in shape)
    if not count or dimensions not in (2, 3):
        raise _bad(f"{where}: kpt_shape", "expected two numbers, such as [17, 3]", str(shape))
    names = tuple(map(str, range(count)))
    named = data.get("kpt_names")
    if isinstance(named, dict) and named:  # for each class
        named = next(iter(named.values()))
    if isinstance(named, list) and len(named) == count:
        names = tuple(_checked(dict(enumerate(named)), f"{where}: kpt_names").values())
    flip = data.get("flip_idx")
    if not flip:
        return Keypoints(names, flip_pairs(names)), dimensions
    partners = [_whole(value, f"{where}: flip_idx") for value in flip] if isinstance(flip, list) else []
    if sorted(partners) != list(range(count)) or any(partners[partner] != i for i, partner in enumerate(partners)):
        raise _bad(f"{where}: flip_idx", f"expected {count} numbers that name each other in pairs", str(flip))
    return Keypoints(names, tuple((i, partner) for i, partner in enumerate(partners) if i < partner)), dimensions


def candidates(path: str, folder: str) -> Iterator[str]:
    """Possible meanings of a path in a file of `folder`, relative to the root; ``""`` is the root."""
    parts = _normal(path)
    if folder:
        yield "/".join(_normal(f"{folder}{path}"))
    yield from ("/".join(parts[i:]) for i in range(max(len(parts), 1)))


def _normal(path: str) -> list[str]:
    """Folders of a path without ``.``, ``..``, a drive or a leading slash."""
    parts: list[str] = []
    for part in path.replace("\\", "/").split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", ".") and not (not parts and part.endswith(":")):
            parts.append(part)
    return parts
