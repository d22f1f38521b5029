"""Lists in text or CSV files, a line for each image or for each object: formats/sources/list.md."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.regular_files import entries, is_dir, is_file, os_errors
from tensorstore_ds.sources.base import (
    IMAGE_SUFFIXES,
    Contents,
    Match,
    Objects,
    Reference,
    Sample,
    Source,
    SourceOptions,
    no_column,
)
from tensorstore_ds.sources.files import PackedStrings, glance, walk_files
from tensorstore_ds.sources.list.table import (
    LIST_SUFFIXES,
    Columns,
    RowError,
    Table,
    column_name,
    join_rows,
    names_images,
    open_table,
    read_columns,
    unpack,
)
from tensorstore_ds.sources.names import flip_pairs, number_classes, order_classes
from tensorstore_ds.sources.splits import SPLIT_NAMES, find_unions, notes_of_renamed, split_name, split_names

#: Names of lists that may stand beside the usual ones of splits: unions of them, which are left out.
_UNION_NAMES = frozenset({"all", "trainval"})
_NUMBER = re.compile(rf"{UNLABELLED}|[0-9]{{1,18}}")


class ListSource(Source):
    """A reference is a row as `Columns.pack` makes it, or several as `join_rows` does: the workers need no list."""

    name: ClassVar[str] = "list"
    scanned: ClassVar[tuple[str, ...] | None] = ("_columns", "_labels", "_has_objects")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.images = options.images or (path if is_dir(path) else path.parent)
        self._columns = Columns(1)
        self._notes: list[str] = []
        self._labels: dict[str, int] = {}  # the text in the list -> class index
        self._has_objects = False  # whether rows are objects, of which an image may have several

    @classmethod
    def detect(cls, path: Path) -> bool | Match:
        """Whether this is a list, or a folder with one at its top and no XML files."""
        if is_file(path):
            return Match.MAYBE if names_images(path) else Match.NO
        files = glance(path) if is_dir(path) else []
        listed = any(names_images(path / file) for file in files if "/" not in file)
        has_xml = any(file.lower().endswith(".xml") for file in files)
        return Match.MAYBE if listed and not has_xml else Match.NO

    def scan(self) -> Contents:
        """Read all lines; no image is opened or looked for."""
        divided = self.tables()
        tables = [table for table, _ in divided]
        self._columns = self._agreed_columns(tables)
        rows, problems = _Rows(), list[Problem]()
        for table, split in divided:
            self.ledger.use(table.where)
            self._read_table(table, split, rows, problems)

        keep = np.ones(len(rows.packed), np.bool_)
        left_out = [Problem(f"{tables[0].where}: {c}", "not-listed", "not read.") for c in self._columns.ignored]
        paths = {split: rows.hashes[rows.in_split(split)] for split in rows.splits} if len(tables) > 1 else {}
        for split in find_unions(paths):
            keep &= ~rows.in_split(split)
            left_out.append(Problem(split, "split-union", "not stored: it is the union of other lists."))
        firsts = rows.firsts(keep)
        repeated = np.flatnonzero(keep & (firsts != np.arange(len(firsts))))
        self._has_objects = bool(self._columns.numbers) and len(repeated) > 0
        for row, problem in rows.unusable(firsts, keep, repeated, self._columns.label is not None, self._has_objects):
            keep[row] = False
            problems.append(problem)
        if self._has_objects:
            self._notes.append("images have several rows: each row is an object with its label.")
        if not keep.any():
            nothing = Problem(str(self.path), "empty-source", "expected lines that name images, found none.")
            raise SourceError(problems or nothing)
        return self._contents(rows, keep, firsts, problems, left_out + self._not_listed(rows))

    def read(self, split: str, reference: Reference) -> Sample:
        path, rows = unpack(str(reference), len(self._columns.numbers))
        objects = self._objects(rows) if self._columns.numbers else None
        index = None
        if self._columns.label is not None and not self._has_objects:
            index = self._labels.get(rows[0][0], UNLABELLED)
        return Sample(path, f"{self.images}/{path}", index, objects)

    def column(self, name: str) -> Callable[[str, Reference], str]:
        """As of any source; reads the lists once more."""
        tables = [table for table, _ in self.tables()]
        places = [i for i, each in enumerate(tables[0].header) if column_name(each) == column_name(name)]
        if len(places) != 1:
            raise no_column(self, name, tables[0].header)
        numbers = {"": 0}
        values: dict[int, int] = {}  # by the hash of the path, a third of the path's memory
        for table in tables:
            for _, cells in table.rows():
                with suppress(RowError):  # which the scan has named
                    path = self._columns.pack(cells).partition("\0")[0]
                    values.setdefault(hash(path), numbers.setdefault(cells[places[0]], len(numbers)))
        texts = list(numbers)
        return lambda split, reference: texts[values.get(hash(self.key(split, reference)), 0)]

    def tables(self) -> list[tuple[Table, str]]:
        """The lists, each with the name of its split."""
        return [(open_table(file, file.name), split) for file, split in self._lists().items()]

    def _lists(self) -> dict[Path, str]:
        with os_errors(str(self.path)):
            files = [self.path]
            if is_dir(self.path):
                files = sorted(filter(names_images, (self.path / name for name, _ in entries(self.path))))
        if not files or files[0].suffix.lower() not in LIST_SUFFIXES:
            message = "expected a list (.txt, .csv or .tsv) whose lines name images, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message))
        stems = [file.stem for file in files]
        if len(files) == 1:
            return {files[0]: split_name(stems[0]) if stems[0].lower() in SPLIT_NAMES else "train"}
        if len(set(stems)) == len(stems) and all(stem.lower() in SPLIT_NAMES | _UNION_NAMES for stem in stems):
            return dict(zip(files, split_names(stems).values(), strict=True))
        message = f"expected one list, or lists named train, val and test, found {', '.join(f.name for f in files)}."
        raise SourceError(Problem(str(self.path), "ambiguous-format", message), "Name one of them, or rename them.")

    def _agreed_columns(self, tables: list[Table]) -> Columns:
        first, *others = [read_columns(table, self.options.keypoints) for table in tables]
        for table, columns in zip(tables[1:], others, strict=True):
            if columns != first:
                message = f"expected the same columns as in {tables[0].where}, found others."
                raise SourceError(Problem(f"{table.where}:1", "list-line", message), "Give all lists the same columns.")
        return first

    def _read_table(self, table: Table, split: str, rows: _Rows, problems: list[Problem]) -> None:
        place = self._columns.split
        names: dict[str, str] = {}  # the text in the list -> the split's name
        for line, cells in table.rows():
            try:
                packed = self._columns.pack(cells)
            except RowError as error:
                problems.append(Problem(f"{table.where}:{line}", error.reason, str(error)))
                continue
            if place is not None:
                if cells[place] not in names:
                    names = split_names([*names, cells[place]])
                split = names[cells[place]]
            rows.add(packed, split, table.where, line)
        self._notes += notes_of_renamed(names)

    def _not_listed(self, rows: _Rows) -> list[Problem]:
        """The images of the folder that no line names; not looked for where the source is a file."""
        if not is_dir(self.path):
            return []
        images = list(walk_files(self.images, IMAGE_SUFFIXES))
        unnamed = np.flatnonzero(~np.isin([hash(path) for path in images], rows.hashes))
        return [Problem(images[int(i)], "not-listed", "no line of the list names this image.") for i in unnamed]

    def _contents(
        self,
        rows: _Rows,
        keep: NDArray[np.bool_],
        firsts: NDArray[np.int64],
        problems: list[Problem],
        left: list[Problem],
    ) -> Contents:
        fields: dict[str, Field] = {}
        names: tuple[str, ...] = ()
        if self._columns.label is not None:
            names = self._class_names([text for text in rows.labels if text])
            if not self._has_objects:
                fields["label"] = LabelField(classes=names)
        if self._columns.numbers:
            fields["objects"] = self._objects_field(names if self._has_objects else ())
        if self._has_objects:
            joined = {split: rows.joined(split, keep, firsts) for split in rows.splits}
            splits, labels = {split: packed for split, packed in joined.items() if packed}, None
        else:
            # from the order of occurrence to the class index
            classes = np.array([self._labels.get(text, UNLABELLED) for text in rows.labels], np.int64)
            selected = {split: rows.of_split(split, keep) for split in rows.splits}
            splits = {split: packed for split, (packed, _) in selected.items() if packed}
            labels = {split: classes[selected[split][1]] for split in splits} if "label" in fields else None
        return Contents(fields, splits, labels, tuple(problems), tuple(left), tuple(self._notes))

    def _class_names(self, texts: list[str]) -> tuple[str, ...]:
        """The class names, and `_labels`: numbers are class indices, unless the class list has them as names."""
        wanted, where = self.options.classes, str(self.path)
        if not texts and wanted is None:
            message = "expected a label in some line, found none."
            advice = "Fill the column of labels, remove it, or name the classes with `classes`."
            raise SourceError(Problem(where, "unknown-class", message), advice)
        if all(map(_NUMBER.fullmatch, texts)) and not set(texts) <= set(wanted or ()):
            self._labels = {text: int(text) for text in texts}
            return number_classes(list(self._labels.values()), wanted, where)
        classes = order_classes(texts, wanted, where, self.options.class_map)
        self._labels = {name: i for i, name in enumerate(classes)}
        return classes

    def _objects_field(self, classes: tuple[str, ...]) -> Field:
        names = tuple(name for name, _, _ in self._columns.keypoints)
        values = ["boxes"] * bool(self._columns.box) + ["labels"] * bool(classes) + ["keypoints"] * bool(names)
        wanted = self.options.keypoints
        pairs = wanted.flip_pairs if wanted is not None else flip_pairs(names)
        return ObjectsField.of(*values, classes=classes, keypoints=names, flip_pairs=pairs if names else ())

    def _objects(self, rows: list[list[str]]) -> Objects:
        """The objects of rows: label, and cells of box and keypoints; there is none where all these are empty."""
        rows = [row for row in rows if any(row[1:])]
        n, k = len(self._columns.box), len(self._columns.keypoints)
        numbers = [[float(text or "nan") for text in cells] for _, *cells in rows]
        values = np.array(numbers, np.float64).reshape(len(rows), n + 2 * k)
        objects: dict[str, Any] = {"boxes": values[:, :n]} if n else {}
        if k:
            objects["keypoints"] = values[:, n:].reshape(len(values), k, 2)
        if self._has_objects and self._columns.label is not None:
            objects["labels"] = np.array([self._labels[label] for label, *_ in rows], np.int64)
        return objects


class _Rows:
    """The rows of all lists together, in the order of reading, to see which repeat each other. A million take 100 MB.

    Attributes:
        packed: each row as `Columns.pack` makes it.
        splits, labels: the names and texts that occur, in the order of their first occurrence.
    """

    def __init__(self) -> None:
        self.packed = PackedStrings()
        self.splits: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self._lists: dict[str, int] = {}
        self._split, self._label, self._hash, self._list, self._line = (array("q") for _ in range(5))

    def add(self, packed: str, split: str, where: str, line: int) -> None:
        """Add a row that stands on a line (from 1) of the list `where`."""
        path, label = packed.split("\0", 2)[:2]
        self.packed.extend((packed,))
        self._split.append(self.splits.setdefault(split, len(self.splits)))
        self._label.append(self.labels.setdefault(label, len(self.labels)))
        self._hash.append(hash(path))
        self._list.append(self._lists.setdefault(where, len(self._lists)))
        self._line.append(line)

    @property
    def hashes(self) -> NDArray[np.int64]:
        """Of the path of each row: (rows,) int64."""
        return np.asarray(self._hash, np.int64)

    def in_split(self, split: str) -> NDArray[np.bool_]:
        """Which rows a split has: (rows,) bool."""
        chosen: NDArray[np.bool_] = np.asarray(self._split, np.int64) == self.splits[split]
        return chosen

    def of_split(self, split: str, keep: NDArray[np.bool_]) -> tuple[PackedStrings, NDArray[np.int64]]:
        """The rows of a split and, for each, the place of its label in `labels`: (n,) int64."""
        chosen = keep & self.in_split(split)
        rows = self.packed if chosen.all() else PackedStrings(self.packed[int(i)] for i in np.flatnonzero(chosen))
        return rows, np.asarray(self._label, np.int64)[chosen]

    def joined(self, split: str, keep: NDArray[np.bool_], firsts: NDArray[np.int64]) -> PackedStrings:
        """The rows of a split, those of one image together, in the order of the first of each."""
        chosen = np.flatnonzero(keep & self.in_split(split))
        chosen = chosen[np.argsort(firsts[chosen], kind="stable")]
        images = np.split(chosen, np.flatnonzero(np.diff(firsts[chosen])) + 1) if len(chosen) else []
        return PackedStrings(join_rows(self.packed[row] for row in image.tolist()) for image in images)

    def firsts(self, keep: NDArray[np.bool_]) -> NDArray[np.int64]:
        """For each row the first one of those kept that has the same path: (rows,) int64."""
        firsts = np.arange(len(self.packed))
        rows = np.flatnonzero(keep)
        order = rows[np.argsort(self.hashes[rows], kind="stable")]
        same = np.flatnonzero(self.hashes[order][1:] == self.hashes[order][:-1])
        for before, row in zip(order[same].tolist(), order[same + 1].tolist(), strict=True):
            if self._path(before) == self._path(row):  # and not only its hash
                firsts[row] = firsts[before]
        return firsts

    def unusable(
        self,
        firsts: NDArray[np.int64],
        keep: NDArray[np.bool_],
        repeated: NDArray[np.int64],
        has_labels: bool,
        has_objects: bool,
    ) -> Iterator[tuple[int, Problem]]:
        """Rows that cannot be used, and why: repeated ones; or those of objects, if they do not go with the others."""
        for row in repeated.tolist():
            first = int(firsts[row])
            if not has_objects:
                message = f"expected each image once, found {self._path(row)} in {self._place(first)} already."
                yield row, Problem(self._place(row), "duplicate-key", message)
            elif self._split[row] != self._split[first]:
                message = f"expected {self._path(row)} in one split, found another in {self._place(first)}."
                yield row, Problem(self._place(row), "duplicate-key", message)
        if has_objects and has_labels:
            unlabelled = [self.labels[text] for text in ("", str(UNLABELLED)) if text in self.labels]
            for row in np.flatnonzero(keep & np.isin(np.asarray(self._label), unlabelled)).tolist():
                if any(self.packed[row].split("\0")[2:]):
                    message = "expected a label for the object, found none."
                    yield row, Problem(self._place(row), "list-line", message)

    def _path(self, row: int) -> str:
        return self.packed[row].partition("\0")[0]

    def _place(self, row: int) -> str:
        return f"{list(self._lists)[self._list[row]]}:{self._line[row]}"
