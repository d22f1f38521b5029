"""Shards on a Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import ray
from ray.exceptions import RayError

from tensorstore_ds.annex.clusters.convert import RETRIES, cluster_failed, convert_shard
from tensorstore_ds.annex.clusters.tasks import TaskSummary
from tensorstore_ds.conversion.plan import ShardName
from tensorstore_ds.errors import TsdsError


def run(out: Path, names: Iterable[ShardName], scheduler: str | None) -> Iterator[TaskSummary | TsdsError]:
    """Run the tasks on Ray; in the cluster that the caller's program already uses, if any."""
    address = scheduler or os.environ.get("RAY_ADDRESS")
    where, own = address or "this machine", not ray.is_initialized()
    try:
        if own:
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (RayError, OSError, RuntimeError, ValueError) as error:
        raise cluster_failed("Ray", where, error) from error
    try:
        remote = ray.remote(num_cpus=1, max_retries=RETRIES, retry_exceptions=True)(convert_shard)
        pending = [remote.remote(out, name) for name in names]
        try:
            while pending:
                ready, pending = ray.wait(pending, num_returns=1)
                yield from ray.get(ready)
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)
    except RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, TsdsError):
            raise cause from error
        raise cluster_failed("Ray", where, error) from error
    finally:
        if own:
            ray.shutdown()
