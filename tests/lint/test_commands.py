"""Every command and option is described, and messages name options as the caller wrote them."""

from __future__ import annotations

import ast
import inspect
import re

import click
import pytest

from command_pages import OVERVIEW, page, table, with_overview, with_tables
from library import library, literals
from public_names import public_names
from tensorstore_ds import (
    BlockShuffleSampler,
    DataLoader,
    RandomHorizontalFlip,
    SizeBucketSampler,
    StoreDataset,
    WeightedSampler,
)
from tensorstore_ds.annex.editing.folds import folds
from tensorstore_ds.annex.measuring.diagnosis import diagnose
from tensorstore_ds.annex.viewing.show import show
from tensorstore_ds.loading import SubsetSampler
from tensorstore_ds.loading.block_shuffle import shuffle_quality
from tensorstore_ds.loading.mixed import MixedDataset
from tensorstore_ds.loading.samplers import Order
from tsds_cli.main import COMMANDS, GROUPS, cli


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options(name: str) -> list[click.Option]:
    return [each for each in command(name).params if isinstance(each, click.Option) and each.name is not None]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    for option in options(name):
        assert option.help is not None, option.name
        assert re.search(r"\w{4,}.*(\.|\])$", option.help), option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_docs(name: str) -> None:
    text = page(name).read_text("utf-8")
    assert text.startswith(f"# tsds {name}\n\n`tsds {name}")
    for option in options(name):
        assert f"`{option.opts[0]}" in text
    assert text == with_tables(name, text), "run: python tests/command_pages.py"


def test_the_page_of_all_commands_lists_them_in_their_groups() -> None:
    text = OVERVIEW.read_text("utf-8")
    assert text == with_overview(text), "run: python tests/command_pages.py"
    assert re.findall(r"^tsds (\w+) <commands/\1>$", text, re.MULTILINE) == list(COMMANDS)
    assert [f"| {title} | " in text for title in GROUPS] == [True] * len(GROUPS)
    assert {path.stem for path in page("info").parent.iterdir()} == {*COMMANDS}
    row = "| `--quality` | JPEG quality with `--encoding` jpeg. A higher quality needs more space. Default: 90. |"
    assert row in table("convert")


def parameters() -> set[str]:
    """Names that a user of the loader and its samplers passes by keyword."""
    named = set(Order.__annotations__)
    samplers = (SubsetSampler, WeightedSampler, BlockShuffleSampler, SizeBucketSampler)
    functions = (shuffle_quality, diagnose, folds, show)
    for each in (DataLoader, StoreDataset, MixedDataset, *samplers, RandomHorizontalFlip, *functions):
        named |= set(inspect.signature(each).parameters)
    for path, tree in library("tensorstore_ds").items():
        if "/adapters/" in path:  # not imported: their libraries are not here
            named |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return named | {name.rpartition(".")[2] for name in public_names()}


def test_no_message_of_the_library_names_a_flag() -> None:
    # The flags of sbatch, and of the script that it runs; those of panlabel.
    others = ("tensorstore_ds/annex/clusters/slurm.py", "tensorstore_ds/annex/sources/panlabel.py")
    texts = {t for name, tree in library("tensorstore_ds").items() if name not in others for t in literals(tree)}
    found = {text for text in texts if re.search(r"(?<!\w)--[a-z]", text)}
    assert {text for text in found if "docker run --ulimit" not in text} == set()


def test_every_option_that_an_error_names_is_one_of_a_command_or_of_a_class() -> None:
    known = {str(p.name) for name in COMMANDS for p in command(name).params} | parameters()
    raised = [
        node
        for tree in library("tensorstore_ds").values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("OptionError", "refusal")
    ]
    assert len(raised) > 40
    named = {n for node in raised for text in literals(node) for n in re.findall(r"`([a-z_]+)(?:=|`)", text)}
    assert {"size", "max_pixels", "encoding"} <= named <= known


def test_a_message_quotes_words_as_python_does() -> None:
    texts = {text for tree in library("tensorstore_ds").values() for text in literals(tree)}
    bare = {text for text in texts if re.search(r"(?<!`)`(?!split_into=)[a-z_]+=(?!True|False|None)[A-Za-z]", text)}
    assert not bare and sum('`on_error="skip"`' in text for text in texts) == 4
