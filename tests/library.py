"""The modules of the library and of the command as syntax trees, each parsed once."""

from __future__ import annotations

import ast
from functools import cache

from doc_pages import ROOT


@cache
def library(*tops: str) -> dict[str, ast.Module]:
    """Trees by the paths of the files, for all modules below folders of the repository."""
    files = sorted(file for top in tops for file in (ROOT / top).rglob("*.py"))
    assert len(files) > 50
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text("utf-8")) for file in files}


@cache
def literals(tree: ast.AST) -> list[str]:
    """The texts in a tree, without docstrings; of an f-string also the whole, with {} for each value."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    wholes = [node.values for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    constants = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in docstrings]
    texts = ["".join(str(e.value) if isinstance(e, ast.Constant) else "{}" for e in values) for values in wholes]
    return texts + [node.value for node in constants if isinstance(node.value, str)]
