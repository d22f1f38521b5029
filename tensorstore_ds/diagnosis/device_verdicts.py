"""Verdicts on what becomes of a batch: its copy to the device, and the model."""

from __future__ import annotations

from tensorstore_ds.diagnosis import words
from tensorstore_ds.diagnosis.findings import Measured, Verdict
from tensorstore_ds.diagnosis.thresholds import COPYING, FEWER_QUICKER, QUICKER, starved


def copy_bound(m: Measured) -> Verdict | None:
    """Batches come to the device more slowly than it takes them."""
    run = m.together or m.best
    if not run.copy or not starved(m) or run.copy < COPYING * run.batch_size / run.rate:
        return None
    nbytes = m.copies.nbytes if m.copies is not None else 0
    line = f"Copies to the device take {words.duration(run.copy)} a batch of {words.size(nbytes)}, all of the time."
    change = "Keep the split on the device (residency='device'), or send less: uint8 images, a smaller --size."
    return Verdict("copy-bound", line, change, {"copy": run.copy, "step": run.batch_size / run.rate})


def pageable_copies(m: Measured) -> Verdict | None:
    """Batches are copied from memory that is not page-locked."""
    c = m.copies
    if c is None or m.current.settings.pin_memory is not False or c.pageable < QUICKER * c.pinned:
        return None
    line = (
        f"Batches are copied from pageable memory: {words.duration(c.pageable)} each, {words.duration(c.pinned)} from "
        "page-locked memory, and the training script waits for it although it asks not to (non_blocking)."
    )
    evidence = {"pageable": c.pageable, "pinned": c.pinned, "ahead_rate": c.ahead, "in_turn_rate": c.in_turn}
    return Verdict("pageable-copies", line, "Leave out pin_memory=False.", evidence)


def too_many_torch_threads(m: Measured) -> Verdict | None:
    """Torch computes with more threads than there are cores to be had, and they wait for each other."""
    model = m.model
    if model is None or model.fewer_rate < FEWER_QUICKER * model.rate:
        return None
    line = (
        f"Torch computes with {model.threads} threads, {words.rate(model.rate)}; with {model.fewer_threads} "
        f"{words.rate(model.fewer_rate)}: this process gets the work of {m.cores.measured:.1f} cores, and threads "
        "without one are waited for."
    )
    change = (
        f"torch.set_num_threads({model.fewer_threads}), or OMP_NUM_THREADS={model.fewer_threads} in the environment; "
        "or let nothing else run beside it."
    )
    evidence = {"rate": model.rate, "fewer_rate": model.fewer_rate, "threads": float(model.threads)}
    return Verdict("too-many-torch-threads", line, change, evidence | {"fewer_threads": float(model.fewer_threads)})


def batch_too_small(m: Measured) -> Verdict | None:
    """A larger batch trains more samples."""
    model = m.model
    if model is None or starved(m) or model.larger_rate < QUICKER * model.rate:
        return None
    line = (
        f"Batches of {model.batch_size} do not fill the device: {words.rate(model.rate)}, and "
        f"{words.rate(model.larger_rate)} in batches of {model.larger_batch}."
    )
    change = f"Try --batch-size {model.larger_batch}, with a learning rate to match."
    evidence = {"rate": model.rate, "larger_rate": model.larger_rate, "larger_batch": float(model.larger_batch)}
    return Verdict("batch-too-small", line, change, evidence)


def model_bound(m: Measured) -> Verdict | None:
    """The loader is not the problem."""
    model, together = m.model, m.together
    if model is None or together is None or starved(m):
        return None
    line = (
        f"The model is the limit, the loader is not: a step takes {words.duration(model.seconds)}, and "
        f"{words.percent(together.wait)} of the time is spent waiting for batches."
    )
    change = (
        "What makes the model quicker makes training quicker: less precision, torch.compile, a smaller image or model."
    )
    evidence = {"model_rate": model.rate, "together_rate": together.rate, "wait": together.wait}
    return Verdict("model-bound", line, change, evidence)
