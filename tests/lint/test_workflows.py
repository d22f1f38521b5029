"""What the workflows run is pinned, and what is published is what was built."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_pages import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
#: Actions that are named by a tag, because no newer commit of them could be verified: RELEASING.md.
BY_TAG = {"pypa/gh-action-pypi-publish@release/v1"}
#: What an expression in a script may name: nothing that a stranger writes, such as the title of a pull request.
OWN = re.compile(r"(matrix|steps|needs|env)\.[\w.-]+|github\.(run_id|workspace|sha)")


def read(path: Path) -> dict[Any, Any]:
    found: dict[Any, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def steps(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The job and the step of each step."""
    return ((name, step) for name, job in read(path)["jobs"].items() for step in job.get("steps", ()))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = [step["uses"] for _, step in steps(path) if "uses" in step]
    assert [each for each in used if each not in BY_TAG and not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)] == []
    for line in path.read_text("utf-8").splitlines():
        if "uses:" in line and not any(each in line for each in BY_TAG):
            assert re.search(r"@[0-9a-f]{40} # v\d+(\.\d+)*$", line), line  # the version, for people


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_nothing_of_a_stranger_is_run(path: Path) -> None:
    content = read(path)
    events = content[True]  # YAML reads `on` as true
    assert "pull_request_target" not in events and "workflow_run" not in events
    assert content["permissions"] == {"contents": "read"} or path.name == "docs.yml"
    for _, step in steps(path):
        for expression in re.findall(r"\$\{\{(.*?)\}\}", step.get("run", "")):
            assert OWN.fullmatch(expression.strip()), expression


def test_tools_of_a_release_have_exact_versions() -> None:
    lines = (ROOT / ".github/constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert {"build", "cibuildwheel", "hatchling"} <= pinned.keys()
    for name, step in steps(ROOT / ".github/workflows/release.yml"):
        for line in step.get("run", "").splitlines():
            if "pip install" not in line:
                continue
            job = read(ROOT / ".github/workflows/release.yml")["jobs"][name]
            if "--no-index" not in line and name != "later-python":  # that job uploads nothing
                assert "constraints.txt" in job["env"]["PIP_CONSTRAINT"]
                assert all(f"{tool}=={version}" in line for tool, version in pinned.items() if f" {tool}" in line)
                assert re.search(r" [\w-]+==[\d.]+$", line), line


def test_the_wheel_that_was_built_is_the_one_that_is_tested() -> None:
    lines = [
        step.get("run", "") for name, step in steps(ROOT / ".github/workflows/release.yml") if name == "later-python"
    ]
    assert any("--no-index --no-deps dist/*.whl" in line for line in lines)
    assert not any("tensorstore-ds" in line for line in lines)


def test_named_files_are_published_after_their_digests_are_compared() -> None:
    jobs = read(ROOT / ".github/workflows/release.yml")["jobs"]
    publish = jobs["publish"]["steps"]
    downloads = [step["with"] for step in publish if "download-artifact" in step.get("uses", "")]
    built = {"pure"} | {f"compiled-{each['os']}" for each in jobs["compiled"]["strategy"]["matrix"]["include"]}
    assert {each["name"] for each in downloads} == built and all(each.keys() == {"name", "path"} for each in downloads)
    compare, last = publish[-2:]
    assert "sha256sum --check --strict" in compare["run"] and "gh-action-pypi-publish" in last["uses"]
    outputs = {f"needs.compiled.outputs.{name}" for name in jobs["compiled"]["outputs"]} | {
        "needs.pure.outputs.digests"
    }
    assert {each.strip("${} ") for each in compare["env"].values()} == outputs
    writes = {name for name, job in jobs.items() if "write" in str(job.get("permissions", ""))}
    assert writes == {"publish"} and jobs["publish"]["environment"] == "pypi"
