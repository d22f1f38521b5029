"""What a release consists of agrees: versions, names of targets, and the files that describe the project."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import tensorstore_ds as tsds

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def test_versions_are_the_same() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    described = json.loads((ROOT / "codemeta.json").read_text("utf-8"))
    assert citation["version"] == described["version"] == tsds.__version__
    assert f"## {tsds.__version__} " in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_licenses_and_names_are_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    described = json.loads((ROOT / "codemeta.json").read_text("utf-8"))
    assert project["license"] == citation["license"] == described["license"].rpartition("/")[2]
    assert project["name"] == citation["title"] == described["name"]
    (author,) = project["authors"]
    assert [author] == citation["authors"] == [{"name": each["name"]} for each in described["author"]]
    assert all((ROOT / name).is_file() for name in project["license-files"])


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_and_workflows_are_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text("utf-8")), dict)


def test_jobs_call_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    called: set[str] = set()
    for path in WORKFLOWS:
        text = path.read_text("utf-8")
        called |= set(re.findall(r"run: make ([a-z-]+)", text))
        called |= {name for names in re.findall(r"target: \[(.*)\]", text) for name in names.split(", ")}
    assert {"check", "test"} <= called <= targets


def test_no_workflow_may_write_but_where_it_says_so() -> None:
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert workflow["permissions"] == {"contents": "read"}, path
        for name, job in workflow["jobs"].items():
            assert set(job.get("permissions", {})) <= {"id-token", "pages"}, (path, name)
            assert "secrets." not in json.dumps(job), (path, name)
