"""The example `minimal_reader.py`: ``python minimal_python.py STORE STAGE``. For the valid stores."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from answer import accepted

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from minimal_reader import Store


def arrays(name: str, spec: Mapping[str, Any], rows: int, lengths: Mapping[str, int]) -> Iterator[tuple[str, Any, int]]:
    """Path, entry in the manifest, and number of rows of every array of a field, or of a value of one."""
    if "values" not in spec and not spec.get("ragged"):
        yield name, spec, rows
        return
    yield f"{name}/offsets", {"dtype": "int64", "shape": []}, rows + 1
    for key, each in (spec.get("values") or {"items": {**spec, "ragged": False}}).items():
        yield from arrays(f"{name}/{key}", each, lengths[name], lengths)
    for key, each in spec.get("per_row", {}).items():
        yield from arrays(f"{name}/{key}", each, rows, lengths)


def main(place: str) -> None:
    """Read every array whole."""
    store, found = Store(place), {}
    for split, entry in store.manifest["splits"].items():
        for number, shard in enumerate(entry["shards"]):
            path = f"{split}/{shard.get('number', number):05d}"
            for field in store.readable():
                spec = store.manifest["fields"][field]
                for name, each, rows in arrays(field, spec, shard["rows"], shard["lengths"]):
                    found[f"{path}/{name}"] = store.rows({**shard, "path": path}, name, each, rows, 0, rows)
    accepted(found)


if __name__ == "__main__":
    main(sys.argv[1])
