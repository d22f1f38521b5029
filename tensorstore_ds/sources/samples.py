"""Convert Python objects to samples, which must all have the fields of the first.

A sample is (image, label), (image, target), a dict, or an image alone. Pillow's images and torch's tensors are
detected by their methods: neither library is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError, one_line
from tensorstore_ds.format.kinds import (
    OBJECT_VALUES,
    LabelField,
    LabelsField,
    MaskField,
    ObjectsField,
    RaggedField,
    TextField,
)
from tensorstore_ds.format.kinds.base import ArrayField, Field, TableField, of_kind
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.format.kinds.labels import NOT_KNOWN
from tensorstore_ds.format.manifest_values import MOST_DIMENSIONS
from tensorstore_ds.format.schema import DTYPES, MOST_CHANNELS, NAME, ArraySpec
from tensorstore_ds.imaging.oriented import as_corners, corners_to_oriented, oriented_faults
from tensorstore_ds.sources.base import FLAGS, LISTS, Objects, Sample, SourceOptions
from tensorstore_ds.sources.names import RESERVED, field_name, number_classes, numbered_keypoints, some_names

_LABEL_KEYS = ("label", "labels")
#: Names of arrays that may have a number for each class.
_NUMBERS_OF_CLASSES = ("labels", "target")
#: Names of what is stored as texts: a text, or a list of texts.
TEXT_NAMES = frozenset(f"{name}{end}" for name in ("caption", "comment", "sentence", "text") for end in ("", "s"))
#: Values of objects that are whole numbers: dtype, and the largest one.
_WHOLE: Mapping[str, tuple[Any, int]] = {
    "labels": (np.int64, 2**63 - 1),
    "rle": (np.uint32, 2**32 - 1),
    "visibility": (np.uint8, 2),
    **dict.fromkeys(FLAGS, (np.uint8, 255)),
}
_MASK = "(H, W) of the image"
_LISTS = "a list of any length"
_TEXTS = "texts"
_FOLDER = ". Convert the folder instead, if it is a data set of annotated files, such as torchvision's CocoDetection"


@dataclass(frozen=True, slots=True)
class RaggedRows:
    """A value of a sample with any number of rows, for `Writer` and `convert`: an array (m, ...), and m may differ.

    >>> pixels = np.zeros((32, 32, 3), np.uint8)
    >>> with tsds.Writer("out.tsds") as writer:
    ...     for words in (2, 0, 5):
    ...         embeddings = np.zeros((words, 768), np.float16)
    ...         writer.append("train", image=pixels, words=tsds.conversion.RaggedRows(embeddings))
    >>> tsds.open("out.tsds")["train"][2]["words"].shape
    (5, 768)

    Attributes:
        values: array or tensor (m, ...).
    """

    values: Any

    def array(self) -> NDArray[Any]:
        """The values as an array."""
        array = as_array(self.values)
        if array is None or not array.ndim or 0 in array.shape[1:]:
            found = f"{getattr(self.values, 'dtype', type(self.values).__name__)} {getattr(self.values, 'shape', '')}"
            raise ValueError(f"expected an array (m, ...) of numbers, found {found.strip()}{advice_on(self.values)}")
        return array


def advice_on(value: Any) -> str:
    """What to do about a tensor of a type that stores lack; empty for all else."""
    if str(getattr(value, "dtype", "")) != "torch.bfloat16":
        return ""
    return ". Pass its view(torch.uint16), and take the view(torch.bfloat16) of batches"


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a sample."""

    image: Any  #: a path, the bytes of a file, a PIL image, or pixels (H, W) or (H, W, C)
    label: int | str | None = None  #: a class index, or a class name, or `UNLABELLED`
    unlabelled: bool = False  #: its label is None: where others have one, it is `UNLABELLED`
    labels: tuple[str, ...] | int | None = None  #: names of classes, or `NOT_KNOWN`; numbers are among `arrays`
    objects: Objects | None = None
    mask: Any = None  #: class indices (H, W), a PIL image or a path
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)  #: numbers that are fields of their own, by name
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: of `TEXT_NAMES`
    ignored: tuple[str, ...] = ()  #: names of what is neither
    ragged: frozenset[str] = frozenset()  #: names of `arrays` whose length differs between samples

    @property
    def has_classes(self) -> bool:
        """Whether a part is a class index."""
        more = self.labels is not None or self.mask is not None or "labels" in (self.objects or {})
        return self.label is not None or more

    @property
    def may_have_classes(self) -> bool:
        """Whether a part can be a class index, or a number for each class."""
        return self.has_classes or self.unlabelled or not {*_NUMBERS_OF_CLASSES}.isdisjoint(self.arrays)


class SampleReader:
    """Reads Python objects as samples; errors say that they come from `where`.

    `fields` are those of all samples except image, size and key; `learn` or `use` sets them.
    """

    def __init__(self, options: SourceOptions, where: str) -> None:
        self.options = options
        self.classes: tuple[str, ...] | None = None  #: names for labels where the options have none
        self._where = where
        self.use({})

    def use(self, fields: Mapping[str, Field]) -> None:
        """Set the fields of all samples."""
        self.fields = fields
        self._shapes = _field_shapes(fields)
        self._indices = {name: {text: i for i, text in enumerate(field.classes)} for name, field in fields.items()}

    def learn(self, parts: Parts) -> tuple[Problem, ...]:
        """Set the fields from the first sample; returns problems for parts that are not stored."""
        classes = self.classes
        if self.options.classes is not None:
            classes = number_classes((), self.options.classes, self._where)
        if parts.has_classes and classes is None:
            named = parts.label is not None or parts.labels is not None
            what = "labels" if named else "masks" if parts.mask is not None else "labels of objects"
            message = f"expected class names for the {what}, found none."
            advice = "Pass the names as `classes`, in the order of their numbers, from 0."
            raise SourceError(Problem(self._where, "unknown-class", message), advice)
        fields: dict[str, Field] = {}
        if parts.label is not None or (parts.unlabelled and classes and not parts.has_classes):
            fields["label"] = LabelField(classes=classes or ())
        labels = self._labels_field(parts, classes or ())
        if labels is not None:
            fields["labels"] = labels
        if parts.objects is not None:
            fields["objects"] = self._objects_field(parts.objects, classes or ())
        if parts.mask is not None:
            fields["mask"] = MaskField.of(classes or ())
        for name in parts.texts:
            self._add(fields, name.lower(), name, TextField())
        for name, array in parts.arrays.items() if labels is None else _others(parts.arrays).items():
            field: Field = ArrayField(ArraySpec(array.dtype.name, array.shape))
            if name in parts.ragged:
                field = RaggedField.of(ArraySpec(array.dtype.name, array.shape[1:]))
            self._add(fields, self._checked_name(name, array), name, field)
        self.use(fields)
        return self._left_out(parts)

    def read(self, key: str, sample: Any) -> Sample:
        """Read a sample. Its arrays are copies, because the caller may reuse its buffers.

        Raises `SourceError` if it is not a sample, or its fields differ.
        """
        parts = parts_of(key, sample)
        if parts.unlabelled and "label" in self.fields:
            parts = replace(parts, label=UNLABELLED)
        if isinstance(labels := self.fields.get("labels"), LabelsField):
            parts = _with_labels(key, parts, labels)
        shapes = _text_shapes(self.fields) | _parts_shapes(parts)  # of texts there may be none
        if shapes != self._shapes:
            wanted, has = (
                ", ".join(f"{name} {shape}" for name, shape in sorted(s.items())) or "no field"
                for s in (self._shapes, shapes)
            )
            message = f"expected the fields of the first sample, {wanted}, found {has}."
            if more := sorted(shapes.keys() - self._shapes.keys()):
                message += f" The first sample had no {', '.join(more)}."
            raise SourceError(Problem(key, "annotation", message), "Give all samples the same fields.")
        label = None if parts.label is None else self._index(key, parts.label, "label")
        objects = parts.objects
        if objects is not None and "labels" in objects:
            labels_of = [self._index(key, each, "objects") for each in objects["labels"].tolist()]
            objects = {**objects, "labels": np.asarray(labels_of, np.int64)}
        masks = {} if parts.mask is None else {"mask": _own(parts.mask)}
        arrays = {field_name(name): array.copy() for name, array in parts.arrays.items()}
        texts = {name.lower(): each for name, each in parts.texts.items()}
        left_out = self._left_out(parts)
        return Sample(key, _own(parts.image), label, objects, masks, arrays, texts, left_out=left_out)

    def _add(self, fields: dict[str, Field], field: str, name: str, each: Field) -> None:
        if field in fields:
            message = f"expected names that differ, found {name}, and another that would be named {field} too."
            raise SourceError(Problem(self._where, "annotation", message), "Rename it.")
        fields[field] = each

    def _left_out(self, parts: Parts) -> tuple[Problem, ...]:
        return tuple(Problem(f"{self._where}: {name}", "not-listed", "not stored.") for name in parts.ignored)

    def _checked_name(self, name: str, array: NDArray[Any]) -> str:
        """Field name of an array; raises `SourceError` if no store can have it."""
        field, found = field_name(name), one_line(name) or '""'
        if not NAME.fullmatch(field):
            expected = "a field's name with letters, digits, - or _"
        elif field in RESERVED:
            expected = "a name that a store does not use itself"
        elif array.ndim > MOST_DIMENSIONS:
            expected, found = f"at most {MOST_DIMENSIONS} dimensions", f"{array.ndim} in {found}"
        else:
            return field
        advice = "Reshape it." if array.ndim > MOST_DIMENSIONS else "Rename it."
        raise SourceError(Problem(self._where, "annotation", f"expected {expected}, found {found}."), advice)

    def _objects_field(self, objects: Objects, classes: tuple[str, ...]) -> Field:
        classes = classes if "labels" in objects else ()
        if "keypoints" not in objects:
            return ObjectsField.of(*objects, classes=classes)
        named = numbered_keypoints(objects["keypoints"].shape[1], self.options.keypoints, self._where)
        return ObjectsField.of(*objects, classes=classes, keypoints=named.names, flip_pairs=named.flip_pairs)

    def _labels_field(self, parts: Parts, classes: tuple[str, ...]) -> LabelsField | None:
        """The field of several classes per sample, if the sample has them."""
        array = _numbers_of_classes(parts)
        beside_objects = parts.label is None and parts.mask is None and "labels" in parts.arrays
        is_row = array is not None and array.shape == (len(classes),) and np.isin(array, (NOT_KNOWN, 0, 1)).all()
        of_others = parts.has_classes and not (beside_objects and is_row)
        if parts.labels is None and (array is None or not classes or of_others):
            return None  # the classes are those of something else
        is_meant = parts.labels is not None or (array is not None and array.shape == (len(classes),))
        if "labels" not in parts.arrays and not (is_meant and self.options.classes is not None):
            is_meant = parts.labels is not None  # a target may be anything else
        if not is_meant and ("labels" not in parts.arrays or array is None or array.ndim != 1):
            return None
        return LabelsField.of(classes)  # if there is not one number per class, `read` raises

    def _index(self, key: str, label: int | str, field: str) -> int:
        indices = self._indices[field]
        index = indices.get(label, len(indices)) if isinstance(label, str) else label
        least = UNLABELLED if field == "label" else 0
        if not least <= index < len(indices):
            message = f"expected a label of the {some_names(indices)}, found {label!r}."
            raise SourceError(Problem(key, "unknown-class", message), "Correct the label or the class names.")
        return index


def _others(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return {name: array for name, array in arrays.items() if name not in _NUMBERS_OF_CLASSES}


def _numbers_of_classes(parts: Parts) -> NDArray[Any] | None:
    return next((parts.arrays[name] for name in _NUMBERS_OF_CLASSES if name in parts.arrays), None)


def _with_labels(key: str, parts: Parts, field: LabelsField) -> Parts:
    """The sample with `labels` as a row of numbers, from names of classes or its own numbers."""
    array = _numbers_of_classes(parts)
    if parts.labels is None and array is None:
        return parts
    if isinstance(parts.labels, tuple):
        places = {each: i for i, each in enumerate(field.classes)}
        if unknown := [each for each in parts.labels if each not in places]:
            message = f"expected labels of the {some_names(places)}, found {unknown[0]!r}."
            raise SourceError(Problem(key, "unknown-class", message), "Correct the label or the class names.")
        row = field.row_of(places[each] for each in parts.labels)
    elif array is None:
        row = field.row_of(None)
    elif array.shape != field.spec.shape or not np.isin(array, (NOT_KNOWN, 0, 1)).all():
        found = f"{array.shape}" if array.shape != field.spec.shape else f"{array.tolist()}"[:60]
        message = f"expected labels that are {field.spec.shape[0]} numbers, each 1, 0 or -1 (unknown), found {found}."
        raise SourceError(Problem(key, "annotation", message), "Correct the labels or the class names.")
    else:
        row = array.astype(np.int8)
    return replace(parts, labels=None, arrays={"labels": row, **_others(parts.arrays)})


def _own(image: Any) -> Any:
    return image.copy() if isinstance(image, np.ndarray) else image


def _parts_shapes(parts: Parts) -> dict[str, str]:
    """The fields of a sample, and the property of each that must not differ."""
    shapes = {
        field_name(name): _of_lists(a.dtype.name, a.shape[1:]) if name in parts.ragged else f"{a.dtype.name} {a.shape}"
        for name, a in parts.arrays.items()
    }
    if parts.label is not None:
        shapes["label"] = "int64 ()"
    if parts.mask is not None:
        shapes["mask"] = _MASK
    objects = parts.objects or {}
    each = {name: _LISTS if name in LISTS else str(array.shape[1:]) for name, array in objects.items()}
    shapes |= {name.lower(): _TEXTS for name in parts.texts}
    return shapes | {f"objects.{name}": shape for name, shape in each.items()}


def _of_lists(dtype: str, shape: tuple[int, ...]) -> str:
    """The property of a ragged field that must not differ."""
    return f"lists of {dtype} {shape}"


def _text_shapes(fields: Mapping[str, Field]) -> dict[str, str]:
    return dict.fromkeys(of_kind(fields, TextField), _TEXTS)


def _field_shapes(fields: Mapping[str, Field]) -> dict[str, str]:
    shapes = _text_shapes(fields)
    for name, each in fields.items():
        if isinstance(each, MaskField):
            shapes[name] = _MASK
        elif isinstance(each, ArrayField):
            shapes[name] = f"{each.spec.dtype} {each.spec.shape}"
        elif isinstance(each, RaggedField):
            shapes[name] = _of_lists(each.spec.dtype, each.spec.shape)
        elif isinstance(each, TableField) and name not in shapes:
            values = {value: _LISTS if spec.is_ragged else str(spec.shape) for value, spec in each.values.items()}
            shapes.update({f"{name}.{value}": shape for value, shape in values.items()})
    return shapes


# --- what an object means -----------------------------------------------------------------------------------------


def parts_of(key: str, sample: Any) -> Parts:
    """Take a sample apart; raises `SourceError` if it is not one."""
    try:
        return _parts(sample)
    except ValueError as error:
        raise SourceError(Problem(key, "annotation", f"{error}.")) from error


def _parts(sample: Any) -> Parts:
    if isinstance(sample, Mapping):
        key = next((key for key in ("image", "img") if key in sample), None)
        if key is None:
            raise ValueError(f"expected a key image, found {_names(sample)}")
        return _from_mapping(sample[key], {k: v for k, v in sample.items() if k != key}, arrays=True)
    if not isinstance(sample, tuple | list):
        return Parts(_image(sample))
    if len(sample) != 2:
        raise ValueError(f"expected (image, target) or a dict, found {len(sample)} items")
    image, target = sample
    if isinstance(target, Mapping):
        return _from_mapping(image, target, arrays=False)
    if target is None or isinstance(target, str):
        return Parts(_image(image), target, unlabelled=target is None)
    if hasattr(target, "getbands"):  # a PIL image, as of torchvision's VOCSegmentation
        return Parts(_image(image), mask=target)
    array = as_array(target)
    if array is None:
        found = type(target).__name__
        raise ValueError(f"expected a target that is a number, numbers or a dict, found {found}{_FOLDER}")
    if array.ndim == 0 and array.dtype.kind in "iu":
        return Parts(_image(image), int(array))
    return Parts(_image(image), arrays={"target": array})


def as_array(value: Any) -> NDArray[Any] | None:
    """A number, numbers or a tensor as an array of a dtype that stores support; None for all else.

    Raises `ValueError` for a masked array, whose mask a store would lose.
    """
    is_tensor = hasattr(value, "detach")
    if not is_tensor and not isinstance(value, np.ndarray | np.generic | int | float | list | tuple):
        return None
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("expected numbers without a mask, found a masked array. Pass its filled() values")
    try:  # a torch tensor may be on a device, or part of a graph
        array = np.asarray(value.detach().cpu().numpy() if is_tensor else value)
    except (TypeError, ValueError):  # lists of differing lengths; a type that NumPy has not, such as bfloat16
        return None
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.dtype.name in DTYPES else None


def _image(value: Any) -> Any:
    """A path, a file's bytes, a PIL image, or pixels (H, W) or (H, W, C); tensors are (C, H, W), as torch has them."""
    if isinstance(value, str | os.PathLike):
        return Path(value)
    if isinstance(value, bytes) or hasattr(value, "getbands"):  # of a PIL image
        return value
    is_tensor = hasattr(value, "detach")
    array = as_array(value) if is_tensor or isinstance(value, np.ndarray) else None
    if array is None:
        raise ValueError(f"expected an image, found {type(value).__name__}")
    if str(getattr(value, "dtype", "")) in ("bool", "torch.bool"):
        array = array * np.uint8(255)  # as Pillow reads them
    if array.ndim == 3 and is_tensor:
        array = array.transpose(1, 2, 0)
    channels = array.shape[2] if array.ndim == 3 else 1
    # Many channels could be the width of an image with its axes in another order, or the depth of a volume.
    is_image = channels <= 4 or channels < min(*array.shape[:2], MOST_CHANNELS + 1)
    if array.ndim not in (2, 3) or 0 in array.shape or not is_image:
        wanted = "(H, W) or (C, H, W)" if is_tensor else "(H, W) or (H, W, C)"
        limit = f"at most {MOST_CHANNELS} channels, fewer than H and W if more than 4"
        advice = ". Pass a batch image by image, as zip(images, labels) does" if array.ndim > 3 else ""
        raise ValueError(f"expected pixels {wanted} with {limit}, found {tuple(value.shape)}{advice}")
    return array


def _from_mapping(image: Any, values: Mapping[str, Any], *, arrays: bool) -> Parts:
    nested = values.get("objects")
    flat = not {"boxes", "oriented_boxes", "keypoints"}.isdisjoint(values)
    source = nested if isinstance(nested, Mapping) else values if flat else None
    taken = {"objects"} if source is nested else set(OBJECT_VALUES) if flat else set()
    label: int | str | None = None
    unlabelled = "label" in values and values["label"] is None
    mask: Any = None
    labels: tuple[str, ...] | int | None = None
    fields: dict[str, NDArray[Any]] = {}
    texts: dict[str, tuple[str, ...]] = {}
    ragged, ignored = set[str](), list[str]()
    for name, value in values.items():
        if name in taken or (name == "label" and unlabelled):
            continue
        if isinstance(value, RaggedRows):
            fields[str(name)] = value.array()
            ragged.add(str(name))
            continue
        if str(name).lower() in TEXT_NAMES and (found_texts := texts_of(value)) is not None:
            texts[str(name)] = found_texts
            continue
        if name == "labels" and not isinstance(value, str) and (names := texts_of(value)) is not None:
            labels = NOT_KNOWN if value is None else names
            continue
        array = as_array(value)
        is_index = array is not None and array.ndim == 0 and array.dtype.kind in "iu"
        if name in _LABEL_KEYS and (is_index or isinstance(value, str)):
            label = value if isinstance(value, str) else int(value)
        elif name == "label" and array is not None:
            found = f"{value}" if array.ndim == 0 else f"{array.dtype} {array.shape}"
            raise ValueError(f"expected a label that is a whole number or the name of a class, found {found}")
        elif arrays and name == "mask" and _is_mask(value, array):
            mask = value if array is None else array
        elif (arrays or name == "labels") and array is not None and array.size:
            fields[str(name)] = array
        else:
            ignored.append(str(name))
    if not arrays and source is None and label is None and labels is None and not unlabelled and not fields:
        raise ValueError(f"expected a target with boxes, labels or keypoints, found {_names(values)}{_FOLDER}")
    objects = None if source is None else object_values(source)
    return Parts(
        _image(image), label, unlabelled, labels, objects, mask, fields, texts, tuple(ignored), frozenset(ragged)
    )


def texts_of(value: object) -> tuple[str, ...] | None:
    """A text or a list of texts as a tuple, empty for None; None for all else."""
    if isinstance(value, np.ndarray) and value.dtype.kind == "U":
        value = value.reshape(-1).tolist()
    if value is None or isinstance(value, str):
        return () if value is None else (value,)
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    return tuple(value) if isinstance(value, list | tuple) and is_list else None


def _is_mask(value: Any, array: NDArray[Any] | None) -> bool:
    if array is None:
        return isinstance(value, str | os.PathLike) or hasattr(value, "getbands")
    return array.dtype.kind in "iu" and (array.ndim == 2 or (array.ndim == 3 and 1 in array.shape))


def object_values(values: Mapping[str, Any]) -> Objects:
    """The known values of a sample's objects, with labels as numbers or names; raises `ValueError` for a wrong form."""
    given = [name for name in OBJECT_VALUES if values.get(name) is not None]
    arrays: dict[str, Any] = {
        name: _lists(name, values[name])
        if name in LISTS
        else _oriented(values[name])
        if name == "oriented_boxes"
        else _numbers(name, values[name])
        for name in given
    }
    if "oriented_boxes" in arrays and "boxes" not in arrays:
        corners = as_corners(arrays["oriented_boxes"])
        arrays["boxes"] = np.concatenate([corners.min(1, initial=np.inf), corners.max(1, initial=-np.inf)], 1)
    if "boxes" not in arrays and "keypoints" not in arrays:
        raise ValueError(f"expected objects with boxes or keypoints, found {_names(values)}")
    form = getattr(values.get("boxes"), "format", None)  # of torchvision's BoundingBoxes
    if form is not None and str(getattr(form, "value", form)).upper() != "XYXY":
        raise ValueError(f"expected boxes x1 y1 x2 y2, found the format {getattr(form, 'value', form)}")
    if len({len(array) for array in arrays.values()}) > 1:
        raise ValueError(f"expected as many of each, found {', '.join(f'{len(a)} {n}' for n, a in arrays.items())}")
    return {n: a if n in LISTS or a.dtype.kind == "U" else _exact(n, a) for n, a in arrays.items()}


def _exact(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Numbers in the dtype that `Objects` have them in; raises `ValueError` if this would change whole numbers."""
    dtype, most = _WHOLE.get(name, (np.float64, np.inf))
    with np.errstate(invalid="ignore"):
        found: NDArray[Any] = array.astype(dtype)
        wrong = array[(found != array) | (found > most)].tolist() if name in _WHOLE else []
    if wrong:
        up_to = "" if name == "labels" else f" from 0 to {most}"
        raise ValueError(f"expected whole numbers{up_to} as {name}, found {wrong[0]}")
    return found


def _lists(name: str, value: Any) -> list[NDArray[Any]]:
    """An array for each object: corners (n, 2) of polygons, with a row of NaN between 2, or run lengths (n,)."""
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list of {name}, one for each object, found {type(value).__name__}")
    lists = []
    for each in value:
        array = as_array(each)
        if array is None or (array.size and array.shape[1:] != ((2,) if name == "polygons" else ())):
            wanted = "corners (n, 2)" if name == "polygons" else "lengths of runs (n,)"
            raise ValueError(f"expected {wanted} as {name} of an object, found {type(each).__name__}")
        lists.append(array.astype(np.float64).reshape(-1, 2) if name == "polygons" else _exact(name, array))
    return lists


def _oriented(value: Any) -> NDArray[np.float64]:
    """(M, 5) oriented boxes as stored, from (M, 5), corners (M, 4, 2), or torchvision's CXCYWHR."""
    array = as_array(value)
    if array is None or (array.size and (array.ndim not in (2, 3) or array.shape[1:] not in ((5,), (4, 2)))):
        found = type(value).__name__ if array is None else array.shape
        raise ValueError(f"expected oriented_boxes of shape (M, 5) or (M, 4, 2), found {found}")
    form = getattr(value, "format", None)
    boxes = array.astype(np.float64)
    if form is not None:
        if str(getattr(form, "value", form)).upper() != "CXCYWHR":
            raise ValueError(f"expected oriented_boxes as CXCYWHR, found the format {getattr(form, 'value', form)}")
        boxes[:, 4] = -np.deg2rad(boxes[:, 4])  # degrees, counterclockwise
    if boxes.ndim == 3:
        if wrong := np.flatnonzero(oriented_faults(boxes) == "box-reversed").tolist():
            raise ValueError(
                f"expected corners in order around each oriented box, found others as object {wrong[0] + 1}"
            )
        boxes = corners_to_oriented(boxes)
    return boxes.reshape(-1, 5)


def _numbers(name: str, value: Any) -> NDArray[Any]:
    """An array with a row for each object; without objects, an empty array of any shape is valid."""
    if name == "labels" and (classes := texts_of(value)):
        return np.asarray(classes)
    array = as_array(value)
    if array is None:
        wanted = "numbers or names of classes" if name == "labels" else "numbers"
        raise ValueError(f"expected {wanted} as {name}, found {type(value).__name__}")
    if name == "keypoints":
        if array.ndim != 3 or array.shape[2] not in (2, 3):
            raise ValueError(f"expected keypoints of shape (M, K, 2) or (M, K, 3), found {array.shape}")
        keypoints = array[..., :2].astype(np.float64)
        if array.shape[2] == 3:  # the third number is 0 for a keypoint that is absent
            keypoints[array[..., 2] == 0] = np.nan
        return keypoints
    row, wanted = ((4,), "(M, 4)") if name == "boxes" else ((), "(M,)")
    if name == "visibility":
        row, wanted = array.shape[1:2], "(M, K)"
    if array.size == 0:
        return np.empty((0, *row), array.dtype)
    if array.shape[1:] != row:
        raise ValueError(f"expected {name} of shape {wanted}, found {array.shape}")
    return array


def _names(values: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, values)) or "nothing"
