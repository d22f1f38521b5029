"""Parquet files with a column of images, as Hugging Face's data sets are: formats/sources/parquet.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.json_files import read_object
from tensorstore_ds.annex.sources.packed import PackedSource, damage, files_at, keyed
from tensorstore_ds.annex.sources.row_table import ClassNames, RowTable
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import TextField
from tensorstore_ds.format.kinds.base import ArrayField, Field
from tensorstore_ds.format.schema import DTYPES, NAME, ArraySpec
from tensorstore_ds.machine import memory_limit
from tensorstore_ds.regular_files import is_file, open_file, os_errors, read_head
from tensorstore_ds.sources.base import Contents, Reference, Sample, SourceOptions, no_column
from tensorstore_ds.sources.files import PROBED_FILES, PackedStrings
from tensorstore_ds.sources.forms import FormError, noted, placed
from tensorstore_ds.sources.json_objects import parse_object
from tensorstore_ds.sources.ledger import NOT_READ
from tensorstore_ds.sources.list.table import LABEL_NAMES
from tensorstore_ds.sources.names import RESERVED, field_name, told_apart
from tensorstore_ds.sources.row_objects import CATEGORY_NAMES, STRUCT_MEMBERS, BoxForm, label_of, struct_objects
from tensorstore_ds.sources.samples import TEXT_NAMES, texts_of
from tensorstore_ds.sources.splits import no_samples, numbered_splits

_IMAGE_NAMES = ("image", "img", "image_bytes", "jpg", "jpeg", "png", "webp")
_OBJECTS_NAMES = ("objects", "annotations")
_SUFFIXES = frozenset({".parquet"})
_INFO = "dataset_info.json"
_MAGIC = b"PAR1"
_METADATA_LIMIT = 16 << 20
_PATH_LIMIT = 4096  # characters; a longer path is not used as a key
#: In a schema's metadata: JSON with the field of the objects as a store has it, for the names of keypoints.
METADATA = "tsds"
_CORRECT = "Correct the row."
_ADVICE = "Write the file again, or download it again."

Row = Mapping[str, Any]


class ParquetSource(PackedSource):
    """A reference is the sample's key, NUL, and the numbers of its file, row group, and row in the group."""

    name: ClassVar[str] = "parquet"
    takes: ClassVar[frozenset[str]] = frozenset({"label_from"})
    scanned: ClassVar[tuple[str, ...] | None] = (
        "_files",
        "_about",
        "_table",
        "_image",
        "_label",
        "_several",
        "_objects",
        "_flat",
        "_corners",
        "_numbers",
        "_texts",
    )

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._about: list[Path] = []  # that describe the columns
        self._table = RowTable()
        self._image, self._label, self._several, self._objects = "", "", "", ""  # names of columns
        self._flat: dict[str, str] = {}  # member of the objects -> a column of its own, such as objects.bbox
        self._boxes = BoxForm()
        self._corners = False  # boxes are x1 y1 x2 y2
        self._size: tuple[str, ...] = ()  # the columns with the height and the width of the image
        self._numbers: dict[str, tuple[str, str, tuple[int, ...]]] = {}  # column -> field, dtype and shape
        self._classes: dict[str, tuple[str, ...]] = {}  # of the first file, by column
        self._texts: dict[str, str] = {}  # column -> field

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is a Parquet file with images, or a folder with some; without pyarrow, any Parquet file."""
        return any(map(_has_images, files_at(path, _SUFFIXES, quick=True)[:PROBED_FILES]))

    def scan(self) -> Contents:
        """Read labels, objects and paths, but no images and no other numbers."""
        self._files = files_at(self.path, _SUFFIXES)
        if not self._files:
            raise SourceError(Problem(str(self.path), "empty-source", "expected .parquet files, found none."))
        splits, notes = numbered_splits([self._where(i) for i in range(len(self._files))])
        problems: list[Problem] = []
        rows: dict[str, list[tuple[object, str]]] = {}  # of each split paths, and the rest of the references
        unread: dict[str, tuple[str, Any, int]] = {}  # by name: the file, the type and the rows
        nulls: Counter[str] = Counter()  # in columns of numbers
        left_out: list[Problem] = []
        first: Any = None
        for i, (where, split) in enumerate(splits.items()):
            with opened_parquet(self._files[i], where) as parquet:
                schema = parquet.schema_arrow
                if first is None:
                    first = schema
                    self._learn(schema, where)
                self._check_same(first, schema, where)
                left_out += [no_samples(where)] * (not parquet.metadata.num_rows)
                for name, kind in self._unread(schema):
                    seen = unread.get(name, (where, kind, 0))
                    unread[name] = (*seen[:2], seen[2] + parquet.metadata.num_rows)
                for group in range(parquet.num_row_groups):
                    nulls.update(self._nulls(parquet, group, where))
                    found = self._scanned(parquet, group, where, problems)
                    rows.setdefault(split, []).extend((path, f"{i} {group} {row}") for row, path in found)
        rows = {split: each for split, each in rows.items() if each}
        if not rows:
            missing = Problem(str(self.path), "empty-source", "expected rows with images, found none.")
            raise SourceError(problems or missing)
        self._corners = self._boxes.are_corners
        notes += self._boxes.notes(self._flat.get("bbox", f"{self._objects}.bbox"))
        fields: dict[str, Field] = self._table.fields(self.options, str(self.path))
        for name in nulls:
            del self._numbers[name]
        fields |= {field: ArrayField(ArraySpec(dtype, shape)) for field, dtype, shape in self._numbers.values()}
        fields |= {field: TextField() for field in self._texts.values()}
        references = {split: PackedStrings(keyed(split, each)) for split, each in rows.items()}
        left_out += [
            Problem(f"{file}: {name}", NOT_READ, f"not stored: a column of {str(kind)[:80]}; rows: {n:,}.")
            for name, (file, kind, n) in unread.items()
        ] + [
            Problem(f"{self._where(0)}: {name}", NOT_READ, f"not stored: a column of numbers; null: {n:,}.")
            for name, n in nulls.items()
        ]
        return Contents(fields, references, None, tuple(problems), tuple(left_out), notes)

    def read(self, split: str, reference: Reference) -> Sample:
        columns = tuple(filter(None, self._columns))
        values, where = self._values(reference, columns)
        return self._sample(self.key(split, reference), values, where)

    def column(self, name: str) -> Callable[[str, Reference], str]:
        import pyarrow.types as kinds

        for i, file in enumerate(self._files):
            with opened_parquet(file, self._where(i)) as parquet:
                schema = parquet.schema_arrow
            if schema.names.count(name) != 1:
                raise no_column(self, name, schema.names)
            kind = schema.field(name).type
            if kinds.is_nested(kind) or kinds.is_binary(kind) or kinds.is_large_binary(kind):
                message = f"expected numbers or texts in the column {name}, found {str(kind)[:80]}."
                raise OptionError(f"`split_by`: {message}")

        def value(split: str, reference: Reference) -> str:
            found = self._values(reference, (name,))[0][name]
            return "" if found is None else str(found)

        return value

    def _values(self, reference: Reference, columns: tuple[str, ...]) -> tuple[Row, str]:
        """Some columns of a row, and its name for errors."""
        file, group, row = map(int, str(reference).rpartition("\0")[2].split())
        where = f"{self._where(file)} (group {group}, row {row})"
        with os_errors(where):
            status = self._files[file].stat()
        identity = (status.st_ino, status.st_size, status.st_mtime_ns)
        table = _group(self._files[file], self._where(file), identity, group, columns)
        if row >= table.num_rows:
            message = f"expected row {row}, found {table.num_rows} rows. Do not change a source while it is read."
            raise SourceError(Problem(where, "packed-file", message))
        with _damage(where):
            return {name: table.column(name)[row].as_py() for name in columns}, where

    def common_files(self) -> tuple[Path, ...]:
        return (*self._files, *self._about)

    # --- columns ---

    @property
    def _columns(self) -> tuple[str, ...]:
        objects = self._flat.values() if self._flat else (self._objects,)
        return self._image, self._label, self._several, *objects, *self._numbers, *self._texts

    def _objects_of(self, values: Row) -> Any:
        """Objects of a row, as a struct or a list of structs."""
        if not self._flat:
            return values[self._objects]
        found = {member: values[column] for member, column in self._flat.items()}
        return None if all(each is None for each in found.values()) else found

    def _unread(self, schema: Any) -> Iterator[tuple[str, Any]]:
        """Columns, and members of the image and of objects, that are not read, with their types."""
        import pyarrow.types as kinds

        objects = _members(schema, self._objects) if self._objects in schema.names else {}
        category = next((name for name in CATEGORY_NAMES if name in objects), "")
        known = {self._image: {"bytes", "path"}, self._objects: {*STRUCT_MEMBERS, category}}
        for column in schema:
            if column.name not in self._columns:
                found = {column.name: column.type}
            else:
                inner = _members(schema, column.name) if column.name in known else {}
                found = {f"{column.name}.{name}": inner[name] for name in inner if name not in known[column.name]}
            yield from ((name, kind) for name, kind in found.items() if not kinds.is_null(element_of(kind)))

    def _nulls(self, parquet: Any, group: int, where: str) -> dict[str, int]:
        """Number of nulls in each numeric column of a group, if there are any."""
        if not self._numbers:
            return {}
        with _damage(where):
            table = read_group(parquet, group, list(self._numbers), where)
            counts = {name: _null_count(table.column(name)) for name in self._numbers}
        return {name: count for name, count in counts.items() if count}

    def _learn(self, schema: Any, where: str) -> None:
        """Determine the meaning of each column."""
        import pyarrow.types as kinds

        features = _features(schema, where) or self._described()
        self._image = _image_column(schema, features)
        if not self._image:
            message = f"expected a column image with the bytes of files, found {', '.join(schema.names)[:200]}."
            raise SourceError(Problem(where, "packed-file", message), "Rename the column of the images to image.")
        named = {name: _class_names(features.get(name)) for name in schema.names}
        is_value = {each.name for each in schema if kinds.is_integer(kind := element_of(each.type)) or is_text(kind)}
        are_lists = {each.name for each in schema if element_of(each.type) != each.type}
        is_label, wanted = is_value - are_lists, self.options.label_from
        several = [name for name in schema.names if name in is_value & are_lists and not _is_member(name)]
        names = LABEL_NAMES if wanted is None else {wanted.lower()}
        several = [name for name in several if name.lower() in names or (wanted is None and named[name])]
        self._several = several[0] if len(several) == 1 else ""
        self._table.several, self._table.has_several = ClassNames(named.get(self._several)), bool(self._several)
        labels = [name for name in schema.names if name.lower() in names and name in is_label]
        if wanted is not None and not labels and not self._several:
            raise no_column(self, wanted, sorted(is_value), "label_from")
        classed = [name for name in schema.names if named[name] and name in is_label and not _is_member(name)]
        self._label = next(iter(labels), classed[0] if len(classed) == 1 else "")
        self._table.labels = ClassNames(named.get(self._label))
        self._table.has_labels = bool(self._label)
        for name in schema.names:
            if (
                name in _OBJECTS_NAMES
                and not self._objects
                and {"bbox", "oriented_boxes", "keypoints"} & _members(schema, name).keys()
            ):
                self._objects = name
                given = _metadata(schema, METADATA, where)
                self._table.give({n: given[n] for n in given if n == "objects"}, f"{where}: {METADATA}")
                category = next((each for each in CATEGORY_NAMES if each in _members(schema, name)), "")
                classes = _class_names(_inner(features.get(name), category))
                self._table.categories.given = classes or self._table.categories.given
                self._table.has_objects = True
        if not self._objects:
            self._learn_flat(schema, features)
        self._classes = self._classes_of(schema, features)
        is_whole = {each.name for each in schema if kinds.is_integer(each.type)}
        self._size = ("height", "width") if {"height", "width"} <= is_whole else ()
        fields = {"labels"} if self._several else set[str]()
        for column in schema:
            if column.name in self._columns or (self._flat and _is_member(column.name)):
                continue
            field = field_name(column.name)
            dtype, shape = numbers_of(column.type)
            if field in TEXT_NAMES - fields and is_text(element_of(column.type)):
                self._texts[column.name] = field
                fields.add(field)
            elif dtype and NAME.fullmatch(field) and field not in RESERVED | {"mask"} | fields:
                self._numbers[column.name] = field, dtype, shape
                fields.add(field)

    def _described(self) -> dict[str, Any]:
        """Description of the columns in ``dataset_info.json`` next to the files, as `datasets` writes it."""
        file = (self.path if self.path.is_dir() else self.path.parent) / _INFO
        if not is_file(file):
            return {}
        self._about = [file]
        found = read_object(file, _INFO, _METADATA_LIMIT).get("features")
        return found if isinstance(found, dict) else {}

    def _learn_flat(self, schema: Any, features: Mapping[str, Any]) -> None:
        """Find objects whose members are columns, as in tables without structs: ``objects.bbox``."""
        for prefix in _OBJECTS_NAMES:
            found = {name.removeprefix(f"{prefix}."): name for name in schema.names if name.startswith(f"{prefix}.")}
            if {"bbox", "keypoints"} & found.keys() and not self._flat:
                category = next((each for each in CATEGORY_NAMES if each in found), "")
                self._objects = prefix
                self._flat = {name: found[name] for name in found if name in STRUCT_MEMBERS or name == category}
                self._table.categories.given = _class_names(features.get(found.get(category, "")))
                self._table.has_objects = True

    def _check_same(self, first: Any, schema: Any, where: str) -> None:
        for name in self._columns:
            found = schema.field(name).type if schema.names.count(name) == 1 else "none, or several"
            if name and found != first.field(name).type:
                message = (
                    f"expected the column {name} as {first.field(name).type}, as in the first file, found {found}."
                )
                raise SourceError(Problem(where, "packed-file", message), "Convert the files one by one.")
        for name, classes in self._classes_of(schema, _features(schema, where)).items():
            if (known := self._classes.get(name)) is None:
                self.ledger.unread(f"the class names of {name}", where)
            elif classes != known:
                message = f"expected the class names of {name} as in the first file, found {', '.join(classes)[:200]}."
                raise SourceError(Problem(where, "packed-file", message), "Convert the files one by one.")

    def _classes_of(self, schema: Any, features: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Class names in the metadata of the columns of labels and objects."""
        members = self._flat or (_members(schema, self._objects) if self._objects else {})
        category = next((each for each in CATEGORY_NAMES if each in members), "")
        given = {name: features.get(name) for name in (self._label, self._several, self._flat.get(category, ""))}
        given[f"{self._objects}.{category}"] = _inner(features.get(self._objects), category)
        return {name: names for name, each in given.items() if name and (names := _class_names(each))}

    def _scanned(self, parquet: Any, group: int, where: str, problems: list[Problem]) -> Iterator[tuple[int, object]]:
        """Sound rows of a group, each with its image's path, if any; notes labels and objects."""
        import pyarrow.types as kinds

        has_path = kinds.is_struct(parquet.schema_arrow.field(self._image).type) and "path" in _members(
            parquet.schema_arrow, self._image
        )
        objects = list(self._flat.values()) or [self._objects]
        named = (self._label, self._several, *objects, *self._size)
        columns = [f"{self._image}.path"] * has_path + [name for name in named if name]
        count = parquet.metadata.row_group(group).num_rows
        if not columns:
            yield from ((row, None) for row in range(count))
            return
        with _damage(where):
            table = read_group(parquet, group, columns, where)
            count = table.num_rows
        for row in range(count):
            here = f"{where} (group {group}, row {row})"
            with noted(problems), placed(here, _CORRECT):
                with _damage(here):
                    values = {name: table.column(name)[row].as_py() for name in table.column_names}
                if self._label and (label := label_of(values[self._label], self._label)) is not None:
                    self._table.labels.note(label)
                if self._several:
                    self._table.note_several(values[self._several], self._several)
                if self._objects:
                    found = struct_objects(self._objects_of(values), corners=True)
                    sides = [values[name] for name in self._size]
                    self._boxes.note(found, (sides[0], sides[1]) if all(sides) and sides else None)
                    self._table.note(found)
                path = (values[self._image] or {}).get("path") if has_path else None
                path = None if isinstance(path, str) and len(path) > _PATH_LIMIT else path
                yield row, path

    # --- samples ---

    def _sample(self, key: str, values: Row, where: str) -> Sample:
        image = values[self._image]
        if isinstance(image, dict):
            image = image.get("bytes")
        if not image:
            message = f"expected the bytes of an image in {self._image}, found none. Put the files into the data set."
            raise SourceError(Problem(where, "no-image", message))
        with placed(where, _CORRECT):
            objects = struct_objects(self._objects_of(values), corners=self._corners) if self._objects else None
            label: int | None = None
            if self._label:
                label = self._table.labels.index(label_of(values[self._label], self._label), where)
            several = {}
            if self._several:
                several["labels"] = self._table.several_of(values[self._several], self._several, where)
            texts = {field: _texts(name, values[name]) for name, field in self._texts.items()}
            arrays = {
                field: _array(name, values[name], dtype, shape) for name, (field, dtype, shape) in self._numbers.items()
            }
        return Sample(key, image, label, self._table.arrays(objects, where), arrays=arrays | several, texts=texts)


def _null_count(column: Any) -> int:
    """Nulls of a column of numbers or of fixed-size lists, including those in the lists."""
    import pyarrow.types as kinds

    inner = column.combine_chunks().flatten().null_count if kinds.is_fixed_size_list(column.type) else 0
    return int(column.null_count + inner)


def _array(name: str, value: Any, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers in a column; raises `FormError` for null."""
    if value is None or (shape and None in value):
        raise FormError(f"expected numbers in {name}, found null")
    return np.asarray(value).astype(dtype).reshape(shape)


def _texts(name: str, value: object) -> tuple[str, ...]:
    texts = texts_of(value)
    if texts is None:
        raise FormError(f"expected texts in {name}, found null among them")
    return texts


# --- schemas --------------------------------------------------------------------------------------------------------


def _image_column(schema: Any, features: Mapping[str, Any]) -> str:
    """Column of the images; empty if there is none."""
    import pyarrow.types as kinds

    def is_bytes(kind: Any) -> bool:
        return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind))

    def rank(name: str) -> int:
        return _IMAGE_NAMES.index(name.lower()) if name.lower() in _IMAGE_NAMES else len(_IMAGE_NAMES)

    found = []
    for column in schema:
        is_image = isinstance(features.get(column.name), dict) and features[column.name].get("_type") == "Image"
        if kinds.is_struct(column.type):
            inner = _members(schema, column.name).get("bytes")
            if inner is not None and is_bytes(inner) and (is_image or not features.get(column.name)):
                found.append(column.name)
        elif is_bytes(column.type) and (is_image or column.name.lower() in _IMAGE_NAMES):
            found.append(column.name)
    return min(found, key=rank, default="")


def _is_member(name: str) -> bool:
    """Whether a column is a member of objects: ``objects.category``."""
    return "." in name and name.partition(".")[0] in _OBJECTS_NAMES


def _members(schema: Any, name: str) -> dict[str, Any]:
    """Types of the members of a struct, or of the structs in a list."""
    import pyarrow.types as kinds

    kind = element_of(schema.field(name).type)
    return {each.name: each.type for each in kind} if kinds.is_struct(kind) else {}


def element_of(kind: Any) -> Any:
    """Type of the elements of a list; other types are returned as is."""
    import pyarrow.types as kinds

    return kind.value_type if kinds.is_list(kind) or kinds.is_large_list(kind) else kind


def is_text(kind: Any) -> bool:
    """Whether a type is text, or a dictionary of texts, as pandas writes for categories."""
    import pyarrow.types as kinds

    kind = kind.value_type if kinds.is_dictionary(kind) else kind
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind))


def numbers_of(kind: Any) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of a numeric column; an empty dtype for others."""
    import pyarrow.types as kinds

    shape: tuple[int, ...] = ()
    if kinds.is_fixed_size_list(kind) and kind.list_size:
        kind, shape = kind.value_type, (kind.list_size,)
    if kinds.is_boolean(kind):
        return "uint8", shape
    name = {"halffloat": "float16", "float": "float32", "double": "float64"}.get(str(kind), str(kind))
    return (name if name in DTYPES else ""), shape


def _features(schema: Any, where: str) -> dict[str, Any]:
    """Hugging Face's metadata of the columns."""
    info = _metadata(schema, "huggingface", where).get("info")
    features = info.get("features") if isinstance(info, dict) else None
    return features if isinstance(features, dict) else {}


def _metadata(schema: Any, name: str, where: str) -> dict[str, Any]:
    """JSON with this name in the schema's metadata; empty without it."""
    data = (schema.metadata or {}).get(name.encode(), b"{}")
    if len(data) > _METADATA_LIMIT:
        message = f"expected metadata of at most {_METADATA_LIMIT:,} bytes, found {len(data):,}."
        raise SourceError(Problem(where, "packed-file", message), _ADVICE)
    return parse_object(data, f"{where}: {name}")


def _below_lists(feature: Any) -> Any:
    """Feature of the elements of a list, or of a list of lists."""
    for _ in range(8):
        if isinstance(feature, list) and feature:
            feature = feature[0]
        elif isinstance(feature, dict) and isinstance(feature.get("_type"), str) and "feature" in feature:
            feature = feature["feature"]
    return feature


def _inner(feature: Any, member: str) -> Any:
    """Feature of a member, inside any number of lists."""
    found = _below_lists(feature)
    return found.get(member) if isinstance(found, dict) else None


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """Names of a ClassLabel, or of a list of them; repeated names get their number."""
    feature = _below_lists(feature)
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        return None
    return told_apart(names)


# --- files ----------------------------------------------------------------------------------------------------------


def _has_images(file: Path) -> bool:
    """Whether a Parquet file has a column of images; True for any without pyarrow."""
    if read_head(file, len(_MAGIC)) != _MAGIC:
        return False
    try:
        with opened_parquet(file, file.name) as parquet:
            return bool(_image_column(parquet.schema_arrow, _features(parquet.schema_arrow, "")))
    except OptionError:
        return True
    except SourceError:
        return False


def _damage(where: str) -> AbstractContextManager[None]:
    return damage(where, "a Parquet file", _ADVICE)


@contextmanager
def opened_parquet(path: Path, where: str) -> Iterator[Any]:
    """Open a file as pyarrow.parquet.ParquetFile, for `read_group`; raises `OptionError` without pyarrow."""
    try:
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise OptionError(
            "to read Parquet files, pyarrow is needed: pip install '.[hub]' in a clone of tensorstore-ds"
        ) from None
    file: BinaryIO
    with open_file(path, where) as file, _damage(where):
        if file.read(len(_MAGIC)) != _MAGIC:  # pyarrow only checks it at the end
            raise ValueError("its first bytes are others")
        limits = {"thrift_string_size_limit": _METADATA_LIMIT, "thrift_container_size_limit": 1 << 20}
        parquet = pq.ParquetFile(file, **limits)
        columns = [parquet.schema.column(i) for i in range(len(parquet.schema))]
        shared = [each.path for each in columns if each.physical_type == "BYTE_ARRAY"]
        parquet.shared = pq.ParquetFile(file, metadata=parquet.metadata, read_dictionary=shared, **limits)
        yield parquet


def read_group(parquet: Any, group: int, columns: Sequence[str], where: str) -> Any:
    """Some columns of a row group as pyarrow.Table; its size is compared with the memory first.

    Texts and bytes are dictionaries: rows share an equal value, even if the file stores it once for a million rows.
    """
    # not those of the columns: to look at one whose statistics are damaged aborts the process in pyarrow 26
    found, limit = parquet.metadata.row_group(group), memory_limit() // 8  # reading takes some 6 times the bytes
    nbytes = max(found.total_byte_size, 8 * found.num_rows)  # a column of one number takes a few bytes in the file
    if found.total_byte_size < 0 or nbytes > limit:
        message = f"expected a row group of at most {limit:,} bytes, found {nbytes:,}."
        raise SourceError(Problem(where, "packed-file", message), "Write the file with smaller row groups.")
    return parquet.shared.read_row_group(group, columns=list(columns), use_threads=False)


def values_of(column: Any) -> list[Any]:
    """Values of a column of a table from `read_group`; equal texts may be one object."""
    found: list[Any] = []
    for chunk in column.chunks:
        if hasattr(chunk, "dictionary"):
            values = [*chunk.dictionary.to_pylist(), None]
            found += [values[-1 if i is None else i] for i in chunk.indices.to_pylist()]
        else:
            found += chunk.to_pylist()
    return found


@lru_cache(1)
def _group(path: Path, where: str, identity: tuple[int, ...], group: int, columns: tuple[str, ...]) -> Any:
    """The row group that was read last, cached because the next samples are in it too."""
    with opened_parquet(path, where) as parquet:
        if group >= parquet.num_row_groups:
            message = "expected the row groups of the scan, found fewer. Do not change a source while it is read."
            raise SourceError(Problem(where, "packed-file", message))
        return read_group(parquet, group, columns, where)
