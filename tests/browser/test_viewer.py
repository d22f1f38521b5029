"""The viewer in Chromium: what it shows is what NumPy finds in the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from browser.conftest import CLASSES, Open, View, column, saved
from stores import Samples, store_of

# --- filters and order ------------------------------------------------------------------------------------------------


def test_all_rows_in_their_order_and_those_of_a_filter(store: tsds.Store, tab: Open, view: View) -> None:
    url, rows = view(store.path), [store["train"][row] for row in range(60)]
    opened = tab().open(url, "size=64")
    assert opened.status == "60 of 60 images" and opened.items == list(range(60))
    opened.open(url, "size=64&f.objects.classes=2")
    assert opened.items == [i for i, row in enumerate(rows) if 2 in row["objects"]["labels"]]
    opened.open(url, "size=64&f.key=01")
    assert opened.items == [i for i, row in enumerate(rows) if "01" in row["key"]]


def test_a_click_on_a_class_filters(store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab().open(view(store.path), "size=64")
    labels = column(store, "label")
    opened.page.get_by_role("button", name="bee").first.click()
    opened.settle()
    assert opened.items == np.flatnonzero(labels == 1).tolist()
    opened.page.get_by_role("button", name="cow").first.click()
    opened.settle()
    assert opened.items == np.flatnonzero(labels > 0).tolist()
    assert opened.state().count("f.label=") == 1
    again = tab().open(view(store.path), opened.state())
    assert again.items == opened.items


def test_numbers_filter_and_sort(store: tsds.Store, tab: Open, view: View) -> None:
    scores = column(store, "score")
    opened = tab().open(view(store.path), "size=64&f.score=0.25..0.75&sort=-score")
    rows = [row for row in np.argsort(-scores, kind="stable").tolist() if 0.25 <= scores[row] <= 0.75]
    assert opened.items == rows and opened.status == f"{len(rows)} of 60 images"
    opened.page.get_by_label("least score").fill("0.5")
    opened.page.get_by_label("least score").press("Enter")
    opened.settle()
    assert opened.items == [row for row in rows if scores[row] >= 0.5]


def test_counts_above_a_filter_are_those_of_the_others(store: tsds.Store, tab: Open, view: View) -> None:
    labels, scores = column(store, "label"), column(store, "score")
    opened = tab().open(view(store.path), "f.score=0.5..1&f.label=1")
    bars = opened.page.locator("details:has(summary:text-is('label')) .bar")
    shown = {bar.locator(".name").inner_text(): int(bar.locator(".count").inner_text()) for bar in bars.all()}
    assert shown == {name: int(((labels == i) & (scores >= 0.5)).sum()) for i, name in enumerate(CLASSES)}
    titles = opened.page.locator(
        "details:has(summary:text-is('number of objects')) .histogram title"
    ).all_text_contents()
    counts = np.bincount([row % 5 for row in range(60) if labels[row] == 1 and scores[row] >= 0.5], minlength=5)
    assert titles == [f"{i}: {counts[i]} of 12" for i in range(5)]


def test_objects_as_tiles(store: tsds.Store, tab: Open, view: View) -> None:
    objects = [store["train"][row]["objects"] for row in range(60)]
    boxes = np.concatenate([each["boxes"] for each in objects])
    labels = np.concatenate([each["labels"] for each in objects])
    sides = np.sqrt(((boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])).astype(float))
    opened = tab().open(view(store.path), "view=objects%3Aobjects&size=48&f.object.class=1&sort=box size")
    expected = [item for item in np.argsort(sides, kind="stable").tolist() if labels[item] == 1]
    assert opened.items == expected
    opened.page.locator(".tile").first.click()
    opened.page.wait_for_selector("dialog dl")
    parent = np.repeat(np.arange(60), [len(each["labels"]) for each in objects])
    assert f"row {parent[expected[0]]}" in opened.page.locator("dialog h2").inner_text()


@pytest.mark.parametrize(("text", "row"), [("1,234", 1234), ("train/01999", 1999)])
def test_jumping_to_a_row_and_a_key(text: str, row: int, tmp_path: Path, tab: Open, view: View) -> None:
    images = [{"image": np.full((2, 2, 1), i % 256, np.uint8)} for i in range(3000)]
    store = store_of(tmp_path / "many.tsds", Samples(images), workers=0)
    opened = tab().open(view(store.path))
    go = opened.page.get_by_label("go to row or key")
    go.fill(text)
    go.press("Enter")
    opened.page.wait_for_selector(f"[data-item='{row}']")
    assert row in opened.items


def test_scrolling_is_scaled_beyond_what_elements_can_be(tmp_path: Path, tab: Open, view: View) -> None:
    part = store_of(tmp_path / "part.tsds", Samples([{"image": np.zeros((1, 1, 1), np.uint8)}] * 5000), workers=0)
    tsds.editing.merge_stores([part.path] * 60, tmp_path / "large.tsds")
    opened = tab(width=700, height=600).open(view(tmp_path / "large.tsds"), "size=480")
    opened.page.keyboard.press("Tab")
    opened.page.locator(".tile").first.focus()
    opened.page.keyboard.press("End")
    opened.page.wait_for_selector("[data-item='299999']")
    assert opened.page.evaluate("document.querySelector('.spacer').offsetHeight") < 2**24
    box = opened.page.locator("[data-item='299999']").bounding_box()
    assert box is not None and box["y"] < 600
    opened.page.keyboard.press("ArrowUp")
    opened.page.wait_for_selector("[data-item='299998']")


# --- a sample ---------------------------------------------------------------------------------------------------------


def test_the_detail_of_a_sample_and_its_neighbours(store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab().open(view(store.path), "f.label=1&row=0")
    rows = np.flatnonzero(column(store, "label") == 1).tolist()
    opened.page.wait_for_selector("dialog dl")
    opened.page.keyboard.press("Escape")
    opened.page.locator(".tile").first.click()
    title = opened.page.locator("dialog h2")
    for row in rows[:3]:
        opened.page.wait_for_function(f"() => document.querySelector('dialog h2').textContent === 'train, row {row}'")
        assert f"row={row}" in opened.state()
        opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowLeft")
    opened.page.wait_for_function(f"() => document.querySelector('dialog h2').textContent === 'train, row {rows[2]}'")
    opened.page.wait_for_function(
        f"() => document.querySelector('dialog .key')?.textContent === '{column(store, 'key')[rows[2]]}'"
    )
    assert title.inner_text() == f"train, row {rows[2]}"
    assert opened.page.locator("dialog tr").count() == rows[2] % 5


# --- selections, tags -------------------------------------------------------------------------------------------------


def test_rows_of_a_selection(store: tsds.Store, tmp_path: Path, tab: Open, view: View) -> None:
    opened = tab().open(view(store.path), "size=64")
    opened.page.locator("[data-item='3']").focus()
    opened.page.keyboard.press("Space")
    opened.page.locator("[data-item='7']").click(modifiers=["Shift"])
    opened.page.locator("[data-item='5']").click(modifiers=["Control"])
    assert opened.status == "60 of 60 images, 4 marked"
    rows = [3, 4, 6, 7]
    (tmp_path / "rows.json").write_bytes(saved(opened, "rows.json"))
    assert json.loads((tmp_path / "rows.json").read_bytes())["drop"] == {"train": rows}
    line = opened.page.locator(".status code").inner_text().split()
    out = tmp_path / "rest.tsds"
    words = [sys.executable, "-m", "tsds_cli", *line[1:3], str(out), line[4], str(tmp_path / "rows.json")]
    subprocess.run(words, check=True, capture_output=True)
    assert len(tsds.open(out)["train"]) == 56


def test_tags_are_kept_beside_the_store(store: tsds.Store, tab: Open, view: View) -> None:
    url = view(store.path)
    opened = tab().open(url, "row=4")
    opened.page.wait_for_selector("dialog dl")
    opened.page.locator("dialog").get_by_role("button", name="wrong").click()
    opened.page.wait_for_selector("dialog [aria-pressed=true]")
    beside = store.path.with_name("things.tsds.tags.json")
    assert json.loads(beside.read_text()) == {"sha256": store.sha256, "tags": {"wrong": {"train": [4]}}}
    again = tab().open(url, "tag=wrong")
    assert again.items == [4]
    again.open(url, "row=4")
    again.page.wait_for_selector("dialog dl")
    again.page.locator("dialog").get_by_role("button", name="wrong").click()
    again.page.wait_for_selector("dialog [aria-pressed=false]")
    again.page.wait_for_function("() => !document.querySelector('dialog [aria-pressed=true]')")
    assert json.loads(beside.read_text())["tags"] == {}


def test_a_lasso_keeps_points(store: tsds.Store, tab: Open, view: View) -> None:
    scores = column(store, "score")
    opened = tab().open(view(store.path), "view=scatter&x=score&y=objects.count")
    opened.page.wait_for_function("() => document.querySelector('.scatter .quiet').textContent.startsWith('60 points')")
    box = opened.page.locator(".cloud").bounding_box()
    assert box is not None
    middle = 0.5 + (0.5 - (scores.min() + scores.max()) / 2) / ((scores.max() - scores.min()) * 1.06)
    corners = [(0, 0), (middle, 0), (middle, 1), (0, 1), (0, 0.02)]
    places = [
        (box["x"] + 1 + (box["width"] - 2) * float(x), box["y"] + 1 + (box["height"] - 2) * y) for x, y in corners
    ]
    opened.page.mouse.move(*places[0])
    opened.page.mouse.down()
    for place in places[1:]:
        opened.page.mouse.move(*place, steps=4)
    opened.page.mouse.up()
    expected = np.flatnonzero(scores < 0.5)
    assert opened.status == f"{len(expected)} of 60 images, of a selection"
    opened.page.get_by_role("button", name="Images").click()
    opened.settle()
    assert opened.items == expected.tolist()


# --- how it looks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(scheme: str, width: int, store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab(width=width, color_scheme=scheme).open(view(store.path))
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    background = opened.page.evaluate("getComputedStyle(document.querySelector('.viewer')).backgroundColor")
    assert (sum(map(int, background[4:-1].split(", "))) < 200) == (scheme == "dark")


#: Ratios of contrast (WCAG 2.1) of texts against the nearest background that is not transparent.
CONTRAST = """() => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll('.viewer *')].filter((node) => [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim())).map((node) => {
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.className || node.tagName, node.textContent.slice(0, 20)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(scheme: str, store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab(color_scheme=scheme).open(view(store.path), "f.label=1")
    found = opened.page.evaluate(CONTRAST)
    assert len(found) > 30
    assert [entry for entry in found if entry[0] < 4.5] == []


def test_every_control_has_a_name(store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab().open(view(store.path), "f.label=1")
    unnamed = opened.page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, [role=button], [role=img]')].filter((node) =>
            !(node.getAttribute('aria-label') || node.textContent.trim() || node.closest('label'))).map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    assert opened.page.locator("[role=grid] [role=gridcell]").count() > 10
