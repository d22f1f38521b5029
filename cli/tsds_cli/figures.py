"""The statistics of a split, as the manifest has them, with what is not of the expected form taken for absent.

A manifest may come from anywhere, and from a later version of the format: nothing in it may stop `tsds info`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorstore_ds.reading.store import Store

#: The statistic that counts the classes of a kind of field.
_COUNTS = {"label": "class_counts", "objects": "object_counts"}


def class_lists(store: Store) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Of each field with classes: its name, the classes, and the statistic that counts them."""
    for name, field in store.manifest.fields.items():
        if field.classes and field.kind in _COUNTS:
            yield name, field.classes, _COUNTS[field.kind]


def counts(statistics: Mapping[str, Any], name: str, length: int) -> list[int] | None:
    """The counts of `length` classes.

    >>> counts({"class_counts": [3, 0]}, "class_counts", 2), counts({"class_counts": "many"}, "class_counts", 2)
    ([3, 0], None)
    """
    found = statistics.get(name)
    return found if isinstance(found, list) and len(found) == length and all(map(_is_count, found)) else None


def objects(statistics: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """``total``, ``min``, ``max`` and ``mean`` of the objects of an image."""
    return _range(statistics.get("objects"), "total", "min", "max")


def masks(store: Store, split: str) -> Iterator[tuple[str, list[tuple[str, int]], int]]:
    """Of each field of masks: its name, the pixels of each class, and how many are ignored."""
    found = store[split].statistics.get("masks")
    for name, field in store.manifest.fields.items():
        entry = found.get(name) if isinstance(found, Mapping) else None
        pixels = counts(entry, "pixels", len(field.classes)) if isinstance(entry, Mapping) else None
        if pixels is not None and isinstance(entry, Mapping) and _is_count(entry.get("ignored")):
            yield name, list(zip(field.classes, pixels, strict=True)), entry["ignored"]


def sizes(statistics: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], dict[str, int]]:
    """``min``, ``max``, ``mean`` of height and width in the source; images of each size, if not too many differ."""
    found = statistics.get("sizes")
    if not isinstance(found, Mapping):
        return {}, {}
    sides = {side: found[side] for side in ("height", "width") if _range(found.get(side), "min", "max")}
    distinct = found.get("distinct")
    named = distinct.items() if isinstance(distinct, Mapping) else ()
    return sides, {size: n for size, n in named if _is_count(n)}


def _range(value: object, *integers: str) -> Mapping[str, Any] | None:
    if not isinstance(value, Mapping) or not _is_number(value.get("mean")):
        return None
    return value if all(_is_count(value.get(name)) for name in integers) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
