"""The README and the first steps in other languages have the structure, code, figures and links of the English ones.

Each ends with a mark: the digest of the English prose that was translated. If the English page changes, translate the
change, then run ``python tests/lint/test_translations.py``, which writes the marks.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from doc_pages import ROOT

PAIRS = [(ROOT / "README.md", ROOT / f"README.{language}.md") for language in ("zh-CN", "ru")] + [
    (ROOT / "docs/quickstart.md", ROOT / f"docs/{language}/quickstart.md") for language in ("zh-CN", "ru")
]


def code(text: str) -> list[str]:
    """Blocks of code; the site alone includes parts of other pages."""
    found = re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL)
    return [block for block in found if not block.startswith("```{include}")]


def prose(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def levels(text: str) -> list[int]:
    return [len(line.split()[0]) for line in prose(text).splitlines() if line.startswith("#")]


def rows(text: str) -> list[int]:
    """The number of cells in each row of each table."""
    return [line.count("|") for line in prose(text).splitlines() if line.startswith("|")]


def targets(path: Path) -> list[str]:
    """What links lead to, from the root of the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text("utf-8")))
    found = [each for each in found if not each.startswith("README")]  # of the other languages
    return sorted(
        each if each.startswith("http") else (path.parent / each).resolve().relative_to(ROOT).as_posix()
        for each in found
    )


def in_language(target: str, language: str) -> str:
    """The translated page of an English one, where there is one."""
    translated = target.replace("docs/", f"docs/{language}/", 1)
    return translated if (ROOT / translated.partition("#")[0]).is_file() else target


def mark(text: str) -> str:
    """The last line of a translation of this text."""
    return f"<!-- of {hashlib.sha256(prose(text).encode()).hexdigest()[:16]} -->"


def numbers(text: str) -> list[str]:
    """Figures in tables and texts, without what divides thousands."""
    joined = re.sub(r"(?<=\d)[, ](?=\d{3}\b)|<!-- of .*", "", prose(text))
    return sorted(re.findall(r"\d+(?:\.\d+)*", joined))


@pytest.mark.parametrize(("english", "other"), PAIRS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_translation_is_kept_in_step(english: Path, other: Path) -> None:
    text, translated = english.read_text("utf-8"), other.read_text("utf-8")
    assert levels(translated) == levels(text)
    assert code(translated) == code(text)
    assert rows(translated) == rows(text)
    language = "zh-CN" if "zh-CN" in other.as_posix() else "ru"
    assert targets(other) == sorted(in_language(target, language) for target in targets(english))
    assert numbers(translated) == numbers(text)
    written = "[\u4e00-\u9fff]" if language == "zh-CN" else "[\u0400-\u04ff]"
    assert len(re.findall(written, translated)) > len(text) / 8
    assert translated.splitlines()[-1] == mark(text), "translate what changed, then run this file as a script"


if __name__ == "__main__":
    for english, other in PAIRS:
        lines = [line for line in other.read_text("utf-8").splitlines() if not line.startswith("<!-- of ")]
        other.write_text("\n".join([*lines, mark(english.read_text("utf-8")), ""]), "utf-8")
