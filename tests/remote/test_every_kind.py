"""A store of every encoding, kind and layout, read by URL, is what the store on disk is, in every way of reading it."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.reading import mirror

pytestmark = pytest.mark.usefixtures("cache")

ROWS = 11
Samples = list[Mapping[str, Any]]


def pixels(row: int, *, varied: bool = False) -> np.ndarray[Any, Any]:
    height, width = (24 + 4 * (row % 3), 32) if varied else (24, 32)
    return np.random.default_rng(row).integers(0, 256, (height, width, 3), np.uint8)


def jpeg(row: int, **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(row, varied=True)).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def labelled(image: Callable[[int], Any]) -> Samples:
    return [{"image": image(row), "label": row % 2} for row in range(ROWS)]


def with_others(others: Callable[[int], Mapping[str, Any]]) -> Samples:
    return [{"image": pixels(row), **others(row)} for row in range(ROWS)]


def objects(row: int) -> Mapping[str, Any]:
    m, rng = row % 4, np.random.default_rng(row)
    corner = rng.uniform(0, 9, (m, 2))
    boxes = np.concatenate([corner, corner + 5], axis=1)
    shapes = [np.array([[a, b], [c, b], [c, d]])[: 3 * (i % 2)] for i, (a, b, c, d) in enumerate(boxes.tolist())]
    return {
        "boxes": boxes,
        "labels": rng.integers(0, 2, m),
        "keypoints": rng.uniform(0, 20, (m, 3, 2)),
        "difficult": rng.integers(0, 2, m),
        "polygons": shapes,
    }


def no_objects(_row: int) -> Mapping[str, Any]:
    return {"boxes": np.empty((0, 4)), "labels": np.empty(0, np.int64), "keypoints": np.empty((0, 3, 2))}


ENCODED: Mapping[str, tuple[Samples, dict[str, Any]]] = {
    "raw": (labelled(pixels), {"encoding": "raw"}),
    "raw of several sizes": (labelled(lambda row: pixels(row, varied=True)), {"encoding": "raw"}),
    "jpeg": (labelled(lambda row: pixels(row, varied=True)), {"encoding": "jpeg"}),
    "source": (labelled(jpeg), {"encoding": "source"}),
    "source with restart markers": (labelled(lambda row: jpeg(row, restart_marker_rows=1)), {"encoding": "source"}),
    "source, some with markers": (
        labelled(lambda row: jpeg(row, **({"restart_marker_rows": 1} if row > 6 else {}))),
        {"encoding": "source"},
    ),
}
KINDS: Mapping[str, tuple[Samples, dict[str, Any]]] = {
    "no label": (with_others(lambda row: {"label": None if row % 3 else 1}), {}),
    "objects": (with_others(objects), {}),
    "no objects": (with_others(no_objects), {}),
    "objects of the last rows": (with_others(lambda row: objects(row if row > 7 else 0)), {}),
    "mask": (with_others(lambda row: {"mask": (pixels(row)[..., 0] % 2).astype(np.uint8)}), {}),
    "captions": (with_others(lambda row: {"captions": ["a text é", ""][: row % 3]}), {}),
    "no captions": (with_others(lambda row: {"captions": []}), {}),
    "arrays": (with_others(lambda row: {"depth": np.full((2, 3), row, np.float32), "weight": row / 2}), {}),
}
CASES = {**ENCODED, **KINDS}


def plain(value: Any) -> Any:
    """A value as what can be compared."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tobytes()
    if dataclasses.is_dataclass(value):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def columns(split: tsds.Split) -> Any:
    rows = [4, 0, len(split) - 1, 4]
    singles = [split[row] for row in (0, len(split) - 1)]
    return [singles, {name: [split[name][1], split[name].take(rows), split[name][2:5]] for name in split.fields}]


def batches(place: Any, **options: Any) -> Any:
    loader = tsds.DataLoader(tsds.StoreDataset(place, "train", fields=None), batch_size=4, shuffle=True, **options)
    return plain([batch if isinstance(batch, Mapping) else list(batch) for batch in loader])


def torch_batches(place: Any, **options: Any) -> Any:
    dataset = tsds.StoreDataset(place, "train", **options)
    return plain(list(torch.utils.data.DataLoader(dataset, 4, collate_fn=list)))


def dataset_of(place: Any) -> Any:
    dataset = tsds.StoreDataset(place, "train")
    return plain([dataset[row] for row in range(ROWS)])


def tiles_of(place: Any) -> Any:
    tiles = tsds.Tiles(tsds.StoreDataset(place, "train"), (16, 20))
    return plain(list(tsds.DataLoader(tiles, batch_size=4, shuffle=True)))


WAYS: Mapping[str, Callable[[Any], Any]] = {
    "columns": lambda place: columns(tsds.open(place)["train"]),
    "data set": dataset_of,
    "torch's loader": torch_batches,
    "list": lambda place: batches(place, collate="list", collate_images="list"),
    "padded": lambda place: batches(place, collate="padded", collate_images="list"),
    "packed": lambda place: batches(place, collate="packed", collate_images="list"),
    "tiles": tiles_of,
    "plan": lambda place: batches(place, decode=tsds.Compose([tsds.Resize(16), tsds.CenterCrop(12)])),
    "random plan": lambda place: batches(place, decode=tsds.RandomResizedCrop(8)),
    "torch's loader with a plan": lambda place: torch_batches(place, decode=tsds.RandomResizedCrop(8)),
}


@pytest.mark.drawn(10)
@pytest.mark.parametrize("layout", ["memmap", "zarr"])
@pytest.mark.parametrize("name", CASES)
def test_by_url_as_on_disk(name: str, layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples, options = CASES[name]
    is_named = {"label", "labels", "mask"} & samples[0].keys()
    path = tmp_path / "s.tsds"
    options = {"layout": layout, "shard_nbytes": 8_000, **options}
    store = store_of(path, samples, ["a", "b"] if is_named else [], **options)
    assert len(store.manifest.splits["train"].shards) > 1
    expected = {way: plain(WAYS[way](path)) for way in WAYS}
    with tsds.serve(path) as url:
        for small_nbytes, place in ((0, url), (4 * 1024**2, path.as_uri())):
            monkeypatch.setattr(mirror, "SMALL_NBYTES", small_nbytes)
            for way, read in WAYS.items():  # each with an empty cache: nothing that was read before helps
                monkeypatch.setenv("TSDS_CACHE_DIR", str(tmp_path / f"cache-{small_nbytes}" / way))
                assert plain(read(place)) == expected[way], (way, place)
        assert tsds.verify(url) == []
