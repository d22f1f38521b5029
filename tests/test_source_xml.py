"""XML: what is read, and what is refused with which reason."""

from __future__ import annotations

import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from labelling_files import refusing
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import xml
from tensorstore_ds.sources.forms import FormError
from tensorstore_ds.sources.xml import (
    file_root,
    flag,
    folder_roots,
    iterate_elements,
    number,
    parse_point,
    pixels,
    read_tree,
)

BOMB = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY e0 "lollollollol">'
    + "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, 12))
    + "]><a>&e11;</a>"
)


def tree(folder: Path, data: bytes | str) -> ET.Element:
    path = folder / "a.xml"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_tree(path, "a.xml")


def refusal(folder: Path, data: bytes | str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        tree(folder, data)
    assert "\n" not in str(caught.value)
    return caught.value


def test_elements_attributes_and_text_are_read(tmp_path: Path) -> None:
    root = tree(tmp_path, "<?xml version='1.0'?><?style x?><!-- c --><a b='1'>t<c/>&lt;<![CDATA[<d>]]>\n</a>")
    assert (root.tag, root.attrib, root.text, root[0].tag, root[0].tail) == ("a", {"b": "1"}, "t", "c", "<<d>\n")


@pytest.mark.parametrize(
    "document",
    [
        BOMB,
        "<!DOCTYPE a><a/>",
        '<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
        '<!DOCTYPE a [<!ENTITY % x SYSTEM "http://127.0.0.1/x"> %x;]><a/>',
        '<!DOCTYPE a [<!ATTLIST a b CDATA "default">]><a/>',
    ],
)
def test_document_types_are_refused_at_once(tmp_path: Path, document: str) -> None:
    start = time.perf_counter()
    for data in (document.encode(), document.replace('<?xml version="1.0"?>', "").encode("utf-16")):
        assert refusal(tmp_path, data).reason == "xml-doctype"
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ("", "line 1"),
        ("<a>\n<b>\n</a>", "line 3"),
        ("<a>\n&unknown;</a>", "line 2"),
        ("<a/><b/>", "line 1"),
        ("<a b='1' b='2'/>", "line 1"),
        ("<a>\x01</a>", "line 1"),
        ("hello", "line 1"),
    ],
)
def test_syntax_errors_name_their_line(tmp_path: Path, document: str, place: str) -> None:
    error = refusal(tmp_path, document)
    assert error.reason == "xml-syntax"
    assert place in str(error)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1", "windows-1252", "koi8-r", "us-ascii"])
def test_known_encodings_are_read(tmp_path: Path, encoding: str) -> None:
    text = {"koi8-r": "ж", "us-ascii": "z"}.get(encoding, "ä")
    declared = encoding.removesuffix("-sig")
    data = f'<?xml version="1.0" encoding="{declared}"?><a>{text}</a>'.encode(encoding)
    assert tree(tmp_path, data).text == text


@pytest.mark.parametrize("encoding", ["klingon", "utf-7", "idna", "punycode", "zlib", "cp037", "utf-16"])
def test_unknown_and_wrong_encodings_are_refused(tmp_path: Path, encoding: str) -> None:
    data = f'<?xml version="1.0" encoding="{encoding}"?><a/>'.encode()
    assert refusal(tmp_path, data).reason == "xml-encoding"


CHARACTERS = {
    "gbk": "猫朱镕",
    "gb2312": "猫镕",
    "gb18030": "猫🐈",
    "big5": "貓",
    "big5hkscs": "貓㗎",
    "shift_jis": "猫①",
}
CHARACTERS |= {"euc-jp": "猫", "iso-2022-jp": "猫", "euc-kr": "고양이뷁", "cp949": "고뷁", "johab": "고", "hz": "猫"}


@pytest.mark.parametrize(("encoding", "text"), CHARACTERS.items())
@pytest.mark.parametrize("padding", [0, (1 << 16) - 60, (1 << 16) - 59])  # a character may be in two chunks
def test_encodings_with_several_bytes_for_a_character(tmp_path: Path, encoding: str, text: str, padding: int) -> None:
    wider = {"gb2312": "gbk", "shift_jis": "cp932", "euc-kr": "cp949"}.get(encoding, encoding)
    document = f'<?xml version="1.0" encoding="{encoding}"?><!--{" " * padding}--><a b="{text}">{text}</a>'
    root = tree(tmp_path, document.encode(wider))
    assert (root.tag, root.text, root.attrib) == ("a", text, {"b": text})
    assert refusal(tmp_path, document.replace("<a ", "<!DOCTYPE a><a ").encode(wider)).reason == "xml-doctype"
    assert refusal(tmp_path, document.encode(wider).replace(b"</a>", b"\x81</a>")).reason == "xml-encoding"


@pytest.mark.parametrize("encoding", ["hz", "iso-2022-jp", "utf-7", "utf-16-le", "utf-16-be", "utf-32", "shift_jis"])
def test_no_encoding_hides_a_document_type(tmp_path: Path, encoding: str) -> None:
    doctype = "<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>"
    document = f"<?xml version='1.0' encoding='{encoding}'?>{doctype}<a>猫&b;</a>"
    assert refusal(tmp_path, document.encode(encoding)).reason in ("xml-doctype", "xml-encoding", "xml-syntax")
    hidden = document.encode("utf-7").replace(b"<!DOCTYPE", b"+ADwAIQ-DOCTYPE")
    assert refusal(tmp_path, hidden).reason in ("xml-doctype", "xml-encoding", "xml-syntax")


def test_latin_1_that_is_not_declared_is_an_encoding_problem(tmp_path: Path) -> None:
    for before in ("", "x" * 70_000):  # in the first bytes, and in later ones
        error = refusal(tmp_path, f"<a>{before}\n<b>Stra\xdfe</b></a>".encode("latin-1"))
        assert error.reason == "xml-encoding"
        assert "line 2" in str(error)


def test_size_is_checked_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.touch()
    os.truncate(path, xml.FILE_LIMIT + 1)
    with refusing("xml-size", "at most 16 MiB"):
        read_tree(path, "a.xml")
    os.truncate(path, xml.STREAM_LIMIT + 1)
    with pytest.raises(SourceError, match="at most 1024 MiB"):
        list(iterate_elements(path, "a.xml", "dataset", "image"))


@pytest.mark.parametrize(
    "document",
    [
        "<a>" * 65 + "</a>" * 65,
        "<a>" + "<b/>" * 500_000 + "</a>",
        f"<a b='{'x' * (2 << 20)}'/>",
        f"<a>{'x' * (2 << 20)}</a>",
        f"<!--{'x' * (2 << 20)}--><a/>",
    ],
    ids=["depth", "elements", "attribute", "text", "comment"],
)
def test_what_is_too_large_is_refused(tmp_path: Path, document: str) -> None:
    assert refusal(tmp_path, document).reason == "xml-size"


def test_an_element_of_a_stream_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml, "FILE_LIMIT", 100_000)
    path = tmp_path / "a.xml"
    small, large = f"<image>{'<box/>' * 10_000}</image>", f"<image>{'<box/>' * 40_000}</image>"
    path.write_text(f"<dataset>{small * 4}</dataset>")
    assert len(list(iterate_elements(path, "a.xml", "dataset", "image"))) == 4
    path.write_text(f"<dataset>{small}{large}</dataset>")
    with refusing("xml-size"):
        list(iterate_elements(path, "a.xml", "dataset", "image"))


def test_elements_are_given_one_by_one_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.xml"
    path.write_text(
        "<dataset><name>n</name>\n<images>\n<image file='1'><box/></image>\n<image><image/></image></images>"
    )
    found = []
    with pytest.raises(SourceError) as caught:
        for line, element in iterate_elements(path, "a.xml", "dataset", "image"):
            found.append((line, ET.tostring(element)))
    assert found == [(3, b'<image file="1"><box /></image>'), (4, b"<image><image /></image>")]
    assert caught.value.reason == "xml-syntax"


def test_a_stream_with_another_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<annotation/>")
    with refusing("annotation", "expected the root element <dataset>, found <annotation>"):
        list(iterate_elements(tmp_path / "a.xml", "a.xml", "dataset", "image"))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.xml").mkdir()
    os.mkfifo(tmp_path / "pipe.xml")
    for name in ("missing.xml", "folder.xml", "pipe.xml"):
        with refusing("unreadable-file"):
            read_tree(tmp_path / name, name)
        assert file_root(tmp_path / name) is None


def test_roots_are_told_from_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<?xml version='1.0'?>\n<!-- x -->\n<dataset>")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b.XML").write_bytes("<annotation verified='no'/>".encode("utf-16"))
    (tmp_path / "c.xml").write_text("<annotationset/>")
    (tmp_path / "deep" / "d.xml").write_text("<annotations>")
    assert folder_roots(tmp_path) == [{"dataset"}, {"annotations"}, {"annotation"}]
    assert file_root(tmp_path / "c.xml") is None


def value(read: Callable[..., object], *texts: str | None) -> object:
    try:
        return read(*texts)
    except FormError:
        return None


def test_values() -> None:
    assert number("nan", "x") != number("nan", "x")
    assert [value(number, text, "x") for text in ("inf", "1e3", "-1", "", "1,5", "0x10", "1_0", None)] == [
        float("inf"), 1000, -1, None, None, None, None, None,
    ]  # fmt: skip
    assert [pixels(text) for text in (None, "640", "640.0", "0", "-3", "nan", "inf", "1e300")] == [0, 640, 640] + [
        0
    ] * 5
    assert [value(flag, text, "x") for text in (None, "0", "Unspecified", "TRUE", "yes", "-1", "nan", "x")] == [
        0, 0, 0, 1, 1, 1, None, None,
    ]  # fmt: skip


def test_places() -> None:
    assert parse_point("1.5", "-2", "nose") == (1.5, -2)
    assert all(coordinate != coordinate for coordinate in parse_point("nan", "3", "nose"))
    assert [value(parse_point, *xy, "nose") for xy in (("inf", "0"), ("0", "-1e10"), ("1", None), ("x", "1"))] == [
        None
    ] * 4


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda: number("4,5", "ymax"), "expected ymax, a number, found '4,5'"),
        (lambda: flag("9" * 41 + "x", "difficult"), f"expected difficult to be 0 or 1, found '{'9' * 40}...'"),
        (lambda: parse_point("1", None, "nose"), "expected y of keypoint nose, a number, found none"),
        (
            lambda: parse_point("1e10", "0", "nose"),
            "expected keypoint nose within a billion pixels, found 10000000000.0 0.0",
        ),
    ],
)
def test_what_is_wrong_with_a_value(read: Callable[[], object], message: str) -> None:
    with pytest.raises(FormError) as caught:
        read()
    assert str(caught.value) == message
