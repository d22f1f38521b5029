"""What a store knows of itself, as its papers tell it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tensorstore_ds.annex.editing.skipped import skipped_in
from tensorstore_ds.annex.publishing.answers import Answers
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.format.kinds import ImageField, LabelField, LabelsField, MaskField, ObjectsField, TextField
from tensorstore_ds.format.kinds.base import first_of_kind, of_kind
from tensorstore_ds.options import flags
from tensorstore_ds.reading.store import Store
from tensorstore_ds.reading.stored_images import image_digest

#: Stores of more bytes are not read for duplicates.
_READ_FOR_DUPLICATES = 4 * 1024**3
#: The longest name of a store in its papers.
_LONGEST_NAME = 96
#: What is counted for each class, by kind of field.
COUNTED = {"label": "samples", "objects": "objects", "mask": "pixels"}


@dataclass(frozen=True, slots=True)
class Facts:
    """A store and the known facts about it.

    `name` is that of the store's folder when shared, ``NAME.tsds``, of ASCII letters, digits, dots, _ and -. `answers`
    are by the names of `QUESTIONS`. `faults` are, by reason, how often the conversion left something out, and the first
    problem. `duplicates` are the numbers of images with the bytes of an earlier one, and of those that repeat one of a
    different split, or None if the store is too large to look for them. `published` is a date, or empty.
    """

    store: Store
    name: str
    answers: Answers
    faults: Mapping[str, tuple[int, str]]
    duplicates: tuple[int, int] | None
    published: str

    @property
    def title(self) -> str:
        """Display name of the data set."""
        title: str = self.answers.get("title") or self.name.removesuffix(".tsds")
        return title

    @property
    def description(self) -> str:
        """Description of the data by its authors; empty if missing."""
        noted = self.store.manifest.provenance.get("description")
        text: str = self.answers.get("description") or (noted if isinstance(noted, str) else "")
        return text

    @property
    def creators(self) -> list[str]:
        """Creators of the data: people as ``Family, Given``."""
        return list(self.answers.get("creators", ()))

    @property
    def version(self) -> str:
        """The version of the data set."""
        version: str = self.answers.get("version") or "1.0.0"
        return version

    @property
    def rows(self) -> int:
        """Number of all samples."""
        return sum(len(self.store[name]) for name in self.store)

    @property
    def filled(self) -> list[str]:
        """Splits with samples."""
        return [name for name in self.store if len(self.store[name])]

    @property
    def classes(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Kind and class names of each field with classes."""
        return {n: (f.kind, f.classes) for n, f in self.store.manifest.fields.items() if f.classes}

    @property
    def tasks(self) -> list[str]:
        """Tasks that models can learn, as Hugging Face names them."""
        fields = self.store.manifest.fields
        objects = {value for field in of_kind(fields, ObjectsField).values() for value in field.values}
        found = {
            "image-classification": bool(of_kind(fields, LabelField) or of_kind(fields, LabelsField)),
            "object-detection": "boxes" in objects,
            "keypoint-detection": "keypoints" in objects,
            "image-segmentation": bool(of_kind(fields, MaskField)),
            "image-to-text": bool(of_kind(fields, TextField)),
        }
        return [task for task, is_one in found.items() if is_one]

    @property
    def objects(self) -> dict[str, dict[str, int]]:
        """Number of objects in each counted split, by field."""
        fields = of_kind(self.store.manifest.fields, ObjectsField)
        known = {each: {name: self.store[name].statistics_of(each) for name in self.store} for each in fields}
        totals = {each: {name: s["total"] for name, s in own.items() if "total" in s} for each, own in known.items()}
        return {each: found for each, found in totals.items() if found}

    def counts(self, field: str) -> dict[str, dict[str, int]]:
        """Class counts of a field, by split and class name; without splits that were not counted."""
        counts = {name: self.store[name].class_counts.get(field, {}) for name in self.store}
        return {name: found for name, found in counts.items() if found}

    def totals(self, field: str) -> dict[str, int]:
        """Class counts of a field in all splits; empty if a split was not counted."""
        counts = self.counts(field)
        if len(counts) < len(self.filled):
            return {}
        return {name: sum(each[name] for each in counts.values()) for name in self.classes[field][1]}


def facts_of(store: Store, answers: Answers) -> Facts:
    """Facts about a store; reads `skipped.jsonl`, and all images of a small store."""
    created = store.manifest.provenance.get("created")
    made = re.match(r"\d{4}-\d{2}-\d{2}(?!\d)", created, re.ASCII) if isinstance(created, str) else None
    published = answers.get("published") or (made[0] if made else "")
    return Facts(store, shared_name(store.path.name), answers, _faults(store), _duplicates(store), published)


def shared_name(name: str) -> str:
    """Name of a store's folder in a repository, from its local name.

    >>> shared_name("photos.tsds"), shared_name("my photos"), shared_name("..")
    ('photos.tsds', 'my-photos.tsds', 'store.tsds')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name.removesuffix(".tsds")).strip(".-")[:_LONGEST_NAME]
    return f"{plain or 'store'}.tsds"


def options_of(store: Store) -> dict[str, str]:
    """The options of the conversion as text: encoding and layout, and others that are not the default."""
    known = flags(ConvertOptions)
    usual = {name: json.dumps(each.default) for name, each in known.items() if name not in ("encoding", "layout")}
    options = {str(name): value for name, value in store.manifest.conversion_options.items() if value is not None}
    return {name: _shown(value) for name, value in options.items() if usual.get(name) != json.dumps(value)}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def size_category(rows: int) -> str:
    """Size category by Hugging Face's names.

    >>> size_category(999), size_category(1000), size_category(2_000_000)
    ('n<1K', '1K<n<10K', '1M<n<10M')
    """
    names = ["1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T"]
    limits = [10 ** (3 + i) for i in range(len(names))]
    place = sum(rows >= limit for limit in limits)
    if place == 0:
        return "n<1K"
    return f"{names[place - 1]}<n<{names[place]}" if place < len(names) else "n>1T"


def _faults(store: Store) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for problem in skipped_in(store):
        count, example = found.get(problem.reason, (0, f"{problem.where}: {problem.message}"))
        found[problem.reason] = count + 1, example
    return dict(sorted(found.items()))


def _duplicates(store: Store) -> tuple[int, int] | None:
    image = first_of_kind(store.manifest.fields, ImageField)
    if image is None or store.nbytes > _READ_FOR_DUPLICATES:
        return None
    seen: dict[bytes, str] = {}
    images = across = 0
    for name in store:
        column = store[name][image]
        for row in range(len(column)):
            digest = image_digest(column[row])
            images += digest in seen
            across += seen.setdefault(digest, name) != name
    return images, across
