"""The drawing of the layers."""

from __future__ import annotations

import runpy

from small_stores import ROOT


def test_the_drawing_shows_the_layers_of_today() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "draw_layers.py"))
    drawn = script["draw"]()
    assert script["PICTURE"].read_text("utf-8") == drawn, "run: python docs/draw_layers.py"
    assert all(f">{name.removeprefix('tensorstore_ds.')}<" in drawn for layer in script["layers"]() for name in layer)
    annexes = ("adapters", "augment", "device_decoding", "measuring", "tiles", "training")
    assert script["needs_torch"]() == {"tensorstore_ds.loading", *(f"tensorstore_ds.annex.{name}" for name in annexes)}


def test_the_diagrams_of_the_pages_are_what_the_script_draws() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "draw_diagrams.py"))
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    for name, draw in script["DIAGRAMS"].items():
        assert (ROOT / "docs" / name).read_text("utf-8") == draw().svg(), "run: python docs/draw_diagrams.py"
        assert f"]({name})" in pages, name
