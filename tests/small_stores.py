"""Small stores and sources that tests begin with, and the `tsds` command to run on them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from click.testing import CliRunner, Result
from PIL import Image

from tsds_cli.main import cli

ROOT = Path(__file__).parents[1]
VALID = ROOT / "formats" / "v1" / "conformance" / "valid"
INVALID = VALID.with_name("invalid")

sys.path.append(str(VALID.parent))
from plain_store import (  # noqa: E402
    CHUNK_SIZE,
    Shard,
    Store,
    contents,
    dump_json,
    manifest,
    root,
    sealed,
    shard_groups,
)
from valid_stores import JPEG_8X8, encoded_image, image_table  # noqa: E402, F401


def tsds(*arguments: object) -> Result:
    """Run the command in this process; an exception that is a defect is raised."""
    return CliRunner().invoke(cli, [str(a) for a in arguments], catch_exceptions=False)


def write_store(path: Path, fields: dict[str, Any], *splits: tuple[str, int, dict[str, Any]], **extra: Any) -> Path:
    """Write a store with the conformance stores' own writer: (split, rows, arrays by path) each.

    `statistics` of every split and `chunk_size` are keywords of their own; others become members of the manifest.
    """
    statistics = {name: extra.get("statistics", {}) for name, _, _ in splits}
    extra.pop("statistics", None)
    chunk_size = extra.pop("chunk_size", CHUNK_SIZE)
    shards = {name: [Shard(rows, arrays)] for name, rows, arrays in splits}
    return write_plain(path, Store(fields, shards, statistics=statistics, extra=extra, chunk_size=chunk_size))


def write_plain(path: Path, store: Store) -> Path:
    """Write a store with the conformance stores' own writer."""
    files = contents(store)
    files |= shard_groups(store, files)
    files["zarr.json"] = sealed(dump_json(root(manifest(store, files))))
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def relist(store: Path, path: str) -> None:
    """Let a store list the bytes that one of its files has now, as one who forges a store would."""
    document = json.loads((store / "zarr.json").read_bytes())
    listing = document["attributes"]["tsds"]
    data = (store / path).read_bytes()
    entry = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if path.count("/") < 2:
        listing["files"][path] = entry
    else:
        split, number, name = path.split("/", 2)
        shard, group = listing["splits"][split]["shards"][int(number)], store / split / number / "zarr.json"
        if name != "zarr.json":
            own = json.loads(group.read_bytes())
            own["attributes"]["tsds"]["files"][name] = entry
            group.write_bytes(dump_json(own))
        text = group.read_bytes()
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, RecursionError):  # if damaged
            files = json.loads(text)["attributes"]["tsds"]["files"]
            shard["nbytes"] = len(text) + sum(file["size"] for file in files.values())
        shard["sha256"] = hashlib.sha256(text).hexdigest()
    (store / "zarr.json").write_bytes(sealed(dump_json(root(listing))))


def image_field(images: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The manifest's member for images kept as pixels."""
    return {"kind": "image", "encoding": "raw", "dtype": images.dtype.name, "shape": list(images.shape[1:])}


def label_field(*classes: str) -> dict[str, Any]:
    """The manifest's member for labels."""
    return {"kind": "label", "dtype": "int64", "shape": [], "classes": list(classes)}


def class_folders(path: Path, *classes: str, count: int = 3, size: tuple[int, int] = (12, 10)) -> Path:
    """Write `count` noisy PNG images of (height, width) for each class."""
    rng = np.random.default_rng(0)
    for name in classes:
        (path / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(rng.integers(0, 256, (*size, 3), np.uint8)).save(path / name / f"{i}.png")
    return path


def voc(path: Path, *names: str, boxes: Sequence[tuple[str, int, int, int, int]] = (("cat", 1, 2, 8, 9),)) -> Path:
    """Write images of 10 x 12 pixels (height x width) with Pascal VOC annotations."""
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        "</bndbox></object>"
        for name, x1, y1, x2, y2 in boxes
    )
    for folder in ("Annotations", "JPEGImages"):
        (path / folder).mkdir(parents=True)
    for name in names:
        Image.new("RGB", (12, 10), (90, 120, 30)).save(path / "JPEGImages" / f"{name}.png")
        text = f"<annotation><filename>{name}.png</filename>{objects}</annotation>"
        (path / "Annotations" / f"{name}.xml").write_text(text, "utf-8")
    return path


def instructions(module: str, function: Callable[[], object]) -> int:
    """How many instructions of a module a call runs."""
    count, before = 0, sys.gettrace()

    def inside(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return inside

    def trace(frame: FrameType, *_: object) -> Any:
        if not frame.f_code.co_filename.endswith(module):
            return None
        frame.f_trace_opcodes = True
        return inside

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
