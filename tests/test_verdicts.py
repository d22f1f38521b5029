"""From numbers to verdicts, and to settings: each cause by numbers that show it, and any numbers at all."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from tensorstore_ds.annex.measuring.diagnosis import recommend
from tensorstore_ds.annex.measuring.diagnosis_results import (
    Cores,
    Decoding,
    Measured,
    Memory,
    ModelRun,
    Run,
    Settings,
    TransformRun,
)
from tensorstore_ds.annex.measuring.verdicts import cause_of, judge

GB = 10**9


def run(rate=60000.0, *, batch_size=128, wait=0.9, gather=0.002, copy=0.0, busy=1.8, faults=0, **settings):
    return Run(Settings(**settings), batch_size, rate, 500, wait, gather, copy, 1.5, busy, faults)


def measured(**changes):
    """A store of 60,000 images in memory, on a machine with 8 cores; no model."""
    found = Measured(
        device="cpu",
        layout="memmap",
        encoding="raw",
        sample_nbytes=150_000.0,
        cores=Cores(8, 8.0, "", 7.8),
        memory=Memory(9 * GB, 20 * GB, "machine", 1.0),
        first_epoch=run(58000.0),
        current=run(),
        runs=(run(30000.0, num_threads=1), run(59000.0, num_threads=8)),
    )
    return dataclasses.replace(found, **changes)


def trained(rate=500.0, both=490.0, wait=0.01, **changes):
    """The same with a model."""
    return measured(**{"model": ModelRun("tiny", 128, rate), "together": run(both, wait=wait), **changes})


def codes(m):
    return [verdict.code for verdict in judge(m)]


FASTER = {"threads": 64, "fewer_threads": 2, "fewer_rate": 5000.0}
SLOW = TransformRun(without=60000.0, one=400.0, several=1500.0, threads=4, gil_wait=0.0001)
HELD = TransformRun(without=60000.0, one=400.0, several=380.0, threads=4, gil_wait=0.006)
UNKNOWN = Memory(9, 20, "machine", None)
LIMITED = Cores(64, 2.0, "/sys/fs/cgroup", 2.0)
HANDED_OVER = dataclasses.replace(run(300.0, wait=0.4), cause="handover")
LAUNCHED = dataclasses.replace(run(490.0, wait=0.01), cause="script")
CLEAN_COLD = Memory(9 * GB, 20 * GB, "machine", 0.2)
DECODED = {"encoding": "jpeg", "decoding": Decoding(0.00001, 0.001)}


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (measured(), ["gather-bound"]),
        (trained(), ["model-bound"]),
        (trained(500.0, 300.0, 0.4), ["gather-bound"]),
        (trained(500.0, 300.0, 0.01), ["model-bound"]),  # slower, but not for want of batches
        (trained(500.0, 300.0, 0.01, disturbance=1.5), ["training-disturbed"]),
        (trained(500.0, 480.0, 0.01, disturbance=1.5), ["model-bound"]),  # it could be, and is not
        (
            trained(500.0, 300.0, 0.01, disturbance=1.5, wanted=Settings(num_threads=1), gain=2.0),
            ["training-disturbed"],
        ),
        (trained(500.0, 300.0, 0.4, together=HANDED_OVER), ["training-disturbed", "gather-bound"]),
        (trained(device="cuda", together=LAUNCHED), ["launch-bound"]),
        (measured(first_epoch=run(4000.0), memory=CLEAN_COLD), ["storage-bound", "gather-bound"]),
        (trained(first_epoch=run(400.0), memory=CLEAN_COLD), ["storage-bound", "model-bound"]),
        (trained(first_epoch=run(4000.0), memory=CLEAN_COLD), ["model-bound"]),  # cold, and quick enough
        (measured(first_epoch=run(4000.0)), ["gather-bound"]),  # slow at first, but all of it was there
        (measured(first_epoch=run(4000.0, faults=9), memory=UNKNOWN), ["storage-bound", "gather-bound"]),
        (trained(memory=Memory(9 * GB, 2 * GB, "/sys/fs/cgroup/pod", 1.0)), ["does-not-fit", "model-bound"]),
        (measured(transform=HELD), ["transform-holds-gil"]),
        (measured(transform=dataclasses.replace(HELD, gil_wait=0.0), runs=()), ["transform-bound"]),  # others work, too
        (measured(transform=SLOW, current=run(busy=0.2), runs=()), ["transform-bound"]),
        (measured(transform=SLOW, current=run(busy=7.5), runs=()), ["transform-bound", "cores-limited"]),
        (measured(transform=dataclasses.replace(SLOW, several=59000.0)), ["gather-bound"]),  # it takes no time
        (trained(transform=HELD), ["model-bound"]),
        (measured(layout="zarr"), ["compressed"]),
        (measured(**DECODED), ["decode-bound"]),
        (measured(**DECODED, current=run(busy=7.5), runs=()), ["decode-bound", "cores-limited"]),
        (measured(wanted=Settings(num_threads=8), gain=2.0), ["loader-settings", "gather-bound"]),
        (measured(wanted=Settings(num_threads=8), gain=1.1), ["gather-bound"]),
        (measured(wanted=Settings(num_workers=8), gain=5.0), ["gather-bound"]),
        (trained(9000.0, 0, device="cuda", together=run(5000.0, copy=0.024)), ["copy-bound", "gather-bound"]),
        (trained(500.0, 300.0, 0.4, **DECODED, cores=LIMITED), ["decode-bound", "cores-limited"]),
        (trained(together=run(420.0, wait=0.01, gather=0.9)), ["model-bound", "cores-limited"]),
        (trained(model=ModelRun("tiny", 128, 500.0, **FASTER)), ["too-many-torch-threads", "model-bound"]),
    ],
)
def test_each_cause_by_its_numbers(m, expected):
    assert codes(m) == expected


@pytest.mark.parametrize(
    ("m", "expected"),
    [
        (measured(), ""),
        (trained(500.0, 300.0, 0.4), "loading"),
        (trained(500.0, 300.0, 0.4, disturbance=9.0), "loading"),  # threads are to blame first
        (trained(together=HANDED_OVER), "handover"),
        (trained(500.0, 300.0, 0.01, disturbance=1.3), "handover"),
        (trained(together=LAUNCHED), "script"),
        (trained(500.0, 300.0, 0.01, disturbance=1.1), "training"),
    ],
)
def test_what_limits_training(m, expected):
    assert cause_of(m) == expected


def test_what_is_said_of_a_disturbed_thread():
    (found,) = judge(trained(500.0, 300.0, 0.01, disturbance=1.5))
    assert found.line == (
        "The loader disturbs the training thread: 300 samples/s are trained, and 500 samples/s from one batch that "
        "stays on the device. Small operations of torch take 1.5x the time while the loader works."
    )
    assert "num_threads" in found.change
    (found,) = judge(trained(500.0, 300.0, 0.01, disturbance=1.5, transform=HELD))
    assert found.change.startswith("The transform holds the GIL")
    found = judge(trained(together=HANDED_OVER))[0]
    assert found.line.endswith("Handing over finished batches takes 40 % of the time.")


def test_what_is_said():
    found = judge(trained(500.0, 300.0, 0.4, **DECODED, cores=Cores(64, 2.0, "/sys/fs/cgroup", 1.2)))
    assert found[0].line == (
        "Images are kept as files and decoded in every epoch: 1 ms each, 60,000 samples/s at best, in the default "
        "number of threads."
    )
    assert found[0].change.startswith("Decode only the crop: pass RandomResizedCrop or Resize as `decode`. Keep pixels")
    placed = DECODED | {"decoding": Decoding(0.00001, 0.001, in_part=True)}
    (found_in_part,) = judge(measured(**placed))
    assert found_in_part.line.startswith("Crops of files are decoded") and "`decode`" not in found_in_part.change
    assert found[1].line.startswith("2 cores (effective cores: 1.2) are busy with loading")
    assert found[1].change.startswith("Allow more of the machine's 64 (/sys/fs/cgroup sets the limit)")
    found = judge(trained(memory=Memory(9 * GB, 2 * GB, "/sys/fs/cgroup/pod", 1.0)))
    assert found[0].line == (
        "An epoch takes 9.0 GB, this process may use 2.0 GB (/sys/fs/cgroup/pod): every epoch reads from storage again."
    )


def anything_of(kind, **fields):
    """Values of a dataclass, with any number, truth and size in each field that is not named."""
    plain = {"float": st.floats(1e-3, 1e9), "int": st.integers(1, 10**6), "str": st.sampled_from(["", "machine"])}
    plain |= {f"{name} | None": st.none() | values for name, values in plain.items()}
    known = {field.name: plain[str(field.type)] for field in dataclasses.fields(kind) if str(field.type) in plain}
    return st.builds(kind, **{**known, **fields})


shares = st.floats(0, 1)
some = st.builds(
    Settings,
    num_threads=st.none() | st.integers(1, 64),
    prefetch_factor=st.none() | st.integers(1, 9),
    num_workers=st.integers(0, 9),
)
causes = st.sampled_from(["loading", "handover", "script", "training"])
runs = anything_of(Run, settings=some, wait=shares, busy=st.floats(0, 64), copy=st.floats(0, 100), cause=causes)
anything = anything_of(
    Measured,
    device=st.sampled_from(["cpu", "cuda"]),
    layout=st.sampled_from(["memmap", "zarr"]),
    encoding=st.sampled_from(["", "raw", "jpeg"]),
    cores=anything_of(Cores, allowed=st.floats(0.1, 256), measured=st.floats(0.1, 256)),
    memory=anything_of(Memory, nbytes=st.integers(1, 2**50), limit=st.integers(1, 2**50), resident=st.none() | shares),
    first_epoch=runs,
    current=runs,
    runs=st.lists(runs, max_size=4).map(tuple),
    model=st.none() | anything_of(ModelRun),
    together=st.none() | runs,
    transform=st.none() | anything_of(TransformRun, gil_wait=shares),
    decoding=st.none() | anything_of(Decoding, read=st.floats(0, 9), decode=st.floats(0, 9)),
    disturbance=st.floats(0.1, 9),
)


@given(anything)
def test_any_numbers_come_to_a_verdict_and_to_settings(m):
    verdicts = judge(m)
    told = [verdict.code for verdict in verdicts]
    beside = {"does-not-fit", "storage-bound", "too-many-torch-threads"}
    assert set(told) - beside
    assert len(set(told)) == len(told)
    for verdict in verdicts:
        assert verdict.line and verdict.change and "\n" not in verdict.line + verdict.change
        assert all(isinstance(number, float) for number in verdict.evidence.values())
    wanted = recommend(m)
    assert (wanted.block_rows > 0) == (not m.memory.fits and wanted.residency != "device")
    assert wanted.window_blocks >= 2 * (wanted.block_rows > 0)


# --- settings ---------------------------------------------------------------------------------------------------


def test_of_settings_that_are_nearly_as_quick_the_smallest_are_taken():
    m = measured(
        current=run(20000.0),
        runs=(
            run(30000.0, num_threads=1),
            run(57500.0, num_threads=4),
            run(60000.0, num_threads=8),
            run(59000.0, num_threads=8, prefetch_factor=4),
            run(58000.0, num_workers=4),
        ),
    )
    assert recommend(m) == Settings(num_threads=4)


@pytest.mark.parametrize("m", [trained(current=run(20000.0)), measured(current=run(55000.0))])
def test_settings_in_use_stay_where_nothing_is_gained(m):
    assert recommend(m) == m.current.settings


def test_a_disturbed_thread_gets_the_fewest_threads_that_are_fast_enough():
    runs = (
        run(550.0, num_threads=1),  # too close to the model's 500 samples/s
        run(800.0, num_threads=2),
        run(1500.0, num_threads=4),
        run(900.0, num_workers=2),
    )
    m = trained(500.0, 300.0, 0.01, disturbance=1.5, runs=runs)
    assert recommend(m) == Settings(num_threads=2)
    assert recommend(dataclasses.replace(m, transform=HELD)) == Settings(num_workers=2)
    assert recommend(dataclasses.replace(m, runs=runs[:1])) == m.current.settings
    assert recommend(dataclasses.replace(m, disturbance=1.1)) == m.current.settings


def test_what_does_not_fit_is_shuffled_by_blocks_that_fit():
    m = trained(memory=Memory(9 * GB, 2 * GB, "pod", 0.1))
    wanted = recommend(m)
    block = wanted.block_rows * m.sample_nbytes
    assert 2 * 2**20 < block < 8 * 2**20
    assert 2 * wanted.window_blocks * block <= 0.25 * m.memory.limit
