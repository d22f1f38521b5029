"""Peak memory of converting one large tiled TIFF file: ``python -m benchmarks.tiff_memory SCRATCH [SIDE ...]``.

Each conversion runs in a process of its own, whose peak of resident memory is read at its end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from numpy.typing import NDArray

import tensorstore_ds as tsds
from benchmarks.measure import in_fresh_process, peak_nbytes, table

SIDES = (5_000, 20_000, 40_000)
TILE = 256
#: Keywords of each conversion by its name in the table.
WAYS: dict[str, dict[str, Any]] = {
    "`--encoding raw`": {"encoding": "raw"},
    "`--encoding jpeg`": {"encoding": "jpeg"},
    "`--tiles 512 --encoding jpeg`": {"encoding": "jpeg", "cut": tsds.conversion.ImageTiles(512)},
}


def tiles(side: int) -> Iterator[NDArray[np.uint8]]:
    """Tiles of smooth colors with noise, as photographs have, from left to right and top to bottom."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 24, (TILE, TILE, 3), np.uint8)
    ramp = np.linspace(0, 200, TILE, dtype=np.uint8)[:, None, None]
    for _ in range((-(-side // TILE)) ** 2):
        yield noise + ramp + rng.integers(0, 32, 3, np.uint8)


def write(path: Path, side: int) -> None:
    """An uncompressed BigTIFF file of side x side pixels, RGB, which never is in memory as a whole."""
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        file.write(tiles(side), shape=(side, side, 3), dtype=np.uint8, tile=(TILE, TILE), photometric="rgb")


def peak(source: Path, store: Path, way: str) -> float:
    """MiB of memory that this process took at most after a conversion."""
    tsds.convert(source, store, workers=0, max_pixels=2_000_000_000, **WAYS[way])
    return peak_nbytes() / 2**20


def main(scratch: Path, sides: tuple[int, ...] = SIDES) -> None:
    """Print the table in Markdown."""
    found: dict[str, list[str]] = {way: [] for way in WAYS}
    for side in sides:
        folder = scratch / f"scene-{side}"
        folder.mkdir(parents=True)
        write(folder / "scene.tif", side)
        for number, way in enumerate(WAYS):
            nbytes = in_fresh_process(peak, folder, scratch / f"{side}-{number}.tsds", way)
            found[way].append(f"{nbytes:,.0f} MiB")
    found["bytes of all pixels"] = [f"{3 * side**2 / 2**20:,.0f} MiB" for side in sides]
    head = ("conversion", *(f"{side:,} x {side:,}" for side in sides))
    print("\n".join(table(head, [(way, *peaks) for way, peaks in found.items()])))


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])) or SIDES)
