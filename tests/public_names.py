"""Public names of `tensorstore_ds` and of its public modules, and the names that ``docs/api/`` describes."""

from __future__ import annotations

import importlib
import re
from types import ModuleType
from typing import Any

import tensorstore_ds as tsds
from doc_pages import DOCS


def public_names() -> dict[str, Any]:
    """Each public name, with its module, and its value. Names of the top are not repeated for other modules."""
    top = {name: getattr(tsds, name) for name in tsds.__all__}
    modules = [value for value in top.values() if isinstance(value, ModuleType)]
    found = {f"tensorstore_ds.{name}": value for name, value in top.items() if value not in modules}
    return found | {f"{m.__name__}.{n}": getattr(m, n) for m in modules for n in m.__all__ if n not in top}


def described() -> dict[str, Any]:
    """Each name of the API pages, with its module, and its value."""
    found = {}
    for page in sorted((DOCS / "api").glob("*.rst")):
        module = ""
        for directive, name in re.findall(r"^\.\. ([\w:]+):: (\S+)$", page.read_text("utf-8"), re.MULTILINE):
            if directive == "currentmodule":
                module = name
            elif directive != "automodule":
                where, _, last = (name if "." in name else f"{module}.{name}").rpartition(".")
                found[f"{where}.{last}"] = getattr(importlib.import_module(where), last)
    return found
