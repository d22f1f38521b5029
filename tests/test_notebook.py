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
from stores import store_of

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
    for shown in (store, store["train"], tsds.StoreDataset(path), tsds.StoreDataset(path).subset([3, 4])):
        html = shown._repr_html_()
        assert ("uint8 6 x 5 x 3" in html and "20 samples" in html) or "2 samples" in html
        assert "&lt;b&gt;ant&lt;/b&gt; 16, bee 4" in html and "<b>ant" not in html
        assert picture(html).width > 100


def test_without_pictures_the_facts_are_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(*_: object, **__: object) -> None:
        raise tsds.OptionError("nothing <to> draw")

    monkeypatch.setattr(tsds, "preview", damaged)
    html = tsds.open(path)["train"]._repr_html_()
    assert "nothing &lt;to&gt; draw" in html and "<img" not in html
