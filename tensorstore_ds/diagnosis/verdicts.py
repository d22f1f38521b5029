"""From numbers to verdicts: what holds training back, the heaviest first. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable

from tensorstore_ds.diagnosis.results import Measured, TransformRun, Verdict
from tensorstore_ds.words import duration, percent, rate, size

#: The loader holds a model back where training is slower than the model alone by more than the first, and at least the
#: second share of the time is spent waiting for batches.
SLOWER, WAITING = 0.9, 0.05
#: What is less than this many times quicker is not told from chance; fewer threads of torch's are measured only once.
QUICKER, FEWER_QUICKER = 1.2, 1.5
#: Storage, or a transform, holds a loader back if it comes to less than this share of what it does without it.
SLOWED = 0.7
#: All of a store counts as being in memory from this share on: a kernel may take single pages back.
RESIDENT = 0.99
#: Threads that come to less than the first many times one thread's work hold each other up, if as many others came to
#: the second at the same time.
NO_SPEED_UP, SPEED_UP = 1.3, 1.6
#: A thread that only computes in Python gives the GIL away between samples, when torch slices the next one, and after
#: `sys.getswitchinterval`, 5 ms, at the latest. Who waits for it then waits for half a sample's time or more, where a
#: thread that copies or decodes lets him go on at once. Less than the least is not told from the system's delays.
HELD_SHARE, HELD_LEAST, HELD_MOST = 0.25, 0.0002, 0.002
#: Shares: of the cores, from which on they are busy; of a step, that a copy may take beside it; of the cores, that
#: loading may take from a model on the same ones.
BUSY, COPYING, SHARED = 0.75, 0.8, 0.2


def judge(m: Measured) -> tuple[Verdict, ...]:
    """All verdicts that the numbers bear out, at least one.

    Either the model is the limit, or training waits for the loader; then the kind of the store and what its threads do
    always come to a verdict, whatever else there is.
    """
    return tuple(verdict for cause in CAUSES if (verdict := cause(m)) is not None)


def starved(m: Measured) -> bool:
    """Whether training waits for the loader; where no model trains, loading is all there is to look at."""
    if m.model is None or m.together is None:
        return True
    return m.together.rate < SLOWER * m.model.rate and m.together.wait > WAITING


# --- memory and storage -----------------------------------------------------------------------------------------


def storage_bound(m: Measured) -> Verdict | None:
    """Rows are read from storage, and training waits for it."""
    first, resident = m.first_epoch, m.memory.resident
    from_memory = resident > RESIDENT if resident is not None else not first.major_faults
    enough = m.model is not None and first.rate >= m.model.rate
    if from_memory or enough or first.rate >= SLOWED * m.current.rate:
        return None
    share = "" if resident is None else f" ({percent(resident)} of it was there)"
    line = f"Rows are read from storage in every epoch{share}"
    change = _smaller(m)
    if m.memory.fits:
        line = f"The store is not in memory yet{share}"
        change = "Read it in order before training, or while it begins: tsds warm, tsds.warm_in_background(store)."
    line += f": {rate(first.rate)} are loaded in the first epoch, and {rate(m.current.rate)} from memory."
    evidence = {"first_epoch_rate": first.rate, "memory_rate": m.current.rate, "storage_rate": m.storage.rate or 0.0}
    return Verdict("storage-bound", line, change, evidence | {"major_faults": float(first.major_faults or 0)})


def does_not_fit(m: Measured) -> Verdict | None:
    """An epoch is larger than the memory for it."""
    if m.memory.fits:
        return None
    limit = f"{size(m.memory.limit)} ({m.memory.limited_by})"
    line = f"An epoch takes {size(m.memory.nbytes)}, this process may use {limit}: every epoch reads from storage again"
    evidence = {"nbytes": float(m.memory.nbytes), "limit": float(m.memory.limit)}
    if m.storage.rate:
        most = m.storage.rate / m.sample_nbytes
        line += f", at most {rate(most)} in order"
        evidence |= {"storage_rate": m.storage.rate, "most_rate": most}
    return Verdict("does-not-fit", f"{line}.", _smaller(m), evidence)


def _smaller(m: Measured) -> str:
    options = "a smaller `size` or `encoding=jpeg`" if m.encoding == "raw" else "a smaller `size`"
    return f"Shuffle by blocks, as below (BlockShuffleSampler); convert with {options}; or allow more memory."


# --- what threads do --------------------------------------------------------------------------------------------


def transform_holds_gil(m: Measured) -> Verdict | None:
    """The transform runs in one thread at a time, however many there are."""
    t = _slow_transform(m)
    if t is None or not holds_gil(t):
        return None
    line = (
        f"The transform holds Python's global lock: {rate(t.one)} in one thread, {rate(t.several)} in {t.threads}, "
        f"{rate(t.without)} without it. Other threads wait {duration(t.gil_wait)} for the lock."
    )
    change = (
        "Transform whole batches on the device (tsds.Compose as batch_transform), use operations of NumPy or torch on "
        "whole images, or load with worker processes (num_workers)."
    )
    return Verdict("transform-holds-gil", line, change, _rates(t))


def transform_bound(m: Measured) -> Verdict | None:
    """Samples are transformed one by one, and that takes the threads' time."""
    t = _slow_transform(m)
    if t is None or holds_gil(t):
        return None
    line = (
        f"Samples are transformed and stacked one by one: {rate(t.several)} in {t.threads} threads, "
        f"{rate(t.without)} as whole batches without the transform."
    )
    change = "Transform whole batches on the device instead: tsds.Compose as batch_transform."
    return Verdict("transform-bound", line, change, _rates(t))


def holds_gil(t: TransformRun) -> bool:
    """Whether its threads hold the GIL: others wait long for it, or several come to no more than one."""
    long = max(HELD_LEAST, min(HELD_MOST, HELD_SHARE / t.one))
    return t.gil_wait >= long or (t.speed_up < NO_SPEED_UP and t.possible >= SPEED_UP)


def _slow_transform(m: Measured) -> TransformRun | None:
    """The transform, if training waits for it."""
    t = m.transform
    return t if t is not None and starved(m) and t.several < SLOWED * t.without else None


def _rates(t: TransformRun) -> dict[str, float]:
    return {"without_rate": t.without, "one_rate": t.one, "several_rate": t.several, "gil_wait": t.gil_wait}


def compressed(m: Measured) -> Verdict | None:
    """The store is compressed."""
    if m.layout != "zarr" or not starved(m):
        return None
    line = f"The store is compressed (layout zarr): {_best(m)}."
    change = "Train from a copy that is not: repack the store with `layout=memmap`."
    return Verdict("compressed", line, change, {"rate": m.best.rate, "gather": m.best.gather})


def decode_bound(m: Measured) -> Verdict | None:
    """Image files are decoded in every epoch."""
    d = m.decoding
    if d is None or not starved(m):
        return None
    line = f"Images are kept as files and decoded in every epoch: {duration(d.decode)} each, {_best(m)}."
    change = "Convert with `encoding=raw`, if the pixels fit (`dry_run` says so), or with a smaller `size`."
    return Verdict("decode-bound", line, change, {"rate": m.best.rate, "decode": d.decode, "read": d.read})


def too_few_threads(m: Measured) -> Verdict | None:
    """Other numbers of threads, or of batches ahead, load more."""
    used, wanted = m.current.settings, m.wanted
    if wanted is None or wanted.num_workers or m.gain < QUICKER:
        return None
    if (used.num_threads, used.prefetch_factor) == (wanted.num_threads, wanted.prefetch_factor):
        return None
    line = f"{rate(m.current.rate)} are loaded with the settings in use, {rate(m.best.rate)} with the best ones."
    settings = ", ".join(f"{name}={value!r}" for name, value in wanted.arguments().items())
    evidence = {"rate": m.current.rate, "best_rate": m.best.rate, "gain": m.gain, "depth": m.current.depth}
    return Verdict("too-few-threads", line, f"Load with {settings or 'the defaults of the loader'}.", evidence)


def gather_bound(m: Measured) -> Verdict | None:
    """Batches are put together as quickly as this machine does it."""
    if not starved(m) or m.decoding is not None or m.layout == "zarr" or _slow_transform(m) is not None:
        return None
    speed = m.best.rate * m.sample_nbytes
    line = f"Batches are put together from memory at {size(speed)}/s: {_best(m)}."
    change = "This does not hold back a model that takes fewer samples."
    if m.model is not None:
        change = "Load less per sample (a smaller `size`, fewer fields), or keep it on a GPU (residency='device')."
    return Verdict("gather-bound", line, change, {"rate": m.best.rate, "nbytes_per_second": speed})


def _best(m: Measured) -> str:
    count = m.best.settings.num_threads
    threads = "the default number of threads" if count is None else f"{count} thread{'s' if count > 1 else ''}"
    return f"{rate(m.best.rate)} at best, in {threads}"


def cores_limited(m: Measured) -> Verdict | None:
    """Threads want more cores than there are."""
    allowed = m.cores.allowed
    evidence = {"cores": allowed, "machine": float(m.cores.machine), "measured": m.cores.measured}
    if m.together is not None and m.device == "cpu" and m.current.settings.num_workers == 0:
        share = m.together.gather * m.together.rate / m.together.batch_size / allowed
        if share > SHARED and m.together.rate < SLOWER * (m.model.rate if m.model else 0.0):
            line = f"Model and loader share {_cores(m)}, and loading takes {percent(share)} of them."
            return Verdict("cores-limited", line, _more_cores(m), evidence | {"share": share})
    slow = _slow_transform(m)
    at_work = m.decoding is not None or m.layout == "zarr" or slow is not None
    if not at_work or not starved(m) or (slow is not None and holds_gil(slow)):
        return None
    busiest = max(run.busy for run in (m.current, *m.runs))
    if busiest < BUSY * min(allowed, max(1.0, m.cores.measured)):
        return None
    each = m.best.rate / busiest
    line = f"{_cores(m)} {'is' if allowed == 1 else 'are'} busy with loading: {rate(each)} each."
    if m.model is not None:
        evidence["wanted"] = m.model.rate / each
        line += f" The model could take {rate(m.model.rate)}: that would need {evidence['wanted']:.1f} cores."
    return Verdict("cores-limited", line, _more_cores(m), evidence | {"busy": busiest, "each_rate": each})


def _more_cores(m: Measured) -> str:
    if m.cores.limited_by:
        return f"Allow more of the machine's {m.cores.machine} ({m.cores.limited_by} sets the limit), or load less."
    return "Take a machine with more, or give them less to do: raw pixels, smaller images, transforms on the device."


def _cores(m: Measured) -> str:
    text = f"{m.cores.allowed:g} core{'' if m.cores.allowed == 1 else 's'}"
    if m.cores.measured < BUSY * m.cores.allowed:
        text += f" (which did the work of {m.cores.measured:.1f} when measured)"
    return text


# --- the model and the device -----------------------------------------------------------------------------------


def model_bound(m: Measured) -> Verdict | None:
    """The loader is not the problem."""
    model, together = m.model, m.together
    if model is None or together is None or starved(m):
        return None
    line = (
        f"The model is the limit, the loader is not: a step takes {duration(model.seconds)}, and "
        f"{percent(together.wait)} of the time is spent waiting for batches."
    )
    change = "A faster model trains faster: lower precision, torch.compile, smaller images, fewer weights."
    evidence = {"model_rate": model.rate, "together_rate": together.rate, "wait": together.wait}
    return Verdict("model-bound", line, change, evidence)


def too_many_torch_threads(m: Measured) -> Verdict | None:
    """Torch computes with more threads than there are cores to be had, and they wait for each other."""
    model = m.model
    if model is None or model.fewer_rate < FEWER_QUICKER * model.rate:
        return None
    fewer = model.fewer_threads
    line = (
        f"Torch computes {rate(model.rate)} with {model.threads} threads, and {rate(model.fewer_rate)} with {fewer}: "
        f"this process gets the work of {m.cores.measured:.1f} cores, and threads wait for one that has no core."
    )
    change = f"Call torch.set_num_threads({fewer}), set OMP_NUM_THREADS={fewer}, or let nothing else run beside it."
    evidence = {"rate": model.rate, "fewer_rate": model.fewer_rate, "fewer_threads": float(fewer)}
    return Verdict("too-many-torch-threads", line, change, evidence | {"threads": float(model.threads)})


def batch_too_small(m: Measured) -> Verdict | None:
    """A larger batch trains more samples."""
    model = m.model
    if model is None or starved(m) or model.larger_rate < QUICKER * model.rate:
        return None
    line = (
        f"Batches of {model.batch_size} do not fill the device: {rate(model.rate)}, and {rate(model.larger_rate)} in "
        f"batches of {model.larger_batch}."
    )
    change = f"Try `batch_size={model.larger_batch}`, with a learning rate to match."
    evidence = {"rate": model.rate, "larger_rate": model.larger_rate, "larger_batch": float(model.larger_batch)}
    return Verdict("batch-too-small", line, change, evidence)


def copy_bound(m: Measured) -> Verdict | None:
    """Batches come to the device more slowly than it takes them."""
    run = m.together or m.best
    if not run.copy or not starved(m) or run.copy < COPYING * run.batch_size / run.rate:
        return None
    nbytes = m.copies.nbytes if m.copies is not None else 0
    line = f"The copy of a batch of {size(nbytes)} to the device takes {duration(run.copy)}, nearly all of the time."
    change = "Keep the split on the device (residency='device'), or send less: uint8 images, a smaller `size`."
    return Verdict("copy-bound", line, change, {"copy": run.copy, "step": run.batch_size / run.rate})


def pageable_copies(m: Measured) -> Verdict | None:
    """Batches are copied from memory that is not page-locked."""
    c = m.copies
    if c is None or m.current.settings.pin_memory is not False or c.pageable < QUICKER * c.pinned:
        return None
    line = (
        f"Batches are copied from pageable memory: {duration(c.pageable)} each, and {duration(c.pinned)} from "
        "page-locked memory. The training script waits for such copies, even with non_blocking."
    )
    evidence = {"pageable": c.pageable, "pinned": c.pinned, "ahead_rate": c.ahead, "in_turn_rate": c.in_turn}
    return Verdict("pageable-copies", line, "Leave out pin_memory=False.", evidence)


#: The heaviest first.
CAUSES: tuple[Callable[[Measured], Verdict | None], ...] = (
    storage_bound,
    does_not_fit,
    too_many_torch_threads,
    model_bound,
    transform_holds_gil,
    compressed,
    decode_bound,
    too_few_threads,
    copy_bound,
    pageable_copies,
    transform_bound,
    cores_limited,
    gather_bound,
    batch_too_small,
)
