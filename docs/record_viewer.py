"""Draw the pictures of docs/viewer.md and the recording in the README: ``python docs/record_viewer.py STORE``.

STORE is a store with objects, such as one of BCCD. Needs playwright and Chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

import tensorstore_ds as tsds

HERE = Path(__file__).parent
SIZE = {"width": 1080, "height": 640}
#: Views whose pictures are on the page, by the name of the file.
VIEWS = {
    "viewer": "size=150",
    "viewer_objects": "view=objects%3Aobjects&size=96&sort=box%20size",
}


def frame(page: Any, milliseconds: int) -> tuple[Image.Image, int]:
    """What the page shows, and for how long the recording shows it."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    size = (SIZE["width"] * 3 // 4, SIZE["height"] * 3 // 4)
    return picture.convert("RGB").resize(size, Image.Resampling.LANCZOS), milliseconds


def record(page: Any, url: str) -> list[tuple[Image.Image, int]]:
    """A short session: scroll, filter by a class, look at a sample, look at its objects."""
    page.goto(url)
    page.wait_for_timeout(2000)
    frames = [frame(page, 1200)]
    for _ in range(4):
        page.locator(".grid").hover()
        page.mouse.wheel(0, 180)
        page.wait_for_timeout(500)
        frames.append(frame(page, 250))
    page.locator(".bar").nth(2).click()
    page.wait_for_timeout(1200)
    frames.append(frame(page, 1500))
    page.locator(".tile").nth(1).click()
    page.wait_for_timeout(1500)
    frames.append(frame(page, 1500))
    for _ in range(2):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(1200)
        frames.append(frame(page, 900))
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Objects").first.click()
    page.wait_for_timeout(2500)
    frames.append(frame(page, 1500))
    page.locator(".bar").nth(2).click()
    page.wait_for_timeout(1500)
    frames.append(frame(page, 2000))
    return frames


def main() -> None:
    """Write the pictures beside this file."""
    with tsds.view(sys.argv[1]) as url, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or "chromium"
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE)
        for name, view in VIEWS.items():
            page.goto("about:blank")
            page.goto(f"{url}#{view}")
            page.wait_for_timeout(3000)
            Image.open(io.BytesIO(page.screenshot())).convert("RGB").save(
                HERE / f"{name}.webp", quality=80
            )
        page.goto("about:blank")
        frames = record(page, url)
        browser.close()
    pictures, durations = zip(*frames, strict=True)
    options = {"duration": list(durations), "loop": 0, "quality": 70}
    pictures[0].save(
        HERE / "viewer_recording.webp",
        save_all=True,
        append_images=pictures[1:],
        **options,
    )


if __name__ == "__main__":
    main()
