"""No text of a source makes a regular expression slow: the time for each is at most proportional to the text."""

from __future__ import annotations

import ast
import importlib
import re
import time
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds

_PACKAGE = Path(tensorstore_ds.__file__).parent
_METHODS = ("match", "fullmatch", "search", "sub", "split", "findall", "finditer")
#: Texts, repeated, that an ambiguous pattern tries in very many ways.
_UNITS = ("1", " ", ".", "a", "-", "_", "/", "\n", "[", "{", '"', "1.", "1 ", " \n", "a ", "-1 ", "-of-1")
_SIZES = (1 << 14, 1 << 16, 1 << 18, 1 << 20)
#: Seconds of this thread's processor time, and growth when the text is 4 times as long. A linear pattern needs 0.05
#: seconds for the longest text. A quadratic one needs more than this for the second or third, and hours for the last.
_SECONDS, _GROWTH = 1.0, 8.0


def _patterns() -> dict[str, tuple[re.Pattern[Any], str]]:
    """The patterns that modules of sources use, each with a method."""
    found: dict[str, tuple[re.Pattern[Any], str]] = {}
    for path in sorted(_PACKAGE.rglob("sources/**/*.py")):
        text = path.read_text("utf-8")
        name = ".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        for each in vars(module):
            if isinstance(pattern := getattr(module, each), re.Pattern):
                methods = sorted(set(re.findall(rf"\b{each}\.({'|'.join(_METHODS)})\b", text)))
                found.update({f"{name}.{each}.{method}": (pattern, method) for method in methods})
        for node in ast.walk(ast.parse(text)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS):
                continue
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "re":
                flags = re.NOFLAG
                for flag in (*node.args, *(keyword.value for keyword in node.keywords)):
                    flags |= getattr(re, flag.attr) if isinstance(flag, ast.Attribute) else re.NOFLAG
                pattern = re.compile(ast.literal_eval(node.args[0]), flags)
                found[f"{name}.{pattern.pattern!r}.{node.func.attr}"] = pattern, node.func.attr
    return found


_PATTERNS = _patterns()


def _words(pattern: re.Pattern[Any]) -> list[str]:
    """The literal texts in a pattern: after them it may begin to repeat."""
    text = pattern.pattern.decode() if isinstance(pattern.pattern, bytes) else pattern.pattern
    plain = re.sub(r"\[[^\]]*\]|\(\?[a-zA-Z<:!=][^>:)]*[>:]?|\\[sSdDwWbBAZ]", "\0", text)
    words = [word.replace("\\", "") for word in re.split(r"[\0()|+*?^$.]|\{[0-9,]*\}", plain)]
    return sorted({word for word in words if word and word.isprintable()})


def _used(pattern: re.Pattern[Any], method: str, text: str) -> None:
    subject = text.encode() if isinstance(pattern.pattern, bytes) else text
    if method == "sub":
        pattern.sub(subject[:0], subject)
    else:
        getattr(pattern, method)(subject)


def _is_slow(pattern: re.Pattern[Any], method: str, start: str, unit: str) -> bool:
    before = 0.0
    for size in _SIZES if not start else _SIZES[:-1]:
        text = f"{start}{unit * (size // len(unit))}\1"
        began = time.thread_time()
        _used(pattern, method, text)
        seconds = time.thread_time() - began
        if seconds > _SECONDS and seconds > _GROWTH * before:
            return True
        before = seconds
    return False


def test_the_patterns_are_found() -> None:
    assert len(_PATTERNS) > 40
    assert {"tensorstore_ds.annex.sources.dota.NUMBER.fullmatch", "tensorstore_ds.sources.names._SIDE.sub"} <= set(
        _PATTERNS
    )


@pytest.mark.slow
@pytest.mark.drawn(12)
@pytest.mark.parametrize(("pattern", "method"), _PATTERNS.values(), ids=list(_PATTERNS))
def test_patterns_are_linear(pattern: re.Pattern[Any], method: str) -> None:
    words = _words(pattern)
    for start in ("", "a", *words):
        for unit in (*_UNITS, *words) if not start else (" ", "1", *words):
            assert not _is_slow(pattern, method, start, unit), f"{start!r}, then {unit!r} many times"


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("text", "method", "start", "unit"),
    [
        (r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", "fullmatch", "", "1"),
        (r"\S.*?\s+(-1|0|1)", "fullmatch", "a", " "),
        (r"[-_ ]?[0-9]+$", "sub", "", "1"),
    ],
)
def test_quadratic_patterns_are_noticed(text: str, method: str, start: str, unit: str) -> None:
    assert _is_slow(re.compile(text), method, start, unit)
