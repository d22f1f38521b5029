"""COCO's JSON: boxes, keypoints, segmentations and captions of the images of a split: formats/sources/coco.md."""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, combinations, count, pairwise
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.coco.files import CAPTIONS, FILE_LIMIT, choose, find, is_coco, short_name, stem_of
from tensorstore_ds.annex.sources.coco.records import (
    Annotation,
    Category,
    CocoObject,
    Decoder,
    Id,
    Image,
    Owner,
    box_of,
    has_keypoints,
    holds_data,
    is_crowd,
    is_given,
    note_attributes,
    note_members,
    outline_of,
    read_caption,
    read_category,
    read_object,
    rotation_of,
)
from tensorstore_ds.annex.sources.json_files import JSON_ERRORS, JsonPieces
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, LabelField, LabelsField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.regular_files import (
    as_utf8,
    encoding_of,
    entries,
    is_dir,
    is_file,
    open_file,
    os_errors,
    read_file,
    status_of,
)
from tensorstore_ds.sources.annotations import ObjectReader, Row
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Objects, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.forms import FormError, kind, placed
from tensorstore_ds.sources.images import ImageIndex, not_listed
from tensorstore_ds.sources.ledger import Ledger
from tensorstore_ds.sources.names import absent_keypoints, check_listed, flip_pairs, order_classes
from tensorstore_ds.sources.paths import inside
from tensorstore_ds.sources.splits import split_word

#: Folders of images to try, next to the file's own; {} is the name of the split, in several forms.
_FOLDERS = ("", "images/", "{}/", "images/{}/", "{}/images/", "JPEGImages/")
_TRIED = 20  # images of a file to look for in each folder
_NAMED = 5  # classes in a note
_AT_ONCE = 1 << 12  # references created at a time

#: For each annotation its offset in the file, with the number of its image in the upper bits, and its size in bytes.
Table = tuple[NDArray[np.int64], NDArray[np.int32]]
_PLACE_BITS = 33
_PLACE = (1 << _PLACE_BITS) - 1


class _Ids:
    """Rows by id: 16 bytes each, unless an id is not a whole number."""

    def __init__(self) -> None:
        self._ids, self._rows = array("q"), array("q")
        self._others: dict[int, Id] = {}  # ids that are no whole numbers, by their rows
        self._first: dict[Id, int] = {}  # the first row of each of them
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def add(self, id: Id, row: int) -> None:
        """Append a row."""
        if (whole := _whole([id])) is not None:
            self._ids += whole
            self._rows.append(row)
        else:
            self._others[row] = id
            self._first.setdefault(id, row)

    def id(self, row: int) -> Id | None:
        """The id of a row, or None."""
        at = bisect_left(self._rows, row)
        return self._ids[at] if at < len(self._rows) and self._rows[at] == row else self._others.get(row)

    def repeated(self) -> set[int]:
        """The rows whose id is not unique."""
        ids, rows = self._in_order()
        twins = np.flatnonzero(ids[1:] == ids[:-1])
        again = {id for row, id in self._others.items() if self._first[id] != row}
        others = (row for row, id in self._others.items() if id in again)
        return {*rows[twins].tolist(), *rows[twins + 1].tolist(), *others}

    def rows(self, ids: Sequence[Id | None]) -> list[int]:
        """The first row of each id, or -1."""
        if (whole := _whole(ids)) is None:
            if len(ids) > 1:
                return [self.rows([id])[0] for id in ids]
            return [-1 if ids[0] is None else self._first.get(ids[0], -1)]
        known, rows = self._in_order()
        if not len(known):
            return [-1] * len(ids)
        at = np.minimum(np.searchsorted(known, whole), len(known) - 1)
        found: list[int] = np.where(known[at] == whole, rows[at], -1).tolist()
        return found

    def _in_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._sorted is None:
            ids = np.asarray(self._ids)
            order = np.argsort(ids, kind="stable")
            self._sorted = ids[order], np.asarray(self._rows)[order]
        return self._sorted


def _whole(ids: Sequence[Id | None]) -> array[int] | None:
    """Ids as 64-bit integers, even if written as 1.0; None if some are not."""
    numbers = [int(id) if isinstance(id, float) and id.is_integer() else id for id in ids]
    try:
        return array("q", numbers)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return None


@dataclass(slots=True)
class _Split:
    """Contents of one file.

    Attributes:
        captions: path of the file with the captions, which may be the same file.
        names: class names by id of the category, ordered by id.
        unnamed: for a category without names of keypoints, how many annotations have how many numbers.
        skeleton: pairs of names of keypoints.
        by_end: paths that were found by their last parts, and the paths as written.
        bad: problems by number of the image; an image that is listed twice has an empty list.
        references: of the sound images.
        values: the `OBJECT_VALUES` that some object has.
        around: number of boxes computed from polygons or keypoints.
        has_labels, has_several: whether annotations are classes of whole images, and whether some image has several.
    """

    json: str
    captions: str
    ledger: Ledger
    names: dict[Id, str] = field(default_factory=dict)
    keypoints: dict[Id, list[str]] = field(default_factory=dict)
    unnamed: dict[Id, Counter[int]] = field(default_factory=dict)
    skeleton: dict[tuple[str, str], None] = field(default_factory=dict)
    paths: PackedStrings = field(default_factory=PackedStrings)
    ids: _Ids = field(default_factory=_Ids)
    around: int = 0
    by_end: dict[str, str] = field(default_factory=dict)
    bad: dict[int, list[Problem]] = field(default_factory=dict)
    references: PackedStrings = field(default_factory=PackedStrings)
    values: set[str] = field(default_factory=lambda: {"boxes", "labels"})
    used: set[Id] = field(default_factory=set)
    has_objects: bool = False
    has_captions: bool = False
    has_labels: bool = False
    has_several: bool = False
    problems: list[Problem] = field(default_factory=list)
    left_out: list[Problem] = field(default_factory=list)


class CocoSource(Source):
    """A reference is an image's path, its height and width, and the byte range of each of its objects and captions.

    `read` parses these alone, so no process holds the annotations of all images.
    """

    name: ClassVar[str] = "coco"
    scanned: ClassVar[tuple[str, ...] | None] = (
        *("_jsons", "_labels", "_points", "_keypoints", "_values", "_classes", "_has_several"),
    )

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._root = path.parent if is_file(path) else path  # what the paths of JSON files are relative to
        above = is_file(path) and self._root.name == "annotations"
        self.images = options.images or (self._root.parent if above else self._root)
        self._jsons: dict[str, tuple[str, str]] = {}  # by split, those of the objects and of the captions
        self._labels: dict[str, dict[Id, int]] = {}  # label of each category, by file
        self._points: dict[str, dict[Id, tuple[int, ...]]] = {}  # the places of a category's keypoints
        self._keypoints = 0
        self._values: tuple[str, ...] = ()
        self._classes: tuple[str, ...] = ()  # of labels of whole images
        self._has_several = False  # whether images have several labels

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is a JSON file of COCO, or a folder that holds one."""
        return is_coco(path)

    def scan(self) -> Contents:
        """Read every file once: all images, and all annotations except segmentations and captions."""
        jsons = find(self.path)
        if not jsons:
            message = "expected JSON files of COCO in this folder or below, found none."
            raise SourceError(Problem(str(self.path), "empty-source", message))
        chosen, left_out = choose(jsons)
        finder = _Finder(self.images)
        splits = {split: self._read_file(split, *each, finder) for split, each in chosen.items()}
        _check_claims(splits)
        problems = [problem for each in splits.values() for problem in each.problems]
        left_out += [problem for each in splits.values() for problem in each.left_out]
        used = {name: each for name, each in splits.items() if len(each.references)}
        if not used:
            raise SourceError(problems or Problem(str(self.path), "empty-source", "no image is listed."))
        message = "not stored: it lists no image that can be read."
        left_out += [Problem(each.json, "empty-split", message) for name, each in splits.items() if name not in used]
        listed = _hashes(path for each in splits.values() for path in each.paths)
        folders = {path[: path.rfind("/") + 1] for each in splits.values() for path in each.paths}
        left_out += not_listed(self.images, folders, lambda path: _has(listed, hash(path)), "JSON")
        self._jsons = {name: (each.json, each.captions) for name, each in used.items()}
        fields: dict[str, Field] = {}
        notes = _notes_of_common(used)
        has_captions = any(each.has_captions for each in used.values())
        if labelled := [each for each in used.values() if each.has_labels]:
            _check_labels(used)
            self._classes = self._class_names(used)
            self._has_several = any(each.has_several for each in labelled)
            if self._has_several:
                fields["labels"] = LabelsField.of(self._classes)
            else:
                fields["label"] = LabelField(classes=self._classes)
        elif not has_captions or any(each.has_objects for each in used.values()):
            fields["objects"] = self._field(used)
            notes += _notes_of_classes(used)
            if around := sum(each.around for each in used.values()):
                notes.append(f"{around:,} objects have no bbox: their boxes are around their polygons or keypoints.")
            if self.options.keypoints is None:
                notes += _notes_of_keypoints(used)
        if has_captions:
            fields[CAPTIONS] = TextField()
        references = {name: each.references for name, each in used.items()}
        contents = Contents(fields, references, None, tuple(problems), tuple(left_out), tuple(notes))
        if len(chosen) == 1 and not any(split_word(short_name(json)) for json, _ in chosen.values()):
            contents = contents.by_folder(str(self.path))
            self._jsons = dict.fromkeys(contents.splits, *self._jsons.values())
        return contents

    def common_files(self) -> tuple[Path, ...]:
        return tuple(self._root / json for json in dict.fromkeys(chain.from_iterable(self._jsons.values())))

    def read(self, split: str, reference: Reference) -> Sample:
        image, size, places, captions = str(reference).split("\0")
        height, width = map(int, size.split("x"))
        annotated = (height, width) if height and width else None
        json, captions_json = self._jsons[split]
        left_out: tuple[Problem, ...] = ()
        objects = label = None
        arrays: dict[str, NDArray[Any]] = {}
        with placed(image):
            if self._classes:
                ids = [read_category(text, json) for text in self._read_at(json, places)]
                numbers = sorted({self._labels[json][id] for id in ids if id is not None})
                if self._has_several:
                    arrays["labels"] = LabelsField.of(self._classes).row_of(numbers or None)
                else:
                    label = numbers[0] if numbers else UNLABELLED
            elif self._values:
                rows = [read_object(text, json) for text in self._read_at(json, places)]
                objects = self._arrays(rows, json, image)
                annotated = _common_size(rows, annotated)
                if any(each.has_short for each in rows):
                    left_out = (Problem(json, "polygon-short", "not stored: polygons of fewer than 3 corners."),)
            texts = [read_caption(text, captions_json) for text in self._read_at(captions_json, captions)]
        return Sample(
            image,
            f"{self.images}/{image}",
            label,
            objects,
            arrays=arrays,
            texts={CAPTIONS: texts} if texts else {},
            annotated_size=annotated,
            annotation=json,
            left_out=left_out,
        )

    def _read_at(self, json: str, places: str) -> Iterator[bytes]:
        """Read the annotations at some byte ranges of a file, in UTF-8."""
        if not places:
            return
        with _in_utf8(self._root / json, json) as (file, _):
            for place in places.split(","):
                begin, end = map(int, place.split(":"))
                file.seek(begin)
                yield file.read(end - begin)

    def _class_names(self, splits: Mapping[str, _Split]) -> tuple[str, ...]:
        """The classes of all splits; sets the label of each category."""
        names = tuple(dict.fromkeys(name for each in splits.values() for name in each.names.values()))
        where, classes = str(self.path), self.options.classes
        order_classes(names, classes, where, self.options.class_map)
        classes = names if classes is None else classes  # in the order of the ids, as all who read COCO have them
        labels = {name: i for i, name in enumerate(classes)}
        for found in splits.values():
            self._labels[found.json] = {id: labels[text] for id, text in found.names.items()}
        return classes

    def _field(self, splits: Mapping[str, _Split]) -> ObjectsField:
        """The field of the objects of all splits; sets what `read` needs for it."""
        where, classes = str(self.path), self._class_names(splits)
        for each in splits.values():
            self._name_keypoints(each)
        points = tuple(dict.fromkeys(n for each in splits.values() for some in each.keypoints.values() for n in some))
        keypoints = Keypoints(points, flip_pairs(points))
        if points and self.options.keypoints is not None:
            keypoints = self.options.keypoints
            check_listed(points, keypoints.names, "keypoint", where)
        places = {name: i for i, name in enumerate(keypoints.names)}
        for each in splits.values():
            self._points[each.json] = {id: tuple(places[n] for n in some) for id, some in each.keypoints.items()}
        found = set[str]().union(*(each.values for each in splits.values()))
        self._values = tuple(value for value in OBJECT_VALUES if value in found)
        self._keypoints = len(keypoints.names)
        lines = dict.fromkeys((places[a], places[b]) for each in splits.values() for a, b in each.skeleton)
        if "keypoints" not in found:
            return ObjectsField.of(*self._values, classes=classes)
        return ObjectsField.of(
            *self._values,
            classes=classes,
            keypoints=keypoints.names,
            flip_pairs=keypoints.flip_pairs,
            skeleton=tuple(lines),
        )

    def _name_keypoints(self, split: _Split) -> None:
        """Name the keypoints of categories without names: from the options, or numbers from 1."""
        for id, counts in split.unnamed.items():
            count = counts.most_common(1)[0][0] // 3
            names = list(map(str, range(1, count + 1)))
            if self.options.keypoints is not None:
                names = list(self.options.keypoints.names)
                if len(names) != count:
                    message = f"expected {count} names, as objects of {split.names[id]} in {split.json} have, found"
                    raise OptionError(f"`keypoints`: {message} {len(names)}. Name as many.")
            split.keypoints[id] = names

    def _arrays(self, rows: Sequence[CocoObject], json: str, image: str) -> Objects:
        reader = ObjectReader(tuple(name for name in self._values if name in ("oriented_boxes", "iscrowd")))
        found: dict[str, Any] = {**reader.arrays(Row.of([each.object for each in rows]), image)}
        labels = self._labels[json]
        found["labels"] = np.array([labels[each.category] for each in rows], np.int64)
        found["area"] = np.array([each.area for each in rows], np.float64)
        found["polygons"] = [each.polygons for each in rows]
        found["rle"] = [each.runs for each in rows]
        if "keypoints" in self._values:
            points = absent_keypoints(len(rows), self._keypoints, image)
            visibility = np.zeros(points.shape[:2], np.uint8)
            for i, each in enumerate(rows):
                places = list(self._points[json].get(each.category, ()))
                if each.keypoints is None:
                    continue
                if each.keypoints.shape != (len(places), 3):
                    message = f"{each.where}: expected 3 numbers for each of {len(places)} keypoints, found others."
                    raise SourceError(Problem(image, "keypoint-count", message))
                seen = each.keypoints[:, 2]
                points[i, places] = np.where(seen[:, None] > 0, each.keypoints[:, :2], np.nan)
                visibility[i, places] = seen
            found |= {"keypoints": points, "visibility": visibility}
        return {name: found[name] for name in self._values}

    # --- one file ---

    def _read_file(self, split: str, json: str, captions: str, finder: _Finder) -> _Split:
        """Read a file, and the captions of its images if they are in a different file."""
        with self._opened(json) as opened:
            found = _Split(json, captions, self.ledger)
            _note_categories(opened, found)
            written, sizes, found.ids = _images(opened, found)
            prefix, is_foreign = self._find_images(split, json, written[:_TRIED])
            _note_images(written, prefix, found, finder, is_foreign=is_foreign)
            del written
            objects, texts = _places(opened, found)
            found.ids = _Ids()
        if captions != json:
            if len(texts[1]):
                self.ledger.unread(f"captions, which are read from {captions}", json)
            texts = self._read_captions(captions, prefix, found)
        found.has_objects, found.has_captions = len(objects[1]) > 0 and not found.has_labels, len(texts[1]) > 0
        if found.has_labels:
            found.has_several = len(np.unique(objects[0] >> _PLACE_BITS)) < len(objects[0])
        places = (_by_image(table, len(found.paths)) for table in (objects, texts))
        found.references.extend(
            f"{path}\0{height}x{width}\0{of_objects}\0{of_captions}"
            for i, path, height, width, of_objects, of_captions in zip(
                count(), found.paths, sizes[::2], sizes[1::2], *places, strict=False
            )
            if i not in found.bad
        )
        found.problems += [problem for i in sorted(found.bad) for problem in found.bad[i]]
        return found

    @contextmanager
    def _opened(self, json: str) -> Iterator[JsonPieces]:
        """Open a file and find its members; raises `SourceError` if it is not COCO."""
        with os_errors(json), _in_utf8(self._root / json, json) as (file, start):
            try:
                pieces = JsonPieces(file, start)
                _ = pieces.members
            except FormError as error:
                raise SourceError(Problem(json, "annotation", f"{error}."), "Write the file again.") from error
            try:
                note_members(pieces, self.ledger, json)
            except FormError as error:
                is_none = str(error).startswith("expected JSON")
                message = f"{error}." if is_none else f"expected COCO's JSON, found another one: {error}."
                raise SourceError(Problem(json, "annotation", message), "Write the file again.") from error
            yield pieces

    def _read_captions(self, json: str, prefix: str, found: _Split) -> Table:
        """Read captions from a file of the same images, whose ids may differ; returns a table like `_places`."""
        rows, written = _Ids(), {name: path for path, name in found.by_end.items()}
        for i, path in enumerate(found.paths):
            if path:
                rows.add(hash(path), i)
        with self._opened(json) as opened:
            own = _Split(json, json, self.ledger, paths=found.paths, problems=found.problems, left_out=found.left_out)
            listed, _, ids = _images(opened, own)
            repeated, twins = ids.repeated(), dict[Id, set[int | str]]()
            for start in range(0, len(listed), _AT_ONCE):
                names = listed[start : start + _AT_ONCE]
                paths = [written.get(path, path) for name in names for path in (inside(name, prefix) or "", name)]
                hits = zip(paths, rows.rows(list(map(hash, paths))), strict=True)
                for i, pair in enumerate(zip(hits, hits, strict=True), start):
                    row = next((row for path, row in pair if row >= 0 and found.paths[row] == path), -1)
                    if (id := ids.id(i)) is None:
                        continue
                    if row >= 0:
                        own.ids.add(id, row)
                    if i in repeated:
                        twins.setdefault(id, set()).add(row if row >= 0 else listed[i])
            own.bad = found.bad
            for id, rows_of_id in twins.items():
                for row in (each for each in rows_of_id if isinstance(each, int) and len(rows_of_id) > 1):
                    message = f"expected each id of an image once in {json}, found {id} again."
                    own.bad.setdefault(row, []).append(Problem(found.paths[row], "duplicate-key", message))
            return _places(opened, own)[1]

    def _find_images(self, split: str, json: str, names: Sequence[str]) -> tuple[str, bool]:
        """The folder, with a trailing ``/``, that contains most of these images; and whether no folder contains any."""
        own = "" if self.options.images is not None else json[: json.rfind("/") + 1]
        words = dict.fromkeys((stem_of(json), short_name(json), split, PurePosixPath(own).name))
        above = [f"{folder}/" for folder in map(str, PurePosixPath(own).parents) if folder != "."] if own else []
        folders = dict.fromkeys(
            [
                own,
                *(base + folder.format(word) for base in ("", *above) for folder in _FOLDERS for word in words if word),
            ]
        )

        def hits(folder: str) -> int:
            paths = (inside(name, folder) for name in names)
            return sum(path is not None and is_file(self.images / path) for path in paths)

        with os_errors(str(self.images)):
            best = max(folders, key=hits)
            return best, not hits(best)


@contextmanager
def _in_utf8(path: Path, where: str) -> Iterator[tuple[BinaryIO, int]]:
    """A file in UTF-8, and the length of its byte order mark. One in UTF-16 or UTF-32 is in memory as a whole."""
    with open_file(path, where, limit=FILE_LIMIT) as file:
        if (encoding := encoding_of(file.read(4))).startswith("utf-8"):
            yield file, 3 if encoding == "utf-8-sig" else 0
        else:
            status = status_of(path)
            yield io.BytesIO(_decoded(path, where, status.st_size, status.st_mtime_ns)), 0


@lru_cache(1)
def _decoded(path: Path, where: str, *identity: int) -> bytes:
    return as_utf8(read_file(path, where, FILE_LIMIT), where, "json")


class _Finder:
    """Finds files in folders, each listed once, and images by the last parts of their paths."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._folders: dict[str, array[int]] = {}  # hashes of names, in order
        self._index: ImageIndex | None = None

    def has(self, path: str) -> bool:
        """Whether a file exists at `path` below the root."""
        folder, _, name = path.rpartition("/")
        if folder not in self._folders:
            with os_errors(folder or str(self._root)):
                place = self._root / folder
                self._folders[folder] = _hashes(each for each, _ in entries(place)) if is_dir(place) else array("q")
        return _has(self._folders[folder], hash(name))

    def by_end(self, path: str, where: str) -> str:
        """As `ImageIndex.find_by_end`."""
        if self._index is None:
            self._index = ImageIndex(walk_files(self._root, IMAGE_SUFFIXES))
        return self._index.find_by_end(path, where)


def _hashes(names: Iterable[str]) -> array[int]:
    """Sorted hashes of names: 8 bytes each, where a set of names takes 130."""
    hashes = array("q", map(hash, names))
    np.asarray(hashes).sort()
    return hashes


def _has(hashes: array[int], hashed: int) -> bool:
    at = bisect_left(hashes, hashed)
    return at < len(hashes) and hashes[at] == hashed


# --- images -------------------------------------------------------------------------------------------------------


def _images(file: JsonPieces, found: _Split) -> tuple[PackedStrings, array[int], _Ids]:
    """Paths of the images as written, "" for an invalid entry; heights and widths; ids. Problems are noted."""
    written, sizes, ids = PackedStrings(), array("i"), _Ids()
    decode = Decoder("images", Image, found.ledger)
    for first, piece, listed in decode.pieces(file):
        names = []
        for i, raw, each in zip(count(first), piece.values, listed, strict=False):
            where = f"{found.json}: image {i}"
            id: Id | None
            try:
                image = decode.checked(each, raw, where)
                id, name, size = image.id, image.path(), image.size()
            except FormError as error:
                id, name, size = _owner(raw).id, "", (0, 0)
                found.bad[i - 1] = [Problem(where, "annotation", f"{error}. Correct it, or remove it.")]
            names.append(name)
            sizes.extend(size)
            if id is not None:
                ids.add(id, i - 1)
        written.extend(names)
    return written, sizes, ids


def _owner(raw: msgspec.Raw) -> Owner:
    """The ids in an invalid entry."""
    try:
        return msgspec.json.decode(raw, type=Owner)
    except JSON_ERRORS:
        return Owner()


def _note_images(written: PackedStrings, prefix: str, found: _Split, finder: _Finder, *, is_foreign: bool) -> None:
    """Resolve the path of each image; problems of entries and missing files are noted.

    A path that leads out of the source is from a different machine. So are all paths if `is_foreign`. These images are
    found by the last parts of their paths.
    """
    wrong = set(found.bad)  # entries, and paths that lead to no image
    hashes = _Ids()
    for start in range(0, len(written), _AT_ONCE):
        paths = []
        for i, name in enumerate(written[start : start + _AT_ONCE], start):
            path = name if i in wrong else _path_of(i, name, prefix, found, finder, is_foreign)
            if path is None:
                wrong.add(i)
            paths.append(name if path is None else path)
            hashes.add(hash(paths[-1]), i)
        found.paths.extend(paths)
    _note_repeated(sorted(found.ids.repeated() | hashes.repeated()), wrong, found)


def _path_of(row: int, name: str, prefix: str, found: _Split, finder: _Finder, is_foreign: bool) -> str | None:
    """Path of an image, or None if the source does not contain it. Problems are noted."""
    where = f"{found.json}: image {row + 1}"
    path, problem = inside(name, prefix), None
    if path is None or (is_foreign and not finder.has(path)):
        try:
            by_end = finder.by_end(name, where)
        except SourceError as error:
            found.bad[row] = [error.problems[0]]
            return None
        if by_end:
            path = by_end
            found.by_end[path] = name
    if path is None:
        message = f"expected the path of an image inside the source, found {name[:200]!r}, and none of its name."
        problem = Problem(where, "unsafe-path", message)
    elif (problem := encoding_problem(path)) is None and not finder.has(path):
        message = f"expected this image, which {found.json} lists, found none."
        problem = Problem(path, "no-image", f"{message} Add it, or name the folder with `images`.")
    if problem is not None:
        found.bad[row] = [problem]
    return path


def _note_repeated(rows: Sequence[int], wrong: Set[int], found: _Split) -> None:
    """Note images that are listed twice or whose id is not unique. Images in `wrong` have no path."""
    by_path: dict[str, int] = {}
    by_id: dict[Id | None, int] = {}
    for i in rows:
        path, id = found.paths[i], found.ids.id(i)
        if i not in wrong:
            others = {by_path.get(path, i), by_id.get(id, i)} - {i}
            if others and all((found.paths[j], found.ids.id(j)) == (path, id) for j in others):
                found.bad[i] = []  # which changes nothing
                message = f"not stored twice: {found.json} lists it again."
                found.left_out.append(Problem(path, "duplicate-object", message))
                continue
            message = f"expected each image, and each id, once in {found.json}, found {path} or {id} again."
            for j in others:  # both are bad: annotations may be those of either
                problem = Problem(path, "duplicate-key", message)
                other = found.paths[j]
                found.bad[i] = [problem]
                found.bad.setdefault(j, [replace(problem, where=other)] if other != path else [])
            by_path.setdefault(path, i)
        by_id.setdefault(id, i)


def _check_claims(splits: Mapping[str, _Split]) -> None:
    """Drop annotated images found by the end of their paths that another file lists by another path; note problems."""
    for split in splits.values():
        annotated = split.by_end and (split.has_objects or split.has_captions)
        others = [each for each in splits.values() if annotated and each is not split]
        paths = {path: each for each in others for path in each.paths if path in split.by_end}
        wrong = {
            path: other
            for path, other in paths.items()
            if other.by_end.get(path) != split.by_end[path] or inside(split.by_end[path]) is not None
        }
        if wrong:
            message = "expected this image, which {} lists, found only {}, which {} lists. Add it, or correct its path."
            split.problems += [
                Problem(split.by_end[path], "no-image", message.format(split.json, path, other.json))
                for path, other in wrong.items()
            ]
            split.references = PackedStrings(each for each in split.references if each.partition("\0")[0] not in wrong)


# --- categories and annotations -----------------------------------------------------------------------------------


def _note_categories(file: JsonPieces, found: _Split) -> None:
    decode = Decoder("categories", Category, found.ledger)
    with placed(found.json, "Correct them.", prefix="expected categories with id and name: "):
        given = [
            decode.checked(each, raw, f"{found.json}: category {i}")
            for first, piece, listed in decode.pieces(file)
            for i, raw, each in zip(count(first), piece.values, listed, strict=False)
        ]
    for category in sorted(given, key=lambda each: (isinstance(each.id, str), each.id)):
        if category.id in found.names:
            message = f"expected categories with ids that differ, found {category.id} twice. Correct one."
            raise SourceError(Problem(found.json, "annotation", message))
        found.names[category.id] = category.name
        points = category.keypoints
        if not points:
            continue
        if len(set(points)) < len(points):
            message = f"expected keypoints with names that differ in {category.name}, found one twice. Rename it."
            raise SourceError(Problem(found.json, "annotation", message))
        found.keypoints[category.id] = points
        for pair in category.skeleton or ():  # counted from 1
            ends = pair if isinstance(pair, list) and len(pair) == 2 else ()
            if ends and all(isinstance(end, int) and 0 < end <= len(points) for end in ends):
                found.skeleton[points[ends[0] - 1], points[ends[1] - 1]] = None
            else:
                found.ledger.unread('"skeleton"', f"{found.json}: category {category.name}", "categories")


def _places(file: JsonPieces, found: _Split) -> tuple[Table, Table]:
    """Positions of the objects and captions in a file; notes which values they have."""
    rows, bare, texts = ((array("q"), array("i")) for _ in range(3))
    bare_numbers = array("q")  # numbers of the annotations in `bare`, which have no box
    decode = Decoder("annotations", Annotation, found.ledger)
    others = 0
    missing: dict[Id, list[int]] = {}  # number of the first annotation, and how many more have this id
    for first, piece, listed in decode.pieces(file):
        owners = found.ids.rows([None if isinstance(each, FormError) else each.image_id for each in listed])
        lists = piece.values, listed, owners, piece.begins()
        for i, raw, entry, owner, place in zip(count(first), *lists, strict=False):
            where = f"{found.json}: annotation {i}"
            try:
                each = decode.checked(entry, raw, where)
                box, is_caption = _read_some(each, where, found)
            except FormError as error:
                _note_bad(_owner(raw).image_id, where, "annotation", f"{error}.", found)
                continue
            if not box and each.category_id is None and not is_caption:
                others += 1
            elif owner < 0:
                missing.setdefault(each.image_id, [i, -1])[1] += 1
            elif is_caption:
                texts[0].append((owner << _PLACE_BITS) + place)
                texts[1].append(len(memoryview(raw)))
            elif each.category_id not in found.names:
                message = f"expected the id of a category, found {kind(each.category_id)}."
                _note_bad(each.image_id, where, "unknown-class", message, found)
            elif not box:
                bare[0].append((owner << _PLACE_BITS) + place)
                bare[1].append(len(memoryview(raw)))
                bare_numbers.append(i)
                found.used.add(each.category_id)
            else:
                rows[0].append((owner << _PLACE_BITS) + place)
                rows[1].append(len(memoryview(raw)))
                found.used.add(each.category_id)
                if each.category_id not in found.keypoints and has_keypoints(each):
                    numbers = bytes(memoryview(each.keypoints)).count(b",") + 1
                    found.unnamed.setdefault(each.category_id, Counter())[numbers] += 1
    if bare_numbers and not rows[0]:  # as iNaturalist and camera traps have them
        found.has_labels, rows = True, bare
    else:
        for key, i in zip(bare[0], bare_numbers, strict=True):
            path = found.paths[owner := key >> _PLACE_BITS]
            message = f"{found.json}: annotation {i}: expected a box, found none. Add a bbox."
            found.bad.setdefault(owner, []).append(Problem(path, "annotation", message))
    if others:
        message = f"not stored: {others:,} annotations without a box or a caption."
        found.left_out.append(Problem(found.json, "not-listed", message))
    for id, (first, further) in missing.items():
        more = f" and {further:,} more annotations have" if further else " has"
        message = f"expected an image with this id, which annotation {first}{more}, found none."
        where = f"{found.json}: image_id {id!r}"
        found.problems.append(Problem(where, "no-image", f"{message} Add the image, or remove them."))
    of_objects, of_captions = ((np.asarray(keys), np.asarray(sizes)) for keys, sizes in (rows, texts))
    return of_objects, of_captions


def _read_some(each: Annotation, where: str, found: _Split) -> tuple[bool, bool]:
    """Whether an annotation has a box, and whether it is a caption; notes its values; raises `FormError`."""
    has_box, has_caption = box_of(each) is not None, is_given(each.caption)
    if has_box:
        found.around += not each.bbox
        if is_crowd(each):
            found.values.add("iscrowd")
        if has_keypoints(each):
            found.values.update(("keypoints", "visibility"))
        if outline := outline_of(each):
            found.values.update((outline, "area"))
        elif rotation_of(each):
            found.values.add("oriented_boxes")
        if holds_data(each.caption):
            found.ledger.unread('"caption"', where, "annotations")
    note_attributes(each, found.ledger, where)
    return has_box, has_caption and not has_box


def _note_bad(image: Id | None, where: str, reason: str, message: str, found: _Split) -> None:
    """Note an unreadable annotation. Its image becomes bad, so that no object becomes background."""
    (owner,) = found.ids.rows([image])
    if owner < 0:
        found.problems.append(Problem(where, reason, f"{message} Correct it, or remove it."))
    else:
        found.bad.setdefault(owner, []).append(Problem(found.paths[owner], reason, f"{where}: {message}"))


def _by_image(table: Table, images: int) -> Iterator[str]:
    """Byte ranges of each image's annotations, as text."""
    keys, sizes = table
    order = np.argsort(keys)
    for first in range(0, images, _AT_ONCE):
        owners = np.arange(first, min(first + _AT_ONCE, images) + 1)
        edges = np.searchsorted(keys, owners << _PLACE_BITS, sorter=order)
        some = order[edges[0] : edges[-1]]
        begins = keys[some] & _PLACE
        places = [f"{a}:{b}" for a, b in zip(begins.tolist(), (begins + sizes[some]).tolist(), strict=True)]
        yield from (",".join(places[a:b]) for a, b in pairwise((edges - edges[0]).tolist()))


def _common_size(rows: Iterable[CocoObject], size: tuple[int, int] | None) -> tuple[int, int] | None:
    """(height, width) that an image, if it has a `size`, and the runs of its objects say; raises `FormError`."""
    for each in rows:
        size = size or each.size
        if each.size is not None and each.size != size:
            message = f"{each.where}: expected runs of an image of {size} (height x width), found {each.size}"
            raise FormError(message, "size-mismatch")
    return size


def _check_labels(splits: Mapping[str, _Split]) -> None:
    """Raise if some files have classes of whole images, and others have objects."""
    boxed = next((each.json for each in splits.values() if each.has_objects), None)
    labelled = next(each.json for each in splits.values() if each.has_labels)
    if boxed is not None:
        message = f"expected boxes, as {boxed} has, found categories of whole images."
        raise SourceError(Problem(labelled, "annotation", message), "Convert each file alone.")


# --- notes --------------------------------------------------------------------------------------------------------


def _notes_of_common(splits: Mapping[str, _Split]) -> list[str]:
    """A note for each two splits that share images."""
    notes = []
    hashes = {name: _hashes(split.paths) for name, split in splits.items()}
    for one, other in combinations(splits, 2):
        if len(both := np.intersect1d(hashes[one], hashes[other])):
            common = {path for path in splits[one].paths if _has(array("q", both.tolist()), hash(path))}
            notes.append(f"the splits {one} and {other} share images: {len(common):,}, such as {min(common)}.")
    return notes


def _notes_of_classes(splits: Mapping[str, _Split]) -> list[str]:
    """A note about categories without objects."""
    used = {each.names[id] for each in splits.values() for id in each.used}
    unused = [n for n in dict.fromkeys(n for each in splits.values() for n in each.names.values()) if n not in used]
    more = ", ..." if len(unused) > _NAMED else ""
    return [f"classes without an object: {len(unused):,} ({', '.join(unused[:_NAMED])}{more})."] if unused else []


def _notes_of_keypoints(splits: Mapping[str, _Split]) -> list[str]:
    """A note for each category whose keypoints are named by number."""
    numbered = {(each.names[id], len(each.keypoints[id])) for each in splits.values() for id in each.unnamed}
    what = "have no names in the JSON file and are numbered from 1. To name them, use `keypoints`."
    return [f"the {count} keypoints of {name} {what}" for name, count in sorted(numbered)]
