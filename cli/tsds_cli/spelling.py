"""The library names an option in backticks, as Python has it; a command's user reads the flag in its place."""

from __future__ import annotations

import re
from collections.abc import Mapping

import click

_NAME = re.compile(r"(?<!`)`([a-z_0-9]+)(?:=([^`]*))?`(?!`)")


def spelled(text: str, command: click.Command | None = None) -> str:
    """A message of the library with the flags of a command, the one that runs if none is given.

    What is no option of it may be one of `tsds convert`, which many messages advise to run again.
    """
    from tsds_cli.convert import convert

    if command is None:
        context = click.get_current_context(silent=True)
        command = context.command if context is not None else convert
    return with_flags(text, {str(p.name): p for p in (*convert.params, *command.params)})


def with_flags(text: str, parameters: Mapping[str, click.Parameter]) -> str:
    """A text with the flags of these parameters.

    >>> flags = {"on_error": click.Option(["--on-error"]), "train": click.Option(["--train/--no-train"])}
    >>> with_flags("Pass `on_error=skip` or `train=False`, `other`.", flags)
    'Pass --on-error skip or --no-train, `other`.'
    """

    def flag(match: re.Match[str]) -> str:
        parameter, value = parameters.get(match[1]), match[2]
        if parameter is None:
            return match[0]
        if isinstance(parameter, click.Argument):
            return parameter.human_readable_name
        if value == "False" and parameter.secondary_opts:
            return parameter.secondary_opts[0]
        return parameter.opts[0] if value in (None, "True") else f"{parameter.opts[0]} {value}"

    return _NAME.sub(flag, text)
