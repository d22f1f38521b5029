"""The widget in Chromium: its joined module runs in a page like a notebook's, and messages go to the real widget."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("anywidget")
pytest.importorskip("playwright")

from playwright.sync_api import Page

import tensorstore_ds as tsds
from detection_stores import shape_store, shapes as samples_of_shapes
from stores import store_of
from tensorstore_ds.annex.viewing.widget import StoreWidget
from widget_comm import PageComm

#: A page of a notebook: what an anywidget gets, with elements of its own around it.
NOTEBOOK = """
<!doctype html><title>my notebook</title>
<style>
button { color: rgb(1, 2, 3); }
.jp-OutputArea-output dt { font-weight: bold; float: left; width: 20%; } /* as JupyterLab has it */
.jp-OutputArea-output dd { float: left; width: 80%; }
</style>
<header>a header</header><button id="own">own</button><table id="data"><tr><td>1</td></tr></table>
<div id="one" class="jp-OutputArea-output"></div><div id="two"></div>
<script>
const listeners = new Map();
const call = (name, ...values) => { for (const each of [...(listeners.get(name) ?? [])]) each(...values); };
const bytesOf = (text) => new DataView(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
window.model = {
  state: {}, changed: {}, keys: [],
  get(name) { return this.state[name]; },
  set(name, value) {
    this.changed[name] = this.state[name] = value;
    call(`change:${name}`, value);
  },
  async save_changes() {
    const state = this.changed;
    this.changed = {};
    await window.toKernel({ method: "update", state });
  },
  on(name, each) { listeners.set(name, [...(listeners.get(name) ?? []), each]); },
  off(name, each) { listeners.set(name, (listeners.get(name) ?? []).filter((other) => other !== each)); },
  async send(content) {
    for (const answer of await window.toKernel({ method: "custom", content })) this.receive(...answer);
  },
  receive(data, buffers) {
    if (data.method === "custom") call("msg:custom", data.content, buffers.map(bytesOf));
    if (data.method !== "update") return;
    for (const [name, value] of Object.entries(data.state)) {
      this.state[name] = value;
      call(`change:${name}`, value);
    }
  },
};
document.addEventListener("keydown", (event) => window.model.keys.push(event.key));
window.show = async (state, module, css) => {
  window.model.state = state;
  document.head.append(Object.assign(document.createElement("style"), { textContent: css }));
  window.widget = (await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })))).default;
  window.close = window.widget.render({ model: window.model, el: document.getElementById("one") });
};
</script>
"""


@pytest.fixture
def shown(browser: Any) -> Iterator[Callable[[StoreWidget], tuple[Any, PageComm]]]:
    """Show a widget on a page that knows its kernel; errors of the page are errors of the test."""
    opened, errors = [], []

    def show(widget: StoreWidget) -> tuple[Any, PageComm]:
        page, comm = browser.new_page(viewport={"width": 1100, "height": 900}), PageComm(widget)
        page.set_default_timeout(60_000)
        opened.append(page)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.route("http://localhost/**", lambda route: route.fulfill(body=NOTEBOOK, content_type="text/html"))
        page.expose_function("toKernel", lambda data: encoded(comm.receive(data)))
        page.goto("http://localhost/notebook")
        state = {name: getattr(widget, name) for name in ("view", "rows", "height", "_settings")}
        page.evaluate("given => window.show(...given)", [state, str(widget._esm), str(widget._css)])
        return page, comm

    yield show
    for page in opened:
        page.close()
    assert errors == []


def encoded(messages: list[tuple[dict[str, Any], list[bytes]]]) -> list[Any]:
    return [[data, [base64.b64encode(buffer).decode() for buffer in buffers]] for data, buffers in messages]


def tell(page: Page, comm: PageComm, change: Callable[[], None]) -> None:
    """Send the page what the kernel sends at a change."""
    before = len(comm.sent)
    change()
    for message in encoded(comm.sent[before:]):
        page.evaluate("message => window.model.receive(...message)", message)


def pixels(page: Page, item: int) -> np.ndarray:
    """The picture of a tile, height x width x 3."""
    found = page.wait_for_function(
        """item => {
          const canvas = document.querySelector(`[data-item="${item}"] canvas`);
          if (!canvas) return null; // tiles are made anew when the columns have come
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return [canvas.height, canvas.width, Array.from(data)];
        }""",
        arg=item,
    ).json_value()
    return np.array(found[2], np.uint8).reshape(found[0], found[1], 4)[..., :3]


def wait_for_tiles(page: Page, count: int) -> None:
    page.wait_for_function("n => document.querySelectorAll('.tile canvas').length === n", arg=count)


def until(page: Page, is_so: Callable[[], bool]) -> None:
    """Let the page go on until something is so."""
    for _ in range(600):
        if is_so():
            return
        page.wait_for_timeout(50)
    pytest.fail("it is not so after 30 seconds")


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shape_store(tmp_path_factory.mktemp("widget") / "shapes.tsds", train=20, val=7)


def test_pictures_are_those_of_the_store(shown: Any, tmp_path: Path) -> None:
    images = np.random.default_rng(5).integers(0, 256, (9, 150, 120, 3), np.uint8)
    page, _ = shown(tsds.show(store_of(tmp_path / "s.tsds", [(image, 0) for image in images], ["ant"], layout="zarr")))
    wait_for_tiles(page, 9)
    for item in (0, 4, 8):
        np.testing.assert_array_equal(pixels(page, item), images[item])
    assert page.text_content(".status .shown") == "9 of 9 images"


def test_a_large_file_comes_in_pieces(shown: Any, tmp_path: Path) -> None:
    image = np.random.default_rng(5).integers(0, 256, (1300, 1300, 3), np.uint8)
    store = store_of(tmp_path / "s.tsds", [(image, 0)], ["ant"], layout="memmap")
    page, comm = shown(tsds.show(store))
    wait_for_tiles(page, 1)
    assert max(len(buffer) for _, buffers in comm.sent for buffer in buffers) == 4 * 1024**2
    page.click(".tile")
    page.wait_for_function(
        "document.querySelector('.stage canvas').getAttribute('aria-label')?.includes('1300 by 1300')"
    )


def test_the_view_is_a_trait(shown: Any, shapes: Path) -> None:
    widget = tsds.show(shapes, split="val")
    page, comm = shown(widget)
    wait_for_tiles(page, 7)
    page.click("nav button:has-text('Objects')")
    page.wait_for_function("window.model.get('view') === 'split=val&view=objects%3Aobjects'")
    until(page, lambda: widget.view == "split=val&view=objects%3Aobjects")
    tell(page, comm, lambda: setattr(widget, "view", "split=train&sort=-objects.count"))
    counts = [len(sample["labels"]) for sample in samples_of_shapes(20, seed=1)]
    until(page, lambda: first(page) == sorted(range(20), key=lambda row: -counts[row]))
    assert page.text_content(".status .shown") == "20 of 20 images"
    assert page.title() == "my notebook" and page.evaluate("location.hash") == ""


def first(page: Page) -> list[int]:
    """Items in the order in which they are shown."""
    return page.evaluate(
        """() => [...document.querySelectorAll('.tile')].map((tile) => {
          const { top, left } = tile.getBoundingClientRect();
          return [top, left, Number(tile.dataset.item)];
        }).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map((each) => each[2])"""
    )


def test_marked_rows_are_a_trait(shown: Any, shapes: Path) -> None:
    widget = tsds.show(shapes)
    page, _ = shown(widget)
    wait_for_tiles(page, 20)
    for item in (7, 2, 11):
        page.click(f'[data-item="{item}"]', modifiers=["Control"])
    until(page, lambda: widget.rows == [2, 7, 11])
    page.click("button:has-text('unmark')")
    until(page, lambda: widget.rows == [])


def test_tags_reach_the_file(shown: Any, tmp_path: Path) -> None:
    store = tsds.open(shape_store(tmp_path / "s.tsds", train=6, val=2))
    page, _ = shown(tsds.show(store))
    wait_for_tiles(page, 6)
    page.click('[data-item="3"]', modifiers=["Control"])
    page.click(".status button:has-text('wrong')")
    page.wait_for_selector(".status button[aria-pressed]:has-text('wrong')")
    page.wait_for_selector("header select[aria-label='tag']")
    kept = json.loads((tmp_path / "s.tsds.tags.json").read_text())
    assert kept == {"sha256": store.sha256, "tags": {"wrong": {"train": [3]}}}


def test_two_views_of_a_widget_and_the_end_of_one(shown: Any, shapes: Path) -> None:
    page, _ = shown(tsds.show(shapes))
    wait_for_tiles(page, 20)
    page.evaluate("void window.widget.render({ model: window.model, el: document.getElementById('two') })")
    wait_for_tiles(page, 40)
    page.select_option("#two select[aria-label='split']", "val")
    wait_for_tiles(page, 27)
    page.evaluate("window.close()")
    page.select_option("#two select[aria-label='split']", "train")
    wait_for_tiles(page, 40)


def test_the_notebook_around_it_is_left_alone(shown: Any, shapes: Path) -> None:
    widget = tsds.show(shapes, height=500)
    page, comm = shown(widget)
    wait_for_tiles(page, 20)
    style = "([selector, name]) => getComputedStyle(document.querySelector(selector))[name]"
    expected = {
        ("#own", "color"): "rgb(1, 2, 3)",
        ("#own", "borderRadius"): "0px",
        ("#one button", "borderRadius"): "6px",
        ("#data", "borderCollapse"): "separate",
        ("body > header", "display"): "block",
        ("#one header", "display"): "flex",
        ("body", "margin"): "8px",
        ("html", "colorScheme"): "normal",
    }
    assert {each: page.evaluate(style, list(each)) for each in expected} == expected
    assert page.evaluate("document.querySelector('#one .viewer').clientHeight") == 500
    tell(page, comm, lambda: setattr(widget, "height", 320))
    assert page.evaluate("document.querySelector('#one .viewer').clientHeight") == 320
    for _ in range(20):  # tiles are made anew when the columns have come, which takes the focus away
        page.locator('[data-item="0"]').press("ArrowRight")
        page.wait_for_timeout(100)
        if page.evaluate("document.activeElement.dataset.item") == "1":
            break
    else:
        pytest.fail("the next tile has no focus")
    assert page.evaluate("window.model.keys") == []
    page.focus("#own")
    page.keyboard.press("a")
    assert page.evaluate("window.model.keys") == ["a"]
    page.locator(".tile").first.click()  # nor does the notebook change it
    page.locator(".side dd").first.wait_for()
    styles = page.locator(".side dt, .side dd").evaluate_all("all => all.map((e) => getComputedStyle(e).float)")
    assert styles and set(styles) == {"none"}


def test_findings(shown: Any, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (32, 32, 3), np.uint8)
    other = np.random.default_rng(1).integers(0, 256, (32, 32, 3), np.uint8)
    store = store_of(tmp_path / "s.tsds", [(each, 0) for each in (image, other, image)], ["ant"])
    page, _ = shown(tsds.show(store, findings=tsds.check_store(store.path)))
    page.click("nav button:has-text('Findings')")
    page.wait_for_function("document.querySelectorAll('.group canvas').length === 2")


def test_an_error_of_the_kernel_is_shown(shown: Any, tmp_path: Path) -> None:
    path = shape_store(tmp_path / "s.tsds", train=3, val=1)
    widget = tsds.show(path)
    (path / "zarr.json").write_text("{}")
    page, _ = shown(widget)
    page.wait_for_selector("p.error[role='alert']")
    assert page.text_content("p.error").startswith("zarr.json: expected the metadata of a Zarr v3 group")
