"""A table of samples without their pixels, as one Parquet file: for DuckDB, pandas, polars and spreadsheets."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.editing.edit import chosen_splits
from tensorstore_ds.annex.editing.expression import class_rows, columns as known_columns
from tensorstore_ds.annex.exporting.export import ExportSummary
from tensorstore_ds.conversion.partial import check_new
from tensorstore_ds.durable import replacing
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import (
    ImageField,
    KeyField,
    LabelField,
    LabelsField,
    ObjectsField,
    RaggedField,
    SizeField,
    TextField,
)
from tensorstore_ds.format.kinds.base import ArrayField, Field, of_kind
from tensorstore_ds.progress import notebook_bar
from tensorstore_ds.reading.store import Split, open as open_store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.regular_files import tidied

_ROWS = 8192  # of a row group
#: Columns of every table, before the fields.
_FIRST = ("key", "split", "row")
#: Names of the values of one object, whose stored name is a plural.
_OF_ONE = {"boxes": "box", "labels": "label", "oriented_boxes": "oriented_box", "scores": "score"}

#: The Arrow array of some rows of a column: of a split, from a row, to a row.
_Column = Callable[[Split, int, int], Any]


def write_table(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    splits: Collection[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ExportSummary:
    """Write keys, labels, objects, texts and numbers of all samples as a table, one Parquet file.

    >>> tsds.exporting.write_table("photos.tsds", "photos.parquet").samples
    {'train': 8, 'val': 4}
    >>> import pyarrow.parquet
    >>> table = pyarrow.parquet.read_table("photos.parquet")
    >>> table.column_names
    ['key', 'split', 'row', 'label', 'height', 'width']
    >>> table.to_pylist()[4]["label"]
    'dog'

    No image is read. A label is its class name, or null. Labels that several classes can apply to are a list of names.
    Objects are a list of structs with ``box`` (x1, y1, x2, y2 in pixels of the stored image), ``label``, and other
    values, without outlines. Texts are lists. Arrays of one number per sample are numbers, others are lists. ``height``
    and ``width`` are the ones that `filter_store` uses.

    Args:
        store: path or URL of the store.
        out: path of the new file, which ends in ``.parquet``.
        splits: names of the splits to write. None writes all.
        progress: function that is called with (samples done, samples in total).

    Raises:
        OptionError: pyarrow is not installed, a split does not exist, or `out` does not end in ``.parquet`` or would be
            in a store.
        FormatError: the store is damaged.
        StoreExistsError: `out` exists.
        OutputError: `out` cannot be written.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise OptionError("pyarrow is not installed: pip install '.[hub]' in a clone of tensorstore-ds") from None
    began, opened, target = time.monotonic(), open_store(store), tidied(out)
    if target.suffix.lower() != ".parquet":
        raise OptionError(f"{target}: expected a file that ends in .parquet, found {target.name}. Correct its name.")
    check_outside_stores(target)
    check_new(target)
    names = chosen_splits(opened, splits)
    samples = {name: len(opened[name]) for name in names}
    total, done = sum(samples.values()), 0
    draw = notebook_bar()
    notify = progress or (lambda done, total: draw(f"Writing {done:,}/{total:,} samples", done, total))
    fields, left_out = opened.manifest.fields, Counter[str]()
    made = dict(_columns(pa, fields, left_out))
    with replacing(target) as file:
        writer: Any = None
        for name in names or ():
            split = opened[name]
            for start in range(0, max(1, len(split)), _ROWS):
                stop = min(start + _ROWS, len(split))
                table = pa.table({column: values(split, start, stop) for column, values in made.items()})
                writer = writer or pq.ParquetWriter(file, table.schema, compression="zstd")
                writer.write_table(table)
                done += stop - start
                notify(done, total)
        if writer is not None:
            writer.close()
    left_out |= dict.fromkeys(opened.manifest.unreadable, 1)
    return ExportSummary(target, samples, 1, dict.fromkeys(left_out, total), time.monotonic() - began)


def _columns(pa: Any, fields: Mapping[str, Field], left_out: Counter[str]) -> Iterator[tuple[str, _Column]]:
    """The columns by name; fields and values without one are counted."""
    keys = next(iter(of_kind(fields, KeyField)), None)
    if keys is not None:
        yield "key", lambda split, start, stop: pa.array(map(_text, split[keys][start:stop]), pa.string())
    yield "split", lambda split, start, stop: pa.array([split.name] * (stop - start), pa.string())
    yield "row", lambda split, start, stop: pa.array(np.arange(start, stop))
    has_sizes = any(of_kind(fields, SizeField)) or isinstance(fields.get("image"), ImageField)
    sides = ("height", "width") if has_sizes else ()
    for name, field in fields.items():
        column = name if name not in (*_FIRST, *sides) else f"{name}_field"
        if isinstance(field, ObjectsField):
            left_out.update(f"{name}.{value}" for value in field.ragged)
            if field.values.keys() == {*field.ragged}:  # a struct would have no members
                continue
        if type(field) in _ARRAYS:
            yield column, partial(_ARRAYS[type(field)], pa, name)
        elif not isinstance(field, KeyField | SizeField | ImageField):
            left_out[name] += 1
    for name in sides:
        yield name, partial(_side, pa, name)


def _numbers(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    return _lists(pa, np.asarray(split[name][start:stop]))


def _side(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    return pa.array(known_columns(split)[name](start, stop))


def _text(text: str) -> str:
    """Text that Parquet can store; bytes of a key that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _texts(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    return pa.array([[*map(_text, each)] for each in split[name][start:stop]], pa.list_(pa.string()))


def _labels(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    return _class_names(pa, class_rows(split, name, np.arange(start, stop))[1], split.fields[name].classes)


def _class_names(pa: Any, numbers: NDArray[Any], classes: tuple[str, ...]) -> Any:
    """Names of classes; null for -1."""
    indices = pa.array(numbers.astype(np.int64), mask=numbers < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(classes, pa.string())).cast(pa.string())


def _several(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    """Lists of the classes that apply; null if this is not known of any."""
    stored, field = np.asarray(split[name][start:stop]), split.fields[name]
    owners, numbers = field.class_rows(stored)
    offsets = np.searchsorted(np.asarray(owners), np.arange(len(stored) + 1))
    unknown = pa.array((stored < 0).all(axis=1))
    return _list_array(pa, offsets, _class_names(pa, numbers, field.classes), mask=unknown)


def _objects(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    """Lists of structs."""
    found, field = split.table(name).take(np.arange(start, stop)), split.fields[name]
    values = {
        _OF_ONE.get(value, value): _class_names(pa, class_rows(split, name, np.arange(start, stop))[1], field.classes)
        if value == field.class_value
        else _lists(pa, np.asarray(each))
        for value, each in found.values.items()
    }
    return _list_array(pa, found.offsets, pa.StructArray.from_arrays(list(values.values()), list(values)))


def _ragged(pa: Any, name: str, split: Split, start: int, stop: int) -> Any:
    found = split.table(name).take(np.arange(start, stop))
    (values,) = found.values.values()
    return _list_array(pa, found.offsets, _lists(pa, np.asarray(values)))


def _list_array(pa: Any, offsets: NDArray[Any], values: Any, **options: Any) -> Any:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, **options)


def _lists(pa: Any, values: NDArray[Any]) -> Any:
    """Numbers (n,), or lists for each further axis. Not all programs read half precision, so it becomes single."""
    if values.dtype == np.float16:
        values = values.astype(np.float32)
    if np.prod(values.shape[1:]) == 1:
        values = values.reshape(-1)
    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis]))
        found = _list_array(pa, np.arange(count + 1) * values.shape[axis], found)
    return found


#: The function that makes the Arrow array of some rows, by the type of a field.
_ARRAYS: Mapping[type[Field], Callable[..., Any]] = {
    LabelField: _labels,
    LabelsField: _several,
    ObjectsField: _objects,
    TextField: _texts,
    RaggedField: _ragged,
    ArrayField: _numbers,
}
