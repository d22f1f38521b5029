"""Public names of packages, imported when they are first used: a stub beside the module lists them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any


def attach(name: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of the module `name`: what its stub imports (PEP 562)."""
    module = sys.modules[name]
    imports = [
        (resolve_name("." * node.level + (node.module or ""), vars(module)["__package__"]), alias.name)
        for node in ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    places = {key: where for where, key in imports}

    def load(key: str) -> Any:
        if key not in places:
            rooms = [room for room, where in places.items() if where in (name, f"{name}.annex")]
            if rooms and not key.startswith("_") and find_spec(f"{name}.{key}") is None:
                for room in (room for room in rooms if key in load(room).__all__):
                    raise ImportError(f"there is no {name}.{key}. Write {name}.{room}.{key}", name=name)
            raise AttributeError(f"module {name!r} has no attribute {key!r}", name=key, obj=module)
        owner = vars(import_module(places[key]))
        value = owner[key] if key in owner else import_module(f"{places[key]}.{key}")
        setattr(module, key, value)
        return value

    return load, lambda: sorted(places), sorted(places)
