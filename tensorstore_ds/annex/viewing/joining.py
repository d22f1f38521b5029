"""Modules of JavaScript as one text, for a place that loads one module and knows no others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

_IMPORT = re.compile(r'^import \{([\w\s,]+)\} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def join_modules(modules: Mapping[str, str], entry: str) -> str:
    """Join modules into one, with the exports of `entry`, which may have an ``export default``.

    Each other module becomes a function that returns its exports, so equal names in two modules do not collide.

    >>> print(join_modules({"a": "export const x = 1;", "b": 'import { x } from "./a.js";\\nexport default x;'}, "b"))
    const module_a = (() => {
    const x = 1;
    return { x };
    })();
    const { x } = module_a;
    export default x;

    Modules import by ``import { x } from "./NAME.js";`` only, and export declarations.

    Raises:
        ValueError: a module imports or exports otherwise, or itself.
        KeyError: an imported module is missing.
    """
    needed, waiting = {}, [entry]
    while waiting:
        name = waiting.pop()
        needed[name] = [found[2] for found in _IMPORT.finditer(modules[name])]
        waiting += (each for each in needed[name] if each not in needed)
    parts = [_part(name, modules[name], name == entry) for name in TopologicalSorter(needed).static_order()]
    return "\n".join(parts)


def _part(name: str, text: str, is_entry: bool) -> str:
    exported = _EXPORT.findall(text)
    text = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = module_\2;", text))
    left = [line for line in _OTHER.findall(text) if not (is_entry and line.startswith("export default "))]
    if left:
        raise ValueError(f"{name}.js: expected imports and exports of names, found {left[0]!r}.")
    text = text.strip()
    return text if is_entry else f"const module_{name} = (() => {{\n{text}\nreturn {{ {', '.join(exported)} }};\n}})();"
