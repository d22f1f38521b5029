"""One loader in a process of its own, and the handle by which a race asks it for epochs.

``python -m benchmarks.lane PEER MODE SOURCE TARGET BATCH`` converts the data, goes through one epoch to check what is
delivered, and then runs epochs as it is told by lines on its standard input. It answers in lines of JSON.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.checksums import digest, marks
from benchmarks.measure import ROOT
from benchmarks.peers import ALL, Peer
from benchmarks.samples import open_arrays

#: An answer takes this long at most, in seconds; the first includes converting the data.
_PATIENCE = 900
#: Short epochs are repeated for as long, in seconds, so that one timing is never a few milliseconds.
_AT_LEAST = 0.2


class Lane:
    """A loader in a race, from the parent's side.

    Args:
        peer: what loads.
        mode: one of its ways.
        source: the folder of the data set.
        scratch: a folder for the peer's own format and its log.
        batch: samples a batch.

    Attributes:
        state: ``ready``; ``missing``: it is not installed; ``failed``.
        reason: why it is not ready.
        digest: of all that it delivered in its first epoch.
        seconds: an epoch, of each round; None for a round it did not take part in.
        spent: seconds it ran since the data were converted.
        nbytes: of its own format on disk.
    """

    def __init__(self, peer: Peer, mode: str, source: Path, scratch: Path, batch: int) -> None:
        self.peer, self.mode, self.batch = peer, mode, batch
        self.state = self.reason = self.digest = self.version = ""
        self.seconds: list[float | None] = []
        self.spent = 0.0
        self.rows = self.nbytes = 0
        name = f"{peer.module}-{mode.replace(' ', '-').replace(',', '')}-{batch}"
        target = scratch / name
        target.mkdir()
        temporary = scratch / "tmp"
        temporary.mkdir(exist_ok=True)
        self._log = scratch / f"{name}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.lane", peer.module, mode, str(source), str(target), str(batch)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Peers write, lock and delete files of fixed names in the system's temporary folder: they get one.
                env={**os.environ, "TMPDIR": str(temporary), "HF_HUB_OFFLINE": "1"},
                start_new_session=True,  # so that its workers end with it, whatever state it is in
            )

    def __enter__(self) -> Lane:
        self._note(self._answer())
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None and self._process.stdin:
            self._process.stdin.close()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def run_epoch(self, *, counted: bool) -> None:
        """One round: epochs for a fifth of a second at least; the mean counts."""
        answer = self._ask("epoch")
        if self.state == "ready" and answer["rows"] != self.rows:
            self.state, self.reason = "failed", f"an epoch of {answer['rows']} samples after one of {self.rows}"
        if self.state == "ready":
            self.spent += answer["spent"]
        if counted:
            self.seconds.append(answer["seconds"] if self.state == "ready" else None)

    def skip(self) -> None:
        """A round without it."""
        self.seconds.append(None)

    def _ask(self, what: str) -> dict[str, Any]:
        if self._process.stdin is None or self._process.poll() is not None:
            answer = self._failed()
        else:
            self._process.stdin.write(what + "\n")
            self._process.stdin.flush()
            answer = self._answer()
        if answer["state"] != "ready":
            self._note(answer)
        return answer

    def _answer(self) -> dict[str, Any]:
        if self._process.stdout is None:
            raise RuntimeError(f"{self.peer.title}: expected a pipe")
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(_PATIENCE):
                os.killpg(self._process.pid, signal.SIGKILL)
                return {"state": "failed", "reason": f"no answer in {_PATIENCE} s"}
        line = self._process.stdout.readline()
        return json.loads(line) if line else self._failed()

    def _failed(self) -> dict[str, Any]:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return {"state": "failed", "reason": lines[-1].strip() if lines else "it ended without a word"}

    def _note(self, answer: dict[str, Any]) -> None:
        for name, value in answer.items():
            setattr(self, name, value)


# --- the process itself -------------------------------------------------------------------------------------------


def main(module: str, mode: str, source: Path, target: Path, batch: int) -> Iterator[dict[str, Any]]:
    """Answers: the first when all is ready, then one a line of standard input."""
    peer = ALL[module]
    try:
        code = importlib.import_module(f"benchmarks.peers.{module}")
        version = importlib.metadata.version(peer.package) if peer.package else ""
    except ImportError as error:
        yield {"state": "missing", "reason": f"{error}".splitlines()[0]}
        return
    code.write(source, target, mode)
    loader = code.load(source, target, batch, mode)
    begun = time.perf_counter()
    grey = (source / "images.npy").exists() and open_arrays(source)[0].shape[-1] == 1
    found = [mark for item in loader for mark in marks(code.columns(item), grey)]
    yield {
        "state": "ready",
        "version": version,
        "rows": len(found),
        "digest": digest(found),
        "spent": time.perf_counter() - begun,
        "nbytes": sum(file.stat().st_size for file in target.rglob("*") if file.is_file()),
    }
    for _ in sys.stdin:
        seconds: list[float] = []
        rows: list[int] = []
        while sum(seconds) < _AT_LEAST:
            begun = time.perf_counter()
            rows.append(sum(len(code.columns(item)) for item in loader))
            seconds.append(time.perf_counter() - begun)
        answer = {"rows": max(rows, key=lambda n: abs(n - rows[0])), "seconds": float(np.mean(seconds))}
        yield {"state": "ready", "spent": sum(seconds), **answer}


if __name__ == "__main__":
    # Whatever a peer prints goes to the log.
    _answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for _answer in main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), int(sys.argv[5])):
        print(json.dumps(_answer), file=_answers)
