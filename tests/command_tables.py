"""The tables in docs/commands.md, made from the commands' help: ``python tests/command_tables.py`` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tsds_cli.main import COMMANDS, GROUPS, cli
from tsds_cli.options import Flag, grouped

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
_TABLE = r"(?:\*\*[^*\n]+\*\*\n\n)?\| option \|.*\n(?:\|.*\n)*"
#: One table, or one for each group with an empty line between them.
_TABLES = re.compile(rf"^{_TABLE}(?:\n{_TABLE})*", re.MULTILINE)


def overview() -> str:
    """A row for each group of commands."""
    rows = ["| group | commands |", "|---|---|"]
    for title, commands in GROUPS.items():
        rows.append(f"| {title} | {', '.join(f'[{name}](#tsds-{name})' for name in commands)} |")
    return "\n".join(rows)


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
    return f"| {flags} | {meaning}{one_of}{f' Default: {default}.' if default else ''} |"


def with_tables(text: str) -> str:
    """The page with the tables as they should be: at the end of a command's section, or where one is."""
    text = re.sub(r"^\| group \|.*?\n(?=\n|\Z)", lambda _: f"{overview()}\n", text, count=1, flags=re.M | re.S)
    for name in COMMANDS:
        section = re.search(rf"^## tsds {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        made, count = _TABLES.subn(lambda _, n=name: f"{table(n)}\n", section[1])
        if not count:
            made = f"{section[1].rstrip()}\n\n{table(name)}\n\n"
        text = text[: section.start(1)] + made + text[section.end(1) :]
    return text.rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
