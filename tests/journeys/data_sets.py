"""Six data sets as people have them, made without a download, each with what an oracle says of it; and real ones.

`make` writes a data set, `grow` adds to it what next week brings, `change` corrects it, and `read` parses it.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import numpy as np

from journeys import oracle
from journeys.oracle import Facts
from journeys.photographs import cut_short, encoded, photograph, write


@dataclass(frozen=True)
class DataSet:
    """A data set.

    Attributes:
        make: writes it into a folder.
        read: what an oracle says of that folder.
        grow: adds samples to it, or None.
        change: corrects annotations and images, replaces a damaged image and removes samples; or None.
        encoding: the encoding of its store, by default.
        exports: formats that lose nothing of it but what is named, as `what is left out` of the summary.
        has_splits: whether it says itself what is for testing.
        size: (height, width) of all its images, or None.
        color: mode of all images in the store; None: each has its own.
    """

    make: Callable[[Path], None]
    read: Callable[[Path], Facts]
    grow: Callable[[Path], None] | None
    change: Callable[[Path], None] | None
    encoding: str
    exports: tuple[str, ...]
    has_splits: bool = True
    size: tuple[int, int] | None = None
    color: str | None = "RGB"


# --- class folders with files of all sorts ----------------------------------------------------------------------

HOW = ("jpeg", "progressive", "png", "webp", "gray", "palette", "444", "lossless", "alpha", "cmyk", "bmp", "gray-png")
SUFFIXES = {
    "png": "png",
    "palette": "PNG",
    "alpha": "png",
    "gray-png": "png",
    "webp": "webp",
    "lossless": "webp",
    "bmp": "bmp",
}
PETS = {"Große Eule": (4, 2), "cat": (14, 4), "dog": (9, 3), "emu": (6, 3)}


def make_folders(root: Path) -> None:
    seed = 0
    for name, counts in PETS.items():
        for split, count in zip(("train", "test"), counts, strict=True):
            for i in range(count):
                add_pet(root, seed, f"{split}/{name}/IMG {i:03}")
                seed += 1
    copy = (root / "train/cat/IMG 000.jpg").read_bytes()
    write(root / "test/cat/copied.jpg", copy)  # a leak
    small = photograph(0, 240, 320).resize((160, 120)).resize((320, 240))
    write(root / "train/dog/edited.jpg", encoded(small, "jpeg"))  # the same picture with another label
    write(root / "train/dog/broken.jpg", cut_short(encoded(photograph(900, 240, 320), "jpeg")))
    write(root / "train/cat/Thumbs.db", b"none")
    write(root / "README.md", b"# Pets\n")
    write(root / "train/emu/notes.txt", b"bought in May")


def add_pet(root: Path, seed: int, name: str) -> None:
    how = HOW[seed % len(HOW)]
    orientation = (1, 6, 3, 8)[seed % 4] if how in ("jpeg", "progressive") else 1
    data = encoded(photograph(seed, 240, 320), how, orientation)
    write(root / f"{name}.{SUFFIXES.get(how, 'jpg')}", data)


def grow_folders(root: Path) -> None:
    for i in range(3):
        add_pet(root, 100 + i, f"train/cat/new {i}")
        add_pet(root, 110 + i, f"train/fox/new {i}")  # a new class


def change_folders(root: Path) -> None:
    for seed, name in ((7, "train/cat/IMG 001"), (12, "train/cat/IMG 006"), (21, "test/cat/IMG 001")):
        add_pet(root, seed + 10 * len(HOW), name)  # another picture in a file of the same kind
    add_pet(root, 300, "train/dog/broken")
    next(root.glob("train/emu/IMG 005.*")).unlink()


# --- photographs of all sizes -----------------------------------------------------------------------------------

SIZES = ((480, 640), (512, 512), (512, 768), (333, 500), (768, 1024), (1024, 768), (256, 384), (600, 450), (400, 1000))
PLACES = {"beach": 16, "city": 11, "forest": 8}


def make_photographs(root: Path) -> None:
    seed = 1000
    for name, count in PLACES.items():
        for i in range(count):
            add_place(root, seed, f"{name}/DSC_{i:04}")
            seed += 1
    write(root / "city/copy of a beach.jpg", (root / "beach/DSC_0001.jpg").read_bytes())
    write(root / "forest/broken.jpg", cut_short((root / "forest/DSC_0002.jpg").read_bytes()))


def add_place(root: Path, seed: int, name: str) -> None:
    how = ("jpeg", "jpeg", "jpeg", "progressive", "jpeg", "png", "gray", "webp", "444")[seed % 9]
    orientation = (1, 1, 6, 1, 3, 8, 1)[seed % 7] if how == "jpeg" else 1
    data = encoded(photograph(seed, *SIZES[(seed // 2) % len(SIZES)]), how, orientation)
    write(root / f"{name}.{SUFFIXES.get(how, 'jpg')}", data)


def grow_photographs(root: Path) -> None:
    for i in range(4):
        add_place(root, 1100 + i, f"city/new_{i}")


def change_photographs(root: Path) -> None:
    for seed, name in ((1003, "beach/DSC_0003"), (1020, "city/DSC_0004")):
        add_place(root, seed + 126, name)  # in a file of the same kind
    write(root / "forest/broken.jpg", (root / "beach/DSC_0000.jpg").read_bytes())
    next(root.glob("city/DSC_0005.*")).unlink()


# --- Pascal VOC -------------------------------------------------------------------------------------------------


def make_voc(root: Path) -> None:
    ids = [f"cell_{i:05}" for i in range(26)]
    for seed, name in enumerate(ids):
        add_voc(root, 2000 + seed, name)
    parts = {"train": ids[:16], "val": ids[16:21], "test": ids[21:], "trainval": ids[:21]}
    for split, some in parts.items():
        write(root / f"ImageSets/Main/{split}.txt", ("\n".join(some) + "\n").encode())
    broken = root / "JPEGImages/cell_00004.jpg"
    broken.write_bytes(cut_short(broken.read_bytes()))


def add_voc(root: Path, seed: int, name: str) -> None:
    rng = np.random.default_rng(seed)
    write(root / f"JPEGImages/{name}.jpg", encoded(photograph(seed, 240, 320), "jpeg"))
    objects = []
    for i in range(int(rng.integers(0, 6))):
        x, y = rng.integers(-3, 250), rng.integers(-3, 180)  # some lie over the edge
        w, h = rng.integers(20, 90, 2)
        box = [x, y, x + w, y + h] if i else [x + 0.5, y + 0.25, x + w + 0.75, y + h]
        if seed == 2003 and i == 1:
            box = [x, y, x, y + h]  # a slip of the hand
        corners = "".join(f"<{n}>{v}</{n}>" for n, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
        kind = ("RBC", "RBC", "RBC", "WBC", "Platelets")[int(rng.integers(5))]
        flags = f"<truncated>{int(rng.random() < 0.3)}</truncated>" + (
            f"<difficult>{int(rng.random() < 0.3)}</difficult>" if rng.random() < 0.8 else ""
        )
        objects.append(f"<object><name>{kind}</name><pose>Unspecified</pose>{flags}<bndbox>{corners}</bndbox></object>")
    text = (
        f"<annotation><folder>JPEGImages</folder><filename>{name}.jpg</filename>"
        f"<path>/home/somebody/{name}.jpg</path>"
        f"<size><width>320</width><height>240</height><depth>3</depth></size>{''.join(objects)}</annotation>"
    )
    write(root / f"Annotations/{name}.xml", text.encode())


def grow_voc(root: Path) -> None:
    names = [f"week2_{i}" for i in range(4)]
    for i, name in enumerate(names):
        add_voc(root, 2105 + i, name)
    for split in ("train", "trainval"):
        with open(root / f"ImageSets/Main/{split}.txt", "a") as file:
            file.write("\n".join(names) + "\n")


def change_voc(root: Path) -> None:
    add_voc(root, 2300, "cell_00006")
    add_voc(root, 2301, "cell_00022")
    corrected = root / "Annotations/cell_00001.xml"
    text = corrected.read_text().replace("<name>RBC<", "<name>Blast<", 1).replace("<xmin>", "<xmin>1", 1)
    corrected.write_text(text)
    write(root / "JPEGImages/cell_00004.jpg", encoded(photograph(2302, 240, 320), "jpeg"))
    for split in ("train", "trainval"):
        listed = root / f"ImageSets/Main/{split}.txt"
        listed.write_text(listed.read_text().replace("cell_00002\n", ""))


# --- dlib's imglab ----------------------------------------------------------------------------------------------

IMGLAB = {"train": "training.xml", "test": "testing.xml"}
FACES = ((360, 480), (375, 500), (512, 512), (480, 360))


def make_imglab(root: Path) -> None:
    for split, count, seed in (("train", 14, 3000), ("test", 6, 3500)):
        write(
            root / IMGLAB[split],
            imglab_xml([add_face(root, seed + i, f"{split[:5]}_{i:02}.jpg") for i in range(count)]),
        )
    broken = root / "train_07.jpg"
    broken.write_bytes(cut_short(broken.read_bytes()))


def imglab_xml(images: list[str]) -> bytes:
    style = "<?xml-stylesheet type='text/xsl' href='image_metadata_stylesheet.xsl'?>"
    head = f"<?xml version='1.0' encoding='ISO-8859-1'?>\n{style}\n"
    body = "\n".join(images)
    return f"{head}<dataset>\n<name>Gesichter für Tests</name>\n<images>\n{body}\n</images>\n</dataset>\n".encode(
        "latin-1"
    )


def add_face(root: Path, seed: int, name: str) -> str:
    rng = np.random.default_rng(seed)
    height, width = FACES[seed % len(FACES)]
    write(root / name, encoded(photograph(seed, height, width), "jpeg"))
    boxes = []
    for _ in range(int(rng.integers(1, 4))):
        side = int(rng.integers(60, 150))
        left, top = int(rng.integers(-10, width - side)), int(rng.integers(-10, height - side))
        angles = np.linspace(0, 2 * np.pi, 68, endpoint=False)
        x = np.rint(left + side * (0.5 + 0.55 * np.cos(angles))).astype(int)  # some lie outside of the box
        y = np.rint(top + side * (0.5 + 0.55 * np.sin(angles))).astype(int)
        there = [i for i in range(68) if rng.random() < 0.97]  # an annotator forgets some
        parts = "".join(f"\n      <part name='{i:02}' x='{x[i]}' y='{y[i]}'/>" for i in there)
        boxes.append(f"\n    <box top='{top}' left='{left}' width='{side}' height='{side}'>{parts}\n    </box>")
    return f"  <image file={quoteattr(name)} width='{width}' height='{height}'>{''.join(boxes)}\n  </image>"


def grow_imglab(root: Path) -> None:
    text = (root / IMGLAB["train"]).read_text("latin-1")
    more = "\n".join(add_face(root, 3700 + i, f"more_{i}.jpg") for i in range(3))
    (root / IMGLAB["train"]).write_text(text.replace("\n</images>", f"\n{more}\n</images>"), "latin-1")


def change_imglab(root: Path) -> None:
    text = (root / IMGLAB["train"]).read_text("latin-1")
    images = re.findall(r"  <image .*?</image>", text, re.DOTALL)
    moved = re.sub(r"<part name='30' x='\d+'", "<part name='30' x='7'", re.sub(r" top='-?\d+'", " top='5'", images[2]))
    lacking = re.sub(r"\s*<part name='0\d'.*?/>", "", images[4])
    others = {images[2]: moved, images[4]: lacking, images[9]: add_face(root, 3800, "train_09.jpg")}
    for image, other in others.items():
        text = text.replace(image, other)
    (root / IMGLAB["train"]).write_text(text.replace(f"{images[11]}\n", ""), "latin-1")
    write(root / "train_07.jpg", encoded(photograph(3801, *FACES[3007 % len(FACES)]), "jpeg"))


# --- COCO -------------------------------------------------------------------------------------------------------

COCO = {
    split: (f"annotations/instances_{split}2017.json", f"annotations/captions_{split}2017.json", f"{split}2017")
    for split in ("train", "val")
}
CATEGORIES: list[dict[str, Any]] = [
    {"id": 1, "name": "person", "keypoints": ["nose", "left_eye", "right_eye"], "skeleton": [[1, 2], [1, 3]]},
    {"id": 18, "name": "dog"},
    {"id": 90, "name": "toothbrush"},
]


def make_coco(root: Path) -> None:
    for split, count, first in (("train", 16, 4000), ("val", 6, 4500)):
        write_coco(root, split, [add_scene(root, first + i, split) for i in range(count)])
    broken = root / "val2017/000000004502.jpg"
    broken.write_bytes(cut_short(broken.read_bytes()))


def write_coco(root: Path, split: str, scenes: list[tuple[dict, list[dict], list[str]]]) -> None:
    images = [image for image, _, _ in scenes]
    annotations = [each for _, some, _ in scenes for each in some]
    captions = [
        {"id": 10 * image["id"] + i, "image_id": image["id"], "caption": text}
        for image, _, texts in scenes
        for i, text in enumerate(texts)
    ]
    instances, texts, _ = COCO[split]
    content = {"info": {"year": 2017}, "images": images, "annotations": annotations, "categories": CATEGORIES}
    write(root / instances, json.dumps(content).encode())
    write(root / texts, json.dumps({"info": {}, "images": images, "annotations": captions}).encode())


def add_scene(root: Path, seed: int, split: str) -> tuple[dict, list[dict], list[str]]:
    rng = np.random.default_rng(seed)
    height, width = ((240, 320), (320, 240), (256, 384))[seed % 3]
    name = f"{seed:012}.jpg"
    write(root / f"{split}2017/{name}", encoded(photograph(seed, height, width), "gray" if seed % 8 == 7 else "jpeg"))
    annotations = []
    for i in range(int(rng.integers(0, 5))):
        x, y = np.round(rng.random(2) * (width - 80, height - 80), 2).tolist()
        w, h = np.round(rng.uniform(20, 78, 2), 2).tolist()
        category = int(rng.choice([1, 18, 90], p=[0.5, 0.3, 0.2]))
        each: dict[str, Any] = {"id": 100 * seed + i, "image_id": seed, "category_id": category, "bbox": [x, y, w, h]}
        each |= {"area": round(w * h * 0.6, 3), "iscrowd": 0}
        if i == 3:
            size = height * width
            start, length = 40 * height + 7, 5 * height
            each |= {
                "iscrowd": 1,
                "segmentation": {"counts": [start, length, size - start - length], "size": [height, width]},
            }
        else:
            diamond = [x, y + h / 2, x + w / 2, y, x + w, y + h / 2, x + w / 2, y + h]
            each["segmentation"] = [diamond] if i % 2 else [diamond, [x, y, x + w / 4, y, x, y + h / 4]]
        if category == 1:
            seen = rng.integers(0, 3, 3).tolist()
            spots = [(x + w * (j + 1) / 4, y + h / 3) if v else (0, 0) for j, v in enumerate(seen)]
            each["keypoints"] = [
                value for (a, b), v in zip(spots, seen, strict=True) for value in (round(a, 2), round(b, 2), v)
            ]
            each["num_keypoints"] = sum(v > 0 for v in seen)
        annotations.append(each)
    texts = [f"Scene {seed}: {len(annotations)} things, „schön“", f"A picture of {width} by {height}"][
        : int(rng.integers(1, 3))
    ]
    return {"id": seed, "file_name": name, "height": height, "width": width}, annotations, texts


def grow_coco(root: Path) -> None:
    more = [add_scene(root, 4700 + i, "train") for i in range(3)]
    instances, captions, _ = COCO["train"]
    for file, some in ((instances, [each for _, many, _ in more for each in many]), (captions, None)):
        data = json.loads((root / file).read_text())
        data["images"] += [image for image, _, _ in more]
        if some is None:
            some = [
                {"id": 10 * image["id"] + i, "image_id": image["id"], "caption": text}
                for image, _, texts in more
                for i, text in enumerate(texts)
            ]
        data["annotations"] += some
        (root / file).write_text(json.dumps(data))


def change_coco(root: Path) -> None:
    instances, captions, folder = COCO["train"]
    data, texts = (json.loads((root / file).read_text()) for file in (instances, captions))
    some = [each for each in data["annotations"] if "keypoints" in each or not each["iscrowd"]]
    some[0]["bbox"][2] += 5
    some[1]["category_id"] = 18 if some[1]["category_id"] == 90 else 90
    some[1].pop("keypoints", None)
    some[-1]["segmentation"] = some[-1]["segmentation"][:1]
    texts["annotations"][4]["caption"] = "Corrected"
    write(root / folder / "000000004009.jpg", encoded(photograph(4800, 320, 240), "jpeg"))
    removed = data["images"].pop(12)["id"]
    data["annotations"] = [each for each in data["annotations"] if each["image_id"] != removed]
    texts["annotations"] = [each for each in texts["annotations"] if each["image_id"] != removed]
    write(root / instances, json.dumps(data).encode())
    write(root / captions, json.dumps(texts).encode())
    write(root / "val2017/000000004502.jpg", encoded(photograph(4801, 256, 384), "jpeg"))


# --- a list -----------------------------------------------------------------------------------------------------

NAMES = ("a b", "Ärger", "quote'd", "comma, and", "日本", "x" * 60, "dots.in.it", "% # & +")


def make_list(root: Path) -> None:
    lines = []
    for i in range(48):
        split = "train" if i < 32 else "val" if i < 40 else "test"
        label = "" if i % 16 == 5 else ("sharp", "blurred", "sharp", "dark")[i % 4]
        lines.append(add_line(root, 5000 + i, f"scans/{i // 16}/{NAMES[i % 8]} {i}.png", label, split))
    broken = root / lines[9][0]
    broken.write_bytes(cut_short(broken.read_bytes()))
    write_lines(root, lines, "w")


def add_line(root: Path, seed: int, name: str, label: str, split: str) -> tuple[str, str, str]:
    write(root / name, encoded(photograph(seed, 96, 128), "gray-png"))
    return name, label, split


def write_lines(root: Path, lines: list[tuple[str, str, str]], mode: str) -> None:
    with open(root / "labels.csv", mode, newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("path", "label", "split")] * (mode == "w") + lines)


def grow_list(root: Path) -> None:
    write_lines(root, [add_line(root, 5100 + i, f"scans/new/{i}.png", "dark", "train") for i in range(4)], "a")


def change_list(root: Path) -> None:
    with open(root / "labels.csv", newline="", encoding="utf-8") as file:
        lines = [(line["path"], line["label"], line["split"]) for line in csv.DictReader(file)]
    for row, label in ((3, "sharp"), (5, "dark"), (6, "torn"), (34, "")):
        lines[row] = lines[row][0], label, lines[row][2]
    for row in (9, 12):  # a damaged one and a good one
        add_line(root, 5200 + row, *lines[row])
    del lines[20]
    write_lines(root, lines, "w")


# --- all of them ------------------------------------------------------------------------------------------------

MADE = {
    "folders": DataSet(
        make_folders,
        oracle.class_folders,
        grow_folders,
        change_folders,
        "raw",
        ("folders", "webdataset"),
        size=(240, 320),
    ),
    "photographs": DataSet(
        make_photographs,
        oracle.class_folders,
        grow_photographs,
        change_photographs,
        "source",
        ("folders", "parquet"),
        has_splits=False,
        color=None,
    ),
    "voc": DataSet(make_voc, oracle.voc, grow_voc, change_voc, "raw", ("voc", "coco", "yolo"), size=(240, 320)),
    "imglab": DataSet(
        make_imglab,
        lambda root: oracle.imglab(root, IMGLAB),
        grow_imglab,
        change_imglab,
        "source",
        ("coco", "voc"),
        color=None,
    ),
    "coco": DataSet(
        make_coco,
        lambda root: oracle.coco(root, COCO),
        grow_coco,
        change_coco,
        "source",
        ("coco", "parquet"),
        color=None,
    ),
    "list": DataSet(
        make_list,
        lambda root: oracle.csv_list(root, "labels.csv"),
        grow_list,
        change_list,
        "raw",
        ("parquet", "folders", "csv"),
        size=(96, 128),
        color="L",
    ),
}


def real(folder: Path) -> dict[str, DataSet]:
    """BCCD, dlib's faces and MNIST as PNG files, which a folder has as `BCCD`, `faces`, `train` and `test`."""

    def linked(*names: str) -> Callable[[Path], None]:
        def make(root: Path) -> None:
            root.mkdir(parents=True)
            for name in names:
                (root / Path(name).name).symlink_to(folder / name)

        return make

    bccd = linked(*(f"BCCD/{name}" for name in ("Annotations", "ImageSets", "JPEGImages")))
    faces = linked(*(f"faces/{path.name}" for path in sorted((folder / "faces").iterdir())))
    parsed = {"train": "training_with_face_landmarks.xml", "test": "testing_with_face_landmarks.xml"}
    return {
        "BCCD": DataSet(bccd, oracle.voc, None, None, "raw", ("voc", "coco"), size=(480, 640)),
        "faces": DataSet(faces, lambda root: oracle.imglab(root, parsed), None, None, "source", ("coco",), color=None),
        "MNIST": DataSet(
            linked("train", "test"), oracle.class_folders, None, None, "raw", ("folders",), size=(28, 28), color="L"
        ),
    }
