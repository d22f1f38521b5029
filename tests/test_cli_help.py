from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from typing import get_args

import click
import pytest

from small_stores import ROOT, VALID, tsds
from tensorstore_ds import ConvertOptions
from tensorstore_ds.conversion.options import OnError
from tensorstore_ds.format.schema import ENCODINGS, LAYOUTS
from tensorstore_ds.imaging.codecs import COLORS
from tensorstore_ds.imaging.placement import FITS
from tensorstore_ds.sources import FORMATS
from tensorstore_ds.version import __version__
from tsds_cli.main import COMMANDS, cli


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
        with command(name).make_context(name, example.split()[2:]):
            pass


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name: str) -> None:
    for option in options(name).values():
        assert option.help is not None, option.name
        assert re.search(r"\w{4,}.*(\.|\])$", option.help), option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_in_the_docs(name: str) -> None:
    text = (ROOT / "docs" / "commands.md").read_text("utf-8")
    section = re.search(rf"^## tsds {name}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    for option in options(name).values():
        assert f"`{option.opts[0]}" in section[1]


def test_the_list_of_commands_has_them_all() -> None:
    shown = tsds("--help").output
    for name in COMMANDS:
        summary = re.search(rf"^  {name} +(.+)$", shown, re.MULTILINE)
        assert summary is not None and not summary[1].endswith("...")


def test_choices_and_defaults_are_those_of_the_library() -> None:
    found = options("convert")

    def choices(name: str) -> set[str]:
        assert isinstance(found[name].type, click.Choice)
        return set(found[name].type.choices)

    assert choices("format") == {"auto", *FORMATS}
    assert choices("layout") == set(LAYOUTS)
    assert choices("encoding") == set(ENCODINGS)
    assert choices("fit") == set(FITS)
    assert choices("color") == set(COLORS)
    assert choices("on_error") == set(get_args(OnError))
    assert options("repack")["layout"].type.to_info_dict()["choices"] == found["layout"].type.to_info_dict()["choices"]


def test_every_option_of_the_library_is_an_option_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[ConvertOptions] = []

    def convert(source: object, out: object, options: ConvertOptions, progress: object) -> None:
        seen.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorstore_ds.convert", convert)
    assert tsds("convert", "a", "b").exit_code == 130
    assert seen == [ConvertOptions()]
    known = {"shard_size" if f.name == "shard_nbytes" else f.name for f in fields(ConvertOptions)}
    assert known == set(options("convert")) - {"dry_run", "as_json"}


def loaded(*arguments: str) -> set[str]:
    """Modules in a process that has run the command, by their top-level names."""
    code = (
        "import sys\n"
        "from tsds_cli.main import main\n"
        f"sys.argv = ['tsds', *{list(arguments)!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "cli")
    return set(done.stderr.split())


def test_help_imports_nothing_heavy() -> None:
    for arguments in (["--help"], ["convert", "--help"], ["preview", "--help"]):
        assert not loaded(*arguments) & {"numpy", "PIL", "zarr", "rich", "torch", "tensorstore_ds"}


def test_info_imports_neither_pillow_nor_zarr() -> None:
    modules = loaded("info", str(VALID / "detection.tsds"))
    assert "numpy" in modules  # or else the check below would check nothing
    assert not modules & {"PIL", "zarr", "numcodecs", "torch", "rich"}


def test_version() -> None:
    assert tsds("--version").output == f"tsds {__version__}\n"


def test_module_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "tsds_cli", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT / "cli")
    assert done.stdout == f"tsds {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["info"], ["info", "a", "b"], ["info", "a", "--nonsense"], ["convert", "a", "b", "--fit", "wide"]],
)
def test_wrong_usage_is_exit_status_2(arguments: list[str]) -> None:
    done = tsds(*arguments)
    assert done.exit_code == 2
    assert "Usage: tsds" in done.stderr


def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    store = VALID / "classification.tsds"
    arguments = ["info", str(store)]
    from click.testing import CliRunner

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in CliRunner().invoke(cli, arguments, color=True).output
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in CliRunner().invoke(cli, arguments, color=True).output
