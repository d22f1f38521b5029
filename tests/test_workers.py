"""Worker processes: how they start, what they are told, and that nothing of them is waited for without end."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

import tensorstore_ds as tsds
from tensorstore_ds.conversion import workers
from tensorstore_ds.conversion.options import ConvertOptions
from waiting import wait_for
from worker_sources import ByParent, Gray, Leaving, Slow, Stopping, TorchThreads, Unloadable, WithThread

pytestmark = pytest.mark.slow


@pytest.fixture
def begun():
    """The processes that a test has begun, and that have not ended: other tests may have left some of their own."""
    before = psutil.Process().children(recursive=True)
    return lambda recursive=True: [
        child for child in psutil.Process().children(recursive=recursive) if child not in before
    ]


def run_script(folder, text, *words, **environment):
    """Run `text` in a process of its own: ``script.py``, or by other `words`, which also get it as their input."""
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, *(words or ["script.py"])],
        cwd=folder,
        env={**os.environ, **environment},
        input=text,
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_a_data_set_of_torch_with_default_options(tmp_path):
    """Its transform starts OpenMP's threads here, in the first sample that is looked at; then workers begin."""
    text = """
from torchvision.datasets import FakeData
from torchvision.transforms import ToTensor
import tensorstore_ds as tsds

if __name__ == "__main__":
    data = FakeData(6, (3, 224, 224), transform=ToTensor())
    data.classes = [str(i) for i in range(10)]
    print(tsds.convert(data, "out.tsds").notes)
"""
    done = run_script(tmp_path, text, OMP_NUM_THREADS="2")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "()\n")
    assert len(tsds.open(tmp_path / "out.tsds")["train"]) == 6


#: What makes a fork unsafe: a second thread, or torch with its OpenMP. Where there is neither, workers are forked.
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
PREPARED = {"thread": THREAD, "torch": "import torch", "plain": ""}
#: A script of the test itself, whose images have the values 0 to 3.
GRAY = """
import numpy as np
import tensorstore_ds as tsds

class Gray:
    def __len__(self): return 4
    def __getitem__(self, i): return np.full((2, 2), i, np.uint8)

print("top")
"""
PRINTS_ONCE = """
{prepared}
import os, sys
sys.path.insert(0, {here!r})
import tensorstore_ds as tsds
from waiting import wait_for
from worker_sources import ByProcess

print("top")
print(tsds.convert(ByProcess(40), "out.tsds", workers=2).notes)
print(os.getpid() in tsds.open("out.tsds")["train"]["image"].take(range(40)))
"""


@pytest.mark.drawn(4)
@pytest.mark.parametrize(
    ("way", "prepared"),
    [
        *(("script", prepared) for prepared in PREPARED),
        *((way, "thread") for way in ("command", "module", "stdin in a folder with a script of the name")),
    ],
)
def test_a_script_without_a_guard_is_run_once(tmp_path, way, prepared):
    """Its worker processes are other programs, or forked; none of them runs it again, and none converts it here."""
    text = PRINTS_ONCE.format(prepared=PREPARED[prepared], here=str(Path(__file__).parent))
    if way.startswith("stdin"):
        (tmp_path / "json.py").write_text("raise SystemExit('imported from the current folder')")
    words = {"script": ["script.py"], "command": ["-c", text], "module": ["-m", "script"]}.get(way, ["-P", "-"])
    done = run_script(tmp_path, text, *words)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "top\n()\nFalse\n")


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("way", "prepared"), [*(("script.py", prepared) for prepared in PREPARED), ("-", "thread"), ("notebook", "thread")]
)
def test_a_source_of_the_script_itself_converts_and_the_script_runs_once(tmp_path, way, prepared):
    """It is inherited where workers are forked; a program of ours could not import it without running the script."""
    text = f"{PREPARED[prepared]}{GRAY}print(*tsds.convert(Gray(), 'out.tsds', workers=2).notes, sep='\\n', end='')"
    if way == "notebook":  # its cells are run in a module __main__ that has no file
        text, way = f"import sys; del sys.modules['__main__'].__spec__\nexec(compile({text!r}, '<cell>', 'exec'))", "-"
    done = run_script(tmp_path, text, way)
    assert (done.returncode, done.stderr) == (0, "")
    top, *notes = done.stdout.splitlines()
    assert top == "top" and len(notes) == (prepared != "plain")
    assert all("Gray is defined in the script" in note and "in this process alone" in note for note in notes)
    assert np.array_equal(np.asarray(tsds.open(tmp_path / "out.tsds")["train"]["image"])[:, 0, 0, 0], range(4))


def test_a_module_that_converts_as_it_is_imported_is_not_imported_again(tmp_path):
    text = f"import torch{GRAY}print(len(tsds.convert(Gray(), 'out.tsds', workers=2).notes))"
    (tmp_path / "work.py").write_text(text)
    done = run_script(tmp_path, "import work")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "top\n1\n")


def test_programs_end_with_a_parent_that_is_killed(tmp_path):
    """Also one that sleeps in its source."""
    text = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
import tensorstore_ds as tsds
from waiting import wait_for
from worker_sources import Slow

tsds.convert(Slow(600, 3, 3600), "out.tsds", workers=2)
"""
    (tmp_path / "script.py").write_text(text)
    parent = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path)
    try:
        assert wait_for(lambda: len(psutil.Process(parent.pid).children(recursive=True)) == 3, 60)  # one has forked two
        children = psutil.Process(parent.pid).children(recursive=True)
    finally:
        parent.kill()
        parent.wait()
    assert psutil.wait_procs(children, 60)[1] == []


@pytest.mark.skipif(os.name == "nt", reason="forks")
@pytest.mark.parametrize("unread", [False, True])
def test_a_worker_whose_parent_stops_asking_ends_without_a_word(tmp_path, unread):
    """Its pipe is closed, which it notices as it answers, or as it asks for more."""
    text = f"""
from types import SimpleNamespace as Names
from tensorstore_ds.conversion import worker

ours, theirs = worker.connections.Pipe()
ours.send("no block: this is answered by an error")
if {unread}:
    theirs.send("an answer")
ours.close()
shared = Names(wait_for_the_end=int, positions=[0], gate=Names(release=int, take=int))
worker.work(None, theirs, shared, 0)
"""
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_that_is_stopped_is_named_and_ended(tmp_path, monkeypatch, begun):
    """No thread of it can tell anything, and it takes no word: its position is read, and it is killed."""
    monkeypatch.setattr(workers, "start_method", lambda: "program")
    monkeypatch.setattr(workers, "SILENCE", 0.5)
    events = []

    def stop(event):
        events.append(event.note)
        if event.note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.convert(Stopping(600, 3), tmp_path / "s.tsds", workers=2, progress=stop)
    assert any(note.startswith("train/00003: nothing was heard") for note in events)
    assert [child for child in begun() if child.status() == psutil.STATUS_STOPPED] == []


@pytest.mark.parametrize(("code", "method"), [("", "fork"), ("import torch", "program")])
def test_workers_are_forked_where_no_library_has_threads(code, method):
    code += "\nfrom tensorstore_ds.conversion.workers import start_method; print(start_method())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{method}\n", done.stderr


def test_a_worker_has_one_thread_of_torch(tmp_path, monkeypatch):
    import torch  # loaded here, so that the worker is a program

    assert torch.__version__
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    tsds.convert(TorchThreads(3), tmp_path / "s.tsds", ConvertOptions(workers=1))
    assert np.asarray(tsds.open(tmp_path / "s.tsds")["train"]["image"]).max() == 1


def test_the_silence_of_a_worker_is_told_with_its_samples_name(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "SILENCE", 0.3)
    events = []
    summary = tsds.convert(Slow(5, 3, 1.2), tmp_path / "s.tsds", ConvertOptions(workers=1), progress=events.append)
    assert summary.notes and set(summary.notes) == {event.note for event in events} - {""}
    assert any(note.startswith("train/00003: nothing was heard for 0.3 s") for note in summary.notes)
    assert len(tsds.open(tmp_path / "s.tsds")["train"]) == 5


@pytest.mark.parametrize("method", ["fork", "program"])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_worker_that_hangs_ends_with_the_conversion(tmp_path, monkeypatch, method, begun):
    monkeypatch.setattr(workers, "start_method", lambda: method)
    monkeypatch.setattr(workers, "SILENCE", 0.2)

    def stop(event):
        if event.note:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.convert(Slow(600, 3, 3600), tmp_path / "s.tsds", ConvertOptions(workers=2), progress=stop)
    assert begun() == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "limit", "why"),
    [
        (Unloadable(600), 2**30, "cannot be rebuilt in a worker process (this is only"),
        ([np.zeros((4, 4), np.uint8)] * 600, 100, "each worker would have a copy"),
        (type("Local", (Gray,), {})(600), 2**30, "cannot be sent to worker processes"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_cannot_be_sent_to_workers_is_converted_here(tmp_path, monkeypatch, source, limit, why, count):
    monkeypatch.setattr(workers, "start_method", lambda: "program")
    monkeypatch.setattr(workers, "memory_limit", lambda: limit)
    (note,) = tsds.convert(source, tmp_path / "s.tsds", ConvertOptions(workers=count)).notes
    assert "converted in this process alone" in note and why in note
    assert len(tsds.open(tmp_path / "s.tsds")["train"]) == 600


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks here")
@pytest.mark.parametrize(("source", "forks"), [(ByParent, True), (WithThread, False)])
def test_one_program_forks_the_others_unless_the_source_has_threads(tmp_path, monkeypatch, source, forks):
    monkeypatch.setattr(workers, "start_method", lambda: "program")
    before = set(os.listdir("/proc/self/fd"))
    assert tsds.convert(source(1100), tmp_path / "s.tsds", workers=3).notes == ()
    images = np.asarray(tsds.open(tmp_path / "s.tsds")["train"]["image"])
    parents = set(images.reshape(1100, -1).view(np.uint32).flat)
    assert len(parents) == 1 and (os.getpid() not in parents) == forks
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (3, r"^the source ended its worker process with status 3\. Convert with 0 workers to see where\.$"),
        (-9, "was killed"),
    ],
)
@pytest.mark.parametrize(("method", "count"), [("program", 1), ("program", 2), ("fork", 2)])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_how_a_worker_ended_is_told(tmp_path, monkeypatch, status, message, method, count, begun):
    monkeypatch.setattr(workers, "start_method", lambda: method)
    with pytest.raises(tsds.errors.ConversionError, match=message):
        tsds.convert(Leaving(600, 35, status), tmp_path / "s.tsds", workers=count)
    assert begun() == []


def test_a_kill_of_the_program_that_forks_ends_nothing(tmp_path, monkeypatch, begun):
    """Its workers go on; they end with the conversion."""
    monkeypatch.setattr(workers, "start_method", lambda: "program")
    monkeypatch.setattr(workers, "SILENCE", 0.3)
    gone = []

    def kill(event):
        if event.note and not gone:
            (forking,) = begun(recursive=False)
            gone.extend(forking.children())
            forking.kill()

    tsds.convert(Slow(600, 3, 1.5), tmp_path / "s.tsds", workers=2, progress=kill)
    assert len(gone) == 2 and psutil.wait_procs(gone, 60)[1] == []
    assert np.asarray(tsds.open(tmp_path / "s.tsds")["train"]["image"])[:, 0, 0, 0].tolist() == [
        i % 256 for i in range(600)
    ]


def test_a_worker_that_dies_while_the_program_that_forks_is_stopped(tmp_path, monkeypatch, begun):
    monkeypatch.setattr(workers, "start_method", lambda: "program")
    monkeypatch.setattr(workers, "SILENCE", 0.3)
    family = []

    def stop(event):
        if event.note and not family:
            (forking,) = begun(recursive=False)
            family.extend([*forking.children(), forking])
            forking.suspend()
            family[0].kill()

    with pytest.raises(tsds.errors.ConversionError, match="a worker process died"):
        tsds.convert(Slow(600, 3, 1.5), tmp_path / "s.tsds", workers=2, progress=stop)
    assert len(family) == 3 and psutil.wait_procs(family, 60)[1] == []


@pytest.mark.parametrize("count", [1, 2])
def test_a_python_that_may_not_be_started_is_no_end(tmp_path, monkeypatch, count):
    (tmp_path / "python").touch(0o600)
    monkeypatch.setattr(workers, "start_method", lambda: "program")
    monkeypatch.setattr("multiprocessing.spawn.get_executable", lambda: str(tmp_path / "python"))
    (note,) = tsds.convert(Gray(600), tmp_path / "s.tsds", workers=count).notes
    assert "converted in this process alone: worker processes cannot be started ([Errno 13] Permission denied" in note
    assert len(tsds.open(tmp_path / "s.tsds")["train"]) == 600


def test_few_descriptors_leave_none_open(tmp_path):
    """Whichever of the pipes is the first that cannot be had, what is open already is closed."""
    text = """
import os, resource
from tensorstore_ds.conversion.worker import Shared

free = os.open("/dev/null", os.O_RDONLY)
os.close(free)
for more in range(9):
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, 1000))
    try:
        Shared(2, 10**9).close()
        print("made")
    except OSError as error:
        print(error.errno)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, 1000))
    again = os.open("/dev/null", os.O_RDONLY)
    assert again == free, (more, again, free)
    os.close(again)
"""
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    *few, last = done.stdout.splitlines()
    assert last == "made" and set(few) == {"24"}


def test_large_images_are_decoded_one_after_another_where_memory_is_short(tmp_path, monkeypatch):
    for i in range(4):
        Image.new("L", (4000, 2500), i).save(tmp_path / f"{i}.png", compress_level=1)
    monkeypatch.setattr(workers, "memory_limit", lambda: 100 * 1024**2)
    options = ConvertOptions(workers=2, size=(4, 4), encoding="jpeg")
    tsds.convert(tmp_path, tmp_path.with_suffix(".tsds"), options)
    assert len(tsds.open(tmp_path.with_suffix(".tsds"))["train"]) == 4


def test_a_block_of_encoded_images_does_not_keep_their_pixels(tmp_path):
    """Images of one color are some kilobytes as files: a block has hundreds of them."""
    for i in range(24):
        Image.new("L", (3000, 3000), i).save(tmp_path / f"{i}.png", compress_level=1)
    code = """
import re, sys
import tensorstore_ds as tsds
tsds.convert(sys.argv[1], sys.argv[1] + ".tsds", tsds.ConvertOptions(workers=0, encoding="source"))
print(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)
    assert int(done.stdout) < 200_000, done.stderr  # the pixels of all are 216 MB


def test_a_worker_that_is_killed_at_any_moment_is_an_error(tmp_path):
    """Also in the middle of an answer, which here takes many writes to its pipe."""
    text = """
import multiprocessing, os, signal, threading, time
import numpy as np
import tensorstore_ds as tsds

class Mortal:
    def __init__(self, delay): self.delay = delay
    def __len__(self): return 40
    def __getitem__(self, i):
        if i == 9 and multiprocessing.parent_process():
            kill = lambda: (time.sleep(self.delay), os.kill(os.getpid(), signal.SIGKILL))
            threading.Thread(target=kill, daemon=True).start()
        return np.random.default_rng(i).integers(0, 256, (400, 400, 3), np.uint8)

for n in range(12):
    try:
        options = tsds.ConvertOptions(workers=2, encoding=tsds.Jpeg(95), shard_nbytes=10**6)
        tsds.convert(Mortal(n * 0.012), f"{n}.tsds", options)
        print("whole")
    except tsds.errors.ConversionError as error:
        print(error)
"""
    done = run_script(tmp_path, text)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert len(said) == 12 and sum(line.startswith("a worker process died") for line in said) >= 6
    assert {line for line in said if not line.startswith("a worker process died")} <= {"whole"}
