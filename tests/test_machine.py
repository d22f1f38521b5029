from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tensorstore_ds import machine as module
from tensorstore_ds.machine import (
    MemoryGate,
    cgroup_directories,
    cgroup_left,
    core_limits,
    memory_limit,
    memory_limits,
    threads_for_loading,
    usable_cores,
)
from tensorstore_ds.page_cache.residency import fits

PAGE = os.sysconf("SC_PAGE_SIZE")


CPU_V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "33 31 0:29 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
CPU_BOTH = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
HOST_V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HOST_V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n"
)


CONTAINER = "50 40 0:33 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"  # it sees its own part


@pytest.mark.parametrize(
    ("controller", "cgroup", "mountinfo", "expected"),
    [
        ("memory", "0::/\n", HOST_V2, [""]),
        ("memory", "0::/user.slice/a.scope\n", HOST_V2, ["/user.slice/a.scope", "/user.slice", ""]),
        (
            *("memory", "4:memory:/jobs/7\n1:cpu:/other\n0::/\n", HOST_V1),
            ["/memory/jobs/7", "/memory/jobs", "/memory", "/unified"],
        ),
        ("memory", "9:memory,hugetlb:/docker/abc\n", CONTAINER, ["/memory"]),
        ("memory", "9:memory:/docker/abc/inner\n", CONTAINER, ["/memory/inner", "/memory"]),
        # a path outside of what is mounted
        ("memory", "0::/elsewhere\n", "50 40 0:33 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw\n", [""]),
        ("memory", "", "", []),
        ("cpu", "4:memory:/a/b\n1:cpu:/c\n2:cpuacct:/d\n", CPU_V1, ["/cpu/c", "/cpu"]),
        ("cpu", "3:cpu,cpuacct:/c\n", CPU_BOTH, ["/cpu,cpuacct/c", "/cpu,cpuacct"]),
        ("cpu", "0::/pod\n", HOST_V2, ["/pod", ""]),
        ("cpu", "", "", []),
    ],
)
def test_control_groups_are_walked_up(controller: str, cgroup: str, mountinfo: str, expected: list[str]) -> None:
    assert cgroup_directories(cgroup, mountinfo, controller) == [Path(f"/sys/fs/cgroup{path}") for path in expected]


@pytest.mark.parametrize(
    ("limit", "used", "statistics", "prefix", "expected"),
    [
        ("max\n", "5\n", "", "", None),
        ("9223372036854771712\n", "5\n", "", "total_", None),
        ("1000\n", "400\n", "anon 300\nfile 100\nshmem 0\n", "", 700),
        ("1000\n", "400\n", "cache 1\ntotal_cache 200\ntotal_shmem 50\n", "total_", 750),
        ("1000\n", "900\n", "file 500\nshmem 0\nunevictable 300\n", "", 300),  # locked pages are not available
        ("1000\n", "900\n", "total_cache 500\ntotal_unevictable 500\n", "total_", 100),
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
        "/proc/self/cgroup": "0::/outer/inner\n",
        "/proc/self/mountinfo": f"1 1 0:1 / {tmp_path} rw - cgroup2 cgroup2 rw\n",
        str(inner / "memory.max"): "max\n",
        str(inner.parent / "memory.max"): "5000000\n",
        str(inner.parent / "memory.current"): "1000000\n",
    }
    monkeypatch.setattr(module, "read_system_file", lambda path: files.get(str(path), ""))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=8_192_000))
    assert memory_limit() == 4_000_000
    assert memory_limits() == {"machine": 8_192_000, str(inner.parent): 4_000_000}
    assert fits(4_000_000) and not fits(4_000_001)
    files[str(inner.parent / "memory.max")] = "max\n"
    assert memory_limit() == 8_192_000


def test_this_machine_has_some() -> None:
    assert 2**20 < memory_limit() <= os.sysconf("SC_PHYS_PAGES") * PAGE


def _take_and_count(gate, nbytes, inside, most):
    gate.take(nbytes)
    with inside.get_lock():
        inside.value += 1
        most.value = max(most.value, inside.value)
    time.sleep(0.05)
    with inside.get_lock():
        inside.value -= 1
    gate.release()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="pieces of memory are taken by forked processes here")
@pytest.mark.parametrize(("nbytes", "most_at_once"), [(400, 2), (1000, 1), (10**9, 1), (101, 5)])
def test_large_pieces_wait_for_room(nbytes, most_at_once):
    """Of 1,000 bytes, in processes that all begin at once; nobody waits for ever, and the most is reached."""
    context = multiprocessing.get_context("fork")
    gate = MemoryGate(1000, small=100)
    inside, most = context.Value("i", 0), context.Value("i", 0)
    processes = [context.Process(target=_take_and_count, args=(gate, nbytes, inside, most)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    gate.close()
    assert 1 <= most.value <= most_at_once


def test_small_pieces_take_nothing():
    gate = MemoryGate(100, small=100)
    for _ in range(50):
        gate.take(100)
    gate.release()
    gate.close()


def test_a_gate_of_very_much_memory_is_made_and_passed():
    """Its units are larger: a pipe holds only so many."""
    gate = MemoryGate(10**15)
    same = MemoryGate(10**15, descriptors=gate.descriptors)
    for piece in (10**9, 10**14, 10**18):
        same.take(piece)
        same.release()
        gate.take(piece)
        gate.release()
    gate.close()


# --- cores ------------------------------------------------------------------------------------------------------


def test_quotas_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "two" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "two" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "cpu.max").write_text("max 100000\n")
    folders = [tmp_path / "none", tmp_path / "two", tmp_path]
    monkeypatch.setattr(module, "cgroup_directories", lambda *_: folders)
    limits = core_limits()
    assert limits.pop("the affinity of this process") == len(os.sched_getaffinity(0))
    assert limits == {str(tmp_path / "two"): 0.5, str(tmp_path): 1.5}
    assert usable_cores() == 1


def test_a_quota_is_rounded_up_and_affinity_is_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(module, "_control_groups", lambda _: [Path("group")])
    for quota, expected in ((2.5, 3), (64.0, 16), (0.1, 1), (None, 16)):
        monkeypatch.setattr(module, "_quota", lambda _, quota=quota: quota)
        assert usable_cores() == expected


@pytest.mark.parametrize(
    ("cores", "ranks", "expected"),
    [(16, "8", 2), (16, "1", 15), (4, "8", 1), (4, "1", 4), (3, "", 3), (5, "none", 4), (192, "8", 23)],
)
def test_ranks_divide_the_cores_of_their_machine(monkeypatch, cores, ranks, expected):
    monkeypatch.setattr("tensorstore_ds.machine.usable_cores", lambda: cores)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert threads_for_loading() == expected


def test_an_interrupt_just_before_a_block_without_any_leaves_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    change, before = signal.pthread_sigmask, signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def interrupted(how: int, signals: Iterable[int]) -> object:
        changed = change(how, signals)
        if how == signal.SIG_BLOCK and signals:  # Python calls the handlers after it has changed the mask
            raise KeyboardInterrupt
        return changed

    monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
    with pytest.raises(KeyboardInterrupt), module.uninterrupted():
        pass
    assert change(signal.SIG_SETMASK, before) == before
