"""The tables of options in docs/commands.md, made from the commands' help: ``python tests/command_tables.py``."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tsds_cli.main import COMMANDS, cli

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"


def table(name: str) -> str:
    """A row for each option of a command."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    rows = ["| option | meaning |", "|---|---|"]
    for option in command.params:
        if isinstance(option, click.Option):
            flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
            choices = option.type.choices if isinstance(option.type, click.Choice) else ()
            meaning = re.sub(r"(?<!\S)(--[\w-]+)", r"`\1`", re.sub(r" +", " ", option.help or "").replace("|", "\\|"))
            one_of = f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""
            rows.append(f"| {flags} | {meaning}{one_of}{_default(option)} |")
    return "\n".join(rows)


def _default(option: click.Option) -> str:
    if isinstance(option.show_default, str):
        return f" Default: {option.show_default}."
    if not option.show_default or option.default is None:
        return ""
    if option.secondary_opts:
        return f" Default: {option.opts[0] if option.default else option.secondary_opts[0]}."
    return f" Default: {option.default}."


def with_tables(text: str) -> str:
    """The page with each command's table as it should be, at the end of its section or where one is."""
    for name in COMMANDS:
        section = re.search(rf"^## tsds {name}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, name
        made, count = re.subn(
            r"^\| option \|.*?\n(?=\n|\Z)", lambda _, n=name: f"{table(n)}\n", section[1], flags=re.M | re.S
        )
        if not count:
            made = f"{section[1].rstrip()}\n\n{table(name)}\n\n"
        text = text[: section.start(1)] + made + text[section.end(1) :]
    return text.rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8")), "utf-8")
