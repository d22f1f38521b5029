"""WebDataset: members in any order, labels, JSON as it is exported, archives that are damaged, and every refusal."""

from __future__ import annotations

import io
import json
import tarfile
import tracemalloc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import field, keys, objects, reasons, scan
from stores import store_of
from tensorstore_ds import packed_strings
from tensorstore_ds.annex.sources.webdataset import WebDatasetSource
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import LabelField, ObjectsField
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import SourceOptions
from test_export import COUNTS, SEEDS, assert_same, detection

Members = Sequence[tuple[str, bytes] | tarfile.TarInfo]


def png(value: int = 0) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (30, 20), (value, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def tar(path: Path, members: Members, format: int = tarfile.GNU_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            archive.addfile(info, io.BytesIO(member[1]))
    return path


def block(name: bytes, size: int, kind: bytes = b"0", more: bytes = b"") -> bytes:
    """A header as POSIX says it, byte by byte."""
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + b"%011o\0" % size + b"00000000000\0"
    rest = kind + b"\0" * 100 + b"ustar\x0000" + more
    body = (head + b" " * 8 + rest).ljust(512, b"\0")
    return body[:148] + b"%06o\0 " % sum(body) + body[156:]


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 512)


def test_an_archive_byte_by_byte(tmp_path: Path) -> None:
    image, described = png(7), json.dumps({"label": 1, "class": "dog", "time": 3}).encode()
    path = tmp_path / "train-000000.tar"
    path.write_bytes(
        block(b"b/", 0, b"5")
        + block(b"./b/0001.png", len(image))
        + padded(image)
        + block(b"b/0001.cls", 2)
        + padded(b"1\n")
        + block(b"b/0001.json", len(described))
        + padded(described)
        + b"\0" * 1024
    )
    source, contents = scan(path, "webdataset", classes=("cat", "dog"))
    assert keys(source, contents) == {"train": ["b/0001.png"]}
    sample = source.read("train", contents.splits["train"][0])
    assert (sample.key, sample.image, sample.label, sample.objects) == ("b/0001.png", image, 1, None)
    assert (contents.problems, source.common_files()) == ((), (path,))
    assert [str(each) for each in contents.left_out] == ['train-000000.tar: not read: "time".']


def test_members_in_any_order_and_what_is_not_taken_in(tmp_path: Path) -> None:
    tar(
        tmp_path / "d/train-000001.tar",
        [("c.cls", b"cat"), ("a.seg.png", b"?"), ("c.d.txt", b"x"), ("c.JPG", png(3)), ("._c.jpg", b"mac")],
    )
    members = [
        ("a.cls", b"dog"),
        ("b.jpeg", png(2)),
        ("b.pyd", b"\x80"),
        ("a.webp", png(1)),
        ("b.txt", b"it"),
        ("README.txt", b"all"),
    ]
    tar(tmp_path / "d/train-000000.tar", members)
    tar(tmp_path / "d/val-000000.tar", [("a.png", png(4)), ("a.cls", b"dog")])
    source, contents = scan(tmp_path / "d", "webdataset")
    assert keys(source, contents) == {"train": ["a.webp", "b.jpeg", "c.JPG"], "val": ["a.png"]}
    samples = [source.read("train", each) for each in contents.splits["train"]]
    assert [(each.image, each.label) for each in samples] == [(png(1), 1), (png(2), -1), (png(3), 0)]
    assert getattr(contents.fields["label"], "classes", ()) == ("cat", "dog")
    assert [str(each) for each in contents.left_out] == [
        "train-000000.tar: b.pyd: not read: *.pyd.",
        "train-000000.tar: README.txt: not read: *.txt, in 2 members.",
        "train-000001.tar: a.seg.png: not read: *.*.png, because the name of a sample ends at its first dot.",
    ]
    assert [each.texts for each in samples] == [{}, {"captions": ["it"]}, {}]


def test_names_with_dots_are_no_names_of_samples(tmp_path: Path) -> None:
    """The rule of WebDataset, of which the user learns: the images are not lost in silence."""
    members = [("22.05.jpg", png()), ("22.05.cls", b"1"), ("22.06.jpg", png()), ("a.jpg", png()), ("a.seg.png", png())]
    members += [("a.cls", b"0"), ("b.left.jpg", png())]
    source, contents = scan(tar(tmp_path / "a.tar", members), "webdataset")
    assert keys(source, contents) == {"train": ["a.jpg"]}
    (problem,) = contents.problems
    assert (problem.where, problem.reason) == ("a.tar: 22.05.jpg", "no-image")
    assert "and 1 more" in problem.message and "ends at its first dot, and there is no 22.jpg" in problem.message
    assert [str(each) for each in contents.left_out] == [
        "a.tar: 22.05.cls: not read: *.cls.",
        "a.tar: a.seg.png: not read: *.png.",
        "a.tar: b.left.jpg: not read: *.*.jpg, because the name of a sample ends at its first dot.",
    ]
    for lost in (members[:2], members[-1:]):
        with pytest.raises(SourceError, match="ends at its first dot"):
            open_source(tar(tmp_path / "b.tar", lost), "webdataset").scan()


def test_lists_of_labels_and_members_that_are_not_read(tmp_path: Path) -> None:
    described = [{"labels": ["sky", "sea"], "mood": "good"}, {"labels": []}, {"labels": ["sun"], "mood": "bad"}, {}]
    members = [(f"{i}.png", png(i)) for i in range(4)]
    members += [(f"{i}.json", json.dumps(each).encode()) for i, each in enumerate(described)]
    path = tar(tmp_path / "a.tar", members)
    tsds.convert(path, tmp_path / "o.tsds", workers=0)
    train = tsds.open(tmp_path / "o.tsds")["train"]
    assert train.fields["labels"].classes == ("sea", "sky", "sun")
    assert train["labels"][:].tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [-1, -1, -1]]
    said = open_source(path).contents().left_out
    assert [str(each) for each in said] == ['a.tar: not read: "mood".']


@pytest.mark.parametrize(
    ("described", "unread"),
    [
        ({"boxes": [[1, 2, 9, 9]], "labels": ["cat"], "tags": ["night"], "class": "scene"}, {"tags"}),
        ({"objects": {"boxes": [[1, 2, 9, 9]], "classes": ["cat"], "score": [0.5], "attr": ["x"]}}, {"score", "attr"}),
        ({"objects": {"boxes": [[1, 2, 9, 9]]}, "boxes": [[0, 0, 1, 1]], "classes": ["a"]}, {"boxes", "classes"}),
        ({"labels": ["sea"], "tags": ["night"], "area": [5]}, {"tags", "area"}),
        ({"label": 0, "objects": [{"bbox": [1, 2, 3, 4]}]}, {"objects"}),
        ({"label": 0, "caption": {"en": "a cat"}, "": [1]}, {"caption", ""}),
    ],
)
def test_members_beside_those_that_are_read(tmp_path: Path, described: dict[str, Any], unread: set[str]) -> None:
    path = tar(tmp_path / "a.tar", [("0.png", png()), ("0.json", json.dumps(described).encode())])
    _, contents = scan(path, "webdataset")
    assert {str(each) for each in contents.left_out} == {f'a.tar: not read: "{name}".' for name in unread}


def test_a_member_without_an_image_is_named(tmp_path: Path) -> None:
    members = [("0.png", png()), ("0.cls", b"0"), ("x/orphan.json", b"{}")]
    _, contents = scan(tar(tmp_path / "a.tar", members), "webdataset")
    assert [each.where for each in contents.problems] == ["a.tar: x/orphan.json"]


def test_keys_that_archives_share_have_the_archive_before(tmp_path: Path) -> None:
    for number in (0, 1):
        tar(tmp_path / f"d/0000{number}.tar", [("0.png", png(number)), ("0.cls", b"0")])
    source, contents = scan(tmp_path / "d", "webdataset")
    assert keys(source, contents) == {"train": ["00000/0.png", "00001/0.png"]}
    assert [source.read("train", each).image for each in contents.splits["train"]] == [png(0), png(1)]


@settings(max_examples=15, deadline=None)
@given(COUNTS, SEEDS, st.booleans(), st.booleans(), st.sampled_from([0, 0, 2]))
def test_a_store_there_and_back(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], seed: int, named: bool, outlines: bool, workers: int
) -> None:
    """The names of classes that no sample has, and those of keypoints, with their pairs, are there again."""
    folder = tmp_path_factory.mktemp("web")
    store = detection(folder / "s.tsds", counts, seed, keypoints=3 * named, outlines=outlines)
    assert tsds.export(store.path, folder / "web", "webdataset").left_out == {}
    out = folder / "again.tsds"
    tsds.convert(folder / "web", out, tsds.ConvertOptions(workers=workers))
    again = tsds.open(out)
    assert tsds.verify(out) == []
    field: Any = store["train"].fields["objects"]
    assert again["train"].fields["objects"] == field
    assert_same(store, again, *field.values)


def test_names_of_labels_and_of_objects(tmp_path: Path) -> None:
    """Which differ, look like numbers, have white space around them, or are those of nothing at all."""
    names = {"label": ("1", "0", " b "), "objects": ("2", "cat", "")}
    objects = ObjectsField.of(
        "boxes", "labels", "keypoints", classes=names["objects"], keypoints=("a b", "c,d"), skeleton=((0, 1),)
    )
    fields = {"label": LabelField(classes=names["label"]), "objects": objects}
    (tmp_path / "d").mkdir()
    described = {"boxes": [[1, 2, 3, 4]], "labels": [2], "keypoints": [[[1, 2], [None, None]]]}
    members = [("a.png", png()), ("a.cls", b"1"), ("a.json", json.dumps(described).encode()), ("b.png", png())]
    path = tar(tmp_path / "d/0.tar", members)
    (tmp_path / "d/FIELDS").write_text(json.dumps({name: each.dump() for name, each in fields.items()}))
    for source in (path, path.parent):
        opened, contents = scan(source, "webdataset")
        assert contents.fields == fields
        assert opened.common_files() == (path, path.with_name("FIELDS"))
    tsds.convert(path.parent, tmp_path / "a.tsds", tsds.ConvertOptions(workers=0))
    tsds.export(tmp_path / "a.tsds", tmp_path / "web", "webdataset")
    tsds.convert(tmp_path / "web", tmp_path / "b.tsds", tsds.ConvertOptions(workers=0))
    assert tsds.open(tmp_path / "b.tsds").manifest.fields == tsds.open(tmp_path / "a.tsds").manifest.fields
    assert_same(tsds.open(tmp_path / "a.tsds"), tsds.open(tmp_path / "b.tsds"), "boxes", "labels", "keypoints")
    _, contents = scan(path, "webdataset", keypoints=Keypoints(("x", "y")))
    assert getattr(contents.fields["objects"], "keypoints", ()) == ("x", "y")
    assert getattr(contents.fields["objects"], "skeleton", None) == ()


@pytest.mark.parametrize(
    ("data", "reason", "message"),
    [
        ("{", "json", "expected JSON"),
        ('{"label": {"kind": "label", "dtype": "int64", "shape": [], "classes": ["a", "a"]}}', "annotation", "twice"),
        ('{"label": 3}', "annotation", "fields.label: expected an object, found 3"),
        (
            '{"label": {"kind": "label", "dtype": "int64", "shape": [], "classes": ["cat", "dog"]}}',
            "unknown-class",
            "expected cat, dog as classes, found ant as number 1",
        ),
        (
            '{"label": {"kind": "label", "dtype": "int64", "shape": [], "classes": ["cat"]}}',
            "unknown-class",
            "expected labels from 0 to 0, one for each name in the class list, found 1",
        ),
    ],
)
def test_names_that_are_refused(tmp_path: Path, data: str, reason: str, message: str) -> None:
    tar(tmp_path / "d/0.tar", [("a.png", png()), ("a.cls", b"1"), ("a.json", b'{"class": "ant"}')])
    (tmp_path / "d/FIELDS").write_text(data)
    with pytest.raises(SourceError, match=message) as caught:
        scan(tmp_path / "d", "webdataset")
    assert caught.value.reason == reason


def test_keypoints_of_another_number_than_the_names(tmp_path: Path) -> None:
    described = b'{"boxes": [[1, 2, 3, 4]], "keypoints": [[[1, 2]]]}'
    tar(tmp_path / "d/0.tar", [("a.png", png()), ("a.json", described)])
    fields = {"objects": ObjectsField.of("boxes", "keypoints", keypoints=("a", "b")).dump()}
    (tmp_path / "d/FIELDS").write_text(json.dumps(fields))
    with pytest.raises(SourceError, match="expected 2 keypoints, found 1") as caught:
        scan(tmp_path / "d", "webdataset")
    assert caught.value.reason == "keypoint-count"


def test_exported_names_with_dots_do_not_meet(tmp_path: Path) -> None:
    images = [np.full((4, 4, 3), i, np.uint8) for i in range(2)]
    samples = [{"image": images[i], "label": i, "key": f"a{'._'[i]}b.png"} for i in range(2)]
    tsds.convert(iter(samples), tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, classes=("x", "y")))
    tsds.export(tmp_path / "s.tsds", tmp_path / "web", "webdataset")
    tsds.convert(tmp_path / "web", tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
    assert_same(tsds.open(tmp_path / "s.tsds"), tsds.open(tmp_path / "o.tsds"))


@pytest.mark.parametrize("encoding", ["raw", "source"])
def test_labels_there_and_back(tmp_path: Path, encoding: str) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 6, 5, 3), np.uint8)
    store = store_of(tmp_path / "s.tsds", list(zip(images, (2, -1, 0, 1), strict=True)), ("c", "a", "b"))
    tsds.export(store.path, tmp_path / "web", "webdataset")
    tsds.convert(tmp_path / "web", tmp_path / "o.tsds", tsds.ConvertOptions(workers=0, encoding=encoding))
    again = tsds.open(tmp_path / "o.tsds")
    assert again["train"].fields["label"] == store["train"].fields["label"]
    assert list(again["train"]["label"]) == [2, -1, 0, 1]
    if encoding == "raw":
        assert_same(store, again)


def test_objects_in_json(tmp_path: Path) -> None:
    first = {"objects": {"boxes": [[1, 2, 3, 4], [0, 0, 9, 9]], "classes": ["dog", "cat"], "difficult": [1, 0]}}
    second = {"boxes": [[1, 2, 3.5, 4]], "classes": ["dog"]}
    members = [("a.png", png()), ("a.json", json.dumps(first).encode()), ("b.png", png())]
    members += [("c.png", png()), ("c.json", json.dumps(second).encode())]
    source, contents = scan(tar(tmp_path / "x.tar", members), "webdataset")
    assert (field(contents).classes, list(field(contents).values)) == (("cat", "dog"), ["boxes", "labels", "difficult"])
    found = [objects(source, contents, row=row) for row in range(3)]
    assert [each["boxes"].tolist() for each in found] == [[[1, 2, 3, 4], [0, 0, 9, 9]], [], [[1, 2, 3.5, 4]]]
    assert [each["labels"].tolist() for each in found] == [[1, 0], [], [1]]
    assert [each["difficult"].tolist() for each in found] == [[1, 0], [], [0]]


def member(name: str, kind: bytes, **more: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info


GOOD: Members = [("z.png", png()), ("z.cls", b"0")]


@pytest.mark.parametrize(
    ("members", "reason", "found"),
    [
        ([member("a.png", tarfile.SYMTYPE, linkname="/etc/passwd")], "packed-file", "a link"),
        ([member("a.png", tarfile.LNKTYPE, linkname="z.png")], "packed-file", "a link"),
        ([member("a.png", tarfile.CHRTYPE)], "packed-file", "a device"),
        ([("../a.png", png())], "unsafe-path", "plain relative name"),
        ([("/a.png", png())], "unsafe-path", "plain relative name"),
        ([("a/./b.png", png())], "unsafe-path", "plain relative name"),
        ([("a.png", png()), ("a.jpg", png())], "ambiguous-image", "a.png"),
        ([("a.png", png()), ("a.cls", b"0"), ("a.cls", b"0")], "duplicate-key", "twice"),
        ([("a.cls", b"0")], "no-image", "none"),
        ([("a.png", png()), ("a.cls", b"\xff")], "annotation", "UTF-8"),
        ([("a.png", png()), ("a.cls", b" \n")], "annotation", ".cls"),
        ([("a.png", png()), ("a.cls", b"-2")], "annotation", "-2"),
        ([("a.png", png()), ("a.cls", b"9" * 4097)], "packed-file", "4,096"),
        ([("a.png", png()), ("a.json", b"{")], "json", "JSON"),
        ([("a.png", png()), ("a.json", b'{"label": 1.5}')], "annotation", "label"),
        ([("a.png", png()), ("a.cls", b"0"), ("a.json", b'{"label": 1}')], "annotation", "0 and 1"),
        ([("a.png", png()), ("a.json", b'{"boxes": [[1, 2, 3]]}')], "annotation", "(M, 4)"),
        ([("a.png", png()), ("a.json", b'{"boxes": [[1, 2, 3, 4]], "labels": []}')], "annotation", "0"),
        ([("a.png", png()), ("a.json", b'{"boxes": [[1, 2, 3, 4]], "labels": [null]}')], "annotation", "label"),
        ([("a.png", png()), ("a.json", b'{"boxes": [[1, 2, 3, 4]], "difficult": [256]}')], "annotation", "difficult"),
        ([("a.png", png()), ("a.json", b'{"boxes": {"a": 1}}')], "annotation", "boxes"),
        ([("a.png", png()), ("a.json", b'{"boxes": [], "classes": [1]}')], "annotation", "names"),
    ],
)
def test_a_bad_sample_is_named_and_left_out(tmp_path: Path, members: Members, reason: str, found: str) -> None:
    source, contents = scan(tar(tmp_path / "x.tar", [*GOOD, *members]), "webdataset")
    (problem,) = contents.problems
    assert problem.reason == reason and found in problem.message and problem.where.startswith("x.tar: ")
    assert keys(source, contents) == {"train": ["z.png"]}
    with pytest.raises(SourceError, match=r"x\.tar: "):
        tsds.convert(tmp_path / "x.tar", tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))


def test_sparse_members_and_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    good = block(b"z.png", len(png())) + padded(png()) + block(b"z.cls", 1) + padded(b"0")
    sparse = block(b"a.png", 0, b"S", b"\0" * 121 + b"\0" * 97 + b"00000000000\0")
    path.write_bytes(good + sparse + block(b"\xff.png", 0) + b"\0" * 1024)
    _, contents = scan(path, "webdataset")
    assert [reason for _, reason in reasons(contents.problems)] == ["packed-file", "name-encoding"]


def damaged(data: bytes) -> Mapping[str, bytes]:
    end = len(data.rstrip(b"\0")) + -len(data.rstrip(b"\0")) % 512
    huge_name = block(b"././@LongLink", 1 << 30, b"L")
    return {
        "cut short in a member": data[:700],
        "cut short in a header": data[: end + 100],
        "cut short between members": data[:end],
        "joined with another": data + data,
        "a bad checksum in the middle": data[: end - 1024] + b"x" + data[end - 1023 :],
        "a name of a gigabyte": huge_name + data,
        "no archive": b"\0" * 511 + b"a",
        "a negative size": block(b"n.png", 0)[:124] + b"\xff" * 12 + block(b"n.png", 0)[136:] + data,
    }


@pytest.mark.parametrize("what", damaged(b"\0" * 2048))
def test_a_damaged_archive_is_refused(tmp_path: Path, what: str) -> None:
    path = tar(tmp_path / "x.tar", GOOD)
    path.write_bytes(damaged(path.read_bytes())[what])
    with pytest.raises(SourceError) as caught:
        open_source(path, "webdataset").contents()
    assert caught.value.reason == "packed-file" and str(caught.value).startswith("x.tar: ")


def test_a_compressed_archive_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a.png"))
    with pytest.raises(SourceError, match="gunzip"):
        open_source(path, "webdataset").contents()


@pytest.mark.parametrize("name", ["a.txt", "b.cls"])
def test_other_archives_are_folders(tmp_path: Path, name: str) -> None:
    path = tar(tmp_path / "x.tar", [("a.png", png()), (name, b"0")])
    assert open_source(path).name == "folders"
    shapes = b'{"version": "5", "shapes": []}'
    assert open_source(tar(tmp_path / "y.tar", [("a.png", png()), ("a.json", shapes)])).name == "labelme"
    with pytest.raises(SourceError, match="no known data set format"):
        open_source(tar(tmp_path / "z.tar", [("a.png", png()), ("a.xml", b"<a/>")]))


NAMES = st.text("ab/é-", min_size=1, max_size=120).filter(lambda n: {"", ".", ".."}.isdisjoint(n.split("/")))


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, st.integers(0, 255), min_size=1, max_size=6), st.randoms(), st.sampled_from([0, 1, 2]))
def test_any_names_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, int], random: Any, format: int
) -> None:
    members = [(f"{name}.png", png(value)) for name, value in rows.items()]
    members += [(f"{name}.cls", f"n{value}".encode()) for name, value in rows.items()]
    random.shuffle(members)
    try:
        path = tar(tmp_path_factory.mktemp("w") / "x.tar", members, format)
    except ValueError:  # a name that is too long for ustar
        return
    source = open_source(path, "webdataset")
    contents = source.contents()
    samples = [source.read("train", each) for each in contents.splits["train"]]
    classes = getattr(contents.fields["label"], "classes", ())
    found = {each.key.removesuffix(".png"): (each.image, classes[each.label or 0]) for each in samples}
    assert found == {name: (png(value), f"n{value}") for name, value in rows.items()}


@pytest.mark.parametrize("apart", [False, True])
def test_members_of_a_sample_may_be_apart(tmp_path: Path, apart: bool) -> None:
    members = [
        (f"{i}{suffix}", data) for i in range(5) for suffix, data in ((".png", png(i)), (".cls", b"%d" % (i % 2)))
    ]
    members += [("notes.md", b"x"), ("1.png", png(9)), ("7.png", png())] if apart else [("notes.md", b"x")]
    members.sort(key=lambda each: each[0].partition(".")[2] if apart else "")
    source = WebDatasetSource(tar(tmp_path / "a.tar", members), SourceOptions())
    contents = source.scan()
    expected = ["0", "2", "3", "4", "7"] if apart else list("01234")
    assert [reference.partition(".")[0] for reference in contents.splits["train"]] == expected
    labels = [source.read("train", reference).label for reference in contents.splits["train"]]
    assert labels == ([0, 0, 1, 0, -1] if apart else [0, 1, 0, 1, 0])
    assert [each.reason for each in contents.problems] == ["ambiguous-image"] * apart
    assert [str(each) for each in source.ledger.problems()] == ["a.tar: notes.md: not read: *.md."]


def test_a_scan_takes_little_memory_beside_its_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most 64 bytes a sample, in an archive or in several: tuples and dicts would take 300 to 700."""
    monkeypatch.setattr(packed_strings, "_PACK", 32)
    taken = []
    for count in (300, 1500):
        members = [(f"{i:09}{suffix}", b"0") for i in range(count) for suffix in (".jpg", ".cls")]
        source = WebDatasetSource(tar(tmp_path / f"{count}.tar", members), SourceOptions())
        tracemalloc.start()
        try:
            contents = source.scan()
            taken.append(tracemalloc.get_traced_memory()[1] - sum(len(text) + 8 for text in contents.splits["train"]))
        finally:
            tracemalloc.stop()
    assert (taken[1] - taken[0]) / 1200 < 64
