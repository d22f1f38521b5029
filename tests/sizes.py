"""Lines of each package and words of the documents, against the table in pyproject.toml, which only ever goes down.

``python tests/sizes.py`` lowers the numbers of the table to the ones found. A number that rises is edited by hand,
with the reason in a comment behind it and in the message of the commit.
"""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
SETTINGS = ROOT / "pyproject.toml"
#: Endings of the files that count, by what is counted in them.
SUFFIXES = {"lines": (".py", ".pyi", ".c", ".h", ".js"), "words": (".md",)}
#: What the core is: everything that is installed and no annex.
CORE, ANNEXES = ("tensorstore_ds", "cli"), ("tensorstore_ds/annex", "cli/tsds_cli/annex")


def table() -> dict[str, dict[str, int]]:
    """Most lines and most words, by folder."""
    tables: dict[str, dict[str, int]] = tomllib.loads(SETTINGS.read_text("utf-8"))["tool"]["sizes"]
    return tables


def found(folders: dict[str, int], suffixes: tuple[str, ...]) -> dict[str, int]:
    """Lines or words of each folder's files that are in no other folder of the table: ``.`` is the root alone."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    counts = dict.fromkeys(folders, 0)
    for name in listed.splitlines():
        path = PurePosixPath(name)
        folder = next((str(each) for each in path.parents if str(each) in counts), None)
        counted = folder is not None and (folder != "." or len(path.parts) == 1) and path.suffix in suffixes
        if folder is not None and counted and (ROOT / path).is_file():
            text = (ROOT / path).read_text("utf-8")
            counts[folder] += len(text.split()) if suffixes == SUFFIXES["words"] else text.count("\n")
    return counts


def totals(lines: dict[str, int]) -> tuple[int, int]:
    """Lines of the core, and of the core with its annexes."""
    whole = sum(count for folder, count in lines.items() if folder.startswith(CORE))
    return whole - sum(count for folder, count in lines.items() if folder.startswith(ANNEXES)), whole


def lower() -> None:
    """Write the numbers found into the table where they are lower."""
    counts = {name: found(folders, SUFFIXES[name]) for name, folders in table().items()}
    section, lines = "", list[str]()
    for line in SETTINGS.read_text("utf-8").splitlines(keepends=True):
        section = heading[1] if (heading := re.match(r"\[(.*)\]$", line)) else section
        entry = re.match(r'"(.*)" = ([0-9_]+)', line)
        if entry and section.startswith("tool.sizes."):
            least = min(int(entry[2]), counts[section.rpartition(".")[2]][entry[1]])
            line = f'"{entry[1]}" = {least:_}{line[entry.end() :]}'
        lines.append(line)
    SETTINGS.write_text("".join(lines), "utf-8")


if __name__ == "__main__":
    lower()
    core, whole = totals(found(table()["lines"], SUFFIXES["lines"]))
    print(f"core {core:,} lines, with the annexes {whole:,}")
