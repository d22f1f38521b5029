"""Ultralytics' data sets over a split of a store."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from ultralytics.data.augment import classify_augmentations, classify_transforms
from ultralytics.data.dataset import ClassificationDataset, YOLODataset

from tensorstore_ds.annex.adapters.ultralytics.labels import field_of, labels_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.reading.store import Split, open as open_store
from tensorstore_ds.reading.stored_images import decode_stored

#: Of pixels with so many channels, what OpenCV does where it reads a file in color; others stay as they are.
_TO_BGR = {1: cv2.COLOR_GRAY2BGR, 3: cv2.COLOR_RGB2BGR, 4: cv2.COLOR_RGBA2BGR}


class Images:
    """Images of a split in the form that Ultralytics uses: files are decoded with OpenCV, pixels are used directly.

    Raises `OptionError` if the split has no images of 8 or 16 bits.
    """

    def __init__(self, split: Split) -> None:
        field = split.fields.get("image")
        are_pixels = field is not None and field.dtype in ("uint8", "uint16")
        if not are_pixels and (field is None or field.encoding in ("", "raw")):
            found = "no field image" if field is None else field.describe()
            raise OptionError(f"{split.name}: expected images of 8 or 16 bits, found {found}. Convert such images.")
        self.split = split
        self.shapes = split.image_shapes
        self.are_files = not are_pixels
        stored = 3 if self.are_files or not len(split) else int(self.shapes[0, 2])
        self.channels = 3 if stored in _TO_BGR else stored  #: number of channels for Ultralytics

    def __getitem__(self, row: int) -> NDArray[np.uint8]:
        """(H, W, C) of `channels`, in BGR if these are colors; a new array."""
        return self.finished(self.stored(row))

    def stored(self, row: int) -> NDArray[np.uint8]:
        """Return an image (H, W, C), in BGR if stored as a file, and a view of the map if stored as pixels."""
        kept = self.split["image"][row]
        if not self.are_files:
            return _as_bytes(kept)
        image: NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(kept, np.uint8), cv2.IMREAD_COLOR)
        if image is None or image.shape[:2] != tuple(self.shapes[row, :2]):  # a format that OpenCV does not know
            image = _to_bgr(_as_bytes(decode_stored(kept, key=self.split.key(row))))
        return image

    def finished(self, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Convert the result of `stored` to BGR. It may have been resized."""
        return image if self.are_files else _to_bgr(image)


def _as_bytes(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """The high bytes of 16-bit pixels."""
    return pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)


def _to_bgr(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    code = _TO_BGR.get(pixels.shape[2] if pixels.ndim == 3 else 1)
    bgr: NDArray[np.uint8] = np.array(pixels) if code is None else cv2.cvtColor(pixels, code)
    return bgr


class StoreYOLODataset(YOLODataset):
    """Ultralytics' `YOLODataset` with the images and objects of a split instead of files.

    Augmentations, batches and all other arguments are as in `YOLODataset`. Images stored as pixels are not copied to
    memory, because they are in the page cache. For images stored as files, ``cache="ram"`` decodes them only once.
    Mosaics combine any images of the split, as Ultralytics does for cached images.

    Args:
        img_path: name of the split.
        data: result of `dataset_info`.
        cache: ``ram`` or True keeps decoded files in memory. All other values are ignored.
    """

    def __init__(
        self, img_path: str, *args: Any, data: dict[str, Any], task: str, cache: bool | str | None = None, **kwargs: Any
    ) -> None:
        self.split: Split = data["store"][img_path]
        self.images = Images(self.split)
        self.objects = field_of(self.split, task, data["store"].name)
        self.task = task
        keeps = self.images.are_files and (cache is True or str(cache).lower() == "ram")
        super().__init__(img_path, *args, data=data, task=task, cache="ram" if keeps else None, **kwargs)

    def get_img_files(self, img_path: str) -> list[str]:
        """Return names of the images, made of split and row. With `fraction`, it returns only some of them."""
        count = selected(len(self.split), self.fraction)
        return [f"{img_path}/{row}" for row in range(count)]

    def get_labels(self) -> list[dict[str, Any]]:
        """Return the labels of each image, see `labels_of`."""
        return labels_of(self.split, self.objects, self.task, self.im_files)

    def load_image(
        self, i: int, rect_mode: bool = True, resize_short: bool = False
    ) -> tuple[NDArray[np.uint8], tuple[int, int], tuple[int, int]]:
        """Return an image (H, W, C) at the size of the data set, its stored and its new (height, width).

        The index `i` differs from the row if `rect` has sorted the images. `rect_mode` keeps the aspect ratio.
        `resize_short` resizes the shorter side to `imgsz` instead of the longer one.
        """
        if self.ims[i] is not None:
            return self.ims[i], self.im_hw0[i], self.im_hw[i]
        image = self.images.stored(int(self.im_files[i].rpartition("/")[2]))
        height, width = image.shape[:2]
        size = self._size(height, width, rect_mode, resize_short)
        if size != (height, width):
            image = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
        return self.images.finished(image), (height, width), size

    def _size(self, height: int, width: int, rect_mode: bool, resize_short: bool) -> tuple[int, int]:
        target = tuple(self.imgsz) if isinstance(self.imgsz, tuple | list) else (self.imgsz, self.imgsz)
        if not rect_mode:
            return target
        side = max(target)
        fitted = (min if resize_short else max)(height, width)
        if fitted == side:
            return height, width
        new = [side if each == fitted else math.ceil(each * (side / fitted)) for each in (height, width)]
        return new[0], new[1]

    def build_transforms(self, hyp: Any) -> Any:
        """Return Ultralytics' transforms. Mosaics combine any images of the split."""
        self.cache = "ram"
        return super().build_transforms(hyp)


class StoreClassificationDataset(ClassificationDataset):
    """Ultralytics' `ClassificationDataset` with the images and labels of a split instead of class folders.

    Args:
        split: split of the samples. Samples without a label are left out.
        field: field of the labels.
        args: arguments of the trainer or the validator.
        augment: whether to use the augmentations for training.
        names: classes of the model, if known. Labels are then matched by the names of the classes.
        fraction: fraction of the samples to use, or their number.
    """

    def __init__(
        self,
        split: Split,
        field: str,
        args: Any,
        *,
        augment: bool = False,
        names: Mapping[int, str] | None = None,
        fraction: float = 1.0,
    ) -> None:
        self.split = split
        self.images = Images(split)
        classes = split.fields[field].classes
        places = {name: i for i, name in (names or {}).items()}
        if places.keys().isdisjoint(classes):  # an unknown model keeps the order of the store
            places = {name: i for i, name in enumerate(classes)}
        numbers = np.array([0 if args.single_cls else places.get(name, UNLABELLED) for name in classes], np.int64)
        labels = np.asarray(split.column(field))
        chosen = np.linspace(0, len(labels) - 1, selected(len(labels), fraction), dtype=int)
        chosen = chosen[labels[chosen] != UNLABELLED]
        found = numbers[labels[chosen]]
        kept = found != UNLABELLED
        self.samples = list(zip(chosen[kept].tolist(), found[kept].tolist(), strict=True))
        self.root = f"{split.name}/{field}"
        names_of_options = ("erasing", "auto_augment", "hsv_h", "hsv_s", "hsv_v")
        options = {name: getattr(args, name) for name in names_of_options}
        options |= {"scale": (1.0 - args.scale, 1.0), "hflip": args.fliplr, "vflip": args.flipud}
        self.torch_transforms = (
            classify_augmentations(size=args.imgsz, **options) if augment else classify_transforms(size=args.imgsz)
        )

    def __getitem__(self, i: int) -> dict[str, Any]:
        """Return the image as a tensor, `img`, and the number of its class, `cls`."""
        row, label = self.samples[i]
        image = Image.fromarray(cv2.cvtColor(self.images[row], cv2.COLOR_BGR2RGB))
        return {"img": self.torch_transforms(image), "cls": label}


def selected(length: int, fraction: float) -> int:
    """Return the number of images for a `fraction` of Ultralytics: a fraction, or an integer above 1."""
    count = fraction if isinstance(fraction, int) and fraction > 1 else max(1, round(length * fraction))
    return min(length, count)


def read_images(
    path: str | os.PathLike[str], split: str = "val", rows: Iterable[int] | None = None
) -> list[NDArray[np.uint8]]:
    """Read images of a store for `YOLO.predict`: (H, W, C) uint8 in BGR, each in its own size.

    Args:
        path: path or URL of the store.
        split: name of the split.
        rows: rows of the images. None reads all. They are all in memory at the same time.

    Raises:
        OptionError: the store does not contain the split, or has no images of 8 or 16 bits.

    Example:
        >>> model.predict(read_images("photos.tsds", "val", range(8)))                    # doctest: +SKIP
    """
    images = Images(open_store(path)[split])
    return [images[row] for row in (range(len(images.split)) if rows is None else rows)]
