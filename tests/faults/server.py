"""Runs ``tsds`` in forks of one process that has imported everything, under faultfs.c; spoken to by lines of JSON.

A trial then costs what the conversion itself costs, not the second in which Python starts. Started by `harness.Server`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from faults.calls import every_call

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes whose parent was killed become this one's children


def tsds(argv: Sequence[str]) -> None:
    from tsds_cli.main import main

    sys.argv = ["tsds", *argv]
    main()


def save_checkpoints(argv: Sequence[str]) -> None:
    """Save at a path one checkpoint after the other, each with weights of one value: PATH VALUE..."""
    import torch

    from faults.checkpoints import CARD
    from tensorstore_ds.annex.training import checkpoint
    from tensorstore_ds.errors import OutputError

    try:
        for value in argv[1:]:
            weights = {"first": torch.full((300,), float(value)), "second": torch.full((5000,), float(value))}
            checkpoint.save(Path(argv[0]), CARD, {"weights": weights})
    except OutputError as error:
        sys.exit(f"tsds: {error}")


def write_samples(argv: Sequence[str]) -> None:
    """Write the images below a folder with a `tsds.Writer`, split by split: FOLDER OUT."""
    from tensorstore_ds.conversion.writer import Writer
    from tensorstore_ds.errors import TsdsError

    folder = Path(argv[0])
    try:
        with Writer(argv[1], shard_nbytes=1000, on_error="skip", classes=["ant", "bee"]) as writer:
            for path in sorted(folder.rglob("*.png")):
                split, label, name = path.relative_to(folder).parts
                writer.append(split, image=path, label=label, key=f"{label}/{name}")
    except TsdsError as error:
        sys.exit(f"tsds: {error}")
    print(*writer.summary.notes, sep="\n")
    if writer.summary.resumed:
        print(f"{writer.summary.resumed} shards are used again")


def convert_by_tasks(argv: Sequence[str]) -> None:
    """Plan, convert in two tasks, the last one twice, and commit: SOURCE OUT."""
    import tensorstore_ds as tsds
    from tensorstore_ds.errors import TsdsError

    source, out = argv
    try:
        tsds.clusters.plan(source, out, tsds.ConvertOptions(shard_nbytes=1000, on_error="skip", workers=0), tasks=2)
        there = [tsds.clusters.convert_task(out, task).there for task in (1, 0, 0)]
        summary = tsds.clusters.commit(out)
    except TsdsError as error:
        sys.exit(f"tsds: {error}")
    print(*summary.notes, sep="\n")
    if any(there[:2]):
        print("shards are used again")


def read_by_url(argv: Sequence[str]) -> None:
    """Compare the images of a store by URL with those of the same store on this disk: URL CACHE STORE."""
    import numpy as np

    import tensorstore_ds as tsds
    from tensorstore_ds.errors import TsdsError

    url, cache, path = argv
    expected = tsds.open(path)["train"].column("image")[:]
    try:
        store = tsds.open(url, cache_dir=cache)
    except TsdsError as error:
        sys.exit(f"tsds: {error}")
    try:
        found = store["train"].column("image")[:]
    except (TsdsError, OSError) as error:  # as of a store on this disk: the system's error, shown in a line by commands
        sys.exit(f"tsds: {error}")
    if not np.array_equal(found, expected):
        sys.exit("WRONG DATA")


COMMANDS: dict[str, Callable[[Sequence[str]], None]] = {
    "tsds": tsds,
    "write": write_samples,
    "tasks": convert_by_tasks,
    "save": save_checkpoints,
    "read": read_by_url,
    "calls": every_call,
}


def run(shim: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Run one command in a child with the fault asked for, and wait for every process that came of it."""
    output = os.memfd_create("output")
    before = set(sys.modules)
    names = ("action", "at", "error", "counted", "failing")
    texts = (request["prefix"].encode(), request["log"].encode())
    shim.faultfs_arm(*(request[name] for name in names), *texts, request["clock"])
    child = os.fork()
    if child == 0:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        os._exit(_perform(request["argv"], before))
    code, hung = _wait(child, request["limit"])
    result = {
        "code": code,
        "hung": hung,
        "text": os.pread(output, 100_000, 0).decode(errors="replace"),
        "count": shim.faultfs_count(),
        "fired": shim.faultfs_fired(),
        "what": shim.faultfs_what().decode(errors="replace"),
    }
    shim.faultfs_arm(0, 0, 0, 0, 0, b"", b"", 0)
    os.close(output)
    return result


def _perform(argv: list[str], before: set[str]) -> int:
    code: Any = 99
    try:
        if argv[0] == "modules":  # what a command imports, for the server to have it already
            try:
                COMMANDS[argv[1]](argv[2:])
            except SystemExit as end:
                if end.code:
                    raise RuntimeError(f"{argv}: {end.code}") from end
            new = [(name, module) for name, module in sys.modules.items() if name not in before]
            found = [name for name, module in new if getattr(module.__spec__, "name", None) == name]
            os.ftruncate(1, 0)
            os.pwrite(1, json.dumps(found).encode(), 0)
            return 0
        COMMANDS[argv[0]](argv[1:])
        code = 0
    except SystemExit as end:
        code = end.code or 0
        if isinstance(code, str):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code)


def _wait(child: int, limit: float) -> tuple[int, bool]:
    """The child's exit code, negative for a signal, and whether it or a process of its own had to be killed."""
    code, hung, deadline = 0, False, time.monotonic() + limit
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code, hung
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
        elif pid == 0:
            if time.monotonic() > deadline:
                hung = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
            time.sleep(0.001)


def _scale_down() -> None:
    """Let shards of a few samples be as those of many: of several blocks; and take no 8 MiB to read a small file."""
    importlib.import_module("tensorstore_ds.conversion.plan").BLOCK_ROWS = 2
    importlib.import_module("tensorstore_ds.conversion.shard_writer").COPY_NBYTES = 4096
    if mirror := sys.modules.get("tensorstore_ds.reading.mirror"):
        mirror.SMALL_NBYTES = 0  # type: ignore[attr-defined]  # fetched chunk by chunk, as large files are


def main() -> None:
    shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
    for name in ("faultfs_count", "faultfs_fired"):
        getattr(shim, name).restype = ctypes.c_long
    shim.faultfs_what.restype = ctypes.c_char_p
    # action, at, error, counted, failing, prefix, log, clock
    shim.faultfs_arm.argtypes = [
        *(ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        *(ctypes.c_char_p, ctypes.c_char_p, ctypes.c_long),
    ]
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        request = json.loads(line)
        result = run(shim, request)
        if request["argv"][0] == "modules" and result["code"] == 0:
            for module in json.loads(result["text"]):
                importlib.import_module(module)
            _scale_down()
            gc.freeze()  # forks share these pages until they end
        print(json.dumps(result), file=answers)


if __name__ == "__main__":
    main()
