"""What a release consists of agrees: versions, names of targets, and the files that describe the project."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

import tensorstore_ds as tsds
from doc_pages import ROOT

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


def test_the_conda_recipe_has_the_dependencies_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda/recipe.yaml").read_text("utf-8"))
    assert recipe["context"]["version"] == tsds.__version__
    wanted = [re.sub(r"(?=[<>])", " ", each, count=1) for each in project["dependencies"]]
    assert recipe["requirements"]["run"] == [f"python {project['requires-python']}", *wanted]
    assert recipe["build"]["python"]["entry_points"] == [f"{k} = {v}" for k, v in project["scripts"].items()]
    assert recipe["about"]["license"] == project["license"]


def test_the_paper_cites_what_its_bibliography_has_and_repeats_only_measured_figures() -> None:
    paper = (ROOT / "paper/paper.md").read_text("utf-8")
    entries = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper/paper.bib").read_text("utf-8"), re.MULTILINE)
    assert sorted(set(re.findall(r"\[@(\w+)\]", paper))) == sorted(entries)
    measured = (ROOT / "docs/figures.md").read_text("utf-8")
    figures = re.findall(r"([\d.]+)x faster", paper)
    assert len(figures) == 2 and all(f"| {each} x, " in measured for each in figures)
    assert 450 <= len(paper.split()) <= 1750  # as JOSS asks: short
