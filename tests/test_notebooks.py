"""The notebooks run from their first cell to their last one, and their assertions hold."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
COLAB = "https://colab.research.google.com/github/"


@pytest.mark.slow
@pytest.mark.drawn(1)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, 4)
    assert any("assert " in cell.source for cell in notebook.cells if cell.cell_type == "code")
    for _ in range(2 if path.stem == "first_steps" else 1):  # an earlier run is in nobody's way
        nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_valid_and_has_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    assert notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def test_badges_lead_to_the_repository_as_soon_as_it_has_an_address() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    address = project.get("urls", {}).get("Repository", "").removeprefix("https://github.com/")
    for path in NOTEBOOKS:
        first = nbformat.read(path, 4).cells[0].source
        badge = f"{COLAB}{address}/blob/main/examples/notebooks/{path.name}"
        assert (badge in first) if address else (COLAB not in first), path
