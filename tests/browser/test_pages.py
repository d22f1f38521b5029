"""Findings, runs and folders in the viewer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import tensorstore_ds as tsds
from browser.conftest import CLASSES, Open, View
from stores import Samples, class_folders, store_of


def test_findings_show_their_pictures(tmp_path: Path, tab: Open, view: View) -> None:
    photos = class_folders(tmp_path / "photos", size=(40, 40))
    shutil.copy(photos / "train" / "ant" / "0.png", photos / "test" / "bee" / "copy.png")
    tsds.convert(photos, tmp_path / "s.tsds", workers=0)
    found = tsds.check_store(tmp_path / "s.tsds")
    found.save(tmp_path / "findings.json")
    assert len(found.leaks) == 1
    opened = tab()
    opened.page.goto(view(tmp_path / "s.tsds", findings=tmp_path / "findings.json"))
    opened.page.wait_for_selector(".findings canvas")
    leaks = opened.page.locator("section:has(h2:text('Leaks between splits (1)')) figure")
    assert sorted(leaks.locator("figcaption").all_inner_texts()) == [
        "test: test/bee/copy.png, bee",
        "train: train/ant/0.png, ant",
    ]
    leaks.first.locator("button").click()
    opened.page.wait_for_selector("dialog[open] dl")


def test_findings_name_images_of_other_stores(tmp_path: Path, tab: Open, view: View) -> None:
    for name, seed in (("s", 0), ("t", 1)):
        photos = class_folders(tmp_path / name, size=(40, 40), seed=seed)
        if name == "t":
            shutil.copy(tmp_path / "s" / "train" / "ant" / "0.png", photos / "test" / "bee" / "copy.png")
        tsds.convert(photos, tmp_path / f"{name}.tsds", workers=0)
    other = tmp_path / "t.tsds"
    tsds.check_store(tmp_path / "s.tsds", others=[other]).save(tmp_path / "findings.json")
    opened = tab()
    opened.page.goto(view(tmp_path / "s.tsds", findings=tmp_path / "findings.json"))
    opened.page.wait_for_selector(".findings canvas")
    leaks = opened.page.locator("section:has(h2:text('Leaks between splits (1)')) figure")
    captions = leaks.locator("figcaption").all_inner_texts()
    assert captions == [f"{other}, test: test/bee/copy.png, bee", "train: train/ant/0.png, ant"]
    assert [leaks.nth(i).locator("canvas").count() for i in (0, 1)] == [0, 1]
    assert opened.page.locator(f".findings p:text('1 images of train are in test of {other}.')").count() == 1


def test_samples_of_a_list_are_shown_first(tmp_path: Path, tab: Open, view: View) -> None:
    tsds.convert(class_folders(tmp_path / "photos"), tmp_path / "s.tsds", workers=0)
    opened = tab().open(view(tmp_path / "s.tsds", rows={"test": [1, 6]}))
    assert opened.status.startswith("2 of 8 images, of a selection")
    opened.page.locator("button:text-is('all again')").click()
    opened.page.wait_for_function("() => document.querySelector('.status .shown').innerText.startsWith('8 of 8')")


def test_curves_grow_while_a_run_goes_on(store: tsds.Store, tmp_path: Path, tab: Open, view: View) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lines = [
        json.dumps({"epoch": i, "train": {"loss": 2 / i}, "eval": {"loss": 3 / i, "accuracy": i / 10}})
        for i in (1, 2, 3)
    ]
    (run / "history.jsonl").write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])
    opened = tab()
    opened.page.goto(view(run))
    opened.page.wait_for_selector(".chart")
    assert opened.page.locator(".chart figcaption").all_inner_texts() == ["loss", "accuracy"]
    points = opened.page.locator(".chart polyline").first.get_attribute("points")
    assert points is not None and len(points.split()) == 2
    (run / "history.jsonl").write_text("\n".join(lines) + "\n")
    opened.page.wait_for_function(
        "() => document.querySelector('.chart polyline').getAttribute('points').split(' ').length === 3"
    )


def test_a_folder_before_it_is_converted(tmp_path: Path, tab: Open, view: View) -> None:
    photos = class_folders(tmp_path / "photos")
    (photos / "train" / "ant" / "bad.png").write_bytes(b"no image")
    opened = tab().open(view(photos))
    assert opened.status.endswith("of 8 images") or opened.status.endswith("of 9 images")
    opened.page.get_by_role("button", name="Left out").click()
    assert "bad.png" in opened.page.locator(".notes").inner_text()
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_matrix_of_labels_and_predictions(tmp_path: Path, tab: Open, view: View) -> None:
    rng = np.random.default_rng(0)
    truth, guess = rng.integers(0, 3, (2, 50))
    made = [{"image": np.zeros((4, 4, 1), np.uint8), "label": int(a)} for a in truth]
    store = store_of(tmp_path / "s.tsds", Samples(made), CLASSES, workers=0)
    add_labels(store.path, "prediction", guess)
    opened = tab()
    opened.page.goto(view(store.path) + "#view=confusion")
    opened.page.wait_for_selector(".confusion")
    shown = [
        [0 if text == "·" else int(text) for text in row.locator("td").all_inner_texts()]
        for row in opened.page.locator(".confusion tbody tr").all()
    ]
    expected = np.zeros((3, 3), int)
    np.add.at(expected, (truth, guess), 1)
    assert shown == expected.tolist()
    opened.page.get_by_label(f"ant predicted as cow: {expected[0, 2]}").click()
    opened.settle()
    assert opened.items == np.flatnonzero((truth == 0) & (guess == 2)).tolist()


def add_labels(path: Path, name: str, values: Any) -> None:
    tsds.editing.add_fields(path, {name: values}, classes={name: CLASSES})
