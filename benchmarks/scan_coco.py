"""Scanning JSON as large as COCO's ``instances_train2017.json``: made-up objects of images that are empty files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.measure import Figure, Settings, as_result, in_fresh_process, peak_nbytes
from tensorstore_ds.sources import open_source

SECONDS, GIGABYTES = 30, 1
_IMAGES, _OBJECTS, _CLASSES, _CORNERS = 118_287, 860_001, 80, 23


def measure(settings: Settings) -> dict[str, Any]:
    """In a fresh process, whose memory is its own."""
    folder = settings.scratch / "coco"
    nbytes = _write(folder)
    scanned = in_fresh_process(scan, folder)
    note = f"{_IMAGES:,} images, {nbytes / 1e6:.0f} MB of JSON"
    figures = [
        Figure(f"scan COCO's JSON of {_OBJECTS:,} objects: time", scanned["seconds"], SECONDS, "s", 1, note=note),
        Figure(f"scan COCO's JSON of {_OBJECTS:,} objects: memory", scanned["rss"] / 1e9, GIGABYTES, "GB"),
    ]
    return as_result(figures)


def _write(folder: Path) -> int:
    random = Random(0)  # noqa: S311
    (folder / "train2017").mkdir(parents=True)
    (folder / "annotations").mkdir()
    path = folder / "annotations" / "instances_train2017.json"
    names = [f"{i:012d}.jpg" for i in range(_IMAGES)]
    for name in names:
        (folder / "train2017" / name).touch()
    with path.open("w") as file:
        images = [{"id": i, "file_name": name, "height": 480, "width": 640} for i, name in enumerate(names)]
        file.write(f'{{"info": {{}}, "images": {json.dumps(images)}, "annotations": [')
        for i in range(_OBJECTS):
            ring = [round(random.uniform(0, 480), 2) for _ in range(2 * _CORNERS)]
            box = [round(random.uniform(1, 240), 2) for _ in range(4)]
            one = {"segmentation": [ring], "area": 702.1, "iscrowd": 0, "image_id": random.randrange(_IMAGES)}
            file.write(f"{', ' if i else ''}{json.dumps({**one, 'bbox': box, 'category_id': i % _CLASSES, 'id': i})}")
        categories = [{"id": i, "name": f"class {i}"} for i in range(_CLASSES)]
        file.write(f'], "categories": {json.dumps(categories)}}}')
    return path.stat().st_size


def scan(folder: Path) -> dict[str, float]:
    """Time and memory of a scan."""
    began = time.perf_counter()
    contents = open_source(folder).scan()
    seconds = time.perf_counter() - began
    assert len(contents.splits["train"]) == _IMAGES
    assert not contents.problems
    return {"seconds": seconds, "rss": peak_nbytes()}
