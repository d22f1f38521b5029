"""Batches of the loader, compared with what Pillow, torchvision and NumPy make of the same samples.

Each case draws images, a plan of geometric steps, and a configuration of the loader. What the plan is to give is
computed step by step, on whole images: by torchvision's functional transforms (images, boxes), and by NumPy
(keypoints, masks, and which part is seen). Of this library, only the parameters of random steps are taken
(`make_params`).

How near the pixels must be, in levels of 255 (docs/crops.md):

=========  ============================================================  ============================================
`copied`   nothing is resized                                            equal
`whole`    resized once, and all of it is seen, or a part                equal
`scaled`   by a random crop, a JPEG file of at least twice the size,     mean 1, 1.4, 2; 99 % within 4, 6, 10; for
           resized once                                                  decoding at 1/2, 1/4, 1/8; and where all is
                                                                         steep, a quarter of the steepness
`several`  resized several times, or padded before: one resizing for us  mean 8, or that of 2 pixels beside, or of as
                                                                         many as its edges were rounded by (`rounded`)
=========  ============================================================  ============================================

Each pixel of a mask is the one at its center. Which one that is follows in whole numbers. A center that lies exactly
between two pixels may take either; everywhere else, masks must be equal.

Batch transforms do one step after the other, as torchvision does, and must be equal in all cases. A wrong part of an
image differs by 30 and more.

``TSDS_ORACLE=20000 TSDS_ORACLE_SEED=1 python -m pytest tests/test_oracle.py -k many`` tries so many cases, the same
ones for the same seed.
"""

from __future__ import annotations

import io
import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms.v2 import functional as TF  # noqa: N812

import tensorstore_ds as tsds
from stores import Samples, smart_store
from tensorstore_ds.seeding import fold

pytestmark = pytest.mark.slow

#: Heights and widths of images in use, whose halves, quarters and eighths are sizes in use too; and odd ones.
USUAL = [(224, 224), (256, 256), (512, 512), (512, 768), (768, 512), (1024, 1024), (480, 640), (640, 480), (500, 375)]
USUAL += [(375, 500), (333, 500), (1024, 768), (2048, 2048), (448, 448)]
TINY = [(1, 1), (1, 40), (50, 3), (2, 60), (64, 64), (9, 8), (40, 1), (7, 7), (33, 200), (8, 8)]
ODD = [(197, 301), (511, 257), (64, 31), (17, 23), (260, 90), (33, 200)]
SIZES = USUAL + ODD
SHORT = [16, 32, 64, 112, 120, 128, 224, 240, 256]  #: what images are resized to
PAIRS = ((0, 1), (2, 3))
CLASSES = [f"c{i}" for i in range(8)]
FIELDS = ["image", "label", "objects", "age", "key"]
ONE_SIZE = (240, 320)


class Truth:
    """What a store was made of: samples, and (C, H, W) images as Pillow decodes them."""

    def __init__(self, path: Path, images: list[Tensor], samples: list[dict[str, Any]], is_jpeg: list[bool]) -> None:
        self.path, self.images, self.samples, self.is_jpeg = path, images, samples, is_jpeg

    def __repr__(self) -> str:  # hypothesis shows it
        return self.path.name


def photograph(number: int, size: tuple[int, int], channels: int = 3) -> NDArray[np.uint8]:
    """(H, W) or (H, W, 3): smooth, as photographs are, and nowhere like elsewhere."""
    height, width = size
    rng = np.random.default_rng(number)
    shape = (rng.integers(5, 9), rng.integers(5, 9), 3)
    image = Image.fromarray(rng.integers(0, 256, shape, np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    return np.array(image if channels == 3 else image.convert("L"))


def annotated(number: int, pixels: NDArray[np.uint8], *, mask: bool) -> dict[str, Any]:
    """A sample with 0 to 4 objects, each of another class, and keypoints, of which some are absent or outside."""
    rng = np.random.default_rng(1000 + number)
    height, width = pixels.shape[:2]
    count = number % 5
    corners = np.sort(rng.random((count, 2, 2)), axis=1) * (width, height)
    points = (rng.random((count, 4, 2)) * 1.2 - 0.1) * (width, height)
    points[rng.random((count, 4)) < 0.2] = np.nan
    sample: dict[str, Any] = {
        "image": pixels,
        "label": number % len(CLASSES),
        "boxes": corners.reshape(count, 4).astype(np.float32),
        "labels": rng.permutation(len(CLASSES))[:count],
        "keypoints": points.astype(np.float32),
        "age": np.float32(number / 4),
    }
    if mask:
        small = rng.integers(0, len(CLASSES), (6, 8)).astype(np.uint8)
        sample["mask"] = np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.NEAREST))
    return sample


def decoded(file: bytes) -> Tensor:
    """(C, H, W) of an image file, upright."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    image = image.convert("RGB") if image.mode == "CMYK" else image
    return torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1).contiguous()


def file_of(number: int, pixels: NDArray[np.uint8]) -> bytes:
    """An image file, of another sort with each number."""
    buffer, image = io.BytesIO(), Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 1 + number % 8
    lines = -(-pixels.shape[1] // 16)
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("JPEG", {"quality": 92}),
        ("JPEG", {"quality": 90, "restart_marker_blocks": 2}),
        ("PNG", {"compress_level": 1}),
        ("JPEG", {"quality": 95, "subsampling": "4:4:4"}),
        ("JPEG", {"quality": 90, "restart_marker_blocks": lines}),
        ("WEBP", {"lossless": True, "method": 0}),
        ("JPEG", {"quality": 90, "exif": exif}),
        ("JPEG", {"quality": 90, "exif": exif, "restart_marker_blocks": 1}),
        ("JPEG", {"quality": 90, "progressive": True}),
        ("JPEG", {"quality": 90, "restart_marker_blocks": 1}),  # of four colors
        ("JPEG", {"quality": 90, "subsampling": "4:2:2"}),
    ]
    form, options = kinds[number % len(kinds)]
    image = image.convert("CMYK") if number % len(kinds) == 9 else image
    image.save(buffer, form, **options)
    return buffer.getvalue()


def stored_files(path: Path) -> list[bytes]:
    table = tsds.open(path)["train"].table("image")
    return [table["bytes"][start:stop].tobytes() for start, stop in itertools.pairwise(table.offsets.tolist())]


@pytest.fixture(scope="module")
def truths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Truth]:
    """One store of each encoding, and what is in them."""
    folder, found = tmp_path_factory.mktemp("oracle"), dict[str, Truth]()
    keypoints = tsds.Keypoints(("left eye", "right eye", "left ear", "right ear"), PAIRS)

    def convert(name: str, samples: Sequence[dict[str, Any]], **options: Any) -> Path:
        options = {"workers": 0, "keypoints": keypoints, "shard_nbytes": 3_000_000, **options}
        tsds.convert(Samples(samples, CLASSES), folder / f"{name}.tsds", tsds.ConvertOptions(**options))
        return folder / f"{name}.tsds"

    colors = [photograph(i, size) for i, size in enumerate(SIZES)]
    mixed = [photograph(i, size, 1 if i % 6 == 5 else 3) for i, size in enumerate(SIZES)]
    as_tensors = [torch.from_numpy(each).permute(2, 0, 1) for each in colors]
    samples = [annotated(i, each, mask=False) for i, each in enumerate(colors)]
    none, every = [False] * len(SIZES), [True] * len(SIZES)
    found["ragged"] = Truth(convert("ragged", samples, encoding="raw"), as_tensors, samples, none)
    for name, options in {"jpeg": {}, "zarr": {"layout": "zarr"}, "gray": {"color": "gray"}}.items():
        path = convert(name, samples, encoding="jpeg", **options)
        found[name] = Truth(path, [decoded(file) for file in stored_files(path)], samples, every)
    path = smart_store(folder / "smart.tsds", Samples(samples, CLASSES), keypoints=keypoints, shard_nbytes=3_000_000)
    files = stored_files(path)
    found["smart"] = Truth(path, [decoded(f) for f in files], samples, [f[:2] == b"\xff\xd8" for f in files])
    assert 0 < sum(found["smart"].is_jpeg) < len(SIZES)
    tiny = [photograph(i, size) for i, size in enumerate(TINY)]
    for name, pixels in (("source", mixed), ("tiny", tiny)):
        files = [file_of(i, each) for i, each in enumerate(pixels)]
        images = [decoded(file) for file in files]
        of_files = [annotated(i, image.permute(1, 2, 0).numpy(), mask=False) for i, image in enumerate(images)]
        of_files = [{**sample, "image": file} for sample, file in zip(of_files, files, strict=True)]
        images = [image.expand(3, -1, -1) for image in images]  # gray ones among others come as RGB
        path = convert(name, of_files, encoding="source")
        found[name] = Truth(path, images, of_files, [file[:2] == b"\xff\xd8" for file in files])
    for name, channels in (("raw", 3), ("raw gray", 1)):
        same = [photograph(i, ONE_SIZE, channels) for i in range(9)]
        samples = [annotated(i, each, mask=True) for i, each in enumerate(same)]
        images = [torch.from_numpy(each.reshape(*ONE_SIZE, channels)).permute(2, 0, 1) for each in same]
        path = convert(name, samples, encoding="raw")
        found[name] = Truth(path, images, samples, [False] * len(same))
    return found


# --- what a plan is to give -------------------------------------------------------------------------------------------


@dataclass
class Expected:
    """A sample as it is after some steps."""

    image: Tensor
    boxes: Any  #: tv_tensors.BoundingBoxes
    points: NDArray[np.float64]
    #: For each line and each column, those of the stored mask that it may show: one, two if its center lies exactly
    #: between them, or -1 where the mask was padded.
    lines: tuple[list[set[int]], list[set[int]]]
    #: Where the image lies on the canvas, x and y: canvas = zoom * image + shift; and what is seen of it.
    zoom: NDArray[np.float64] = field(default_factory=lambda: np.ones(2))
    shift: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    low: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    high: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    #: By how many pixels the edges may be beside that: a plan rounds them to pixels of the canvas at each resizing of a
    #: padded image, a later resizing makes more of it.
    rounded: NDArray[np.float64] = field(default_factory=lambda: np.zeros(2))
    resized: int = 0
    was_padded: bool = False  #: before it was resized

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.image.shape[1:]
        return height, width

    def crop(self, top: int, left: int, height: int, width: int) -> None:
        self.image = TF.crop(self.image, top, left, height, width)
        self.boxes = TF.crop(self.boxes, top, left, height, width)
        self.lines = self.lines[0][top : top + height], self.lines[1][left : left + width]
        self._move(1, (-left, -top))
        self.low, self.high = self.low.clip(0, (width, height)), self.high.clip(0, (width, height))

    def pad(self, left: int, top: int, right: int, bottom: int, fill: int) -> None:
        sides = [left, top, right, bottom]
        self.image, self.boxes = TF.pad(self.image, sides, fill=fill), TF.pad(self.boxes, sides)
        y, x = self.lines
        self.lines = [{-1}] * top + y + [{-1}] * bottom, [{-1}] * left + x + [{-1}] * right
        self._move(1, (left, top))

    def resize(self, height: int, width: int) -> None:
        if (height, width) == self.size:
            return
        zoom = np.array([width, height]) / self.size[::-1]
        is_padded = (self.low > 0) | (self.high < self.size[::-1])
        # Where it begins and how long it is, by 1/2 each; but it has a pixel at least.
        self.rounded = self.rounded * zoom + is_padded * (1 + ((self.high - self.low) * zoom < 1) / 2)
        self.was_padded |= bool(is_padded.any())
        self.image = TF.resize(self.image, [height, width], antialias=True)
        self.boxes = TF.resize(self.boxes, [height, width])
        self.lines = at_centers(self.lines[0], height), at_centers(self.lines[1], width)
        self._move(zoom, (0, 0))
        self.resized += 1

    def flip(self) -> None:
        self.image, self.boxes = TF.hflip(self.image), TF.hflip(self.boxes)
        self.lines = self.lines[0], self.lines[1][::-1]
        sign, width = np.array([-1, 1]), np.array([self.size[1], 0])
        self._move(sign, width)
        self.points = self.points[:, [1, 0, 3, 2]]
        (x1, y1), (x2, y2) = self.low, self.high
        self.low, self.high = np.array([x2, y1]), np.array([x1, y2])

    def _move(self, zoom: Any, shift: Any) -> None:
        self.points = self.points * zoom + shift
        self.zoom, self.shift = self.zoom * zoom, self.shift * zoom + shift
        self.low, self.high = self.low * zoom + shift, self.high * zoom + shift


def at_centers(lines: list[set[int]], count: int) -> list[set[int]]:
    """`count` lines instead of `lines`. The center of line n is at (n + 1/2) * len(lines) / count, in whole numbers."""
    places = (divmod((2 * n + 1) * len(lines), 2 * count) for n in range(count))
    return [lines[at] if beside else lines[at - 1] | lines[at] for at, beside in places]


def steps_of(plan: Any) -> list[Any]:
    return list(plan.transforms) if isinstance(plan, tsds.Compose) else [] if plan is None else [plan]


def expected_of(truth: Truth, row: int, plan: Any, epoch: int) -> Expected:
    """A sample after a plan, one step after the other."""
    sample, image = truth.samples[row], truth.images[row]
    height, width = image.shape[1:]
    boxes = tv_tensors.BoundingBoxes(torch.from_numpy(sample["boxes"]), format="XYXY", canvas_size=(height, width))
    lines = [{n} for n in range(height)], [{n} for n in range(width)]
    now = Expected(image, boxes, sample["keypoints"].astype(np.float64), lines, high=np.array([width, height], float))
    for number, step in enumerate(steps_of(plan)):
        row_bits = np.array([row], np.uint64)
        drawn_by = fold(plan.seed, number, row_bits) if isinstance(plan, tsds.Compose) else row_bits
        params = step.make_params(step.keys(drawn_by.view(np.int64), epoch), now.size)
        _take(step, now, {name: value[0].tolist() for name, value in params.items()})
    return now


def _take(step: Any, now: Expected, params: dict[str, Any]) -> None:
    height, width = now.size
    if isinstance(step, tsds.RandomResizedCrop):
        now.crop(*params["boxes"])
        now.resize(*step.size)
    elif isinstance(step, tsds.RandomCrop):
        now.pad(*step.padding, int(step.fill))
        now.crop(params["top"], params["left"], *step.size)
    elif isinstance(step, tsds.RandomHorizontalFlip):
        if params["flip"]:
            now.flip()
    elif isinstance(step, tsds.Resize):
        if isinstance(step.size, int):
            size = [step.size]
            now.resize(*TF.resize(torch.empty(1, height, width), size, max_size=step.max_size).shape[1:])
        else:
            now.resize(*step.size)
    elif isinstance(step, tsds.CenterCrop):
        tall, wide = step.size
        across, down = max(0, wide - width), max(0, tall - height)
        now.pad(across // 2, down // 2, (across + 1) // 2, (down + 1) // 2, int(step.fill))
        height, width = now.size
        now.crop(round((height - tall) / 2), round((width - wide) / 2), tall, wide)
    elif isinstance(step, tsds.transforms.Pad):
        now.pad(*step.padding, int(step.fill))
    else:
        assert isinstance(step, tsds.transforms.Letterbox)
        tall, wide = step.size
        zoom = min(tall / height, wide / width)
        fitted = min(tall, max(1, round(height * zoom))), min(wide, max(1, round(width * zoom)))
        now.resize(*fitted)
        down, across = tall - fitted[0], wide - fitted[1]
        now.pad(across // 2, down // 2, across - across // 2, down - down // 2, int(step.fill))


def is_scaled(step: Any) -> bool:
    """Whether a plan with this step decodes a JPEG file at 1/2, 1/4 or 1/8 where that is enough."""
    return isinstance(step, tsds.RandomCrop) or (isinstance(step, tsds.RandomResizedCrop) and not step.exact)


def check_pixels(got: Tensor, truth: Truth, row: int, now: Expected, case: dict[str, Any]) -> str:
    """Whether pixels are as near as they must be: see above. Returns how near that was."""
    assert got.shape == now.image.shape and got.dtype == torch.uint8
    if case["in_batch"] or not now.resized:
        assert torch.equal(got, now.image)
        return "copied"
    if now.resized > 1 or now.was_padded:
        _check_part(got, truth.images[row], now)
        return "several"
    scale = 1.0
    if truth.is_jpeg[row] and any(map(is_scaled, steps_of(case["plan"]))):
        scale = max(1.0, (1 / np.abs(now.zoom)).min())
    difference = np.abs(got.numpy().astype(float) - now.image.numpy())
    mean, most = difference.mean(), np.quantile(difference, 0.99)
    if scale >= 2:
        of_scale, step = min(2, int(math.log2(scale)) - 1), steepness(now.image.numpy())
        assert mean <= max((1, 1.4, 2)[of_scale], step / 4)
        assert most <= max((4, 6, 10)[of_scale], 2 * step)
        return "scaled"
    assert torch.equal(got, now.image)
    return "whole"


def steepness(image: NDArray[np.uint8]) -> float:
    """By how much neighboring pixels of an image (C, H, W) differ in the mean: what a shift by one would do."""
    steps = [np.abs(np.diff(image.astype(float), axis=axis)) for axis in (1, 2)]
    return float(sum(step.mean() for step in steps if step.size))


def _check_part(got: Tensor, image: Tensor, now: Expected) -> None:
    """Whether what is seen is about the right part of an image, which Pillow resizes for it."""
    margin = np.ceil(now.rounded).astype(int).clip(1)
    low, high = np.ceil(now.low).astype(int) + margin, np.floor(now.high).astype(int) - margin
    if (high - low < 4).any() or (now.high - now.low).min() / np.abs(now.zoom).max() < 1e-9:
        return
    edges = np.sort((np.stack([low, high]) - now.shift) / now.zoom, axis=0)  # in pixels of the image
    box = (edges.clip(0, image.shape[:0:-1])).reshape(4)
    if (box[2:] - box[:2] < 2).any():
        return
    pixels = Image.fromarray(image.permute(1, 2, 0).squeeze(2).numpy())
    part = np.asarray(pixels.resize(tuple(high - low), Image.Resampling.BILINEAR, tuple(box)))
    part = part.reshape(*part.shape[:2], -1)
    part = part[:, ::-1] if now.zoom[0] < 0 else part
    seen = got[:, low[1] : high[1], low[0] : high[0]].permute(1, 2, 0).numpy()
    assert np.abs(seen.astype(float) - part).mean() <= max(8, max(2, *now.rounded) * steepness(part.transpose(2, 0, 1)))


def check_mask(got: NDArray[np.uint8], stored: NDArray[np.uint8], now: Expected) -> None:
    """Whether each pixel of a mask (H, W) is one of those that its center may lie in."""
    assert got.shape == now.size and got.dtype == np.uint8
    padded = np.pad(stored, (0, 1), constant_values=255)  # -1 is its last line
    y, x = (
        [[sorted(each)[n % len(each)] for each in lines] for n in range(max(map(len, lines)))] for lines in now.lines
    )
    assert np.any([got == padded[np.ix_(rows, columns)] for rows in y for columns in x], axis=0).all()


def check_objects(got: dict[str, Any], truth: Truth, row: int, now: Expected, *, in_batch: bool) -> int:
    """Boxes, labels and keypoints of those objects of which something is seen. Returns how many those are."""
    labels = truth.samples[row]["labels"].tolist()
    boxes = np.asarray(now.boxes, np.float64)
    sides = (boxes[:, 2:] - boxes[:, :2]).min(1, initial=np.inf)
    is_near = in_batch or not (now.resized > 1 or now.was_padded)
    beside = 0.02 if is_near else max(1.5 * max(1.0, *np.abs(now.zoom)), *now.rounded)
    relative = 0 if is_near else 0.01
    found = got["labels"].tolist()
    assert found == [label for label in labels if label in found]  # in their order, each once
    for label, side in zip(labels, sides.tolist(), strict=True):
        assert label in found if side > beside else label not in found if side < -beside or side == 0 else True
    kept = [labels.index(label) for label in found]
    np.testing.assert_allclose(got["boxes"].numpy(), boxes[kept], rtol=0, atol=beside)
    points, found_points = now.points[kept], got["keypoints"].numpy()
    np.testing.assert_array_equal(np.isnan(found_points), np.isnan(points))
    if kept:  # far outside of the image, a rounded size counts more
        outside = np.maximum(0, np.maximum(now.low - points, points - now.high)) / np.maximum(1e-9, now.high - now.low)
        limit = beside * (1 + 2 * outside * (not is_near)) + relative * np.abs(points)
        assert (np.abs(found_points - points) <= limit)[~np.isnan(points)].all()
    height, width = now.size
    limits = got["boxes"].numpy()
    assert (limits >= 0).all() and (limits <= [width, height, width, height]).all()
    return len(found)


# --- what is drawn ----------------------------------------------------------------------------------------------------


def plans() -> dict[bool, st.SearchStrategy[Any]]:
    """For batches and for decoding: one step, or several, all of which fill with one color."""
    fill = st.shared(st.sampled_from([0, 0, 7, 255]), key="fill")
    short = st.sampled_from(SHORT) | st.integers(8, 300)
    pair = st.tuples(short, short)
    size = short | pair
    seeds = st.integers(0, 3)
    sides = st.integers(0, 20) | st.tuples(*[st.integers(0, 30)] * 4)
    step = st.one_of(
        st.builds(tsds.Resize, short, max_size=st.none()),
        st.builds(lambda n, more: tsds.Resize(n, max_size=n + more), short, st.integers(1, 200)),
        st.builds(tsds.Resize, pair),
        st.builds(tsds.CenterCrop, size, fill=fill),
        st.builds(tsds.RandomCrop, st.integers(8, 150), sides, fill=fill, seed=seeds),
        st.builds(
            *(tsds.RandomResizedCrop, size, st.sampled_from([(0.08, 1.0), (0.3, 1.0), (0.02, 0.1)])),
            **{"seed": seeds, "exact": st.sampled_from([None, None, True])},
        ),
        st.builds(tsds.transforms.Letterbox, size, fill=fill),
        st.builds(tsds.transforms.Pad, sides, fill=fill),
        st.builds(tsds.RandomHorizontalFlip, st.sampled_from([0.5, 1.0]), st.just(PAIRS), seed=seeds),
    )
    usual = st.builds(  # of validation, and of training
        lambda n, cut, last, flip: tsds.Compose([tsds.Resize(n), last(max(1, n * cut // 8)), *flip]),
        st.sampled_from(SHORT),
        st.integers(5, 8),
        st.sampled_from([tsds.CenterCrop, tsds.RandomCrop]),
        st.lists(st.builds(tsds.RandomHorizontalFlip, flip_pairs=st.just(PAIRS)), max_size=1),
    )
    several = st.builds(lambda steps, n: tsds.Compose(steps, seed=n), st.lists(step, min_size=2, max_size=4), seeds)
    kinds = {"none": st.none(), "step": step, "usual": usual, "several": several}
    often = {True: "step usual several", False: "none step usual usual usual several several"}
    return {in_batch: st.sampled_from(each.split()).flatmap(kinds.__getitem__) for in_batch, each in often.items()}


PLANS = plans()


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    """A store, some of its rows, a plan, and how they are loaded."""
    name = draw(st.sampled_from(["ragged", "jpeg", "jpeg", "source", "source", "smart", "zarr", "gray", "raw"]))
    name = draw(st.sampled_from(["raw", "raw gray"])) if name == "raw" else name
    in_batch = name.startswith("raw") and draw(st.booleans())
    several = name.startswith("raw")
    workers = draw(st.sampled_from([0] * 15 + [1, 2]))
    images = draw(st.sampled_from(["list", "padded"]))
    return_as = draw(st.sampled_from(["dict", "tuple"] if in_batch else ["dict", "dict", "tuple", "torchvision"]))
    some = st.lists(st.sampled_from([*FIELDS, *["mask"] * several]), min_size=1, unique=True)
    at_least = {"torchvision": ["image", "objects"]}.get(return_as, draw(st.sampled_from([[], ["image"], ["image"]])))
    fields = draw(st.none() | some.map(lambda each: list(dict.fromkeys([*each, *at_least]))))
    has_images = fields is None or "image" in fields
    in_batch, images = in_batch and has_images, images if has_images else "list"
    return {
        "store": name,
        "fields": fields,
        "rows": draw(st.lists(st.integers(0, 8 if several else len(SIZES) - 1), min_size=2, max_size=6)),
        "plan": draw(PLANS[in_batch]) if has_images else None,
        "in_batch": in_batch,
        "of_dataset": draw(st.booleans()),
        "epoch": draw(st.integers(0, 2)),
        "return_as": return_as,
        "loader": {
            "batch_size": draw(st.integers(1, 7)),
            "shuffle": draw(st.booleans()),
            "drop_last": draw(st.booleans()),
            "seed": draw(st.integers(0, 5)),
            "collate": "packed" if in_batch else draw(st.sampled_from(["list", "padded", "packed"])),
            "collate_images": "list" if in_batch else images,
            "size_divisor": 1 if in_batch or images == "list" else draw(st.sampled_from([1, 8, 32])),
            **({"num_workers": workers} if workers else {"num_threads": draw(st.sampled_from([1, 2, 4]))}),
        },
    }


def objects_of(objects: Any, number: int, how: str) -> dict[str, Any]:
    """Those of one sample of a batch."""
    if how == "list":
        found: dict[str, Any] = objects[number]
        return found
    if how == "packed":
        start, stop = objects["offsets"][number : number + 2].tolist()
        return {name: value[start:stop] for name, value in objects.items() if name != "offsets"}
    inside = objects["mask"][number]
    assert (objects["labels"][number][~inside] == -100).all() and not objects["boxes"][number][~inside].any()
    return {name: value[number][inside] for name, value in objects.items() if name != "mask"}


def check(truths: dict[str, Truth], case: dict[str, Any]) -> set[str]:
    """One case, or a part of it, if a plan cannot be had of its images. Returns how near the pixels had to be."""
    truth, plan, options = truths[case["store"]], case["plan"], case["loader"]
    rows, epoch, return_as = np.array(case["rows"]), case["epoch"], case["return_as"]
    try:
        wanted = {row: expected_of(truth, row, plan, epoch) for row in set(rows.tolist())}
        no_room = False
    except ValueError as error:  # of make_params: the crop is larger than the image
        assert "RandomCrop: expected images of at least" in str(error)
        no_room = True
    dataset = tsds.StoreDataset(truth.path, fields=case["fields"], return_as=return_as).subset(rows)
    where = {"batch_transform": plan} if case["in_batch"] else {} if case["of_dataset"] else {"decode": plan}
    dataset = dataset.with_decode(plan) if case["of_dataset"] and not case["in_batch"] else dataset
    loader = tsds.DataLoader(dataset, **options, **where)
    loader.set_epoch(epoch)
    if no_room:
        enough = len(rows) >= options["batch_size"] or not options["drop_last"]
        if enough and not options["drop_last"]:
            with pytest.raises(ValueError, match="RandomCrop: expected images of at least"):
                list(loader)
        return set()
    order = np.arange(len(rows))
    if options["shuffle"]:
        np.random.Generator(np.random.PCG64(np.random.SeedSequence(options["seed"], spawn_key=(epoch,)))).shuffle(order)
    size = options["batch_size"]
    stop = len(order) // size * size if options["drop_last"] else len(order)
    batches = [rows[order[first : first + size]].tolist() for first in range(0, stop, size)]
    found = list(loader)
    assert len(found) == len(batches) == len(loader)
    return {
        near
        for batch, chosen in zip(found, batches, strict=True)
        for near in _check_batch(batch, chosen, wanted, truth, case)
    }


def members_of(batch: Any, case: dict[str, Any], *, has_masks: bool) -> dict[str, Any]:
    """The members of a batch by their names. They must be exactly those that the case asks for."""
    usual = ["image", "label"] if case["return_as"] == "tuple" else [*FIELDS[:-1], *["mask"] * has_masks]
    names = set(case["fields"] or usual)
    others = [name for name in case["fields"] or names if name != "image"]
    is_planned = case["plan"] is not None and not case["in_batch"]
    if case["return_as"] == "dict":
        added = {"objects_dropped"} if is_planned and "objects" in names else set()
        added |= {"image_mask", "image_size"} if case["loader"]["collate_images"] == "padded" else set()
        assert type(batch) is dict and batch.keys() == names | added
        if "image_mask" in added:
            return {**batch, "image": (batch["image"], batch["image_mask"], batch["image_size"])}
        return batch
    assert type(batch) is tuple
    if case["return_as"] == "torchvision":
        return dict(zip(("image", "objects"), batch, strict=True))
    if "objects" in names:
        image, target = batch
        assert ("image" in names) == (image is not None)
        members = {"objects": target} if others == ["objects"] else target
        assert members.keys() == set(others)
        return {"image": image, **members}
    return dict(zip([*["image"] * ("image" in names), *others], batch, strict=True))


def _check_batch(
    batch: Any, rows: list[int], wanted: dict[int, Expected], truth: Truth, case: dict[str, Any]
) -> set[str]:
    options, in_batch = case["loader"], case["in_batch"]
    how, is_padded = options["collate"], options["collate_images"] == "padded"
    members = members_of(batch, case, has_masks="mask" in truth.samples[0])
    images, near = members.get("image"), set()
    dropped = []
    for number, row in enumerate(rows):
        now = wanted[row]
        height, width = now.size
        if "label" in members:
            assert members["label"][number] == truth.samples[row]["label"]
        if "age" in members:
            assert members["age"][number] == truth.samples[row]["age"]
        if "key" in members:
            assert members["key"][number] == f"train/{row:05}"
        if is_padded:
            pixels, inside, sizes = (each[number] for each in images)
            assert sizes.tolist() == [height, width] and int(inside.sum()) == height * width
            assert inside[:height, :width].all() and not pixels[:, ~inside].any()
            most = [max(wanted[each].size[axis] for each in rows) for axis in (0, 1)]
            divisor = options["size_divisor"]
            assert list(pixels.shape[1:]) == [-(-n // divisor) * divisor for n in most]
            pixels = pixels[:, :height, :width]
        else:
            pixels = None if images is None else images[number]
        if case["return_as"] == "torchvision":
            assert pixels.dtype == torch.float32
            pixels = (pixels * 255).round().to(torch.uint8)
        if pixels is not None:
            near.add(check_pixels(pixels, truth, row, now, case))
        if "objects" in members:
            own = objects_of(members["objects"], number, how)
            if case["return_as"] == "torchvision":
                places, is_there = own["keypoints"][..., :2], own["keypoints"][..., 2:]
                assert ((is_there == 1) | ((is_there == 0) & (places == 0))).all()
                own = {**own, "labels": own["labels"] - 1, "keypoints": places.where(is_there == 1, torch.nan)}
                x1, y1, x2, y2 = own["boxes"].unbind(1)
                torch.testing.assert_close(own["area"], (x2 - x1) * (y2 - y1))
                assert not own["iscrowd"].any() and (how != "list" or own["image_id"] == row)
            dropped.append(len(now.boxes) - check_objects(own, truth, row, now, in_batch=in_batch))
        if "mask" in members:
            mask = members["mask"][number].numpy()
            assert (mask[height:] == 255).all() and (mask[:, width:] == 255).all()
            if in_batch or not (now.resized > 1 or now.was_padded):
                check_mask(mask[:height, :width], truth.samples[row]["mask"], now)
    if "objects_dropped" in members:
        assert batch["objects_dropped"].tolist() == dropped
    return near


STEPS = {
    "crop": tsds.RandomResizedCrop((40, 56), scale=(0.05, 1.0), seed=3),
    "padded crop": tsds.RandomCrop((40, 30), padding=20, fill=7, seed=1),
    "validation": tsds.Compose([tsds.Resize(96), tsds.CenterCrop((80, 84))]),
    "training": tsds.Compose([tsds.RandomResizedCrop(48), tsds.RandomHorizontalFlip(flip_pairs=PAIRS)], seed=2),
    "stretched": tsds.Resize((48, 40)),
    "limited": tsds.Resize(30, max_size=50),
    "middle": tsds.CenterCrop((33, 70), fill=5),
    "padded": tsds.transforms.Pad((1, 2, 3, 4), fill=9),
    "mirrored": tsds.RandomHorizontalFlip(1.0, flip_pairs=PAIRS),
    "letterbox": tsds.transforms.Letterbox(64),
    "moved": tsds.Compose([tsds.RandomHorizontalFlip(flip_pairs=PAIRS), tsds.transforms.Pad(2), tsds.CenterCrop(18)]),
}


RANDOM = tsds.RandomResizedCrop, tsds.RandomCrop, tsds.RandomHorizontalFlip


@pytest.mark.drawn(12)
@pytest.mark.parametrize("plan", STEPS.values(), ids=STEPS)
@pytest.mark.parametrize("store", ["source", "tiny", "raw", "raw gray", "raw in batches"])
def test_steps_are_torchvisions(truths: dict[str, Truth], store: str, plan: Any) -> None:
    """Images of files of all sorts and sizes, and batches, in several epochs."""
    name, in_batch = store.removesuffix(" in batches"), store.endswith("in batches")
    count = len(truths[name].images)
    case = {
        "store": name,
        "fields": None,
        "rows": [row for row in range(count) if row not in range(9, 14)],
        "plan": plan,
        "in_batch": in_batch,
        "of_dataset": False,
        "return_as": "dict",
        "loader": {
            "batch_size": 7,
            "shuffle": True,
            "drop_last": False,
            "seed": 0,
            "collate": "packed",
            "collate_images": "list",
            "size_divisor": 1,
        },
    }
    draws = any(isinstance(step, RANDOM) for step in steps_of(plan))
    for epoch in (0, 2) if draws else (0,):
        check(truths, {**case, "epoch": epoch})


phases = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]  # to explain takes minutes
quick = settings(max_examples=40, deadline=None, phases=phases, suppress_health_check=list(HealthCheck))


@quick
@given(cases())
def test_batches_are_those_of_pillow_torchvision_and_numpy(truths: dict[str, Truth], case: dict[str, Any]) -> None:
    check(truths, case)


@pytest.mark.drawn(1, of="oracles")
@pytest.mark.timeout(0)  # as many cases as are asked for
@seed(int(os.environ.get("TSDS_ORACLE_SEED", "0")))
@settings(quick, max_examples=int(os.environ.get("TSDS_ORACLE", "50")), database=None)
@given(cases())
def test_many_batches(truths: dict[str, Truth], case: dict[str, Any]) -> None:
    check(truths, case)
