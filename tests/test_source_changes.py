"""What changes in a source between two runs of a conversion makes finished shards stale, and what does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import npy, write
from stores import contents, interrupted, png_bytes
from tensorstore_ds.conversion import convert
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.values import Fit, ImageTiles, ObjectCrops

PIXELS, LABELS = np.arange(180, dtype=np.uint8).reshape(6, 6, 5), np.arange(6) % 2
IMAGES = {f"{i}.png": png_bytes(image) for i, image in enumerate(PIXELS)}
CORNERS = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax></bndbox>"
XML = f"<annotation><object><name>cat</name>{CORNERS}</object></annotation>"
FACE = "<image file='{}'><box top='1' left='1' width='3' height='3'/></image>"
FACES = f"<dataset><images>{''.join(map(FACE.format, IMAGES))}</images></dataset>"
LINES = "path,label,x,y,w,h\n" + "".join(f"{name},{i % 2},1,1,3,3\n" for i, name in enumerate(IMAGES))
SOURCES: dict[str, dict[str, str | bytes]] = {
    "voc": {**IMAGES, **{f"{i}.xml": XML for i in range(6)}},
    "imglab": {**IMAGES, "d.xml": FACES},
    "list": {**IMAGES, "8.png": IMAGES["0.png"], "l.csv": LINES},
    "arrays": {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS)},
}


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("format", "name", "changed", "resumed"),
    [
        ("voc", "0.xml", XML.replace("<xmax>4<", "<xmax>5<"), 1),
        ("imglab", "d.xml", FACES.replace("width='3'", "width='4'"), 0),  # of every image
        ("imglab", "d.xml", FACES.replace("<images>", "<images>\n"), 2),
        ("imglab", "", "", 2),
        ("list", "l.csv", f"{LINES}8.png,1,1,1,3,3\n", 2),
        ("list", "l.csv", LINES.replace("2.png,0,", "2.png,1,"), 1),
        ("list", "l.csv", LINES.replace("2.png,0,1", "2.png,0,2"), 1),
        ("list", "l.csv", LINES.replace("x,y,w,h", "x1,y1,x2,y2"), 0),  # the same numbers mean other boxes
        ("arrays", "", "", 2),
        ("arrays", "labels.npy", npy((LABELS + 1) % 2), 0),
    ],
)
def test_a_change_is_noticed(tmp_path: Path, format: str, name: str, changed: str | bytes, resumed: int) -> None:
    options = ConvertOptions(workers=0, shard_nbytes=60)  # two images
    source = write(tmp_path / "src", SOURCES[format])
    interrupted(source, tmp_path / "s.tsds", 6, options)
    time.sleep(0.02)  # file systems have clocks of their own, which are coarse
    write(source, {name: changed} if name else {})
    assert tsds.convert(source, tmp_path / "s.tsds", options).resumed == resumed
    tsds.convert(source, tmp_path / "fresh.tsds", options)
    assert contents(tmp_path / "s.tsds") == contents(tmp_path / "fresh.tsds")


def test_a_change_after_the_scan_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ConvertOptions(workers=0, shard_nbytes=60)
    source, prepare = write(tmp_path / "src", SOURCES["arrays"]), convert.prepare

    def prepared(*args: Any, **kwargs: Any) -> Any:
        found = prepare(*args, **kwargs)
        time.sleep(0.02)  # file systems have clocks of their own, which are coarse
        write(source, {"labels.npy": npy((LABELS + 1) % 2)})
        return found

    with monkeypatch.context() as patch:
        patch.setattr(convert, "prepare", prepared)
        interrupted(source, tmp_path / "s.tsds", 6, options)
    assert tsds.convert(source, tmp_path / "s.tsds", options).resumed == 0
    tsds.convert(source, tmp_path / "fresh.tsds", options)
    assert contents(tmp_path / "s.tsds") == contents(tmp_path / "fresh.tsds")


@pytest.mark.parametrize(
    ("cut", "size", "changed"),
    [
        (ImageTiles((3, 5), overlap=0), (3, 5), LINES.replace("2.png,0,", "2.png,1,")),
        (ObjectCrops(), (6, 5), LINES.replace("2.png,0,1", "2.png,0,2")),
    ],
)
def test_a_change_of_a_list_is_noticed_in_parts_of_images(
    tmp_path: Path, cut: ImageTiles | ObjectCrops, size: tuple[int, int], changed: str
) -> None:
    options = ConvertOptions(workers=0, shard_nbytes=64, cut=cut, fit=Fit(size))  # parts of two images
    source = write(tmp_path / "src", SOURCES["list"])
    interrupted(source, tmp_path / "s.tsds", 12 * 15 // (size[0] * size[1]), options)
    write(source, {"l.csv": changed})
    assert tsds.convert(source, tmp_path / "s.tsds", options).resumed == 1
    tsds.convert(source, tmp_path / "fresh.tsds", options)
    assert contents(tmp_path / "s.tsds") == contents(tmp_path / "fresh.tsds")
