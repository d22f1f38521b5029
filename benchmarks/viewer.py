"""The viewer in Chromium with a store of a million rows: first paint, jumps, filters, memory, and a slow network.

Needs playwright, Chromium and 2 GB in the scratch folder.
"""

from __future__ import annotations

import importlib.util
import shutil
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import tensorstore_ds as tsds
from benchmarks.measure import Figure, Settings, as_result, spread
from benchmarks.range_server import served
from tensorstore_ds.annex import demo

ROWS = 10**6
LATENCY = 0.05
PART = 10_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("--no-sandbox", "--disable-background-networking", "--use-gl=swiftshader", "--enable-unsafe-swiftshader")


def write_store(path: Path, rows: int) -> None:
    """Digits of 24 x 24 pixels with a label, a number and two boxes each; 10,000 of them, again and again."""
    images, labels = demo.load_digits()
    large = np.kron(images, np.ones((1, 3, 3), images.dtype))[:, :, :, None].astype(np.uint8) * 15
    rng = np.random.default_rng(0)
    boxes = np.array([[2, 2, 20, 20], [4, 6, 12, 22]], np.float32)
    part = path.with_name("part.tsds")
    with tsds.Writer(part, classes=tuple(map(str, range(10))), encoding="raw") as writer:
        for pick, other, score in zip(
            *rng.integers(0, len(large), (2, PART)), rng.random(PART, np.float32), strict=True
        ):
            objects = {"boxes": boxes, "labels": labels[[pick, other]]}
            writer.append("train", image=large[pick], label=int(labels[pick]), score=score, objects=objects)
    tsds.editing.merge_stores([part] * (rows // PART), path)


@contextmanager
def page() -> Iterator[Any]:
    """The page of a new browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        browser.close()


#: Milliseconds until tiles have pictures, since `start`, a time of the page.
_DRAWN = """async (start) => {
  for (;;) {
    const tiles = [...document.querySelectorAll('.tile')];
    if (tiles.length > 20 && tiles.every((tile) => tile.querySelector('canvas'))) return performance.now() - start;
    await new Promise(requestAnimationFrame);
  }
}"""

#: Milliseconds of a jump to a row, until its tile and all others have their pictures.
_JUMP = f"""async (row) => {{
  const input = document.querySelector('[aria-label="go to row or key"]');
  input.value = String(row);
  const start = performance.now();
  input.dispatchEvent(new Event('change'));
  while (!document.querySelector(`[data-item="${{row}}"] canvas`)) await new Promise(requestAnimationFrame);
  return ({_DRAWN})(start);
}}"""
#: Milliseconds of a click on a class, until the page shows the result and answers again.
_CLICK = """async (number) => {
  const start = performance.now();
  document.querySelectorAll('.bar')[number].click();
  await new Promise(requestAnimationFrame);
  await new Promise((done) => setTimeout(done));
  return performance.now() - start;
}"""


def first_paint(url: str) -> tuple[float, str]:
    """Seconds from the navigation until the first screen has all its pictures; what was fetched for it."""
    with page() as opened:
        sizes: list[int] = []
        opened.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
        opened.goto(url, wait_until="commit")
        opened.wait_for_selector(".tile")
        seconds = opened.evaluate(_DRAWN, 0) / 1000
        return seconds, f"; {len(sizes)} requests, {sum(sizes) / 1000:.0f} kB"


def clicks(url: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of jumps to rows, and of clicks in histograms, until the grid shows the result; MB of the tab."""
    found: dict[str, list[float]] = {"jump": [], "filter": [], "memory": []}
    with page() as opened:
        opened.goto(f"{url}#f.score=-1..2&f.label=0,1,2,3,4,5,6,7,8,9")
        opened.wait_for_selector(".histogram")
        opened.evaluate(_DRAWN, 0)
        opened.wait_for_timeout(1000)
        for row in np.random.default_rng(1).integers(ROWS // 100, ROWS, rounds).tolist():
            found["jump"].append(opened.evaluate(_JUMP, row) / 1000)
        for number in range(rounds):
            found["filter"].append(opened.evaluate(_CLICK, number) / 1000)
            opened.wait_for_timeout(500)
        found["memory"].append(_memory())
    return found


def _memory() -> float:
    """MB (private and proportional) of the largest renderer process of Chromium below this process."""
    renderers = [p for p in psutil.Process().children(recursive=True) if "--type=renderer" in " ".join(p.cmdline())]
    return max(process.memory_full_info().pss for process in renderers) / 1e6


def rounds_of(call: Callable[[], tuple[float, str]], rounds: int) -> tuple[list[float], str]:
    """Seconds of each round, and what the last one fetched."""
    found = [call() for _ in range(rounds)]
    return [seconds for seconds, _ in found], found[-1][1]


def measure(settings: Settings) -> dict[str, Any]:
    """All figures, with a store that is written in the scratch folder. Nothing without playwright and Chromium."""
    if CHROMIUM is None or importlib.util.find_spec("playwright") is None:
        return {}
    store, rounds = settings.scratch / "digits.tsds", settings.repeat
    write_store(store, ROWS)
    with tsds.view(store) as url:
        paint, fetched = rounds_of(lambda: first_paint(url), rounds)
        timed = clicks(url, rounds)
    tsds.viewing.export_view(store, settings.scratch / "site")
    with served(settings.scratch / "site", latency=LATENCY) as slow:
        slow_paint, fetched_slowly = rounds_of(lambda: first_paint(f"{slow.url}/index.html"), rounds)
    return as_result(
        [
            _seconds("first paint: all pictures of the first screen", paint, 1.0, fetched),
            _seconds("first paint from a server with 50 ms latency", slow_paint, 2.0, fetched_slowly),
            _seconds("a jump to any row, until its pictures are drawn", timed["jump"], 0.1),
            _seconds("a click on a filter, until counts and tiles match the filter", timed["filter"], 0.1),
            Figure("memory of the tab afterwards", timed["memory"][0], 400.0, "MB", 0, note="proportional set size"),
        ],
        rows=ROWS,
    )


def _seconds(what: str, values: Sequence[float], limit: float, note: str = "") -> Figure:
    return Figure(what, statistics.median(values), limit, "s", note=f"{spread(values)} s{note}")
