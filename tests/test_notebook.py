"""What a notebook shows of stores, splits and data sets."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import VALID
from stores import store_of
from tensorstore_ds import words

CLASSES = ["<b>ant</b>", "bee"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = [{"image": np.full((6, 5, 3), i * 9, np.uint8), "label": int(i > 15)} for i in range(20)]
    return store_of(tmp_path_factory.mktemp("notebook") / "s.tsds", samples, CLASSES).path


def picture(html: str) -> Image.Image:
    (data,) = re.findall(r'src="data:image/png;base64,([^"]*)"', html)
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_facts_and_a_sheet(path: Path) -> None:
    store = tsds.open(path)
    dataset = tsds.StoreDataset(path)
    for shown, samples in ((store, 20), (store["train"], 20), (dataset, 20), (dataset.subset([3, 4]), 2)):
        html = shown._repr_html_()
        assert "uint8 6 x 5 x 3" in html and re.findall(r"(\d+) samples", html) == [str(samples)]
        assert "&lt;b&gt;ant&lt;/b&gt; 16, bee 4" in html and "<b>ant" not in html
        assert picture(html).width > 100


def test_the_sheet_shows_the_samples_of_a_subset(path: Path) -> None:
    dataset, split = tsds.StoreDataset(path), tsds.open(path)["train"]
    for rows in ([3, 4], [19, 0, 7], list(range(1, 13))):
        np.testing.assert_array_equal(picture(dataset.subset(rows)._repr_html_()), tsds.preview(split, rows))
    assert "<img" not in dataset.subset([])._repr_html_()


def test_classes_are_counted_by_name(path: Path) -> None:
    assert tsds.open(path)["train"].class_counts == {"label": {"<b>ant</b>": 16, "bee": 4}}
    counts = {name: tsds.open(VALID / name)["train"].class_counts for name in ("detection.tsds", "masks.tsds")}
    assert counts["detection.tsds"]["objects"]["cat"] == 2
    masks = tsds.open(VALID / "masks.tsds")["train"].column("mask")[:]
    assert list(counts["masks.tsds"]["mask"].values())[1] == np.count_nonzero(masks == 1) > 0


def test_progress_is_shown(path: Path, tmp_path: Path) -> None:
    """In a real kernel, as a browser would get it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [
        "import numpy as np, tensorstore_ds as tsds",
        f"tsds.verify({str(path)!r})",
        f"tsds.warm(tsds.open({str(path)!r}))",
        "samples = ({'image': np.zeros((2, 2, 3), np.uint8)} for _ in range(7))",
        f"made = tsds.convert(samples, {str(tmp_path / 'made.tsds')!r})",
        f"repacked = tsds.repack({str(path)!r}, {str(tmp_path / 'repacked.tsds')!r}, layout='zarr')",
        f"told = []; made = tsds.verify({str(path)!r}, progress=lambda *given: told.append(given)); len(told) > 0",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=60).execute()
    shown = [[dict(output.get("data", {})) for output in cell.outputs] for cell in notebook.cells]
    size = words.size(tsds.open(path).nbytes)
    last = [outputs[0]["text/plain"] if outputs else "" for outputs in shown]
    assert last[1].startswith("Checking") and last[1].count(size) == 2
    assert last[2].startswith("Warming")
    assert last[4].startswith("Converting 7/7 · ")
    assert last[5] == "Repacking 20/20"
    assert [output["text/plain"] for output in shown[6]] == ["True"]  # who gives a function draws alone
    assert re.fullmatch(r'<progress max="7" value="7"></progress> Converting 7/7 · .*', shown[4][0]["text/html"])


def test_elsewhere_nothing_is_shown(path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tsds.verify(path)
    tsds.repack(path, tmp_path / "r.tsds", layout="zarr")
    tsds.convert(({"image": np.zeros((2, 2, 3), np.uint8)} for _ in range(3)), tmp_path / "s.tsds")
    assert capfd.readouterr() == ("", "")


def test_events_can_be_printed(path: Path, tmp_path: Path) -> None:
    seen: list[tsds.conversion.Progress] = []
    tsds.repack(path, tmp_path / "r.tsds", layout="zarr", progress=seen.append)
    assert str(seen[-1]) == "Repacking 20/20"
    assert str(tsds.conversion.Progress("convert", 1200, 60_000, 3_700_000)) == "Converting 1,200/60,000 · 3.7 MB"


def test_without_pictures_the_facts_are_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise tsds.OptionError("nothing <to> draw")

    monkeypatch.setattr(tsds, "preview", damaged)
    html = tsds.open(path)["train"]._repr_html_()
    assert "nothing &lt;to&gt; draw" in html and "<img" not in html


def test_samples_without_a_label(tmp_path: Path) -> None:
    image = np.zeros((6, 5, 3), np.uint8)
    split = store_of(tmp_path / "s.tsds", [(image, label) for label in (0, -1, None, 1)], ["ant", "bee"])["train"]
    assert split.class_counts == {"label": {"ant": 1, "bee": 1}} and split.unlabelled == {"label": 2}
    assert "ant 1, bee 1; 2 unlabelled" in split._repr_html_()
    assert "unlabelled" not in store_of(tmp_path / "t.tsds", [(image, 0)], ["ant"])["train"]._repr_html_()
