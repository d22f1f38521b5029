from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tensorstore_ds
from small_stores import VALID
from tensorstore_ds import residency as module
from tensorstore_ds.residency import (
    Residency,
    available_nbytes,
    cgroup_directories,
    cgroup_left,
    fits,
    memory_limit,
    mincore_nbytes,
    residency,
    resident_nbytes,
)

PAGE = os.sysconf("SC_PAGE_SIZE")
linux = pytest.mark.skipif(sys.platform != "linux", reason="the page cache is asked about on Linux only")


# --- how much is in memory --------------------------------------------------------------------------------------


@linux
@pytest.mark.parametrize("count", [resident_nbytes, mincore_nbytes])
@pytest.mark.parametrize("window", [module._WINDOW, 16 * PAGE])
def test_pages_that_were_written_are_resident(
    count: Callable[[int, int], int], window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_WINDOW", window)
    with (tmp_path / "sparse").open("w+b") as file:
        file.truncate(1000 * PAGE + 1)
        for page in (0, 7, 15, 16, 500, 999, 1000):
            os.pwrite(file.fileno(), b"x", page * PAGE)
        assert count(file.fileno(), 1000 * PAGE + 1) == 7 * PAGE
        assert count(file.fileno(), 16 * PAGE) == 3 * PAGE


@linux
def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    with (tmp_path / "empty").open("w+b") as file:
        assert resident_nbytes(file.fileno(), 0) == 0


@linux
def test_an_older_kernel_is_asked_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHESTAT", 100_000)  # no such system call
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(3 * PAGE))
        file.flush()
        assert resident_nbytes(file.fileno(), 3 * PAGE) == 3 * PAGE


@linux
def test_files_of_others_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CACHESTAT", 100_000)
    monkeypatch.setattr("os.geteuid", lambda: 12345)
    monkeypatch.setattr("os.access", lambda *_: False)
    found = residency(tensorstore_ds.open(VALID / "minimal.tsds"))["train/image"]
    assert found.resident is None and found.share is None
    assert "somebody else's" in found.reason


@linux
def test_columns_of_a_store() -> None:
    store = tensorstore_ds.open(VALID / "shards.tsds")
    for path in VALID.joinpath("shards.tsds").rglob("*"):
        if path.is_file():
            path.read_bytes()
    found = residency(store)
    assert list(found) == [f"{s}/{f}" for s in ("train", "val", "test-0") for f in ("image", "label", "objects", "key")]
    # train/objects: in two shards offsets, in the first one boxes and labels of 3 objects; a file ends with 20 bytes.
    assert found["train/objects"].nbytes == (4 + 3) * 8 + 3 * 16 + 3 * 8 + 4 * 20
    assert found["val/image"] == Residency(0, 0)
    assert {r.share for r in found.values()} == {1.0}


def test_other_systems_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    found = residency(tensorstore_ds.open(VALID / "minimal.tsds"))["train/image"]
    assert found == Residency(2 * 16 + 20, None, "not available on darwin")


# --- how much memory there is -----------------------------------------------------------------------------------


def test_meminfo() -> None:
    text = "MemTotal:       24684048 kB\nMemFree: 23000000 kB\nMemAvailable:   24303184 kB\nHugePages_Total:       0\n"
    assert available_nbytes(text) == 24303184 * 1024
    assert available_nbytes(text.replace("MemAvailable", "Other")) == 23000000 * 1024  # Linux before 3.14


HOST_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HOST_V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
)


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "expected"),
    [
        ("0::/\n", HOST_V2, ["/sys/fs/cgroup"]),
        (
            "0::/user.slice/a.scope\n",
            HOST_V2,
            ["/sys/fs/cgroup/user.slice/a.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"],
        ),
        (
            "4:memory:/jobs/7\n1:cpu:/other\n0::/\n",
            HOST_V1,
            [
                *("/sys/fs/cgroup/memory/jobs/7", "/sys/fs/cgroup/memory/jobs", "/sys/fs/cgroup/memory"),
                "/sys/fs/cgroup/unified",
            ],
        ),
        (  # a container that sees its own part of the hierarchy, and the host's path
            "9:memory,hugetlb:/docker/abc\n",
            "50 40 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            ["/sys/fs/cgroup/memory"],
        ),
        (  # the same, and a group of its own inside
            "9:memory:/docker/abc/inner\n",
            "50 40 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            ["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"],
        ),
        (  # a path outside of what is mounted
            "0::/elsewhere\n",
            "50 40 0:33 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n",
            ["/sys/fs/cgroup"],
        ),
        ("", "", []),
    ],
)
def test_control_groups_are_walked_up(cgroup: str, mountinfo: str, expected: list[str]) -> None:
    assert cgroup_directories(cgroup, mountinfo) == [Path(p) for p in expected]


@pytest.mark.parametrize(
    ("limit", "used", "statistics", "prefix", "expected"),
    [
        ("max\n", "5\n", "", "", None),
        ("9223372036854771712\n", "5\n", "", "total_", None),
        ("1000\n", "400\n", "anon 300\nfile 100\nshmem 0\n", "", 700),
        ("1000\n", "400\n", "cache 1\ntotal_cache 200\ntotal_shmem 50\n", "total_", 750),
        ("1000\n", "", "", "", 1000),
        ("1000\n", "1500\n", "", "", 0),
    ],
)
def test_what_a_control_group_has_left(
    limit: str, used: str, statistics: str, prefix: str, expected: int | None
) -> None:
    assert cgroup_left(limit, used, statistics, prefix) == expected


def test_the_narrowest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "outer" / "inner"
    inner.mkdir(parents=True)
    files = {
        "/proc/meminfo": "MemAvailable: 8000 kB\n",
        "/proc/self/cgroup": "0::/outer/inner\n",
        "/proc/self/mountinfo": f"1 1 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n",
        str(inner / "memory.max"): "max\n",
        str(inner.parent / "memory.max"): "5000000\n",
        str(inner.parent / "memory.current"): "1000000\n",
    }
    monkeypatch.setattr(module, "_read", lambda path: files.get(str(path), ""))
    assert memory_limit() == 4_000_000
    assert fits(4_000_000) and not fits(4_000_001)
    files[str(inner.parent / "memory.max")] = "max\n"
    assert memory_limit() == 8000 * 1024


def test_this_machine_has_some() -> None:
    assert 2**20 < memory_limit() <= os.sysconf("SC_PHYS_PAGES") * PAGE
