"""Conversions on a Slurm of two nodes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tensorstore_ds as tsds
from cluster.conftest import FLAGS, OPTIONS
from cluster.slurm_nodes import Slurm, slurm_cluster
from stores import contents

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submitted(slurm: Slurm, source: Path, out: Path) -> tuple[int, int]:
    """`tsds convert --engine slurm --submit`, run where logs are to be; the ids of its two jobs."""
    command = [sys.executable, "-m", "tsds_cli", "convert", source, out, *FLAGS]
    done = subprocess.run(
        [*command, "--engine", "slurm", "--submit", "--json"],
        env=slurm.environment,
        cwd=out.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    jobs = json.loads(done.stdout)
    return jobs["array"], jobs["commit"]


def is_at_work(slurm: Slurm, out: Path) -> bool:
    """Whether some shards are finished, and another one grows in the scratch folder."""
    records = out.with_name(f"{out.name}.partial").glob("journal/*.json")
    return any(records) and any(slurm.scratch.glob("*.scratch/*.partial"))


def is_over(slurm: Slurm, job: int) -> bool:
    states = [state for state, _ in slurm.states(job).values()]
    with contextlib.suppress(AssertionError):  # a task that was requeued waits for two minutes otherwise
        if "PENDING" in states:
            slurm.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    assert "FAILED" not in states, states
    return all(state == "COMPLETED" for state in states)


def test_an_array_over_both_nodes(slurm: Slurm, source: Path, out: Path, expected: dict[str, bytes]) -> None:
    array, commit = submitted(slurm, source, out)
    slurm.wait(lambda: is_over(slurm, commit))
    assert contents(out) == expected
    assert {node for _, node in slurm.states(array).values()} == {"n0", "n1"}
    assert not out.with_name("o.tsds.partial").exists()


@pytest.mark.usefixtures("slow_disk")
def test_a_task_that_is_requeued(slurm: Slurm, source: Path, out: Path, expected: dict[str, bytes]) -> None:
    array, commit = submitted(slurm, source, out)
    slurm.wait(lambda: is_at_work(slurm, out))
    running = [task for task, (state, _) in slurm.states(array).items() if state == "RUNNING"]
    for task in running:
        with contextlib.suppress(AssertionError):  # it has ended just now
            slurm.run("scontrol", "requeue", f"{array}_{task}")
    slurm.wait(lambda: is_over(slurm, array) and is_over(slurm, commit))
    assert contents(out) == expected


@pytest.mark.usefixtures("slow_disk")
def test_a_node_that_dies(slurm: Slurm, source: Path, out: Path, expected: dict[str, bytes]) -> None:
    array, commit = submitted(slurm, source, out)
    slurm.wait(lambda: is_at_work(slurm, out) and ("RUNNING", "n1") in slurm.states(array).values())
    lost = [task for task, state in slurm.states(array).items() if state == ("RUNNING", "n1")]
    slurm.kill_node("n1")
    try:
        slurm.wait(lambda: is_over(slurm, array) and is_over(slurm, commit), 150)
        assert {slurm.states(array)[task] for task in lost} == {("COMPLETED", "n0")}
        assert contents(out) == expected
        assert not list(slurm.scratch.iterdir())
    finally:
        slurm.start_node("n1")
        slurm.wait(lambda: slurm.run("sinfo", "--noheader", "--format=%T %D").strip() == "idle 2")


def test_the_script_by_hand_and_the_tasks_that_are_missing(
    slurm: Slurm, source: Path, out: Path, expected: dict[str, bytes]
) -> None:
    """As docs/clusters.md#slurm has it: print, submit some, and what `commit` says goes into --array."""
    planned = tsds.clusters.plan(source, out, OPTIONS, tasks=6)
    script = out.parent / "photos.sbatch"
    script.write_text(tsds.clusters.slurm_script(planned))
    with pytest.raises(tsds.errors.UnfinishedError) as error:
        tsds.clusters.commit(out)
    assert error.value.tasks == "0-5"
    for tasks in ("2,4", ""):
        tasks = tasks or error.value.tasks
        job = int(slurm.run("sbatch", "--parsable", f"--array={tasks}", str(script), cwd=out.parent))
        slurm.wait(lambda job=job: is_over(slurm, job))  # type: ignore[misc]
        if not os.path.lexists(out) and tasks == "2,4":
            with pytest.raises(tsds.errors.UnfinishedError) as error:
                tsds.clusters.commit(out)
            assert error.value.tasks == "0-1,3,5"
    tsds.clusters.commit(out)
    assert contents(out) == expected
