"""Convert the shards of a prepared source: workers convert their blocks, and shards are finished in order."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping

import numpy as np

from tensorstore_ds.conversion.blocks import Job
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import (
    BLOCK_NBYTES,
    BLOCK_OF_PARTS_NBYTES,
    Block,
    ChosenRows,
    ShardName,
    block_rows,
    plan_blocks,
)
from tensorstore_ds.conversion.preparation import Prepared
from tensorstore_ds.conversion.shard_writer import FinishedShard, ShardWriter
from tensorstore_ds.conversion.workers import run_blocks
from tensorstore_ds.machine import usable_cores

#: Number of references that are joined at a time for their digest.
_DIGESTED = 10_000


def convert_shards(
    prepared: Prepared,
    shards: Mapping[ShardName, ChosenRows],
    writers: Mapping[ShardName, ShardWriter],
    options: ConvertOptions,
    common: bytes,
    *,
    on_rows: Callable[[int], None],
    note: Callable[[str], None],
) -> Generator[tuple[ShardName, FinishedShard]]:
    """Convert shards in order, and yield each when it is on disk. Close the generator to end its workers.

    `common` are the `identities` of the files that all samples share. `on_rows` is called with the number of samples
    done since its last call.
    """
    written = write_shards(prepared, shards, writers, options.workers, common, on_rows=on_rows, note=note)
    with contextlib.closing(written):
        for name, writer, origin in written:
            yield name, writer.finish(options.layout, len(shards[name]), str(origin))


def write_shards(
    prepared: Prepared,
    shards: Mapping[ShardName, ChosenRows],
    writers: Mapping[ShardName, ShardWriter],
    workers: int | None,
    common: bytes = b"",
    *,
    on_rows: Callable[[int], None],
    note: Callable[[str], None],
) -> Generator[tuple[ShardName, ShardWriter, Origin]]:
    """Convert shards in order, and yield their complete writers, and where each is from."""
    nbytes = BLOCK_OF_PARTS_NBYTES if prepared.source.has_parts else BLOCK_NBYTES
    job, rows = Job(prepared.source, prepared.format), block_rows(prepared.row_nbytes, nbytes)
    workers = usable_cores() if workers is None else workers
    workers = min(workers, sum(math.ceil(len(shard) / rows) for shard in shards.values()))
    with contextlib.ExitStack() as stack:

        def blocks() -> Iterator[Block]:
            """The blocks of all shards in order; a shard's files are created when its first block is requested."""
            for name, shard in shards.items():
                if len(shard):
                    yield from plan_blocks(shard, rows, stack.enter_context(writers[name]).partial)

        results = stack.enter_context(contextlib.closing(run_blocks(job, blocks(), workers, note)))
        for name, shard in shards.items():
            origin = Origin(common, shard)
            if not len(shard):
                stack.enter_context(writers[name])
            for start in range(0, len(shard), rows):
                result = next(results)
                writers[name].append(result)
                origin.update(result.files)
                on_rows(min(rows, len(shard) - start))
            yield name, writers[name], origin


class Origin:
    """The origin of a shard, as text: a digest of its references and of the `identities` of its files.

    A digest of the files' `ctime` follows. If only that differs, nothing else of the files has changed.
    """

    def __init__(self, common: bytes, shard: ChosenRows) -> None:
        self._files, self._status = reference_digest(shard), hashlib.sha256()
        self.update(common)

    def update(self, files: bytes) -> None:
        """Add the identities of the next files."""
        numbers = np.frombuffer(files, np.int64).reshape(-1, 4)
        self._files.update(numbers[:, :3].tobytes())
        self._status.update(numbers[:, 3].tobytes())

    def __str__(self) -> str:
        return f"{self._files.hexdigest()} {self._status.hexdigest()}"


def reference_digest(shard: ChosenRows) -> hashlib._Hash:
    """The digest of a shard's references."""
    origin = hashlib.sha256()
    for start in range(0, len(shard), _DIGESTED):
        # File names contain no NUL, so different lists joined by it have different bytes.
        text = "\0".join(map(str, shard[start : start + _DIGESTED]))
        origin.update(f"{text}\0".encode("utf-8", "surrogateescape"))
    return origin
