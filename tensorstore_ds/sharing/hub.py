"""Copy a store to the Hugging Face Hub with huggingface_hub: its files in some commits, its root in the last one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorstore_ds.errors import FormatError, OptionError, Problem
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.format.root import parse_root
from tensorstore_ds.format.schema import SIGNATURE
from tensorstore_ds.reading.mirror_file import sha256_of
from tensorstore_ds.reading.packed_files import find_files
from tensorstore_ds.remote.hub import HubPlace, api, failure, parse
from tensorstore_ds.remote.location import Location
from tensorstore_ds.sharing.existing import is_to_be_replaced, store_at
from tensorstore_ds.sharing.selection import Content, damaged
from tensorstore_ds.sharing.transfer import Counter, Transfer


def push_to_hub(source: Path | None, url: str, content: Content, counter: Counter, *, update: bool) -> Transfer:
    """Copy the store at a path; raises as `push` does."""
    place = parse(url)
    if source is None:
        raise OptionError(f"{place.url}: a store is pushed to the Hub from a path. Pull it first.")
    if not place.path:
        raise OptionError(f"{place.url}: expected a folder for the store, as in {place.url}/photos.tsds, found none.")
    before = Location(url)  # as of one commit: every push that began then is refused once another has committed
    found = store_at(before)
    if found is None or is_to_be_replaced(place.url, found, content, update=update):
        replaced = _replaced(content)
        had = found.manifest.files.keys() if found is not None else set()
        gone = [name for name in (*had, SIGNATURE) if name not in content.files and before.find(name) is not None]
        _check_files(source, content, replaced)
        counter.begin(0, content.nbytes)
        try:
            _commit(api(), place, source, content, (replaced, gone), parse(before.resolved_url).revision)
        except Exception as error:  # also from the HTTP library
            found = store_at(Location(url))  # another push may have been quicker
            if found is None or is_to_be_replaced(place.url, found, content, update=update):
                raise failure(place, error) from None
        counter.add(content.nbytes)
    return Transfer(place.url, content.sha256, content.nbytes, counter.moved, counter.seconds, not counter.moved)


def _replaced(content: Content) -> tuple[str, ...]:
    """Folders of replaced shards, which may still exist but are not published."""
    splits = parse_root(content.root)[0].splits.items()
    return tuple(f"{shard_path(name, number)}/" for name, entry in splits for number in entry.replaced)


def _check_files(source: Path, content: Content, replaced: tuple[str, ...]) -> None:
    """Raise `FormatError` for damaged files, and for other files in the store's folder, which would be published."""
    names, files = {*content.files, *content.lists, "zarr.json"}, find_files(source)
    for name in files.names():
        if name not in names and not name.startswith(replaced):
            problem = Problem(name, "unlisted-file", "this file is not listed.")
            raise FormatError(problem, "Remove it, or it would be published.")
    for name, listed in content.files.items():
        with files.open(name) as file:
            if (found := sha256_of(file)) != listed.sha256:
                raise damaged(name, listed, found)


def _commit(
    client: Any,
    place: HubPlace,
    source: Path,
    content: Content,
    without: tuple[tuple[str, ...], list[str]],
    head: str | None,
) -> None:
    """Upload shards, then the root with its files; the Hub refuses both if something else was committed since `head`.

    `without` has the folders that are not uploaded, and root files of an earlier state that are deleted with its root.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    replaced, gone = without
    beside = [name for name in content.files if "/" not in name]  # those that an earlier state has, too: with the root
    where = {"repo_id": place.name, "repo_type": "dataset", "revision": place.revision}
    before = client.upload_folder(
        folder_path=source,
        path_in_repo=place.path,
        ignore_patterns=["zarr.json", *beside, *(f"{folder}*" for folder in replaced)],  # the root's zarr.json alone
        commit_message=f"Files of {place.path}",
        parent_commit=head,
        **where,
    )
    client.create_commit(
        operations=[
            CommitOperationAdd(f"{place.path}/zarr.json", content.root),
            *(CommitOperationAdd(f"{place.path}/{name}", source / name) for name in beside),
            *(CommitOperationDelete(f"{place.path}/{name}", is_folder=False) for name in gone),
        ],
        commit_message=f"Add {place.path}, the store {content.sha256[:12]}",
        parent_commit=before.oid,
        **where,
    )
