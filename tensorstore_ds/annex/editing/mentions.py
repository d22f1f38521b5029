"""Names of samples in texts of others: in what was skipped, and in what was done to a store before."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any

from tensorstore_ds.errors import Problem

_ERASED = "(erased)"
#: Boundaries of a name: the ends of the text, white space, quotes, brackets and punctuation.
_EDGES = r"\s'\"`()\[\]{},:;=|"
_AFTER = rf"(?![^{_EDGES}.]|\.\w)"
#: Endings of annotation files, which are named like their image.
_ANNOTATIONS = (".csv", ".json", ".pts", ".txt", ".xml", ".yaml", ".yml")


class Mentions:
    """Looks for names as whole words or paths: ``1.png`` is not in ``11.png`` or ``cat/1.png``.

    A path is also found behind other folders: ``cat/1.png`` is in ``train/cat/1.png``. Only names that occur in one of
    `texts`, which are all texts that will be searched, take time later.

    >>> Mentions(["cat/1.png"], ["key != 'cat/1.png'"]).without("key != 'cat/1.png'")
    "key != '(erased)'"
    """

    def __init__(self, names: Collection[str], texts: Iterable[str]) -> None:
        whole = "\n".join(texts)
        found = sorted((name for name in names if name and name in whole), key=len, reverse=True)
        parts = [rf"(?<![^{_EDGES}{'/' if '/' in name else ''}]){re.escape(name)}{_AFTER}" for name in found]
        self._pattern = re.compile("|".join(parts)) if parts else None

    def __contains__(self, text: object) -> bool:
        return isinstance(text, str) and self._pattern is not None and self._pattern.search(text) is not None

    def without(self, value: Any) -> Any:
        """Replace each name in a text, or in all texts of a JSON value."""
        if isinstance(value, str) and self._pattern is not None:
            return self._pattern.sub(_ERASED, value)
        if isinstance(value, Mapping):
            return {name: self.without(each) for name, each in value.items()}
        return [self.without(each) for each in value] if isinstance(value, list | tuple) else value


def texts_in(value: Any) -> list[str]:
    """All texts in a JSON value.

    >>> texts_in({"a": ["b", 1], "c": "d"})
    ['b', 'd']
    """
    if isinstance(value, str):
        return [value]
    each = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for one in each for text in texts_in(one)]


def literals_in(texts: Iterable[str]) -> set[str]:
    """The quoted texts in conditions.

    >>> sorted(literals_in(["'b.jpg' not in key or \\"anna\\" in key"]))
    ['anna', 'b.jpg']
    """
    return {match[2] for text in texts for match in re.finditer(r"(['\"])([^'\"]+)\1", text)}


def problems_of(names: Collection[str], problems: Collection[Problem]) -> set[Problem]:
    """The problems that name one of these samples, or the file of its annotation.

    >>> [each.where for each in problems_of({"a/1.png"}, [Problem("labels/1.txt", "x", ""), Problem("2.txt", "x", "")])]
    ['labels/1.txt']
    """
    mentions = Mentions(names, (text for each in problems for text in (each.where, each.message)))
    stems = {PurePosixPath(name).stem for name in names}

    def is_annotation(where: str) -> bool:
        path = PurePosixPath(where.partition(":")[0])
        return path.suffix.lower() in _ANNOTATIONS and path.stem in stems

    return {
        each
        for each in problems
        if each.where in names or each.where in mentions or each.message in mentions or is_annotation(each.where)
    }
