"""Data sets of Hugging Face's `datasets` as sequences of samples, with the bytes of their images.

They are detected by their methods: the library is not imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.sources.row_objects import CATEGORY_NAMES, struct_objects


def hugging_face_rows(sequence: Any) -> Any:
    """Wrap a `datasets.Dataset` with a column of images; other objects, and one with a transform, stay as they are."""
    features = getattr(sequence, "features", None)
    if not isinstance(features, Mapping) or not hasattr(sequence, "cast_column"):
        return sequence
    images = [name for name, feature in features.items() if type(feature).__name__ == "Image"]
    if not images or (getattr(sequence, "format", None) or {}).get("type") == "custom":
        return sequence
    return HuggingFaceRows(sequence, next((name for name in ("image", "img") if name in images), images[0]))


class HuggingFaceRows:
    """Images are bytes of files, or paths; `label` and `objects` have the names of their ClassLabel."""

    def __init__(self, dataset: Any, image: str) -> None:
        features = dataset.features
        for name, feature in features.items():
            if type(feature).__name__ == "Image":
                dataset = dataset.cast_column(name, type(feature)(decode=False))
        self._rows = dataset.with_format(None)
        self._image = image
        classed = [name for name, feature in features.items() if _names(_below_lists(feature))]
        self._label = next((name for name in ("label", "labels") if name in features), classed[0] if classed else "")
        objects = _below_lists(features.get("objects"))
        self._has_objects = isinstance(objects, Mapping) and not {"bbox", "oriented_boxes", "keypoints"}.isdisjoint(
            objects
        )
        category = next((name for name in CATEGORY_NAMES if name in objects), "") if self._has_objects else ""
        labels, categories = (
            _names(_below_lists(features.get(self._label))),
            _names(_below_lists(objects.get(category))) if category else (),
        )
        if labels and categories and labels != categories:
            message = "expected the same classes for label and objects, found others."
            raise SourceError(Problem(self._label, "unknown-class", message), "Convert what its to_parquet() writes.")
        self.classes = labels or categories
        feature = features.get(self._label)
        self._has_several = feature is not None and _below_lists(feature) is not feature

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = dict(self._rows[index])
        image = row.pop(self._image) or {}
        sample: dict[str, Any] = {"image": image.get("bytes") or (Path(image["path"]) if image.get("path") else None)}
        if self._has_several:
            found = row.pop(self._label)
            sample["labels"] = found if found is None else [self._name(each) for each in found]
        elif self._label:
            sample["label"] = row.pop(self._label)
        if self._has_objects:
            objects = struct_objects(row.pop("objects"))
            empty: Mapping[str, Any] = {name: [] for name in objects.names}
            labels = {} if objects.labels is None else {"labels": list(objects.labels)}
            sample["objects"] = {**empty, **objects.values, **labels}
        return sample | row

    def _name(self, label: Any) -> str:
        is_index = isinstance(label, int) and 0 <= label < len(self.classes)
        return self.classes[label] if is_index else str(label)


def _below_lists(feature: Any) -> Any:
    """Feature of the elements of a list, in the form of any version of the library."""
    if isinstance(feature, list) and feature:
        return _below_lists(feature[0])
    return _below_lists(feature.feature) if hasattr(feature, "feature") else feature


def _names(feature: Any) -> tuple[str, ...]:
    """Names of a ClassLabel; empty for other features."""
    return tuple(getattr(feature, "names", None) or ()) if type(feature).__name__ == "ClassLabel" else ()
