"""The modules of the library and of the command as syntax trees, each parsed once."""

from __future__ import annotations

import ast
from functools import cache

from doc_pages import ROOT


def library(*tops: str) -> dict[str, ast.Module]:
    """Trees by the paths of the files, for all modules below folders of the repository."""
    found = {name: tree for top in tops for name, tree in _below(top).items()}
    assert len(found) > 50
    return found


@cache
def _below(top: str) -> dict[str, ast.Module]:
    files = sorted((ROOT / top).rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text("utf-8")) for file in files}


@cache
def literals(tree: ast.AST) -> list[str]:
    """The texts in a tree, without docstrings; of an f-string also the whole, with {} for each value."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    wholes = [node.values for node in nodes if isinstance(node, ast.JoinedStr)]
    constants = [n for n in nodes if isinstance(n, ast.Constant) and id(n) not in docstrings]
    texts = ["".join(str(e.value) if isinstance(e, ast.Constant) else "{}" for e in values) for values in wholes]
    return texts + [node.value for node in constants if isinstance(node.value, str)]
