"""From numbers to verdicts: what holds training back, the heaviest first. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator

from tensorstore_ds.annex.measuring.diagnosis_results import Measured, ModelRun, Run, TransformRun, Verdict
from tensorstore_ds.words import duration, percent, rate, size

#: The loader holds a model back where training is slower than the model alone by more than the first, and at least the
#: second share of the time is spent waiting for batches.
SLOWER, WAITING = 0.9, 0.05
#: What is less than this many times quicker is not told from chance.
QUICKER = 1.2
#: Storage, or a transform, holds a loader back if it comes to less than this share of what it does without it.
SLOWED = 0.7
#: All of a store counts as being in memory from this share on: a kernel may take single pages back.
RESIDENT = 0.99
#: A thread that only computes in Python gives the GIL away between samples, when torch slices the next one, and after
#: `sys.getswitchinterval`, 5 ms, at the latest. Who waits for it then waits for half a sample's time or more, where a
#: thread that copies or decodes lets him go on at once. Less than the least is not told from the system's delays.
HELD_SHARE, HELD_LEAST, HELD_MOST = 0.25, 0.0002, 0.002
#: Shares: of the cores, from which on they are busy; of a step, that a copy may take beside it; of the cores, that
#: loading may take from a model on the same ones.
BUSY, COPYING, SHARED = 0.75, 0.8, 0.2


def judge(m: Measured) -> tuple[Verdict, ...]:
    """All verdicts that the numbers support, at least one, the most important first.

    Either the model is the limit, or training waits for the loader; in the second case, the kind of the store and the
    work of its threads always lead to a verdict.
    """
    causes = (storage_and_memory, model, store_and_threads, copies, processors)
    return tuple(verdict for cause in causes for verdict in cause(m))


def starved(m: Measured) -> bool:
    """Whether training waits for the loader; true if no model trains, because only loading can be judged."""
    if m.model is None or m.together is None:
        return True
    return m.together.rate < SLOWER * m.model.rate and m.together.wait > WAITING


def disturbed(m: Measured) -> bool:
    """Whether the loader slows the training thread down, though training hardly waits for batches."""
    if m.model is None or m.together is None or starved(m):
        return False
    return m.together.rate < SLOWER * m.model.rate and m.disturbance >= QUICKER


def cause_of(m: Measured) -> str:
    """What limits training, as `LoaderStats.cause` names it; empty if no model trains."""
    if m.model is None or m.together is None:
        return ""
    if starved(m):
        return "handover" if m.together.cause == "handover" else "loading"
    if disturbed(m):
        return "handover"
    return "script" if m.together.cause == "script" else "training"


def storage_and_memory(m: Measured) -> Iterator[Verdict]:
    """Verdicts for training that waits for storage, or an epoch larger than the memory for it."""
    first, memory = m.first_epoch, m.memory
    options = 'a smaller `size` or `encoding="jpeg"`' if m.encoding == "raw" else "a smaller `size`"
    smaller = f"Shuffle by blocks, as below (BlockShuffleSampler); convert with {options}; or allow more memory."
    from_memory = not first.major_faults if memory.resident is None else memory.resident > RESIDENT
    enough = m.model is not None and first.rate >= m.model.rate
    if not from_memory and not enough and first.rate < SLOWED * m.current.rate:
        line, change = "Rows are read from storage in every epoch", smaller
        if memory.fits:
            line = "The store is not in memory yet"
            change = "Read it in order: tsds warm before training, or tsds.page_cache.warm_in_background(store)."
        line += "" if memory.resident is None else f" ({percent(memory.resident)} of it was there)"
        line += f": {rate(first.rate)} are loaded in the first epoch, and {rate(m.current.rate)} from memory."
        rates = {"first_epoch_rate": first.rate, "memory_rate": m.current.rate}
        yield Verdict("storage-bound", line, change, rates | {"major_faults": float(first.major_faults or 0)})
    if not memory.fits:
        limit = f"{size(memory.limit)} ({memory.limited_by})"
        line = (
            f"An epoch takes {size(memory.nbytes)}, this process may use {limit}: every epoch reads from storage again."
        )
        yield Verdict("does-not-fit", line, smaller, {"nbytes": float(memory.nbytes), "limit": float(memory.limit)})


def model(m: Measured) -> Iterator[Verdict]:
    """Verdicts for torch's threads that wait for each other, or a model that is the limit."""
    run, both = m.model, m.together
    if run is not None and run.fewer_rate >= QUICKER * run.rate:
        fewer = run.fewer_threads
        line = (
            f"Torch computes {rate(run.rate)} with {run.threads} threads, and {rate(run.fewer_rate)} with {fewer}: "
            f"this process gets the work of {m.cores.measured:.1f} cores, and threads wait for one that has no core."
        )
        change = f"Call torch.set_num_threads({fewer}), set OMP_NUM_THREADS={fewer}, or let nothing else run beside it."
        evidence = {"rate": run.rate, "fewer_rate": run.fewer_rate, "fewer_threads": float(fewer)}
        yield Verdict("too-many-torch-threads", line, change, evidence | {"threads": float(run.threads)})
    cause = cause_of(m)
    if run is not None and both is not None and cause == "handover":
        yield _disturbed(m, run, both)
    if run is not None and both is not None and cause == "script":
        yield launch_bound(run.seconds, {"model_rate": run.rate, "together_rate": both.rate})
    if run is not None and both is not None and cause == "training":
        line = (
            f"The model is the limit, the loader is not: a step takes {duration(run.seconds)}, and "
            f"{percent(both.wait)} of the time is spent waiting for batches."
        )
        change = "A faster model trains faster: lower precision, torch.compile, smaller images, fewer weights."
        evidence = {"model_rate": run.rate, "together_rate": both.rate, "wait": both.wait}
        yield Verdict("model-bound", line, change, evidence)


def launch_bound(seconds: float, evidence: dict[str, float]) -> Verdict:
    """Verdict for a GPU that waits for steps of some seconds, though batches are ready."""
    line = (
        "The GPU waits for the script: it had finished all earlier work when it got most of its batches, though they "
        f"were ready. A step takes {duration(seconds)}."
    )
    change = (
        "Launch less per sample: larger batches, torch.compile or CUDA graphs. A step must not wait for the device, as "
        "loss.item() and print(loss) do."
    )
    return Verdict("launch-bound", line, change, evidence)


def _disturbed(m: Measured, run: ModelRun, both: Run) -> Verdict:
    """Verdict for batches that are finished, but take the training thread's time."""
    rates = f"{rate(both.rate)} are trained, and {rate(run.rate)} from one batch that stays on the device"
    line = f"The loader disturbs the training thread: {rates}."
    if starved(m):
        line += f" Handing over finished batches takes {percent(both.wait)} of the time."
    if m.disturbance >= QUICKER:
        line += f" Small operations of torch take {m.disturbance:.1f}x the time while the loader works."
    change = "Try fewer threads (num_threads), larger batches, and torch.compile or CUDA graphs for fewer launches."
    if m.transform is not None and holds_gil(m.transform):
        change = "The transform holds the GIL: transform whole batches, or load with worker processes (num_workers)."
    evidence = {"model_rate": run.rate, "together_rate": both.rate, "wait": both.wait, "disturbance": m.disturbance}
    return Verdict("training-disturbed", line, change, evidence)


def store_and_threads(m: Measured) -> Iterator[Verdict]:
    """Verdicts for threads that block each other, a store that needs decoding, or faster settings of the loader."""
    t, d, rates = _slow_transform(m), m.decoding, {"rate": m.best.rate}
    if t is not None and holds_gil(t):
        line = (
            f"The transform holds Python's global lock: {rate(t.one)} in one thread, {rate(t.several)} in {t.threads}, "
            f"{rate(t.without)} without it. Other threads wait {duration(t.gil_wait)} for the lock."
        )
        change = (
            "Transform whole batches on the device (tsds.Compose as batch_transform), use operations of NumPy or torch "
            "on whole images, or load with worker processes (num_workers)."
        )
        yield Verdict("transform-holds-gil", line, change, _rates(t))
    if m.layout == "zarr" and starved(m):
        line = f"The store is compressed (layout zarr): {_best(m)}."
        change = 'Train from a copy that is not: repack the store with `layout="memmap"`.'
        yield Verdict("compressed", line, change, rates | {"gather": m.best.gather})
    if d is not None and starved(m):
        line = f"Images are kept as files and decoded in every epoch: {duration(d.decode)} each, {_best(m)}."
        change = (
            'Keep pixels, with `encoding="raw"`, if all of them fit into the available memory (see `dry_run`), or '
            'smaller JPEG files, with `encoding="jpeg"` and `size`.'
        )
        if d.in_part:
            line = f"Crops of files are decoded in every epoch: {_best(m)}. A whole image takes {duration(d.decode)}."
        else:
            change = f"Decode only the crop: pass RandomResizedCrop or Resize as `decode`. {change}"
        yield Verdict("decode-bound", line, change, rates | {"decode": d.decode, "read": d.read})
    used, wanted = m.current.settings, m.wanted
    if wanted is None or wanted.num_workers or m.gain < QUICKER or disturbed(m):
        return
    if (used.num_threads, used.prefetch_factor) != (wanted.num_threads, wanted.prefetch_factor):
        line = f"{rate(m.current.rate)} are loaded with the settings in use, {rate(m.best.rate)} with the best ones."
        settings = ", ".join(f"{name}={value!r}" for name, value in wanted.arguments().items())
        evidence = {"rate": m.current.rate, "best_rate": m.best.rate, "gain": m.gain, "depth": m.current.depth}
        yield Verdict("loader-settings", line, f"Load with {settings or 'the defaults of the loader'}.", evidence)


def copies(m: Measured) -> Iterator[Verdict]:
    """Verdict for batches that are copied to the device too slowly."""
    run = m.together or m.best
    step = run.batch_size / run.rate
    if run.copy and starved(m) and run.copy >= COPYING * step:
        line = f"The copy of a batch to the device takes {duration(run.copy)}, nearly all of the time."
        change = "Keep the split on the device (residency='device'), or send less: uint8 images, a smaller `size`."
        yield Verdict("copy-bound", line, change, {"copy": run.copy, "step": step})


def processors(m: Measured) -> Iterator[Verdict]:
    """Verdict for threads that are the limit: transforms, more threads than cores, or memory alone."""
    t = _slow_transform(m)
    if t is not None and not holds_gil(t):
        line = (
            f"Samples are transformed and stacked one by one: {rate(t.several)} in {t.threads} threads, "
            f"{rate(t.without)} as whole batches without the transform."
        )
        change = "Transform whole batches on the device instead: tsds.Compose as batch_transform."
        yield Verdict("transform-bound", line, change, _rates(t))
    yield from _cores_limited(m, t)
    if _only_copies(m):
        speed = m.best.rate * m.sample_nbytes
        line = f"Batches are put together from memory at {size(speed)}/s: {_best(m)}."
        change = "This does not hold back a model that takes fewer samples."
        if m.model is not None:
            change = "Load less per sample (a smaller `size`, fewer fields), or keep it on a GPU (residency='device')."
        yield Verdict("gather-bound", line, change, {"rate": m.best.rate, "nbytes_per_second": speed})


def _cores_limited(m: Measured, slow: TransformRun | None) -> Iterator[Verdict]:
    """Verdict for threads that want more cores than there are."""
    cores, allowed, both = m.cores, m.cores.allowed, m.together
    evidence = {"cores": allowed, "machine": float(cores.machine), "measured": cores.measured}
    name = f"{allowed:g} core{'' if allowed == 1 else 's'}"
    if cores.measured < BUSY * allowed:
        name += f" (effective cores: {cores.measured:.1f})"
    more = "Take a machine with more, or give them less to do: raw pixels, smaller images, transforms on the device."
    if cores.limited_by:
        more = f"Allow more of the machine's {cores.machine} ({cores.limited_by} sets the limit), or load less."
    if both is not None and m.device == "cpu" and m.current.settings.num_workers == 0:
        share = both.gather * both.rate / both.batch_size / allowed
        if share > SHARED and both.rate < SLOWER * (m.model.rate if m.model else 0.0):
            line = f"Model and loader share {name}, and loading takes {percent(share)} of them."
            yield Verdict("cores-limited", line, more, evidence | {"share": share})
            return
    at_work = m.decoding is not None or m.layout == "zarr" or slow is not None
    busiest = max(run.busy for run in (m.current, *m.runs))
    if not at_work or not starved(m) or (slow is not None and holds_gil(slow)):
        return
    if busiest >= BUSY * min(allowed, max(1.0, cores.measured)):
        each = m.best.rate / busiest
        line = f"{name} {'is' if allowed == 1 else 'are'} busy with loading: {rate(each)} each."
        if m.model is not None:
            evidence["wanted"] = m.model.rate / each
            line += f" The model could take {rate(m.model.rate)}: that would need {evidence['wanted']:.1f} cores."
        yield Verdict("cores-limited", line, more, evidence | {"busy": busiest, "each_rate": each})


def holds_gil(t: TransformRun) -> bool:
    """Whether its threads hold the GIL, so that others wait long for it."""
    return t.gil_wait >= max(HELD_LEAST, min(HELD_MOST, HELD_SHARE / t.one))


def _slow_transform(m: Measured) -> TransformRun | None:
    """Verdict for the transform, if training waits for it."""
    t = m.transform
    return t if t is not None and starved(m) and t.several < SLOWED * t.without else None


def _only_copies(m: Measured) -> bool:
    """Whether training waits for a loader that only copies rows."""
    return starved(m) and m.decoding is None and m.layout != "zarr" and _slow_transform(m) is None


def _rates(t: TransformRun) -> dict[str, float]:
    return {"without_rate": t.without, "one_rate": t.one, "several_rate": t.several, "gil_wait": t.gil_wait}


def _best(m: Measured) -> str:
    best, where = m.best.settings, "in the default number of threads"
    if best.residency == "device":
        where = "from a copy on the device"
    elif best.num_workers:
        where = f"in {best.num_workers} worker processes"
    elif best.num_threads:
        where = f"in {best.num_threads} thread{'s' if best.num_threads > 1 else ''}"
    return f"{rate(m.best.rate)} at best, {where}"
