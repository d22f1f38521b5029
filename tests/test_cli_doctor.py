"""``tsds doctor``: what is printed, as text and as JSON, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from small_stores import tsds
from stores import store_of
from tensorstore_ds.annex.measuring.diagnosis_results import Diagnosis, Measured, Settings
from tensorstore_ds.annex.measuring.verdicts import cause_of, judge
from test_verdicts import measured, run, trained

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    samples = [{"image": rng.integers(0, 256, (28, 28, 1), np.uint8), "label": i % 2} for i in range(40)]
    return store_of(tmp_path_factory.mktemp("d") / "s.tsds", samples, ["ant", "bee"]).path


def test_what_is_printed(path: Path) -> None:
    done = tsds("doctor", path, "--model", "seed", "--batch-size", 8, "--seconds", 2, "--device", "cpu")
    assert done.exit_code == 0 and done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == f"{path}, train: 40 samples, batches of 8, on cpu"
    assert [re.split(r"  +", line.strip())[0] for line in lines[1:8]] == [
        "the loader, before anything is warmed",
        "the loader, from memory",
        "at best",
        "the model alone",
        "both together",
        "the samples",
        "cores",
    ]
    assert re.search(r"^  the model alone +[\d.,]+ samples/s  seed, \S+ m?s per step of \d$", done.stdout, re.MULTILINE)
    both = r"^  both together .* waits \d+\.\d % of the time; small operations take \d+\.\d\dx the time$"
    assert re.search(both, done.stdout, re.MULTILINE)
    assert re.search(r"^  limited by the (loader|training thread|model): ", done.stdout, re.MULTILINE)
    assert any(line.startswith("  compiled kernels: ") for line in lines)
    after = lines[lines.index("recommended") + 1 :]
    assert after[0] == f"  dataset = tsds.StoreDataset({str(path)!r}, 'train')"
    assert after[1].startswith("  loader = tsds.DataLoader(dataset, batch_size=8, shuffle=True")


def test_loading_alone_and_json(path: Path) -> None:
    options = ("--model", "none", "--seconds", 1, "--threads", 1, "--prefetch", 3, "--split", "train")
    done = tsds("doctor", path, *options)
    assert done.exit_code == 0 and "the model alone" not in done.stdout
    lines = done.stdout.splitlines()
    assert "gather-bound" in lines
    missing = lines[lines.index("not measured, or only in part") + 1 :]
    assert "  training: the model none was chosen, loading alone was examined" in missing
    found = json.loads(tsds("doctor", path, *options, "--json").stdout)
    assert (found["path"], found["split"], found["samples"]) == (str(path), "train", 40)
    assert found["batch_size"] == 40  # of the 128 that are the default
    assert {"num_threads": 1, "prefetch_factor": 3}.items() <= found["measured"]["current"]["settings"].items()
    assert {"code", "line", "change", "evidence"} == found["verdicts"][0].keys()
    assert 40 * (784 + 8) <= found["measured"]["memory"]["nbytes"] < 40 * 800
    assert found["gain"] >= 1 and found["code"]


@pytest.mark.parametrize(
    ("m", "gain", "line"),
    [
        (measured(), 1.0, "in use: no others were found to be faster."),
        (measured(runs=(run(65000.0, num_threads=8),)), 1.0, "in use: the best ones above were not clearly faster."),
        (trained(runs=(run(99000.0, num_threads=8),)), 1.0, "in use: training does not wait for the loader."),
        (measured(wanted=Settings(num_threads=8)), 1.5, "1.50x faster with it than with the settings in use, in "),
        (measured(wanted=Settings(block_rows=9)), 1.0, ""),
    ],
)
def test_what_is_said_of_the_settings(
    m: Measured, gain: float, line: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Diagnosis(
        *("s.tsds", "train", 9, 128, "cpu", 1.0, m, cause_of(m), judge(m)),
        *(m.wanted or m.current.settings, "loader = ...", gain, ()),
    )
    monkeypatch.setattr("tensorstore_ds.diagnose", lambda *_, **__: found)
    last = tsds("doctor", path).stdout.splitlines()[-1]
    assert line in last and (line or last == "  loader = ...")
