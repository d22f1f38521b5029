"""The compiled kernels: their pixels are libjpeg-turbo's and torch's to the bit, and those of the Python way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from jpeg_files import drawn, exif_of, jpeg
from tensorstore_ds import native
from tensorstore_ds.imaging.codecs import decode_image, read_image_header
from tensorstore_ds.imaging.jpeg import decode_jpeg, find_restarts, read_header
from tensorstore_ds.loading import crops, decoding

simplejpeg = pytest.importorskip("simplejpeg")
pytestmark = pytest.mark.skipif(native.core is None, reason=f"no compiled kernels: {native.why_not}")

#: Sizes of images that are decoded at 1, 1/2, 1/4 and 1/8.
SIZES = {1: [(1, 1), (2, 3), (7, 9), (16, 16), (17, 33), (33, 31), (5, 200), (100, 75), (240, 320)]}
SMALLER = [(8, 8), (16, 40), (64, 56), (96, 240), (208, 104)]
SIZES |= dict.fromkeys((2, 4, 8), SMALLER)
SUBSAMPLINGS = ("4:4:4", "4:2:2", "4:2:0", "gray")


@pytest.fixture(params=[False, True], ids=["best", "plain"])
def core(request: pytest.FixtureRequest) -> Iterator[Any]:
    native.core.use_plain(request.param)
    yield native.core
    native.core.use_plain(False)


def encoded(size: tuple[int, int], subsampling: str, seed: int = 0, **options: Any) -> bytes:
    """A JPEG file of (height, width)."""
    if subsampling == "gray":
        return jpeg(drawn(*size, 1, seed=seed), **options)
    return jpeg(drawn(*size, seed=seed), subsampling=subsampling, **options)


def job_of(data: bytes, size: tuple[int, int], channels: int, find: int, marks: int, **axes: Any) -> NDArray[Any]:
    job = np.zeros(1, native.JOB)
    job["end"], job["mark_count"], job["find"], job["components"] = len(data), marks, find, channels
    job["height"], job["width"] = size
    job["scale"], job["flip"] = axes.get("scale", 1), axes.get("flip", False)
    for name in "yx":
        first, count = axes.get(f"{name}_seen", (0, axes[name][2]))
        job[name] = (*axes[name], first, count, 0)
    return job


def cropped(core: Any, data: bytes, find: int, size: tuple[int, int], channels: int, **axes: Any) -> NDArray[np.uint8]:
    """What the kernels make of one image; raises AssertionError where they cannot."""
    marks = b"" if find == native.FIND_NONE else tables(core, data)[find]
    job = job_of(data, size, channels, find, len(marks) // (4 if find == native.FIND_RESTARTS else 12), **axes)
    height, width = int(job["y"]["count"][0]), int(job["x"]["count"][0])
    out, status = np.zeros((1, height, width, channels), np.uint8), np.full(1, 99, np.int32)
    shard = (data, *(marks if find == each else b"" for each in (native.FIND_RESTARTS, native.FIND_ENTRIES)))
    core.crops(core.context(), (shard,), job, out, height, width, channels, status)
    assert status.tolist() == [0]
    return out[0]


def tables(core: Any, data: bytes) -> dict[int, bytes]:
    found = {native.FIND_NONE: b"", native.FIND_RESTARTS: find_restarts(data).tobytes()}
    return {**found, native.FIND_ENTRIES: core.index(core.context(), data)}


def ways(core: Any, size: tuple[int, int], subsampling: str) -> Iterator[tuple[bytes, int]]:
    """Files of an image, and how their parts are found."""
    plain, marked = (encoded(size, subsampling, restart_marker_blocks=n) for n in (0, 1))
    yield plain, native.FIND_NONE
    yield plain, native.FIND_ENTRIES
    if find_restarts(marked).size:
        yield marked, native.FIND_RESTARTS


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("scale", SIZES)
def test_parts_have_the_bits_of_the_whole(core: Any, scale: int, subsampling: str) -> None:
    rng = np.random.default_rng(scale)
    color, channels = ("gray", 1) if subsampling == "gray" else ("rgb", 3)
    for size in SIZES[scale]:
        small = size[0] // scale, size[1] // scale
        for data, find in ways(core, size, subsampling):
            whole = simplejpeg.decode_jpeg(data, color, min_height=small[0], min_width=small[1], min_factor=scale)
            whole = whole.reshape(*small, channels)
            for number in range(6):
                low = [0 if number == 0 else int(rng.integers(n)) for n in small]
                high = [n if number == 0 else int(rng.integers(a + 1, n + 1)) for a, n in zip(low, small, strict=True)]
                y, x = ((scale * a, scale * (b - a), b - a) for a, b in zip(low, high, strict=True))
                found = cropped(core, data, find, size, channels, y=y, x=x, scale=scale, flip=number % 2)
                expected = whole[low[0] : high[0], low[1] : high[1]]
                np.testing.assert_array_equal(found, expected[:, ::-1] if number % 2 else expected)


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
@pytest.mark.parametrize("contrast", [10, 100, 215, 225, 235, 245, 255])
def test_blocks_of_any_contrast_have_the_right_bits(core: Any, contrast: int, subsampling: str) -> None:
    """Noise, edges and checks, on both sides of the sum up to which the AVX2 code computes in 16 bits."""
    rng = np.random.default_rng(contrast)
    y, x = np.indices((8, 8))
    checks = np.stack([y % 2 ^ x % 2, y % 2, x % 2, y // 4 ^ x // 4, (y == 3) & (x == 5), y > x], axis=0)
    blocks = np.concatenate([rng.integers(0, 2, (18, 8, 8)), checks, rng.random((12, 8, 8))])
    values = np.clip((blocks - 0.5) * contrast + 128, 0, 255).reshape(6, 6, 8, 8).swapaxes(1, 2).reshape(48, 48)
    pixels = np.stack([values, values.T, 255 - values], axis=-1).astype(np.uint8)
    color, channels = ("gray", 1) if subsampling == "gray" else ("rgb", 3)
    for quality in (100, 90, 30):
        options = {} if subsampling == "gray" else {"subsampling": subsampling}
        data = jpeg(pixels[:, :, :channels], quality=quality, **options)
        found = cropped(core, data, native.FIND_NONE, (48, 48), channels, y=(0, 48, 48), x=(0, 48, 48))
        np.testing.assert_array_equal(found, simplejpeg.decode_jpeg(data, color).reshape(48, 48, channels))


@pytest.mark.parametrize("subsampling", SUBSAMPLINGS)
def test_resized_parts_have_the_bits_of_torch(core: Any, subsampling: str) -> None:
    rng = np.random.default_rng(3)
    color, channels = ("gray", 1) if subsampling == "gray" else ("rgb", 3)
    size = 120, 170
    for data, find in ways(core, size, subsampling):
        whole = simplejpeg.decode_jpeg(data, color).reshape(*size, channels)
        for to in [(1, 1), (7, 64), (64, 7), (32, 32), (100, 150), (224, 224), (300, 31)]:
            low = [int(rng.integers(n // 2)) for n in size]
            high = [int(rng.integers(a + 1, n + 1)) for a, n in zip(low, size, strict=True)]
            part = torch.from_numpy(np.ascontiguousarray(whole[low[0] : high[0], low[1] : high[1]])).permute(2, 0, 1)
            expected = torch.nn.functional.interpolate(part[None], to, mode="bilinear", antialias=True)[0]
            y, x = ((a, b - a, n) for a, b, n in zip(low, high, to, strict=True))
            first = [int(rng.integers(n)) for n in to]
            seen = [(a, int(rng.integers(1, n - a + 1))) for a, n in zip(first, to, strict=True)]
            found = cropped(core, data, find, size, channels, y=y, x=x, y_seen=seen[0], x_seen=seen[1])
            wanted = expected[:, seen[0][0] : sum(seen[0]), seen[1][0] : sum(seen[1])]
            np.testing.assert_array_equal(found, wanted.permute(1, 2, 0).numpy())


PLANS: dict[str, Any] = {
    "train": tsds.Compose([tsds.RandomResizedCrop(96), tsds.RandomHorizontalFlip()]),
    "validate": tsds.Compose([tsds.Resize(128), tsds.CenterCrop(112)]),
    "letterbox": tsds.transforms.Letterbox((80, 100)),
    "crop": tsds.RandomCrop(90),
    "small": tsds.RandomResizedCrop(24),
    "twice": tsds.Compose([tsds.RandomResizedCrop(150), tsds.Resize(64), tsds.RandomCrop(50)]),
    "padded": tsds.Compose([tsds.Resize(60), tsds.transforms.Pad(7, fill=7), tsds.RandomCrop(56)]),
}


XMP = b'<rdf:Description tiff:Make="O" tiff:Orientation="6"/>'


def test_whole_files_are_left_to_libjpeg_where_it_is_faster(core: Any) -> None:
    """Plain C takes 2.8 times as long."""
    data, out = jpeg(drawn(20, 30), quality=90), np.zeros((20, 30, 3), np.uint8)
    is_decoded = native.decode(data, out)
    assert is_decoded == (core.variant() == "avx2")
    assert not is_decoded or np.array_equal(out, simplejpeg.decode_jpeg(data))


def test_an_orientation_in_xmp_alone_does_not_count(core: Any) -> None:
    plain, tagged = (encoded((40, 60), "4:2:0", **more) for more in ({}, {"xmp": XMP}))
    assert core.index(core.context(), tagged)
    assert np.array_equal(decode_image(plain), decode_image(tagged))
    assert read_image_header(tagged).size == (40, 60)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("native")
    (folder / "photos" / "all").mkdir(parents=True)
    sizes = [(256, 192), (384, 256), (333, 217), (250, 188), (512, 512), (301, 201), (401, 301), (97, 120)]
    for number, size in enumerate(sizes):
        for orientation in (1, number % 8 + 1):
            data = encoded(size, SUBSAMPLINGS[number % 3], number, exif=exif_of(orientation))
            (folder / "photos" / "all" / f"{number}-{orientation}.jpg").write_bytes(data)
    for number, (value, xmp) in enumerate([(0, b""), (9, XMP), (3, XMP), (None, XMP)]):
        data = encoded((260, 200), "4:2:0", number, exif=Image.Exif() if value is None else exif_of(value), xmp=xmp)
        (folder / "photos" / "all" / f"metadata-{number}.jpg").write_bytes(data)
    (folder / "photos" / "all" / "gray.jpg").write_bytes(encoded((200, 150), "gray"))
    for encoding in ("source", "jpeg"):
        tsds.convert(folder / "photos", folder / f"{encoding}.tsds", encoding=encoding, workers=0, shard_nbytes=200_000)
    return {encoding: folder / f"{encoding}.tsds" for encoding in ("source", "jpeg")}


@pytest.mark.drawn(7)
@pytest.mark.parametrize("encoding", ["source", "jpeg"])
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_without_the_kernels_pixels_are_the_same(
    core: Any, stores: dict[str, Path], encoding: str, plan: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def images() -> torch.Tensor:
        dataset = tsds.StoreDataset(stores[encoding], "train", fields=("image",), decode=plan)
        return torch.cat([batch["image"] for batch in tsds.DataLoader(dataset, 8)])

    done: list[bool] = []
    into = crops.Crops.into

    def watched(self: crops.Crops, *args: Any) -> Any:
        found = into(self, *args)
        done.extend(found.ravel().tolist())
        return found

    monkeypatch.setattr(crops.Crops, "into", watched)
    compiled = images()
    assert done.count(True) == len(compiled), "the kernels have made none of them"
    monkeypatch.setattr(native, "core", None)
    torch.testing.assert_close(images(), compiled, rtol=0, atol=0)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("encoding", ["source", "jpeg"])
@pytest.mark.parametrize("seed", range(2))
def test_views_that_are_decoded_together_have_the_pixels_of_each(
    core: Any, stores: dict[str, Path], encoding: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts at several scales, of turned, gray and tiny files; some far from each other are decoded apart."""
    large, small = tsds.RandomResizedCrop((40, 48), (0.3, 1), seed=seed), tsds.RandomResizedCrop(24, (0.001, 0.2))
    flipped = tsds.Compose([small, tsds.RandomHorizontalFlip()], seed=seed)
    exact = tsds.RandomResizedCrop(30, (0.05, 0.5), exact=True, seed=seed)
    plans = [large, small, exact, flipped, large, tsds.Resize((16, 20)), tsds.transforms.Letterbox(64), small]
    dataset = tsds.StoreDataset(stores[encoding], "train", fields=("image",), decode=plans)
    (together,) = tsds.DataLoader(dataset, len(dataset))
    rows, names = np.arange(len(dataset)), dataset.image_names
    many = dataset.with_decode([small] * 40)  # more than one call can take
    views = many.gather(rows).columns
    monkeypatch.setattr(decoding, "MOST_VIEWS", 1)
    apart = many.gather(rows).columns
    assert all(torch.equal(views[name], apart[name]) for name in many.image_names)
    assert not torch.equal(views["image_0"], views["image_32"])
    monkeypatch.setattr(native, "core", None)
    (alone,) = tsds.DataLoader(dataset.with_decode(plans), len(dataset))
    for name in names:
        torch.testing.assert_close(together[name], alone[name], rtol=0, atol=0)


def test_buffers_of_views_are_checked(core: Any) -> None:
    job, out, status = np.zeros((2, 2), native.JOB), np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 2), np.int32)
    shared = (np.zeros(1, np.int64), np.zeros(1, np.int64), 0)
    for others in ((out,), ((out, 4),), ((out, 5, 4),), ((out[:1], 4, 4),), ((out, 0, 4),), ((out, 4, 4),) * 40):
        with pytest.raises((TypeError, ValueError)):
            core.crops(core.context(), ((b"", b"", b""),), job, out, 4, 4, 3, status, *shared, others)
    with pytest.raises(ValueError, match="do not fit"):
        core.crops(core.context(), ((b"", b"", b""),), job[0], out, 4, 4, 3, status[0], *shared, ((out, 4, 4),) * 2)
    failed = core.crops(core.context(), ((b"", b"", b""),), job, out, 4, 4, 3, status, *shared, ((out, 4, 4),))
    assert failed == 4 and status.tolist() == [[2, 2], [2, 2]]


def test_buffers_that_do_not_fit_are_refused(core: Any) -> None:
    data = encoded((16, 16), "4:2:0")
    job = job_of(data, (16, 16), 3, native.FIND_NONE, 0, y=(0, 16, 16), x=(0, 16, 16))
    out, status, shards = np.zeros((1, 16, 16, 3), np.uint8), np.zeros(1, np.int32), ((data, b"", b""),)
    for wrong in (
        (shards, job, out[:, :8], 16, 16, 3, status),
        (shards, job, out, 16, 16, 2, status),
        (shards, job, out, 0, 16, 3, status),
        (shards, job, out, 16, 16, 3, np.zeros(2, np.int32)),
        (shards, job.view(np.uint8)[:-1], out, 16, 16, 3, status),
    ):
        with pytest.raises(ValueError, match="crops: "):
            core.crops(core.context(), *wrong)
    for shard in ((data, b""), [data, b"", b""]):
        with pytest.raises(TypeError):
            core.crops(core.context(), (shard,), job, out, 16, 16, 3, status)


@pytest.mark.parametrize("value", [0, 1, 2**15 - 1, 2**31, 2**32 - 1])
def test_entries_are_checked(core: Any, value: int) -> None:
    """Each number of each entry is replaced: the image is damaged then, unless the number was that one."""
    data, size = encoded((32, 150), "4:2:0"), (32, 150)
    whole = np.frombuffer(core.index(core.context(), data), np.uint32).reshape(-1, 3)
    expected = cropped(core, data, native.FIND_ENTRIES, size, 3, y=(0, 32, 32), x=(0, 150, 150))
    for row, column in np.ndindex(*whole.shape):
        entries = whole.copy()
        entries[row, column] = value
        out, status = np.zeros((1, 32, 150, 3), np.uint8), np.zeros(1, np.int32)
        job = job_of(data, size, 3, native.FIND_ENTRIES, len(entries), y=(0, 32, 32), x=(0, 150, 150))
        core.crops(core.context(), ((data, b"", entries.tobytes()),), job, out, 32, 150, 3, status)
        if status[0] == 0:
            np.testing.assert_array_equal(out[0], expected)
            assert value == whole[row, column] or (column == 2 and (value ^ int(whole[row, 2])) & 0xFFFF == 0)


def decoded_by_the_kernel(data: bytes, scale: int, out: NDArray[np.uint8]) -> bool:
    """Whether the kernel decodes a whole JPEG file at a scale into `out` (H, W, C)."""
    header = read_header(data)
    job, status = np.zeros(1, native.JOB), np.zeros(1, np.int32)
    job["end"], job["scale"] = len(data), scale
    job["height"], job["width"], job["components"] = header.height, header.width, header.components
    for axis, (length, count) in {"y": (header.height, out.shape[0]), "x": (header.width, out.shape[1])}.items():
        job[axis] = (0, length, count, 0, count, 0)
    native.core.crops(native.own_context(), ((data, b"", b""),), job, out[None], *out.shape, status)
    return status[0] == 0


def test_numbers_that_leave_16_bits_are_left_to_libjpeg(core: Any) -> None:
    """Quantizers that the codes were not made for: the kernel gives libjpeg's samples, or none; of sound files, all."""
    rng = np.random.default_rng(1)
    taken = {False: 0, True: 0}
    for number in range(60):
        data = bytearray(jpeg(drawn(48, 64), quality=[5, 75, 100][number % 3], subsampling=number % 2 * 2))
        is_sound = number % 5 == 0
        at = data.index(b"\xff\xdb") + 5
        for place in () if is_sound else rng.integers(0, 64, [1, 5, 60][number % 3]):
            data[at + int(place)] = rng.integers(128, 256)
        for scale in (1, 2, 4, 8):
            out = np.zeros((48 // scale, 64 // scale, 3), np.uint8)
            if decoded_by_the_kernel(bytes(data), scale, out):
                taken[is_sound] += 1
                expected = decode_jpeg(bytes(data), read_header(bytes(data)), channels=3, scale=scale)
                np.testing.assert_array_equal(out, expected, f"{number} at 1/{scale}")
            else:
                assert not is_sound
    assert taken[True] == 48 and taken[False] >= 20


def of_first_numbers(value: int, quantizer: int) -> bytes:
    """A gray file of 16x16: the first number of its first block is `value`, and 16 zeros follow it before the end."""

    def segment(marker: int, data: bytes) -> bytes:
        return bytes([0xFF, marker]) + (len(data) + 2).to_bytes(2, "big") + data

    codes = bytes([0, 2]) + bytes(14)  # two codes of 2 bits: 00 and 01
    bits = f"01{value if value > 0 else value + 2047:011b}0100" + "000100" * 3
    bits += "1" * (-len(bits) % 8)
    return (
        b"\xff\xd8"
        + segment(0xDB, b"\0" + bytes([quantizer]) * 64)
        + segment(0xC0, bytes([8, 0, 16, 0, 16, 1, 1, 0x11, 0]))
        + segment(0xC4, b"\0" + codes + bytes([0, 11]))
        + segment(0xC4, b"\x10" + codes + bytes([0, 0xF0]))
        + segment(0xDA, bytes([1, 1, 0, 0, 63, 0]))
        + int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\0")
        + b"\xff\xd9"
    )


@pytest.mark.parametrize("value", [-2000, 1100, 2000])
@pytest.mark.parametrize("quantizer", [1, 5, 20])
def test_a_block_of_zeros_that_are_coded_is_as_flat_as_one_without(core: Any, value: int, quantizer: int) -> None:
    data, is_taken = of_first_numbers(value, quantizer), abs(value * quantizer) <= 4080
    for scale in (1, 2, 4, 8):
        out = np.zeros((16 // scale, 16 // scale, 1), np.uint8)
        assert decoded_by_the_kernel(data, scale, out) == is_taken
        if is_taken:
            expected = decode_jpeg(data, read_header(data), channels=1, scale=scale)
            np.testing.assert_array_equal(out, expected, f"at 1/{scale}")
    if not is_taken:
        assert native.walk(data)[1] == ()
