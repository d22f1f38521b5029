"""Walking folders, packed strings, names of splits and order of classes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from labelling_files import blank, refusing, write
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.regular_files import as_utf8, decode_text
from tensorstore_ds.sources import FORMATS, files, recognized
from tensorstore_ds.sources.files import (
    PackedStrings,
    glance,
    walk_files,
)
from tensorstore_ds.sources.names import number_classes, order_classes, read_classes
from tensorstore_ds.sources.splits import split_name, split_names

PNG = frozenset({".png"})


def touch(root: Path, *names: str) -> None:
    write(root, blank(*names))


def refusal(run: Callable[[], object], match: str | None = None) -> str:
    with pytest.raises(SourceError, match=match) as error:
        run()
    return error.value.reason


@pytest.mark.parametrize("text", ['{"a": "\u00e9\u56fe\U0001f600"}', "a.png,1\r\n", "", "x"])
@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]
)
def test_text_in_any_encoding_of_unicode(text: str, encoding: str) -> None:
    text = text if len(text) > 1 or encoding[-3:] not in ("-le", "-be") else '{"a": "\u00e9"}'  # without a mark
    assert decode_text(text.encode(encoding), "x") == as_utf8(text.encode(encoding), "x").decode() == text


@pytest.mark.parametrize("data", [b"caf\xe9", b"\xff\xfea\0b", b"\xc4\xe3\xba\xc3\xff"])
def test_text_in_another_encoding_is_refused_by_name(data: bytes) -> None:
    with refusing("text-encoding", r"^list\.txt: expected text in UTF-8"):
        decode_text(data, "list.txt")
    assert decode_text(data, "list.txt", errors="replace").endswith("\ufffd")


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("a-b/1.png", "a.png", "a/sub/0.png", "a/z.png", "b.PNG", "two words/line\nbreak.png", "ü/图.png"), ()),
        (("a.png",), ("c/note.txt", "png")),
    ],
)
def test_walk_gives_relative_paths_in_string_order(
    tmp_path: Path, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """Hidden names and litter are passed over, and other files are named."""
    touch(tmp_path, *names[::-1], *others, ".hidden.png", ".git/b.png", "__MACOSX/a.png", "c/Thumbs.db")
    found: list[str] = []
    assert list(walk_files(tmp_path, PNG, others=found)) == list(names)
    assert sorted(found) == list(others)


def test_walk_follows_links_to_folders_and_gives_broken_links(tmp_path: Path) -> None:
    touch(tmp_path, "outside/a.png", "root/b.png")
    (tmp_path / "root/link").symlink_to(tmp_path / "outside")
    (tmp_path / "root/gone.png").symlink_to(tmp_path / "nowhere.png")
    assert list(walk_files(tmp_path / "root", PNG)) == ["b.png", "gone.png", "link/a.png"]


@pytest.mark.parametrize(("link", "target"), [("a/back", "a"), ("a/b/up", "."), ("self.png", "self.png")])
def test_a_loop_of_links_is_refused(tmp_path: Path, link: str, target: str) -> None:
    touch(tmp_path, "a/b/c.png")
    (tmp_path / link).symlink_to(tmp_path / target)
    assert refusal(lambda: list(walk_files(tmp_path, PNG))) == "symlink-loop"


def test_an_unreadable_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/b.png")
    scandir = os.scandir

    def deny(path: str) -> object:
        if str(path).endswith("a/"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deny)  # the tests may run as root, who may read everything
    assert refusal(lambda: list(walk_files(tmp_path, PNG)), "a/") == "unreadable-file"
    assert refusal(lambda: list(walk_files(tmp_path / "none", PNG))) == "unreadable-file"


def test_a_glance_sees_three_levels(tmp_path: Path) -> None:
    touch(tmp_path, "0.png", "a/1.xml", "a/b/2.txt", "a/b/c/3.png", ".x/4.png")
    assert sorted(glance(tmp_path)) == ["0.png", "a/1.xml", "a/b/2.txt"]
    assert glance(tmp_path / "none") == []


def test_a_glance_at_a_large_folder_sees_xml_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_GLANCE_FOLDER", 3)
    touch(tmp_path, *(f"train/{i}.jpg" for i in range(40)))
    assert len(glance(tmp_path)) == 3
    touch(tmp_path, *(f"train/{i}.xml" for i in range(40)))
    assert any(name.endswith(".xml") for name in glance(tmp_path))


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=30), st.data())
def test_packed_strings_are_a_sequence(strings: list[str], data: st.DataObject) -> None:
    packed = PackedStrings(strings)
    assert list(packed) == strings
    assert len(packed) == len(strings)
    part = data.draw(st.slices(len(strings)))
    assert packed[part] == strings[part]
    assert list(pickle.loads(pickle.dumps(packed))) == strings  # noqa: S301  our own bytes
    packed.extend(["ü", "end"])
    assert list(packed) == [*strings, "ü", "end"]
    assert packed[-1] == "end"
    for index in (len(packed), -len(packed) - 1):
        with pytest.raises(IndexError):
            packed[index]


def test_packed_strings_over_several_batches() -> None:
    strings = [f"{i}é" if i % 1000 == 0 else str(i) for i in range(140_000)]
    packed = PackedStrings(strings)
    assert list(packed) == strings
    assert packed[65_530:65_540] == strings[65_530:65_540]


@pytest.mark.parametrize(("text", "name"), [("Train", "train"), ("val 2017", "val_2017"), ("tést-1", "t_st-1")])
def test_split_name(text: str, name: str) -> None:
    assert split_name(text) == name


@pytest.mark.parametrize("text", ["", "训练", "--", "..", "x" * 65])
def test_a_text_without_a_name_for_a_split_is_refused(text: str) -> None:
    assert refusal(lambda: split_name(text)) == "split-name"


def test_two_splits_with_one_name_are_refused() -> None:
    assert split_names(["Train", "val", "Train"]) == {"Train": "train", "val": "val"}
    assert refusal(lambda: split_names(["train", "Train"])) == "split-name"


def test_classes_are_ordered_by_code_point_or_as_wanted() -> None:
    assert order_classes(["b", "a", "Z", "é", "b"], None, "x") == ("Z", "a", "b", "é")
    assert order_classes(["b", "a"], ("b", "c", "a"), "x") == ("b", "c", "a")
    assert order_classes(["dog", "Dog"], ("dog", "Dog"), "x") == ("dog", "Dog")


@pytest.mark.parametrize(
    ("found", "wanted", "reason"),
    [
        (["dog", "Dog"], None, "class-case"),
        (["Straße", "STRASSE"], None, "class-case"),
        (["caf\u00e9", "cafe\u0301"], None, "class-case"),
        (["dog", "Dog"], ("dog",), "class-case"),
        (["dog", "cat"], ("dog",), "unknown-class"),
        (["Dog"], ("dog",), "unknown-class"),
    ],
)
def test_classes_that_do_not_fit_are_refused(found: list[str], wanted: tuple[str, ...] | None, reason: str) -> None:
    assert refusal(lambda: order_classes(found, wanted, "photos"), "photos") == reason


def test_a_class_list_is_read(tmp_path: Path) -> None:
    file = tmp_path / "classes.txt"
    file.write_bytes("\ufeffzebra\r\n\n two words \nñandú\n".encode())
    assert read_classes(file) == ("zebra", "two words", "ñandú")


@pytest.mark.parametrize("content", [b"", b"\n \n", b"a\nb\na\n", b"\xff\xfea", b"caf\xe9"])
def test_a_bad_class_list_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "classes.txt"
    file.write_bytes(content)
    with pytest.raises(OptionError, match=r"classes\.txt"):
        read_classes(file)
    with pytest.raises(OptionError, match="missing"):
        read_classes(tmp_path / "missing")
    with pytest.raises(OptionError):
        order_classes(["a"], ("a", "a"), "x")
    with pytest.raises(OptionError):
        number_classes([], (), "x")


def test_the_list_of_formats_costs_nothing() -> None:
    code = "import sys, tensorstore_ds.sources as s; print(*s.FORMATS, 'numpy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [*FORMATS, "False"]


def test_all_formats_together_list_a_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "cats" / "a.jpg").write_bytes(b"")
    listed = []
    entries = files.entries

    def counted(path: str) -> Iterator[tuple[str, bool]]:
        listed.append(Path(path))
        return entries(path)

    monkeypatch.setattr(files, "entries", counted)
    assert recognized(tmp_path) == ["folders"]
    assert sorted(listed) == [tmp_path, tmp_path / "cats"]
    (tmp_path / "cats" / "b.jpg").write_bytes(b"")
    assert sorted(files.glance(tmp_path)) == ["cats/a.jpg", "cats/b.jpg"]  # nothing is kept after that


def test_what_a_caller_does_with_a_list_changes_no_other(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    with files.listed_once():
        files.glance(tmp_path).clear()
        assert files.glance(tmp_path) == ["a.jpg"]
