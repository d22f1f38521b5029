"""The headers of tar archives, compared with what Python's tarfile reads."""

from __future__ import annotations

import io
import random
import tarfile
from typing import Any

import pytest

from tensorstore_ds.tar_members import FOLDER, LINK, TarMember, TarMembers

Found = tuple[list[TarMember], str]


def packed(members: list[tarfile.TarInfo], format: int, **options: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, **options) as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return buffer.getvalue()


def info(name: str, size: int = 3, **more: Any) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    for key, value in more.items():
        setattr(made, key, value)
    return made


def by_tarfile(data: bytes) -> Found:
    """The members, and what is wrong."""
    found = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
            while (each := archive.next()) is not None:
                kind = FOLDER if each.isdir() else LINK if each.issym() else "" if each.isreg() else "other"
                kind = "a sparse file" if each.issparse() else kind
                if each.offset_data + (each.size if each.isreg() and not each.issparse() else 0) > len(data):
                    return found, "cut short"
                found.append(TarMember(each.name, each.offset_data, each.size, kind))
            rest = data[archive.offset :]  # type: ignore[attr-defined]
            return found, "" if len(rest) >= 512 and not rest.strip(b"\0") else "end"
    except Exception:
        return found, "error"


def found_in(data: bytes) -> Found:
    found = []
    try:
        for each in TarMembers(io.BytesIO(data)):
            found.append(each if each.kind in ("", FOLDER, LINK, "a sparse file") else each._replace(kind="other"))
    except Exception as error:
        words = {"zeros behind": "end", "is cut short": "cut short"}
        return found, next((word for said, word in words.items() if said in str(error)), "error")
    return found, ""


LONG = "a" * 90 + "/" + "b" * 60 + ".jpg"


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_members_of_all_kinds(format: int) -> None:
    members = [
        info("a.jpg", 0),
        info("ü圖.jpg", 600),
        info("b", type=tarfile.DIRTYPE, size=0),
        info("c.cls", mtime=12.5 if format == tarfile.PAX_FORMAT else 12),
        info(LONG, 512),
        info("link", type=tarfile.SYMTYPE, linkname="a.jpg", size=0),
        info("pipe", type=tarfile.FIFOTYPE, size=0),
        info("old/", type=tarfile.AREGTYPE, size=0),
        info("d" * 100),
        info("\udcff.jpg"),
        info("last.jpg", 5000, uid=10**7 if format != tarfile.USTAR_FORMAT else 1),
    ]
    data = packed(members, format, errors="surrogateescape")
    assert found_in(data) == by_tarfile(data) and len(found_in(data)[0]) == len(members)


@pytest.mark.parametrize(
    "headers",
    [
        {"path": "new.jpg"},
        {"path": "new/"},
        {"path": "\udcff\udc80.jpg"},
        {"mtime": "1.5", "comment": "path=none", "SCHILY.xattr.user.x": "1"},
        {"size": "700"},
        {"hdrcharset": "BINARY", "path": "x.jpg"},
        {"GNU.sparse.size": "3", "GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,3"},
        {"GNU.sparse.name": "other.jpg"},
    ],
)
@pytest.mark.parametrize("everywhere", [False, True])
def test_headers_of_pax(headers: dict[str, str], everywhere: bool) -> None:
    members = [info("a.jpg"), info("b.jpg", 700, pax_headers={} if everywhere else headers), info("c.jpg")]
    options = {"pax_headers": headers} if everywhere else {}
    data = packed(members, tarfile.PAX_FORMAT, errors="surrogateescape", **options)
    assert found_in(data) == by_tarfile(data)


def test_damaged_archives() -> None:
    """Where tarfile stops, or finds an error, this does, and with the same members before."""
    rng = random.Random(0)
    members = [info(f"{i}.jpg", rng.choice([0, 3, 512, 700]), mtime=i / 2) for i in range(6)]
    members.insert(2, info(LONG))
    for format in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        for each in members:
            each.mtime = each.mtime if format == tarfile.PAX_FORMAT else int(each.mtime)
        data = packed(members, format)
        for _ in range(300):
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 3])):
                changed[rng.randrange(len(data) - 4096)] = rng.choice(b"\x00\x80\xff 07x9-/Lx")
            given = bytes(changed[: rng.choice([len(data), len(data), rng.randrange(len(data))])])
            assert found_in(given) == by_tarfile(given)


def test_bytes_behind_the_last_member() -> None:
    """tarfile ends without a word where a header is damaged or cut, and at the end of the first of joined archives."""
    data = packed([info(f"{i}.jpg") for i in range(4)], tarfile.GNU_FORMAT)
    damaged = bytearray(data)
    damaged[2 * 1024 + 148] ^= 1
    for given, count in (
        (bytes(damaged), 2),
        (data[: 3 * 1024 + 300], 3),
        (data[: 4 * 1024] + b"other".ljust(10240, b"."), 4),
        (data * 2, 4),
        (data[: 4 * 1024], 4),
    ):
        found, wrong = found_in(given)
        assert len(found) == count and wrong == by_tarfile(given)[1] == "end"
    for given in (data[: 4 * 1024 + 512], data + bytes(1 << 20)):
        assert found_in(given) == by_tarfile(data)


def test_a_sparse_member_is_larger_than_the_archive() -> None:
    header = bytearray(info("a.jpg", 0, type=tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
    header[483:495] = b"00010000000\0"
    header[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(header))[0]  # type: ignore[attr-defined]
    found, wrong = found_in(bytes(header) + bytes(1024))
    assert [each.kind for each in found] == ["a sparse file"] and wrong == ""


def test_sizes_in_base_256_and_checksums_of_signed_bytes() -> None:
    large = tarfile.TarInfo("large.jpg")
    large.size = 1 << 34
    signed = bytearray(packed([info("ü.jpg"), info("b.jpg")], tarfile.USTAR_FORMAT))
    signed[148:156] = b"%06o\0 " % tarfile.calc_chksums(bytes(signed[:512]))[1]  # type: ignore[attr-defined]
    for data in (packed([info("a.jpg")], tarfile.GNU_FORMAT)[:1024] + large.tobuf(tarfile.GNU_FORMAT), bytes(signed)):
        assert found_in(data) == by_tarfile(data)


@pytest.mark.parametrize("mtime", [1, 1.5])
def test_headers_of_plain_files_are_not_read_by_tarfile(mtime: float, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = packed([info(f"{i}{LONG[:i]}", mtime=mtime) for i in range(150)], tarfile.PAX_FORMAT), []
    frombuf = tarfile.TarInfo.frombuf.__func__  # type: ignore[attr-defined]
    count = classmethod(lambda cls, *args: read.append(1) or frombuf(cls, *args))  # type: ignore[func-returns-value]
    monkeypatch.setattr(tarfile.TarInfo, "frombuf", count)
    assert len(found_in(data)[0]) == 150 and len(read) < 8
