"""The commands that are put to the test, on data that are small, but have all that a conversion can have to do.

Several shards of several blocks, two splits, a sample to be skipped in the middle, fixed fields and tables.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from faults.bench import Case
from faults.replacing import Replacing

_OBJECT = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>7</xmax><ymax>8</ymax></bndbox></object>"


def make_sources(root: Path) -> None:
    """Folders of images of one size (`folders`) and of many (`photos`), and a Pascal VOC data set (`voc`).

    `more` is to be appended to a store of `folders`: samples of a new class and of a new split, and one that is known.
    `voc-changed` is `voc` with another annotation.
    """
    for name, varied in (("folders", False), ("photos", True)):
        for split, per_class in (("train", 4), ("test", 1)):
            for label in ("ant", "bee"):
                for i in range(per_class):
                    _image(root / name / split / label / f"{i}.png", size=(8 + i * varied, 8))
        (root / name / "train" / "ant" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\nrubbish")
    for name in ("train/ant/4", "train/ant/5", "train/cow/0", "train/cow/1", "train/cow/2", "val/bee/0", "val/bee/1"):
        _image(root / "more" / f"{name}.png", size=(8, 8))
    shutil.copy(root / "folders" / "train" / "bee" / "0.png", _folder(root / "more" / "train" / "bee"))
    _scores(root)
    _voc(root / "voc", {"train": "abcde", "test": "fg"}, ("cat", "dog", "cat"))
    (root / "voc" / "Annotations" / "b.xml").write_text("<annotation>")
    (root / "names.txt").write_text("cat = animal\ndog =\n")
    _voc(root / "voc-more", {"train": "ahijk"}, ("cat", "eel"))
    for folder in ("Annotations", "JPEGImages", "ImageSets"):  # one sample is the same
        shutil.copytree(root / "voc" / folder, root / "voc-changed" / folder)
    text = (root / "voc" / "Annotations" / "a.xml").read_text().replace("a.jpg", "b.jpg")
    (root / "voc-changed" / "Annotations" / "b.xml").write_text(text)
    changed = root / "voc-changed" / "Annotations" / "c.xml"
    changed.write_text(changed.read_text().replace("<xmin>1<", "<difficult>1</difficult><xmin>3<"))


def _scores(root: Path) -> None:
    """A table with a score for each sample of `folders`; the one that is skipped is not in it."""
    keys = sorted(path.relative_to(root / "folders").as_posix() for path in (root / "folders").rglob("*.png"))
    lines = (f"{key},{i / 4},tag {i}" for i, key in enumerate(keys) if key != "train/ant/1.png")
    (root / "scores.csv").write_text("\n".join(["key,score,tag", *lines]) + "\n")


def _voc(root: Path, splits: Mapping[str, str], classes: Sequence[str]) -> None:
    """A data set of Pascal VOC with an image for each letter of its splits."""
    for split, names in splits.items():
        listed = _folder(root / "ImageSets" / "Main") / f"{split}.txt"
        listed.write_text("\n".join(names))
        for i, stem in enumerate(names):
            _image(root / "JPEGImages" / f"{stem}.jpg", size=(12, 9 + i))
            objects = "".join(_OBJECT.format(name) for name in classes[: i % 3])
            annotation = _folder(root / "Annotations") / f"{stem}.xml"
            annotation.write_text(f"<annotation><filename>{stem}.jpg</filename>{objects}</annotation>")


def _image(path: Path, *, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(list(path.as_posix()[-12:].encode()))
    Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(_folder(path.parent) / path.name)


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


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
    return Case(name, path, ("tsds", name, str(path), "OUT"), has_notes=False)


#: Commands that make a store of stores: the store that is read, and the words behind OUT.
_EDITS = {
    "filter": ("raw-zarr", ("--where", "label == 'bee'")),
    "split": ("voc-jpeg-zarr", ("train=0.5,val=0.5",)),
    "sample": ("raw-memmap", ("--per-class", "1")),
    "relabel": ("voc-jpeg-zarr", ("--class-map", "NAMES")),
    "merge": ("raw-zarr", ()),
}
EDITS = tuple(_EDITS)


def editing(name: str, root: Path) -> Case:
    """A command that makes a store of the rows of one, or of that and a copy of it."""
    store, words = _EDITS[name]
    path = root / f"{store}.tsds"
    stores = (str(path), str(root / "copy-warm.tsds"))[: 1 + (name == "merge")]
    words = tuple(word.replace("NAMES", str(root / "names.txt")) for word in words)
    return Case(name, path, ("tsds", name, *stores, "OUT", *words))


#: Formats, and the store that is exported to each.
_EXPORTS = {
    **dict.fromkeys(("folders", "npy", "webdataset", "parquet", "huggingface"), "raw-zarr"),
    **dict.fromkeys(("voc", "coco", "yolo"), "voc-jpeg-zarr"),
}
EXPORTS = tuple(_EXPORTS)


def exporting(name: str, root: Path) -> Case:
    """`tsds export` to a format."""
    path = root / f"{_EXPORTS[name]}.tsds"
    return Case(
        f"export to {name}", path, ("tsds", "export", str(path), "OUT", "--to", name), makes_store=False, goes_on=False
    )


def case_of(name: str, root: Path, workers: int = 0) -> Case:
    """A command by the name of its case."""
    if name in EDITS:
        return editing(name, root)
    if name in ("pull", "copy", "pack", "unpack"):
        return copying(name, root)
    for begin, make in (("export to ", exporting), ("repack to ", repacking)):
        if name.startswith(begin):
            return make(name.removeprefix(begin), root)
    return conversion(name, root, workers)


#: Those that follow others read the stores that these have changed.
REPLACING = (
    *("append", "append to jpeg", "update", "erase", "add", "drop", "annotate", "check", "card", "card again"),
    *("pull append", "pull update", "pull erase", "pull add"),
)


def replacing(name: str, root: Path) -> Replacing:
    """A command that changes a store, or files that are there already."""
    raw, voc = root / "raw-zarr.tsds", root / "voc-jpeg-zarr.tsds"
    check = ("tsds", "check", str(raw), "--out", "OUT", "--min-class", "0", "--no-near")  # with no findings: status 0
    alone = ("--workers", "0")
    if name.startswith("pull "):
        before, changed = (
            replacing(name.removeprefix("pull "), root),
            root / f"{name.removeprefix('pull ')}-warm/out.tsds",
        )
        words = ("tsds", "pull", str(changed), "OUT", "--update")
        return Replacing(name, before.before, words, source=changed, erases=before.erases)
    card = Replacing("card", None, ("tsds", "card", str(raw), "OUT"), source=raw)
    return {
        "append": Replacing("append", raw, ("tsds", "append", "OUT", str(root / "more"), *alone)),
        "append to jpeg": Replacing("append to jpeg", voc, ("tsds", "append", "OUT", str(root / "voc-more"), *alone)),
        "update": Replacing("update", voc, ("tsds", "update", "OUT", str(root / "voc-changed"), *alone)),
        "erase": Replacing(
            "erase",
            raw,
            ("tsds", "erase", "OUT", "--where", "label == 'bee'"),
            erases=True,
            nothing_left="found none that do",
        ),
        "add": Replacing(
            "add",
            raw,
            ("tsds", "add", "OUT", str(root / "scores.csv")),
            nothing_left="expected a field that is not there",
        ),
        "drop": Replacing(
            "drop", voc, ("tsds", "drop", "OUT", "size"), erases=True, nothing_left="expected one of the fields"
        ),
        "annotate": Replacing("annotate", raw, ("tsds", "annotate", "OUT", "--citation", "Us, 2026")),
        "check": Replacing("check", raw / "zarr.json", check, source=raw),
        "card": card,
        "card again": dataclasses.replace(card, name="card again", before=root / "old-card"),
    }[name]
