"""The pages of the commands in docs/commands: ``python tests/command_pages.py`` writes what is made by program.

These are the tables of options, from the commands' help, and the outputs in the examples, from running them. With names
of commands, only their pages are written.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from doc_pages import DOCS, ROOT, blocks, write_sources
from tsds_cli.main import COMMANDS, GROUPS, cli
from tsds_cli.options import Flag, grouped

OVERVIEW = DOCS / "commands.md"
#: A folder that the examples name, and that is one in a temporary folder.
SHARE = "/mnt/share"
#: Commands whose outputs differ from run to run in more than numbers.
VARYING = ("train", "predict", "bench", "doctor", "demo")
_TABLE = r"(?:\*\*[^*\n]+\*\*\n\n)?\| option \|.*\n(?:\|.*\n)*"
#: One table, or one for each group with an empty line between them.
_TABLES = re.compile(rf"^{_TABLE}(?:\n{_TABLE})*", re.MULTILINE)
_CONSOLE = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def page(name: str) -> Path:
    """The page of a command."""
    return DOCS / "commands" / f"{name}.md"


# --- options ----------------------------------------------------------------------------------------------------


def overview() -> str:
    """A row for each group of commands."""
    rows = ["| group | commands |", "|---|---|"]
    for title, commands in GROUPS.items():
        rows.append(f"| {title} | {', '.join(f'[{name}](commands/{name}.md)' for name in commands)} |")
    return "\n".join(rows)


def with_overview(text: str) -> str:
    """The page of all commands with the table of the groups, and the table of contents, as they should be."""
    text = re.sub(r"^\| group \|.*?\n(?=\n|\Z)", lambda _: f"{overview()}\n", text, count=1, flags=re.M | re.S)
    listed = "\n".join(f"tsds {name} <commands/{name}>" for name in COMMANDS)
    return re.sub(r"(?<=:maxdepth: 1\n\n).*?(?=```)", f"{listed}\n", text, count=1, flags=re.S)


def table(name: str) -> str:
    """A row for each option of a command; a table for each group if its help has groups."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    tables = []
    for title, options in grouped(command.params).items():
        rows = [f"**{title}**", ""] if title else []
        tables.append("\n".join([*rows, "| option | meaning |", "|---|---|", *map(_row, options)]))
    return "\n\n".join(tables)


def _row(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    choices = option.type.choices if isinstance(option.type, click.Choice) else ()
    help = re.sub(r" One of [^.]*\.$", "", re.sub(r" +", " ", option.help or "")) if choices else option.help or ""
    meaning = re.sub(r"(?<!\S)(--[\w-]+)", r"`\1`", help.replace("|", "\\|"))
    one_of = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
    default = option.shown_default if isinstance(option, Flag) else ""
    default = f"`{default}`" if default and default.startswith("--") else default
    return f"| {flags} | {meaning}{one_of}{f' Default: {default}.' if default else ''} |"


def with_tables(name: str, text: str) -> str:
    """The page of a command with its tables as they should be: where they are, or else at the end."""
    made, count = _TABLES.subn(lambda _: f"{table(name)}\n", text)
    return made if count else f"{text.rstrip()}\n\n## Options\n\n{table(name)}\n"


# --- examples ---------------------------------------------------------------------------------------------------


def run_examples(path: Path, folder: Path) -> list[str]:
    """Run a page's blocks in a folder with the sources; the content of each console block, with today's outputs."""
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("TSDS_", "COLUMNS"))},
        **{"COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "2", "XDG_CACHE_HOME": str(folder / "cache")},
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "cli")]),
    }
    share = folder / "share"
    share.mkdir(exist_ok=True)

    def run(words: list[str]) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 1) and "Traceback" not in done.stdout, done.stdout  # 1: check has found something
        shown = done.stdout.replace(str(share), SHARE).replace(f"{folder}/", "")
        return shown.replace(f"{Path(sys.executable).parent}/", "")  # the program, if it is not on the PATH

    consoles = []
    for block in blocks(str(path.relative_to(ROOT))):
        if block.kind == "python":
            run(["-c", block.text])
        elif block.kind == "console":
            parts = []
            for command in (line for line in block.text.splitlines() if line.startswith("$ ")):
                words = shlex.split(command.removeprefix("$ tsds").replace(SHARE, str(share)))
                output = run(["-m", "tsds_cli", *words])
                lines = [line.rstrip() for line in output.rstrip("\n").splitlines()]
                parts.append("\n".join([command, *lines]) + "\n")
            consoles.append("\n".join(parts))
    return consoles


def with_outputs(text: str, consoles: list[str]) -> str:
    """The page with what its examples have printed."""
    made = iter(consoles)
    return _CONSOLE.sub(lambda _: next(made), text)


def masked(text: str) -> str:
    """A text without what differs from machine to machine and from run to run: numbers, digests and bars.

    >>> masked("took 1.25 s   ████") == masked("took 80 ms  ██")
    True
    """
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "DIGEST", text)
    text = re.sub(r"\d[\d,.:]*(?:-\d\d[T\d:+-]*)?", "0", text)
    text = re.sub(r"\b0 ?(?:B|kB|MB|GB|µs|ms|s|min|h)\b(?:/s)?", "0", text)
    text = re.sub(r"[█▉▊▋▌▍▎▏]+", "", text)
    return "\n".join(re.sub(r"[ -]+", " ", line).strip() for line in text.splitlines())


def main(names: list[str]) -> None:
    """Write the pages of these commands, or of all of them."""
    OVERVIEW.write_text(with_overview(OVERVIEW.read_text("utf-8")), "utf-8")
    for name in names or COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            write_sources(Path(folder))
            text = with_tables(name, page(name).read_text("utf-8"))
            text = with_outputs(text, run_examples(page(name), Path(folder)))
        page(name).write_text(text, "utf-8")
        print(page(name).relative_to(ROOT))


if __name__ == "__main__":
    main(sys.argv[1:])
