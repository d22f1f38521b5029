"""Shards on a Dask cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import dask
from distributed import CancelledError, Client, KilledWorker, LocalCluster, as_completed

from tensorstore_ds.annex.clusters.convert import RETRIES, cluster_failed, convert_shard
from tensorstore_ds.annex.clusters.tasks import TaskSummary
from tensorstore_ds.conversion.plan import ShardName
from tensorstore_ds.errors import TsdsError
from tensorstore_ds.machine import usable_cores

#: A worker may log a heartbeat that failed while its cluster ended. Errors of tasks are raised, not logged.
_QUIET = {"distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED": "critical"}


def run(out: Path, names: Iterable[ShardName], scheduler: str | None) -> Iterator[TaskSummary | TsdsError]:
    """Run the tasks on Dask; on this machine, with a process for each core."""
    address = scheduler or os.environ.get("DASK_SCHEDULER_ADDRESS")
    where = address or "this machine"
    try:
        with dask.config.set(_QUIET):
            cluster = (
                LocalCluster(usable_cores(), threads_per_worker=1, dashboard_address=":0") if address is None else None
            )
        client = Client(cluster or address, set_as_default=False)
    except OSError as error:
        raise cluster_failed("Dask", where, error) from error
    log = logging.getLogger("distributed.client")
    level = log.level
    try:
        log.setLevel(logging.CRITICAL)  # of a lost scheduler it writes tracebacks; the error below says it
        # The earlier ones have the higher priority: the largest shards.
        futures = [
            client.submit(convert_shard, out, name, pure=False, retries=RETRIES, priority=-i)
            for i, name in enumerate(names)
        ]
        try:
            for future in as_completed(futures, loop=client.loop):
                yield future.result()
                future.release()
        finally:
            client.cancel(futures)
    except (CancelledError, KilledWorker, OSError) as error:
        if isinstance(error, TsdsError):
            raise
        raise cluster_failed("Dask", where, error) from error
    finally:
        client.close()
        if cluster is not None:
            cluster.close()
        log.setLevel(level)
