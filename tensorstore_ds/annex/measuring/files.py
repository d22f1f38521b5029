"""The source of a store, read as torchvision's documentation reads it: a file per sample, in each epoch again."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder, VOCDetection
from torchvision.transforms import v2

from tensorstore_ds.annex.training.crops import How, Size, torchvision_steps
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging.codecs import open_image as open_any_image
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.sources.voc.layout import find_layout

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
#: The lists of `VOCDetection`.
_IMAGE_SETS = ("train", "val", "trainval", "test")
#: What its targets hold of objects.
_VOC_VALUES = {"offsets", "boxes", "labels", "difficult", "truncated", "occluded"}


@dataclass(frozen=True, slots=True)
class RawData:
    """A source that can be loaded."""

    dataset: Dataset[Any]  #: Its samples: image (C, H, W) uint8, and a label or a dict of objects, if any.
    reader: str  #: What it is, for the table.
    folder: Path  #: Holds all that is read.


def open_files(
    store: Store,
    split: Split,
    fields: Mapping[str, str],
    raw: Path,
    scratch: Path,
    *,
    size: Size | None = None,
    how: How = "random",
) -> RawData:
    """Open the source of a split; raises `OptionError` if it belongs to a different store, or has no image files.

    Class folders are read by `ImageFolder`, Pascal VOC with lists by `VOCDetection`, anything else by `Listed`, which
    holds labels or objects in memory and opens the images. With a `size`, images are crops.
    """
    relative, dropped = _locate(raw, store, split)
    transform = image_transform(store, split, fields["image"], size, how)
    if "objects" not in fields and "label" in fields:
        classes = split.fields[fields["label"]].classes
        labels = np.asarray(split.column(fields["label"]))
        if labels.min() >= 0 and (name := classes[int(labels[0])]) in relative.parts[:-1]:  # all have a class folder
            folder = raw.joinpath(*relative.parts[: relative.parts.index(name)])
            images = ImageFolder(str(folder), transform, loader=open_image, allow_empty=True)
            if tuple(images.classes) != classes:  # other folders, or in another order: sorted by number, say
                numbers = [classes.index(name) if name in classes else -1 for name in images.classes]
                images.target_transform = numbers.__getitem__
            return RawData(images, "ImageFolder", folder)
    if "label" not in fields and "objects" in fields:
        field = split.fields[fields["objects"]]
        devkit = _devkit(raw, split.name, scratch)
        if devkit is not None and set(field.arrays) <= _VOC_VALUES:
            target = functools.partial(voc_target, classes=tuple(field.classes))
            dataset = VOCDetection(devkit, "2007", split.name, transform=transform, target_transform=target)
            return RawData(dataset, "VOCDetection", raw)
    return RawData(Listed(raw, dropped, split, fields, transform), "image files", raw)


def _locate(raw: Path, store: Store, split: Split) -> tuple[Path, int]:
    """Path of the first sample's file in the source, and the number of key parts that name folders above the source."""
    kind = store.manifest.provenance.get("source_format")
    if "key" not in split.fields:
        raise OptionError(f"{store.name}: expected keys that name its files, found none. It is of {kind}.")
    key = str(split["key"][0])
    parts = _parts(key)
    for dropped in range(len(parts)):
        relative = Path(*parts[dropped:])
        if (raw / relative).is_file():
            return relative, dropped
    raise OptionError(
        f"{raw}: expected the source of {store.name}, found no {key} in it; its format is {kind}. "
        "Name the folder that was converted."
    )


def _parts(key: str) -> tuple[str, ...]:
    """The folders and the file that a key names, never outside the source: a store may be untrusted."""
    path = PurePosixPath(key)
    if path.is_absolute() or ".." in path.parts:
        raise OptionError(f"{key}: expected the path of a file inside the source. Convert the source again.")
    return path.parts


# --- images --------------------------------------------------------------------------------------------------------


def image_transform(
    store: Store, split: Split, image: str, size: Size | None = None, how: How = "random"
) -> Callable[[Any], torch.Tensor]:
    """Transform of PIL images to (C, H, W) uint8 tensors of the stored size, or crops of it."""
    spec = getattr(split.fields[image], "spec", None)
    channels = spec.shape[-1] if spec is not None else len(split.statistics_of(image).get("mean", "RGB"))
    steps: list[Any] = [functools.partial(in_mode, mode=_MODES.get(channels, "RGB"))]
    options = store.manifest.conversion_options
    if options.get("size") is not None:
        height, width = options["size"]
        if options.get("fit") == "crop":
            steps += [functools.partial(cover, height=height, width=width), v2.CenterCrop((height, width))]
        else:
            steps.append(v2.Resize((height, width), antialias=True))
    if size is not None:
        steps += torchvision_steps(size, how)
    transform: Callable[[Any], torch.Tensor] = v2.Compose([*steps, v2.PILToTensor()])
    return transform


def in_mode(image: Image.Image, mode: str) -> Image.Image:
    """The image in the store's color mode."""
    return image if image.mode == mode else image.convert(mode)


def cover(image: Image.Image, height: int, width: int) -> Any:
    """The image, resized to just cover a size."""
    scale = max(height / image.height, width / image.width)
    size = [max(height, round(image.height * scale)), max(width, round(image.width * scale))]
    return v2.functional.resize(image, size, antialias=True)


def open_image(path: str) -> Image.Image:
    """Decode a file; torchvision's own loader would convert gray images to color first."""
    with open(path, "rb") as file:
        image = open_any_image(file, max_pixels=2**63, key=path)
        image.load()
    return image


# --- samples -------------------------------------------------------------------------------------------------------


def _devkit(folder: Path, split: str, scratch: Path) -> Path | None:
    """A folder ``VOCdevkit/VOC2007`` for `VOCDetection` that links to the source; None if it cannot read it.

    Its images must be JPEG files of the names in a list that is called like the split.
    """
    try:
        annotations = find_layout(folder).annotations
    except SourceError:  # several data sets in one folder: keys tell which files are meant
        return None
    base = (folder / annotations).parent
    names = base / "ImageSets" / "Main" / f"{split}.txt"
    if not annotations or split not in _IMAGE_SETS or not names.is_file():
        return None
    with names.open("r", encoding="utf-8", errors="surrogateescape") as lines:
        if not (base / "JPEGImages" / f"{lines.readline().strip()}.jpg").is_file():
            return None
    devkit = Path(tempfile.mkdtemp(dir=scratch))
    (devkit / "VOCdevkit").mkdir()
    (devkit / "VOCdevkit" / "VOC2007").symlink_to(base.absolute(), target_is_directory=True)
    return devkit


def voc_target(annotation: Mapping[str, Any], classes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Convert the dictionary of an XML file to (m, 4) float32 boxes, x1 y1 x2 y2, and (m,) int64 labels.

    Boxes without area are left out, as in the store.
    """
    boxes, labels = [], []
    for entry in annotation["annotation"].get("object", []):
        x1, y1, x2, y2 = (float(entry["bndbox"][name]) for name in ("xmin", "ymin", "xmax", "ymax"))
        if x1 < x2 and y1 < y2:
            boxes.append((x1, y1, x2, y2))
            labels.append(classes.index(entry["name"]))
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor(labels, dtype=torch.int64),
    }


class Listed(Dataset[Any]):
    """Image files by path, with labels or objects in memory, like a list that is read once."""

    def __init__(
        self, raw: Path, dropped: int, split: Split, fields: Mapping[str, str], transform: Callable[[Any], torch.Tensor]
    ) -> None:
        keys = split["key"]
        self.paths = [str(raw.joinpath(*_parts(keys[row])[dropped:])) for row in range(len(split))]
        self.transform = transform
        rows = np.arange(len(split))
        self._labels = split.column(fields["label"]).take(rows).tolist() if "label" in fields else None
        self._objects = split.table(fields["objects"]).take(rows) if "objects" in fields else None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        sample: list[Any] = [self.transform(open_image(self.paths[index]))]
        if self._labels is not None:
            sample.append(self._labels[index])
        if self._objects is not None:
            start, stop = self._objects.offsets[index : index + 2]
            sample.append({n: torch.from_numpy(v[start:stop].copy()) for n, v in self._objects.values.items()})
        return tuple(sample)
