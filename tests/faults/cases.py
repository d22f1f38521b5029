"""The conversions that are put to the test: small, but with all that a conversion can have to do.

Several shards of several blocks, two splits, a sample to be skipped in the middle, fixed fields and tables.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from faults.bench import Case

_OBJECT = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>7</xmax><ymax>8</ymax></bndbox></object>"


def make_sources(root: Path) -> None:
    """Folders of images of one size (`folders`) and of many (`photos`), and a Pascal VOC data set (`voc`)."""
    for name, varied in (("folders", False), ("photos", True)):
        for split, per_class in (("train", 4), ("test", 1)):
            for label in ("ant", "bee"):
                for i in range(per_class):
                    _image(root / name / split / label / f"{i}.png", size=(8 + i * varied, 8))
        (root / name / "train" / "ant" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    for split, names in (("train", "abcde"), ("test", "fg")):
        listed = root / "voc" / "ImageSets" / "Main" / f"{split}.txt"
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("\n".join(names))
        for i, stem in enumerate(names):
            _image(root / "voc" / "JPEGImages" / f"{stem}.jpg", size=(12, 9 + i))
            objects = "".join(_OBJECT.format(name) for name in ("cat", "dog", "cat")[: i % 3])
            annotation = root / "voc" / "Annotations" / f"{stem}.xml"
            annotation.parent.mkdir(exist_ok=True)
            annotation.write_text(f"<annotation><filename>{stem}.jpg</filename>{objects}</annotation>")
    (root / "voc" / "Annotations" / "b.xml").write_text("<annotation>")


def _image(path: Path, *, size: tuple[int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(path.as_posix()[-12:].encode()))
    Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(path)


def conversion(name: str, root: Path, workers: int) -> Case:
    """A conversion by its name, of the sources in a folder.

    ``writer`` is a program with a `tsds.Writer`, ``tasks`` one that plans, converts in tasks and commits.
    """
    if name in ("writer", "tasks"):
        return Case(name.title(), root / "folders", ({"writer": "write"}.get(name, name), str(root / "folders"), "OUT"))
    source, *options = {
        "raw-memmap": ("folders", "--shard-size", "1000"),
        "raw-zarr": ("folders", "--shard-size", "2000", "--layout", "zarr"),
        "jpeg-memmap": ("photos", "--shard-size", "9000", "--encoding", "jpeg"),
        "voc-jpeg-zarr": ("voc", "--shard-size", "3000", "--encoding", "jpeg", "--layout", "zarr", "--size", "16"),
    }[name]
    path = root / source
    words = ("tsds", "convert", str(path), "OUT", *options, "--on-error", "skip", "--workers", str(workers))
    return Case(f"{name}, {workers} workers", path, words)


def repacking(layout: str, root: Path) -> Case:
    """`tsds repack` to a layout, of the store in a folder that has the other one."""
    path = root / {"memmap": "raw-zarr.tsds", "zarr": "raw-memmap.tsds"}[layout]
    return Case(f"repack to {layout}", path, ("tsds", "repack", str(path), "OUT", "--layout", layout))


def copying(name: str, root: Path) -> Case:
    """``pull``, ``copy``, ``pack`` or ``unpack`` of a store of several shards."""
    path = root / ("packed.zip" if name == "unpack" else "raw-zarr.tsds")
    return Case(name, path, ("tsds", name, str(path), "OUT"))
