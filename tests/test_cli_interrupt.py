"""Ctrl-C, as a terminal does it: to a command and all of its processes at once, at any moment; and so SIGTERM."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tensorstore_ds
from small_stores import VALID
from tensorstore_ds import ConvertOptions
from tsds_cli.main import cli
from tsds_cli.messages import failure_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")

#: The command, in a process that says when its modules are imported and it begins. Its process number is in the names
#: of its shared memory and semaphores: other programs of this machine have such, too.
BEGIN = """
import multiprocessing.shared_memory, os, sys
from tsds_cli.main import main
import {}
multiprocessing.current_process()._config["semprefix"] = f"/tsds-{{os.getpid()}}"
multiprocessing.shared_memory._SHM_NAME_PREFIX = f"/tsds-{{os.getpid()}}-"
sys.argv = ["tsds", *sys.argv[1:]]
print("ready", file=sys.stderr, flush=True)
main()
"""

#: What stderr has where the signal came before the command: the line that says "ready" is the eighth.
#: Python also loses a stream that is being reconfigured, and can then say nothing.
ELSEWHERE = ('File "<string>", line 8, in <module>\nKeyboardInterrupt', "lost sys.stderr")

SHARED = Path("/dev/shm")  # noqa: S108

#: A terminal's signal, and that with which schedulers end a job.
NUMBERS = (signal.SIGINT, signal.SIGTERM)
NAMES = ("SIGINT", "SIGTERM")


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that take some seconds to convert to JPEG."""
    folder = tmp_path_factory.mktemp("interrupt")
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (3000, 128, 128, 3), np.uint8))
    np.save(folder / "labels.npy", np.arange(3000) % 3)
    return folder


@pytest.fixture(scope="module")
def store(arrays: Path) -> Path:
    path = arrays.parent / "whole.tsds"
    tensorstore_ds.convert(arrays, path, ConvertOptions(workers=0))
    return path


def of_group(group: int) -> list[int]:
    """Processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text("latin-1").rsplit(")", 1)[1].split()[:3]
        except OSError:  # it has ended meanwhile
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def shared(pids: Sequence[int]) -> list[Path]:
    """Shared memory and semaphores of these processes, the first of which is the command."""
    patterns = [f"sem.tsds-{pids[0]}-*", f"tsds-{pids[0]}-*", *(f"torch_{pid}_*" for pid in pids)]
    return [path for pattern in patterns for path in SHARED.glob(pattern)]


def interrupted(words: Sequence[object], module: str, moment: float, number: int = signal.SIGINT) -> tuple[int, str]:
    """Exit status and stderr of a command that was interrupted; nothing of it is left.

    Again, a little later, where this test's script got the signal, before the command began.
    """
    for attempt in range(5):
        status, error = _interrupted(words, module, moment + 0.005 * attempt, number)
        if not any(text in error for text in ELSEWHERE) and status != -number:  # its end, before the command began
            break
    return status, error


def _interrupted(words: Sequence[object], module: str, moment: float, number: int) -> tuple[int, str]:
    command = [sys.executable, "-c", BEGIN.format(module), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0) as run:
        assert run.stderr is not None and run.stderr.readline() == "ready\n"
        time.sleep(moment)
        pids = [run.pid, *of_group(run.pid)]
        os.killpg(run.pid, number)
        out, err = run.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while (left := of_group(run.pid) or shared(pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, out + err
    assert "Traceback" not in out + err or any(text in err for text in ELSEWHERE), err
    return run.returncode, err


#: The signal comes where no exception can be raised: Python says so, and goes on.
FINALIZER = """
import os, sys, time
from tsds_cli.messages import interrupted
from tsds_cli.signals import terminable

class Last:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        for _ in range(1000):
            pass

try:
    with terminable():
        Last()
        WAIT
except KeyboardInterrupt:
    failure = interrupted()
    failure.show()
    sys.exit(failure.exit_code)
"""

#: The signal comes while a thread of a pool starts, which would then wait for a lock, and the pool for it.
WITHIN_POOL = """
import concurrent.futures, threading, time, os, sys
from tsds_cli.messages import interrupted
from tsds_cli.signals import terminable

class Pool(concurrent.futures.ThreadPoolExecutor):
    def _adjust_thread_count(self):
        super()._adjust_thread_count()
        with self._idle_semaphore._cond:
            os.kill(os.getpid(), int(sys.argv[1]))

try:
    with terminable(), Pool(1) as pool:
        pool.submit(int).result()
        WAIT
except KeyboardInterrupt:
    failure = interrupted()
    failure.show()
    sys.exit(failure.exit_code)
"""
#: A signal just before a call that waits does not end it.
WAIT = "[time.sleep(0.01) for _ in range(6000)]"

#: The signal comes within click, which would print "Aborted!" and end with status 1.
WITHIN_CLICK = """
import os, sys, time
import click
from tsds_cli.main import main

def enter(context):
    os.kill(os.getpid(), int(sys.argv[1]))
    return context

click.Context.__enter__, click.Group.invoke = enter, lambda *_: time.sleep(60)
main()
"""


@pytest.mark.parametrize("number", NUMBERS, ids=NAMES)
@pytest.mark.parametrize("code", [
    pytest.param(FINALIZER.replace("WAIT", WAIT), id="a finalizer"),
    pytest.param(FINALIZER.replace("WAIT", "pass"), id="a finalizer at the end"),
    pytest.param(WITHIN_POOL.replace("WAIT", WAIT), id="a pool"),
    pytest.param(WITHIN_CLICK, id="click"),
])  # fmt: skip
def test_a_signal_that_cannot_be_raised_comes_once_more(code: str, number: int) -> None:
    command = [sys.executable, "-c", code, str(int(number))]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stderr) == (128 + number, "tsds: interrupted\n")


def test_a_signal_that_python_made_another_error_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.11 does where the signal comes while a class is being made."""

    def diagnose(*args: object, **others: object) -> None:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("tensorstore_ds.diagnose", diagnose)
    result = CliRunner().invoke(cli, ["doctor", "photos.tsds"])
    assert (result.exit_code, result.stderr) == (130, "tsds: interrupted\n")


def test_a_signal_while_a_thread_is_waited_for() -> None:
    """`threading` may then release a lock that it does not have."""
    try:
        try:
            raise KeyboardInterrupt
        finally:
            threading.Lock().release()
    except RuntimeError as error:
        failure = failure_of(error)
    assert failure is not None and failure.message == "interrupted"
    try:
        threading.Lock().release()
    except RuntimeError as error:
        assert failure_of(error) is None  # a defect


#: Runs the command, and sends it a signal where a module of STAGE is imported for the N-th time of all.
IMPORTS = """
import os, sys
from tsds_cli import program

at, number = map(int, sys.argv[1:3])

class Finder:
    count = 0
    def find_spec(self, name, path=None, target=None):
        Finder.count += 1
        if Finder.count == at:
            os.kill(os.getpid(), number)
        return None

sys.meta_path.insert(0, Finder())
sys.argv = ["tsds", *sys.argv[3:]]
try:
    program.main()
finally:
    print(Finder.count, file=sys.stderr)
"""
#: Of the modules that a command imports, at so many, evenly spaced, it gets a signal.
IMPORTS_TRIED = int(os.environ.get("TSDS_INTERRUPTED_IMPORTS", "12"))


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(("name", "number"), [("merge", signal.SIGINT), ("pack", signal.SIGTERM)])
def test_within_the_imports(tmp_path: Path, name: str, number: int) -> None:
    """One line and the status, wherever it comes, also in C code that makes another error of an interrupt."""
    store, out = VALID / "minimal.tsds", tmp_path / "out"
    words = {"merge": ("merge", store, store, out), "pack": ("pack", store, out)}[name]

    def run(at: int) -> tuple[int, str, str]:
        shutil.rmtree(out, ignore_errors=True)
        out.unlink(missing_ok=True)
        command = [sys.executable, "-c", IMPORTS, str(at), str(int(number)), *map(str, words)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return ended.returncode, ended.stdout, ended.stderr

    total, rows = int(run(0)[2].splitlines()[-1]), len(tensorstore_ds.open(store)["train"])
    assert total > 100 and out.exists()
    for at in sorted({1 + i * (total - 1) // max(1, IMPORTS_TRIED - 1) for i in range(IMPORTS_TRIED)}):
        status, printed, error = run(at)
        if not re.match(r"tsds: interrupted(; \S+ was not made)?\n(\d+\n)?$", error) or status != 128 + number:
            pytest.fail(f"at {at}: {status}, {error}")  # a count may follow
        assert "was not made" not in error or not (printed or out.exists()), (at, error)
        if out.exists():  # never a part of it
            assert len(tensorstore_ds.open(out)["train"]) == (rows if name == "pack" else 2 * rows), (at, error)


@pytest.mark.parametrize("number", NUMBERS, ids=NAMES)
def test_a_signal_in_an_import_of_the_library_comes_after_it(number: int) -> None:
    """What the library has begun is undone, which it could not be if the process ended within the import."""
    code = """
import os, sys, types
from tsds_cli import signals

module = types.ModuleType("tensorstore_ds.example")
exec('''
def begin():
    try:
        import tsds_interrupted_module
        for _ in range(100_000_000):
            pass
    finally:
        print("undone")
''', module.__dict__)
with open("tsds_interrupted_module.py", "w") as file:
    file.write(f"import os; os.kill(os.getpid(), {int(sys.argv[1])}); print('imported')")
sys.path.insert(0, "")
try:
    with signals.terminable():
        module.begin()
except KeyboardInterrupt:
    print("interrupted")
"""
    command = [sys.executable, "-c", code, str(int(number))]
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert (run.returncode, run.stdout, run.stderr) == (0, "imported\nundone\ninterrupted\n", "")


def test_a_signal_that_the_caller_ignores_stays_ignored() -> None:
    """A shell starts what runs behind it so; SIGTERM still ends it with one line."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN);"
        "os.execv(sys.executable, [sys.executable, '-m', 'tsds_cli', 'serve', sys.argv[1], '--port', '0'])"
    )
    command = [sys.executable, "-c", code, str(VALID / "minimal.tsds")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None and run.stdout.readline().startswith("serving")
        run.send_signal(signal.SIGINT)
        run.stdout.readline()
        time.sleep(0.2)
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.communicate(timeout=60)[1] == ""


@pytest.mark.parametrize(("moment", "number"), [(0.0, signal.SIGINT), (0.3, signal.SIGTERM)])
def test_convert(arrays: Path, tmp_path: Path, moment: float, number: int) -> None:
    out = tmp_path / "out.tsds"
    words = ("convert", arrays, out, "--encoding", "jpeg", "--workers", 2)
    status, error = interrupted(words, "tensorstore_ds.conversion.convert", moment, number)
    assert status == 128 + number, error
    assert re.fullmatch(r"tsds: interrupted[^\n]*\n", error), error
    assert not out.exists()


#: One command of each family that makes OUT, its module, and a signal.
MAKING = {
    "filter": (("STORE", "OUT", "--where", "width > 0"), "tensorstore_ds.annex.editing.edit", signal.SIGINT),
    "export": (("STORE", "OUT", "--to", "folders"), "tensorstore_ds.annex.exporting.folders", signal.SIGTERM),
    "card": (("STORE", "OUT"), "tensorstore_ds.annex.publishing.card", signal.SIGINT),
}


@pytest.mark.parametrize("name", MAKING)
def test_what_makes_something_of_a_store(store: Path, tmp_path: Path, name: str) -> None:
    """One line; and of what it makes nothing is left, but of `tsds card` the questions."""
    words, module, number = MAKING[name]
    before = tensorstore_ds.open(store).sha256
    places = {"STORE": store, "OUT": tmp_path / "out"}
    status, error = interrupted((name, *(places.get(word, word) for word in words)), module, 0.05, number)
    assert status == 128 + number, error
    assert re.fullmatch(r"tsds: interrupted[^\n]*\n", error), error
    assert [path.name for path in tmp_path.rglob("*") if path.name not in ("out", "card.yaml")] == []
    assert tensorstore_ds.open(store).sha256 == before


def test_append(arrays: Path, tmp_path: Path) -> None:
    """The store is what it was, and the same command appends what there is to append."""
    path, more = tmp_path / "first.tsds", tmp_path / "more"
    more.mkdir()
    for name in ("images", "labels"):
        np.save(more / f"{name}.npy", np.load(arrays / f"{name}.npy", mmap_mode="r")[:6])
    tensorstore_ds.convert(more, path, ConvertOptions(workers=0, encoding="jpeg"))
    sha256 = tensorstore_ds.open(path).sha256
    words = ("append", path, arrays, "--workers", 2)
    status, error = interrupted(words, "tensorstore_ds.annex.editing.append", 0.3, signal.SIGTERM)
    assert status == 128 + signal.SIGTERM, error
    line = re.sub("note: 6 samples have keys that are in the store already: they are left out.\n", "", error)
    assert re.fullmatch(r"tsds: interrupted(; the same command goes on[^\n]*)?\n", line), error
    assert tensorstore_ds.open(path).sha256 == sha256
    assert tensorstore_ds.verify(path) == []


def test_verify(store: Path) -> None:
    status, error = interrupted(("verify", store, "--threads", 1), "tensorstore_ds.reading.verification", 0.05)
    assert (status, error) in ((130, "tsds: interrupted\n"), (0, ""))  # 0: it was quicker


@pytest.mark.slow
def test_train(store: Path, tmp_path: Path) -> None:
    words = ("train", store, "--out", tmp_path / "run", "--epochs", 1000, "--device", "cpu", "--model", "seed")
    status, error = interrupted(words, "tensorstore_ds.annex.training.train", 0.5)
    assert status == 130
    assert re.fullmatch(r"tsds: (interrupted|stopped in epoch)[^\n]*\n", error), error
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(("command", "more"), [("info", ()), ("stats", ("--json",)), ("verify", ())])
def test_a_reader_that_goes_away(store: Path, command: str, more: Sequence[str]) -> None:
    """As in ``tsds info store.tsds | head -1``."""
    words = [sys.executable, "-m", "tsds_cli", command, str(store), *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.read(1)
        run.stdout.close()
        assert run.stderr.read() == b""
