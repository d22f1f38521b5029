"""Commands that copy stores: to and from URLs, and into one file."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import tensorstore_ds as tsds
from tensorstore_ds import words
from tsds_cli import text
from tsds_cli.options import F, json_option, option, path_argument, sha256_option
from tsds_cli.progress import working

if TYPE_CHECKING:
    from tensorstore_ds import Store
    from tensorstore_ds.sharing import Transfer

_GOES_ON = "interrupted; what was transferred is kept, the same command goes on from there"


def _place_argument(name: str, metavar: str) -> Callable[[F], F]:
    """A path or a URL that the library checks."""
    return click.argument(name, type=place, metavar=metavar)


def place(value: str) -> str:
    """A path or a URL; an empty one is refused, because it would mean the current folder."""
    if not value:
        raise click.BadParameter("expected a path or a URL, found an empty text.")
    return value


def names(value: str) -> tuple[str, ...]:
    """Names such as ``image,label``, which the library compares with the store's names.

    >>> names("image, label")
    ('image', 'label')
    """
    found = tuple(name.strip() for name in value.split(","))
    if not all(re.fullmatch(r"[a-z0-9_-]{1,64}", name) for name in found):
        raise click.BadParameter(f"expected names, such as image,label, found {value!r}.")
    return found


@click.command()
@_place_argument("store", "STORE")
@_place_argument("url", "URL")
@option("--update", is_flag=True, help="Replace an earlier version of the store at the URL.")
@json_option
def push(store: str, url: str, update: bool, as_json: bool) -> None:
    """Upload a STORE to a URL.

    URL is s3://, gs://, az://, hf://datasets/NAME/PATH or file://. Credentials are read from the environment. The store
    appears at the URL in one step, when all files are uploaded. After an interruption, the same command continues with
    the remaining files. A different store at the URL is never overwritten.

    With --update, the store replaces its earlier state at the URL, not with file://. Only new files are uploaded.
    Programs that have the earlier state open continue until they read a shard that was removed.

    \b
    Examples:
      tsds push photos.tsds s3://bucket/photos.tsds
      tsds push photos.tsds s3://bucket/photos.tsds --update
      tsds push photos.tsds hf://datasets/me/photos/photos.tsds
    """
    with working(_GOES_ON) as bar:
        done = tsds.push(store, url, update=update, progress=partial(bar.update_bytes, "Pushing"))
    _show(done, as_json)


@click.command()
@_place_argument("url", "URL")
@path_argument("out")
@option("--only", "splits", type=names, metavar="NAME,...", help="Download only these splits.")
@option("--fields", type=names, metavar="NAME,...", help="Download only these fields.")
@option(
    "--update", is_flag=True, help="Replace an earlier state of the store at OUT. Only what it lacks is downloaded."
)
@option("--verify", is_flag=True, help="Also check chunks and values, as tsds verify does. SHA-256 is always compared.")
@option("--workers", type=click.IntRange(1, 256), default=8, show_default=True, help="Number of parallel requests.")
@sha256_option
@json_option
def pull(url: str, out: Path, as_json: bool, **given: Any) -> None:
    """Download a store, or parts of it, from a URL to OUT.

    URL is s3://, gs://, az://, https://, http://, hf://datasets/NAME[@REVISION][/PATH] or file://. Every file is
    compared with its SHA-256. OUT appears in one step. Until then, the copy is in OUT.partial. After an interruption,
    the same command downloads the remaining files.

    With --update, OUT may be a copy of an earlier state, with the same --only and --fields. Programs that have it open
    continue with that state, unless its shards were removed, as after an erasure.

    \b
    Examples:
      tsds pull s3://bucket/photos.tsds photos.tsds
      tsds pull https://example.org/photos.tsds labels.tsds --only train --fields label,key
      tsds pull s3://bucket/photos.tsds photos.tsds --update
    """
    with working(_GOES_ON) as bar:
        done = tsds.pull(url, out, **given, progress=partial(bar.update_bytes, "Fetching"))
    _show(done, as_json)


@click.command()
@_place_argument("source", "SRC")
@_place_argument("target", "DST")
@json_option
def copy(source: str, target: str, as_json: bool) -> None:
    """Copy a store from SRC to DST, each a path or a URL.

    Every file is compared with its SHA-256. DST appears in one step, when it is complete, and is never overwritten.
    After an interruption, the same command continues.

    \b
    Examples:
      tsds copy /mnt/share/photos.tsds /scratch/photos.tsds
      tsds copy s3://bucket/photos.tsds gs://bucket/photos.tsds
    """
    with working(_GOES_ON) as bar:
        done = tsds.copy(source, target, progress=partial(bar.update_bytes, "Copying"))
    _show(done, as_json)


def _show(done: Transfer, as_json: bool) -> None:
    if as_json:
        text.echo_json(done)
    elif done.was_there:
        text.title(done.place, f"the same store is here already, {words.size(done.nbytes)}")
    else:
        rate = f"{words.size(done.moved / done.seconds)}/s" if done.seconds else ""
        moved = f"transferred {words.size(done.moved)} in {words.duration(done.seconds)}, {rate}"
        text.title(done.place, f"{words.size(done.nbytes)}, {moved}")
        text.echo(f"sha256: {done.sha256}")


@click.command()
@path_argument("store")
@path_argument("out")
@sha256_option
@json_option
def pack(store: Path, out: Path, sha256: str | None, as_json: bool) -> None:
    """Pack a STORE into a single file OUT.

    OUT is an uncompressed ZIP file. Commands that read samples take it like the store. To push, pull, copy or change
    the store, or to write its card, unpack it. Every file is compared with its checksum while it is copied. The same
    store gives the same bytes.

    \b
    Examples:
      tsds pack photos.tsds photos.tsds.zip
      tsds pack photos.tsds photos.tsds.zip --json
      tsds verify photos.tsds.zip
    """
    with working(out) as bar:
        packed = tsds.pack(store, out, sha256=sha256, progress=partial(bar.update_bytes, "Packing"))
    _show_packed(packed, out, out.stat().st_size, as_json)


@click.command()
@path_argument("packed")
@path_argument("out")
@sha256_option
@json_option
def unpack(packed: Path, out: Path, sha256: str | None, as_json: bool) -> None:
    """Unpack a PACKED store into a folder OUT.

    Only the files of the store are written, and each is compared with its checksum. OUT appears when it is complete.
    You can also use a packed store without unpacking it.

    \b
    Examples:
      tsds unpack photos.tsds.zip photos.tsds
      tsds unpack photos.tsds.zip photos.tsds --json
    """
    with working(out) as bar:
        store = tsds.unpack(packed, out, sha256=sha256, progress=partial(bar.update_bytes, "Unpacking"))
    _show_packed(store, out, store.nbytes, as_json)


def _show_packed(store: Store, out: Path, nbytes: int, as_json: bool) -> None:
    if as_json:
        text.echo_json({"path": str(out), "sha256": store.sha256, "nbytes": nbytes})
        return
    text.title(out, f"{words.size(nbytes)}, the store {store.sha256}")
    text.echo(f"next: {text.call('info', out)}")
