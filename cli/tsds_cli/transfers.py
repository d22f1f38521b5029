"""What the commands that copy stores have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.messages import interrupted

if TYPE_CHECKING:
    from tensorstore_ds import Transfer


def place(value: str) -> str:
    """A path or a URL; an empty one would be the folder that the command is called in."""
    if not value:
        raise click.BadParameter("expected a path or a URL, found an empty text.")
    return value


def place_argument(name: str, metavar: str) -> Callable[[Any], Any]:
    """A path or a URL that the library will check."""
    return click.argument(name, type=place, metavar=metavar)


def names(value: str) -> tuple[str, ...]:
    """``image,label``: names, which the library compares with those of the store.

    >>> names("image, label")
    ('image', 'label')
    """
    found = tuple(name.strip() for name in value.split(","))
    if not all(re.fullmatch(r"[a-z0-9_-]{1,64}", name) for name in found):
        raise click.BadParameter(f"expected names, such as image,label, found {value!r}.")
    return found


@contextmanager
def going_on() -> Iterator[None]:
    """Ctrl-C becomes one line that says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        done = "interrupted; what was transferred is kept, the same command goes on from there"
        raise interrupted(done) from None


def show(done: Transfer, as_json: bool) -> None:
    """Print what was done."""
    if as_json:
        text.echo_json(done)
        return
    if done.was_there:
        text.echo(text.Styled(done.place, bold=True), f"  the same store is here already, {words.size(done.nbytes)}")
        return
    rate = f"{words.size(done.moved / done.seconds)}/s" if done.seconds else ""
    moved = f"transferred {words.size(done.moved)} in {words.duration(done.seconds)}, {rate}"
    text.echo(text.Styled(done.place, bold=True), f"  {words.size(done.nbytes)}, {moved}")
    text.echo(f"sha256: {done.sha256}")
