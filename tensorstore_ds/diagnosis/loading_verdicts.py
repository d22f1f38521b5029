"""Verdicts on what comes before a batch is ready: storage, memory, threads and what they do."""

from __future__ import annotations

from tensorstore_ds.diagnosis import words
from tensorstore_ds.diagnosis.findings import Measured, Verdict
from tensorstore_ds.diagnosis.gil import is_held
from tensorstore_ds.diagnosis.thresholds import (
    BUSY,
    COLD,
    NO_SPEED_UP,
    QUICKER,
    SHARED,
    SLOWER,
    SPEED_UP,
    THERE,
    starved,
)


def storage_bound(m: Measured) -> Verdict | None:
    """Rows are read from storage, and training waits for it."""
    known = m.memory.resident is not None
    if (m.memory.resident or 0.0) > THERE if known else not m.found.major_faults:
        return None
    if m.found.rate >= COLD * m.current.rate or (m.model is not None and m.found.rate >= m.model.rate):
        return None
    rates = f"{words.rate(m.found.rate)} are loaded, and {words.rate(m.current.rate)} from memory"
    there = "" if m.memory.resident is None else f" ({words.percent(m.memory.resident)} of it was there)"
    if m.memory.fits:
        line = f"The store has yet to come into memory{there}: in the first epoch {rates}."
        change = "Read it in order beforehand, or while training begins: tsds warm, tsds.warm_in_background(store)."
    else:
        line = f"Rows are read from storage in every epoch{there}: {rates}."
        change = _smaller(m)
    evidence = {
        "found_rate": m.found.rate,
        "memory_rate": m.current.rate,
        "major_faults": float(m.found.major_faults or 0),
        "storage_rate": m.storage.rate or 0.0,
    }
    return Verdict("storage-bound", line, change, evidence)


def does_not_fit(m: Measured) -> Verdict | None:
    """An epoch is larger than the memory for it."""
    if m.memory.fits:
        return None
    line = (
        f"An epoch takes {words.size(m.memory.nbytes)}, and this process may use {words.size(m.memory.limit)} "
        f"({m.memory.limited_by}): every epoch reads from storage again"
    )
    evidence = {"nbytes": float(m.memory.nbytes), "limit": float(m.memory.limit)}
    if m.storage.rate:
        most = m.storage.rate / m.sample_nbytes
        line += f", at most {words.rate(most)} in order"
        evidence |= {"storage_rate": m.storage.rate, "most_rate": most}
    return Verdict("does-not-fit", f"{line}.", _smaller(m), evidence)


def _smaller(m: Measured) -> str:
    encode = " or --encoding jpeg" if m.encoding == "raw" else ""
    return (
        "Shuffle by blocks, which are read in order (BlockShuffleSampler, as below); "
        f"convert to less with --size{encode}; or allow for more memory."
    )


def transform_holds_gil(m: Measured) -> Verdict | None:
    """The transform runs in one thread at a time, however many there are."""
    t = m.transform
    if t is None or not starved(m) or not _matters(m):
        return None
    stuck = t.speed_up < NO_SPEED_UP and t.possible >= SPEED_UP
    if not is_held(t.gil_wait, 1 / t.one) and not stuck:
        return None
    line = (
        f"The transform holds Python's global lock: {words.rate(t.one)} in one thread, {words.rate(t.several)} in "
        f"{t.threads}, {words.rate(t.without)} without it. Other threads wait {words.duration(t.gil_wait)} for it."
    )
    change = (
        "Transform whole batches on the device (tsds.Compose as batch_transform), use operations of NumPy or torch on "
        "whole images, or leave it to processes with num_workers."
    )
    return Verdict("transform-holds-gil", line, change, _transform_numbers(m))


def transform_bound(m: Measured) -> Verdict | None:
    """Samples are transformed one by one, and that takes the threads' time."""
    t = m.transform
    if t is None or not starved(m) or not _matters(m) or transform_holds_gil(m) is not None:
        return None
    line = (
        f"Samples are transformed and stacked one by one: {words.rate(t.several)} in {t.threads} threads, "
        f"{words.rate(t.without)} as whole batches without the transform."
    )
    change = "Transform whole batches on the device instead: tsds.Compose as batch_transform."
    return Verdict("transform-bound", line, change, _transform_numbers(m))


def _matters(m: Measured) -> bool:
    return m.transform is not None and m.transform.several < COLD * m.transform.without


def _transform_numbers(m: Measured) -> dict[str, float]:
    t = m.transform
    if t is None:
        return {}
    return {"without_rate": t.without, "one_rate": t.one, "several_rate": t.several, "gil_wait": t.gil_wait}


def compressed(m: Measured) -> Verdict | None:
    """The store is compressed."""
    if m.layout != "zarr" or not starved(m):
        return None
    line = f"The store is compressed (layout zarr): {words.rate(m.best.rate)} at best, in {_threads(m)}."
    change = "Train from a copy that is not: tsds repack STORE OUT --layout memmap."
    return Verdict("compressed", line, change, {"rate": m.best.rate, "gather": m.best.gather})


def decode_bound(m: Measured) -> Verdict | None:
    """Image files are decoded in every epoch."""
    d = m.decoding
    if d is None or not starved(m):
        return None
    line = (
        f"Images are kept as files and decoded in every epoch: {words.duration(d.decode)} each, "
        f"{words.rate(m.best.rate)} at best, in {_threads(m)}."
    )
    change = (
        "Convert with --encoding raw, if the pixels fit (tsds convert --dry-run says so); or with a smaller --size."
    )
    return Verdict("decode-bound", line, change, {"rate": m.best.rate, "decode": d.decode, "read": d.read})


def too_few_threads(m: Measured) -> Verdict | None:
    """Other numbers of threads, or of batches ahead, load more."""
    used, wanted = m.current.settings, m.wanted
    if wanted is None or wanted.num_workers or m.gain < QUICKER:
        return None
    if (used.num_threads, used.prefetch_factor) == (wanted.num_threads, wanted.prefetch_factor):
        return None
    line = f"{words.rate(m.current.rate)} are loaded with the settings in use, {words.rate(m.best.rate)} at best."
    evidence = {"rate": m.current.rate, "best_rate": m.best.rate, "gain": m.gain, "depth": m.current.depth}
    return Verdict("too-few-threads", line, f"Load with {_text(wanted.arguments())}.", evidence)


def gather_bound(m: Measured) -> Verdict | None:
    """Batches are put together as quickly as this machine does it."""
    if not starved(m) or m.decoding is not None or m.layout == "zarr" or _matters(m):
        return None
    speed = m.best.rate * m.sample_nbytes
    line = (
        f"Batches are put together from memory at {words.size(speed)}/s: "
        f"{words.rate(m.best.rate)} at best, in {_threads(m)}."
    )
    change = "A model that takes fewer samples than that is not held back."
    if m.model is not None:
        change = "Load less for each sample: a smaller --size, fewer fields; or keep it on a GPU (residency='device')."
    return Verdict("gather-bound", line, change, {"rate": m.best.rate, "nbytes_per_second": speed})


def cores_limited(m: Measured) -> Verdict | None:
    """Threads want more cores than there are."""
    cores = m.cores.allowed
    evidence = {"cores": cores, "machine": float(m.cores.machine), "measured": m.cores.measured}
    if m.together is not None and m.device == "cpu" and m.current.settings.num_workers == 0:
        share = m.together.gather * m.together.rate / m.together.batch_size / cores
        if share > SHARED and m.together.rate < SLOWER * (m.model.rate if m.model else 0.0):
            line = f"Model and loader share {_cores(m)}, and loading takes {words.percent(share)} of them."
            return Verdict("cores-limited", line, _more_cores(m), evidence | {"share": share})
    at_work = m.decoding is not None or m.layout == "zarr" or (m.transform is not None and _matters(m))
    if not at_work or not starved(m) or transform_holds_gil(m) is not None:
        return None
    busiest = max(run.busy for run in (m.current, *m.runs))
    if busiest < BUSY * min(cores, max(1.0, m.cores.measured)):
        return None
    each = m.best.rate / busiest
    line = f"{_cores(m)} {'is' if cores == 1 else 'are'} busy with loading: {words.rate(each)} each."
    if m.model is not None:
        wanted = m.model.rate / each
        line += f" The model could take {words.rate(m.model.rate)}, for which {wanted:.1f} would be needed."
        evidence["wanted"] = wanted
    return Verdict("cores-limited", line, _more_cores(m), evidence | {"busy": busiest, "each_rate": each})


def _more_cores(m: Measured) -> str:
    if m.cores.limited_by:
        return f"Allow for more of the machine's {m.cores.machine} ({m.cores.limited_by} sets the limit), or load less."
    return "Take a machine with more, or give them less to do: raw pixels, smaller images, transforms on the device."


def _cores(m: Measured) -> str:
    noun = "core" if m.cores.allowed == 1 else "cores"
    text = f"{m.cores.allowed:g} {noun}"
    if m.cores.measured < BUSY * m.cores.allowed:
        text += f" (which did the work of {m.cores.measured:.1f} when measured)"
    return text


def _threads(m: Measured) -> str:
    count = m.best.settings.num_threads
    return "the loader's own number of threads" if count is None else f"{count} thread{'s' if count > 1 else ''}"


def _text(arguments: dict[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "the loader's own"
