"""Public names of packages, imported on first use. A stub next to the module lists them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType
from typing import Any


def attach(name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the module `name`, from the imports of its stub (PEP 562)."""
    module = sys.modules[name]
    imports = [
        (resolve_name("." * node.level + (node.module or ""), vars(module)["__package__"]), alias.name)
        for node in ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    places = {key: where for where, key in imports}
    rooms = {room: f"{where}.{room}" for room, where in places.items() if where in (name, f"{name}.annex")}

    def moved(key: str) -> str:
        """A sentence that says where a name or a command, such as `merge`, is; empty if there is none."""
        wanted = () if key.startswith("_") else (key, f"{key}_store", f"{key}_stores", f"{key}_fields")
        found = [f"{name}.{room}.{each}" for each in wanted for room in rooms if each in load(room).__all__]
        return f"there is no {name}.{key}. Write {found[0]}" if found else ""

    def load(key: str) -> Any:
        if key not in places:
            message = moved(key) or f"module {name!r} has no attribute {key!r}"
            raise AttributeError(message, name=key, obj=module)
        try:
            owner = vars(import_module(places[key]))
            value = owner[key] if key in owner else import_module(f"{places[key]}.{key}")
        except ModuleNotFoundError as error:
            from tensorstore_ds.words import OF_TORCH  # here, because it loads importlib.metadata

            if error.name not in OF_TORCH:
                raise
            advice = "Install it with: pip install '.[torch]' in a clone of tensorstore-ds"
            raise ModuleNotFoundError(f"{name}.{key} needs {error.name}. {advice}", name=error.name) from error
        setattr(module, key, value)
        return value

    if rooms:
        sys.meta_path.append(_Rooms(name, rooms, moved))
    return load, lambda: sorted(places), sorted(places)


class _Rooms(MetaPathFinder, Loader):
    """Imports the rooms of a package by their short names, as in ``from tensorstore_ds.training import ViT``.

    It stands behind all other finders, and so is asked for what no file of the package is.
    """

    def __init__(self, package: str, rooms: dict[str, str], moved: Callable[[str], str]) -> None:
        self._package, self._rooms, self._moved = package, rooms, moved
        self._specs = dict[str, ModuleSpec | None]()

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, key = name.rpartition(".")
        if package != self._package:
            return None
        if key in self._rooms:
            return ModuleSpec(name, self)
        if message := self._moved(key):  # from package import key
            raise ImportError(message, name=name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._rooms[spec.name.rpartition(".")[2]])
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module, which has been executed, its own spec back."""
        if module.__spec__ is not None:
            module.__spec__ = self._specs[module.__spec__.name]
