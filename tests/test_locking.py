from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from cold_stores import linux, make_cold, make_store
from small_stores import VALID
from tensorstore_ds.errors import OptionError, ResidencyError
from tensorstore_ds.page_cache.locking import lock, lock_allowance, locked_nbytes
from tensorstore_ds.page_cache.residency import evict, residency

pytestmark = linux


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tsds.Store:
    return make_store(tmp_path_factory.mktemp("locking") / "s.tsds")


def locked_here() -> int:
    return locked_nbytes(Path("/proc/self/status").read_text("utf-8"))


# Labels alone: every process may lock a few pages.


def test_what_is_locked_cannot_be_evicted(store: tsds.Store) -> None:
    before = locked_here()
    with lock(store, fields="label") as held:
        assert not held.closed
        assert locked_here() - before == held.nbytes > 0
        found = evict(store).after
        assert found["train/label"].share == found["val/label"].share == 1
    assert held.closed
    assert locked_here() == before
    assert {r.share for r in residency(store).values() if r.nbytes < 1000} == {1.0}
    held.close()


def test_it_reads_what_it_locks(store: tsds.Store) -> None:
    evict(store)
    events: list[tuple[int, int]] = []
    with lock(store, splits="val", fields=["label"], progress=lambda *event: events.append(event)):
        assert residency(store)["val/label"].share == 1
    assert events[-1] == (24 * 8 + 24,) * 2


def test_a_lock_that_is_forgotten_is_released(store: tsds.Store) -> None:
    before = locked_here()
    held = lock(store, fields="label")
    assert locked_here() > before
    del held
    gc.collect()
    assert locked_here() == before


def test_nothing_to_lock(store: tsds.Store) -> None:
    with lock(store, splits=[]) as held:
        assert held.nbytes == 0


# --- what is refused --------------------------------------------------------------------------------------------

# Without CAP_IPC_LOCK, as nearly all processes are; root in a test gives it up.
LIMITED = """
import ctypes, resource, sys
from pathlib import Path

def give_up_capability():
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then the same of capabilities from 32 on
    assert libc.capget(header, sets) == 0
    sets[0] &= ~(1 << 14)
    assert libc.capset(header, sets) == 0

give_up_capability()
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
import tensorstore_ds as tsds
from tensorstore_ds.page_cache import locking
if sys.argv[3] == "unforeseen":
    locking.lock_allowance = lambda *_: None
store = tsds.open(sys.argv[1])
try:
    locking.lock(store)
except locking.ResidencyError as error:
    print(error)
maps = Path("/proc/self/maps").read_text()
print(maps.count(str(store.path)), locking.locked_nbytes(Path("/proc/self/status").read_text()))
"""


@pytest.mark.parametrize("when", ["foreseen", "unforeseen"])
@pytest.mark.parametrize("limit", [0, 64 * 1024])
def test_a_process_that_may_lock_little(store: tsds.Store, limit: int, when: str) -> None:
    arguments = [sys.executable, "-c", LIMITED, str(store.path), str(limit), when]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, timeout=60)
    message, left = done.stdout.splitlines()
    pages = sum(-(-found.nbytes // 4096) * 4096 for found in residency(store).values())
    assert message.startswith(
        f"{store.path}: expected to lock {pages:,} bytes, found that this process may lock {limit:,} (RLIMIT_MEMLOCK) "
        f"and has locked 0. Raise it with ulimit -l {pages // 1024}, as root in /etc/security/limits.conf"
    )
    assert left == "0 0"
    assert done.stderr == ""


def test_status_is_understood() -> None:
    status = "Name:\tpython\nVmLck:\t    1024 kB\nVmPin:\t       8 kB\nCapPrm:\t000001ffffffffff\nCapEff:\t{}\n"
    nobody, root = status.format("0000000000000000"), status.format("000001ffffffffff")
    only_chown_and_ipc_lock, all_but_ipc_lock = status.format("0000000000004001"), status.format("000001ffffffbfff")
    assert locked_nbytes(nobody) == 2**20
    assert lock_allowance(nobody, 8 * 2**20) == 7 * 2**20
    assert lock_allowance(nobody, 2**19) == 0
    assert lock_allowance(nobody, -1) is None
    assert lock_allowance(root, 0) is None
    assert lock_allowance(only_chown_and_ipc_lock, 0) is None
    assert lock_allowance(all_but_ipc_lock, 2**21) == 2**20
    assert locked_nbytes("") == 0


def test_more_than_there_is_memory(store: tsds.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cold(store)  # what is in memory does fit
    limits = {"machine": 10**12, "/sys/fs/cgroup/pod": 1000}
    monkeypatch.setattr("tensorstore_ds.page_cache.residency.memory_limits", lambda: limits)
    monkeypatch.setattr("tensorstore_ds.page_cache.locking.lock_allowance", lambda *_: None)
    with pytest.raises(ResidencyError, match=r"found 1,000 available in the control group /sys/fs/cgroup/pod\. Choose"):
        lock(store)
    limits.pop("/sys/fs/cgroup/pod")
    limits["machine"] = 2000
    with pytest.raises(ResidencyError, match=r"expected 16,\d{3},\d{3} bytes .*, found 2,000 available on this"):
        lock(store)


def test_no_such_columns(store: tsds.Store) -> None:
    with pytest.raises(OptionError):
        lock(store, splits="nope")


def test_elsewhere_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(ResidencyError, match=r"minimal\.tsds: expected Linux .*, found darwin\.$"):
        lock(tsds.open(VALID / "minimal.tsds"))
