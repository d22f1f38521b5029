"""Turn a store of one layout into one of the other, exactly."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

from tensorstore_ds.conversion.blocks import raw_path
from tensorstore_ds.conversion.result import (
    OnProgress,
    Progress,
    Summary,
    in_notebook,
    one_line_for_failures,
    summarize,
)
from tensorstore_ds.conversion.shard_writer import COPY_NBYTES, complete_shard
from tensorstore_ds.conversion.workspace import Workspace
from tensorstore_ds.durable import sync
from tensorstore_ds.errors import FormatError, OptionError, Problem, one_line
from tensorstore_ds.format.manifest import Shard, SplitEntry, shard_path
from tensorstore_ds.format.schema import Layout
from tensorstore_ds.reading.columns import array_columns
from tensorstore_ds.reading.store import Store, open as open_store
from tensorstore_ds.reading.verification import verify
from tensorstore_ds.regular_files import tidied


def repack(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    layout: Layout,
    progress: OnProgress | None = None,
) -> Summary:
    """Write the store at `path` again at `out`, in another layout; every value, statistic and name stays.

    `progress` is as of `convert`. The store is verified first, so that damage is not given a fresh checksum.

    Raises:
        FormatError: the store is damaged.
        StoreExistsError: `out` exists.
        OptionError: the store has that layout already.
        ConversionError: the disk is full.
    """
    began = time.monotonic()
    notify = progress or in_notebook()
    store = open_store(path)
    target = tidied(out)
    if store.layout == layout:
        raise OptionError(f"{store.path}: this store has the layout {layout} already. Copy it as it is.")
    problems = verify(path, progress=lambda done, total: notify(Progress("checksum", done, total)))
    if problems:
        raise FormatError(problems, "Copy the store again; a damaged one is not repacked.")
    with one_line_for_failures(target), Workspace(target) as workspace:
        workspace.begin({"repacked": one_line(str(store.path)), "layout": layout})
        total, done = sum(len(store[name]) for name in store), 0
        splits = {}
        for name in store:
            shards = []
            for index in range(len(store.manifest.splits[name].shards)):
                shards.append(_repack_shard(store, name, index, workspace.store, layout))
                done += shards[-1].rows
                notify(Progress("compress", done, total))
            splits[name] = SplitEntry(tuple(shards), store[name].statistics)
        manifest = replace(store.manifest, layout=layout, splits=splits)
        manifest = workspace.commit(manifest, _skipped(store.path))
    return summarize(target, manifest, began)


def _repack_shard(store: Store, name: str, index: int, root: Path, layout: Layout) -> Shard:
    shard = store.manifest.splits[name].shards[index]
    directory = root / shard_path(name, index)
    split = store[name]
    for field in split.fields:
        for array, column in array_columns(field, split[field]).items():
            path = raw_path(directory, array)
            path.parent.mkdir(parents=True, exist_ok=True)
            part = column.part(index)
            step = max(1, COPY_NBYTES // max(1, column.spec.row_nbytes))
            with path.open("wb") as file:
                for start in range(0, part.shape[0], step):
                    file.write(part[start : min(start + step, part.shape[0])].tobytes())
    chunk_size = store.manifest.chunk_size
    whole = complete_shard(directory, split.fields, shard.rows, shard.lengths, layout, chunk_size)
    sync(directory.parent)
    return whole


def _skipped(root: Path) -> list[Problem]:
    path = root / "skipped.jsonl"
    if not path.exists():
        return []
    try:
        lines = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
        return [Problem(line["where"], line["reason"], line["message"]) for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = Problem("skipped.jsonl", "manifest", f"expected a JSON object a line ({error}).")
        raise FormatError(problem) from error
