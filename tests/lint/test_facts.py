"""Numbers on the pages are those of the code, and the pages stay few and short."""

from __future__ import annotations

import re
from typing import Any

import click
import pytest
from click.testing import CliRunner

from doc_pages import DOCS, ROOT
from tensorstore_ds.format.schema import MOST_CHANNELS
from tsds_cli.main import cli

#: Pages for looking something up: they are not counted.
REFERENCE = {"commands", "figures", "plain-reading", "reliability"}


def default(command: str, flag: str) -> Any:
    """What an option is if it is not given."""
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    (option,) = (each for each in found.params if flag in each.opts)
    return option.default


#: Code, and a table that tests write.
_NOT_PROSE = re.compile(r"^```.*?^```$|<!-- clients begin -->.*<!-- clients end -->", re.MULTILINE | re.DOTALL)


def test_pages_are_few_and_short() -> None:
    texts = [path.read_text("utf-8") for path in DOCS.glob("*.md") if path.stem not in REFERENCE]
    assert len(texts) <= 25
    assert sum(len(_NOT_PROSE.sub("", text).split()) for text in texts) <= 30_000
    assert (ROOT / "README.md").read_text("utf-8").count("\n") <= 120


def test_the_oldest_versions_are_those_of_the_package() -> None:
    needed = (ROOT / "pyproject.toml").read_text("utf-8")
    rows = re.findall(
        r"^\| (\w+(?:, \w+)+) \| ([\d., and]+) or later", (DOCS / "install.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == 2
    for names, versions in rows:
        for name, version in zip(names.split(", "), re.split(", | and ", versions), strict=True):
            assert f'"{name.lower()}>={version}"' in needed, name


@pytest.mark.parametrize(
    ("page", "text", "value"),
    [
        ("docs/sources.md", r"may have up to (\d+) channels", MOST_CHANNELS),
        ("docs/large-images.md", r"1 to (\d+) channels", MOST_CHANNELS),
        ("formats/sources/arrays.md", r"with 1 to (\d+) channels", MOST_CHANNELS),
        ("formats/sources/sequence.md", r"or up to (\d+) if they are fewer", MOST_CHANNELS),
        ("docs/encodings.md", r"`--quality (\d+)` as the default", default("convert", "--quality")),
        ("docs/clusters.md", r"default of `--shard-size`, (\d+) GiB", default("convert", "--shard-size") // 2**30),
        ("docs/large-images.md", r"`--max-pixels` is (\d+) million", default("convert", "--max-pixels") // 10**6),
        ("docs/checking.md", r"1st percentile of luminance \| below ([\d.]+)", default("check", "--min-sharpness")),
    ],
)
def test_numbers(page: str, text: str, value: float) -> None:
    found = re.findall(text, (ROOT / page).read_text("utf-8"))
    assert {float(each) for each in found} == {value}, page


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("convert", 2),
        ("info --nonsense", 2),
        ("convert photos out.tsds --size nonsense", 2),
        ("convert photos out.tsds --split-into train=0.5", 1),
        ("convert photos out.tsds --license Nonsense", 1),
        ("info nothing.tsds", 1),
    ],
)
def test_the_exit_status_is_what_the_commands_page_says(words: str, status: int) -> None:
    """2 if the command line cannot be understood, 1 if something failed."""
    assert CliRunner().invoke(cli, words.split()).exit_code == status
