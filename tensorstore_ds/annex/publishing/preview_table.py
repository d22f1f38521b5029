"""A small table of samples, as Parquet: what viewers and the Hub show, because they cannot read a store."""

from __future__ import annotations

import io
from typing import Any, TypeVar

import numpy as np
from PIL import Image

from tensorstore_ds.annex.arrow_features import (
    IMAGE_FEATURE,
    arrow_schema,
    class_feature,
    sequence_feature,
    value_feature,
)
from tensorstore_ds.annex.pictures.contact_sheet import draw_annotations, picture_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import (
    ImageField,
    KeyField,
    LabelField,
    LabelsField,
    MaskField,
    ObjectsField,
    TextField,
)
from tensorstore_ds.format.kinds.base import Field, of_kind
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.reading.store import Split

#: Samples of a split, at most; the longer side of their images; bytes of all previews of a store.
SAMPLES, SIDE, NBYTES = 200, 256, 18_000_000
_TINY = 64  # images up to this size are kept without loss

K = TypeVar("K", bound=Field)


def preview_table(split: Split, nbytes: int = NBYTES) -> bytes:
    """Some samples of a split, chosen at random with a fixed seed, as the bytes of a Parquet file.

    Columns: `image`, at most `SIDE` pixels wide and high; `drawn`, the same with boxes, keypoints and masks drawn, if
    there are any; each field of labels; `objects` with `bbox` (x, y, width, height in pixels of `image`) and
    `category`; `key`, if there are keys. Hugging Face finds its features in the schema. The number of samples is
    reduced to keep images below `nbytes`.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise OptionError(
            "to write a preview, pyarrow is needed: pip install '.[hub]' in a clone of tensorstore-ds"
        ) from None
    image = split.first(ImageField)
    if image is None:
        raise OptionError(f"{split.name}: expected a field of images, found none. There is nothing to preview.")
    samples = _samples(split, image, nbytes)
    schema = arrow_schema(_features(split), {})
    columns = {name: [sample[name] for sample in samples] for name in schema.names}
    buffer = io.BytesIO()
    # Of few rows a group, so that a viewer reads the first without the others.
    pq.write_table(pa.table(columns, schema=schema), buffer, compression="zstd", row_group_size=100)
    return buffer.getvalue()


def _samples(split: Split, image: str, nbytes: int) -> list[dict[str, Any]]:
    rows = np.random.default_rng(0).choice(len(split), min(SAMPLES, len(split)), replace=False).tolist()
    taken: dict[int, dict[str, Any]] = {}
    with quiet_pillow():
        for row in rows:
            sample = _sample(split, row, image)
            nbytes -= sum(len(sample[name]["bytes"]) for name in ("image", "drawn") if name in sample)
            nbytes -= sum(len(text) for name in _own(split, TextField) for text in sample[name])
            if nbytes < 0 and taken:
                break
            taken[row] = sample
    return [taken[row] for row in sorted(taken)]


def _sample(split: Split, row: int, image: str) -> dict[str, Any]:
    picture = picture_of(split, row, image)
    scale = min(1.0, SIDE / max(picture.size))
    if scale < 1:
        size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.LANCZOS)
    sample: dict[str, Any] = {"image": _file(picture, row)}
    if _has_drawing(split):
        drawn = picture.copy()
        draw_annotations(drawn, split, row, scale, image)
        sample["drawn"] = _file(drawn, row)
    for name in _own(split, LabelField):
        label = int(split[name][row])
        sample[name] = label if label >= 0 else None
    for name in _own(split, LabelsField):
        sample[name] = np.flatnonzero(split[name][row] > 0).tolist()
    for name in _own(split, ObjectsField):
        sample[name] = _objects(split[name][row], scale)
    for name in _own(split, TextField):
        sample[name] = split[name][row]
    if of_kind(split.fields, KeyField):
        sample["key"] = split.key(row)
    return sample


def _has_drawing(split: Split) -> bool:
    return bool(of_kind(split.fields, ObjectsField) or of_kind(split.fields, MaskField))


def _file(picture: Image.Image, row: int) -> dict[str, Any]:
    is_tiny = max(picture.size) <= _TINY
    buffer = io.BytesIO()
    picture.save(buffer, "PNG" if is_tiny else "JPEG", quality=88)
    return {"bytes": buffer.getvalue(), "path": f"{row}.{'png' if is_tiny else 'jpg'}"}


def _objects(values: Any, scale: float) -> dict[str, Any]:
    objects: dict[str, Any] = {}
    if "boxes" in values:
        boxes = values["boxes"].astype(np.float64) * scale
        boxes[:, 2:] -= boxes[:, :2]
        objects["bbox"] = boxes.round(2).tolist()
    if "labels" in values:
        objects["category"] = values["labels"].tolist()
    return objects


def _features(split: Split) -> dict[str, Any]:
    """The feature of each column for Hugging Face."""
    features: dict[str, Any] = {"image": IMAGE_FEATURE, **({"drawn": IMAGE_FEATURE} if _has_drawing(split) else {})}
    features |= {name: class_feature(field.classes) for name, field in _own(split, LabelField).items()}
    for name, several in _own(split, LabelsField).items():
        features[name] = sequence_feature(class_feature(several.classes))
    for name, field in _own(split, ObjectsField).items():
        box = sequence_feature(sequence_feature(value_feature("float32")))
        own = {"bbox": box} if "boxes" in field.values else {}
        own |= {"category": sequence_feature(class_feature(field.classes))} if "labels" in field.values else {}
        features |= {name: own} if own else {}
    features |= dict.fromkeys(_own(split, TextField), sequence_feature(value_feature("string")))
    return features | ({"key": value_feature("string")} if of_kind(split.fields, KeyField) else {})


def _own(split: Split, kind: type[K]) -> dict[str, K]:
    """Fields that become columns of their name; a field with the name of another column is left out."""
    return {name: field for name, field in of_kind(split.fields, kind).items() if name not in ("image", "drawn", "key")}
