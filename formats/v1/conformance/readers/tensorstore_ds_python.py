"""This project's reader and verifier: ``python tensorstore_ds_python.py STORE STAGE``. For all cases."""

import json
import sys
from collections.abc import Iterator
from typing import Any

from answer import accepted

import tensorstore_ds as tsds
from tensorstore_ds.reading.columns import array_columns


def shard_arrays(store: tsds.Store) -> Iterator[tuple[str, Any]]:
    """Every array of every shard by its path; offsets are checked."""
    for name in store:
        split = store[name]
        for field in split.fields:
            for path, column in array_columns(field, split[field]).items():
                for i in range(column.shards):
                    yield f"{store.manifest.shard_path(name, i)}/{path}", column.part(i)[:]
        for field in split.fields:
            check_offsets(split[field])


def check_offsets(column: tsds.Column | tsds.RaggedColumn) -> None:
    """Use the offsets of a table, and of the lists in it."""
    if isinstance(column, tsds.RaggedColumn):
        _ = column.offsets
        for each in [*column.lists.values(), *column.per_row.values()]:
            check_offsets(each)


def main(path: str, stage: str) -> int:
    """Open, read or verify; 1 if the store is refused."""
    try:
        store = tsds.open(path)
        arrays = dict(shard_arrays(store)) if stage != "open" else {}
        if stage in ("verify", "decode"):
            problems = tsds.verify(path)
            if problems:
                raise tsds.FormatError(problems)
    except tsds.FormatError as error:
        print(json.dumps({"reason": error.reason}))
        return 1
    accepted(arrays)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
