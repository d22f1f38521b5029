"""Add fields to a store that is there, and drop them: no image is read, and no file of a shard is changed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tensorstore_ds.annex.editing.field_values import Known, Values, field_of
from tensorstore_ds.annex.editing.given import Given
from tensorstore_ds.annex.editing.in_place import (
    Changes,
    InPlace,
    changing,
    remove_leftovers,
    removed_after,
    summary_of,
)
from tensorstore_ds.conversion.crops import SOURCE_BOX
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.durable import check_room
from tensorstore_ds.errors import ConversionError, OptionError
from tensorstore_ds.format.history import steps_of
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.kinds.base import Field, image_of
from tensorstore_ds.format.schema import NAME
from tensorstore_ds.options import refusal, shortened, unknown_name
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.verification import image_sizes

#: Names that mean something else in a store or in a condition.
_TAKEN = ("image", "key", "size", "mask", "width", "height", "classes")
#: Names that say what a field is.
_KINDS: Mapping[str, type[Field]] = {"label": LabelField, "objects": ObjectsField}
#: Values of a field for each split, by its name.
BySplit = Mapping[str, Values]


@dataclass(frozen=True, slots=True)
class FieldsSummary(Summary):
    """Result of `add_fields`, `add_file` or `drop_fields`. `rows` and `nbytes` describe the changed store.

    Attributes:
        fields: the added or dropped fields, with the type of their values, such as ``{"loss": "float32"}``.
        removed_shards: number of shards that `drop_fields` removed.
        removed_nbytes: number of bytes that `drop_fields` freed.
        completed: whether an interrupted `drop_fields` was completed.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    removed_shards: int = 0
    removed_nbytes: int = 0
    completed: bool = False


def add_fields(
    store: str | os.PathLike[str],
    fields: Mapping[str, Any],
    *,
    split: str | None = None,
    classes: Mapping[str, Sequence[str]] | None = None,
    replace: bool = False,
    progress: OnProgress | None = None,
) -> FieldsSummary:
    """Add fields to a store in place, such as embeddings, losses, tags, scores or predictions.

    >>> embeddings = np.zeros((12, 16), np.float32)  # the rows of train, then those of val
    >>> tsds.editing.add_fields("photos.tsds", {"embedding": embeddings}).fields
    {'embedding': 'float32 16'}
    >>> tsds.open("photos.tsds")["val"]["embedding"].shape
    (4, 16)
    >>> _ = tsds.editing.add_fields("photos.tsds", {"loss": {"train": np.zeros(8), "val": np.ones(4)}})
    >>> tsds.open("photos.tsds")["val"]["loss"][0]
    np.float64(1.0)

    Only the values of these fields are written. Images are neither read nor written: the changed shards refer to the
    same files with hard links. On a file system without hard links, the files are copied. The manifest is replaced
    last, in one step, which changes the digest. If you have the store open, you continue to see the old state. If you
    open it afterwards, you see the new fields. If the call is interrupted, the store does not change.

    Args:
        store: path of a store, a folder.
        fields: values by field name. The values of a field are an array or a list for `split`, or a mapping from split
            names to arrays or lists. Without `split`, an array or list has the rows of all splits one after the other,
            in the order of the store.

            - numbers (N, ...): a NumPy array, which may be a `numpy.memmap` larger than memory, a tensor or a list.
              `bool` is stored as uint8.
            - texts: a list of N texts or None, or of N lists of texts.
            - objects: a list of N dicts or None, each with ``boxes``, x1 y1 x2 y2 in pixels of the stored image, or
              ``keypoints``; ``labels``; and other values (m, ...), such as ``scores``.

        split: name of the split of the values. In other splits, values of a new field are unknown, and values of an
            existing field do not change.
        classes: names of the classes, by field. Integers or texts are then stored as labels. Numbers (N, C), for each
            class 1, 0 or -1 (unknown), or lists of texts are stored as several labels per sample. Labels of objects
            have the classes of the objects of the store by default.
        replace: whether to replace the values of an existing field.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: a field exists and `replace` is False, the values have a wrong type or number, or the store is
            packed or given by URL.
        FormatError: the store is damaged.
        OutputError, ConversionError: the disk is full, or a different process is changing the store.
    """
    if not fields:
        raise OptionError("`fields`: expected values by the name of a field, found none.")
    if not isinstance(classes, Mapping | None):
        raise refusal("classes", 'names by field, such as {"tag": ["day", "night"]}', f"a {type(classes).__name__}")
    names = {name: tuple(each) for name, each in (classes or {}).items()}
    if unknown := names.keys() - fields.keys():
        raise OptionError(f"`classes`: expected names of the new fields, found {sorted(unknown)[0]}.")

    def values(opened: Store) -> dict[str, BySplit]:
        return {name: by_split(opened, name, each, split) for name, each in fields.items()}

    return run_add(store, values, names, is_replaced=replace, progress=progress)


def run_add(
    store: str | os.PathLike[str],
    values: Callable[[Store], Mapping[str, BySplit]],
    classes: Mapping[str, tuple[str, ...]],
    *,
    is_replaced: bool,
    progress: OnProgress | None,
    **details: Any,
) -> FieldsSummary:
    """Do the work of `add_fields`; `values` is called with the locked store, `details` go into the provenance."""
    began, notify = time.monotonic(), progress or in_notebook()
    with changing(store, "add the fields") as opened:
        path, own = opened.path, opened.manifest.fields
        made: dict[str, tuple[Field, dict[str, Given]]] = {}
        found = values(opened)
        others = ", or add only the others with `columns`" if details and len(found) > 1 else ""
        for name, each in found.items():
            _check_name(name, own, others, is_replaced=is_replaced)
            made[name] = field_of(name, each, Known(own, classes.get(name)))
            if name in _KINDS and not isinstance(made[name][0], _KINDS[name]):
                expected = f"a field of kind {_KINDS[name].kind} of this name, found {made[name][0].describe()}"
                raise OptionError(f"{name}: expected {expected}. Pass its `classes`, or rename it.")
        notes = [note for name, each in made.items() for note in _checked(opened, name, *each)]
        for note in notes:
            notify(Progress("copy", 0, 0, 0, note))
        nbytes = sum(each.nbytes for _, given in made.values() for each in given.values())
        check_room(path, nbytes, ConversionError, "Make room.")
        opened, _ = remove_leftovers(opened, all_replaced=False)
        fields = {**own, **{name: new for name, (new, _) in made.items()}}
        changes = Changes(given={name: given for name, (_, given) in made.items()})
        step = {"command": "add", "fields": list(made), **details}
        manifest = InPlace(opened, fields, changes, notify).run(step)
        described = {name: new.describe() for name, (new, _) in made.items()}
        return summary_of(FieldsSummary, path, manifest, began, notes, fields=described)


def drop_fields(
    store: str | os.PathLike[str], fields: Collection[str], *, progress: OnProgress | None = None
) -> FieldsSummary:
    """Remove fields from a store in place, with their files.

    >>> _ = tsds.editing.add_fields("photos.tsds", {"loss": np.zeros(12)})
    >>> tsds.editing.drop_fields("photos.tsds", ["loss"]).fields
    {'loss': 'float64'}
    >>> "loss" in tsds.open("photos.tsds")["train"].fields
    False

    The manifest is replaced first, which changes the digest. Then the files of these fields are removed, and all shards
    that earlier changes kept for open readers. If you have the store open, you can still read the files that you have
    mapped. Opening a different file of a shard raises a `FormatError` with the reason ``replaced``.

    Args:
        store: path of a store, a folder.
        fields: names of the fields. `image`, `key`, and fields that other fields depend on cannot be dropped. Without
            `size`, nothing can be appended to the store.
        progress: function that is called with the progress, as in `convert`.

    Raises:
        OptionError: a field does not exist or cannot be dropped, or the store is packed or given by URL.
        FormatError: the store is damaged.
        ConversionError: the disk is full, a different process is changing the store, or old files cannot be removed.
    """
    names = [fields] if isinstance(fields, str) else list(dict.fromkeys(fields))
    if not names:
        raise OptionError("`fields`: expected names of fields, found none.")
    began, notify = time.monotonic(), progress or in_notebook()
    with changing(store, "drop the fields") as opened:
        path, own = opened.path, opened.manifest.fields
        if completes := _was_interrupted(opened, names):
            described: dict[str, str] = dict.fromkeys(names, "")
        else:
            for name in names:
                _check_dropped(opened, name, names)
            described = {name: own[name].describe() for name in names}
            opened, _ = remove_leftovers(opened, all_replaced=False)
            kept = {name: each for name, each in own.items() if name not in names}
            InPlace(opened, kept, Changes(), notify).run({"command": "drop", "fields": names})
        dropped, removed = removed_after(path, "the fields are dropped from the store")
        more = {"removed_shards": removed.shards, "removed_nbytes": removed.nbytes, "completed": completes}
        notes = ("without size, nothing can be appended to this store, or merged with it.",) if "size" in names else ()
        return summary_of(FieldsSummary, path, dropped.manifest, began, notes, fields=described, **more)


def _check_name(name: object, own: Mapping[str, Field], others: str, *, is_replaced: bool) -> None:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        expected = "a name of a field: up to 64 of a-z, 0-9, _ and -, the first none of -"
        raise OptionError(f"`fields`: expected {expected}, found {shortened(repr(name))}. Rename it.")
    if name in _TAKEN:
        raise OptionError(f"`fields`: expected a name that a store does not use itself, found {name}. Rename it.")
    if name in own and not is_replaced:
        found, advice = f"found {name} ({own[name].describe()})", f"Pass `replace=True` to replace it{others}."
        raise OptionError(f"`fields`: expected a field that is not there, {found}. {advice}")
    if name in own and own[name].encoding:
        raise OptionError(f"`fields`: expected a field that is no image, found {name}. Convert the images again.")


def by_split(store: Store, name: str, values: Values, split: str | None) -> BySplit:
    """The values of each split, one per row."""
    found: BySplit
    if isinstance(values, Mapping):
        if split is not None:
            raise OptionError(f"{name}: expected values of the split {split}, found a dict. Leave out `split`.")
        found = values
    elif split is not None:
        found = {split: values}
    else:
        found = _divided(store, name, values)
    if not found:
        raise OptionError(f"{name}: expected values of a split, found none.")
    for each, some in found.items():
        if each not in store:
            raise unknown_name(store.name, "split", each, store)
        if (count := _count(name, some)) != len(store[each]):
            raise OptionError(f"{name}: expected {len(store[each]):,} rows of {each}, found {count:,}.")
    return found


def _divided(store: Store, name: str, values: Values) -> BySplit:
    counts = {each: len(store[each]) for each in store}
    total, count = sum(counts.values()), _count(name, values)
    if count != total:
        named = ", ".join(f"{rows:,} of {each}" for each, rows in counts.items())
        advice = "" if len(counts) < 2 else " For one split alone, name it with `split`."
        raise OptionError(f"{name}: expected {total:,} rows ({named}), found {count:,}.{advice}")
    found, first = {}, 0
    for each, rows in counts.items():
        found[each] = values[first : first + rows]
        first += rows
    return found


def _count(name: str, values: Values) -> int:
    try:
        if isinstance(values, str | bytes):
            raise TypeError
        return len(values)
    except TypeError:
        raise OptionError(f"{name}: expected an array or a list, found {type(values).__name__}.") from None


def _checked(store: Store, name: str, field: Field, given: Mapping[str, Given]) -> Iterator[str]:
    """Notes for the user; raises `OptionError` if values break a rule of their kind, or if the splits differ."""
    own, others = store.manifest.fields.get(name), [each for each in store if each not in given and len(store[each])]
    if others and own is not None and own != field:
        expected = f"values of all splits, or {own.describe()} as in {', '.join(others)}"
        raise OptionError(f"{name}: expected {expected}, found {field.describe()}. Give all splits, or another name.")
    if others and own is None:
        number = field.unknown
        yield f"{name} is not known in {', '.join(others)}: stored there as {'none' if number is None else number}."
    for split, rows in given.items():
        sizes = partial(image_sizes, store[split], image_of(field))
        for _, message in field.check(rows, sizes):
            raise OptionError(f"{name} of {split}: {message} Correct the values.")


def _check_dropped(store: Store, name: str, names: Sequence[str]) -> None:
    fields = store.manifest.fields
    if name not in fields:
        raise unknown_name(store.name, "field", name, fields)
    why = ""
    if name == "image":
        why = "a store is one of images"
    elif fields[name].encoding:
        others = [each for each, field in fields.items() if getattr(field, "image", None) == name and each not in names]
        why = f"it is the image of {', '.join(others)}" if others else ""
    elif fields[name].is_key:
        why = "tsds append, update and add find samples by it"
    elif name == SOURCE_BOX:
        why = "it tells which samples are crops of one image"
    if why:
        rest = ",".join(each for each in fields if each not in names)
        advice = f"tsds pull with the other fields ({rest}) writes a store without it."
        raise OptionError(f"`fields`: expected a field that can be dropped, found {name}: {why}. {advice}")


def _was_interrupted(store: Store, names: Sequence[str]) -> bool:
    """Whether an interrupted change has dropped these fields and left files of them."""
    last: Mapping[str, Any] = next(iter(reversed(steps_of(store.manifest.provenance))), {})
    is_same = last.get("command") == "drop" and last.get("fields") == list(names)
    return is_same and store.replaced[0] > 0 and not any(name in store.manifest.fields for name in names)
