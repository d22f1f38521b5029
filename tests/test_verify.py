"""Every byte of a store is checked."""

import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import google_crc32c
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

import tensorstore_ds as tsds
from small_stores import JPEG_8X8, VALID, encoded_image, image_table, relist, write_store
from stores import detections, png_bytes, store_of
from tensorstore_ds.format.arrays import ArrayGeometry, encode_index
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.reading.store_files import StoreFiles
from tensorstore_ds.reading.verification import _check_chunks, _chunk_problem


@pytest.fixture(scope="module", params=["memmap", "zarr"])
def path(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("store") / "s.tsds"
    samples = detections(7)
    samples[2] = {**samples[2], "boxes": samples[2]["boxes"] * 0}  # to be skipped, so that skipped.jsonl is there
    return store_of(root, samples, ["a", "b"], layout=request.param, shard_nbytes=1500, on_error="skip").path


def test_a_good_store_has_no_problems_and_progress_reaches_the_end(path):
    seen = []
    assert tsds.verify(path, progress=lambda done, total: seen.append((done, total))) == []
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (tsds.open(path).nbytes,) * 2
    assert (path / "skipped.jsonl").exists()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_flipped_byte_is_found_and_its_file_named(path, data):
    files = sorted(p for p in path.rglob("*") if p.is_file() and p != path / "zarr.json")
    file = data.draw(st.sampled_from(files))
    original = file.read_bytes()
    position = data.draw(st.integers(0, len(original) - 1))
    flipped = bytearray(original)
    flipped[position] ^= data.draw(st.integers(1, 255))
    file.write_bytes(flipped)
    try:
        problems = tsds.verify(path)
    finally:
        file.write_bytes(original)
    assert [(p.where, p.reason) for p in problems] == [(file.relative_to(path).as_posix(), "checksum")]


def test_every_problem_is_named(path, tmp_path):
    copy = tmp_path / "s.tsds"
    shutil.copytree(path, copy)
    (copy / "notes.txt").write_text("x")
    (copy / "train/00009.partial").mkdir()
    (copy / "train/00009.partial/zarr.json").write_text("{")
    (copy / "train/00000/size/zarr.json").unlink()
    with (copy / "train/00001/key/bytes/c/0").open("ab") as file:
        file.write(b"x")
    problems = {p.where: p.reason for p in tsds.verify(copy)}
    assert problems == {
        "notes.txt": "unlisted-file",
        "train/00009.partial/zarr.json": "unlisted-file",
        "train/00000/size/zarr.json": "missing-file",
        "train/00001/key/bytes/c/0": "file-size",
    }


NUMBERS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 8, 16, 2**63, 2**64 - 8])
GEOMETRY = ArrayGeometry(ArraySpec("int64"), 3, "memmap", 8)  # three chunks


@settings(deadline=None)
@given(
    st.lists(NUMBERS, min_size=6, max_size=6).map(lambda n: encode_index(np.array(n, "<u8").reshape(3, 2)))
    | st.binary(min_size=52, max_size=52)
)
@example(GEOMETRY.index())
def test_any_other_index_is_found(content):
    """Bytes of all kinds in place of an index, with a good checksum or not: a problem, never an exception."""
    with tempfile.TemporaryDirectory() as folder:
        path, data = Path(folder) / "s.tsds", {"numbers": np.array([3, 4, 5])}
        fields = {"numbers": {"kind": "array", "dtype": "int64", "shape": []}}
        write_store(path, fields, ("train", 3, data), chunk_size=8)
        file = path / "train/00000/numbers/c/0"
        file.write_bytes(file.read_bytes()[:-52] + content)
        relist(path, "train/00000/numbers/c/0")
        assert [p.reason for p in tsds.verify(path)] == ([] if content == GEOMETRY.index() else ["shard-index"])


def test_what_is_no_store_is_a_problem_and_not_an_exception(tmp_path):
    assert [p.reason for p in tsds.verify(tmp_path / "nothing")] == ["not-a-store"]


def problems_of_boxes(path, image, box):
    """What verify says of a store with one box beside a field `image`, or without it."""
    boxes = {"boxes": np.array([box], np.float32)}
    objects = {"kind": "objects", "values": {"boxes": {"dtype": "float32", "shape": [4]}}}
    arrays = {"objects/offsets": np.array([0, 1]), "objects/boxes": boxes["boxes"]}
    fields = {"objects": {**objects, "classes": [], "keypoints": [], "flip_pairs": []}}
    if image is not None:
        arrays["image"] = image
        fields["image"] = {"kind": "array", "dtype": image.dtype.name, "shape": list(image.shape[1:])}
    return [str(p) for p in tsds.verify(write_store(path, fields, ("train", 1, arrays)))]


@pytest.mark.parametrize("image", [None, np.zeros(1, np.uint8), np.zeros((1, 2), np.float32)], ids=str)
def test_boxes_without_images_have_no_bound(tmp_path, image):
    """A field called image that is of another kind is none."""
    assert problems_of_boxes(tmp_path / "a", image, (0, 0, 10**6, 10**6)) == []
    assert problems_of_boxes(tmp_path / "b", image, (1, -1, 4, 3)) == [
        "train/objects: expected boxes with an area and no negative corner, found (1, -1, 4, 3) in row 0."
    ]
    infinite = problems_of_boxes(tmp_path / "c", image, (1, 0, np.inf, 3))
    assert len(infinite) == 1 and "found (1, 0, inf, 3)" in infinite[0]


def test_a_pipe_in_the_place_of_a_file_is_a_problem(path, tmp_path):
    copy = Path(shutil.copytree(path, tmp_path / "s.tsds"))
    name = "train/00000/size/zarr.json"
    (copy / name).unlink()
    os.mkfifo(copy / name)
    assert [(p.where, p.reason) for p in tsds.verify(copy)] == [(name, "missing-file")]


def test_a_file_that_is_no_jpeg_where_jpeg_is_promised(tmp_path):
    arrays = image_table([JPEG_8X8, png_bytes(np.zeros((3, 5), np.uint8))], [(8, 8, 1), (3, 5, 1)])
    fields = {"image": encoded_image("jpeg", 1024)}
    (problem,) = tsds.verify(write_store(tmp_path / "s.tsds", fields, ("train", 2, arrays)))
    assert (problem.where, problem.reason) == ("train/image 1", "not-an-image")


# --- chunks: bytes that fill up the last one, and the progress over all of them ---


def crc(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


@pytest.mark.parametrize(("rows", "place"), [(5, 5), (10, 10), (10, 11)])
@pytest.mark.parametrize("value", [0, 1])
def test_every_byte_that_fills_up_the_last_chunk_is_zero(tmp_path: Path, rows: int, place: int, value: int) -> None:
    size = {5: 2, 10: 4}[rows]  # three chunks of 2 bytes, or of 4: one byte more than rows, or two
    data = bytearray(b"x" * rows + bytes(3 * size - rows))
    data[place] = value
    chunks = [bytes(data[i : i + size]) for i in range(0, 3 * size, size)]
    index = np.array([(i * size, size) for i in range(3)], "<u8").tobytes()
    (tmp_path / "0").write_bytes(b"".join((data, *map(crc, chunks), index, crc(index))))
    geometry = ArrayGeometry(ArraySpec("uint8"), rows, "memmap", chunk_size=size)
    assert (geometry.chunks, geometry.chunk_nbytes) == (3, size)
    problem = _chunk_problem(SimpleNamespace(open=lambda name: (tmp_path / name).open("rb")), "0", geometry)
    assert (problem is not None) == (value != 0)
    if problem is not None:
        assert (problem.where, problem.reason) == ("0", "shard-index")


def test_progress_rises_to_all_bytes() -> None:
    seen: list[tuple[int, int]] = []
    files = StoreFiles(VALID / "shards.tsds")
    assert _check_chunks(files, 1, lambda done, total: seen.append((done, total))) == []
    total = sum(
        array.rows * array.spec.row_nbytes
        for split in files.manifest.splits.values()
        for shard in split.shards
        for array in files.manifest.arrays(shard).values()
    )
    steps = np.diff([0, *(done for done, _ in seen)])
    assert (steps > 0).all()
    assert seen[-1] == (total, total)
