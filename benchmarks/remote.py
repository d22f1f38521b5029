"""Requests and bytes that a reader over http needs: to open a store of a million rows, and for one sample."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.measure import Figure, Settings, as_result
from benchmarks.open_large import FIELDS, write_sparse_store
from benchmarks.range_server import served
from tensorstore_ds.format.kinds import EncodedImageField

ROWS, SHARDS = 1_000_000, (1, 200)
ROW = 777_777
_READER = Path(__file__).parents[1] / "formats/v1/examples/minimal_reader.py"


def measure(settings: Settings) -> dict[str, Any]:
    """With the reader of `formats/v1/examples`, which trusts the manifest, from a server on this machine."""
    reader, figures = _minimal_reader(), []
    for image, fields, most in (
        ("224x224x3 raw", FIELDS, 1),
        ("a file of 50 kB", {**FIELDS, "image": EncodedImageField(encoding="jpeg")}, 2),
    ):
        for shards in SHARDS:
            store = settings.scratch / f"{shards}-{most}.tsds"
            write_sparse_store(store, {"train": ROWS}, -(-ROWS // shards), fields)
            with served(store) as server:
                opened = reader.Store(server.url)
                begun = len(server.requests)
                counted = {}
                for field in ("image", "label", "key"):
                    before = len(server.requests)
                    opened.sample("train", ROW, [field])
                    counted[field] = server.requests[before:]
            where = f"{ROWS:,} rows in {shards} shard{'s' if shards > 1 else ''}"
            note = f"{sum(nbytes for _, nbytes in server.requests[:begun]):,} bytes"
            figures.append(Figure(f"{where}, {image}: requests to open", begun, 1, "", 0, note=note))
            others = [f"{name}: {len(counted[name])} for {_nbytes(counted[name])}" for name in ("label", "key")]
            note, what = "; ".join([_nbytes(counted["image"]), *others]), f"{where}, {image}: requests for an image"
            figures.append(Figure(what, len(counted["image"]), most, "", 0, note=note))
    return as_result(figures)


def _nbytes(requests: list[tuple[str, int]]) -> str:
    return f"{sum(nbytes for _, nbytes in requests):,} bytes"


def _minimal_reader() -> ModuleType:
    spec = importlib.util.spec_from_file_location("minimal_reader", _READER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
