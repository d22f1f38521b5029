"""Rows that compiled kernels gather, move, mirror and normalize are those that NumPy and torch make, to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds import native
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.transformed import Transformed
from tensorstore_ds.reading.columns import Column

compiled = pytest.mark.skipif(native.core is None, reason="the kernels are not compiled here")
SIZES = [*range(1, 68), 127, 128, 129, 784, 1000, 3072, 3073, 4095, 4096, 5000, 9999, 12288, 70001]


@pytest.fixture(params=["fast", "plain", "none"])
def variant(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What takes rows: the kernels for this processor, those for any, or NumPy."""
    core = native.core
    if core is None and request.param != "none":
        pytest.skip("the kernels are not compiled here")
    if request.param == "none":
        monkeypatch.setattr(native, "core", None)
    else:
        core.use_plain(request.param == "plain")
    yield request.param
    if core is not None:
        core.use_plain(False)


def column_of(table: NDArray[Any], edges: list[int], load: Callable[[int], Any] | None = None) -> Column:
    """A column of these rows, in shards that end at `edges`."""
    starts = [0, *edges][: len(edges)]
    lengths = [stop - start for start, stop in zip(starts, edges, strict=True)]
    spec = ArraySpec(table.dtype.name, table.shape[1:])
    return Column("rows", spec, lengths, load or (lambda shard: table[starts[shard] : edges[shard]]))


# --- gather -------------------------------------------------------------------------------------------------------


def test_rows_of_every_size_are_gathered(variant: str) -> None:
    rng = np.random.default_rng(0)
    for nbytes in SIZES:
        table = rng.integers(0, 256, (60, nbytes), np.uint8)
        for edges in ([60], [7, 7, 31, 60]):
            column = column_of(table, edges)
            for count in (0, 1, 5, 200):
                rows = rng.integers(-60, 60, count)
                np.testing.assert_array_equal(column.take(rows), table[rows])
                np.testing.assert_array_equal(column.take(np.sort(rows)), table[np.sort(rows)])


def test_a_batch_larger_than_caches_is_gathered_at_any_place(variant: str) -> None:
    rng = np.random.default_rng(0)
    for nbytes in (4096, 5000, 65536, 100_003):
        table = rng.integers(0, 256, (90, nbytes), np.uint8)
        rows = rng.integers(0, 90, 6 * 1024**2 // nbytes)
        memory = np.full(rows.size * nbytes + 200, 7, np.uint8)
        for start in (0, 1, 33, 100):
            out = memory[start : start + rows.size * nbytes].reshape(rows.size, nbytes)
            column_of(table, [40, 90]).take(rows, out=out)
            np.testing.assert_array_equal(out, table[rows])
            assert (memory[:start] == 7).all() and (memory[start + out.nbytes :] == 7).all()
            memory[...] = 7


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", "float32", "uint16"])
def test_rows_of_every_dtype_and_shape_are_gathered(variant: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(0, 2, (20, 3, 5)).astype(dtype)
    column = column_of(table, [11, 20])
    for rows in (3, -1, [], [1, 1], np.arange(20)[::-3], np.array([[1, 2], [19, 0]]), np.array([4], np.int8)):
        taken = column.take(rows)
        wanted = table[np.asarray(rows, np.int64)]
        assert taken.dtype == table.dtype and taken.shape == wanted.shape
        np.testing.assert_array_equal(taken, wanted)
    np.testing.assert_array_equal(column_of(table[:, 0, 0].copy(), [20]).take([3, 3]), table[[3, 3], 0, 0])
    assert column_of(np.zeros((4, 0), np.uint8), [4]).take([1, 2]).shape == (2, 0)


def test_a_row_outside_is_an_error(variant: str) -> None:
    column = column_of(np.zeros((6, 10), np.uint8), [2, 6])
    for rows, row in (([0, 6], 6), ([-7, 5], -7), ([2**62], 2**62), ([0, -(2**63)], -(2**63))):
        with pytest.raises(IndexError, match=rf"rows: row {row} is outside of \[0, 6\)"):
            column.take(np.array(rows))
    for edges in ([0], []):
        empty = column_of(np.zeros((0, 10), np.uint8), edges)
        assert empty.take([]).shape == (0, 10)
        with pytest.raises(IndexError):
            empty.take([0])


def test_shards_are_mapped_when_a_row_of_them_is_asked_for(variant: str) -> None:
    table, loaded = np.arange(40).reshape(8, 5), list[int]()

    def load(shard: int) -> NDArray[Any]:
        loaded.append(shard)
        return table[2 * shard : 2 * shard + 2]

    column = column_of(table, [2, 4, 6, 8], load)
    for rows, wanted in (([5, 4], [2]), ([5, 0], [2, 0]), ([0, 5, 1], [2, 0]), ([7, 3], [2, 0, 1, 3])):
        np.testing.assert_array_equal(column.take(rows), table[rows])
        assert loaded == wanted


@compiled
def test_a_kernel_takes_no_buffers_that_do_not_fit() -> None:
    core, rows = native.core, np.zeros(3, np.int64)
    for edges, nbytes in (([0], 4), ([1, 2], 4), ([0, 3, 2], 4), ([0, 3], 0), ([0, 2**62], 4)):
        with pytest.raises(ValueError, match="table: expected"):
            core.table(np.array(edges), nbytes)
    table = core.table(np.array([0, 5, 9]), 4)
    for shard, nbytes in ((-1, 20), (2, 20), (0, 16), (1, 20), (0, 24)):
        with pytest.raises(ValueError, match="add: expected"):
            core.add(table, shard, np.zeros(nbytes, np.uint8))
    assert core.gather(table, rows, np.zeros(12, np.uint8)) == 0  # the shard is not there
    core.add(table, 0, np.full(20, 1, np.uint8))
    core.add(table, 0, np.full(20, 2, np.uint8))  # the first one stays
    out = np.zeros(12, np.uint8)
    assert core.gather(table, rows, out) == 3 and (out == 1).all()
    assert core.gather(table, np.array([0, 5, 0]), out) == 1
    for wrong in (np.zeros(11, np.uint8), np.zeros(16, np.uint8), np.zeros(0, np.uint8)):
        with pytest.raises(ValueError, match="gather: expected"):
            core.gather(table, rows, wrong)
    with pytest.raises(ValueError, match="PyCapsule"):
        core.gather(object(), rows, out)


@compiled
def test_a_table_keeps_the_memory_of_its_shards() -> None:
    table = native.core.table(np.array([0, 1000]), 1000)
    native.core.add(table, 0, np.full(10**6, 5, np.uint8))
    out = np.zeros(10**6, np.uint8)
    assert native.core.gather(table, np.arange(1000), out) == 1000 and (out == 5).all()


# --- images -------------------------------------------------------------------------------------------------------


def placed(image: NDArray[Any], offset: Any, first: Any, last: Any, flip: bool, fill: int, size: Any) -> NDArray[Any]:
    """What a canvas shows of an image, pixel by pixel."""
    canvas = np.full((*size, image.shape[2]), fill, np.uint8)
    for y, x in itertools.product(*map(range, size)):
        source = y - offset[0], x - offset[1]
        inside = all(0 <= n < length for n, length in zip(source, image.shape, strict=False))
        if inside and all(a <= n < b for n, a, b in zip((y, x), first, last, strict=True)):
            canvas[y, x] = image[source]
    return canvas[:, ::-1] if flip else canvas


@compiled
@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_images_are_moved_mirrored_and_looked_up(channels: int, is_plain: bool) -> None:
    rng = np.random.default_rng(channels)
    native.core.use_plain(is_plain)
    sizes = [((9, 7), (9, 7)), ((28, 28), (28, 28)), ((6, 40), (5, 33)), ((1, 1), (3, 2)), ((5, 18), (9, 50))]
    for image, canvas in sizes:
        images = rng.integers(0, 256, (10, *image, channels), np.uint8)
        table = native.core.table(np.array([0, 4, 10]), images[0].nbytes)
        native.core.add(table, 0, images[:4])
        native.core.add(table, 1, images[4:])
        rows, flip = rng.integers(-10, 10, 40), rng.integers(0, 2, 40) > 0
        offset, first, last = rng.integers(-8, 9, (2, 40)), rng.integers(-3, 4, (2, 40)), rng.integers(2, 60, (2, 40))
        offset[:, :5], first[:, :5], last[:, :5] = 0, -1, 1000
        offset[:, 5], offset[:, 6], first[:, 7], last[:, 8] = 2**62, -(2**62), 2**62, -(2**62)
        args = (offset, first, last, flip)
        wanted = [placed(images[r], *each, 17, canvas) for r, *each in zip(rows, *(a.T for a in args), strict=True)]
        for levels, factors, dtype in looks(channels, rng):
            out = np.zeros((40, *canvas, channels), dtype)
            levels_bits = None if levels is None else levels
            done = native.core.small(
                table, (*image, channels), rows, *args, 17, levels_bits, factors, canvas, out.itemsize, out
            )
            assert done == 40
            looked_up = np.stack(wanted) if levels is None else levels[np.arange(channels), np.stack(wanted)]
            np.testing.assert_array_equal(out, looked_up)
    native.core.use_plain(False)


def looks(channels: int, rng: np.random.Generator) -> Iterator[tuple[Any, Any, str]]:
    """Tables of levels as their bits, with factors that give them or do not, and the dtype of these bits."""
    yield None, None, "uint8"
    yield rng.integers(0, 256, (channels, 256)).astype(np.uint8), None, "uint8"
    for dtype in ("uint16", "uint32"):
        yield rng.integers(0, 2**16, (channels, 256)).astype(dtype), None, dtype
    factors = rng.normal(0, 1, (2, channels)).astype(np.float32)
    values = np.arange(256, dtype=np.float32) * factors[0][:, None] + factors[1][:, None]
    yield values.view(np.uint32), factors, "uint32"
    yield values.view(np.uint32), factors + np.float32(0.1), "uint32"  # the table counts
    for half in (torch.bfloat16, torch.float16):
        yield torch.from_numpy(values).to(half).view(torch.int16).numpy().view(np.uint16), factors, "uint16"


@compiled
def test_large_images_are_looked_up_some_lines_at_a_time() -> None:
    rng = np.random.default_rng(0)
    for shape, size in (((90, 100, 3), (95, 90)), ((3, 9000, 2), (3, 9001))):
        images = rng.integers(0, 256, (3, *shape), np.uint8)
        table = native.core.table(np.array([0, 3]), images[0].nbytes)
        native.core.add(table, 0, images)
        args = [np.array(n) for n in ([[2, -3, 0]] * 2, [[0] * 3] * 2, [[10**6] * 3] * 2, [False, True, True])]
        levels = rng.integers(0, 2**30, (shape[2], 256)).astype(np.uint32)
        out = np.zeros((3, *size, shape[2]), np.uint32)
        assert native.core.small(table, shape, np.arange(3), *args, 3, levels, None, size, 4, out) == 3
        for i in range(3):
            wide = np.full((110, shape[1] + 20, shape[2]), 3, np.uint8)
            y, x = 5 + args[0][:, i]
            wide[y : y + shape[0], x : x + shape[1]] = images[i]
            wanted = wide[5 : 5 + size[0], 5 : 5 + size[1]]
            wanted = wanted[:, ::-1] if args[3][i] else wanted
            np.testing.assert_array_equal(out[i], levels[np.arange(shape[2]), wanted])


@compiled
def test_no_buffers_of_images_that_do_not_fit() -> None:
    images = np.zeros((4, 5, 6, 3), np.uint8)
    table = native.core.table(np.array([0, 4]), 90)
    native.core.add(table, 0, images)
    pair, flip = np.zeros((2, 2), np.int64), np.zeros(2, bool)
    good: dict[str, Any] = {
        "image": (5, 6, 3),
        "rows": np.array([0, 3]),
        "offset": pair,
        "first": pair,
        "last": pair + 9,
        "flip": flip,
        "fill": 0,
        "levels": np.zeros((3, 256), np.float32),
        "factors": np.zeros((2, 3), np.float32),
        "canvas": (5, 6),
        "item": 4,
        "out": np.zeros((2, 5, 6, 3), np.float32),
    }
    assert native.core.small(table, *good.values()) == 2
    odd = np.zeros(2 * 90 * 4 + 1, np.uint8)[1:]
    for name, wrong in (
        ("image", (5, 6, 4)),
        ("image", (-5, -6, 3)),
        ("image", (90, 1, 1)),
        ("rows", np.zeros(3, np.int64)),
        ("rows", np.zeros(15, np.uint8)),
        ("offset", pair[:1]),
        ("first", np.zeros((2, 3), np.int64)),
        ("last", np.zeros(0, np.int64)),
        ("flip", np.zeros(3, bool)),
        ("levels", np.zeros((3, 255), np.float32)),
        ("levels", None),
        ("factors", np.zeros((2, 2), np.float32)),
        ("canvas", (5, 7)),
        ("canvas", (0, 6)),
        ("canvas", (2**40, 2**40)),
        ("item", 2),
        ("item", 3),
        ("item", 0),
        ("out", np.zeros((2, 5, 6, 2), np.float32)),
        ("out", odd),
    ):
        with pytest.raises(ValueError, match="small: expected"):
            native.core.small(table, *{**good, name: wrong}.values())
    assert native.core.small(table, *{**good, "rows": np.array([0, 4])}.values()) == 1


# --- the loader ---------------------------------------------------------------------------------------------------


class Counting:
    """The compiled kernels, and how often images were moved."""

    def __init__(self, core: Any) -> None:
        self.core, self.moved = core, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def small(self, *args: Any) -> int:
        self.moved += 1
        done: int = self.core.small(*args)
        return done


@pytest.fixture(scope="module", params=[(28, 28, 1), (12, 10, 3)], ids=str)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of noise in several shards."""
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, request.param, np.uint8), "label": row % 7} for row in range(70)]
    path = tmp_path_factory.mktemp("rows") / "s.tsds"
    store_of(path, samples, tuple("abcdefg"), shard_nbytes=30 * samples[0]["image"].nbytes)
    assert tsds.open(path)["train"].column("image").shards > 1
    return path


def plans() -> dict[str, list[Any]]:
    """Steps that only move, by name."""
    return {
        "flip": [tsds.RandomHorizontalFlip()],
        "padded crop": [tsds.RandomCrop((12, 10), padding=(3, 2), fill=9)],
        "crop and flip": [tsds.RandomCrop((7, 9)), tsds.RandomHorizontalFlip()],
        "flip and uneven crop": [tsds.RandomHorizontalFlip(), tsds.RandomCrop(10, padding=(4, 1, 0, 3))],
        "all": [
            tsds.CenterCrop((9, 10)),
            tsds.RandomHorizontalFlip(),
            tsds.transforms.Pad((1, 2, 3, 4)),
            tsds.RandomCrop((8, 9)),
            tsds.RandomHorizontalFlip(seed=3),
            tsds.CenterCrop(15),
        ],
    }


def normalized(channels: int) -> dict[str, list[Any]]:
    """Steps behind them, by name."""
    mean, std = [0.1, 0.485, 0.9][:channels], [0.229, 0.3, 0.0001][:channels]
    dtypes = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
    return {
        "": [],
        **{str(dtype): [tsds.Normalize(mean, std, dtype=dtype)] for dtype in dtypes},
        "and more": [
            tsds.Normalize(mean, std),
            tsds.transforms.RandomErasing(1.0),
            tsds.RandomCrop(6, padding=1, fill=0.5),
        ],
        "of colors": [tsds.transforms.ColorJitter(0.5), tsds.Normalize(mean, std)],
    }


def epoch_of(dataset: Any, core: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """The batches of the second epoch, with these kernels or without any."""
    with monkeypatch.context() as patched:
        patched.setattr(native, "core", core)
        loader = tsds.DataLoader(dataset, 16, shuffle=True, **options)
        loader.set_epoch(1)
        return list(loader)


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    """Whether batches are equal, in their bits, types and memory."""
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        ours, theirs = (each if isinstance(each, dict) else dict(enumerate(each)) for each in (ours, theirs))
        assert list(ours) == list(theirs)
        for a, b in zip(ours.values(), theirs.values(), strict=True):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
            assert torch.equal(a.contiguous().view(bits), b.contiguous().view(bits))


@pytest.mark.drawn(3)
@compiled
@pytest.mark.parametrize("name", plans())
def test_the_loader_gives_the_same_with_and_without_kernels(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = tsds.StoreDataset(path)
    channels = dataset.split.fields["image"].spec.shape[2]  # type: ignore[attr-defined]
    for after, more in normalized(channels).items():
        counting = Counting(native.core)
        options: dict[str, Any] = {"batch_transform": tsds.Compose(plans()[name] + more, seed=5), "num_threads": 2}
        found = epoch_of(dataset, counting, monkeypatch, **options)
        assert counting.moved >= 1, after
        assert_equal(found, epoch_of(dataset, None, monkeypatch, **options))
        decoded = dataset.with_decode(tsds.Compose(plans()[name], seed=2))
        if not more:
            options = {"num_threads": 2}
        counting.moved = 0
        found = epoch_of(decoded, counting, monkeypatch, **options)
        assert counting.moved >= 1, after
        assert_equal(found, epoch_of(decoded, None, monkeypatch, **options))


@compiled
def test_single_steps_tuples_subsets_and_views_are_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tsds.StoreDataset(path)
    channels = whole.split.fields["image"].spec.shape[2]  # type: ignore[attr-defined]
    normalize = tsds.Normalize([0.5] * channels, [0.25] * channels)
    flip = tsds.RandomHorizontalFlip()
    for dataset, transform in (
        (whole, flip),
        (whole, normalize),
        (tsds.StoreDataset(path, fields=["image"]), tsds.Compose([flip, normalize])),
        (tsds.StoreDataset(path, return_as="tuple").subset(np.arange(60)[::-2]), tsds.Compose([flip])),
        (tsds.StoreDataset(path, decode=[flip, tsds.transforms.Pad(2)]), None),
    ):
        counting = Counting(native.core)
        found = epoch_of(dataset, counting, monkeypatch, batch_transform=transform)
        assert counting.moved >= 1
        assert_equal(found, epoch_of(dataset, None, monkeypatch, batch_transform=transform))


@compiled
def test_what_is_no_move_is_left_to_the_transforms(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tsds.StoreDataset(path)
    for steps in (
        [tsds.RandomCrop(10, padding=1, padding_mode="reflect")],
        [tsds.RandomCrop(10, padding=1, fill=0.5)],
        [tsds.transforms.Pad(1, fill=3), tsds.transforms.Pad(1)],
        [tsds.Resize((9, 9)), tsds.RandomHorizontalFlip()],
        [tsds.Compose([tsds.RandomHorizontalFlip()])],
    ):
        counting = Counting(native.core)
        found = epoch_of(dataset, counting, monkeypatch, batch_transform=tsds.Compose(steps))
        assert counting.moved == 0
        assert_equal(found, epoch_of(dataset, None, monkeypatch, batch_transform=tsds.Compose(steps)))


def test_errors_of_transforms_are_the_same_with_every_kernel(path: Path, variant: str) -> None:
    dataset = tsds.StoreDataset(path)
    channels = dataset.split.fields["image"].spec.shape[2]  # type: ignore[attr-defined]
    for step, message in (
        (tsds.RandomCrop(40), "RandomCrop: expected images of at least 40x40"),
        (tsds.Normalize([120.0] * channels, [60.0] * channels), r"Normalize: expected a mean in \[0, 1\]"),
        (tsds.Normalize([0.5] * (channels + 1), [0.1] * (channels + 1)), "Normalize: expected images of"),
    ):
        with pytest.raises(ValueError, match=message):
            next(iter(tsds.DataLoader(dataset, 4, batch_transform=tsds.Compose([tsds.RandomHorizontalFlip(), step]))))


@compiled
def test_a_large_batch_is_written_past_the_caches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = tsds.StoreDataset(path)
    channels = dataset.split.fields["image"].spec.shape[2]  # type: ignore[attr-defined]
    rows = np.random.default_rng(0).integers(0, 70, 4000)
    for dtype in (torch.float32, torch.bfloat16):
        normalize = tsds.Normalize([0.5] * channels, [0.25] * channels, dtype=dtype)
        batches = []
        for core in (native.core, None):
            monkeypatch.setattr(native, "core", core)
            transformed = Transformed(dataset, tsds.Compose([tsds.RandomHorizontalFlip(), normalize]))
            batches.append(dict(transformed.gather(rows, dataset._pool, (0, 0)).columns))
            monkeypatch.undo()
        assert_equal(batches[:1], batches[1:])
