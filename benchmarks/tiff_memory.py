"""Peak memory of converting one large tiled TIFF file: ``python -m benchmarks.tiff_memory SCRATCH [SIDE ...]``.

Each conversion runs in a process of its own, whose peak of resident memory is read at its end.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray

SIDES = (5_000, 20_000, 40_000)
TILE = 256
#: Keywords of each conversion, as a program has them, by its name in the table.
WAYS = {
    "`--encoding raw`": 'encoding="raw"',
    "`--encoding jpeg`": 'encoding="jpeg"',
    "`--tiles 512 --encoding jpeg`": 'encoding="jpeg", cut=tsds.conversion.ImageTiles(512)',
}
_CONVERT = """
import re, sys
from pathlib import Path
import tensorstore_ds as tsds
tsds.convert(sys.argv[1], sys.argv[2], workers=0, max_pixels=2_000_000_000, OPTIONS)
print(re.search("VmHWM:\\\\s+([0-9]+) kB", Path("/proc/self/status").read_text())[1])
"""


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
    """MiB of memory that the conversion took at most."""
    run = [sys.executable, "-c", _CONVERT.replace("OPTIONS", WAYS[way]), source, store]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout.split()[-1]) / 1024


def main(scratch: Path, sides: tuple[int, ...] = SIDES) -> None:
    """Print the table in Markdown."""
    print(f"| conversion | {' | '.join(f'{side:,} x {side:,}' for side in sides)} |")
    print("|---" * (len(sides) + 1) + "|")
    found: dict[str, list[str]] = {way: [] for way in WAYS}
    for side in sides:
        folder = scratch / f"scene-{side}"
        folder.mkdir(parents=True)
        write(folder / "scene.tif", side)
        for number, way in enumerate(WAYS):
            found[way].append(f"{peak(folder, scratch / f'{side}-{number}.tsds', way):,.0f} MiB")
    for way, peaks in found.items():
        print(f"| {way} | {' | '.join(peaks)} |")
    print(f"| bytes of all pixels | {' | '.join(f'{3 * side**2 / 2**20:,.0f} MiB' for side in sides)} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])) or SIDES)
