"""A reader of tsds stores, to be copied: ``python minimal_reader.py STORE SPLIT ROW [FIELD ...]``; STORE may be a URL.

It trusts the manifest (spec.md, 7.2): one request opens a store, one reads a row of pixels, two an image file.
"""

import hashlib
import json
import math
import re
import sys
import urllib.request
from pathlib import Path

import numpy as np

KNOWN = {"memmap", "zarr", "float16", "float32", "float64", *(f"{u}int{8 << i}" for u in ("", "u") for i in range(4))}


class Store:
    """A store of format 1.x at a path, or at a URL whose server answers ranges; `manifest` says what it holds."""

    def __init__(self, place):
        self.folder, self.url = Path(place).resolve(), place if re.match("https?://", str(place)) else None
        data = self.fetch("zarr.json", 0, 64 * 2**20)
        root = json.loads(data)["attributes"]
        self.manifest, digest = root["tsds"], root["tsds_sha256"].encode()
        need(re.fullmatch(r"1\.\d+", self.manifest["format_version"]), f"{place}: not of format 1, use another reader.")
        need(
            not self.manifest.get("requires"), f"{place}: requires {self.manifest.get('requires')}, use another reader."
        )
        hashed = hashlib.sha256(data.replace(digest, b"0" * 64)).hexdigest().encode()
        need(hashed == digest and data.count(digest) == 1, f"{place}: zarr.json was changed: its digest is another.")

    def sample(self, split, row, fields=None):
        """Fields of a row, all if None; tables are dicts of arrays. `image/shape` names an array that is `per_row`."""
        for number, shard in enumerate(self.manifest["splits"][split]["shards"]):
            if 0 <= row < shard["rows"]:
                shard, found = {**shard, "path": f"{split}/{shard.get('number', number):05d}"}, {}
                for path in fields or self.readable():
                    name, _, part = path.partition("/")
                    spec = self.manifest["fields"][name]["per_row"][part] if part else self.manifest["fields"][name]
                    found[path] = self.rows(shard, path, spec, shard["rows"], row, row + 1)[0]
                return found
            row -= shard["rows"]
        raise IndexError(f"{split} has no such row.")

    def readable(self):
        """Names of the fields of known data types and layouts; the others are left alone (spec.md, 4.2)."""
        for name, field in self.manifest["fields"].items():
            specs = [] if field.get("requires") else [field, *field.get("values", {}).values()]
            if specs and {spec[key] for spec in specs for key in ("dtype", "layout") if key in spec} <= KNOWN:
                yield name

    def rows(self, shard, path, spec, count, start, stop):
        """Rows [start, stop) of `count`: an array; of a ragged value a list of arrays, of a table a list of dicts."""
        if "values" in spec or spec.get("ragged"):
            offsets, length = {"dtype": "int64", "shape": []}, shard["lengths"][path]
            ends = self.rows(shard, f"{path}/offsets", offsets, count + 1, start, stop + 1).tolist()
            need(ends[0] >= 0 and ends == sorted(ends) and ends[-1] <= length, f"{path}: its offsets are damaged.")
            values = spec.get("values") or {"items": {**spec, "ragged": False}}
            parts = {key: self.rows(shard, f"{path}/{key}", values[key], length, ends[0], ends[-1]) for key in values}
            spans = [slice(ends[i] - ends[0], ends[i + 1] - ends[0]) for i in range(stop - start)]
            found = [{key: part[span] for key, part in parts.items()} for span in spans]
            return found if "values" in spec else [row["items"] for row in found]
        dtype, file = np.dtype(spec["dtype"]).newbyteorder("<"), f"{shard['path']}/{path}/c" + "/0" * len(spec["shape"])
        nbytes = math.prod(spec["shape"]) * dtype.itemsize
        if start == stop:
            return np.empty((0, *spec["shape"]), dtype)
        if spec.get("layout", self.manifest["layout"]) == "zarr":
            data = self.unpack(f"{file}/0", nbytes, count, start, stop)
        else:
            data = self.fetch(f"{file}/0", start * nbytes, (stop - start) * nbytes)
        need(len(data) == (stop - start) * nbytes, f"{file}/0 is too short. Copy the store again.")
        return np.frombuffer(data, dtype).reshape(stop - start, *spec["shape"])

    def unpack(self, file, nbytes, count, start, stop):
        """Rows of a compressed array: the index at the end of its file says where their chunks are."""
        need(sys.version_info >= (3, 14), f"{file} is compressed: use Python 3.14, or `tsds repack --layout memmap`.")
        from compression import zstd

        chunk_size = self.manifest["chunk_size"]
        chunk_rows = -(-count // min(max(1, (count * nbytes + chunk_size // 2) // chunk_size), count))
        chunks, first, limit, data = -(-count // chunk_rows), start // chunk_rows, chunk_rows * nbytes, b""
        index = np.frombuffer(self.fetch(file, -16 * chunks - 4, 16 * chunks), "<u8").reshape(chunks, 2)
        for offset, size in index[first : (stop - 1) // chunk_rows + 1].tolist():
            data += zstd.ZstdDecompressor().decompress(self.fetch(file, offset, min(size, 2 * limit + 1024)), limit)
        return data[start * nbytes - first * limit : stop * nbytes - first * limit]

    def fetch(self, file, start, size):
        """At most `size` bytes of a file from `start`, which counts from its end if it is negative."""
        need(re.fullmatch(r"([a-z0-9_-]+/)*([a-z0-9_-]+|zarr\.json)", file), f"{file!r} is no path in a store.")
        if self.url:
            span = f"bytes={start}-{start + size - 1}" if start >= 0 else f"bytes={start}"
            request = urllib.request.Request(f"{self.url.rstrip('/')}/{file}", headers={"Range": span})  # noqa: S310
            with urllib.request.urlopen(request) as answer:  # noqa: S310
                need(answer.status == 206 or start == 0, f"{self.url}: this server does not answer ranges.")
                return answer.read(size)
        need((self.folder / file).resolve() == self.folder / file, f"{file} is a symbolic link.")
        with open(self.folder / file, "rb") as data:
            data.seek(start, 0 if start >= 0 else 2)
            return data.read(size)


def need(sound, message):
    """Refuse what is not sound."""
    if not sound:
        raise ValueError(message)


if __name__ == "__main__":
    print(Store(sys.argv[1]).sample(sys.argv[2], int(sys.argv[3]), sys.argv[4:]))
