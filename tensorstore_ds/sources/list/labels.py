"""Cells with several labels at once: how they are divided, and which classes they name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence

#: How a cell is divided that looks like a list of Python or JSON.
BRACKETS = "[]"
#: How the flags of a row are divided: a character for each class.
ONE_HOT = "01"
#: How a cell of one label is divided: by what it cannot hold.
UNDIVIDED = "\0"

_SEPARATORS = "|;, "
#: A label in brackets: with quotes, in which it may hold commas, or without.
_BRACKETED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([^\s,'"][^,]*)""")


def divided_by(texts: Collection[str], is_plural: bool) -> str:
    """Separator of the labels in some distinct cells; empty if each cell is one label.

    A space counts only if `is_plural`, which means that the column's name stands for several labels, and if most words
    of cells with several words occur in other cells. In other columns all words must do so, whatever the separator.

    >>> divided_by(["sky animal", "animal night", "sky"], True), divided_by(["golden retriever", "tabby cat"], True)
    (' ', '')
    """
    filled = [text for text in texts if text]
    if filled and all(text[0] == "[" and text[-1] == "]" for text in filled):
        return BRACKETS
    for separator in _SEPARATORS if is_plural else _SEPARATORS.strip():
        cells = [set(words_of(text, separator)) for text in filled if separator in text]
        several = [words for words in cells if len(words) > 1]
        if not several:
            continue
        if is_plural and separator != " ":
            return separator
        counts = Counter(word for text in filled for word in set(words_of(text, separator)))
        words = set().union(*several)
        shared = sum(counts[word] > 1 for word in words)
        if len(several) > 1 and shared >= len(words) / (2 if is_plural else 1):
            return separator
    return ""


def words_of(text: str, separator: str) -> list[str]:
    """The labels in a cell.

    >>> words_of("['cat', \\"a, dog\\"]", BRACKETS), words_of("cat;dog; ", ";")
    (['cat', 'a, dog'], ['cat', 'dog'])
    """
    if separator == BRACKETS:
        parts = _bracketed(text)
    else:
        parts = re.split(r"\s+", text) if separator == " " else [part.strip() for part in text.split(separator)]
    return [part for part in parts if part]


def _bracketed(text: str) -> Sequence[str]:
    """The labels of a list of JSON or Python, or of words without quotes."""
    try:
        parts = json.loads(text)
    except (ValueError, RecursionError):
        parts = ()
    if not parts or not all(isinstance(part, str) for part in parts):
        parts = ["".join(groups).replace("\\", "") for groups in _BRACKETED.findall(text.strip("[] "))]
    return [part.strip() for part in parts]
