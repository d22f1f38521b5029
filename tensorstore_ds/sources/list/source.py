"""Lists in text or CSV files, a line for each image or for each object: formats/sources/list.md."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.kinds.labels import NOT_KNOWN
from tensorstore_ds.regular_files import is_dir, is_file, os_errors
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
from tensorstore_ds.sources.files import glance, walk_files
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.images import note_of_folders
from tensorstore_ds.sources.list.finding import UNION_NAMES, find_lists, names_images
from tensorstore_ds.sources.list.images import ListedImages
from tensorstore_ds.sources.list.json_lines import open_json_lines
from tensorstore_ds.sources.list.labels import BRACKETS, ONE_HOT, UNDIVIDED, divided_by, words_of
from tensorstore_ds.sources.list.meaning import settled, unread_columns
from tensorstore_ds.sources.list.rows import ListRows
from tensorstore_ds.sources.list.table import (
    LIST_SUFFIXES,
    NO_COLUMN,
    Columns,
    Table,
    column_name,
    is_number,
    open_table,
    read_columns,
    unpack,
)
from tensorstore_ds.sources.names import flip_pairs, number_classes, order_classes
from tensorstore_ds.sources.splits import (
    SPLIT_NAMES,
    find_unions,
    notes_of_renamed,
    split_name,
    split_names,
    split_word,
)

_FLAGS = {"1": 1, "0": 0, "?": NOT_KNOWN}
#: A class index. pandas writes 1.0 where some rows of a column have none.
_NUMBER = re.compile(rf"({UNLABELLED}|[0-9]{{1,18}})(?:\.0+)?")


class ListSource(Source):
    """A reference is a row as `Columns.pack` makes it, or several as `join_rows` does: the workers need no list."""

    name: ClassVar[str] = "list"
    takes: ClassVar[frozenset[str]] = frozenset({"label_from", "multi_label"})
    scanned: ClassVar[tuple[str, ...] | None] = ("_columns", "_labels", "_divided", "_count", "_has_objects")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self.images = options.images or (path if is_dir(path) else path.parent)
        self._columns = Columns(1)
        self._images = ListedImages(self.images)
        self._notes: list[str] = []
        self._names = ""  # of the lists, for notes
        self._labels: dict[str, int] = {}  # the text in the list -> class index
        self._divided = ""  # how cells are divided that have several labels
        self._count = 0  # of classes of `labels`
        self._is_named = False  # whether the caller named the splits
        self._has_objects = False  # whether rows are objects, of which an image may have several

    @classmethod
    def detect(cls, path: Path) -> bool | Match:
        """Whether this is a list, or a folder with one at its top and no XML files."""
        if is_file(path):
            return Match.MAYBE if names_images(path) else Match.NO
        files = glance(path) if is_dir(path) else []
        listed = bool(find_lists(path, files))
        has_xml = any(file.lower().endswith(".xml") for file in files)
        return Match.MAYBE if listed and not has_xml else Match.NO

    def scan(self) -> Contents:
        """Read all lines, but no images and no folders."""
        divided = self.tables()
        tables = [table for table, _ in divided]
        self._names = ", ".join(table.where for table in tables)[:200]
        columns = self._agreed_columns(tables)
        rows, problems = ListRows(), list[Problem]()
        for (table, split), each in zip(divided, columns, strict=True):
            self.ledger.use(table.where)
            self._read_table(table, each, split, rows, problems)
        self._notes += [*dict.fromkeys(note for each in columns for note in each.notes), *self._images.notes]

        keep = np.ones(len(rows.packed), np.bool_)
        left_out = [each for pair in zip(tables, columns, strict=True) for each in unread_columns(*pair)]
        paths = {split: rows.hashes[rows.in_split(split)] for split in rows.splits} if len(tables) > 1 else {}
        for split in find_unions(paths):
            keep &= ~rows.in_split(split)
            left_out.append(Problem(split, "split-union", "not stored: it is the union of other lists."))
        firsts = rows.firsts(keep)
        repeated = np.flatnonzero(keep & (firsts != np.arange(len(firsts))))
        has_box = self._columns.count > 0
        self._has_objects = has_box and (len(repeated) > 0 or self._columns.are_objects)
        numbers = self._columns.count if self._has_objects else 0
        is_merged = self._has_objects or (bool(self._columns.texts) and len(repeated) > 0)
        for row, problem in rows.unusable(firsts, keep, repeated, self._has_labels, is_merged, numbers):
            keep[row] = False
            problems.append(problem)
        if self._has_objects and not self._columns.are_objects:
            what = "an object with its label" if self._has_labels else "an object, and no column has its label"
            self._notes.append(f"images have several rows: each row is {what}.")
        if self._columns.box and self._has_labels and not self._has_objects:
            what = f"{self._names}: no image has several rows: labels are of images, and boxes have none"
            self._notes.append(f"{what}. If they are of the boxes, name the column objects.category.")
        if note := self._note_of_no_labels(rows, columns):
            self._notes.append(note)
        if not keep.any():
            nothing = Problem(str(self.path), "empty-source", "expected lines that name images, found none.")
            raise SourceError(problems or nothing)
        contents = self._contents(rows, keep, firsts, problems, left_out + self._not_listed(rows), is_merged)
        is_named = self._is_named or bool(split_word(tables[0].file.stem)) or columns[0].split is not None
        return contents if len(tables) > 1 or is_named else contents.by_folder(str(self.path))

    def read(self, split: str, reference: Reference) -> Sample:
        count = self._columns.count
        path, rows = unpack(str(reference), count + len(self._columns.texts))
        objects = self._objects(rows) if count else None
        index = None
        arrays: dict[str, NDArray[Any]] = {}
        if self._divided:
            arrays["labels"] = self._labels_of(rows[0][0])
        elif self._has_labels and not self._has_objects:
            index = self._labels.get(rows[0][0], UNLABELLED)
        texts = {
            name: list(dict.fromkeys(row[place] for row in rows if row[place]))
            for place, (name, _) in enumerate(self._columns.texts, 1 + count)
        }
        return Sample(path, f"{self.images}/{path}", index, objects, arrays=arrays, texts=texts)

    def _labels_of(self, text: str) -> NDArray[np.int8]:
        """A number for each class, from a cell with several labels or the flags of a row."""
        if text == NO_COLUMN or (self._divided == BRACKETS and not text):
            return np.full(self._count, NOT_KNOWN, np.int8)
        if self._divided != ONE_HOT:
            row = np.zeros(self._count, np.int8)
            row[[self._labels[word] for word in words_of(text, self._divided)]] = 1
            return row
        row = np.full(self._count, NOT_KNOWN, np.int8)
        for flag, index in zip(text, self._labels.values(), strict=True):
            row[index] = _FLAGS[flag]
        return row

    @property
    def _has_labels(self) -> bool:
        return self._columns.has_labels

    def column(self, name: str) -> Callable[[str, Reference], str]:
        """Values of a column; reads the lists again."""
        tables = [table for table, _ in self.tables()]
        numbers = {"": 0}
        values: dict[int, int] = {}  # by the hash of the path, a third of the path's memory
        for table, columns in zip(tables, self._agreed_columns(tables), strict=True):
            places = [i for i, each in enumerate(table.header) if column_name(each) == column_name(name)]
            if len(places) != 1:
                raise no_column(self, name, table.header)
            word = split_word(table.file.stem)
            for _, cells in table.rows():
                with suppress(FormError, IndexError):  # which the scan has named
                    path = self._images.path(cells[columns.path], table.folder, word)
                    values.setdefault(hash(path), numbers.setdefault(cells[places[0]], len(numbers)))
        texts = list(numbers)
        return lambda split, reference: texts[values.get(hash(self.key(split, reference)), 0)]

    def tables(self) -> list[tuple[Table, str]]:
        """The lists, each with the name of its split."""
        tables = []
        for file, split in self._lists().items():
            where = file.name if file == self.path else file.relative_to(self.path).as_posix()
            opened = (open_json_lines if file.suffix.lower() == ".jsonl" else open_table)(file, where)
            tables.append((replace(opened, folder=where[: where.rfind("/") + 1]), split))
        return tables

    def _lists(self) -> dict[Path, str]:
        with os_errors(str(self.path)):
            names = find_lists(self.path, glance(self.path)) if is_dir(self.path) else []
        files = [self.path / name for name in names] if is_dir(self.path) else [self.path]
        if not files or files[0].suffix.lower() not in LIST_SUFFIXES:
            message = "expected a list (.csv, .tsv, .txt or .jsonl) whose lines name images, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message))
        folders = [name.partition("/")[0] for name in names if "/" in name]
        if folders and len(set(folders)) == len(folders):
            return dict(zip(files, split_names(folders).values(), strict=True))
        stems = [file.stem for file in files]
        if len(files) == 1:
            return {files[0]: split_name(stems[0]) if stems[0].lower() in SPLIT_NAMES else "train"}
        if not all(stem.lower() in SPLIT_NAMES | UNION_NAMES for stem in stems):
            stems = list(map(split_word, stems))  # labels_train, labels_val
        if "" not in stems and len(set(stems)) == len(stems):
            return dict(zip(files, split_names(stems).values(), strict=True))
        message = f"expected one list, or lists named train, val and test, found {', '.join(names)}."
        raise SourceError(Problem(str(self.path), "ambiguous-format", message), "Name one of them, or rename them.")

    def _agreed_columns(self, tables: list[Table]) -> list[Columns]:
        """Columns of each list; sets `_columns` to those of the first list with labels, if there is one."""
        label = self.options.label_from
        columns = settled(tables, [read_columns(table, self.options.keypoints, label) for table in tables])
        if label is not None and all(each.label is None for each in columns):
            raise no_column(self, label, tables[0].header, "label_from")
        first = self._columns = next((each for each in columns if each.has_labels), columns[0])
        for table, each in zip(tables, columns, strict=True):
            if each.values != first.values or each.are_objects != first.are_objects:
                message = f"expected the same columns as in {tables[columns.index(first)].where}, found others."
                raise SourceError(
                    Problem(f"{table.where}:1", "list-line", message),
                    "Give all lists the same columns, or move some away.",
                )
        without = [table.where for table, each in zip(tables, columns, strict=True) if not each.has_labels]
        if without and first.has_labels:
            self._notes.append(f"{', '.join(without)[:200]}: no column of labels, which other lists have.")
        has_labels = first.has_labels
        return [replace(each, lacks_labels=has_labels and not each.has_labels) for each in columns]

    def _read_table(self, table: Table, columns: Columns, split: str, rows: ListRows, problems: list[Problem]) -> None:
        place = columns.split
        names: dict[str, str] = {}  # the text in the list -> the split's name
        is_first, word = True, split_word(table.file.stem)
        for line, cells in table.rows():
            try:
                path = None
                if len(cells) == columns.width:
                    if is_first:
                        self._images.expect(cells[columns.path], table.folder)
                    is_first, path = False, self._images.path(cells[columns.path], table.folder, word)
                packed = columns.pack(cells, path)
            except FormError as error:
                problems.append(Problem(f"{table.where}:{line}", error.reason or "list-line", str(error)))
                continue
            if place is not None:
                if cells[place] not in names:
                    try:
                        names = split_names([*names, cells[place]])
                    except SourceError as error:
                        problem = error.problems[0]
                        at = replace(problem, where=f"{table.where}:{line}: {problem.where}")
                        raise SourceError(at, error.advice) from error
                split = names[cells[place]]
            rows.add(packed, split, table.where, line)
        self._notes += notes_of_renamed(names)

    def _note_of_no_labels(self, rows: ListRows, columns: list[Columns]) -> str:
        """A note about lists without labels; empty if they have some."""
        if self._has_labels:
            return ""
        others = (name for each in columns for name, _, _ in each.unread)
        unread = [name for name in dict.fromkeys(others) if column_name(name) not in ("width", "height")]
        if self._columns.values and not (self._columns.box and unread):
            return "".join(note_of_folders(rows.paths()))
        note = f"no labels: {self._names} has no column of them."
        if unread:
            one = "one of " if len(unread) > 1 else ""
            return f"{note} If {one}{', '.join(unread)[:200]} is the label, pass it as `label_from`."
        folders = {path.rpartition("/")[0] for path in rows.paths()} - {""}
        if len(folders) > 1:
            found = f"{len(folders):,} folders, such as {min(folders)}"
            return f"{note} The images are in {found}: the `format` folders reads these as classes."
        return note

    def _not_listed(self, rows: ListRows) -> list[Problem]:
        """Problems for images of the folder that no line names; none if the source is a file."""
        if not is_dir(self.path):
            return []
        images = self._images.paths or list(walk_files(self.images, IMAGE_SUFFIXES))
        unnamed = np.flatnonzero(~np.isin([hash(path) for path in images], rows.hashes))
        return [Problem(images[int(i)], "not-listed", "no line of the list names this image.") for i in unnamed]

    def _contents(
        self,
        rows: ListRows,
        keep: NDArray[np.bool_],
        firsts: NDArray[np.int64],
        problems: list[Problem],
        left: list[Problem],
        is_merged: bool,
    ) -> Contents:
        fields: dict[str, Field] = {}
        names: tuple[str, ...] = ()
        if self._has_labels:
            texts = [text for text in rows.labels if text not in ("", NO_COLUMN)]
            if not self._has_objects:
                self._divide(texts)
            names = self._class_names(texts)
            if fraction := next((text for text in texts if is_number(text) and not _NUMBER.fullmatch(text)), None):
                what = f"{self._names}: labels such as {fraction} are numbers, and each is a class"
                self._notes.append(f"{what}. If not, rename the column, and add it to the store with tsds add.")
            if self._divided:
                fields["labels"] = LabelsField.of(names)
                if empty := rows.count("", keep) if self._divided not in (BRACKETS, ONE_HOT) else 0:
                    self._notes.append(
                        f"{self._names}: images without a text as labels, to which no class applies: {empty:,}."
                    )
            elif not self._has_objects:
                fields["label"] = LabelField(classes=names)
        if self._columns.count:
            fields["objects"] = self._objects_field(names if self._has_objects else ())
        fields |= {name: TextField() for name, _ in self._columns.texts}
        if is_merged:
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
        """Class names; sets `_labels`. Numbers are class indices, unless the class list contains them as names."""
        wanted, where = self.options.classes, str(self.path)
        if self._columns.flags:
            flags = [flag.name for flag in self._columns.flags]
            if wanted is not None:
                order_classes(flags, wanted, where, self.options.class_map)
            names = wanted or tuple(flags)
            places = [names.index(name) for name in flags]
            if self._divided:
                self._labels = dict(zip(flags, places, strict=True))
            else:
                self._labels = {text: places[text.index("1")] for text in texts}
            self._count = len(names)
            return names
        if self._divided:
            texts = list(dict.fromkeys(word for text in texts for word in words_of(text, self._divided)))
        names = self._ordered(texts, wanted, where)
        self._count = len(names)
        return names

    def _ordered(self, texts: list[str], wanted: tuple[str, ...] | None, where: str) -> tuple[str, ...]:
        if not texts and wanted is None:
            message = "expected a label in some line, found none."
            advice = "Fill the column of labels, remove it, or name the classes with `classes`."
            raise SourceError(Problem(where, "unknown-class", message), advice)
        numbers = [match for text in texts if (match := _NUMBER.fullmatch(text))]
        if len(numbers) == len(texts) and not set(texts) <= set(wanted or ()):
            self._labels = {match[0]: int(match[1]) for match in numbers}
            return number_classes(list(self._labels.values()), wanted, where)
        classes = order_classes(texts, wanted, where, self.options.class_map)
        self._labels = {name: i for i, name in enumerate(classes)}
        return classes

    def _divide(self, texts: list[str]) -> None:
        """Detect whether cells contain several labels."""
        columns = self._columns
        if json := next((text for text in texts if text.startswith(("[{", '{"', "{'"))), None):
            message = f"expected labels, found JSON, such as {json[:40]}."
            advice = "Write boxes into separate columns, or export the annotations as JSON."
            raise SourceError(Problem(self._names, "list-line", message), advice)
        if columns.flags:
            first, last = columns.flags[0].name, columns.flags[-1].name
            is_single = all(text.count("1") == 1 and "?" not in text for text in texts)
            if is_single and not self.options.multi_label:
                self._notes.append(
                    f"{self._names}: one of the columns {first} to {last} is 1 in each row: it is the label."
                )
            else:
                self._divided = ONE_HOT
                count = len(columns.flags)
                what = f"the columns {first} to {last} show which of {count} classes apply"
                self._notes.append(f"{self._names}: {what}: the field labels.")
        elif self.options.multi_label or not set(texts) <= set(self.options.classes or ()):
            self._divided = divided_by(texts, columns.is_plural)
            if self._divided:
                what = {BRACKETS: "brackets", " ": "spaces"}.get(self._divided, self._divided)
                example = next((text for text in texts if len(words_of(text, self._divided)) > 1), texts[0])
                how = f"cells have several labels each, divided by {what}, such as {example[:60]}"
                self._notes.append(f"{self._names}: {how}. They become the field labels.")
            elif columns.is_plural and (several := next((text for text in texts if re.search(r"\s", text)), None)):
                self._notes.append(
                    f"{self._names}: labels such as {several[:60]!r} are one class each. If they are several labels, "
                    "write ; between them."
                )
            if self.options.multi_label:
                self._divided = self._divided or UNDIVIDED

    def _objects_field(self, classes: tuple[str, ...]) -> Field:
        names = tuple(name for name, _, _ in self._columns.keypoints)
        values = ["boxes"] * bool(self._columns.box) + ["labels"] * bool(classes) + ["keypoints"] * bool(names)
        wanted = self.options.keypoints
        pairs = wanted.flip_pairs if wanted is not None else flip_pairs(names)
        return ObjectsField.of(*values, classes=classes, keypoints=names, flip_pairs=pairs if names else ())

    def _objects(self, rows: list[list[str]]) -> Objects:
        """Objects of rows of label, box and keypoints; rows whose cells are all empty have none."""
        n, k = 4 * bool(self._columns.box), len(self._columns.keypoints)
        rows = [row for row in rows if any(row[1 : 1 + n + 2 * k])]
        numbers = [[float(text or "nan") for text in row[1 : 1 + n + 2 * k]] for row in rows]
        values = np.array(numbers, np.float64).reshape(len(rows), n + 2 * k)
        objects: dict[str, Any] = {"boxes": values[:, :n]} if n else {}
        if k:
            objects["keypoints"] = values[:, n:].reshape(len(values), k, 2)
        if self._has_objects and self._has_labels:
            objects["labels"] = np.array([self._labels[label] for label, *_ in rows], np.int64)
        return objects
