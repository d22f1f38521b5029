"""One iteration of a loader: its end, its place, its process; several of one loader at once."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stores import png_bytes, store_of
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import ImageReader
from tensorstore_ds.loading.loader import DataLoader
from tensorstore_ds.loading.samplers import ShuffleSampler
from tensorstore_ds.reading.mirror_file import pool

ROWS = 40
PROCESSES = {"num_workers": 1}
PERSISTENT = {"num_workers": 1, "persistent_workers": True}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"image": np.full((8, 6, 3), i, np.uint8), "label": i % 7} for i in range(ROWS)]
    return store_of(tmp_path_factory.mktemp("e") / "s.tsds", samples, list("abcdefg")).path


def loader_of(path: Path, **options: Any) -> DataLoader:
    return DataLoader(StoreDataset(path), 10, shuffle=True, seed=3, num_threads=2, **options)


def rows(batches: Iterable[Any]) -> list[int]:
    return [int(v) for batch in batches for v in batch["image"][:, 0, 0, 0]]


def order(epoch: int) -> list[int]:
    sampler = ShuffleSampler(ROWS, seed=3)
    sampler.set_epoch(epoch)
    return sampler.rows().tolist()


def place(loader: DataLoader[Any]) -> tuple[int, int]:
    """The epoch and the batch of a loader's state."""
    state = loader.state_dict()
    return state["epoch"], state["batch"]


# --- the end ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, PROCESSES, PERSISTENT, {"device": "cpu", "residency": "device"}])
def test_an_iterator_that_has_ended_stays_so(path: Path, options: dict[str, Any]) -> None:
    loader = loader_of(path, **options)
    batches = iter(loader)
    assert rows(batches) == order(0)
    for _ in range(3):
        assert next(batches, None) is None
        assert place(loader) == (1, 0)
    assert rows(loader) == order(1)
    assert next(batches, None) is None


def test_an_iterator_that_raised_is_over_and_no_epoch_is_counted(path: Path) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["image"][0, 0, 0]) == order(0)[25]:
            raise ArithmeticError("too much")
        return sample

    loader = DataLoader(StoreDataset(path, transform=fail), 10, shuffle=True, seed=3)
    batches = iter(loader)
    assert rows(itertools.islice(batches, 2)) == order(0)[:20]
    with pytest.raises(ArithmeticError, match="too much"):
        next(batches)
    assert next(batches, None) is None
    assert place(loader) == (0, 2)  # the batch that failed is the next one


def test_a_batch_transform_that_raises_has_handed_nothing_out(path: Path) -> None:
    def fail(batch: Any, rows: Any, epoch: int) -> Any:
        raise ArithmeticError("too much")

    loader = loader_of(path, batch_transform=fail)
    batches = iter(loader)
    with pytest.raises(ArithmeticError, match="too much"):
        next(batches)
    assert next(batches, None) is None
    assert place(loader) == (0, 0)


def test_closing_ends_the_threads(path: Path) -> None:
    loader = loader_of(path)
    batches = iter(loader)
    next(batches)
    for _ in range(2):
        batches.close()
        assert not [t for t in threading.enumerate() if t.name.startswith("tsds-loader")]
        assert next(batches, None) is None
        assert place(loader) == (0, 1)


def test_an_iterator_whose_last_reference_dies_in_one_of_its_threads(path: Path) -> None:
    """As when a garbage collection runs there."""
    held: list[Any] = []
    dropped, go = threading.Event(), threading.Event()

    def drop(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["label"]) == 3:  # in the second batch
            go.wait(30)
            held.clear()
            dropped.set()
        return sample

    batches = iter(DataLoader(StoreDataset(path, transform=drop), 3, num_threads=1))
    next(batches)
    held.append(batches)
    del batches
    go.set()
    assert dropped.wait(30)
    for thread in threading.enumerate():
        if thread.name.startswith("tsds-loader"):
            thread.join(30)
            assert not thread.is_alive()


def test_an_iterator_whose_last_reference_dies_in_a_thread_that_its_threads_wait_for(path: Path) -> None:
    """As when a garbage collection runs in one that fetches from a store by URL."""
    held: list[Any] = []
    dropped, go = threading.Event(), threading.Event()

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["label"]) == 3:  # in the second batch
            go.wait(30)
            pool("requests").submit(held.clear).result(30)
            dropped.set()
        return sample

    batches = iter(DataLoader(StoreDataset(path, transform=wait), 3, num_threads=1))
    next(batches)
    held.append(batches)
    del batches
    go.set()
    assert dropped.wait(20)


def test_tasks_that_have_failed_keep_nothing(path: Path) -> None:
    """Until a garbage collection, which may come late: a traceback holds the batches of its thread."""

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        raise ArithmeticError("too much")

    dataset = StoreDataset(path, transform=fail)
    alive = weakref.ref(dataset)
    gc.disable()
    try:
        with pytest.raises(ArithmeticError):
            list(DataLoader(dataset, 3, num_threads=2))
        del dataset
        assert alive() is None
    finally:
        gc.enable()


# --- several at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, PROCESSES, {"device": "cpu", "residency": "device"}])
def test_two_iterators_at_once_are_two_epochs(path: Path, options: dict[str, Any]) -> None:
    loader = loader_of(path, batch_transform=lambda batch, rows, epoch: {**batch, "epoch": epoch}, **options)
    first, second = zip(*zip(loader, loader, strict=True), strict=True)
    assert (rows(first), rows(second)) == (order(0), order(1))
    assert [batch["epoch"] for batch in first] == [0] * 4
    assert [batch["epoch"] for batch in second] == [1] * 4
    assert place(loader) == (2, 0)
    assert rows(loader) == order(2)


def test_what_a_transform_draws_is_of_its_own_epoch(path: Path) -> None:
    def noisy(sample: dict[str, Any], *, generator: Any) -> dict[str, Any]:
        return {**sample, "noise": generator.initial_seed() % 2**31}

    def noise(batches: Iterable[Any]) -> list[int]:
        return [int(v) for batch in batches for v in batch["noise"]]

    def loader() -> DataLoader:
        return DataLoader(StoreDataset(path, transform=noisy), 5, shuffle=True, num_threads=1, prefetch_factor=1)

    alone, pair = loader(), loader()
    expected = noise(alone), noise(alone)
    first, second = zip(*zip(pair, pair, strict=True), strict=True)
    assert (noise(first), noise(second)) == expected


def test_the_state_is_that_of_the_iterator_which_began_last(path: Path) -> None:
    loader = loader_of(path)
    first, second = iter(loader), iter(loader)
    assert rows(itertools.islice(second, 1)) == order(0)[:10]  # who is asked first has the first epoch
    assert rows(itertools.islice(first, 3)) == order(1)[:30]
    assert rows(second) == order(0)[10:]
    assert place(loader) == (1, 3)
    resumed = loader_of(path)
    resumed.load_state_dict(loader.state_dict())
    assert rows(resumed) == rows(first) == order(1)[30:]
    assert place(loader) == (2, 0)


def test_a_state_or_an_epoch_that_is_set_is_that_of_the_next_iterator(path: Path) -> None:
    loader = loader_of(path)
    live = iter(loader)
    next(live)
    loader.load_state_dict({**loader.state_dict(), "epoch": 7, "batch": 2, "sampler_epoch": 7})
    next(live)
    assert place(loader) == (7, 2)
    assert rows(live) == order(0)[20:]
    assert place(loader) == (7, 2)
    assert rows(loader) == order(7)[20:]
    next(live := iter(loader))
    loader.set_epoch(5)
    assert place(loader) == (5, 0)
    assert rows(live) == order(8)[10:]
    assert rows(loader) == order(5)


def test_persistent_workers_serve_the_iterator_that_began_last(path: Path) -> None:
    loader = loader_of(path, **PERSISTENT)
    first, second = iter(loader), iter(loader)
    next(first)
    assert rows(itertools.islice(second, 1)) == order(1)[:10]
    with pytest.raises(RuntimeError, match=r"persistent_workers=False"):
        next(first)
    assert next(first, None) is None
    assert rows(second) == order(1)[10:]
    assert place(loader) == (2, 0)


# --- processes --------------------------------------------------------------------------------------------------

FORK = """
import os, sys, warnings
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.loader import DataLoader

warnings.filterwarnings("ignore", ".*multi-threaded.*", DeprecationWarning)  # of Python 3.12 on; it is the point here


def refused():
    try:
        next(batches)
    except RuntimeError as error:
        return str(error).startswith(f"loader: expected next() in process {{os.getppid()}}, ")


for how in {how!r}:
    loader = DataLoader(StoreDataset({path!r}), 4, shuffle=True, num_threads=2, prefetch_factor=1, **{options!r})
    batches = iter(loader)
    next(batches)
    child = os.fork()
    if not child:
        well = refused()
        if how == "closed":
            batches.close()
        elif how == "a new epoch":
            well = well and len(list(loader)) == 10
        elif how == "the interpreter's end":
            sys.exit(not well)
        if how != "held":
            del batches, loader
        os._exit(not well)
    status = os.waitpid(child, 0)[1]
    print(how, status, len(list(batches)), len(list(loader)), flush=True)
"""


# Not the interpreter's end with worker processes: in any child of os.fork, multiprocessing then ends the parent's.
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, ["held", "dropped", "closed", "a new epoch", "the interpreter's end"]),
        (PROCESSES, ["dropped", "closed", "a new epoch"]),
        (PERSISTENT, ["held", "dropped", "a new epoch"]),
    ],
)
def test_an_iterator_in_a_forked_child_is_refused(path: Path, options: dict[str, Any], how: list[str]) -> None:
    """And neither the child hangs, nor does the parent's iterator, nor its next epoch."""
    code = FORK.format(path=str(path), options=options, how=how)
    run = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = run.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)  # and its children
        pytest.fail(f"it hangs: {run.communicate()}")
    assert (run.returncode, err) == (0, "")
    assert out.splitlines() == [f"{one} 0 9 10" for one in how]


@pytest.mark.parametrize("options", ["", "decode=tsds.RandomResizedCrop(4)", "batch_transform=tsds.RandomCrop(4)"])
def test_the_first_batch_does_not_wait_for_the_import_of_torchvision(path: Path, options: str) -> None:
    """It takes two seconds, and only samples with a transform of their own need it."""
    code = (
        "import sys, tensorstore_ds as tsds\n"
        f"next(iter(tsds.DataLoader(tsds.StoreDataset({str(path)!r}), 4, shuffle=True, {options})))\n"
        "print(sorted({'torchvision', 'torch._dynamo'} & sys.modules.keys()))"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


# --- what one batch costs ---------------------------------------------------------------------------------------


def test_the_first_batch_of_encoded_images_does_not_wait_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of such a store is a few bytes, and the work is in the decoding."""
    for i in range(ROWS):
        folder = tmp_path / "source" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.png").write_bytes(png_bytes(np.full((9, 7, 3), i, np.uint8)))
    import tensorstore_ds as tsds

    tsds.convert(tmp_path / "source", tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    decoded: list[int] = []
    decode = ImageReader.images

    def counted(self: ImageReader, rows: Any, *args: Any, stack: bool) -> Any:
        decoded.append(len(rows))
        return decode(self, rows, *args, stack=stack)

    monkeypatch.setattr(ImageReader, "images", counted)
    loader = DataLoader(StoreDataset(tmp_path / "s.tsds"), 2, num_threads=1, prefetch_factor=1)
    batches = iter(loader)
    assert len(next(batches)["image"]) == 2
    assert set(decoded) == {2} and len(decoded) <= 2  # this one, and one that is prefetched
    assert 1 + len(list(batches)) == len(decoded) == ROWS // 2
