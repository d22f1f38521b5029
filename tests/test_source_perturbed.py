"""A source with one small change gives the same samples, or a line that names the file, or an error: there is no third.

Every format has one valid source of text files. Each of its files is changed in each of the ways of `CHANGES`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labelling_files import write
from layouts import HEIGHT, LAYOUTS, WIDTH
from tensorstore_ds.errors import TsdsError
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, SourceOptions

Files = Mapping[str, str]

_CVAT = f"""<?xml version="1.0" encoding="utf-8"?>
<annotations><version>1.1</version><meta><task><id>1</id><name>pets</name><subset>train</subset></task></meta>
<image id="0" name="a.jpg" width="{WIDTH}" height="{HEIGHT}"><box label="cat" occluded="0" xtl="1.0" ytl="2.0"
 xbr="9.5" ybr="8.0" z_order="0"></box></image>
<image id="1" name="b.jpg" width="{WIDTH}" height="{HEIGHT}"><polygon label="dog" occluded="1"
 points="1,2;9,2;9,8" z_order="0"></polygon></image></annotations>"""

_IMGLAB = """<?xml version='1.0' encoding='UTF-8'?><dataset><name>faces</name><images>
<image file='{0}.jpg'><box top='2' left='1' width='20' height='30'><part name='0' x='3' y='4'/>
<part name='1' x='5' y='6'/></box></image></images></dataset>"""

_LABELME = json.dumps(
    {
        "version": "5.0", "flags": {}, "imagePath": "a.jpg", "imageData": None, "imageHeight": HEIGHT,
        "imageWidth": WIDTH,
        "shapes": [{"label": "cat", "points": [[1, 2], [9, 8]], "shape_type": "rectangle", "flags": {}}],
    }
)  # fmt: skip

_LABELSTUDIO = json.dumps(
    [
        {
            "id": 1, "data": {"image": "/data/upload/1/a.jpg"},
            "annotations": [{"id": 1, "result": [{
                "from_name": "label", "to_name": "image", "type": "rectanglelabels", "original_width": WIDTH,
                "original_height": HEIGHT,
                "value": {"x": 10.0, "y": 20.0, "width": 30.0, "height": 40.0, "rotation": 0,
                          "rectanglelabels": ["cat"]},
            }]}],
        }
    ]
)  # fmt: skip

_CAPTIONS = json.dumps(
    {
        "info": {},
        "images": [{"id": 1, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT}],
        "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}],
    }
)

_PTS = "version: 1\nn_points: 3\n{\n1 2\n3.5 4\n5 6\n}\n"

SOURCES: Mapping[str, Files] = {
    **{
        name: {path: text for path, text in LAYOUTS[name][0].items() if text is not None}
        for name in ("Roboflow, COCO", "VOCdevkit", "Ultralytics, coco8", "Darknet", "VOC, folders of splits")
    },
    "CVAT": {"annotations.xml": _CVAT, "a.jpg": "", "b.jpg": ""},
    "imglab": {"train.xml": _IMGLAB.format("a"), "test.xml": _IMGLAB.format("b"), "a.jpg": "", "b.jpg": ""},
    "labelme": {"a.json": _LABELME, "b.json": _LABELME.replace("a.jpg", "b.jpg"), "a.jpg": "", "b.jpg": ""},
    "Label Studio": {"export.json": _LABELSTUDIO, "a.jpg": ""},
    "captions": {"captions_train.json": _CAPTIONS, "a.jpg": ""},
    "DOTA": {
        "images/a.png": "",
        "labelTxt/a.txt": "imagesource:GoogleEarth\ngsd:0.1\n1 2 9 2 9 8 1 8 ship 0\n",
        "images/b.png": "",
        "labelTxt/b.txt": "2 3 9 3 9 8 2 8 plane 1\n",
    },
    "300-W": {"a.pts": _PTS, "a.jpg": "", "b.pts": _PTS, "b.jpg": ""},
    "CSV": {
        "train.csv": "filename,class,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,9,8\nb.jpg,dog,3,4,20,30\n",
        "val.csv": "filename,class,xmin,ymin,xmax,ymax\nc.jpg,cat,1,2,9,8\n",
        **dict.fromkeys(("a.jpg", "b.jpg", "c.jpg"), ""),
    },
    "CSV, names without suffixes": {"labels.csv": "id,breed\na,cat\nb,dog\n", "img/a.jpg": "", "img/b.jpg": ""},
    "CSV, landmarks": {
        "points.csv": "file,X1,Y1,X2,Y2,X3,Y3\na.jpg,5,6,20,30,40,10\nb.jpg,6,7,21,31,41,11\n",
        "a.jpg": "",
        "b.jpg": "",
    },
    "CSV, several labels": {
        "labels.csv": "image,labels\na.jpg,sky sea\nb.jpg,sea sun\nc.jpg,sky\n",
        **dict.fromkeys(("a.jpg", "b.jpg", "c.jpg"), ""),
    },
    "CSV, a column for each class": {
        "labels.csv": "image,sky,sea,sun\na.jpg,1,1,0\nb.jpg,0,1,1\nc.jpg,1,0,0\n",
        **dict.fromkeys(("a.jpg", "b.jpg", "c.jpg"), ""),
    },
    "CSV in split folders": {
        "train/_annotations.csv": "filename,class,xmin,ymin,xmax,ymax\na.jpg,cat,1,2,9,8\n",
        "valid/_annotations.csv": "filename,class,xmin,ymin,xmax,ymax\nc.jpg,cat,1,2,9,8\n",
        "train/a.jpg": "",
        "valid/c.jpg": "",
    },
    "imagefolder, labels": {
        "train/metadata.jsonl": '{"file_name": "a.jpg", "label": "cat"}\n{"file_name": "b.jpg", "label": "dog"}\n',
        "test/metadata.jsonl": '{"file_name": "c.jpg", "label": "dog"}\n',
        **dict.fromkeys(("train/a.jpg", "train/b.jpg", "test/c.jpg"), ""),
    },
    "imagefolder, objects": {
        "metadata.jsonl": '{"file_name": "a.jpg", '
        '"objects": {"bbox": [[1, 2, 3, 4], [2, 2, 5, 6]], "categories": [0, 1]}}\n',
        "a.jpg": "",
    },
    "text list": {"train.txt": "a.jpg 0\nb.jpg 1\n", "val.txt": "c.jpg 1\n", "a.jpg": "", "b.jpg": "", "c.jpg": ""},
}

Change = Callable[[str, str], Iterator[tuple[str, str, bytes]]]


def encoded(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """In other encodings that text editors write."""
    yield "utf-8-sig", path, text.encode("utf-8-sig")
    without_a_mark = () if path.endswith(".xml") else ("utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
    text = re.sub(r"encoding=(['\"]).*?\1", 'encoding="utf-16"', text)
    for encoding in ("utf-16", *without_a_mark):
        yield encoding, path, text.encode(encoding)
    yield "utf-16-be with a mark", path, codecs.BOM_UTF16_BE + text.encode("utf-16-be")


def shortened(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """Empty; and cut, where that can be seen."""
    yield "empty", path, b""
    if path.endswith((".json", ".xml")):
        for part in (1 / 3, 0.6, 0.95):
            yield f"cut at {part:.2f}", path, text[: int(len(text) * part)].encode()


def renamed(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """Each element or member by another name, or in another case."""
    if path.endswith(".xml"):
        for tag in dict.fromkeys(re.findall(r"<([a-zA-Z_]\w*)", text)):
            for name in (f"{tag}x", tag.capitalize()):
                if name != tag:
                    yield f"{tag} as {name}", path, re.sub(rf"(</?){tag}\b", rf"\1{name}", text).encode()
        for attribute in dict.fromkeys(re.findall(r"\s([a-z_]+)=['\"]", text.partition("?>")[2])):
            yield f"@{attribute}", path, re.sub(rf"\b{attribute}=(?=['\"])", f"{attribute}x=", text).encode()
    elif path.endswith((".json", ".jsonl")):
        for key in dict.fromkeys(re.findall(r'"(\w+)":', text)):
            for name in (f"{key}x", key.capitalize()):
                yield f"{key} as {name}", path, text.replace(f'"{key}":', f'"{name}":').encode()
    elif path.endswith(".csv"):
        head, _, rows = text.partition("\n")
        for key in head.split(","):
            for name in (f"{key}x", key.capitalize()):
                yield f"{key} as {name}", path, (re.sub(rf"\b{key}\b", name, head) + f"\n{rows}").encode()


def divided(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """With other characters between cells, other ends of lines, and quotes."""
    if path.endswith(".csv"):
        for delimiter in ";\t|":
            yield repr(delimiter), path, text.replace(",", delimiter).encode()
        yield "ends of lines", path, text.replace("\n", "\r\n").encode()
        rows = [",".join(f'"{cell}"' for cell in line.split(",")) for line in text.splitlines()]
        yield "quotes", path, "\n".join(rows).encode()
        yield (
            "columns in another order",
            path,
            "\n".join(",".join(line.split(",")[::-1]) for line in text.splitlines()).encode(),
        )
        yield "upper case", path, (text.partition("\n")[0].upper() + "\n" + text.partition("\n")[2]).encode()


def wrapped(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """The same within one more element or member."""
    if path.endswith(".xml"):
        declaration, _, body = text.rpartition("?>")
        yield "root", path, f"{declaration}{'?>' if declaration else ''}<all>{body}</all>".encode()
        inner = re.sub(r"(<object>.*</object>)", r"<objects>\1</objects>", text, flags=re.S)
        if inner != text:
            yield "objects", path, inner.encode()
    elif path.endswith(".json"):
        yield "root", path, json.dumps({"data": json.loads(text)}).encode()
        yield "first member", path, text.replace("{", '{"dataset": "pets", ', 1).encode()


def extended(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """With data that nobody knows."""
    if path.endswith(".xml"):
        for tag in dict.fromkeys(re.findall(r"</([a-z]+)>", text)):
            yield f"in {tag}", path, text.replace(f"</{tag}>", f"<mood>good</mood></{tag}>").encode()
    elif path.endswith(".json"):
        yield from ((f"{i}", path, data) for i, data in enumerate(_with_member(json.loads(text))))
    elif path.endswith(".jsonl"):
        yield "member", path, text.replace("}\n", ', "mood": "good"}\n').encode()
        inner = re.sub(r"(\[[01, ]+\])\}", r'\1, "mood": ["good", "bad"]}', text)
        if inner != text:
            yield "objects", path, inner.encode()
    elif path.endswith((".yaml", ".data")):
        yield "member", path, f"{text}\n{'mood: good' if path.endswith('.yaml') else 'mood = good'}\n".encode()
    elif path.endswith(".pts"):
        yield "line", path, f"mood: good\n{text}".encode()
    elif path.endswith(".csv"):
        lines = text.splitlines()
        yield "column", path, "\n".join([f"{lines[0]},mood", *(f"{line},good" for line in lines[1:])]).encode()


def _with_member(value: Any) -> Iterator[bytes]:
    """The JSON with one more member, in each of its objects of one kind."""
    for place in sorted({path for path, _ in _objects(value, ())}):
        copy = json.loads(json.dumps(value))
        for path, each in _objects(copy, ()):
            if path == place:
                each["mood"] = "good"
        yield json.dumps(copy).encode()


def _objects(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
    children = value.items() if isinstance(value, dict) else (("", each) for each in value)
    for name, each in children:
        if isinstance(each, dict | list):
            yield from _objects(each, (*path, name))


def moved(path: str, text: str) -> Iterator[tuple[str, str, bytes]]:
    """In another folder, or with another suffix."""
    yield "elsewhere", f"elsewhere/{Path(path).name}", text.encode()
    yield "suffix", f"{path}.bak", text.encode()


CHANGES: tuple[Change, ...] = (encoded, shortened, renamed, divided, wrapped, extended, moved)


def samples(root: Path, options: SourceOptions | None = None) -> tuple[Any, str]:
    """What is read of a source, in plain values, and everything that is said about it."""
    source = open_source(root, options=options)
    contents = source.contents()
    found = []
    for split, listed in contents.splits.items():
        for reference in listed:
            try:
                sample = source.read(split, reference)
            except TsdsError as error:
                found.append((split, str(error)))
                continue
            arrays = {**(sample.objects or {}), **sample.arrays, **sample.masks}
            values = {name: _plain(value) for name, value in arrays.items()}
            if not isinstance(sample.image, str | Path):
                values["image"] = _plain(sample.image)
            found.append((split, sample.key, sample.label, values, dict(sample.texts), sample.annotated_size))  # type: ignore[arg-type]
    said = [*contents.problems, *contents.left_out, *contents.notes]
    fields = {name: field.describe() for name, field in contents.fields.items()}
    return (fields, sorted(found, key=repr)), "\n".join(map(str, said))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.round(np.nan_to_num(value.astype(np.float64), nan=-1), 4).tolist()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


#: Where a file without content is as good as any: an image without objects.
_MAY_BE_EMPTY = frozenset({"Ultralytics, coco8", "Darknet", "DOTA"})


def source(name: str, change: Change) -> Files:
    """A valid source; where encodings differ, with a class that is not ASCII."""
    if change is not encoded:
        return SOURCES[name]
    return {path: re.sub(r"\bcat\b", "é図\U0001f600", text or "") for path, text in SOURCES[name].items()}


#: Formats of text files that are in no other encoding.
_UTF_8_ALONE = frozenset({"Ultralytics, coco8", "Darknet", "DOTA", "300-W"})


def changed(name: str, change: Change) -> Iterator[tuple[str, str, str, bytes]]:
    """Each changed file: its path, what was done, and its new path and content."""
    for path, text in source(name, change).items():
        if not path.lower().endswith((*IMAGE_SUFFIXES, ".md", ".keep")) and "readme" not in path.lower():
            for what, place, data in change(path, text):
                if data or path.endswith((".json", ".xml")) or name not in _MAY_BE_EMPTY:
                    yield path, what, place, data


def cases() -> Iterator[Any]:
    for name in SOURCES:
        for change in CHANGES:
            if any(changed(name, change)):
                yield pytest.param(name, change, id=f"{name}-{change.__name__}")


@pytest.mark.slow
@pytest.mark.drawn(25)
@pytest.mark.parametrize(("name", "change"), list(cases()))
def test_the_same_or_a_line_or_an_error(name: str, change: Change, tmp_path: Path) -> None:
    files = source(name, change)
    expected, _ = samples(write(tmp_path / "valid", files))
    silent = []
    for number, (path, what, place, data) in enumerate(changed(name, change)):
        others = {other: text for other, text in files.items() if other != path}
        root = write(tmp_path / f"{number}", {**others, place: data})
        try:
            found, said = samples(root)
        except TsdsError as error:
            lines = [str(error), *map(str, getattr(error, "problems", ()))]
            if str(root) not in str(lines) and not any(Path(place).name in each for each in lines):
                silent.append(f"{path}, {what}: an error that names no file: {lines}")
            continue
        if change is encoded and found != expected and (what == "utf-8-sig" or name not in _UTF_8_ALONE):
            silent.append(f"{path}, {what}: not read as in UTF-8: {said}")
        elif change is extended or found != expected:
            names = ["mood"] if change is extended else [Path(place).name, Path(path).name]
            if not any(each in said for each in names):
                silent.append(f"{path}, {what}: {said or 'nothing is said'}")
    assert silent == []
