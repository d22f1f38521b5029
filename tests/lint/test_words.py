"""Documentation, help, public docstrings and messages are in plain English: CONTRIBUTING.md lists the patterns.

Code blocks, code in backticks, addresses of links and HTML comments are not searched.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping
from typing import Any

import click
import pytest

from doc_pages import ROOT, pages
from library import library, literals
from public_names import public_names
from tsds_cli.main import COMMANDS, cli

#: A pattern, and what to write instead. Case matters only where a sentence begins.
PATTERNS = {
    r"\b(that|those) of\b": "repeat the noun, or use 's",
    r"\bin the place of\b": "instead of, in place of",
    r"\bby way of\b": "with, through",
    r"\b(so|as) many as\b|\b(in|by|to|for|of) so many\b": "a number or a noun",
    r"\bsuch as (were|are|is|was)\b|\band such\b": "a noun",
    r", too(?=[.,;:)]|\s*$| \|)": "also, before the verb; or nothing",
    r"\bthen[.:;]": "nothing, or 'then' where the sentence begins",
    r"(?:^|(?<=[.:;] )|(?<=\| ))Of (?!course\b)": "the subject first",
    r"\b[Oo]f which\b(?! Python)": "the subject first; a second sentence",
    r"\b(is|are|of|from|than|with|and|to) what (is|are|was|were|it|they)\b": "name the thing",
    r"(?:^|(?<=[.:;] ))What (is|are|was|were|has|have|you|it|they)\b[^?]*?\.": "name the thing",
    r"\b(what|all) is (seen|read|used|needed|kept|there)\b": "name the thing",
    r"\btimes as (fast|slow|long|large|many|much)\b": "1.7x faster than",
    r"\bto the (last )?bit\b": "bit-identical",
    r"\bsa(y|ys|id) (so|it|which|what|how|whether|where|when|why)\b": "print, report, show, define",
    r"\blikewise\b": "also; or repeat the subject",
    r"\breckon": "estimate",
    r"\bpage-locked\b": "pinned",
    r"\bPython's lock\b": "the GIL",
    r"\bown memory\b": "private memory",
    r"\b([Ww]hoever|[Ss]omebody|[Nn]obody)\b": "you",
    r"\b([Ww]hichever|[Ww]hosoever|thereof|therein|hitherto|lest)\b": "a plain word",
    r"\b(comes|come|came) to lie\b|\bgo(es)? on with\b|\bhas a place in\b": "a concrete verb",
    r"\b(is|are|was|were) taken for\b": "treated as, recognized as",
    r"\b(is|are) of its own\b|\ba \w+ of its own\b|\b\w+s of their own\b": "its own, a separate",
    r"\b(nine eighths|a tenth of|twice as (fast|large|long))\b": "digits",
    r"\b(as|than) usual(?=\.| \|)": "name the usual thing",
    r"\b[Tt]he same: |(?<=\| )[Tt]he same, ": "repeat the subject",
    r"\bat the most\b|\bin the mean\b|\bfor want of\b|\bis for these\b": "at most, on average",
}
#: Pages of the documentation, and documents beside it; the specification has words of its own.
PAGES = [
    *(*pages(), "DESIGN.md", "SECURITY.md", "benchmarks/README.md", "formats/v1/reasons.md"),
    *(str(path.relative_to(ROOT)) for path in sorted((ROOT / "formats/sources").glob("*.md"))),
]
_CODE = re.compile(
    r"^( *)(`{3,}).*?^ *\2`*$|(?:(?<=\n\n)|\A)(?: {4}\S[^\n]*(?:\n|\Z))+|<!--.*?-->|`[^`\n]+`|\]\([^)\n]*\)",
    re.MULTILINE | re.DOTALL,
)

#: In a docstring, from the prompt to an empty line.
_EXAMPLE = re.compile(r"^ *>>>.*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)


def found_in(text: str) -> list[str]:
    """Each place that has a pattern: the line, its words, and what to write instead."""
    prose = _CODE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    prose = re.sub(r"(?<=[^\n|])\n *(?=[a-z(\"'A-Z])(?![-*] )", " ", prose)  # a paragraph on one line
    return [
        f"{prose[max(0, match.start() - 50) : match.end() + 30].strip()!r}: {instead}"
        for pattern, instead in PATTERNS.items()
        for match in re.finditer(pattern, prose, re.MULTILINE)
    ]


def help_of(name: str) -> str:
    """A command's description, and the help of its arguments and options."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    texts = [inspect.cleandoc(command.help or "").partition("\b")[0]]  # without its examples
    return "\n\n".join([*texts, *(getattr(param, "help", None) or "" for param in command.params)])


def all_found(texts: Mapping[str, str]) -> dict[str, list[str]]:
    """The patterns of each text that has some, by its name."""
    return {name: found for name, text in texts.items() if (found := found_in(text))}


def test_pages() -> None:
    assert all_found({page: (ROOT / page).read_text("utf-8") for page in PAGES}) == {}


def test_help() -> None:
    assert all_found({name: help_of(name) for name in COMMANDS}) == {}


def docstrings_of(name: str, value: Any) -> dict[str, str]:
    """Docstrings of a public name and, if it is a class, of its methods and properties, without examples."""
    found = {name: value.__doc__ if isinstance(value, type) or inspect.isroutine(value) else None}
    if isinstance(value, type):
        members = {key: getattr(each, "__func__", each) for key, each in vars(value).items() if key[0] != "_"}
        found |= {f"{name}.{key}": each.__doc__ for key, each in members.items() if callable(each) or is_property(each)}
    return {key: _EXAMPLE.sub("", inspect.cleandoc(text)) for key, text in found.items() if text}


def is_property(value: object) -> bool:
    return isinstance(value, (property, functools.cached_property))


def test_docstrings() -> None:
    texts = {name: text for public in public_names().items() for name, text in docstrings_of(*public).items()}
    assert all_found(texts) == {}


def test_messages() -> None:
    texts = {text for tree in library("tensorstore_ds", "cli").values() for text in literals(tree) if " " in text}
    assert all_found({text: text for text in texts}) == {}


@pytest.mark.parametrize(
    "text",
    [
        "The time is that of a local store.",
        "Write a path in the place of\nthe URL.",
        "It reads them by way of panlabel.",
        "Copies, and such as were resized, are found.",
        "It works with one source, too.",
        "Each epoch takes half of the time then.",
        "Of 24 images, one differs.",
        "There are 64 images, of which 3 are bad.",
        "It decodes what is seen, no more.",
        "Loading is 1.7 times as fast as from files.",
        "The pixels are equal to the bit.",
        "`tsds train` says so in its first line.",
        "TIFF files are likewise read.",
        "The memory is reckoned first.",
        "Batches are in page-locked memory.",
        "It releases Python's lock.",
        "Whoever opens it sees all.",
        "If somebody changed it, the command fails.",
        "Nobody waits.",
        "| a | Of these, none |",
        "| the same: memory | 3 GB |",
        "\n    tsds info\n\nIt works with one source, too.",
        "\n```\ntsds info\n```\n\nIt works with one source, too.",
        "\n- a list\n    with a line that is reckoned",
    ],
)
def test_patterns_are_found(text: str) -> None:
    assert found_in(f"# Title\n\nA sentence before it.\n{text}\n") != []


@pytest.mark.parametrize(
    "text",
    [
        "```\nthat of, reckoned, nobody\n```",
        "    that of, reckoned, nobody",
        "Run `nobody --that of` and [read on](that of).",
        "Of course, too many cooks then spoil the broth.",
        "The command prints how to continue.",
    ],
)
def test_code_and_plain_words_are_not_found(text: str) -> None:
    assert found_in(f"# Title\n\n{text}\n") == []
