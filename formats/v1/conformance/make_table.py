"""Write the table of readers in README.md: ``python make_table.py``. Each reader runs on all conformance stores.

Python readers need their packages. The one in C is compiled with ``make`` in ``../examples/c``. For zarrita,
``ZARRITA`` is a folder where ``npm install zarrita`` was run. A reader that cannot run keeps its row.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from check_reader import HERE, judge

README = HERE / "README.md"
STAGES = ("valid", "invalid, open", "invalid, map", "invalid, verify", "invalid, decode")
BEGIN, END = "<!-- written by make_table.py -->", "<!-- end -->"


def readers() -> dict[str, tuple[str, str, list[str] | None]]:
    """For each reader its name, version, last stage and command; None if it cannot run here."""

    def python(program: str) -> list[str]:
        return [sys.executable, str(HERE / "readers" / program)]

    def version(package: str) -> str:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return ""

    binary, zarrita = HERE.parent / "examples/c/reader", os.environ.get("ZARRITA")
    of_node = None
    if zarrita and shutil.which("node"):
        shutil.copy(HERE / "readers/zarrita.mjs", zarrita)
        of_node = ["node", str(Path(zarrita) / "zarrita.mjs")]
    zarrs = f"{version('zarrs')}, in zarr-python {version('zarr')}"
    return {
        "tensorstore-ds": (version("tensorstore-ds"), "decode", python("tensorstore_ds_python.py")),
        "`examples/c/reader.c`": ("", "decode", [str(binary)] if binary.is_file() else None),
        "`examples/minimal_reader.py`": (f"Python {platform.python_version()}", "valid", python("minimal_python.py")),
        "zarr-python": (version("zarr"), "valid", python("zarr_python.py")),
        "TensorStore": (version("tensorstore"), "valid", python("tensorstore_python.py")),
        "zarrs": (zarrs, "valid", python("zarrs_python.py") if version("zarrs") else None),
        "zarrita": (node_version() if of_node else "", "valid", of_node),
    }


def node_version() -> str:
    """The version of Node."""
    done = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return f"Node {done.stdout.strip().removeprefix('v')}"


def row(name: str, version: str, last: str, command: list[str]) -> str:
    """The row of a reader in the table."""
    counts, wrong = judge(command, last=last)
    print(name, *wrong, sep="\n  ")
    cells = ["{1} of {0}".format(*counts[stage]) if stage in counts else "" for stage in STAGES]
    return f"| {name} | {version} | {' | '.join(cells)} |"


def main() -> None:
    """Replace the table in README.md."""
    text = README.read_text("utf-8")
    before, table, after = re.split(f"{re.escape(BEGIN)}|{re.escape(END)}", text)
    kept = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("|")}
    rows = [
        row(name, version, last, command) if command else kept.get(name, "")
        for name, (version, last, command) in readers().items()
    ]
    head = f"Right answers on {datetime.now(UTC):%Y-%m-%d}, {platform.system()}, Python {platform.python_version()}:"
    lines = [
        "",
        head,
        "",
        "| reader | version | valid | invalid: open | map | verify | decode |",
        "|---|---|--:|--:|--:|--:|--:|",
        *filter(None, rows),
        "",
    ]
    README.write_text(before + BEGIN + "\n".join(lines) + END + after, "utf-8")


if __name__ == "__main__":
    main()
