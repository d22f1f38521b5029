"""WebDataset: members in any order, labels, JSON as it is exported, archives that are damaged, and every refusal."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import Case, Has, case, check, found, refused, stored, tar, write
from stores import png_bytes
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from test_export import assert_same

Members = Sequence[tuple[str, bytes] | tarfile.TarInfo]


def png(value: int = 0) -> bytes:
    return png_bytes(np.full((20, 30, 3), (value, 0, 0), np.uint8))


def described(name: str, values: object) -> tuple[str, bytes]:
    return f"{name}.json", json.dumps(values).encode()


def block(name: bytes, size: int, kind: bytes = b"0", more: bytes = b"") -> bytes:
    """A header as POSIX says it, byte by byte."""
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"00000000000\0"
    rest = kind + b"\0" * 100 + b"ustar\x0000" + more
    body = (head + b" " * 8 + rest).ljust(512, b"\0")
    return body[:148] + b"%06o\0 " % sum(body) + body[156:]


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 512)


LONG = "because the name of a sample ends at its first dot."
DOTTED = [
    *(("22.05.jpg", png()), ("22.05.cls", b"1"), ("22.06.jpg", png()), ("a.jpg", png()), ("a.seg.png", png())),
    *(("a.cls", b"0"), ("b.left.jpg", png())),
]
DOG = b'{"label": 1, "class": "dog", "time": 3}'
IMAGE, BOX = ("0.png", png()), [[1, 2, 9, 9]]


def one(*members: tuple[str, bytes], **expected: object) -> Case:
    return case({"a.tar": tar(*members)}, "a.tar", **expected)


CASES = {
    "byte by byte": case(
        {
            "train-000000.tar": block(b"b/", 0, b"5")
            + block(b"./b/0001.png", len(png(7))) + padded(png(7)) + block(b"b/0001.cls", 2) + padded(b"1\n")
            + block(b"b/0001.json", len(DOG)) + padded(DOG) + b"\0" * 1024
        },
        "train-000000.tar", {"classes": ("cat", "dog")}, keys={"train": ["b/0001.png"]}, labels={"train": [1]},
        said=['train-000000.tar: not read: "time".'], fields=["label"],
    ),
    "members in any order, and what is not taken in": case(
        {
            "train-000001.tar": tar(
                ("c.cls", b"cat"), ("a.seg.png", b"?"), ("c.d.txt", b"x"), ("c.JPG", png(3)), ("._c.jpg", b"mac")
            ),
            "train-000000.tar": tar(
                ("a.cls", b"dog"), ("b.jpeg", png(2)), ("b.pyd", b"\x80"), ("a.webp", png(1)), ("b.txt", b"it"),
                ("README.txt", b"all"),
            ),
            "val-000000.tar": tar(("a.png", png(4)), ("a.cls", b"dog")),
        },
        keys={"train": ["a.webp", "b.jpeg", "c.JPG"], "val": ["a.png"]}, classes=["cat", "dog"],
        labels={"train": [1, -1, 0], "val": [1]}, pictures=[png(1), png(2), png(3), png(4)],
        said=[
            "train-000000.tar: b.pyd: not read: *.pyd.",
            "train-000000.tar: README.txt: not read: *.txt, in 2 members.",
            f"train-000001.tar: a.seg.png: not read: *.*.png, {LONG}",
        ],
        texts=[{}, {"captions": ["it"]}, {}, {}],
    ),
    "names with dots": one(  # the rule of WebDataset, of which the user learns: the images are not lost in silence
        *DOTTED, keys={"train": ["a.jpg"]}, problems=[("a.tar: 22.05.jpg", "no-image")],
        said=[
            Has("and 1 more", "ends at its first dot, and there is no 22.jpg"), "a.tar: 22.05.cls: not read: *.cls.",
            "a.tar: a.seg.png: not read: *.png.", f"a.tar: b.left.jpg: not read: *.*.jpg, {LONG}",
        ],
    ),
    "names with dots alone": one(*DOTTED[:2], refused=("no-image", "ends at its first dot")),
    "one name with dots alone": one(DOTTED[-1], refused=("empty-source", "ends at its first dot")),
    "lists of labels": one(
        *((f"{i}.png", png(i)) for i in range(4)),
        *(
            described(str(i), each)
            for i, each in enumerate(
                ({"labels": ["sky", "sea"], "mood": "good"}, {"labels": []}, {"labels": ["sun"], "mood": "bad"}, {})
            )
        ),
        classes=["sea", "sky", "sun"], multi=[[1, 1, 0], [0, 0, 0], [0, 0, 1], [-1, -1, -1]],
        said=['a.tar: not read: "mood".'],
    ),
    **{
        f"members beside those that are read: {unread}": one(
            IMAGE, described("0", values), said=[f'a.tar: not read: "{name}".' for name in unread]
        )
        for values, unread in (
            ({"boxes": BOX, "labels": ["cat"], "tags": ["night"], "class": "scene"}, ["tags"]),
            ({"objects": {"boxes": BOX, "classes": ["cat"], "score": [0.5], "attr": ["x"]}}, ["score", "attr"]),
            ({"objects": {"boxes": BOX}, "boxes": [[0, 0, 1, 1]], "classes": ["a"]}, ["boxes", "classes"]),
            ({"labels": ["sea"], "tags": ["night"], "area": [5]}, ["tags", "area"]),
            ({"label": 0, "objects": [{"bbox": [1, 2, 3, 4]}]}, ["objects"]),
            ({"label": 0, "caption": {"en": "a cat"}, "": [1]}, ["caption", ""]),
        )
    },
    "a member without an image": one(
        IMAGE, ("0.cls", b"0"), ("x/orphan.json", b"{}"), problems=[("a.tar: x/orphan.json", "no-image")]
    ),
    "keys that archives share": case(
        {f"0000{i}.tar": tar(("0.png", png(i)), ("0.cls", b"0")) for i in (0, 1)},
        keys={"train": ["00000/0.png", "00001/0.png"]}, pictures=[png(0), png(1)],
    ),
    "objects in JSON": one(
        ("a.png", png()), ("b.png", png()), ("c.png", png()),
        described("a", {"objects": {"boxes": [[1, 2, 3, 4], [0, 0, 9, 9]], "classes": ["dog", "cat"],
                                    "difficult": [1, 0]}}),
        described("c", {"boxes": [[1, 2, 3.5, 4]], "classes": ["dog"]}),
        classes=["cat", "dog"], values=["boxes", "labels", "difficult"], names=[["dog", "cat"], [], ["dog"]],
        boxes=[[[1, 2, 3, 4], [0, 0, 9, 9]], [], [[1, 2, 3.5, 4]]], difficult=[[1, 0], [], [0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_read(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path, "webdataset")


FIELDS = {
    "label": LabelField(classes=("1", "0", " b ")),
    "objects": ObjectsField.of(
        *("boxes", "labels", "keypoints"), classes=("2", "cat", ""), keypoints=("a b", "c,d"), skeleton=((0, 1),)
    ),
}


def test_names_of_labels_and_of_objects(tmp_path: Path) -> None:
    """Which differ, look like numbers, have white space around them, or are those of nothing at all."""
    objects = {"boxes": [[1, 2, 3, 4]], "labels": [2], "keypoints": [[[1, 2], [None, None]]]}
    data = tar(("a.png", png()), ("a.cls", b"1"), described("a", objects), ("b.png", png()))
    names = json.dumps({name: each.dump() for name, each in FIELDS.items()})
    path = write(tmp_path, {"d/0.tar": data, "d/FIELDS": names}) / "d/0.tar"
    for source in (path, path.parent):
        got = found(source)
        assert got.contents.fields == FIELDS
        assert got.source.common_files() == (path, path.with_name("FIELDS"))
    one = stored(path.parent)
    tsds.export(one.path, tmp_path / "web", "webdataset")
    other = stored(tmp_path / "web")
    assert other.manifest.fields == one.manifest.fields
    assert_same(one, other, "boxes", "labels", "keypoints")
    named = found(path, keypoints=Keypoints(("x", "y"))).contents.fields["objects"]
    assert (getattr(named, "keypoints", ()), getattr(named, "skeleton", None)) == (("x", "y"), ())


LABEL = '{"label": {"kind": "label", "dtype": "int64", "shape": [], "classes": %s}}'
TWO = json.dumps({"objects": ObjectsField.of("boxes", "keypoints", keypoints=("a", "b")).dump()})
ANT = ("a.cls", b"1"), described("a", {"class": "ant"})


@pytest.mark.parametrize(
    ("members", "data", "reason", "message"),
    [
        (ANT, "{", "json", "expected JSON"),
        (ANT, LABEL % '["a", "a"]', "annotation", "twice"),
        (ANT, '{"label": 3}', "annotation", "fields.label: expected an object, found 3"),
        (ANT, LABEL % '["cat", "dog"]', "unknown-class", "expected cat, dog as classes, found ant as number 1"),
        (
            *(ANT, LABEL % '["cat"]', "unknown-class"),
            "expected labels from 0 to 0, one for each name in the class list, found 1",
        ),
        (
            *([described("a", {"boxes": BOX, "keypoints": [[[1, 2]]]})], TWO),
            *("keypoint-count", "expected 2 keypoints, found 1"),
        ),
    ],
)
def test_names_that_are_refused(tmp_path: Path, members: Members, data: str, reason: str, message: str) -> None:
    write(tmp_path, {"0.tar": tar(("a.png", png()), *members), "FIELDS": data})
    assert refused(tmp_path, "webdataset", message) == reason


def test_exported_names_with_dots_do_not_meet(tmp_path: Path) -> None:
    images = [np.full((4, 4, 3), i, np.uint8) for i in range(2)]
    samples = [{"image": images[i], "label": i, "key": f"a{'._'[i]}b.png"} for i in range(2)]
    tsds.convert(iter(samples), tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, classes=("x", "y")))
    tsds.export(tmp_path / "s.tsds", tmp_path / "web", "webdataset")
    assert_same(tsds.open(tmp_path / "s.tsds"), stored(tmp_path / "web"))


def member(name: str, kind: bytes, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


GOOD: Members = [("z.png", png()), ("z.cls", b"0")]
A = ("a.png", png())


@pytest.mark.parametrize(
    ("members", "reason", "words"),
    [
        ([member("a.png", tarfile.SYMTYPE, "/etc/passwd")], "packed-file", "a link"),
        ([member("a.png", tarfile.LNKTYPE, "z.png")], "packed-file", "a link"),
        ([member("a.png", tarfile.CHRTYPE)], "packed-file", "a device"),
        *(([(name, png())], "unsafe-path", "plain relative name") for name in ("../a.png", "/a.png", "a/./b.png")),
        ([A, ("a.jpg", png())], "ambiguous-image", "a.png"),
        ([A, ("a.cls", b"0"), ("a.cls", b"0")], "duplicate-key", "twice"),
        ([("a.cls", b"0")], "no-image", "none"),
        ([A, ("a.cls", b"\xff")], "annotation", "UTF-8"),
        ([A, ("a.cls", b" \n")], "annotation", ".cls"),
        ([A, ("a.cls", b"-2")], "annotation", "-2"),
        ([A, ("a.cls", b"9" * 4097)], "packed-file", "4,096"),
        ([A, ("a.json", b"{")], "json", "JSON"),
        ([A, ("a.cls", b"0"), ("a.json", b'{"label": 1}')], "annotation", "0 and 1"),
        *(
            ([A, ("a.json", text)], "annotation", words)
            for text, words in (
                (b'{"label": 1.5}', "label"),
                (b'{"boxes": [[1, 2, 3]]}', "(M, 4)"),
                (b'{"boxes": [[1, 2, 3, 4]], "labels": []}', "0"),
                (b'{"boxes": [[1, 2, 3, 4]], "labels": [null]}', "label"),
                (b'{"boxes": [[1, 2, 3, 4]], "difficult": [256]}', "difficult"),
                (b'{"boxes": {"a": 1}}', "boxes"),
                (b'{"boxes": [], "classes": [1]}', "names"),
            )
        ),
    ],
)
def test_a_bad_sample_is_named_and_left_out(tmp_path: Path, members: Members, reason: str, words: str) -> None:
    got = found(write(tmp_path, {"x.tar": tar(*GOOD, *members)}) / "x.tar", "webdataset")
    assert ([each for _, each in got.problems], got.keys) == ([reason], {"train": ["z.png"]})
    assert words in got.said[0] and got.said[0].startswith("x.tar: ")
    with pytest.raises(SourceError, match=r"x\.tar: "):
        tsds.convert(tmp_path / "x.tar", tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))


def test_sparse_members_and_names_that_are_not_utf_8(tmp_path: Path) -> None:
    good = block(b"z.png", len(png())) + padded(png()) + block(b"z.cls", 1) + padded(b"0")
    sparse = block(b"a.png", 0, b"S", b"\0" * 121 + b"\0" * 97 + b"00000000000\0")
    write(tmp_path, {"x.tar": good + sparse + block(b"\xff.png", 0) + b"\0" * 1024})
    assert [reason for _, reason in found(tmp_path / "x.tar").problems] == ["packed-file", "name-encoding"]


def test_a_compressed_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    refused(path, "webdataset", "gunzip")


@pytest.mark.parametrize("name", ["a.txt", "b.cls"])
def test_other_archives_are_folders(tmp_path: Path, name: str) -> None:
    shapes = ("a.json", b'{"version": "5", "shapes": []}')
    write(tmp_path, {"x.tar": tar(A, (name, b"0")), "y.tar": tar(A, shapes), "z.tar": tar(A, ("a.xml", b"<a/>"))})
    assert [open_source(tmp_path / each).name for each in ("x.tar", "y.tar")] == ["folders", "labelme"]
    refused(tmp_path / "z.tar", match="no known data set format")
