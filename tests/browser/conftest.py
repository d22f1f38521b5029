"""What the tests of the viewer share: Chromium, which is installed by the system, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from stores import Samples, store_of

FLAGS = ["--no-sandbox", "--disable-background-networking", "--use-gl=swiftshader", "--enable-unsafe-swiftshader"]
CLASSES = ["ant", "bee", "cow"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


class Tab:
    """A page of the viewer, and what it has complained about."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        page.set_default_timeout(60_000)

    def open(self, url: str, view: str = "") -> Tab:
        """Go to a view, and wait until it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(f"{url}#{view}")
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until every tile has its picture, or says why not, and no facet is loading."""
        self.page.wait_for_function(
            """() => document.querySelector('.status .shown')
                && (!document.querySelector('.grid') || document.querySelector('.tile, .grid.empty'))
                && [...document.querySelectorAll('.tile')].every((tile) => tile.querySelector('canvas, .broken'))
                && ![...document.querySelectorAll('.facet')].some((facet) => facet.textContent === 'loading ...')"""
        )

    @property
    def status(self) -> str:
        return self.page.locator(".status .shown").inner_text()

    @property
    def items(self) -> list[int]:
        """Items of the tiles that are there, in their order on the screen."""
        places = self.page.evaluate(
            """() => [...document.querySelectorAll('.tile')].map((tile) => {
                const { left, top } = tile.getBoundingClientRect();
                return [top, left, Number(tile.dataset.item)];
            })"""
        )
        return [item for _, _, item in sorted(places)]

    def state(self) -> str:
        """The view's text in the address."""
        return str(self.page.evaluate("location.hash.slice(1)"))


@pytest.fixture
def tab(browser: Any, view: Callable[..., str]) -> Iterator[Callable[..., Tab]]:
    """Opens a tab of its own context; at the end none of them has complained. `view` ends after it."""
    contexts, tabs = [], []

    def opened(width: int = 1280, height: int = 800, **options: Any) -> Tab:
        contexts.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        tabs.append(Tab(contexts[-1].new_page()))
        return tabs[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [each.complaints for each in tabs] == [[]] * len(tabs)


@pytest.fixture
def view() -> Iterator[Callable[..., str]]:
    """Serves the viewer of a store until the test ends."""
    with ExitStack() as stack:
        yield lambda target, **options: stack.enter_context(tsds.view(target, **options))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


Open = Callable[..., Tab]
View = Callable[..., str]


def samples(rows: int = 60, seed: int = 0) -> list[dict[str, Any]]:
    """Images of 20 x 30 pixels with a label, a guess, a number and 0 to 4 objects, some of which are predictions."""
    rng = np.random.default_rng(seed)
    made = []
    for row in range(rows):
        count = row % 5
        corner = rng.uniform(0, 8, (count, 2))
        boxes = np.concatenate([corner, corner + rng.uniform(2, 10, (count, 2))], 1).astype(np.float32)
        made.append(
            {
                "image": rng.integers(0, 256, (20, 30, 3), np.uint8),
                "label": int(rng.integers(3)),
                "score": np.float32(rng.random()),
                "objects": {"boxes": boxes, "labels": rng.integers(0, 3, count)},
            }
        )
    return made


@pytest.fixture
def store(tmp_path: Path) -> tsds.Store:
    return store_of(tmp_path / "things.tsds", Samples(samples()), CLASSES, workers=0)


def column(store: tsds.Store, name: str) -> Any:
    split = store["train"]
    return np.array([split[row][name] for row in range(len(split))])


def saved(opened: Tab, button: str) -> bytes:
    with opened.page.expect_download() as found:
        opened.page.get_by_role("button", name=button).click()
    return Path(found.value.path()).read_bytes()
