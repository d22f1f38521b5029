"""Convert a source on an engine: plan here, the shards there, commit here."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, Unpack, get_args

from tensorstore_ds.annex.clusters.tasks import TaskSummary, commit, convert_task, plan
from tensorstore_ds.conversion.keywords import ConvertKeywords
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import ShardName
from tensorstore_ds.conversion.result import OnProgress, Progress, Summary, in_notebook
from tensorstore_ds.errors import ConversionError, OptionError, SourceError, TsdsError
from tensorstore_ds.options import refusal, takes_options

Engine = Literal["dask", "ray"]

#: So often a shard is tried again whose worker has died, or failed for want of something.
RETRIES = 3
#: Gives what `convert_shard` returns for each shard, when it is done. Closing it ends what is still under way.
Run = Callable[[Path, Iterable[ShardName], str | None], Iterator[TaskSummary | TsdsError]]


@takes_options(ConvertOptions)
def convert_on(
    engine: Engine,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    options: ConvertOptions | None = None,
    *,
    scheduler: str | None = None,
    progress: OnProgress | None = None,
    **keywords: Unpack[ConvertKeywords],
) -> Summary:
    """Convert a source into a new store at `out` on a Dask or Ray cluster, one shard per worker at a time.

    >>> tsds.clusters.convert_on("dask", "photos", "photos.tsds", scheduler="tcp://head:8786")      # doctest: +SKIP

    Every worker must see the source and the folder of `out` at the same paths, and have the same versions of the
    packages. If a worker dies, a different worker converts its shard. If the call is interrupted, the same call
    continues.

    Args:
        engine: ``dask`` or ``ray``. For Slurm, see `slurm_script`.
        source: path of a folder or file.
        out: path of the new store, which must not exist.
        options: all options as one object. `workers` has no effect: each shard is converted in one process.
        scheduler: address of the cluster. None uses ``DASK_SCHEDULER_ADDRESS`` or ``RAY_ADDRESS``, or else starts a
            cluster on this machine for this call.
        progress: function that is called with a `Progress` from this thread. None shows a bar in a notebook.
        keywords: options by name. Each overrides `options`.

    Raises:
        OptionError: as in `plan`, or the engine is not installed.
        SourceError: as in `plan`, or a sample is bad. It describes the first one found.
        ConversionError: as in `plan`, or the cluster cannot be reached, or a shard failed repeatedly.
        StoreExistsError: `out` exists.
    """
    if engine not in get_args(Engine):
        raise refusal("engine", "dask or ray", engine, get_args(Engine))
    run, began = _runner(engine), time.monotonic()
    notify = progress or in_notebook()
    planned = plan(source, out, options, progress=progress, **keywords)
    done, total = 0, planned.samples
    notify(Progress("convert", 0, total))
    results = run(planned.path, planned.shards, scheduler)
    try:
        for result in results:
            if isinstance(result, TsdsError):
                raise result
            done += result.samples
            for note in result.notes:
                notify(Progress("convert", done, total, 0, note))
            notify(Progress("convert", done, total))
    finally:
        results.close()  # type: ignore[attr-defined]  # a generator
    return replace(commit(planned.path), seconds=time.monotonic() - began)


def _runner(engine: str) -> Run:
    try:
        run: Run = importlib.import_module(f"tensorstore_ds.annex.clusters.{engine}_engine").run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("tensorstore_ds"):
            raise
        raise OptionError(
            f"{error.name} is not installed: pip install '.[{engine}]' in a clone of tensorstore-ds"
        ) from None
    return run


def convert_shard(out: Path, name: ShardName) -> TaskSummary | TsdsError:
    """Convert one shard on a worker; a deterministic error is returned instead of raised."""
    try:
        return convert_task(out, shards=[name], workers=0, progress=lambda event: None)  # no bar in a notebook
    except (SourceError, OptionError) as error:
        return error


def cluster_failed(engine: str, where: str, error: BaseException) -> ConversionError:
    """The error for a cluster that cannot be reached, or gives up."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
    return ConversionError(f"{engine} at {where}: {reason.rstrip('.')}. Run the same command again to go on.")
