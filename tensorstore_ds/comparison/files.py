"""The source of a store, read as torchvision's documentation reads it: an image file a sample, in each epoch again."""

from __future__ import annotations

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

from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.imaging.codecs import FORMATS
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.sources.voc.layout import find_layout

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
#: The lists of `VOCDetection`.
_IMAGE_SETS = ("train", "val", "trainval", "test")


@dataclass(frozen=True, slots=True)
class RawData:
    """A source that can be loaded.

    Attributes:
        dataset: its samples: image (C, H, W) uint8, and a label or a dict of objects, if any.
        reader: what it is, for the table.
        folder: holds all that is read.
    """

    dataset: Dataset[Any]
    reader: str
    folder: Path


def open_files(store: Store, split: Split, fields: Mapping[str, str], raw: Path, scratch: Path) -> RawData:
    """The source of a split.

    Class folders are read by `ImageFolder`, Pascal VOC with lists by `VOCDetection`, anything else by a data set of our
    own, which holds labels or objects in memory and opens the images.

    Args:
        store: that was made of it.
        split: of the store.
        fields: name of the field of each kind: ``image``, and ``label`` or ``objects``.
        raw: the folder that was converted, or the split's folder in it.
        scratch: a folder for links.

    Raises:
        OptionError: it is not the source of this store, or has no image files.
    """
    key = _first_key(store, split)
    base = _locate(raw, key, store)
    transform = image_transform(store, split, fields["image"])
    if "objects" not in fields and "label" in fields:
        label_field = split.fields[fields["label"]]
        parts = base.relative.parts
        name = label_field.classes[int(split[fields["label"]][0])]
        if name in parts[:-1]:
            folder = base.folder.joinpath(*parts[: parts.index(name)])
            return RawData(_class_folders(folder, label_field.classes, transform), "ImageFolder", folder)
    if "label" not in fields and "objects" in fields:
        devkit = _devkit(base.folder, split.name, scratch)
        classes = split.fields[fields["objects"]].classes
        if devkit is not None and set(split.fields[fields["objects"]].arrays) <= _VOC_VALUES:
            dataset = VOCDetection(
                devkit, "2007", split.name, transform=transform, target_transform=VocTarget(tuple(classes))
            )
            return RawData(dataset, "VOCDetection", base.folder)
    return RawData(Listed(base, split, fields, transform), "image files", base.folder)


# --- where it lies -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where the first sample lies: `relative` below `folder`; `dropped` parts of its key name folders above it."""

    folder: Path
    relative: Path
    dropped: int


def _first_key(store: Store, split: Split) -> str:
    kind = store.manifest.provenance.get("source_format")
    if "key" not in split.fields:
        raise OptionError(f"{store.path.name}: expected keys that name its files, found none. It is of {kind}.")
    return str(split["key"][0])


def _locate(raw: Path, key: str, store: Store) -> Place:
    parts = _parts(key)
    for dropped in range(len(parts)):
        relative = Path(*parts[dropped:])
        if (raw / relative).is_file():
            return Place(raw, relative, dropped)
    kind = store.manifest.provenance.get("source_format")
    raise OptionError(
        f"{raw}: expected the source of {store.path.name}, found no {key} in it; its format is {kind}. "
        "Name the folder that was converted."
    )


def _parts(key: str) -> tuple[str, ...]:
    """The folders and the file that a key names; a store may come from anyone, and none leads out of the source."""
    path = PurePosixPath(key)
    if path.is_absolute() or ".." in path.parts:
        raise OptionError(f"{key}: expected the path of a file inside the source. Convert the source again.")
    return path.parts


# --- samples -------------------------------------------------------------------------------------------------------


def image_transform(store: Store, split: Split, image: str) -> Callable[[Any], torch.Tensor]:
    """From a PIL image to a (C, H, W) uint8 tensor of the stored size, where images were resized."""
    steps: list[Any] = []
    options = store.manifest.provenance.get("options", {})
    if options.get("size") is not None:
        height, width = options["size"]
        if options.get("fit") == "crop":
            steps += [ShorterSide(height, width), v2.CenterCrop((height, width))]
        else:
            steps.append(v2.Resize((height, width), antialias=True))
    made: Callable[[Any], torch.Tensor] = v2.Compose(
        [Mode(_MODES.get(_channels(split, image), "RGB")), *steps, v2.PILToTensor()]
    )
    return made


def _channels(split: Split, image: str) -> int:
    spec = getattr(split.fields[image], "spec", None)
    return int(spec.shape[-1]) if spec is not None else len(split.statistics.get("channels", {}).get("mean", "RGB"))


@dataclass(frozen=True)
class Mode:
    """A PIL image in the store's colours; as it is, if it has them."""

    mode: str

    def __call__(self, image: Image.Image) -> Image.Image:
        """The image, converted if need be."""
        return image if image.mode == self.mode else image.convert(self.mode)


@dataclass(frozen=True)
class ShorterSide:
    """A PIL image resized so that it just covers a size."""

    height: int
    width: int

    def __call__(self, image: Image.Image) -> Any:
        """The image, resized."""
        scale = max(self.height / image.height, self.width / image.width)
        size = [max(self.height, round(image.height * scale)), max(self.width, round(image.width * scale))]
        return v2.functional.resize(image, size, antialias=True)


def open_image(path: str) -> Image.Image:
    """Decode a file; torchvision's own loader would turn grey images into colours first."""
    with open(path, "rb") as file:
        image = Image.open(file, formats=FORMATS)
        image.load()
    return image


def _class_folders(folder: Path, classes: tuple[str, ...], transform: Callable[[Any], Any]) -> ImageFolder:
    dataset = ImageFolder(str(folder), transform, loader=open_image, allow_empty=True)
    if tuple(dataset.classes) != classes:  # other folders, or folders in another order: sorted by number, say
        numbers = [classes.index(name) if name in classes else -1 for name in dataset.classes]
        dataset.target_transform = numbers.__getitem__
    return dataset


_VOC_VALUES = {"offsets", "boxes", "labels", "difficult", "truncated", "occluded"}


def _devkit(folder: Path, split: str, scratch: Path) -> Path | None:
    """A folder as `VOCDetection` wants it, ``VOCdevkit/VOC2007``, that links to the source; None if it cannot read it.

    Its images must be JPEG files of the names in a list that is called like the split.
    """
    try:
        annotations = find_layout(folder).annotations
    except SourceError:  # several data sets in one folder: keys tell which files are meant
        return None
    base = (folder / annotations).parent
    listed = base / "ImageSets" / "Main" / f"{split}.txt"
    if not annotations or split not in _IMAGE_SETS or not listed.is_file():
        return None
    with listed.open("r", encoding="utf-8", errors="surrogateescape") as lines:
        if not (base / "JPEGImages" / f"{lines.readline().strip()}.jpg").is_file():
            return None
    made = Path(tempfile.mkdtemp(dir=scratch))
    (made / "VOCdevkit").mkdir()
    (made / "VOCdevkit" / "VOC2007").symlink_to(base.absolute(), target_is_directory=True)
    return made


@dataclass(frozen=True)
class VocTarget:
    """From the dictionary of an XML file to boxes and labels; boxes without area are left out, as the store does."""

    classes: tuple[str, ...]

    def __call__(self, annotation: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """(m, 4) float32 boxes, x1 y1 x2 y2, and (m,) int64 labels."""
        boxes, labels = [], []
        for found in annotation["annotation"].get("object", []):
            x1, y1, x2, y2 = (float(found["bndbox"][name]) for name in ("xmin", "ymin", "xmax", "ymax"))
            if x1 < x2 and y1 < y2:
                boxes.append((x1, y1, x2, y2))
                labels.append(self.classes.index(found["name"]))
        return {
            "boxes": torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
            "labels": torch.tensor(labels, dtype=torch.int64),
        }


class Listed(Dataset[Any]):
    """Image files by their paths; labels or objects in memory, as a list that was read once would have them."""

    def __init__(
        self, base: Place, split: Split, fields: Mapping[str, str], transform: Callable[[Any], torch.Tensor]
    ) -> None:
        keys = split["key"]
        folder = base.folder
        self.paths = [str(folder.joinpath(*_parts(keys[row])[base.dropped :])) for row in range(len(split))]
        self.transform = transform
        rows = np.arange(len(split))
        self._labels = split[fields["label"]].take(rows).tolist() if "label" in fields else None
        self._objects = split[fields["objects"]].take(rows) if "objects" in fields else None

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
