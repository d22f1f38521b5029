"""Parts cut out of JPEG files have the very pixels of the whole decode; damaged files raise, and never crash."""

import io
import itertools
import warnings
from random import Random

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from fuzz.mutations import mutate_bytes
from jpeg_files import drawn, exif_of, jpeg
from tensorstore_ds import native
from tensorstore_ds.imaging import jpeg as imaging_jpeg
from tensorstore_ds.imaging.jpeg import (
    DamagedJpegError,
    JpegSegment,
    cut,
    decode_jpeg,
    encode_jpeg,
    encode_with_restarts,
    find_restarts,
    read_header,
    scale_for,
)
from tensorstore_ds.reading.stored_images import decode_part

SUBSAMPLINGS = {"4:4:4": 0, "4:2:2": 1, "4:2:0": 2}
SIZES = [(1, 1), (7, 9), (16, 16), (17, 353), (64, 33), (100, 131), (211, 160)]


def pillow(data, mode="RGB"):
    image = Image.open(io.BytesIO(data)).convert(mode)
    return np.asarray(image).reshape(image.height, image.width, -1)


def parts(height, width, count, seed):
    rng = np.random.default_rng(seed)
    yield JpegSegment(0, 0, height, width)
    for _ in range(count):
        top, left = int(rng.integers(0, height)), int(rng.integers(0, width))
        yield JpegSegment(top, left, int(rng.integers(top, height)) + 1, int(rng.integers(left, width)) + 1)


def check_cuts(data, seed=0, count=12, scale=1):
    """The number of parts that were cut; each has the pixels that Pillow decodes of the whole."""
    header, restarts, done = read_header(data), find_restarts(data), 0
    if min(header.height, header.width) < scale:
        return 0
    channels = 1 if header.components == 1 else 3
    whole = decode_jpeg(data, header, channels=channels, scale=scale)
    if scale == 1:
        np.testing.assert_array_equal(whole, pillow(data, "L" if channels == 1 else "RGB"))
    for part in parts(header.height, header.width, count, seed):
        found = cut(data, header, restarts, part, scale=scale)
        if found is None:
            continue
        small, covered = found
        if min(covered.height, covered.width) < scale:
            continue
        assert covered.top <= part.top and covered.left <= part.left
        assert covered.bottom >= part.bottom and covered.right >= part.right
        pixels = decode_jpeg(small, read_header(small), channels=channels, scale=scale)
        top, left = part.top // scale, part.left // scale
        bottom, right = -(-part.bottom // scale), -(-part.right // scale)
        y, x = covered.top // scale, covered.left // scale
        np.testing.assert_array_equal(pixels[top - y : bottom - y, left - x : right - x], whole[top:bottom, left:right])
        assert pillow(small, "RGB").shape[:2] == (covered.height, covered.width)  # any decoder reads it
        done += 1
    return done


def check_encoded(pixels, quality, subsampling):
    """The kernel writes the bytes that Pillow writes, and knows where the restarts are."""
    data, restarts = encode_with_restarts(pixels, quality, subsampling)
    header = read_header(data)
    assert data == imaging_jpeg._encode_by_pillow(pixels, quality, subsampling, header.interval)
    np.testing.assert_array_equal(restarts, find_restarts(data))


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize("channels", [1, 3])
def test_files_have_the_bytes_of_pillow(channels, subsampling):
    rng = np.random.default_rng(channels)
    for i in range(1, 71):  # all edges of units, in both directions
        for size in ((i, 71 - i), (i, int(rng.integers(1, 200)))):
            noise = rng.integers(0, 256, (*size, channels)).astype(np.uint8)
            kinds = (noise, noise // 128 * 255, drawn(*size, channels, seed=i), np.full_like(noise, i))
            for pixels in kinds:
                check_encoded(pixels, int(rng.choice([1, 5, 50, 75, 90, 95])), subsampling)
    for quality in range(1, 96):
        check_encoded(drawn(40, 70, channels, seed=quality), quality, subsampling)


def test_files_of_views_and_of_empty_blocks_have_the_bytes_of_pillow():
    check_encoded(drawn(60, 70)[::-2, 3:-9], 90, "4:2:0")
    check_encoded(np.zeros((1, 5000, 3), np.uint8), 90, "4:2:0")
    check_encoded(np.full((3000, 9, 1), 255, np.uint8), 1, "4:2:0")


def test_the_kernel_writes_no_file_that_its_header_does_not_describe():
    if native.core is None:
        pytest.skip("needs the kernels")
    pixels, head = drawn(16, 16), encode_jpeg(drawn(16, 16), 90)
    head, whole = head[: read_header(head).start], head
    assert native.encode(head, pixels) in (None, (whole, b""))
    assert native.encode(head, pixels[:-1].copy()) is None  # another size
    assert native.encode(whole, pixels) is None and native.encode(head[:-1], pixels) is None
    at = head.index(b"\xff\xdb") + 5
    assert native.encode(head[:at] + b"\0" + head[at + 1 :], pixels) is None  # nothing divides by 0
    at = head.index(b"\xff\xc4") + 6
    assert native.encode(head[:at] + b"\0" + head[at + 1 :], pixels) is None  # a table without all symbols
    for i in range(len(head)):  # whatever it says
        for byte in (0, 1, 0x7F, 0xFF):
            native.encode(head[:i] + bytes([byte]) + head[i + 1 :], pixels)


def outcome(data, header, buffer=None):
    """What `decode_jpeg` returns or raises."""
    try:
        return decode_jpeg(data, header, channels=header.components, buffer=buffer).tobytes()
    except DamagedJpegError:
        return "damaged"


@pytest.mark.parametrize("subsampling", [*SUBSAMPLINGS, "gray"])
def test_whole_files_have_the_bits_and_the_faults_that_libjpeg_finds(monkeypatch, subsampling):
    rng, files = np.random.default_rng(0), []
    for i, size in enumerate(SIZES):
        pixels = drawn(*size, 1 if subsampling == "gray" else 3, seed=i)
        options = {} if subsampling == "gray" else {"subsampling": SUBSAMPLINGS[subsampling]}
        files.append(jpeg(pixels, quality=int(rng.integers(5, 96)), **options))
    for data in tuple(files):
        start = read_header(data).start
        for _ in range(12):  # most are damaged
            changed = bytearray(data)
            changed[int(rng.integers(start, len(data)))] ^= int(rng.integers(1, 256))
            files.append(bytes(changed[: int(rng.integers(start, len(data))) if rng.random() < 0.2 else None]))
    headers = [read_header(data) for data in files]
    found = [outcome(*each, np.empty(10**6, np.uint8)) for each in zip(files, headers, strict=True)]
    assert found == [outcome(*each) for each in zip(files, headers, strict=True)]
    monkeypatch.setattr(native, "core", None)
    assert found == [outcome(*each) for each in zip(files, headers, strict=True)]


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:4:4"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES)
def test_cuts_of_our_own_files_are_exact(size, channels, subsampling):
    data = encode_jpeg(drawn(*size, channels), 90, subsampling)
    several = len(find_restarts(data)) > 0
    unit = 8 if channels == 1 or subsampling == "4:4:4" else 16
    assert several == (size[0] > unit or size[1] > 64)
    for seed in range(4):
        assert check_cuts(data, seed) == (13 if several else 0)


@pytest.mark.parametrize(
    "options",
    [{"restart_marker_blocks": n} for n in (1, 2, 3, 4, 7)] + [{"restart_marker_rows": 1}, {"restart_marker_rows": 2}],
    ids=str,
)
@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_cuts_of_files_with_markers_of_others_are_exact_or_refused(subsampling, options):
    for seed, size in enumerate([(97, 112), (50, 63), (161, 47)]):
        data = jpeg(drawn(*size, seed=seed), subsampling=SUBSAMPLINGS[subsampling], **options)
        unit = 8 if subsampling == "4:4:4" else 16
        units, blocks = -(-size[1] // unit), options.get("restart_marker_blocks")
        fits = blocks is None or units % blocks == 0 or blocks % units == 0
        assert (check_cuts(data, seed) > 0) == (fits and len(find_restarts(data)) > 0)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_cuts_of_gray_and_cmyk_are_exact(mode):
    pixels = np.asarray(Image.fromarray(drawn(90, 121)).convert(mode)).reshape(90, 121, -1)
    data = jpeg(pixels, "CMYK" if mode == "CMYK" else None, restart_marker_blocks=4 if mode == "L" else 1)
    assert (check_cuts(data, count=40) > 0) == (len(find_restarts(data)) > 0) == True  # noqa: E712


@pytest.mark.parametrize("scale", [2, 4, 8])
def test_cuts_are_exact_at_the_scales_of_the_transform(scale):
    for seed, (size, subsampling) in enumerate(itertools.product([(200, 301), (129, 64)], ("4:2:0", "4:4:4"))):
        assert check_cuts(encode_jpeg(drawn(*size, seed=seed), 90, subsampling), seed, 20, scale) == 21


def test_narrow_cuts_are_exact():
    for width, channels in itertools.product((66, 68, 80, 84), (1, 3)):
        data = encode_jpeg(drawn(40, width, channels, seed=width), 20)
        header, restarts = read_header(data), find_restarts(data)
        for scale, left in itertools.product((1, 2, 4), range(56, width)):
            part = JpegSegment(8, left, 20, left + 1)
            small, covered = cut(data, header, restarts, part, scale=scale)
            whole = decode_jpeg(data, header, channels=channels, scale=scale)
            pixels = decode_jpeg(small, read_header(small), channels=channels, scale=scale)
            column = pixels[(8 - covered.top) // scale : (20 - covered.top) // scale, (left - covered.left) // scale]
            np.testing.assert_array_equal(column, whole[8 // scale : 20 // scale, left // scale])


def test_what_cannot_be_cut_has_no_restarts():
    pixels = drawn(80, 112)
    assert len(find_restarts(jpeg(pixels, restart_marker_blocks=1))) == 34
    assert len(find_restarts(jpeg(pixels))) == 0  # none written
    assert len(find_restarts(jpeg(pixels, restart_marker_blocks=5))) == 0  # intervals go over lines
    assert len(find_restarts(jpeg(pixels, progressive=True, restart_marker_blocks=1))) == 0
    assert len(find_restarts(b"")) == len(find_restarts(b"\xff\xd8\xff")) == len(find_restarts(b"P6\n")) == 0
    whole = jpeg(pixels, restart_marker_blocks=1)
    assert len(find_restarts(whole[:-2])) == 0  # no end
    assert (
        len(find_restarts(whole + b"\xff\xd8\xff\xe1a preview\xff\xd0")) == 34
    )  # what comes after the end is not read
    restarts = find_restarts(whole)
    wrong = bytearray(whole)
    wrong[restarts[3] - 1] = 0xD0
    assert len(find_restarts(bytes(wrong))) == 0


def test_restarts_that_point_elsewhere_are_not_believed():
    data = jpeg(drawn(80, 112), restart_marker_blocks=1)
    header, good = read_header(data), find_restarts(data)
    part = JpegSegment(20, 20, 60, 60)
    assert cut(data, header, good, part) is not None
    forged = [
        good + np.uint32(1),
        good[:-1],
        good[::-1],
        np.zeros_like(good),
        good * np.uint32(1000),
        good[[0] * len(good)],
    ]
    swapped = good.copy()
    swapped[8:16] = good[:8]  # the right numbers at the wrong places
    for restarts in (*forged, swapped):
        assert cut(data, header, restarts, part) is None


def test_a_header_says_what_a_file_is():
    found = read_header(jpeg(drawn(30, 50)))
    assert (found.height, found.width, found.components, found.has_metadata, found.scan) == (30, 50, 3, False, None)
    assert read_header(jpeg(drawn(30, 50, 1))).components == 1
    exif = exif_of(6)
    assert read_header(jpeg(drawn(3, 5), exif=exif)).has_metadata
    progressive = read_header(jpeg(drawn(30, 50), progressive=True))
    assert (progressive.height, progressive.width, progressive.scan) == (30, 50, None)


def test_a_head_has_only_the_segments_of_adobe_among_those_of_their_kind():
    data = jpeg(drawn(30, 50))
    adobe, other = b"Adobe\0\x64\0\0\0\0\1", b"Ducky\0\x64\0\0\0\0\1"
    assert read_header(with_segment(data, 0xEE, other)).head == read_header(data).head
    assert adobe in read_header(with_segment(data, 0xEE, adobe)).head


def test_a_cut_has_no_metadata_but_what_colors_need():
    exif = Image.Exif()
    exif[0x010E] = "x" * 3000
    data = jpeg(drawn(80, 112), restart_marker_blocks=1, exif=exif, icc_profile=b"p" * 500, comment=b"hello")
    small, _ = cut(data, read_header(data), find_restarts(data), JpegSegment(0, 0, 16, 16))
    assert b"xxxx" not in small and b"pppp" not in small and b"hello" not in small and b"JFIF" in small


def with_bytes(data, at, new, count=None):
    """A file with `new` at a place, instead of `count` bytes."""
    return data[:at] + new + data[at + (len(new) if count is None else count) :]


#: What is wrong, by the file, the places of its restart markers, and the message of libjpeg.
DAMAGES = {
    "cut short": (lambda data, marks: data[: len(data) // 2], "."),
    "a wrong number": (lambda data, marks: with_bytes(data, marks[5] - 1, b"\xd1"), "."),
    "wrong bits": (lambda data, marks: with_bytes(data, marks[5], b"\xf7" * 12), "."),
    "a comment among the pixels": (lambda data, marks: with_bytes(data, marks[1] + 4, b"\xff\xfe", 0), "."),
    "an application's marker": (lambda data, marks: with_bytes(data, marks[1] + 4, b"\xff\xe6", 0), "."),
    "a table among the pixels": (lambda data, marks: with_bytes(data, marks[1] + 4, b"\xff\xc4", 0), "."),
    "an early end": (lambda data, marks: data[: marks[3] - 2] + b"\xff\xd9", "found marker 0xd9 instead of RST3"),
    "no last marker": (lambda data, marks: with_bytes(data, marks[-1] - 2, b"\0\0"), "before marker 0xd9"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_an_error(damage, message):
    pytest.importorskip("simplejpeg")  # Pillow says nothing of some
    data = encode_jpeg(drawn(160, 160), 90)
    changed = damage(data, find_restarts(data).tolist())
    with pytest.raises(DamagedJpegError, match=message):
        decode_jpeg(changed, read_header(changed), channels=3)


def test_without_simplejpeg_pillow_gives_the_same(monkeypatch):
    gray, color = (encode_jpeg(drawn(133, 97, channels), 90) for channels in (1, 3))

    def decoded():
        for file, channels in ((gray, 1), (gray, 3), (color, 3)):
            for scale in (1, 2, 4, 8):
                yield decode_jpeg(file, read_header(file), channels=channels, scale=scale)

    expected = [*decoded()]
    monkeypatch.setattr("tensorstore_ds.imaging.jpeg.simplejpeg", None)
    for found, pixels in zip(decoded(), expected, strict=True):
        np.testing.assert_array_equal(found, pixels)


def test_pixels_come_in_the_buffer_that_is_given():
    data = jpeg(drawn(40, 30))
    buffer = np.empty(5000, np.uint8)
    assert np.shares_memory(decode_jpeg(data, read_header(data), channels=3, buffer=buffer), buffer)
    small = np.empty(50, np.uint8)
    assert decode_jpeg(data, read_header(data), channels=3, buffer=small).shape == (40, 30, 3)


def test_the_scale_covers_what_is_asked_for():
    assert [scale_for((n, n), (100, 100)) for n in (99, 199, 200, 399, 400, 800, 5000)] == [1, 1, 2, 2, 4, 8, 8]
    assert scale_for((800, 150), (100, 100)) == 1
    assert scale_for((800, 800), (0, 10)) == 8


MARKERS = [bytes([0xFF, marker]) for marker in range(0xC0, 0x100)]


def try_mutated(file, rng, part):
    """Decode a mutated file whole and its part alone: an error, or the same pixels."""
    data = mutate_bytes(Random(int(rng.integers(2**32))), file, MARKERS)
    header, restarts = read_header(data), find_restarts(data)
    if header is None or header.height * header.width > 300_000:
        return
    channels = 1 if header.components == 1 else 3
    stored = restarts if rng.integers(0, 2) else find_restarts(file)  # of a store: they may belong to another file
    part = JpegSegment(
        min(part.top, header.height - 1),
        min(part.left, header.width - 1),
        min(part.bottom, header.height),
        min(part.right, header.width),
    )
    found = cut(data, header, stored, part)
    if found is None:
        return
    small, covered = found
    try:
        pixels = decode_jpeg(small, read_header(small), channels=channels)
    except DamagedJpegError:
        return
    assert pixels.shape == (covered.height, covered.width, channels)
    try:
        whole = decode_jpeg(data, header, channels=channels)
    except DamagedJpegError:
        return  # the damage is elsewhere
    inside = pixels[
        part.top - covered.top : part.bottom - covered.top, part.left - covered.left : part.right - covered.left
    ]
    np.testing.assert_array_equal(inside, whole[part.top : part.bottom, part.left : part.right])


def test_a_scan_header_of_no_bytes_is_no_crash():
    data = jpeg(drawn(20, 20), restart_marker_blocks=1)
    at = data.index(b"\xff\xda")
    for length in (b"\0\2", b"\0\3", b"\0\5"):
        mutated_data = data[: at + 2] + length + data[at + 4 :]
        assert len(find_restarts(mutated_data)) == 0


def test_mutated_files_give_an_error_or_the_right_pixels():
    rng = np.random.default_rng(0)
    files = [
        encode_jpeg(drawn(h, w, c, seed=i), 60, s)
        for i, (h, w, c, s) in enumerate(
            [(48, 64, 3, "4:2:0"), (33, 48, 3, "4:4:4"), (40, 72, 1, "4:2:0"), (64, 33, 3, "4:2:0")]
        )
    ]
    files.append(jpeg(drawn(48, 48), restart_marker_rows=1, exif=exif_of(3)))
    for i in range(1500):
        top, left = (int(n) for n in rng.integers(0, 40, 2))
        part = JpegSegment(top, left, top + int(rng.integers(1, 40)), left + int(rng.integers(1, 40)))
        try_mutated(files[i % len(files)], rng, part)


@pytest.mark.parametrize("first", [0, 3])
def test_markers_of_an_image_behind_the_first_are_not_used(tmp_path, first):
    """A part is a part of the image that decoding the whole shows, and `verify` reports such markers."""
    one, other = (jpeg(drawn(64, 96, seed=i), restart_marker_blocks=1) for i in range(2))
    restarts, behind = find_restarts(one), find_restarts(other) + np.uint32(len(one))
    assert len(restarts) == len(behind) > 3
    both, part = one + other, JpegSegment(20, 30, 50, 70)
    whole = np.asarray(Image.open(io.BytesIO(one)))[part.top : part.bottom, part.left : part.right]
    for markers in (restarts, np.append(restarts[:first], behind[first:])):
        found = decode_part(both, part, shape=(64, 96, 3), restarts=markers)
        pixels = found.array[part.top - found.top :, part.left - found.left :]
        np.testing.assert_array_equal(pixels[: part.height, : part.width], whole)
    path = tmp_path / "s.tsds"
    with tsds.Writer(path, encoding="source") as writer:
        writer.append("train", image=both)
    field = tsds.open(path)["train"].fields["image"]
    for markers, reasons in (
        (restarts, []),
        (np.append(restarts[:first], behind[first:]), ["image-restarts"]),
    ):
        assert [reason for reason, _ in field.check(OneFile(both, markers), None)] == reasons


class OneFile:
    """The table of a store with one image file."""

    def __init__(self, data, restarts):
        self.values, self.offsets = {"bytes": np.frombuffer(data, np.uint8)}, np.array([0, len(data)])
        self.per_row = {"restarts": [restarts]}

    def __len__(self):
        return 1

    def __getitem__(self, name):
        return self.values[name]


def test_an_interval_is_the_largest_part_of_a_line_up_to_64_pixels():
    for width, channels, subsampling in itertools.product(range(1, 400, 21), (1, 3), ("4:2:0", "4:4:4")):
        unit = 16 if channels == 3 and subsampling == "4:2:0" else 8
        units = (width + unit - 1) // unit
        expected = max(n for n in range(1, 64 // unit + 1) if units % n == 0)
        assert read_header(encode_jpeg(drawn(8, width, channels), 90, subsampling)).interval == expected


def test_extended_sequential_files_are_cut():
    data = jpeg(drawn(80, 112), restart_marker_blocks=1).replace(b"\xff\xc0\0\x11", b"\xff\xc1\0\x11", 1)
    assert check_cuts(data) == 13


@pytest.mark.parametrize(
    ("factors", "fits"),
    [
        ((0x11, 0x11, 0x11), True),
        ((0x22, 0x11, 0x11), True),
        ((0x22, 0x21, 0x12), True),
        ((0x41, 0x11, 0x11), True),
        ((0x14, 0x11, 0x11), True),
        ((0x41, 0x21, 0x11), False),
        ((0x14, 0x12, 0x11), False),
        ((0x42, 0x11, 0x21), False),
        ((0x51, 0x11, 0x11), False),
        ((0x15, 0x11, 0x11), False),
        ((0x01, 0x01, 0x01), False),
        ((0x10, 0x10, 0x10), False),
        ((0x22, 0x01, 0x11), False),
    ],
)
def test_only_files_with_chroma_of_a_usual_size_are_cut(factors, fits):
    data = bytearray(jpeg(drawn(64, 64), restart_marker_rows=1))
    at = data.index(b"\xff\xc0") + 11
    data[at : at + 9 : 3] = bytes(factors)
    units = -(-64 // (8 * max(1, max(each >> 4 for each in factors))))
    interval = data.index(b"\xff\xdd") + 4
    data[interval : interval + 2] = units.to_bytes(2)
    scan = read_header(data).scan
    assert (scan is not None) == fits
    if scan is not None:
        unit = tuple(8 * max(f(each) for each in factors) for f in (lambda e: e & 15, lambda e: e >> 4))
        assert scan.step == (unit[0], unit[1] * units)
        assert (scan.rows, scan.columns) == (-(-64 // unit[0]), 1)


def with_segment(data, marker, body):
    """A JPEG file with one more segment before all others."""
    return data[:2] + bytes([0xFF, marker]) + (len(body) + 2).to_bytes(2) + body + data[2:]


def without_jfif(data):
    assert data[2:4] == b"\xff\xe0"
    return data[:2] + data[4 + int.from_bytes(data[4:6]) :]


def harmless(data):
    """The same image with what libjpeg warns of, or skips, without losing a pixel."""
    adobe = b"Adobe\0\x64\0\0\0\0"
    yield "JWRN_JFIF_MAJOR", data[:11] + b"\0\0" + data[13:]
    yield "JWRN_JFIF_MAJOR", data[:11] + b"\x4a\x46" + data[13:]
    yield "JWRN_ADOBE_XFORM", with_segment(without_jfif(data), 0xEE, adobe + b"\2")
    yield "JWRN_ADOBE_XFORM", with_segment(without_jfif(data), 0xEE, adobe + b"\x63")
    yield "JWRN_BOGUS_ICC", with_segment(data, 0xE2, b"ICC_PROFILE\0\7\1xx")
    at = data.index(b"\xff\xdb")
    yield "JWRN_EXTRANEOUS_DATA", data[:at] + b"junk\0\xff\0" + data[at:]
    yield "JWRN_EXTRANEOUS_DATA", data[:-2] + b"\0\0\0" + data[-2:]
    yield "bytes behind the image", data + b"\0" * 20
    yield "fill bytes", data[:at] + b"\xff\xff\xff" + data[at:]
    if b"\xff\xc2" not in data:
        end = read_header(data).start
        yield "JWRN_NOT_SEQUENTIAL", data[: end - 3] + b"\0\0\0" + data[end:]


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 2}, {"subsampling": 0}])
@pytest.mark.parametrize("orientation", [1, 6])
def test_warnings_that_lose_no_pixel_are_harmless_everywhere(tmp_path, options, orientation):
    """Conversion, the stored file and the loader give the pixels that Pillow and torchvision give."""
    torchvision = pytest.importorskip("torchvision")
    torch = pytest.importorskip("torch")
    exif = exif_of(orientation)
    files = list(harmless(jpeg(drawn(50, 70), **options)))
    (tmp_path / "f").mkdir()
    for i, (_, data) in enumerate(files):
        (tmp_path / "f" / f"{i}.jpg").write_bytes(with_segment(data, 0xE1, exif.tobytes()) if orientation > 1 else data)
    for encoding in ("source", "raw"):
        store = tmp_path / f"{encoding}.tsds"
        assert tsds.convert(tmp_path / "f", store, encoding=encoding, workers=0).skipped == {}
        split = tsds.StoreDataset(store)
        for i, (warning, data) in enumerate(files):
            expected = pillow(data)
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
                decoded = torchvision.io.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            as_torch = decoded.permute(1, 2, 0).numpy()
            np.testing.assert_array_equal(as_torch, expected, warning)
            expected = np.rot90(expected, -1) if orientation == 6 else expected
            np.testing.assert_array_equal(split[i]["image"].permute(1, 2, 0).numpy(), expected, warning)


def test_a_warning_about_the_header_hides_no_damage():
    pytest.importorskip("simplejpeg")
    data = jpeg(drawn(160, 160), restart_marker_blocks=1)
    at = int(find_restarts(data)[5])
    for _, changed in harmless(data[:at] + b"\xf7" * 12 + data[at + 12 :]):
        with pytest.raises(DamagedJpegError):
            decode_jpeg(changed, read_header(changed), channels=3)


@pytest.mark.parametrize("scale", [1, 2, 8])
def test_cmyk_is_pillows_and_damage_is_found(scale):
    pytest.importorskip("simplejpeg")
    buffer = io.BytesIO()
    Image.fromarray(drawn(90, 130)).convert("CMYK").save(buffer, "JPEG", quality=90)
    data = buffer.getvalue()
    image = Image.open(io.BytesIO(data))
    if scale > 1:
        image.draft(None, (130 // scale, 90 // scale))
    found = decode_jpeg(data, read_header(data), channels=3, scale=scale)
    np.testing.assert_array_equal(found, np.asarray(image.convert("RGB")))
    damaged = data[: len(data) // 2]
    with pytest.raises(DamagedJpegError):
        decode_jpeg(damaged, read_header(damaged), channels=3)
