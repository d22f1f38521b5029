"""A store as one file: what is in it, that it is mapped in place, and that damage is found."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import tensorstore_ds as tsds
from small_stores import VALID
from stores import detections, files_of, no_room, store_of
from tensorstore_ds.conversion.partial import Partial
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.reading import packed_files
from tensorstore_ds.sharing import pack as module

Members = list[tuple[zipfile.ZipInfo, bytes]]
Change = Callable[[zipfile.ZipInfo, bytes], Members]
STORES = sorted(path.name for path in VALID.iterdir())


@pytest.fixture(scope="module", params=["memmap", "zarr"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with several shards and ``skipped.jsonl``."""
    samples = detections(7)
    samples[2] = {**samples[2], "boxes": samples[2]["boxes"] * 0}
    path = tmp_path_factory.mktemp("folder") / "s.tsds"
    return store_of(path, samples, ["a", "b"], layout=request.param, shard_nbytes=1500, on_error="skip").path


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    return tsds.pack(folder, folder.parent / "s.tsds.zip").path


def data_start(data: bytes, info: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin, by the two lengths at 26 and 28 of its local header."""
    header = data[info.header_offset :]
    assert header[:4] == b"PK\x03\x04"
    return info.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


# --- what is in it ------------------------------------------------------------------------------------------------


def test_members_are_the_files_aligned_and_the_root_is_last(folder: Path, packed: Path) -> None:
    data, expected = packed.read_bytes(), files_of(folder)
    with zipfile.ZipFile(packed) as archive:
        assert archive.testzip() is None
        infos = archive.infolist()
    assert [info.filename for info in infos] == [*sorted(expected.keys() - {"zarr.json"}), "zarr.json"]
    for info in infos:
        start = data_start(data, info)
        assert start % 4096 == 0
        assert data[start : start + info.file_size] == expected[info.filename]
        assert (info.compress_type, info.date_time, info.external_attr >> 16) == (0, (1980, 1, 1, 0, 0, 0), 0o100644)
        assert info.extra == b""
    first = data[infos[0].header_offset :]
    name = infos[0].filename.encode()
    assert first[30 : 30 + len(name)] == name
    assert first[30 + len(name) :][:2] == b"\x35\xd9"


def test_the_same_store_gives_the_same_bytes(folder: Path, packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "other.tsds")
    (copy / "zarr.json").touch()
    assert tsds.pack(copy, tmp_path / "x.zip").path.read_bytes() == packed.read_bytes()
    assert tsds.pack(packed, tmp_path / "y.zip").path.read_bytes() == packed.read_bytes()


@pytest.mark.skipif(not shutil.which("unzip"), reason="unzip is not here")
def test_unzip_makes_the_store(folder: Path, packed: Path, tmp_path: Path) -> None:
    done = subprocess.run(["unzip", "-q", packed, "-d", tmp_path / "u"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert files_of(tmp_path / "u") == files_of(folder)


def test_large_members_have_sizes_of_eight_bytes(
    folder: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_ZIP64_NBYTES", 100)
    large = tsds.pack(folder, tmp_path / "x.zip")
    assert large.path.read_bytes() != packed.read_bytes()
    assert tsds.verify(large.path) == []
    tsds.unpack(large.path, tmp_path / "u")
    assert files_of(tmp_path / "u") == files_of(folder)


def test_a_file_beyond_four_gigabytes_has_its_places_in_eight_bytes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 5000)  # as if 5,000 bytes were 2 GiB
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    monkeypatch.setattr(module, "_ZIP64_NBYTES", 2500)
    store = tsds.pack(folder, tmp_path / "x.zip")
    monkeypatch.undo()
    assert b"PK\x06\x06" in store.path.read_bytes()  # the end of the list of members, in 8 bytes
    assert tsds.verify(store.path) == []


# --- read in place --------------------------------------------------------------------------------------------------


@pytest.mark.drawn(9)
@pytest.mark.parametrize("name", STORES)
def test_every_valid_store_reads_the_same_and_comes_back(name: str, tmp_path: Path) -> None:
    plain = tsds.open(VALID / name)
    store = tsds.pack(VALID / name, tmp_path / "x.zip")
    assert (store.sha256, store.nbytes, store.splits) == (plain.sha256, plain.nbytes, plain.splits)
    assert tsds.verify(store.path) == []
    for split in store:
        for row in range(len(store[split])):
            assert pickle.dumps(store[split][row]) == pickle.dumps(plain[split][row])
    back = tsds.unpack(store.path, tmp_path / "back")
    replaced = [shard_path(split, n) for split in plain for n in plain.manifest.splits[split].replaced]
    expected = files_of(VALID / name)
    assert files_of(back.path) == {n: data for n, data in expected.items() if not n.startswith(tuple(replaced))}


@pytest.mark.skipif(sys.platform != "linux", reason="maps are listed in /proc")
def test_arrays_are_maps_of_the_file(tmp_path: Path) -> None:
    store = tsds.pack(VALID / "chunks.tsds", tmp_path / "x.zip")
    part = store["train"].column("image").part(0)
    assert isinstance(part.base, mmap.mmap)
    address = part.__array_interface__["data"][0]
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if str(store.path) in line]
    spans = [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]
    (start, offset), *_ = [
        (s[0], int(line[2], 16)) for s, line in zip(spans, lines, strict=True) if s[0] <= address < s[1]
    ]
    with zipfile.ZipFile(store.path) as archive:
        info = archive.getinfo("train/00000/image/c/0/0/0/0")
    assert offset + address - start == data_start(store.path.read_bytes(), info)


def test_a_data_set_and_what_pickles(packed: Path, folder: Path) -> None:
    data = tsds.StoreDataset(packed, "train", fields=["image"])
    same = tsds.StoreDataset(folder, "train", fields=["image"])
    again = pickle.loads(pickle.dumps(data))  # noqa: S301
    for row in (0, 4):
        assert np.array_equal(np.asarray(again[row]["image"]), np.asarray(same[row]["image"]))
    assert pickle.loads(pickle.dumps(tsds.open(packed))).sha256 == tsds.open(folder).sha256  # noqa: S301


def test_a_link_to_the_file_is_followed(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "link.zip").symlink_to(packed)
    assert tsds.verify(tmp_path / "link.zip") == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells what is in memory")
def test_the_page_cache_of_its_members(tmp_path: Path) -> None:
    rows = [{"image": np.full((64, 64, 3), i, np.uint8)} for i in range(20)]
    plain = store_of(tmp_path / "s.tsds", rows)
    store = tsds.pack(plain.path, tmp_path / "x.zip")
    nbytes = {name: column.nbytes for name, column in tsds.residency(plain).items()}
    assert {name: column.nbytes for name, column in tsds.residency(store).items()} == nbytes
    tsds.warm(store)
    assert all(column.resident == column.nbytes for column in tsds.residency(store).values())
    left = tsds.evict(store).left
    assert left is not None
    if left == 0:  # not on a file system in memory
        assert tsds.warm(store, fields="image") == nbytes["train/image"]
        assert tsds.residency(store)["train/image"].share == 1
        assert tsds.residency(store)["train/key"].resident == 0


def test_repack_of_a_packed_store(packed: Path, folder: Path, tmp_path: Path) -> None:
    layout = "zarr" if tsds.open(packed).layout == "memmap" else "memmap"
    tsds.repack(packed, tmp_path / "a", layout=layout)
    assert (tmp_path / "a/skipped.jsonl").read_bytes() == (folder / "skipped.jsonl").read_bytes()
    assert tsds.verify(tmp_path / "a") == []


def test_another_store_in_its_place_is_noticed(packed: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(packed, tmp_path / "x.zip"))
    store = tsds.open(path)
    copy = Path(shutil.copy(packed, tmp_path / "y.zip"))
    copy.replace(path)  # the same store
    assert len(store["train"]["key"][0]) > 0
    tsds.pack(VALID / "minimal.tsds", tmp_path / "z.zip").path.replace(path)
    with pytest.raises(tsds.FormatError, match="another is in its place") as caught:
        store["train"]["image"][0]
    assert caught.value.reason == "replaced"
    path.unlink()
    with pytest.raises(tsds.FormatError):
        store.open_file("train/zarr.json")


# --- pack and unpack --------------------------------------------------------------------------------------------------


def test_progress_reaches_the_end(folder: Path, packed: Path, tmp_path: Path) -> None:
    total = sum(map(len, files_of(folder).values()))
    for run, source in ((tsds.pack, folder), (tsds.unpack, packed)):
        seen: list[tuple[int, int]] = []
        run(source, tmp_path / run.__name__, progress=lambda *each, seen=seen: seen.append(each))
        assert seen == sorted(seen)
        assert seen[-1] == (total, total)


@pytest.mark.parametrize("position", [0, -1])
def test_a_damaged_store_is_not_passed_on(position: int, folder: Path, packed: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "s.tsds")
    name = "train/00000/size/c/0/0"
    data = bytearray((copy / name).read_bytes())
    data[position] ^= 1
    (copy / name).write_bytes(data)
    with pytest.raises(tsds.FormatError, match=f"{name}: expected SHA-256") as caught:
        tsds.pack(copy, tmp_path / "x.zip")
    assert caught.value.reason == "checksum"
    whole = bytearray(packed.read_bytes())
    with zipfile.ZipFile(packed) as archive:
        info = archive.getinfo(name)
    whole[data_start(bytes(whole), info) + (position if position >= 0 else info.file_size - 1)] ^= 1
    (tmp_path / "bad.zip").write_bytes(whole)
    with pytest.raises(tsds.FormatError, match=f"{name}: expected SHA-256"):
        tsds.unpack(tmp_path / "bad.zip", tmp_path / "u")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip", "s.tsds"]


def test_files_that_are_missing_or_not_listed(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "s.tsds")
    (copy / "notes.txt").write_text("x")
    with pytest.raises(tsds.FormatError, match=r"notes.txt: this file is not listed"):
        tsds.pack(copy, tmp_path / "x.zip")
    (copy / "notes.txt").unlink()
    (copy / "skipped.jsonl").unlink()
    with pytest.raises(tsds.FormatError, match=r"skipped\.jsonl"):
        tsds.pack(copy, tmp_path / "x.zip")


def test_what_is_refused(folder: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "u.partial").write_text("mine")
    with pytest.raises(tsds.OptionError, match=r"u\.partial: expected no such name, or the work folder of a copy"):
        tsds.unpack(packed, tmp_path / "u")
    assert (tmp_path / "u.partial").read_text() == "mine"
    with pytest.raises(tsds.FormatError, match="expected the store"):
        tsds.pack(folder, tmp_path / "x.zip", sha256="0" * 64)


@pytest.mark.parametrize(
    ("free", "said"), [(1000, r"free on this disk, found 1\.0 kB"), (10**9, "No space left on device")]
)
def test_a_full_disk_is_one_line(
    folder: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, said: str
) -> None:
    """It is noticed beforehand or, if others fill the disk meanwhile, while files are written."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    monkeypatch.setattr(module, "adding", lambda total, progress: no_room)
    for run, source in ((tsds.pack, folder), (tsds.unpack, packed)):
        with pytest.raises(tsds.errors.OutputError, match=rf"{said}\. Make room"):
            run(source, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="POSIX only")
@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_killed_in_the_middle_nothing_looks_whole(command: str, packed: Path, folder: Path, tmp_path: Path) -> None:
    source = folder if command == "pack" else packed
    code = (
        "import sys, time, tensorstore_ds as tsds\n"
        "def wait(done, total):\n    print(done, flush=True)\n    time.sleep(60)\n"
        f"tsds.{command}(sys.argv[1], sys.argv[2], progress=wait)"
    )
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", code, source, out], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert [path.name for path in tmp_path.iterdir()] == ["out.partial"]
    assert getattr(tsds, command)(source, out).sha256 == tsds.open(folder).sha256  # the next one writes over it
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_folder_of_another_unpack_stays(packed: Path, tmp_path: Path) -> None:
    work = Partial(tmp_path / "out.partial", "copy")
    with contextlib.closing(work):
        work.open()
        work.make_folder("store")
        with pytest.raises(tsds.errors.ConversionError, match="another copy is writing here"):
            tsds.unpack(packed, tmp_path / "out")
        assert sorted(path.name for path in work.path.iterdir()) == ["store", "tsds.lock"]


# --- files that are meant to harm ---------------------------------------------------------------------------------


def rewritten(packed: Path, target: Path, change: Change) -> Path:
    """A packed store with other members, at multiples of 4096 bytes as before."""
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(target, "w") as archive:
        for info in source.infolist():
            for other, data in change(info, source.read(info)):
                zeros = -(archive.start_dir + 30 + len(other.filename) + 4) % 4096
                other.extra = b"\x35\xd9" + zeros.to_bytes(2, "little") + bytes(zeros)
                with archive.open(other, "w") as member:
                    member.write(data)
    return target


def test_names_that_lead_out_are_not_written(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("../evil", "/evil", "train/../../evil", "notes.txt", "a\\..\\..\\evil", "empty/"):

        def add(info: zipfile.ZipInfo, data: bytes, name: str = name) -> Members:
            own = zipfile.ZipInfo(name)
            return [(info, data), (own, b"")] if info.filename == "zarr.json" else [(info, data)]

        path = rewritten(packed, tmp_path / "bad.zip", add)
        problems = tsds.verify(path)
        assert [(p.where, p.reason) for p in problems] == [(name, "unlisted-file")]
        with pytest.raises(tsds.FormatError, match="this file is not listed"):
            tsds.unpack(path, tmp_path / "in" / "out")
        assert list((tmp_path / "in").iterdir()) == []
        assert len(tsds.open(path)["train"]) == len(tsds.open(packed)["train"])  # such a file is passed over


def as_link(info: zipfile.ZipInfo, data: bytes) -> Members:
    info.external_attr = 0o120777 << 16
    return [(info, data)]


def deflated(info: zipfile.ZipInfo, data: bytes) -> Members:
    info.compress_type = zipfile.ZIP_DEFLATED
    return [(info, data)]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("train/00000/size/c/0/0", as_link, "symlink"),
        ("train/00000/size/c/0/0", lambda info, data: [(info, data), (zipfile.ZipInfo(info.filename), data)], "packed"),
        ("train/00000/size/c/0/0", deflated, "packed"),
        ("train/00000/size/c/0/0", lambda info, data: [], "missing-file"),
        ("train/00000/size/c/0/0", lambda info, data: [(info, data + b"x")], "file-size"),
        ("zarr.json", lambda info, data: [], "not-a-store"),
    ],
    ids=["link", "twice", "deflated", "missing", "longer", "rootless"],
)
def test_a_member_that_is_not_as_it_must_be(
    name: str, change: Change, reason: str, packed: Path, tmp_path: Path
) -> None:
    def changed(info: zipfile.ZipInfo, data: bytes) -> Members:
        return change(info, data) if info.filename == name else [(info, data)]

    path = rewritten(packed, tmp_path / "bad.zip", changed)
    assert reason in {problem.reason for problem in tsds.verify(path)}
    with pytest.raises(tsds.FormatError) as caught:
        tsds.unpack(path, tmp_path / "out")
    assert (caught.value.reason, str(caught.value).count("\n")) == (reason, 0)
    assert not (tmp_path / "out").exists()


def patched(packed: Path, target: Path, name: str, offset: int, value: bytes) -> Path:
    """A packed store with other bytes in a member's entry in the list of members."""
    data = bytearray(packed.read_bytes())
    place = data.rindex(name.encode(), 0, data.rindex(b"PK\x05\x06")) - 46
    assert data[place : place + 4] == b"PK\x01\x02"
    data[place + offset : place + offset + len(value)] = value
    target.write_bytes(data)
    return target


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        (8, b"\x01\x00"),  # encrypted
        (10, b"\x08\x00"),  # deflated
        (20, b"\x01\x00\x00\x00"),  # a compressed size of its own
        (42, b"\x00\x00\x00\x00"),  # at the place of the first member: over it
        (42, b"\xff\xff\xff\x7f"),  # behind the end
        (42, b"\x01\x10\x00\x00"),  # where no header is
    ],
)
def test_entries_that_lie(offset: int, value: bytes, packed: Path, tmp_path: Path) -> None:
    path = patched(packed, tmp_path / "bad.zip", "train/00000/size/c/0/0", offset, value)
    with pytest.raises(tsds.FormatError) as caught:
        tsds.unpack(path, tmp_path / "out")
    assert caught.value.reason == "packed"
    assert tsds.verify(path)[0].reason == "packed"


def test_a_member_that_is_not_aligned_is_refused(folder: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, data in files_of(folder).items():
            archive.writestr(name, data)
    with pytest.raises(tsds.FormatError, match="at a multiple of 4096") as caught:
        tsds.open(tmp_path / "x.zip")
    assert caught.value.reason == "packed" and "with unzip" in str(caught.value)
    shutil.unpack_archive(tmp_path / "x.zip", tmp_path / "x.tsds")
    tsds.pack(tmp_path / "x.tsds", tmp_path / "packed.zip")


@pytest.mark.parametrize("data", [b"", b"PK", b"x" * 5000, b"PK\x05\x06" + bytes(18), b"\x89HDF" + bytes(5000)])
def test_files_that_are_no_store(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(data)
    with pytest.raises(tsds.FormatError, match="this is not a store") as caught:
        tsds.open(tmp_path / "x.zip")
    assert caught.value.reason == "not-a-store"
    assert "\n" not in str(caught.value)


def test_a_list_of_members_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    size = packed_files.DIRECTORY_MAX_NBYTES + 1
    with (tmp_path / "x.zip").open("wb") as file:
        file.truncate(size)  # of holes
        file.seek(size)
        file.write(b"PK\x05\x06" + bytes(4) + b"\1\0\1\0" + size.to_bytes(4, "little") + bytes(6))
    with pytest.raises(tsds.FormatError, match="list of members is larger than"):
        tsds.open(tmp_path / "x.zip")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.zip")
    with pytest.raises(tsds.FormatError):
        tsds.open(tmp_path / "x.zip")


def read_all(path: Path) -> dict[str, Any]:
    store = tsds.open(path)
    return {f"{split}/{row}": pickle.dumps(store[split][row]) for split in store for row in range(len(store[split]))}


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_an_error_or_the_same_samples(packed: Path, data: st.DataObject) -> None:
    """Of all but the members' own bytes, which verification compares: lists, headers, the end, and where it is cut."""
    content = packed.read_bytes()
    expected = read_all(packed)
    with zipfile.ZipFile(packed) as archive:
        headers = [(info.header_offset, data_start(content, info)) for info in archive.infolist()]
        spans = [(start, min(end, start + 80)) for start, end in headers] + [(archive.start_dir, len(content))] * 40
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        start, stop = data.draw(st.sampled_from(spans))
        changed[data.draw(st.integers(start, stop - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.none() | st.integers(0, len(content)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zip"
        path.write_bytes(changed[:cut])
        try:
            found = read_all(path)
            tsds.unpack(path, Path(folder) / "out")
        except tsds.FormatError as error:
            assert "\n" not in str(error)
            assert not (Path(folder) / "out").exists()
        else:
            assert found == expected


def test_reading_a_part_is_like_reading_a_file(packed: Path, folder: Path) -> None:
    """The file object of a member, beside that of the file itself."""
    name = "train/00000/image/c/0/0/0/0"
    rng = np.random.default_rng(0)
    with tsds.open(packed).open_file(name) as one, (folder / name).open("rb") as other:
        for _ in range(200):
            whence, n = int(rng.integers(3)), int(rng.integers(0, 3000))
            move = (n, -min(n, other.tell()), -min(n, (folder / name).stat().st_size))[whence]
            assert one.seek(move, whence) == other.seek(move, whence)
            assert one.read(n) == other.read(n)
            assert one.tell() == other.tell()
        assert one.seek(-(10**9), io.SEEK_END) == 0  # its beginning, and no place before it
        assert one.read() == (folder / name).read_bytes()
        with pytest.raises(io.UnsupportedOperation):
            one.write(b"x")


@pytest.mark.parametrize(("more", "reason"), [(0, "file-size"), (1, "packed"), (29, "packed")])
def test_a_member_ends_before_the_next(more: int, reason: str, packed: Path, tmp_path: Path) -> None:
    """A member that begins at its header, with as many bytes as there are up to the next header, and with some more."""
    name = "train/00000/size/c/0/0"
    with zipfile.ZipFile(packed) as archive:
        offsets = sorted(info.header_offset for info in archive.infolist())
        first = archive.getinfo(name).header_offset
    size = offsets[offsets.index(first) + 1] - first - 30 + more
    path = patched(packed, tmp_path / "bad.zip", name, 20, size.to_bytes(4, "little") * 2)
    with pytest.raises(tsds.FormatError) as caught:
        tsds.open(path)
    assert caught.value.reason == reason


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
def test_a_copy_that_takes_the_place_of_the_store_leaves_no_file_open(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(packed, tmp_path / "s.zip"))
    files = packed_files.find_files(path)
    opened, copies = packed_files._open_archive, iter(range(2))

    def open_before_it_is_replaced(archive: Path) -> IO[bytes]:
        file = opened(archive)
        if next(copies, None) is not None:
            Path(shutil.copy(packed, tmp_path / "copy.zip")).replace(path)
        return file

    monkeypatch.setattr(packed_files, "_open_archive", open_before_it_is_replaced)
    before = os.listdir("/proc/self/fd")
    with files.open("zarr.json") as file:
        assert file.read() == zipfile.ZipFile(packed).read("zarr.json")
    assert os.listdir("/proc/self/fd") == before
