"""Make small sources and stores for tests."""

from __future__ import annotations

import errno
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from tensorstore_ds.conversion.encodings import Jpeg
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.format.root import dump_root
from tensorstore_ds.format.schema import EncodedSample


def no_room(*_: object, **__: object) -> None:
    """Stands for a function that writes to a full disk."""
    raise OSError(errno.ENOSPC, "No space left on device")


def image_file(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def png_bytes(pixels: NDArray[Any]) -> bytes:
    """Pixels as the bytes of a PNG file."""
    return image_file(Image.fromarray(pixels))


def class_folders(root: Path, *, per_class: int = 4, size: tuple[int, int] = (6, 5), seed: int = 0) -> Path:
    """PNG files train/{ant,bee}/N.png and test/{ant,bee}/N.png of random gray pixels."""
    rng = np.random.default_rng(seed)
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(per_class):
                (folder / f"{i}.png").write_bytes(png_bytes(rng.integers(0, 256, size, np.uint8)))
    return root


class Samples:
    """A sequence of given samples, with attributes such as the classes of torchvision's data sets."""

    def __init__(self, samples: Sequence[Any], classes: Sequence[Any] = (), **attributes: Any) -> None:
        self.samples = list(samples)
        vars(self).update(attributes | ({"classes": list(classes)} if classes else {}))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def detections(rows: int = 7, *, seed: int = 0, shape: tuple[int, int, int] = (12, 10, 3)) -> list[Mapping[str, Any]]:
    """Samples with an image and 0 to 3 objects: boxes, labels, keypoints."""
    rng = np.random.default_rng(seed)
    samples = []
    for row in range(rows):
        m = row % 4
        corner = rng.uniform(0, 4, (m, 2))
        samples.append(
            {
                "image": rng.integers(0, 256, shape, np.uint8),
                "boxes": np.concatenate([corner, corner + rng.uniform(1, 5, (m, 2))], axis=1),
                "labels": rng.integers(0, 2, m),
                "keypoints": rng.uniform(0, 9, (m, 3, 2)),
            }
        )
    return samples


def store_of(path: Path, samples: Sequence[Any], classes: Sequence[str] = (), **options: Any) -> tsds.Store:
    """A store converted from samples in this process."""
    options = {"workers": 0, **options}
    tsds.convert(Samples(samples, classes), path, ConvertOptions(**options))
    return tsds.open(path)


def numbered(
    path: Path, rows: int, shape: tuple[int, ...] = (8, 6, 3), *, classes: int = 2, **options: Any
) -> tsds.Store:
    """A store of images that are filled with their row. The label is the row modulo `classes`: a, b, ..."""
    samples = [{"image": np.full(shape, row, np.uint8), "label": row % classes} for row in range(rows)]
    return store_of(path, samples, "abcdefg"[:classes], **options)


def smart_store(path: Path, samples: Any, **options: Any) -> Path:
    """A store of the encoding ``smart``, which only earlier versions wrote: every second image is a PGM or PPM file."""
    real, number = Jpeg.encode_whole, count()

    def either(self: Jpeg, row: EncodedSample, pixels: NDArray[Any]) -> None:
        real(self, row, pixels)
        if next(number) % 2:
            height, width, channels = pixels.shape
            row.image = f"P{5 if channels == 1 else 6}\n{width} {height}\n255\n".encode() + pixels.tobytes()
            row.restarts = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Jpeg, "encode_whole", either)
        tsds.convert(samples, path, ConvertOptions(**{"workers": 0, "encoding": "jpeg", **options}))
    manifest = tsds.open(path).manifest
    field = replace(manifest.fields["image"], encoding="smart")
    (path / "zarr.json").write_bytes(dump_root(replace(manifest, fields={**manifest.fields, "image": field})))
    assert tsds.verify(path) == []
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes of every file by its path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contents(store: Path, *differing: str) -> dict[str, bytes]:
    """The bytes of every file by its path, without what says when the store was made, and some other texts."""
    files = files_of(store)
    names = "|".join(("created", "tsds_sha256", *differing)).encode()
    files["zarr.json"] = re.sub(rb'"(' + names + rb')": "[^"]*"', b"", files["zarr.json"])
    return files


def interrupted(source: Any, out: Path, after: int, options: ConvertOptions) -> None:
    """Convert until `after` samples are done, then stop as Ctrl-C does."""

    def stop(progress: tsds.conversion.Progress) -> None:
        if progress.done >= after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.convert(source, out, options, progress=stop)
