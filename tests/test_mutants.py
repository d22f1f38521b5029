"""The mutation testing of `make mutants`, on a package of a few lines."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

import mutants

TINY = """def larger(a: int, b: int) -> int:
    if a > b:
        return a
    return b


def half(values: list[int]) -> list[int]:
    return values[: len(values) // 2]
"""
TESTS = """from tiny.numbers import half, larger


def test_larger():
    assert larger(3, 2) == 3
    assert larger(2, 3) == 3


def test_half_has_a_value():
    assert half([1, 2, 3, 4])[0] == 1
"""
SETTINGS = """[tool.coverage.run]
source_pkgs = ['tiny']

[tool.pytest.ini_options]
testpaths = ['tests']
addopts = '--import-mode=importlib'
markers = ['quiet', 'slow']
"""


def changed(line: str) -> set[str]:
    return {mutant.text for mutant in mutants.mutants_of("m.py", line)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("x = a + b", {"x = (a - b)"}),
        ("x = a // b", {"x = (a * b)"}),
        ("x = f(a << b)", {"x = f((a >> b))", "x = f(a >> b)"}),
        ("x = a < b <= c", {"x = (a <= b <= c)", "x = (a < b < c)"}),
        ("x = a is b", {"x = (a is not b)"}),
        ("x = a and b", {"x = (a or b)"}),
        ("x = not a", {"x = a"}),
        ("x = -a", {"x = a"}),
        ("x = 7", {"x = 8", "x = 6"}),
        ("x = True", {"x = False"}),
        ("x = 0.5", {"x = 1.5"}),
        ("x = min(a, b)", {"x = max(a, b)"}),
        ("x = a[b:c]", {"x = a[b + 1:c]", "x = a[b:c + 1]"}),
        ("x += a", {"x -= a"}),
        ("def f(): return a", {"def f(): return None"}),
        ("ü = 'größer', 1", {"ü = 'größer', 2", "ü = 'größer', 0"}),
    ],
)
def test_each_small_change(line: str, expected: set[str]) -> None:
    assert changed(line) <= expected
    assert changed(line)


@pytest.mark.parametrize(
    "line",
    [
        "x = 'a' + b",
        "x = f'{a + 1}'",
        "raise ValueError(a + 1)",
        "__all__ = ['a', *b[1:]]",
        "def f(a: Literal[1]) -> Literal[2]: ...",
        "x: Literal[1]",
        "@f(1)\ndef g(): ...",
        "if TYPE_CHECKING:\n    x = 1",
        "zip(a, b, strict=True)",
        "Both = A | B",
    ],
)
def test_messages_types_and_decorators_stay(line: str) -> None:
    assert changed(line) == set()


WHOLE_HALF = """from tiny.numbers import half


def test_half_has_all_values():
    assert half([1, 2, 3, 4]) == [1, 2]
"""


def tiny(folder: Path, tests: str = TESTS) -> None:
    for name, text in {
        "tiny/__init__.py": "",
        "tiny/numbers.py": TINY,
        "tests/test_numbers.py": tests,
        "tests/test_whole.py": WHOLE_HALF,
        "pyproject.toml": SETTINGS,
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, "utf-8")


@pytest.mark.slow
@pytest.mark.drawn(0)
@pytest.mark.timeout(900)  # a process per mutant, on a busy machine
def test_changes_that_no_test_notices_are_reported(tmp_path: Path) -> None:
    tiny(tmp_path)
    command = [sys.executable, str(Path(mutants.__file__)), "tiny", "--jobs", "1", "--count", "99"]

    def report(*options: str) -> list[str]:
        ran = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, check=True)
        return ran.stdout.partition("8 of 8 mutants, seed 0\n")[2].splitlines()

    lines = report("--only", "tests/test_numbers.py")
    # Equal numbers are equally large. The test of `half` looks only at the first value.
    assert lines[:3] == ["tiny/numbers.py:2: survived 1 tests", "    -    if a > b:", "    +    if (a >= b):"]
    assert lines[3:15:3] == ["tiny/numbers.py:8: survived 1 tests"] * 4
    assert lines[-2] == "| tiny/numbers.py | 8 | 3 | 5 |"
    assert report()[-2] == "| tiny/numbers.py | 8 | 7 | 1 |"  # the other file is recorded now
    assert report("--only", "tests/test_numbers.py")[-2] == "| tiny/numbers.py | 8 | 3 | 5 |"
    assert (tmp_path / "tiny" / "numbers.py").read_text("utf-8") == TINY


def test_a_test_that_does_not_end_has_noticed_the_change(tmp_path: Path) -> None:
    tiny(tmp_path, "while True:\n    pass")
    trial = mutants.Trial(tmp_path)
    trial.start(None, ["tests/test_numbers.py"], 0.5, 1)
    while (result := trial.result()) is None:
        time.sleep(0.1)
    assert result == "the time limit"
