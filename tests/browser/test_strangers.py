"""What a stranger could do: names, pages, files and requests that mean harm, and faults that an attack has found."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from browser.conftest import Open, View, column, saved
from stores import Samples, store_of

HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "a\u202eb", "' onclick=alert(3) '"]


# --- a stranger's store -----------------------------------------------------------------------------------------------


def test_hostile_names_are_texts(tmp_path: Path, tab: Open, view: View) -> None:
    made = [{"image": np.zeros((4, 4, 1), np.uint8), "label": i, "text": [name]} for i, name in enumerate(HOSTILE)]
    store = store_of(tmp_path / "s.tsds", Samples(made), HOSTILE, workers=0)
    opened = tab()
    dialogs: list[str] = []
    opened.page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    url = view(store.path)
    opened.open(url)
    assert opened.page.locator(".bar .name").all_text_contents() == HOSTILE
    for row, name in enumerate(HOSTILE):
        opened.open(url, f"row={row}")
        opened.page.wait_for_selector("dialog dl")
        assert name in opened.page.locator("dialog dl").inner_text()
    assert not dialogs and opened.page.locator("img, script:not([src]), iframe").count() == 0


def test_another_page_gets_nothing(store: tsds.Store, tab: Open, view: View) -> None:
    url = view(store.path)
    opened = tab()
    with _web_page() as other:
        opened.page.goto(other)
        answer = opened.page.evaluate(
            """async (url) => {
              const tries = [[url + 'view.json'], [url + 'store/zarr.json'], [url + 'tags.json', { method: 'PUT', body: '{}' }],
                [url + 'tags.json', { method: 'PUT', body: '{}', headers: { 'Content-Type': 'application/json' } }]];
              return Promise.all(tries.map((words) => fetch(...words).then((answer) => answer.status, (error) => 'refused')));
            }""",
            url,
        )
    assert answer == ["refused"] * 4
    assert not store.path.with_name("things.tsds.tags.json").exists()
    opened.complaints.clear()  # of fetches that were refused


class _web_page:  # noqa: N801
    """A page of another origin."""

    def __enter__(self) -> str:
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>other</title><link rel=icon href=data:,>")

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://localhost:{self.server.server_port}/"

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize("what", ["cut", "gone", "json"])
def test_a_damaged_store_is_told_in_words(what: str, tmp_path: Path, tab: Open, out: Path) -> None:
    made = [{"image": np.full((64, 64, 3), i, np.uint8)} for i in range(60)]
    store = store_of(tmp_path / "s.tsds", Samples(made), workers=0)
    tsds.viewing.export_view(store.path, out)
    data = next((out / "store").rglob("image/c/0/0/0/0"))
    if what == "cut":
        data.write_bytes(data.read_bytes()[:20_000])
    elif what == "gone":
        data.unlink()
    else:
        root = out / "store" / "zarr.json"
        root.write_bytes(root.read_bytes().replace(b'"rows"', b'"rowz"', 1))
    opened = tab()
    with _static(out) as url:
        opened.page.goto(url)
        if what == "json":
            opened.page.wait_for_selector("[role=alert]")
            assert "zarr.json: expected another digest" in opened.page.locator("[role=alert]").inner_text()
        else:
            opened.page.wait_for_selector(".broken")
            assert "image/c/0/0/0/0: " in opened.page.locator(".broken").last.inner_text()
    opened.complaints.clear()


class _static:  # noqa: N801
    """A folder as `python -m http.server` serves it: without ranges."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> str:
        words = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(self.folder)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return line.split("(")[1].split(")")[0]

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_an_exported_page_works_without_ranges(store: tsds.Store, tab: Open, out: Path) -> None:
    tsds.viewing.export_view(store.path, out)
    with _static(out) as url:
        opened = tab().open(url, "size=64&f.label=1")
        assert opened.items == np.flatnonzero(column(store, "label") == 1).tolist()
        assert tsds.verify(out / "store") == []


def test_a_server_that_dies_is_told(store: tsds.Store, tab: Open) -> None:
    opened = tab()
    with tsds.view(store.path) as url:
        opened.open(url, "size=480")
    opened.page.locator(".tile").first.focus()
    opened.page.keyboard.press("End")
    opened.page.wait_for_selector(".broken")
    opened.complaints.clear()


# --- the server -------------------------------------------------------------------------------------------------------


def ask(url: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(
        url, data, {key.replace("_", "-"): value for key, value in headers.items()}, method=method
    )
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


TAGS = {"sha256": "0" * 64, "tags": {"wrong": {"train": [1]}}}


def test_what_the_server_refuses(store: tsds.Store, view: View) -> None:
    url = view(store.path)
    body = json.dumps(TAGS).encode()
    beside = store.path.with_name("things.tsds.tags.json")
    assert ask(f"{url}tags.json", "PUT", body, Content_Type="text/plain")[0] == 415
    assert ask(f"{url}tags.json", "PUT", b'{"sha256": "", "tags": [1]}', Content_Type="application/json")[0] == 400
    assert not beside.exists()
    assert ask(f"{url}tags.json", "PUT", body, Content_Type="application/json")[0] == 200
    assert beside.read_bytes() == body
    assert ask(f"{url}view.json", "PUT", body, Content_Type="application/json")[0] == 400
    assert ask(f"{url}store/zarr.json", "PUT", body, Content_Type="application/json")[0] == 400
    assert ask(f"{url}view.json", Host="evil.example")[0] == 403
    root = url.rstrip("/").rpartition("/")[0]
    assert ask(f"{root}/view.json")[0] == ask(f"{root}/{'x' * 32}/view.json")[0] == 404
    inside = (
        "zarr.json",
        "store/../view.json",
        "store/",
        "store/zarr.json/x",
        "viewer/../../x",
        "viewer/none.js",
        "tags",
    )
    for name in inside:
        assert ask(url + name)[0] == 404, name
    assert ask(f"{url}store/zarr.json") == (200, (store.path / "zarr.json").read_bytes())


def test_the_page_is_small(view: View, store: tsds.Store) -> None:
    url = view(store.path)
    from tensorstore_ds.annex.viewing.pages import page_files

    sizes = [len(gzip.compress(ask(url + name)[1])) for name in page_files()]
    assert len(sizes) > 10 and sum(sizes) < 80_000


@pytest.fixture
def nginx_site(store: tsds.Store, out: Path) -> Iterator[str]:
    from remote.servers import nginx

    tsds.viewing.export_view(store.path, out)
    with nginx(out, out.parent / "nginx") as url:
        yield url


def test_a_store_on_nginx(store: tsds.Store, nginx_site: str, tab: Open, view: View) -> None:
    opened = tab().open(view(f"{nginx_site}/store"), "size=64&f.label=2")
    assert opened.items == np.flatnonzero(column(store, "label") == 2).tolist()
    static = tab().open(f"{nginx_site}/index.html", "size=64&f.label=2")
    assert static.items == opened.items


# --- what an attack has found -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [range(25), range(49), np.arange(50) / 7, [1.5, -2, 1e300, -1e300]])
def test_a_bar_filters_the_items_that_it_counts(values: Any, tmp_path: Path, tab: Open, view: View) -> None:
    made = [{"image": np.zeros((2, 2, 1), np.uint8), "number": np.float64(value)} for value in values]
    store = store_of(tmp_path / "s.tsds", Samples(made), workers=0)
    opened = tab().open(view(store.path))
    bars = opened.page.locator("details:has(summary:text-is('number')) .histogram g")
    for bar in range(bars.count()):
        shown = int(bars.nth(bar).locator("title").text_content().rpartition(": ")[2].split(" of ")[1])
        if shown:
            bars.nth(bar).focus()
            opened.page.keyboard.press("Enter")
            assert opened.status == f"{shown} of {len(made)} images"


def test_go_to_row_in_another_order(store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab().open(view(store.path), "sort=-score")
    go = opened.page.get_by_label("go to row or key")
    go.fill("5")
    go.press("Enter")
    opened.page.wait_for_function("() => document.activeElement?.dataset.item === '5'")


def test_a_range_of_marks_ends_with_the_filter(store: tsds.Store, tab: Open, view: View) -> None:
    opened = tab().open(view(store.path), "size=64")
    opened.page.locator("[data-item='40']").click(modifiers=["Control"])
    opened.page.get_by_role("button", name="bee").first.click()
    opened.settle()
    third = opened.items[2]
    opened.page.locator(f"[data-item='{third}']").click(modifiers=["Shift"])
    assert json.loads(saved(opened, "rows.json"))["drop"] == {"train": sorted({40, third})}


def test_tags_of_another_state_are_not_used(store: tsds.Store, tab: Open, view: View) -> None:
    beside = store.path.with_name("things.tsds.tags.json")
    beside.write_text(json.dumps({"sha256": "0" * 64, "tags": {"wrong": {"train": [4]}}}))
    opened = tab().open(view(store.path), "tag=wrong")
    assert opened.status == "0 of 60 images, of a selection, tags of an earlier state of the store are not shown"
    opened.page.goto("about:blank")
    opened.open(view(store.path), "row=4")
    opened.page.wait_for_selector("dialog dl")
    opened.page.locator("dialog").get_by_role("button", name="wrong").click()
    opened.page.wait_for_selector("dialog .tags .error")
    assert json.loads(beside.read_text())["sha256"] == "0" * 64


def test_two_pages_keep_the_tags_of_both(store: tsds.Store, tab: Open, view: View) -> None:
    url = view(store.path)
    first, second = tab().open(url, "row=1"), tab().open(url, "row=2")
    for opened in (first, second):
        opened.page.wait_for_selector("dialog dl")
    first.page.locator("dialog").get_by_role("button", name="wrong").click()
    first.page.wait_for_selector("dialog [aria-pressed=true]")
    second.page.locator("dialog").get_by_role("button", name="wrong").click()
    second.page.wait_for_selector("dialog [aria-pressed=true]")
    beside = store.path.with_name("things.tsds.tags.json")
    assert json.loads(beside.read_text())["tags"] == {"wrong": {"train": [1, 2]}}


def test_names_that_mean_something_in_javascript(tmp_path: Path, tab: Open, view: View) -> None:
    made = [{"image": np.zeros((2, 2, 1), np.uint8), "label": 0, "constructor": np.float32(i)} for i in range(3)]
    store = store_of(tmp_path / "s.tsds", Samples(made), ["__proto__"], workers=0)
    tsds.editing.add_fields(store.path, {"__proto__": np.arange(3.0), "missed": np.arange(3)})
    opened = tab().open(view(store.path), "row=2")
    opened.page.wait_for_selector("dialog dl")
    names = opened.page.locator("dialog dt").all_inner_texts()
    assert {"constructor", "__proto__", "missed", "label"} <= set(names)


def test_many_classes(tmp_path: Path, tab: Open, view: View) -> None:
    classes = [f"c{i}" for i in range(200_000)]
    made = [{"image": np.zeros((2, 2, 1), np.uint8), "label": i * 30_000} for i in range(6)]
    store = store_of(tmp_path / "s.tsds", Samples(made), classes, workers=0)
    tsds.editing.add_fields(store.path, {"guess": np.array([0, 30_000, 1, 1, 1, 1])}, classes={"guess": classes})
    opened = tab().open(view(store.path))
    assert opened.status == "6 of 6 images"
    opened.page.goto("about:blank")
    opened.page.goto(view(store.path) + "#view=confusion")
    opened.page.wait_for_selector(".wide table")
    assert "2 are equal" in opened.page.locator(".wide caption").inner_text()
    assert opened.page.locator(".wide tbody tr").count() == 4


def test_a_file_that_is_larger_than_the_store_says(tmp_path: Path, tab: Open, view: View) -> None:
    (tmp_path / "src" / "a").mkdir(parents=True)
    Image.new("RGB", (60, 50)).save(tmp_path / "src" / "a" / "p.png")
    tsds.convert(tmp_path / "src", tmp_path / "s.tsds", encoding="source", workers=0)
    opened = tab().open(view(tmp_path / "s.tsds"))
    sizes = opened.page.evaluate(
        """async () => {
          const { sizeInHeader } = await import('./viewer/picture.js');
          const files = { png: 'image/png', jpeg: 'image/jpeg', webp: 'image/webp' };
          const canvas = new OffscreenCanvas(57, 33);
          canvas.getContext('2d').fillRect(0, 0, 20, 20);
          return Promise.all(Object.values(files).map(async (type) => {
            const blob = await canvas.convertToBlob({ type });
            return sizeInHeader(new Uint8Array(await blob.arrayBuffer()));
          }));
        }"""
    )
    assert sizes == [[57, 33]] * 3
    data = next((tmp_path / "s.tsds").rglob("image/bytes/c/0"))
    stored = bytearray(data.read_bytes())
    at = stored.index(b"IHDR") + 4
    stored[at : at + 4] = (20_000).to_bytes(4, "big")
    data.write_bytes(stored)
    again = tab().open(view(tmp_path / "s.tsds"))
    assert again.page.locator(".broken").inner_text() == "the file has 20000 x 50 pixels, but the store says 60 x 50."


def test_a_strangers_run_exports_no_store(store: tsds.Store, tmp_path: Path, out: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret").write_text("secret")
    (run / "history.jsonl").symlink_to(tmp_path / "secret")
    (run / "report.json").write_text(json.dumps({"facts": {"store": str(store.path)}}))
    tsds.viewing.export_view(run, out)
    assert not (out / "store").exists() and (out / "run0.jsonl").read_bytes() == b""
