"""A conversion by several processes: the same bytes as by one, whatever the tasks; and what is refused, and how."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tensorstore_ds as tsds
from stores import class_folders, contents, interrupted
from tensorstore_ds.annex.clusters import plain
from tensorstore_ds.annex.clusters.tasks import ranges
from tensorstore_ds.format.arrays import dump_json

OPTIONS = tsds.ConvertOptions(workers=0, shard_nbytes=100)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "src")


def by_one(source: Path, tmp_path: Path, options: tsds.ConvertOptions = OPTIONS) -> dict[str, bytes]:
    return contents(tsds.convert(source, tmp_path / "one.tsds", options).path)


def run_all(out: Path, tasks: int) -> None:
    for task in reversed(range(tasks)):
        tsds.clusters.convert_task(out, task, tasks)


def test_a_bad_sample_stops_its_task_alone(folders: Path, tmp_path: Path, out: Path) -> None:
    bad = sorted(folders.rglob("*.png"))[-1]
    good = bad.read_bytes()
    planned = tsds.clusters.plan(folders, out, OPTIONS)
    bad.write_bytes(good[:40])
    failed = []
    for task in range(planned.tasks):
        try:
            tsds.clusters.convert_task(out, task)
        except tsds.SourceError as error:
            failed.append(task)
            assert bad.name in str(error) and f"That is in the plan: remove {out}.partial and plan" in str(error)
    assert len(failed) == 1
    with pytest.raises(tsds.errors.UnfinishedError, match="shards are missing") as missing:
        tsds.clusters.commit(out)
    assert (missing.value.tasks, missing.value.of) == (str(failed[0]), planned.tasks)
    bad.write_bytes(good)
    assert tsds.clusters.convert_task(out, failed[0]).shards == 1
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


# --- processes that die, and that do the same work --------------------------------------------------------------------


def process(*words: str | Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tsds_cli", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Images that take a second or so to convert."""
    return class_folders(tmp_path / "many", per_class=15, size=(350, 350))


@pytest.mark.slow
def test_processes_at_the_same_shards_and_one_that_is_killed(many: Path, tmp_path: Path, out: Path) -> None:
    options = tsds.ConvertOptions(shard_nbytes=10**6, layout="zarr", workers=1)
    tsds.clusters.plan(many, out, options)
    several = [process("convert", out, "--task", "0/1") for _ in range(3)]
    deadline = time.monotonic() + 120
    while not any((tmp_path / "o.tsds.partial" / "journal").glob("*.json")):
        assert time.monotonic() < deadline and all(each.poll() is None for each in several)
        time.sleep(0.01)
    several[0].send_signal(signal.SIGKILL)
    for each in several[1:]:
        _, errors = each.communicate(timeout=60)
        assert (each.returncode, errors) == (0, b"")
    several[0].communicate()
    tsds.clusters.commit(out)
    assert contents(out) == by_one(many, tmp_path, options)
    assert not (tmp_path / "o.tsds.partial").exists()


@pytest.mark.slow
def test_two_plans_and_two_commits_at_once(folders: Path, tmp_path: Path, out: Path) -> None:
    words = ("plan", folders, out, "--shard-size", "100", "--workers", "0")
    ends = [(each.communicate()[1], each.returncode) for each in [process(*words) for _ in range(3)]]
    assert any(code == 0 for _, code in ends)
    for errors, code in ends:
        assert code == 0 or b"another conversion is writing here" in errors
    tsds.clusters.convert_task(out, 0, 1)
    ends = [(each.communicate()[1], each.returncode) for each in [process("commit", out) for _ in range(3)]]
    assert sorted(code for _, code in ends) == [0, 1, 1]
    for errors, code in ends:
        assert code == 0 or b"found a store" in errors or b"another conversion" in errors or b"no plan" in errors
    assert contents(out) == by_one(folders, tmp_path)


def test_a_scratch_folder_on_another_disk(folders: Path, tmp_path: Path, out: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other disk: /dev/shm")
    tsds.clusters.plan(folders, out, OPTIONS)
    with tempfile.TemporaryDirectory(dir=memory) as scratch:
        tsds.clusters.convert_task(out, 0, 1, scratch=scratch)
        assert os.listdir(scratch) == []
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


def test_what_a_killed_task_left_in_the_scratch_folder(folders: Path, tmp_path: Path, out: Path) -> None:
    """It is removed by the next one; a folder that a living process has locked is not."""
    fcntl = pytest.importorskip("fcntl")
    scratch = tmp_path / "scratch"
    for name in ("tsds-dead.scratch", "tsds-alive.scratch", "of-others"):
        (scratch / name).mkdir(parents=True)
        (scratch / name / "shard").write_bytes(b"rows")
    (scratch / "tsds-link.scratch").symlink_to("of-others")
    tsds.clusters.plan(folders, out, OPTIONS)
    alive = os.open(scratch / "tsds-alive.scratch", os.O_RDONLY)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX)
        tsds.clusters.convert_task(out, 0, 1, scratch=scratch)
    finally:
        os.close(alive)
    assert {path.name for path in scratch.iterdir()} == {"tsds-alive.scratch", "tsds-link.scratch", "of-others"}
    assert {path.parent.name for path in scratch.rglob("shard")} == {"tsds-alive.scratch", "of-others"}


def test_a_shard_whose_files_are_gone_is_missing(folders: Path, tmp_path: Path, out: Path) -> None:
    planned = tsds.clusters.plan(folders, out, OPTIONS, tasks=4)
    run_all(out, 4)
    store = tmp_path / "o.tsds.partial" / "store"
    names = list(planned.shards)
    shutil.rmtree(store / "train" / "00000")
    (store / "train" / "00001" / "image" / "c" / "0" / "0" / "0" / "0").write_bytes(b"short")
    with pytest.raises(tsds.errors.UnfinishedError, match="2 of 6 shards are missing") as error:
        tsds.clusters.commit(out)
    tasks = sorted({names.index(("train", i)) % 4 for i in (0, 1)})
    assert error.value.tasks == ranges(tasks)
    assert [tsds.clusters.convert_task(out, task).shards for task in tasks] == [1] * len(tasks)
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


# --- what is refused --------------------------------------------------------------------------------------------------


def change_plan(out: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A plan that says something else, with a checksum that is right."""
    path = out.with_name("o.tsds.partial") / "plan" / "plan.json"
    data = json.loads(path.read_bytes().partition(b"\n")[2])
    change(data)
    text = dump_json(data)
    path.write_bytes(f"{hashlib.sha256(text).hexdigest()}\n".encode() + text)


def test_another_version_is_refused(folders: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    change_plan(out, lambda data: data["versions"].__setitem__(1, "Pillow 1.0"))
    with pytest.raises(tsds.OptionError, match=r"planned with .*Pillow 1\.0.*Install the same versions"):
        tsds.clusters.convert_task(out, 0)


def test_records_of_another_plan_are_refused(folders: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    run_all(out, 2)
    change_plan(out, lambda data: data.__setitem__("notes", ["another plan"]))
    with pytest.raises(tsds.errors.ConversionError, match="is of another plan"):
        tsds.clusters.commit(out)
    assert tsds.clusters.convert_task(out, 0, 1).shards == 6  # none of the others' is taken for its own
    tsds.clusters.commit(out)


def test_another_source_is_refused(folders: Path, tmp_path: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    folders.rename(tmp_path / "away")
    with pytest.raises(tsds.SourceError, match="does not see the source that was planned"):
        tsds.clusters.convert_task(out, 0)
    folders.mkdir()
    with pytest.raises(tsds.SourceError, match="expected the file that was planned with, found another or none"):
        tsds.clusters.convert_task(out, 0)


def test_a_list_that_all_samples_share_must_be_the_same(tmp_path: Path, out: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    np.save(source / "x.npy", np.arange(600, dtype=np.uint8).reshape(6, 10, 10))
    tsds.clusters.plan(source, out, OPTIONS)
    np.save(source / "x.npy", np.arange(1, 601, dtype=np.uint8).reshape(6, 10, 10))
    with pytest.raises(tsds.SourceError, match="expected the file that was planned with"):
        tsds.clusters.convert_task(out, 0)


def test_a_damaged_plan(folders: Path, tmp_path: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS)
    references = tmp_path / "o.tsds.partial" / "plan" / "train.references"
    data = references.read_bytes()
    references.write_bytes(data.replace(b"0", b"1"))
    with pytest.raises(tsds.errors.ConversionError, match="its files are damaged"):
        tsds.clusters.convert_task(out, 0, 1)
    references.write_bytes(data)
    plan = references.with_name("plan.json")
    plan.write_bytes(plan.read_bytes()[:-9])
    for call in (
        lambda: tsds.clusters.convert_task(out, 0),
        lambda: tsds.clusters.commit(out),
        lambda: tsds.clusters.plan(folders, out, OPTIONS),
    ):
        with pytest.raises(tsds.errors.ConversionError, match="the plan cannot be read"):
            call()


def test_what_goes_with_a_plan(folders: Path, tmp_path: Path, out: Path) -> None:
    with pytest.raises(tsds.OptionError, match="there is no plan here"):
        tsds.clusters.commit(out)
    with pytest.raises(tsds.OptionError, match="there is no plan here"):
        tsds.clusters.convert_task(out)
    with pytest.raises(tsds.OptionError, match="expected a path, which other processes can read"):
        tsds.clusters.plan([(np.zeros((2, 2)), 0)], out)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("o.tsds*"))
    first = tsds.clusters.plan(folders, out, OPTIONS)
    again = tsds.clusters.plan(folders, out, OPTIONS)
    assert (again.sha256, again.is_new) == (first.sha256, False)
    with pytest.raises(tsds.OptionError, match="the plan of another conversion is here: `seed` was 0, is now 7"):
        tsds.clusters.plan(folders, out, replace(OPTIONS, seed=7))
    with pytest.raises(tsds.OptionError, match="a plan for several processes is here"):
        tsds.convert(folders, out, OPTIONS)
    for task, tasks in ((6, None), (-1, 3), (3, 3)):
        with pytest.raises(tsds.OptionError, match="`task`: expected 0 to"):
            tsds.clusters.convert_task(out, task, tasks)
    with pytest.raises(tsds.OptionError, match="the plan has no shard train/00009"):
        tsds.clusters.convert_task(out, shards=[("train", 9)])
    with pytest.raises(tsds.OptionError, match="`scratch`: expected a folder"):
        tsds.clusters.convert_task(out, scratch=tmp_path / "none")
    run_all(out, 2)
    tsds.clusters.commit(out)
    for call in (lambda: tsds.clusters.commit(out), lambda: tsds.clusters.convert_task(out)):
        with pytest.raises(tsds.errors.StoreExistsError, match="expected a plan that is not committed, found a store"):
            call()
    with pytest.raises(tsds.errors.StoreExistsError, match="expected a new path, found a store"):
        tsds.clusters.plan(folders, out)


def test_a_conversion_by_one_process_is_not_mixed_with_a_plan(folders: Path, tmp_path: Path, out: Path) -> None:
    interrupted(folders, out, 9, OPTIONS)
    with pytest.raises(tsds.OptionError, match="finished shards of a conversion by one process"):
        tsds.clusters.plan(folders, out, OPTIONS)
    assert tsds.convert(folders, out, OPTIONS).resumed


# --- plain data -------------------------------------------------------------------------------------------------------

_KEYS = st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), st.booleans(), st.none())
_VALUES = st.recursive(
    st.one_of(
        _KEYS, st.floats(allow_nan=False), st.builds(Path, st.text(st.characters(exclude_categories=["Cs", "Cc"])))
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.dictionaries(_KEYS, inner),
        st.sets(_KEYS),
        st.frozensets(_KEYS),
    ),
    max_leaves=20,
)


@given(_VALUES)
def test_plain_data_comes_back(value: Any) -> None:
    again = plain.load(json.loads(json.dumps(plain.dump(value))))
    assert again == value and type(again) is type(value)


def test_plain_data_is_nothing_else() -> None:
    assert plain.load(plain.dump("a\udcffb\n")) == "a\udcffb\n"
    with pytest.raises(TypeError, match="expected plain data, found Random"):
        import random

        plain.dump({"state": random.Random()})
    with pytest.raises(KeyError):
        plain.load({"Popen": {"args": ["ls"]}})


@pytest.mark.parametrize("what", ["store", "split", "shard", "folder in a shard", "file"])
def test_commit_follows_no_link(folders: Path, tmp_path: Path, out: Path, what: str) -> None:
    expected = by_one(folders, tmp_path)
    tsds.clusters.plan(folders, out, OPTIONS, tasks=1)
    tsds.clusters.convert_task(out, 0)
    store = out.with_name("o.tsds.partial") / "store"
    places = {"store": ".", "split": "train", "shard": "train/00000", "folder in a shard": "train/00000/image"}
    place = (store / places.get(what, "train/00000/label/c/0")).resolve()
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "elsewhere").rglob("*"))
    with pytest.raises(
        tsds.errors.ConversionError, match=r"expected a file or folder .*, found a symbolic link\."
    ) as caught:
        tsds.clusters.commit(out)
    assert str(place) in str(caught.value) and "\n" not in str(caught.value)
    assert not os.path.lexists(out)
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "elsewhere").rglob("*")) == before
    place.unlink()  # as the message says
    tsds.clusters.convert_task(out, 0)
    with contextlib.suppress(tsds.errors.ConversionError):  # of a file that is missing, its shard is found out here
        tsds.clusters.commit(out)
    if not out.exists():
        tsds.clusters.convert_task(out, 0)
        tsds.clusters.commit(out)
    assert contents(out) == expected


def test_a_task_follows_no_link(folders: Path, tmp_path: Path, out: Path) -> None:
    tsds.clusters.plan(folders, out, OPTIONS, tasks=1)
    (tmp_path / "victim").mkdir()
    link = out.with_name("o.tsds.partial") / "store" / "train"
    link.symlink_to(tmp_path / "victim", target_is_directory=True)
    with pytest.raises(tsds.OptionError, match="found something else as its folder store/train"):
        tsds.clusters.convert_task(out, 0)
    assert os.listdir(tmp_path / "victim") == []


@pytest.mark.parametrize("name", ["EXTRA", "image/c/0/0/0/1", "new/zarr.json"])
def test_a_shard_with_one_more_file_is_not_committed(folders: Path, tmp_path: Path, out: Path, name: str) -> None:
    expected = by_one(folders, tmp_path)
    tsds.clusters.plan(folders, out, OPTIONS, tasks=1)
    tsds.clusters.convert_task(out, 0)
    more = out.with_name("o.tsds.partial") / "store/train/00000" / name
    more.parent.mkdir(parents=True, exist_ok=True)
    more.write_text("x")
    with pytest.raises(
        tsds.errors.ConversionError, match="expected the files that its shard lists, found one more"
    ) as caught:
        tsds.clusters.commit(out)
    assert str(more) in str(caught.value) and not os.path.lexists(out)
    more.unlink()
    tsds.clusters.commit(out)
    assert contents(out) == expected and tsds.verify(out) == []


def test_a_task_of_slurm_on_a_node_without_the_scratch_folder(folders: Path, tmp_path: Path, out: Path) -> None:
    script = tsds.clusters.slurm_script(tsds.clusters.plan(folders, out, OPTIONS, tasks=1))
    variables = {**os.environ, "SLURM_ARRAY_TASK_ID": "0", "TMPDIR": str(tmp_path / "of the submitting machine")}
    subprocess.run(["bash"], input=script, text=True, env=variables, check=True)
    tsds.clusters.commit(out)
    assert contents(out) == by_one(folders, tmp_path)


@pytest.mark.parametrize("refused", ["--parsable", "--dependency"])
def test_what_slurm_refuses(folders: Path, tmp_path: Path, out: Path, refused: str, monkeypatch: Any) -> None:
    """If it takes the job array and refuses the commit, the array is not to be submitted again."""
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    no = "echo sbatch: error: No. >&2; exit 1"
    sbatch.write_text(f'#!/bin/sh\ncat > {tmp_path}/script\ncase "$*" in *{refused}*) {no};; esac\necho 12\n')
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=os.pathsep)
    planned = tsds.clusters.plan(folders, out, OPTIONS)
    advice = "Print the script, correct it, and submit it yourself."
    if refused == "--dependency":
        commit = f"{sys.executable} -m tsds_cli commit {out}"
        advice = f"Job 12 converts the shards. When it has ended, run: {commit}"
    with pytest.raises(tsds.errors.ConversionError) as caught:
        tsds.clusters.submit_slurm(planned)
    assert str(caught.value) == f"sbatch: error: No. {advice}"
