"""ZIP and tar archives of every format of folders: the stores that the folders give; hostile and damaged archives."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import tar, write
from mask_sources import write_folders, write_voc
from small_stores import class_folders, tsds as command, voc
from stores import image_file, interrupted
from tensorstore_ds import archives
from tensorstore_ds.conversion import workers as workers_module
from tensorstore_ds.errors import SourceError
from tensorstore_ds.regular_files import entries, exists, is_dir, is_file, read_file
from tensorstore_ds.sources import open_source
from test_source_contract import shown

Pack = Callable[[Path, Path], Path]


def zipped(root: Path, target: Path, *, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(target.with_suffix(".zip"), "w", compression) as archive:
        for path in sorted(root.rglob("*"), reverse=True):
            archive.write(path, path.relative_to(root))
    return target.with_suffix(".zip")


def stored(root: Path, target: Path) -> Path:
    return zipped(root, target, compression=zipfile.ZIP_STORED)


def tarred(root: Path, target: Path) -> Path:
    with tarfile.open(target.with_suffix(".tar"), "w") as archive:
        archive.add(root, target.stem)  # a folder around all
    return target.with_suffix(".tar")


FOLDERS = (
    *("classes", "VOCdevkit", "VOC, folders of splits", "masks", "Roboflow, COCO", "Ultralytics, coco8", "labelme"),
    *("imglab", "CSV", "300-W", "DOTA", "CVAT", "Label Studio", "masks of lists", "masks of splits"),
)


def source(name: str, root: Path) -> Path:
    if name == "masks of lists":
        return write_voc(root, ((10, 12),) * 4) / "VOC2012"
    if name == "masks of splits":
        return write_folders(write_folders(root, 4, images="train/images"), 2, images="val/images")
    return shown(name, root) / ("VOC2007" if name == "VOCdevkit" else "")


@pytest.fixture(scope="module", params=FOLDERS)
def of_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    """The name of a format, a data set in it, and its store."""
    folder = tmp_path_factory.mktemp("folders")
    root = source(request.param, folder / "data")
    (root / ".hidden").write_text("x")
    tsds.convert(root, folder / "folder.tsds", tsds.ConvertOptions(workers=0))
    return open_source(root).name, root, folder / "folder.tsds"


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize(("pack", "workers"), [(zipped, 2), (stored, 0), (tarred, 0)])
def test_an_archive_gives_the_store_of_its_folder(
    tmp_path: Path, of_folder: tuple[str, Path, Path], pack: Pack, workers: int
) -> None:
    """Worker processes read it alike: those of compressed tar archives are below."""
    name, root, expected = of_folder
    options = tsds.ConvertOptions(workers=workers)
    summary = tsds.convert(pack(root, tmp_path / "packed"), tmp_path / "archive.tsds", options)
    difference = tsds.editing.compare_stores(expected, tmp_path / "archive.tsds")
    assert difference.is_empty, difference
    assert tsds.open(tmp_path / "archive.tsds").manifest.provenance["source_format"] == name
    assert len(summary.left_out) == len(tsds.estimate(root, options).left_out)


def test_a_folder_in_an_archive(tmp_path: Path) -> None:
    voc(tmp_path / "all/first", "a")
    class_folders(tmp_path / "all/second", "cat")
    archive = zipped(tmp_path / "all", tmp_path / "all")
    assert tsds.convert(archive / "first", tmp_path / "a.tsds", tsds.ConvertOptions(workers=0)).rows == {"train": 1}
    assert tsds.convert(archive / "second", tmp_path / "b.tsds", tsds.ConvertOptions(workers=0)).rows == {"train": 3}
    with pytest.raises(SourceError, match="there is no such file or folder"):
        tsds.convert(archive / "third", tmp_path / "c.tsds")
    with pytest.raises(SourceError, match=r"there is no such file or folder\. Did you mean all\.zip\?"):
        tsds.convert(tmp_path / "al.zip", tmp_path / "c.tsds")


def test_packed_formats_are_not_read_in_archives(tmp_path: Path) -> None:
    archive = zipped(write(tmp_path / "data", {"train.parquet": "PAR1", "val.npy": ""}), tmp_path / "data")
    with pytest.raises(
        SourceError, match=r"found none .*\(2 other files\)\. Formats without image files, .* unpack it"
    ):
        open_source(archive)


def test_names_and_folders(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.ZIP", "w") as archive:
        for name in ("a.txt", "b/c.txt", "b/d/e.txt", "b.txt", "./f//g.txt", "back\\slash.txt"):
            archive.writestr(name, name)
    root = tmp_path / "a.ZIP"
    assert sorted(entries(root)) == [("a.txt", False), ("b", True), ("b.txt", False), ("back", True), ("f", True)]
    assert sorted(entries(root / "b")) == [("c.txt", False), ("d", True)]
    assert is_dir(root) and is_dir(root / "b/d") and not is_dir(root / "a.txt") and not is_file(root)
    assert is_file(root / "f/g.txt") and is_file(root / "b/../a.txt") and not exists(root / "b/x.txt")
    assert not exists(root / "../a.ZIP/a.txt/x")
    assert read_file(root / "back/slash.txt", "x") == b"back\\slash.txt"
    with pytest.raises(SourceError, match="x: cannot be read: No such file"):
        read_file(root / "nothing", "x")
    with pytest.raises(SourceError, match="expected a file of at most 3 bytes, found 5"):
        read_file(root / "a.txt", "x", 3)


def zip_of(name: str, **changes: Any) -> bytes:
    """An archive of one member, whose header is changed."""
    buffer, info = io.BytesIO(), zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    for attribute, value in changes.items():
        setattr(info, attribute, value)
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, bytes(1000))
    return buffer.getvalue()


def patched(*places: tuple[bytes, int, bytes]) -> bytes:
    """An archive with other bytes at places behind marks."""
    changed = bytearray(zip_of("a.png"))
    for mark, at, new in places:
        at += changed.index(mark)
        changed[at : at + len(new)] = new
    return bytes(changed)


def special(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("a.png")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


OUTSIDE, SPECIAL = "a name that leads out of the archive", "a link, a device or a sparse file: a.png"
HOSTILE: list[tuple[str, bytes, str]] = [
    *(("a.zip", zip_of(name), OUTSIDE) for name in ("../up.png", "a/../../up.png", "/etc/passwd", "..\\up.png")),
    ("a.zip", zip_of("a.png", create_system=3, external_attr=0o120777 << 16), "a link or a device: a.png"),
    ("a.zip", zip_of("a.png", create_system=3, external_attr=0o020666 << 16), "a link or a device"),
    ("a.zip", zip_of("a.png", compress_type=zipfile.ZIP_LZMA), "the compression 14, which is not deflate"),
    (
        "a.zip",
        patched((b"PK\1\2", 24, (2**31).to_bytes(4, "little"))),
        "2,147,483,648 bytes said to be in",
    ),
    ("a.zip", patched((b"PK\1\2", 8, b"\1"), (b"PK\3\4", 6, b"\1")), "an encrypted file: a.png"),
    *(
        ("a.tar", tar(special(kind)), SPECIAL)
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)
    ),
    *(("a.tar", tar((name, b"x")), OUTSIDE) for name in ("../up.png", "/etc/passwd", "a/../../b")),
    *((name, data, "") for name in ("a.zip", "a.tar") for data in (b"", b"x" * 3000, b"PK\3\4" + b"y" * 500)),
]


@pytest.mark.parametrize(("name", "data", "found"), HOSTILE)
def test_hostile_archives_are_refused_in_one_line(tmp_path: Path, name: str, data: bytes, found: str) -> None:
    path = write(tmp_path, {name: data}) / name
    result = command("convert", path, tmp_path / "a.tsds")
    assert result.exit_code == 1
    assert result.output.startswith(f"tsds: {path}: ") and len(result.output.splitlines()) == 1
    assert found in result.output
    assert list(tmp_path.iterdir()) == [path]


def compressed(root: Path, target: Path, suffix: str = ".tar.gz") -> Path:
    path = target.with_name(f"{target.name}{suffix}")
    with tarfile.open(path, f"w:{path.suffix.removeprefix('.').replace('tgz', 'gz')}") as archive:  # type: ignore[call-overload]
        archive.add(root, "all")
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize(
    ("suffix", "workers", "method"),
    [(".tar.gz", 0, ""), (".tgz", 2, "fork"), (".tar.bz2", 0, ""), (".tar.xz", 0, ""), (".tar.gz", 2, "program")],
)
def test_compressed_tar_archives(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, workers: int, method: str
) -> None:
    """Decompressed once, by one process; the file goes when the conversion has ended."""
    if method:
        monkeypatch.setattr(workers_module, "start_method", lambda: method)
    folder = tmp_path / "data"
    voc(folder, "a", "b", "c")
    archive = compressed(folder, tmp_path / "data", suffix)
    options = tsds.ConvertOptions(workers=workers, size=(8, 8))
    tsds.convert(folder, tmp_path / "folder.tsds", options)
    tsds.convert(archive, tmp_path / "archive.tsds", options)
    assert tsds.editing.compare_stores(tmp_path / "folder.tsds", tmp_path / "archive.tsds").is_empty
    assert list(temporary.iterdir()) == []
    assert "TSDS_DECOMPRESSED" not in os.environ


def test_a_compressed_archive_in_an_own_process(tmp_path: Path) -> None:
    """What else reads it leaves nothing, too; and an interrupted conversion goes on."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    class_folders(tmp_path / "data", "cat", "dog", count=9)
    archive = compressed(tmp_path / "data", tmp_path / "data")
    code = "import sys; from tsds_cli.main import main; sys.argv[0] = 'tsds'; main()"
    words = [sys.executable, "-c", code, "convert", archive, tmp_path / "o.tsds"]
    for extra in (["--dry-run"], ["--shard-size", "2KB"]):
        run = subprocess.run(
            [*words, *extra], env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        assert list(temporary.iterdir()) == []
    assert len(tsds.open(tmp_path / "o.tsds")["train"]) == 18


def test_an_interrupted_conversion_of_a_compressed_archive_goes_on(tmp_path: Path, temporary: Path) -> None:
    class_folders(tmp_path / "data", "cat", "dog", count=9)
    archive = compressed(tmp_path / "data", tmp_path / "data")
    options = tsds.ConvertOptions(workers=0, shard_nbytes=2000)
    interrupted(archive, tmp_path / "o.tsds", 10, options)
    assert list(temporary.iterdir()) == []
    assert list((tmp_path / "o.tsds.partial" / "journal").iterdir()) != []
    summary = tsds.convert(archive, tmp_path / "o.tsds", options)
    assert summary.rows == {"train": 18} and tsds.verify(tmp_path / "o.tsds") == []


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.bz2", ".tar.xz"])
def test_damaged_compressed_archives(tmp_path: Path, temporary: Path, suffix: str) -> None:
    class_folders(tmp_path / "data", "cat")
    archive = compressed(tmp_path / "data", tmp_path / "data", suffix)
    whole = archive.read_bytes()
    for data in (b"", b"x" * 3000, whole[:50], whole[: len(whole) // 2], whole[:90] + b"zzzz" + whole[94:]):
        archive.write_bytes(data)
        with pytest.raises(SourceError, match=r"archive") as caught:
            tsds.convert(archive, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
        assert "\n" not in str(caught.value) and list(temporary.iterdir()) == []


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz"])
def test_tars_that_would_lose_members_are_refused(tmp_path: Path, temporary: Path, suffix: str) -> None:
    """Joined ones, and one that ends within a header."""
    whole = tarred(class_folders(tmp_path / "data", "cat"), tmp_path / "data").read_bytes()
    archive = tmp_path / f"a{suffix}"
    for data in (whole * 2, whole[: whole.rindex(b"ustar") + 9]):
        archive.write_bytes(gzip.compress(data) if suffix == ".tar.gz" else data)
        with pytest.raises(
            SourceError, match=r"damaged one \((other bytes than zeros behind|truncated header)"
        ) as caught:
            tsds.convert(archive, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
        assert "\n" not in str(caught.value)


def test_no_room_to_decompress(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = compressed(class_folders(tmp_path / "data", "cat"), tmp_path / "data")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(archives.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(tsds.errors.ConversionError, match=r"does not fit decompressed.*set TMPDIR to a larger disk\.$"):
        tsds.convert(archive, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
    assert list(temporary.iterdir()) == []


def test_a_compressed_web_dataset_is_refused(tmp_path: Path, temporary: Path) -> None:
    class_folders(tmp_path / "data", "cat")
    image = next((tmp_path / "data").rglob("*.png")).read_bytes()
    write(tmp_path, {"a.tgz": gzip.compress(tar(("1.png", image), ("1.cls", b"3")))})
    with pytest.raises(SourceError, match=r"WebDataset's \.tar files, found a compressed one\. Decompress it"):
        tsds.convert(tmp_path / "a.tgz", tmp_path / "o.tsds")


def test_a_member_that_is_damaged_is_one_bad_sample(tmp_path: Path) -> None:
    for pack in (zipped, stored):
        archive = pack(class_folders(tmp_path / pack.__name__, "cat"), tmp_path / f"packed-{pack.__name__}")
        data = bytearray(archive.read_bytes())
        at = data.index(b"IDAT") if pack is stored else data.index(b"PK\x03\x04") + 60
        data[at + 20] ^= 0xFF
        archive.write_bytes(data)
        with pytest.raises(SourceError, match="this file in the archive is damaged"):
            tsds.convert(archive, tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
        done = tsds.convert(
            archive, tmp_path / f"{pack.__name__}.tsds", tsds.ConvertOptions(workers=0, on_error="skip")
        )
        assert done.rows == {"train": 2}


def test_an_archive_that_is_changed_meanwhile_is_noticed(tmp_path: Path) -> None:
    archive = zipped(class_folders(tmp_path / "data", "cat"), tmp_path / "data")
    found = archives.split(archive / "cat/0.png")
    assert found is not None
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(SourceError, match="expected the archive as it was listed, found it changed"):
        found[0].read(found[0].find(found[1]), "x", 10**6)


@pytest.mark.parametrize("flag", [0, 1 << 11])
def test_names_that_are_not_marked_as_utf_8_are_told(flag: int, tmp_path: Path) -> None:
    """Such as Windows in China writes them: in GBK, without the flag."""
    name = "猫/a.png"
    file = tmp_path / "cats.zip"
    content = image_file(Image.new("RGB", (8, 8)))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xx/a.png" if not flag else name, content)
        archive.writestr("dog/a.png", content)
    if not flag:
        file.write_bytes(file.read_bytes().replace(b"xx/a.png", name.encode("gbk")))
    notes = [note for note in open_source(file).contents().notes if "UTF-8" in note]
    shown = name.encode("gbk").decode("cp437")
    expected = f"1 names in cats.zip are not marked as UTF-8, and are read as code page 437: {shown}"
    assert [note.startswith(expected) for note in notes] == ([] if flag else [True])
