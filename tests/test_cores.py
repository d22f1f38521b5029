from __future__ import annotations

import os
from pathlib import Path

import pytest

from tensorstore_ds import machine as cores
from tensorstore_ds.machine import cgroup_directories

V1_MOUNTS = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "33 31 0:29 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)


@pytest.mark.parametrize(
    ("groups", "mounts", "expected"),
    [
        ("4:memory:/a/b\n1:cpu:/c\n2:cpuacct:/d\n", V1_MOUNTS, ["/sys/fs/cgroup/cpu/c", "/sys/fs/cgroup/cpu"]),
        (
            "3:cpu,cpuacct:/c\n",
            "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
            ["/sys/fs/cgroup/cpu,cpuacct/c", "/sys/fs/cgroup/cpu,cpuacct"],
        ),
        (
            "0::/pod\n",
            "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
            ["/sys/fs/cgroup/pod", "/sys/fs/cgroup"],
        ),
        ("", "", []),
    ],
)
def test_control_groups_for_processor_time(groups: str, mounts: str, expected: list[str]) -> None:
    assert cgroup_directories(groups, mounts, "cpu") == [Path(p) for p in expected]


def test_quotas_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two").mkdir()
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "two" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "two" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "cpu.max").write_text("max 100000\n")
    folders = [tmp_path / "none", tmp_path / "two", tmp_path]
    monkeypatch.setattr(cores, "cgroup_directories", lambda *_: folders)
    limits = cores.core_limits()
    assert limits.pop("the affinity of this process") == len(os.sched_getaffinity(0))
    assert limits == {str(tmp_path / "two"): 0.5, str(tmp_path): 1.5}
    assert cores.usable_cores() == 1


def test_a_quota_is_rounded_up_and_affinity_is_a_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "_control_groups", lambda _: [Path("group")])
    for quota, expected in ((2.5, 3), (64.0, 16), (0.1, 1), (None, 16)):
        monkeypatch.setattr(cores, "_quota", lambda _, quota=quota: quota)
        assert cores.usable_cores() == expected
