"""What the sweeps share, and the table of what they did."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.bench import Bench, Sweep
from faults.cases import (
    EDITS,
    EXPORTS,
    REPLACING,
    conversion,
    copying,
    editing,
    exporting,
    make_sources,
    repacking,
    replacing,
)
from faults.harness import Server, compile_shim


@pytest.fixture(scope="session")
def root() -> Iterator[Path]:
    """A folder in memory, if there is one: syncs cost nothing there."""
    memory = Path("/dev/shm")  # noqa: S108
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="tsds-faults-", dir=place) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def shim(root: Path) -> Path:
    """faultfs.c, compiled."""
    glibc = sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names
    if not glibc or sys.maxsize <= 2**32:
        pytest.skip("faults are injected between a program and glibc, on 64-bit Linux")
    if shutil.which("gcc") is None:
        pytest.skip("gcc is needed to compile faultfs.c")
    return compile_shim(root)


@pytest.fixture(scope="session")
def bench(root: Path, shim: Path) -> Iterator[Bench]:
    """Sources, a store of each layout, and a server that knows the commands."""
    make_sources(root)
    with Server(shim, root) as server:
        for name in ("raw-memmap", "raw-zarr", "voc-jpeg-zarr", "writer", "tasks"):
            server.warm(conversion(name, root, 0).argv(root / f"{name}.tsds"))
        server.warm(repacking("zarr", root).argv(root / "repacked.tsds"))
        server.warm(copying("pack", root).argv(root / "packed.zip"))
        for name in ("pull", "copy", "unpack"):
            server.warm(copying(name, root).argv(root / f"{name}-warm.tsds"))
        server.warm(["tsds", "card", str(root / "voc-jpeg-zarr.tsds"), str(root / "old-card")])
        cases = [*(editing(name, root) for name in EDITS), *(exporting(name, root) for name in EXPORTS)]
        for case in cases:
            server.warm(case.argv(root / f"{case.name}-warm"))
        for name in REPLACING:
            (folder := root / f"{name}-warm").mkdir()
            changing = replacing(name, root)
            server.warm(changing.argv(changing.lay_out(folder)))
        yield Bench(server, root)


@pytest.fixture(scope="session")
def torch_server(root: Path, shim: Path) -> Iterator[Server]:
    """A server of its own for checkpoints: forks of a process with torch take longer."""
    folder = root / "torch"
    folder.mkdir()
    with Server(shim, folder) as server:
        server.warm(["save", str(folder / "first.pt"), "1"])
        yield server


@pytest.fixture
def sweep(request: pytest.FixtureRequest, record_property: Any) -> Iterator[Sweep]:
    """An empty sweep that is named after the test, for the table; a test in parts is one sweep."""
    name = request.node.name.partition("[")[2].rstrip("]") or request.node.name
    found = Sweep(name.partition(" part ")[0])
    yield found
    record_property("sweep", found.as_data())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each sweep; as JSON where TSDS_FAULTS_REPORT says."""
    sweeps: dict[str, dict[str, Any]] = {}
    for report in [r for reports in terminalreporter.stats.values() for r in reports]:
        for key, value in getattr(report, "user_properties", ()):
            if key == "sweep" and report.when == "teardown":
                _add(sweeps.setdefault(value["name"], {"outcomes": {}}), value)
    if not sweeps:
        return
    terminalreporter.section("faults")
    width = max(map(len, sweeps))
    terminalreporter.write_line(f"{'sweep':{width}}  operations  trials  reruns  resumed  failures  outcomes")
    for name, found in sorted(sweeps.items()):
        outcomes = ", ".join(f"{outcome} {n:,}" for outcome, n in sorted(found["outcomes"].items()))
        columns = (("operations", 10), ("trials", 6), ("reruns", 6), ("resumed", 7), ("failures", 8))
        numbers = "  ".join(f"{found[column]:{size},}" for column, size in columns)
        terminalreporter.write_line(f"{name:{width}}  {numbers}  {outcomes}")
    total = {name: sum(found[name] for found in sweeps.values()) for name in ("trials", "reruns", "failures")}
    terminalreporter.write_line(
        f"in all: {total['trials']:,} trials, {total['reruns']:,} reruns, {total['failures']:,} failures"
    )
    if path := os.environ.get("TSDS_FAULTS_REPORT"):
        Path(path).write_text(json.dumps({"total": total, "sweeps": sweeps}, indent=1, sort_keys=True) + "\n")


def _add(found: dict[str, Any], part: dict[str, Any]) -> None:
    for name in ("trials", "reruns", "resumed", "failures"):
        found[name] = found.get(name, 0) + part[name]
    found["operations"] = max(found.get("operations", 0), part["operations"])
    for outcome, n in part["outcomes"].items():
        found["outcomes"][outcome] = found["outcomes"].get(outcome, 0) + n
