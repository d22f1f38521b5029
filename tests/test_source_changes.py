"""What changes in a source between two runs of a conversion makes finished shards stale, and what does not."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from stores import png_bytes
from tensorstore_ds.conversion.options import ConvertOptions

NAMES = [f"{i}.png" for i in range(6)]
OPTIONS = ConvertOptions(workers=0, shard_nbytes=60)  # two images of 6x5


def images(root: Path) -> None:
    root.mkdir()
    for i, name in enumerate(NAMES):
        (root / name).write_bytes(png_bytes(np.full((6, 5), i, np.uint8)))


def voc(root: Path) -> Path:
    images(root)
    for name in NAMES:
        corners = "<xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax>"
        found = f"<object><name>cat</name><bndbox>{corners}</bndbox></object>"
        (root / f"{name[0]}.xml").write_text(f"<annotation>{found}</annotation>")
    return root


def imglab(root: Path) -> Path:
    images(root)
    box = "<box top='1' left='1' width='3' height='3'/>"
    entries = "".join(f"<image file='{name}'>{box}</image>" for name in NAMES)
    (root / "d.xml").write_text(f"<dataset><images>{entries}</images></dataset>")
    return root / "d.xml"


def listed(root: Path) -> Path:
    images(root)
    lines = "".join(f"{name},{i % 2},1,1,3,3\n" for i, name in enumerate(NAMES))
    (root / "l.csv").write_text(f"path,label,x,y,w,h\n{lines}")
    return root / "l.csv"


def arrays(root: Path) -> Path:
    root.mkdir()
    np.save(root / "images.npy", np.arange(180, dtype=np.uint8).reshape(6, 6, 5))
    np.save(root / "labels.npy", np.arange(6) % 2)
    return root


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        text = (root / name).read_text()
        assert old in text
        (root / name).write_text(text.replace(old, new))

    return change


def append(name: str, more: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / "8.png").write_bytes(png_bytes(np.full((6, 5), 8, np.uint8)))
        (root / name).write_text((root / name).read_text() + more)

    return change


def labels(root: Path) -> None:
    np.save(root / "labels.npy", (np.arange(6) + 1) % 2)


@pytest.mark.parametrize(
    ("make", "change", "resumed"),
    [
        (voc, edit("0.xml", "<xmax>4<", "<xmax>5<"), 1),
        (imglab, edit("d.xml", "width='3'", "width='4'"), 0),  # of every image
        (imglab, edit("d.xml", "<images>", "<images>\n"), 2),
        (imglab, lambda root: None, 2),
        (listed, append("l.csv", "8.png,1,1,1,3,3\n"), 2),
        (listed, edit("l.csv", "2.png,0,", "2.png,1,"), 1),
        (listed, edit("l.csv", "2.png,0,1", "2.png,0,2"), 1),
        (listed, edit("l.csv", "x,y,w,h", "x1,y1,x2,y2"), 0),  # the same numbers mean other boxes
        (arrays, lambda root: None, 2),
        (arrays, labels, 0),
    ],
)
def test_a_change_is_noticed(
    tmp_path: Path, make: Callable[[Path], Path], change: Callable[[Path], None], resumed: int
) -> None:
    source = make(tmp_path / "src")

    def stop(progress: tsds.conversion.Progress) -> None:
        if progress.done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tsds.convert(source, tmp_path / "s.tsds", OPTIONS, progress=stop)
    time.sleep(0.02)  # file systems have clocks of their own, which are coarse
    change(tmp_path / "src")
    summary = tsds.convert(source, tmp_path / "s.tsds", OPTIONS)
    assert summary.resumed == resumed
    tsds.convert(source, tmp_path / "fresh.tsds", OPTIONS)
    stores = [tsds.open(tmp_path / name) for name in ("s.tsds", "fresh.tsds")]
    assert stores[0].manifest.splits == stores[1].manifest.splits
    assert stores[0].manifest.fields == stores[1].manifest.fields
