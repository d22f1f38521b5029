"""Which files are read, how much of them, and whose fault it is when reading fails: the sample's or the machine's."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import npy, npz, refused, refusing, write
from stores import Samples, class_folders, image_file, png_bytes
from tensorstore_ds.conversion.encode import encode_sample
from tensorstore_ds.conversion.options import ConvertOptions, ImageOptions
from tensorstore_ds.errors import ConversionError, OptionError, SourceError
from tensorstore_ds.imaging.codecs import decode_image
from tensorstore_ds.regular_files import TEXT_LIMIT, check_machine, read_file, unreadable
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Sample
from tensorstore_ds.sources.files import glance, walk_files
from tensorstore_ds.sources.list.finding import names_images
from tensorstore_ds.sources.list.table import open_table
from tensorstore_ds.sources.names import read_classes, read_keypoints
from tensorstore_ds.sources.xml import file_root, read_tree

SKIP = ConvertOptions(workers=0, on_error="skip")
PNG = png_bytes(np.zeros((4, 4), np.uint8))


def special(path: Path, kind: str) -> None:
    """Something else than a file; a pipe that nobody writes to would be waited for, and /dev/zero never ends."""
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):  # its path may be too long
            bound.bind(path.name)
    elif kind == "a device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()


KINDS = ("a pipe", "a socket", "a device", "a folder")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_list_names_and_is_no_file_is_left_out(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, {"ok.png": PNG, "l.csv": "path,label\nok.png,x\nbad.png,y\n"}) / "l.csv"
    special(tmp_path / "bad.png", kind)
    found = "cannot be read: No such device or address" if kind == "a socket" else f"expected a file, found {kind}"
    with pytest.raises(SourceError) as caught:
        tsds.convert(path, tmp_path / "o.tsds", workers=0)
    assert caught.value.reason == "unreadable-file"
    assert (
        str(caught.value) == f'bad.png: {found}. Correct the sample. With `on_error="skip"` such samples are left out.'
    )
    assert tsds.convert(path, tmp_path / "o.tsds", SKIP).skipped == {"unreadable-file": 1}
    assert [p.reason for p in tsds.estimate(path, SKIP).problems] == ["unreadable-file"]


@pytest.mark.parametrize("kind", ["a pipe", "a device"])
@pytest.mark.parametrize(
    ("format", "name"),
    [("list", "l.csv"), ("imglab", "d.xml"), ("arrays", "images.npy"), ("arrays", "images.npz"), ("voc", "a.xml")],
)
def test_annotations_and_arrays_that_are_no_files_are_refused(
    tmp_path: Path, format: str, name: str, kind: str
) -> None:
    special(tmp_path / name, kind)
    path = tmp_path if format == "voc" else tmp_path / name
    refused(path)
    refused(path, format, r"found a pipe|found a device|found none|Not a directory")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("read", [read_classes, read_keypoints])
def test_class_and_keypoint_lists_are_files(tmp_path: Path, kind: str, read: Callable[[Path], Any]) -> None:
    special(tmp_path / "names.txt", kind)
    message = r"names\.txt: the (class|keypoint) list cannot be used: (expected a|cannot).* text file\."
    with pytest.raises(OptionError, match=message):
        read(tmp_path / "names.txt")


def test_a_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "x.png"
    for size in (0, 1, 99_999, 100_000):
        file.write_bytes(bytes(size))
        assert read_file(file, "x.png", 100_000) == bytes(size)
    file.write_bytes(bytes(100_001))
    with refusing("unreadable-file", r"x\.png: expected a file of at most 100,000 bytes, found 100,001\."):
        read_file(file, "x.png", 100_000)
    os.truncate(file, 50 << 30)
    write(tmp_path, {"l.txt": "x.png\n"})
    with pytest.raises(SourceError, match="at most 1,073,741,824 bytes, found 53,687,091,200"):
        tsds.convert(tmp_path / "l.txt", tmp_path / "o.tsds", workers=0)
    os.truncate(file, TEXT_LIMIT + 1)
    with pytest.raises(OptionError, match="at most 67,108,864 bytes"):
        read_classes(file)


def test_a_file_without_a_size_is_read_to_its_end() -> None:
    """The kernel's own files say that they have no bytes."""
    assert read_file("/proc/self/status", "status").startswith(b"Name:")


def test_a_name_that_is_too_long_is_one_line(tmp_path: Path) -> None:
    with refusing("unreadable-file", r"cannot be read: File name too long\."):
        tsds.convert(tmp_path / ("x" * 300), tmp_path / "o.tsds")


def test_ghostscript_is_never_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = tmp_path / "started"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {started}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", None)  # as before it was looked for
    data = image_file(Image.new("RGB", (4, 4)), "EPS")
    (tmp_path / "x.png").write_bytes(data)
    with pytest.raises(OSError), Image.open(tmp_path / "x.png") as image:  # so much for the test itself
        image.load()
    assert started.exists()
    started.unlink()
    (tmp_path / "l.txt").write_text("x.png\n")
    for run in (
        lambda: tsds.convert(tmp_path / "l.txt", tmp_path / "o.tsds", ConvertOptions(workers=0)),
        lambda: tsds.estimate(tmp_path / "l.txt"),
        lambda: decode_image(data),
    ):
        with refusing("not-an-image", "expected an image file"):
            run()
    assert not started.exists()


LISTED = ("AVIF", "BMP", "GIF", "JPEG", "JPEG2000", "MPO", "PNG", "PPM", "TIFF", "WEBP")


@pytest.mark.parametrize("format", [*LISTED, "ICO", "PCX", "TGA", "SGI", "DDS", "PDF"])
def test_formats_of_images(format: str) -> None:
    data = image_file(Image.new("RGB", (16, 9)), format)
    if format in LISTED:
        assert decode_image(data).shape == (9, 16, 3)
        return
    with refusing("not-an-image"):
        decode_image(data)


@contextlib.contextmanager
def no_more_files() -> Iterator[None]:
    """Every open fails, with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def outcome(run: Callable[[], object]) -> BaseException | None:
    with no_more_files():
        try:
            run()
        except Exception as error:
            return error
    return None


def test_too_few_descriptors_are_nobodys_damage(tmp_path: Path) -> None:
    zeros = np.zeros((2, 4, 4), np.uint8)
    files = {"x.png": PNG, "l.csv": "path\nx.png\n", "a.xml": "<annotation/>", "train-images-idx3-ubyte": bytes(16)}
    write(tmp_path, {**files, "images.npy": npy(zeros), "images.npz": npz(images=zeros)})
    image = Sample("x.png", str(tmp_path / "x.png"))
    encode_sample(image, ImageOptions())
    runs: list[Callable[[], object]] = [
        lambda: encode_sample(image, ImageOptions()),
        lambda: list(walk_files(tmp_path, {".png"})),
        lambda: glance(tmp_path),
        lambda: names_images(tmp_path / "l.csv"),
        lambda: open_table(tmp_path / "l.csv", "l.csv"),
        lambda: file_root(tmp_path / "a.xml"),
        lambda: read_tree(tmp_path / "a.xml", "a.xml"),
        lambda: read_classes(tmp_path / "l.csv"),
        *(
            lambda path=path, format=format: open_source(path, format).contents()  # type: ignore[misc]
            for path, format in (
                *((tmp_path / f"images.{suffix}", "arrays") for suffix in ("npy", "npz")),
                *((tmp_path, format) for format in ("idx", "folders", "voc")),
            )
        ),
    ]
    for run in runs:
        error = outcome(run)
        assert type(error) is ConversionError, (run, error)
        assert "Too many open files while this was read" in str(error) and "\n" not in str(error)


UNREADABLE = "/proc/self/mem"  # a regular file whose first byte cannot be read: EIO


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_disk_stops_a_conversion_that_then_goes_on(tmp_path: Path, workers: int) -> None:
    source = class_folders(tmp_path / "src")
    image = source / "test/ant/2.png"
    good = image.read_bytes()
    image.unlink()
    image.symlink_to(UNREADABLE)
    options = ConvertOptions(workers=workers, on_error="skip", shard_nbytes=60)
    with pytest.raises(ConversionError) as caught:
        tsds.convert(source, tmp_path / "o.tsds", options)
    assert str(caught.value) == (
        "test/ant/2.png: Input/output error while this was read, which is not the file's fault. Correct that and run "
        "the same command again to go on."
    )
    image.unlink()
    image.write_bytes(good)
    summary = tsds.convert(source, tmp_path / "o.tsds", options)
    assert (summary.rows, summary.skipped, summary.resumed) == ({"train": 8, "test": 8}, {}, 5)


def test_a_failing_disk_is_nobodys_annotation(tmp_path: Path) -> None:
    for name, at, format in (
        ("a.xml", "", "voc"),
        ("a.xml", "a.xml", "imglab"),
        ("d.csv", "d.csv", "list"),
        ("images.npy", "images.npy", "arrays"),
        ("train-images-idx3-ubyte", "", "idx"),
    ):
        (tmp_path / format).mkdir()
        (tmp_path / format / name).symlink_to(UNREADABLE)
        with pytest.raises(ConversionError, match="Input/output error"):
            open_source(tmp_path / format / at, format).contents()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.ETIMEDOUT])
def test_errors_of_the_machine(number: int) -> None:
    with pytest.raises(ConversionError, match=r"a\.xml: .* while this was read.*run the same command again"):
        unreadable("a.xml", OSError(number, os.strerror(number)))


@pytest.mark.parametrize(
    "number", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR]
)
def test_errors_of_the_file(number: int) -> None:
    assert unreadable("a.xml", OSError(number, os.strerror(number))).reason == "unreadable-file"
    check_machine("a.png", OSError("image file is truncated"))  # Pillow's have no number


class Failing(Samples):
    """A sequence whose third sample raises."""

    error: BaseException

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RecursionError(), OSError(errno.EIO, "Input/output error"), RuntimeError("CUDA out of memory.")],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_sequence_may_fail_for_want_of_memory(tmp_path: Path, error: BaseException, workers: int) -> None:
    samples = Failing([np.zeros((4, 4), np.uint8)] * 4)
    samples.error = error
    with pytest.raises(ConversionError, match=r"train/00002: .* while this was read"):
        tsds.convert(samples, tmp_path / "o.tsds", ConvertOptions(workers=workers, on_error="skip"))
    samples.error = FileNotFoundError(errno.ENOENT, "No such file or directory")
    assert tsds.convert(samples, tmp_path / "o.tsds", SKIP).skipped == {"unreadable-file": 1}


def test_short_memory_is_not_damage(tmp_path: Path) -> None:
    """Good images too large for the memory that there is: none is left out, and with more memory all are kept."""
    for name in ("a", "b"):
        Image.new("RGB", (4000, 4000)).save(tmp_path / f"{name}.png", compress_level=1)
    (tmp_path / "c.png").write_bytes(PNG)
    (tmp_path / "l.txt").write_text("a.png\nb.png\nc.png\n")
    code = (
        "import resource, sys, tensorstore_ds as t\n"
        "import tensorstore_ds.conversion.convert\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20),) * 2)\n"
        "o = t.ConvertOptions(workers=0, on_error='skip', size=(8, 8), color='rgb')\n"
        "t.convert(sys.argv[1], sys.argv[2], o)\n"
    )
    command = [sys.executable, "-c", code, tmp_path / "l.txt", tmp_path / "o.tsds"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert run.stderr.splitlines()[-1].startswith("tensorstore_ds.errors.ConversionError: a.png: memory ran out while")
    assert not (tmp_path / "o.tsds").exists()
    options = ConvertOptions(workers=0, on_error="skip", size=(8, 8), color="rgb")
    assert tsds.convert(tmp_path / "l.txt", tmp_path / "o.tsds", options).rows == {"train": 3}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [None, (4, 4)])
def test_pixels_that_are_no_numbers(tmp_path: Path, bad: float, size: tuple[int, int] | None) -> None:
    images = np.random.default_rng(0).random((5, 8, 8), np.float32)
    images[3, 2, 5] = bad
    np.save(tmp_path / "images.npy", images)
    with pytest.raises(SourceError) as caught:
        tsds.convert(tmp_path / "images.npy", tmp_path / "o.tsds", ConvertOptions(workers=0, size=size))
    assert str(caught.value).startswith("train/00003: expected finite numbers as pixels, found NaN or infinity")
    assert caught.value.reason == "pixel-nan"
    options = ConvertOptions(workers=0, size=size, on_error="skip")
    summary = tsds.convert(tmp_path / "images.npy", tmp_path / "o.tsds", options)
    assert (summary.rows, summary.skipped) == ({"train": 4}, {"pixel-nan": 1})
    assert tsds.verify(tmp_path / "o.tsds") == []


def test_numbers_whose_squares_overflow(tmp_path: Path) -> None:
    images = np.full((5, 8, 8), 1e200)
    np.save(tmp_path / "images.npy", images)
    tsds.convert(tmp_path / "images.npy", tmp_path / "o.tsds", ConvertOptions(workers=0))
    split = tsds.open(tmp_path / "o.tsds")["train"]
    np.testing.assert_array_equal(np.asarray(split["image"])[..., 0], images)
    assert "image" not in split.statistics
    with pytest.raises(SourceError, match="too large to be resized"):  # in single precision
        tsds.convert(tmp_path / "images.npy", tmp_path / "r.tsds", ConvertOptions(workers=0, size=(4, 4)))
