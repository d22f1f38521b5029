from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_origin

import click
import pytest

from small_stores import INVALID, ROOT, VALID, tsds
from tensorstore_ds import ConvertOptions
from tensorstore_ds.annex.measuring import BenchOptions, DiagnoseOptions
from tensorstore_ds.annex.training import TrainOptions
from tensorstore_ds.conversion import RepackOptions
from tensorstore_ds.options import flags
from tensorstore_ds.sources import FORMATS
from tensorstore_ds.version import __version__, installation
from tsds_cli.main import COMMANDS, FIRST, GROUPS, LEARN_MORE, cli
from tsds_cli.options import GROUPS as OPTION_GROUPS, Flag, grouped


def command(name: str) -> click.Command:
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    return found


def options(name: str) -> dict[str, click.Option]:
    return {p.name: p for p in command(name).params if isinstance(p, click.Option) and p.name is not None}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str) -> None:
    shown = tsds(name, "--help")
    assert shown.exit_code == 0
    examples = re.findall(rf"^ +tsds {name}\b.*$", shown.output, re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:  # an example is a command line that is understood
        with command(name).make_context(name, shlex.split(example)[2:]):
            pass


# --- groups, and how values are shown -----------------------------------------------------------------------------


def test_a_command_with_many_options_has_them_in_groups_with_the_essential_ones_first() -> None:
    many = [name for name in COMMANDS if len(options(name)) > 12]
    assert {"convert", "plan", "train", "predict", "bench"} <= set(many)
    for name in many:
        titles = list(grouped(command(name).params))
        assert titles[0] == "Essential" and titles[-1] == "General" and "" not in titles, name
        shown = tsds(name, "--help-all").output
        assert re.findall(r"^(\w[\w ]*):$", shown, re.MULTILINE) == titles, name
        assert [title for title in OPTION_GROUPS if title in titles] == titles
        listed = shown[shown.index("Essential:") :]
        for option in options(name).values():
            assert isinstance(option, Flag) and option.group in OPTION_GROUPS, (name, option.name)
            assert len(re.findall(rf"^  (?:-\w, )?{option.opts[0]}\b(?!-)", listed, re.MULTILINE)) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_many_options_shows_the_essential_ones_and_how_to_see_the_others(name: str) -> None:
    shown = tsds(name, "--help").output
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", shown[shown.index("Examples:") :], re.MULTILINE)
    if len(options(name)) <= 12:
        assert "--help-all" not in shown and tsds(name, "--help-all").exit_code == 2
        assert {each.opts[-1] for each in options(name).values() if each.opts[-1].startswith("--")} <= {*listed}
        return
    groups = grouped(command(name).params)
    essential = [each.opts[0] for each in groups["Essential"]]
    assert len(essential) <= 12 and listed == [*essential, "--json", "--help-all", "--help"]
    assert shown.endswith(f"\n{len(options(name)) - len(essential) - 1} more options: tsds {name} --help-all\n")
    assert f"Show all {len(options(name))} options." in shown
    assert tsds("help", name, "--help-all").output == tsds(name, "--help-all").output


def test_convert_begins_with_what_most_conversions_need() -> None:
    groups = {title: [each.opts[0] for each in own] for title, own in grouped(command("convert").params).items()}
    assert groups["Essential"] == [
        *("--size", "--fit", "--color", "--encoding", "--quality", "--format", "--classes", "--split-into"),
        *("--objects", "--on-error", "--dry-run", "--workers"),
    ]
    planned = {title: [each.opts[0] for each in own] for title, own in grouped(command("plan").params).items()}
    without = {"Essential": ["--dry-run"], "Cluster": groups["Cluster"]}
    expected = {title: [each for each in own if each not in without.get(title, [])] for title, own in groups.items()}
    assert planned == expected | {"Cluster": ["--tasks"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_flag_that_shows_its_value_and_default_in_words(name: str) -> None:
    shown = tsds(name, "--help-all" if len(options(name)) > 12 else "--help").output
    assert not re.search(r"INTEGER|FLOAT|RANGE|<=|\d{7,}|\[default: \(", shown)
    assert "Default:" not in shown and "default: True" not in shown
    for option in options(name).values():
        assert isinstance(option, Flag), option.name
        assert len(option.make_metavar(click.Context(command(name)))) <= 38, option.name


@pytest.mark.parametrize(
    ("type", "settings", "metavar", "extra"),
    [
        (click.IntRange(1, 95), {"default": 90}, "N", {"default": "90", "range": "1 to 95"}),
        (click.IntRange(1), {"default": 89478485}, "N", {"default": "89,478,485"}),
        (click.IntRange(2, 2**63 - 1), {"default": 5}, "N", {"default": "5", "range": "at least 2"}),
        (click.FloatRange(0, 1), {"default": 1.0}, "FRACTION", {"default": "1"}),
        (click.FloatRange(0, 1, max_open=True), {}, "FRACTION", {"range": "at least 0, below 1"}),
        (click.FloatRange(0, min_open=True), {"default": 0.5}, "NUMBER", {"default": "0.5", "range": "above 0"}),
        (click.Choice(["pad", "crop"]), {"default": "pad"}, "[pad|crop]", {"default": "pad"}),
        (click.Choice(["a" * 20, "b" * 20]), {}, "FIT", {}),
        (str, {"show_default": "the name"}, "TEXT", {"default": "the name"}),
    ],
)
def test_how_a_value_is_shown(type: Any, settings: dict[str, Any], metavar: str, extra: dict[str, str]) -> None:
    option = Flag(["--best-fit"], type=type, help="Text.", **{"show_default": True, **settings})
    context = click.Context(click.Command("c"))
    assert (option.make_metavar(context), option.get_help_extra(context)) == (metavar, extra)
    assert option.help == ("Text." if metavar != "FIT" else f"Text. One of {'a' * 20}, {'b' * 20}.")


def test_an_option_in_no_group_is_shown_last() -> None:
    one, other = Flag(["--one"], group="Essential"), Flag(["--other"])
    assert grouped([other, one]) == {"Essential": [one], "": [other]} and grouped([other]) == {"": [other]}


# --- messages name options as the caller wrote them ---------------------------------------------------------------


def test_a_message_becomes_flags() -> None:
    done = tsds("convert", "a", "b", "--encoding", "source", "--size", 8)
    assert done.stderr == (
        "tsds: --encoding source keeps files as they are: leave out --size and --color, or use --encoding jpeg.\n"
    )


# --- the whole ----------------------------------------------------------------------------------------------------


def test_the_list_of_commands_has_them_all() -> None:
    shown = tsds("--help-all").output
    titles = re.findall(r"^(\w.*):$", shown, re.MULTILINE)
    assert titles == [*GROUPS, "Options", "Learn more"]
    listed = shown[shown.index(next(iter(GROUPS))) : shown.index("Options:")]
    assert re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE) == list(COMMANDS)
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    for name in COMMANDS:
        summary = re.search(rf"^  {name} +(.+)$", shown, re.MULTILINE)
        assert summary is not None and summary[1] == COMMANDS[name].description == command(name).get_short_help_str(200)
        assert len(summary[1]) <= 60
    assert all(re.search(rf"^  {line} +{meaning}$", shown, re.MULTILINE) for line, meaning in LEARN_MORE)


def test_the_help_describes_the_first_commands_and_names_the_others_by_group() -> None:
    shown = tsds("--help").output
    assert re.findall(r"^(\w.*):$", shown, re.MULTILINE) == [
        *("Commands", "More commands, by group", "Options", "Learn more")
    ]
    first, others = shown[shown.index("Commands:") : shown.index("Options:")].split("More commands, by group:")
    assert re.findall(r"^  ([a-z]+) +(.+)$", first, re.MULTILINE) == [(n, COMMANDS[n].description) for n in FIRST]
    names = {title: [name for name in group if name not in FIRST] for title, group in GROUPS.items()}
    found = re.findall(r"^  ([a-z]+) +(.+)$", others, re.MULTILINE)
    assert [title for title, _ in found] == [title.lower() for title in names]
    for (_, line), group in zip(found, names.values(), strict=True):
        assert line.removesuffix(", ...").split(", ") == group[: len(group) if "..." not in line else line.count(",")]
    assert {name for group in names.values() for name in group} == {*COMMANDS} - {*FIRST}


@pytest.mark.parametrize("title", GROUPS)
def test_help_of_a_group_describes_its_commands(title: str) -> None:
    expected = [(name, COMMANDS[name].description) for name in GROUPS[title]]
    shown = tsds("help", title.lower())
    assert shown.exit_code == 0 and title.lower() not in COMMANDS
    assert re.findall(r"^  ([a-z]+) +(.+)$", shown.output, re.MULTILINE) == expected
    alone = tsds(title.lower())
    assert alone.exit_code == 2
    assert alone.stderr.endswith(f"{title.lower()} is a group of commands: tsds help {title.lower()} lists them.\n")


def test_help_is_a_command_too() -> None:
    assert tsds("help").output == tsds("--help").output == tsds("help", "help").output
    assert tsds("help", "info").output == tsds("info", "--help").output
    assert tsds("help", "cache", "clear").output == tsds("cache", "clear", "--help").output
    for name, like in (("inf", "info"), ("edti", "edit"), ("cluster", "clusters")):
        wrong = tsds("help", name)
        assert wrong.exit_code == 2 and wrong.stderr.endswith(f"No such command '{name}'. Did you mean {like}?\n")


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("convert", ConvertOptions),
        ("train", TrainOptions),
        ("bench", BenchOptions),
        ("doctor", DiagnoseOptions),
        ("repack", RepackOptions),
    ],
)
def test_every_option_of_a_class_is_a_flag_with_its_choices_and_default(name: str, cls: type) -> None:
    known = options(name)
    for declared in flags(cls).values():
        flag = known[declared.name]
        assert flag.default == declared.default
        if declared.choices and get_origin(declared.type) is not Sequence:
            assert isinstance(flag.type, click.Choice) and tuple(flag.type.choices) == declared.choices


def test_formats_are_those_of_the_library() -> None:
    assert isinstance(options("convert")["format"].type, click.Choice)
    assert set(options("convert")["format"].type.choices) == {"auto", *FORMATS}


DIAGNOSE = DiagnoseOptions(
    split="a", model="base", batch_size=3, seconds=9.0, device="cpu", num_threads=4, prefetch_factor=5
)
BENCH = BenchOptions(
    raw=VALID, split="val", batch_sizes=(7, 9), ways=("store", "files"), train=False, seconds=3.0, device="cpu"
)


@pytest.mark.parametrize(
    ("words", "function", "expected"),
    [
        (
            "warm STORE --threads 3 --budget 1GiB --split train",
            "warm",
            {"splits": ("train",), "budget": 2**30, "threads": 3},
        ),
        ("verify STORE", "verify", {"threads": None}),
        ("verify STORE --threads 3", "verify", {"threads": 3}),
        ("doctor STORE", "diagnose", DiagnoseOptions()),
        (
            "doctor STORE --split a --model base --batch-size 3 --seconds 9 --device cpu --threads 4 --prefetch 5",
            "diagnose",
            DIAGNOSE,
        ),
        ("bench STORE", "bench", BenchOptions()),
        (
            "bench STORE --raw VALID --split val --batch-sizes 7,9 --ways store,files --no-train "
            "--seconds 3 --device cpu",
            "bench",
            BENCH,
        ),
    ],
)
def test_flags_reach_the_library(words: str, function: str, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def called(*given: object, **named: object) -> None:
        seen.append(named if isinstance(expected, dict) else given[1])
        raise KeyboardInterrupt

    monkeypatch.setattr(f"tensorstore_ds.{function}", called)
    places = {"STORE": VALID / "minimal.tsds", "VALID": VALID}
    assert tsds(*(places.get(word, word) for word in words.split())).exit_code == 130
    if isinstance(expected, dict):
        assert expected.items() <= seen[0].items()
    else:
        assert seen == [expected]


def loaded(*commands: Sequence[str]) -> list[set[str]]:
    """Modules in a process by their top-level names, after each of the commands that it runs."""
    code = (
        "import sys\n"
        "from tsds_cli.main import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['tsds', *command]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert not end.code\n"
        "    print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "cli")
    found = [set(line.split()) for line in done.stderr.splitlines()]
    assert len(found) == len(commands)
    return found


def test_help_imports_nothing_heavy() -> None:
    (first, *others) = loaded(["--help"], *([name, "--help"] for name in COMMANDS))
    assert not first & {"numpy", "msgspec"}
    heavy = {"PIL", "zarr", "rich", "torch"}
    assert {name: each & heavy for name, each in zip(COMMANDS, others, strict=True) if each & heavy} == {}


@pytest.mark.parametrize("module", ["tsds_cli", "tsds_cli.main", "tsds_cli.program"])
def test_each_module_that_has_a_main_is_the_program(module: str) -> None:
    command = [sys.executable, "-m", module, "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT / "cli")
    assert done.stdout.startswith("tsds ") and not done.stderr


def test_info_imports_neither_pillow_nor_zarr() -> None:
    (modules,) = loaded(["info", str(VALID / "detection.tsds")])
    assert "numpy" in modules  # or else the check below would check nothing
    assert not modules & {"PIL", "zarr", "numcodecs", "torch", "rich"}


def test_version() -> None:
    assert tsds("--version").output == f"tsds {__version__}\n"


@pytest.mark.parametrize("arguments", [["--version", "--json"], ["--json", "--version"]])
def test_version_as_json(arguments: list[str]) -> None:
    found = json.loads(tsds(*arguments).output)
    assert found == dataclasses.asdict(installation())
    assert found["version"] == __version__ and found["torch"] and (found["kernels"] is None) == bool(found["why_not"])


def test_json_before_a_command_is_wrong_usage() -> None:
    done = tsds("--json", "info", "a.tsds")
    assert done.exit_code == 2 and "expected --json after a command, or with --version" in done.stderr


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = VALID / "classification.tsds"
    arguments = ["info", str(store)]
    from click.testing import CliRunner

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in CliRunner().invoke(cli, arguments, color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(cli, arguments, color=True).output


# --- wrong usage ------------------------------------------------------------------------------------------------


def test_without_arguments_there_is_the_help() -> None:
    bare = tsds()
    assert bare.exit_code == 2
    assert bare.stderr == tsds("--help").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inf"], "No such command 'inf'. Did you mean info?"),
        (["convrt", "a", "b"], "No such command 'convrt'. Did you mean convert?"),
        (["relable", "a", "b"], "No such command 'relable'. Did you mean relabel?"),
        (["open", "a.tsds"], "No such command 'open'. Did you mean info?"),
        (["convert", "a", "b", "--crop"], "No such option '--crop'. Did you mean --fit?"),
        (["convert", "a", "b", "--split", "train"], "No such option '--split'. Did you mean --split-into?"),
        (["nothing-like-it"], "No such command 'nothing-like-it'."),
        (["convert", "a", "b", "--sise", "3"], "No such option '--sise'. Did you mean --size?"),
        (["sample", "a", "b", "-n", "3"], "No such option '-n'. Did you mean --per-class?"),
        (["train", "a", "--size", "32"], "No such option '--size'. Did you mean --image-size?"),
        (["convert", "a", "b", "--encoding", "jpg"], "'raw', 'jpeg', 'source'. Did you mean jpeg?"),
        (["convert", "a", "b", "--seed", "9" * 5000], "(5,002 characters) is not a valid whole number."),
        (["convert", "a", "b", "--size", "9" * 5000], "found '9999999999999999999... (5,003 characters)"),
    ],
)
def test_wrong_usage_is_said_shortly(arguments: Sequence[str], message: str) -> None:
    done = tsds(*arguments)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1].endswith(message)
    assert len(done.stderr) < 400


@pytest.mark.parametrize(
    ("arguments", "reason", "status"),
    [
        (["info", "nowhere"], "not-a-store", 1),
        (["convert", "nowhere", "out"], "no-such-source", 1),
        (["convert", "nowhere", "out", "--dry-run"], "no-such-source", 1),
        (["info"], None, 2),
        (["inf"], None, 2),
    ],
)
def test_an_error_under_json_is_json_too(arguments: Sequence[str], reason: str | None, status: int) -> None:
    done = tsds(*arguments, "--json")
    assert done.exit_code == status
    (error,) = json.loads(done.stdout).values()
    assert (error["reason"], error["status"]) == (reason, status)
    assert done.stderr.rstrip().endswith(error["message"])
    assert not tsds(*arguments).stdout


def test_json_is_one_document() -> None:
    done = tsds("verify", INVALID / "box-range--nan.tsds", "--json")
    assert done.exit_code == 1
    assert "error" not in json.loads(done.stdout)


@pytest.mark.skipif(shutil.which("bash") is None, reason="it is bash that is asked")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    program = tmp_path / "tsds"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tsds_cli "$@"\n')
    program.chmod(0o700)
    script = """
        eval "$(_TSDS_COMPLETE=bash_source tsds)"
        for line in "ver" "rel" "convert --fi" "convert --fit c"; do
            COMP_WORDS=(tsds $line); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=(); _tsds_completion tsds
            echo "${COMPREPLY[*]}"
        done"""
    found = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], env=found, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["verify", "relabel", "--fit", "crop"]
