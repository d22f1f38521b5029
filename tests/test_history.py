from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from tensorstore_ds.annex.training.history import EpochRecord, History, best_record, dump_record, parse_record
from tensorstore_ds.errors import OptionError, OutputError
from training_stores import load_history, strict_json as strict

RECORD = EpochRecord(
    epoch=1,
    seconds=2.5,
    learning_rate=1e-3,
    train={"loss": 0.7},
    eval={"loss": 0.6, "accuracy": 0.8},
    samples_per_second=4000.0,
    wait_share=0.01,
    device_memory=2**31,
    core_share=0.75,
)
#: As `RECORD` is written.
LINE = (
    '{"epoch": 1, "seconds": 2.5, "learning_rate": 0.001, "train": {"loss": 0.7}, '
    '"eval": {"loss": 0.6, "accuracy": 0.8}, "samples_per_second": 4000.0, "wait_share": 0.01, '
    '"device_memory": 2147483648, "core_share": 0.75}'
)

values = st.dictionaries(st.text(max_size=5), st.floats(), max_size=3)
records = st.builds(
    EpochRecord,
    epoch=st.integers(1, 10**6),
    seconds=st.floats(),
    learning_rate=st.floats(),
    train=values,
    eval=st.none() | values,
    samples_per_second=st.floats(),
    wait_share=st.floats(),
    device_memory=st.none() | st.integers(0, 2**63),
    core_share=st.none() | st.floats(0, 1),
)


def epochs(last: int) -> list[EpochRecord]:
    return [replace(RECORD, epoch=epoch, train={"loss": 1 / epoch}) for epoch in range(1, last + 1)]


def write(folder: Path, last: int) -> Path:
    history = History(folder)
    for record in epochs(last):
        history.add(record)
    return history.path


def finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


# --- a record


def test_a_record_is_a_line_of_json() -> None:
    assert dump_record(RECORD) == LINE
    assert parse_record(json.loads(LINE)) == RECORD


@given(records)
def test_records_survive_json(record: EpochRecord) -> None:
    line = dump_record(record)
    assert "\n" not in line
    found = parse_record(strict(line))
    assert (found.epoch, found.device_memory, found.core_share) == (
        record.epoch,
        record.device_memory,
        record.core_share,
    )
    assert finite(found.train) == finite(record.train)
    assert (found.eval is None) == (record.eval is None)
    assert finite(found.eval or {}) == finite(record.eval or {})
    for name in ("seconds", "learning_rate", "samples_per_second", "wait_share"):
        assert finite({"": getattr(found, name)}) == finite({"": getattr(record, name)})


def test_a_number_that_is_not_finite_is_null() -> None:
    line = dump_record(replace(RECORD, train={"loss": math.nan}, eval={"loss": math.inf}, seconds=-math.inf))
    assert strict(line)["train"] == strict(line)["eval"] == {"loss": None}
    found = parse_record(strict(line))
    assert math.isnan(found.train["loss"])
    assert math.isnan(found.seconds)


def test_numbers_of_numpy_and_torch_are_numbers() -> None:
    given = {"loss": np.float32(0.5), "accuracy": torch.tensor(0.25), "samples": np.int64(7)}
    assert parse_record(strict(dump_record(replace(RECORD, train=given)))).train == {  # type: ignore[arg-type]
        "loss": 0.5,
        "accuracy": 0.25,
        "samples": 7,
    }


def test_members_of_later_versions_are_left_out() -> None:
    assert parse_record({**json.loads(LINE), "energy": {"joule": 3}}) == RECORD


@given(st.lists(st.floats(), max_size=8), st.booleans())
def test_the_best_epoch_is_the_first_of_the_best(found: list[float], higher: bool) -> None:
    given = [replace(RECORD, epoch=i, eval={"f1": value}) for i, value in enumerate(found, 1)]
    given.insert(1, replace(RECORD, epoch=100, eval=None))
    known = [value for value in found if math.isfinite(value)]
    best = best_record(given, "f1", higher_is_better=higher)
    if not known:
        assert best is None
    else:
        assert best is not None
        assert best.epoch == found.index(max(known) if higher else min(known)) + 1


# --- the file


def test_a_line_an_epoch(tmp_path: Path) -> None:
    path = write(tmp_path / "runs" / "first", 3)
    assert path == tmp_path / "runs" / "first" / "history.jsonl"
    lines = path.read_text("utf-8").splitlines()
    assert [strict(line)["epoch"] for line in lines] == [1, 2, 3]
    assert load_history(path) == load_history(path.parent) == epochs(3)


def test_a_half_written_line_is_dropped_wherever_it_ends(tmp_path: Path) -> None:
    path = write(tmp_path, 2)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        # A line that lacks no more than its newline is whole.
        assert load_history(path) == epochs((end >= first - 1) + (end >= len(whole) - 1)), end
    for end in (0, first - 1, first, first + 40, len(whole) - 1):
        path.write_bytes(whole[:end])
        history = History(tmp_path, keep_epochs=1)
        assert history.records == epochs(int(end >= first - 1))
        history.add(epochs(2)[1])
        assert path.read_bytes().startswith(whole[:first] if end >= first - 1 else whole[first:])
        assert load_history(path)[-1] == epochs(2)[1]
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["history.jsonl"]


def test_a_line_cut_in_the_middle_of_a_character_is_dropped(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(replace(RECORD, train={"Genauigkeit für Käfer": 1.0}))
    text = history.path.read_bytes()
    history.path.write_bytes(text[: text.index("ä".encode()) + 1])
    assert load_history(tmp_path) == []


def test_resuming_keeps_the_epochs_of_the_checkpoint(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    history = History(tmp_path, keep_epochs=2)
    assert history.records == load_history(path) == epochs(2)
    history.add(replace(epochs(3)[2], seconds=9.0))
    assert history.records == load_history(path)
    assert [record.seconds for record in load_history(path)] == [2.5, 2.5, 9.0]
    History(tmp_path)
    assert path.read_bytes() == b""


def test_lines_that_are_kept_stay_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    lines = [json.dumps({**json.loads(LINE), "epoch": epoch, "note": "mine"}, indent=None) for epoch in (1, 2)]
    path.write_text("\n".join([*lines, ""]), "utf-8")
    before = path.stat()
    History(tmp_path, keep_epochs=2)
    assert path.read_text("utf-8").splitlines() == lines
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    History(tmp_path, keep_epochs=1)
    assert path.read_text("utf-8") == lines[0] + "\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[1]",
        b"{" * 10,
        b"[" * 100_000,
        b'{"epoch": "\xff"}',
        LINE.replace('"epoch": 1', '"epoch": 0').encode(),
        LINE.replace('"epoch": 1', '"epoch": true').encode(),
        LINE.replace("2147483648", "-1").encode(),
        LINE.replace('{"loss": 0.7}', "0.7").encode(),
        LINE.replace('"loss": 0.7', '"loss": "x"').encode(),
        LINE.replace('"seconds"', '"second"').encode(),
        LINE.replace("2.5", "1" + "0" * 400).encode(),
        LINE.encode(),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    message = "expected an epoch as JSON, found something else"
    message = "epoch: expected an epoch after 1, found 1" if line == LINE.encode() else message
    path = tmp_path / "history.jsonl"
    path.write_bytes(LINE.encode() + b"\n" + line + b"\n" + LINE.replace('"epoch": 1', '"epoch": 2').encode() + b"\n")
    for opened in (lambda: load_history(path), lambda: History(tmp_path, keep_epochs=2)):
        with pytest.raises(OptionError, match=message) as raised:
            opened()  # type: ignore[operator]
        assert str(raised.value).startswith(f"{path}, line 2: ")
        assert str(raised.value).endswith(". Remove that line, or the file.")
        assert "\n" not in str(raised.value)


def test_epochs_are_added_in_order(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(RECORD)
    with pytest.raises(OptionError, match="expected an epoch after 1, found 1"):
        history.add(RECORD)
    assert load_history(tmp_path) == [RECORD]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(OutputError, match=r"run/history\.jsonl: expected to write it, found: File exists\."):
        History(tmp_path / "run")


def test_a_full_disk_is_one_line_and_whole_lines_stay(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from tensorstore_ds.annex.training.history import EpochRecord, History\n"
        "from tensorstore_ds.errors import OutputError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    history = History(sys.argv[1])\n"
        "    for epoch in range(1, 100):\n"
        "        history.add(EpochRecord(epoch, 1.0, 0.1, {'loss': 0.5}, None, 1.0, 0.0))\n"
        "except OutputError as error:\n"
        "    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    history_path = tmp_path / "history.jsonl"
    expected = f"{history_path}: expected to write it, found: File too large. Make room or choose another folder."
    assert run.stdout == f"{expected}\n"
    assert run.stderr == ""
    assert load_history(tmp_path)
    History(tmp_path, keep_epochs=100).add(replace(RECORD, epoch=200))  # there is room again
    assert load_history(tmp_path)[-1].epoch == 200
