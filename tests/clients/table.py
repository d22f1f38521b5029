"""The table of docs/clients.md: what the tests in this folder have shown, framework by framework."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "clients.md"
EXAMPLES = ROOT / "examples"
BEGIN, END = "<!-- clients begin -->\n", "<!-- clients end -->\n"
#: What marks a line of an example, or a whole class or function by its first line, that is there for the store.
MARK = "# tsds"
#: What tests that passed have shown, by framework.
WORKS, LIMITS = pytest.StashKey[dict[str, list[str]]](), pytest.StashKey[dict[str, list[str]]]()
#: The distribution of each framework, and its example.
FRAMEWORKS = {
    "timm": ("timm", "clients/timm_train.py"),
    "transformers": ("transformers", "clients/transformers_trainer.py"),
    "Lightning": ("lightning", "lightning_module.py"),
    "Accelerate": ("accelerate", "accelerate_loop.py"),
    "Ignite": ("pytorch-ignite", "clients/ignite_engine.py"),
    "fastai": ("fastai", "clients/fastai_learner.py"),
    "Albumentations": ("albumentations", "clients/albumentations_crops.py"),
    "torchvision's detection": ("torchvision", "clients/torchvision_coco.py"),
    "Ultralytics": ("ultralytics", "clients/ultralytics_yolo.py"),
    "RF-DETR": ("rfdetr", "clients/rfdetr_train.py"),
    "Grain": ("grain", "clients/grain_batches.py"),
    "tf.data, Keras": ("tensorflow-cpu", "clients/tensorflow_fit.py"),
    "JAX": ("jax", "clients/jax_loop.py"),
    "NumPy": ("numpy", "clients/numpy_loop.py"),
}


def marked_lines(code: str) -> int:
    """Lines of an example that are there for the store, without blank ones."""
    lines, marked = code.splitlines(), set()
    for number, line in enumerate(lines, 1):
        if line.endswith(MARK):
            marked.add(number)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.lineno in marked and node.end_lineno:
            marked.update(range(node.lineno, node.end_lineno + 1))
    return sum(bool(lines[number - 1].strip()) for number in marked)


def table(works: Mapping[str, Sequence[str]], limits: Mapping[str, Sequence[str]]) -> str:
    """The table, of what was shown to work and not to work."""
    rows = ["| framework | version | works | lines | does not work |", "|---|---|---|--:|---|"]
    for name, (distribution, example) in FRAMEWORKS.items():
        lines = marked_lines((EXAMPLES / example).read_text("utf-8"))
        shown, not_shown = ("; ".join(each.get(name, ())) for each in (works, limits))
        rows.append(f"| {name}: `{Path(example).name}` | {version(distribution)} | {shown} | {lines} | {not_shown} |")
    return "".join(f"{row}\n" for row in rows)


def with_table(page: str, made: str) -> str:
    """The page with this table in place of its own."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}"


def without_versions(page: str) -> str:
    """The page, the same for other versions of the frameworks."""
    return re.sub(r"^(\| [^|]+: `[^|]+) \| [^|]+ \|", r"\1 | |", page, flags=re.MULTILINE)
