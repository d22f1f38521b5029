"""What a Python object means as a sample: (image, label), (image, target), a dict, or an image alone.

Pillow's images and torch's tensors are recognised by what they can do: neither library is imported here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.format.kinds import OBJECT_VALUES
from tensorstore_ds.format.kinds.objects import FLAGS
from tensorstore_ds.format.schema import DTYPES
from tensorstore_ds.sources.base import Objects

_IMAGE_KEYS = ("image", "img")
_LABEL_KEYS = ("label", "labels")
_NOTHING = Objects()


@dataclass(frozen=True, slots=True)
class Parts:
    """A sample taken apart.

    Attributes:
        image: a path, the bytes of a file, a PIL image, or pixels (H, W) or (H, W, C).
        label: a class index, or a class name.
        mask: class indices (H, W), a PIL image or a path.
        arrays: numbers that are fields of their own, by name.
        ignored: names of what is neither.
    """

    image: Any
    label: int | str | None = None
    objects: Objects | None = None
    mask: Any = None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    @property
    def has_classes(self) -> bool:
        """Whether something in it is a class index."""
        return self.label is not None or self.mask is not None or (self.objects or _NOTHING).labels is not None


def read_parts(sample: Any) -> Parts:
    """Take a sample apart.

    Raises:
        ValueError: it is nothing that a sample can be; the message says what was found.
    """
    if isinstance(sample, Mapping):
        key = next((key for key in _IMAGE_KEYS if key in sample), None)
        if key is None:
            raise ValueError(f"expected a key image, found {_names(sample)}")
        return _from_mapping(sample[key], {k: v for k, v in sample.items() if k != key}, arrays=True)
    if not isinstance(sample, tuple | list):
        return Parts(as_image(sample))
    if len(sample) != 2:
        raise ValueError(f"expected (image, target) or a dict, found {len(sample)} items")
    image, target = sample
    if isinstance(target, Mapping):
        return _from_mapping(image, target, arrays=False)
    if target is None or isinstance(target, str):
        return Parts(as_image(image), target)
    if hasattr(target, "getbands"):  # a PIL image, as of torchvision's VOCSegmentation
        return Parts(as_image(image), mask=target)
    array = as_array(target)
    if array is None:
        raise ValueError(f"expected a target that is a number, numbers or a dict, found {type(target).__name__}")
    if array.ndim == 0 and array.dtype.kind in "iu":
        return Parts(as_image(image), int(array))
    return Parts(as_image(image), arrays={"target": array})


def as_array(value: Any) -> NDArray[Any] | None:
    """A number, numbers or a tensor as an array of a type that a store has; None for all else."""
    if not isinstance(value, np.ndarray | np.generic | int | float | list | tuple) and not hasattr(value, "detach"):
        return None
    try:  # a torch tensor may be on a device, or part of a graph
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError):  # lists of differing lengths; a type that NumPy has not, such as bfloat16
        return None
    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array if array.dtype.name in DTYPES else None


def as_image(value: Any) -> Any:
    """A path, a file's bytes, a PIL image, or pixels (H, W) or (H, W, C); tensors are (C, H, W), as torch has them.

    Raises:
        ValueError: it is no image.
    """
    if isinstance(value, str | os.PathLike):
        return Path(value)
    if isinstance(value, bytes) or hasattr(value, "getbands"):  # of a PIL image
        return value
    array = as_array(value) if hasattr(value, "detach") or isinstance(value, np.ndarray) else None
    if array is None:
        raise ValueError(f"expected an image, found {type(value).__name__}")
    is_tensor = not isinstance(value, np.ndarray)
    if array.ndim == 3 and is_tensor:
        array = array.transpose(1, 2, 0)
    if array.ndim not in (2, 3) or 0 in array.shape or (array.ndim == 3 and array.shape[2] > 4):
        wanted = "(H, W) or (C, H, W)" if is_tensor else "(H, W) or (H, W, C)"
        raise ValueError(f"expected pixels {wanted} with at most 4 channels, found {tuple(value.shape)}")
    return array


def _from_mapping(image: Any, values: Mapping[str, Any], *, arrays: bool) -> Parts:
    nested = values.get("objects")
    flat = "boxes" in values or "keypoints" in values
    source = nested if isinstance(nested, Mapping) else values if flat else None
    taken = {"objects"} if source is nested else set(OBJECT_VALUES) if flat else set()
    label: int | str | None = None
    mask: Any = None
    found: dict[str, NDArray[Any]] = {}
    ignored: list[str] = []
    for name, value in values.items():
        if name in taken:
            continue
        array = as_array(value)
        is_index = array is not None and array.ndim == 0 and array.dtype.kind in "iu"
        if name in _LABEL_KEYS and (is_index or isinstance(value, str)):
            label = value if isinstance(value, str) else int(value)
        elif arrays and name == "mask" and _is_mask(value, array):
            mask = value if array is None else array
        elif arrays and array is not None and array.size:
            found[str(name)] = array
        else:
            ignored.append(str(name))
    if not arrays and source is None and label is None:
        raise ValueError(f"expected a target with boxes, labels or keypoints, found {_names(values)}")
    objects = None if source is None else _objects(source)
    return Parts(as_image(image), label, objects, mask, found, tuple(ignored))


def _is_mask(value: Any, array: NDArray[Any] | None) -> bool:
    if array is None:
        return isinstance(value, str | os.PathLike) or hasattr(value, "getbands")
    return array.dtype.kind in "iu" and (array.ndim == 2 or (array.ndim == 3 and 1 in array.shape))


def _objects(values: Mapping[str, Any]) -> Objects:
    given = {name: _numbers(name, values[name]) for name in OBJECT_VALUES if values.get(name) is not None}
    if "boxes" not in given and "keypoints" not in given:
        raise ValueError(f"expected objects with boxes or keypoints, found {_names(values)}")
    form = getattr(values.get("boxes"), "format", None)  # of torchvision's BoundingBoxes
    if form is not None and str(getattr(form, "value", form)).upper() != "XYXY":
        raise ValueError(f"expected boxes x1 y1 x2 y2, found the format {getattr(form, 'value', form)}")
    counts = {len(array) for array in given.values()}
    if len(counts) > 1:
        raise ValueError(f"expected as many of each, found {', '.join(f'{len(a)} {n}' for n, a in given.items())}")
    boxes, labels, keypoints = given.get("boxes"), given.get("labels"), given.get("keypoints")
    return Objects(
        None if boxes is None else boxes.astype(np.float64),
        None if labels is None else labels.astype(np.int64),
        None if keypoints is None else _keypoints(keypoints),
        **{name: given[name].astype(np.uint8) for name in FLAGS if name in given},
    )


def _numbers(name: str, value: Any) -> NDArray[Any]:
    """An array with a row for each object; no objects may be an empty array of any shape."""
    array = as_array(value)
    if array is None:
        raise ValueError(f"expected numbers as {name}, found {type(value).__name__}")
    row = {"boxes": (4,), "keypoints": array.shape[1:2] + array.shape[2:]}.get(name, ())
    if array.size == 0 and name != "keypoints":
        return np.empty((0, *row), array.dtype)
    if array.shape[1:] != row or (name == "keypoints" and (array.ndim != 3 or array.shape[2] not in (2, 3))):
        wanted = {"boxes": "(M, 4)", "keypoints": "(M, K, 2) or (M, K, 3)"}.get(name, "(M,)")
        raise ValueError(f"expected {name} of shape {wanted}, found {array.shape}")
    return array


def _keypoints(points: NDArray[Any]) -> NDArray[np.float64]:
    """(M, K, 2), from that or from (M, K, 3), where the third number is 0 for a point that is absent."""
    found = points[..., :2].astype(np.float64)
    if points.shape[2] == 3:
        found[points[..., 2] == 0] = np.nan
    return found


def _names(values: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, values)) or "nothing"
