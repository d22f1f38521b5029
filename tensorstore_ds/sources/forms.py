"""Values of the wrong form in files of others, and the problems that they become."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensorstore_ds.errors import Problem, SourceError


class FormError(Exception):
    """A value of the wrong form; the message says what was expected and found, but not where."""

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason  #: code of the problem, if it is not the usual one of its format


@contextmanager
def noted(problems: list[Problem]) -> Iterator[None]:
    """Note the problems of a `SourceError` in this block, instead of raising it."""
    try:
        yield
    except SourceError as error:
        problems += error.problems


@contextmanager
def placed(where: str, advice: str = "", *, prefix: str = "", reason: str = "annotation") -> Iterator[None]:
    """Raise a `FormError` in this block as `SourceError`, with its place, more of its place before it, and advice."""
    try:
        yield
    except FormError as error:
        message = f"{prefix}{error}. {advice}".rstrip()
        raise SourceError(Problem(where, error.reason or reason, message)) from error


def kind(value: object) -> str:
    """Type of a value for an error message."""
    if isinstance(value, str):
        return repr(value[:40])
    return "none" if value is None else str(value)[:40] if isinstance(value, int | float) else type(value).__name__
