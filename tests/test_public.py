"""Public names, and the rooms that have most of them."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

import tensorstore_ds as tsds
from small_stores import ROOT

ROOMS = sorted(name for name in tsds.__all__ if type(getattr(tsds, name)) is type(tsds))
NAMES = [(room, name) for room in ROOMS for name in getattr(tsds, room).__all__]


def test_rooms_are_imported_by_their_short_names() -> None:
    assert len(ROOMS) > 10 and len(NAMES) > 100
    for room, name in NAMES:
        module = importlib.import_module(f"tensorstore_ds.{room}")
        assert module is getattr(tsds, room)
        assert module.__spec__ is not None and module.__spec__.name == module.__name__
        assert getattr(module, name) is getattr(importlib.import_module(module.__name__), name)


@pytest.mark.parametrize(("room", "name"), [each for each in NAMES if each[1] not in tsds.__all__])
def test_names_that_are_in_a_room_are_said_to_be_there(room: str, name: str) -> None:
    assert not hasattr(tsds, name) and getattr(tsds, name, None) is None
    expected = f"there is no tensorstore_ds.{name}. Write tensorstore_ds.{room}.{name}"
    with pytest.raises(AttributeError, match=expected):
        getattr(tsds, name)
    with pytest.raises(ImportError, match=expected):
        exec(f"from tensorstore_ds import {name}", {})  # noqa: S102
    assert exec(f"from tensorstore_ds.{room} import {name}", {}) is None  # noqa: S102


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *((command, f"{command}_store") for command in ("filter", "split", "sample", "relabel")),
        *(("merge", "merge_stores"), ("compare", "compare_stores"), ("add", "add_fields"), ("drop", "drop_fields")),
    ],
)
def test_commands_that_have_a_longer_name_in_python(command: str, name: str) -> None:
    with pytest.raises(
        AttributeError, match=rf"there is no tensorstore_ds\.{command}\. Write tensorstore_ds\.editing\.{name}$"
    ):
        getattr(tsds, command)
    assert callable(getattr(tsds.editing, name))


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'tensorstore_ds' has no attribute 'nothing'"):
        _ = tsds.nothing  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        exec("from tensorstore_ds import nothing", {})  # noqa: S102
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tensorstore_ds\.nothing'"):
        importlib.import_module("tensorstore_ds.nothing")


def test_names_that_need_torch_say_so_without_it() -> None:
    program = """
import sys
sys.modules["torch"] = None
import tensorstore_ds as tsds
for room, name in (("transforms", "Mosaic"), ("training", "ViT"), ("loading", "PackedObjects")):
    try:
        getattr(getattr(tsds, room), name)
    except ModuleNotFoundError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all("needs torch. Install it with: pip install '.[torch]'" in line for line in lines)


def test_notebooks_import_what_there_is() -> None:
    for path in sorted((ROOT / "examples").rglob("*.ipynb")):
        cells = json.loads(path.read_text("utf-8"))["cells"]
        text = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
        imports = [
            line for line in text.splitlines() if line.startswith(("from tensorstore_ds", "import tensorstore_ds"))
        ]
        assert imports
        exec("\n".join(imports), {})  # noqa: S102
