"""Signals where Python cannot raise them, and readers that go away. tests/faults interrupts whole commands."""

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

import pytest
from click.testing import CliRunner

import tensorstore_ds
from small_stores import VALID, tsds
from tsds_cli.main import cli
from tsds_cli.messages import failure_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals of Linux")


#: A terminal's signal, and that with which schedulers end a job.
NUMBERS = (signal.SIGINT, signal.SIGTERM)
NAMES = ("SIGINT", "SIGTERM")


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


NOTHING_YET = (
    " before a shard was finished; nothing is left of OUT. Run the same command again; a smaller --shard-size "
)


@pytest.mark.parametrize(
    ("words", "begun", "said"),
    [
        ("warm STORE", False, ""),
        *((f"{words} STORE OUT", False, "; OUT was not made") for words in ("pack", "unpack", "repack --layout zarr")),
        (
            "repack STORE OUT --encoding jpeg",
            True,
            "; finished shards are kept in OUT.partial, the same command goes on ",
        ),
        ("convert STORE OUT", False, NOTHING_YET),
    ],
)
def test_what_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, begun: bool, said: str
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        if begun:
            (tmp_path / "out.partial").mkdir()
        raise KeyboardInterrupt

    name, *others = words.split()
    monkeypatch.setattr(f"tensorstore_ds.{name}", interrupted)
    places = {"STORE": VALID / "chunks.tsds", "OUT": tmp_path / "out"}
    done = tsds(name, *(places.get(word, word) for word in others))
    assert done.exit_code == 130 and done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"tsds: interrupted{said.replace('OUT', str(places['OUT']))}")


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


@pytest.mark.parametrize(("command", "more"), [("info", ()), ("stats", ("--json",)), ("verify", ())])
def test_a_reader_that_goes_away(command: str, more: Sequence[str]) -> None:
    """As in ``tsds info store.tsds | head -1``."""
    words = [sys.executable, "-m", "tsds_cli", command, str(VALID / "classification.tsds"), *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as run:
        assert run.stdout is not None and run.stderr is not None
        assert run.stdout.read(1)
        run.stdout.close()
        assert run.stderr.read() == b""
