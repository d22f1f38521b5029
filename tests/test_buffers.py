"""A batch that is held never changes; one that is not is used again."""

import gc
import mmap
import threading

import numpy as np
import pytest
import torch

from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.loading.buffers import KEPT, BufferPool
from tensorstore_ds.reading.columns import LARGE_NBYTES, aligned_empty

SPEC = ArraySpec("uint8", (100, 100))
ROWS = 16  # 160 kB: large enough to be recycled


def address(pool):
    return pool.empty(ROWS, SPEC)[0].data_ptr()


def test_the_buffer_that_was_freed_last_is_used_first():
    pool = BufferPool()
    first, second = (pool.empty(ROWS, SPEC)[0] for _ in range(2))
    wanted = first.data_ptr()
    del second
    del first
    assert address(pool) == wanted


@pytest.mark.slow
@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t,
        lambda t: t[3:5],
        lambda t: t.permute(2, 1, 0),
        lambda t: t.numpy(),
        lambda t: t.numpy()[2:][1:],
        lambda t: torch.from_numpy(t.numpy()),
        lambda t: t.view(torch.int8),
        lambda t: memoryview(t.numpy()),
    ],
)
def test_any_view_keeps_it(view):
    pool = BufferPool()
    tensor, array = pool.empty(ROWS, SPEC)
    array[...] = 7
    held, where = view(tensor), tensor.data_ptr()
    del tensor, array
    gc.collect()
    for _ in range(3):
        other, array = pool.empty(ROWS, SPEC)
        array[...] = 9
        assert other.data_ptr() != where
        del other, array
    assert (np.asarray(held) == 7).all()
    del held
    gc.collect()
    assert where in {address(pool), *(t.data_ptr() for t, _ in [pool.empty(ROWS, SPEC) for _ in range(3)])}


def test_only_so_many_are_kept():
    pool = BufferPool()
    tensors = [pool.empty(ROWS, SPEC) for _ in range(KEPT + 5)]
    tensors.clear()
    assert len(pool._free) == KEPT


def test_dtypes_and_shapes():
    pool = BufferPool()
    for dtype in ("uint8", "uint16", "int64", "float32"):
        tensor, array = pool.empty(30_000, ArraySpec(dtype, (3,)))
        array[...] = 5
        assert tensor.shape == (30_000, 3)
        assert (tensor.to(torch.float64) == 5).all()
    assert pool.empty(0, SPEC)[0].shape == (0, 100, 100)


def test_threads_never_share_one():
    pool = BufferPool()
    errors = []

    def work(value):
        for _ in range(200):
            tensor, array = pool.empty(ROWS, SPEC)
            array[...] = value
            if not (tensor == value).all():
                errors.append(value)

    threads = [threading.Thread(target=work, args=(v,)) for v in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_large_buffers_begin_at_a_page():
    pool = BufferPool()
    held = [pool.empty(rows, SPEC)[0] for rows in (ROWS, ROWS + 1, ROWS + 2)]
    assert all(tensor.numel() >= LARGE_NBYTES and tensor.data_ptr() % mmap.PAGESIZE == 0 for tensor in held)


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 5), (7,), (70_000,), (300, 17, 3)])
def test_arrays_that_begin_at_a_page_are_arrays_like_others(shape, dtype):
    array = aligned_empty(shape, dtype)
    assert (array.shape, array.dtype, array.flags.c_contiguous, array.flags.writeable) == (shape, dtype, True, True)
    assert array.nbytes < LARGE_NBYTES or array.ctypes.data % mmap.PAGESIZE == 0
    array[...] = 3
