"""Draw the layers of the package as docs/_static/layers.svg: ``python docs/draw_layers.py``.

The layers come from the contract in pyproject.toml that import-linter checks, and what each part does from the first
line of its docstring. A test compares the file with what this script draws.
"""

from __future__ import annotations

import ast
import textwrap
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "_static" / "layers.svg"

#: In pixels.
WIDTH, MARGIN, GAP, LINE, TITLE = 1000, 12, 8, 15, 26
#: Of a letter of a description, about.
LETTER = 6.6
STYLE = """
  text { font: 12px sans-serif; fill: #444 } .name { font: bold 14px monospace; fill: #111 }
  rect { rx: 4px; fill: #f4f6fa; stroke: #8a97ad } .torch { fill: #fdf1e3; stroke: #c9974f }
"""


def layers() -> list[list[str]]:
    """Names of modules, from the highest layer to the lowest, with the annexes in their layers."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    whole, inner, _ = (
        contract
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    )
    (annex,) = inner["containers"]
    annexes = [
        [f"{annex}.{name}" for name in layer.split(" : ")] for layer in inner["layers"]
    ]
    listed = list[list[str]]()
    for layer in whole["layers"]:
        listed += annexes if layer == annex else [layer.split(" : ")]
    return listed


def described(module: str) -> str:
    """The first line of a module's docstring."""
    path = ROOT.joinpath(
        "cli" if module.startswith("tsds_cli") else "", *module.split(".")
    )
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (
        (ast.get_docstring(ast.parse(file.read_text("utf-8"))) or "")
        .partition("\n")[0]
        .replace("`", "")
    )


def needs_torch() -> set[str]:
    """Parts that import torch at the top of a module."""
    found = set[str]()
    for name in (name for layer in layers() for name in layer):
        folder = ROOT.joinpath(*name.split("."))
        nodes = [
            node
            for file in [*folder.rglob("*.py"), folder.with_suffix(".py")]
            if file.is_file() and "import torch" in (text := file.read_text("utf-8"))
            for node in ast.parse(text).body
        ]
        if "torch" in {
            each.name
            for node in nodes
            if isinstance(node, ast.Import)
            for each in node.names
        }:
            found.add(name)
    return found


def draw() -> str:
    """The picture as SVG, with the highest layer at the top."""
    boxes, y, torch = list[str](), MARGIN, needs_torch()
    for layer in layers():
        width = (WIDTH - 2 * MARGIN - GAP * (len(layer) - 1)) / len(layer)
        texts = {
            name: textwrap.wrap(described(name), int((width - 16) / LETTER))
            for name in layer
        }
        height = TITLE + LINE * max(map(len, texts.values())) + 6
        for i, (name, lines) in enumerate(texts.items()):
            x = MARGIN + i * (width + GAP)
            mark = ' class="torch"' if name in torch else ""
            boxes.append(
                f'<rect{mark} x="{x:.0f}" y="{y}" width="{width:.0f}" height="{height}"/>'
            )
            title = name.removeprefix("tensorstore_ds.")
            boxes.append(
                f'<text class="name" x="{x + 8:.0f}" y="{y + 18}">{escape(title)}</text>'
            )
            for j, line in enumerate(lines):
                boxes.append(
                    f'<text x="{x + 8:.0f}" y="{y + TITLE + 10 + j * LINE}">{escape(line)}</text>'
                )
        y += height + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + MARGIN}" role="img">'
    title = "<title>Layers of tensorstore-ds: each imports only from layers below it</title>"
    return "\n".join([head, title, f"<style>{STYLE}</style>", *boxes, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
