"""Settings of all tests, and of the processes that they start.

Tests that are marked ``drawn(count)`` run with `count` of their variants, 2 by default, where the environment says so:
``TSDS_DRAW=some`` draws a seed, which the head of the report prints, and ``TSDS_DRAW=SEED`` repeats a run. Of all tests
marked ``drawn(count, of="races")``, in whatever files, `count` run. Of the other slow tests of a file, a third runs.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import tensorstore_ds as tsds

# Read by torch when it is first imported. Its models are tiny here: more threads would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Hypothesis would fail an example that takes more than 200 ms, as many do on a busy machine.
settings.register_profile("without deadline", deadline=None)
settings.load_profile("without deadline")

# Shells start jobs in the background with SIGINT ignored, and so would be the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Here, before pytest-xdist starts its processes, so that all of them draw the same.
if os.environ.get("TSDS_DRAW") == "some":
    os.environ["TSDS_DRAW"] = str(secrets.randbelow(10**6))
DRAW = os.environ.get("TSDS_DRAW", "all")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of remote stores are kept in a folder of the tests, and not in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TSDS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files of quick tests in memory where it has room: 100,000 go there in half the time."""
    memory, room = Path("/dev/shm"), 8e9  # noqa: S108  # where pytest makes a folder of its own
    if "not slow" in config.option.markexpr and memory.is_mount() and psutil.virtual_memory().available > room:
        shared = os.statvfs(memory)
        if shared.f_bavail * shared.f_frsize > room and not shared.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


def pytest_report_header() -> str:
    return f"variants of tests: TSDS_DRAW={DRAW}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m gpu``, import only the files that have such tests: a machine with a GPU may lack what others need."""
    if config.getoption("markexpr") != "gpu" or collection_path.suffix != ".py":
        return None
    return True if "pytest.mark.gpu" not in collection_path.read_text("utf-8") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _skip_without_gpu([item for item in items if item.get_closest_marker("gpu")])
    if DRAW == "all":
        return
    variants: dict[tuple[Path | None, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("drawn")
        if mark and not getattr(item.cls, "is_real", False):  # type: ignore[attr-defined]
            alike = mark.kwargs.get("of")
            variants[(None, alike) if alike else (item.path, item.originalname)].append(item)  # type: ignore[attr-defined]
        elif item.get_closest_marker("slow") and not mark:
            variants[item.path, "slow"].append(item)
    left_out = set[pytest.Item]()
    for (_, name), found in variants.items():
        mark = found[0].get_closest_marker("drawn")
        count = min(len(found), *mark.args or (2,)) if mark else -(-len(found) // 3)
        chosen = random.Random(f"{DRAW} {name}").sample(sorted(found, key=lambda item: item.nodeid), count)
        left_out.update(set(found) - set(chosen))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _skip_without_gpu(items: list[pytest.Item]) -> None:
    if not items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in items:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device, or the fake one of make test-gpu-fake"))


@pytest.fixture
def draw(request: pytest.FixtureRequest) -> random.Random:
    """What a test chooses by itself, such as a size or a fraction: the same for a seed and a variant of a test."""
    return random.Random(f"{DRAW} {request.node.name} {getattr(request.cls, '__name__', '')}")


@pytest.fixture
def eighth(draw: random.Random) -> slice:
    """Of a list of cases: one in eight of them, which the seed draws, or all where all variants of tests run."""
    return slice(None) if DRAW == "all" else slice(draw.randrange(8), None, 8)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a test makes its store."""
    return tmp_path / "o.tsds"


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Of torch, so that sums are made in one order; and on a busy machine, its threads wait for each other for long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def disk() -> Iterator[Path]:
    """A folder on a disk, whose files the page cache can be told to drop."""
    with tempfile.TemporaryDirectory(prefix="tsds-tests-") as folder:
        yield Path(folder)


@pytest.fixture
def disk_path(disk: Path) -> Path:
    """A folder of a test there."""
    return Path(tempfile.mkdtemp(dir=disk))


@pytest.fixture(scope="session")
def large_store(disk: Path) -> tsds.Store:
    """A store of several MB, which no test changes."""
    from cold_stores import make_store

    return make_store(disk / "large.tsds")


@pytest.fixture
def cold(large_store: tsds.Store) -> tsds.Store:
    """That store, newly opened and not in memory; skips the test where that cannot be had."""
    import tensorstore_ds
    from cold_stores import make_cold

    return make_cold(tensorstore_ds.open(large_store.path))
