"""Fuzz the kernels with libFuzzer, ASan and UBSan: ``python tests/native_fuzz/run.py SECONDS [keep]``. It needs clang.

It starts from ``corpus.zip``, and with ``keep`` writes there what covers most. What fails is kept as a file, crash-...,
in the folder that is printed.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
from PIL import Image

from tensorstore_ds import native
from tensorstore_ds.imaging.jpeg import find_restarts

SOURCES = Path(native.__file__).parent
CORPUS = Path(__file__).with_name("corpus.zip")
FLAGS = ("-std=c11", "-O1", "-g", "-fwrapv", "-mavx2", "-mbmi2", "-DVARIANT=avx2", "-DKERNELS=kernels_plain")


def seeds(folder: Path) -> None:
    """Sound inputs of all kinds, from which the fuzzer starts."""
    rng, number = np.random.default_rng(0), 0
    for size in [(8, 8), (24, 40), (33, 70)]:
        pixels = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        for subsampling in ("4:4:4", "4:2:2", "4:2:0", "gray"):
            for find in (native.FIND_NONE, native.FIND_RESTARTS, native.FIND_ENTRIES):
                image, buffer = Image.fromarray(pixels), io.BytesIO()
                options = {"quality": 80, "restart_marker_blocks": int(find == native.FIND_RESTARTS)}
                if subsampling == "gray":
                    image.convert("L").save(buffer, "JPEG", **options)
                else:
                    exif = Image.Exif()
                    exif[0x0112] = 1 + number % 8
                    image.save(buffer, "JPEG", subsampling=subsampling, exif=exif, **options)
                data, is_turned = buffer.getvalue(), subsampling != "gray" and 1 + number % 8 > 4
                table = b""
                if find == native.FIND_RESTARTS:
                    table = find_restarts(data).tobytes()
                elif find == native.FIND_ENTRIES:
                    table = native.core.index(native.core.context(), data)
                job = np.zeros(1, native.JOB)
                job["end"], job["find"], job["mark_count"] = len(data), find, len(table) // (4 if find == 1 else 12)
                job["height"], job["width"] = size[::-1] if is_turned else size
                job["components"], job["scale"] = (1 if subsampling == "gray" else 3), 1 << number % 3
                job["y"] = (1, int(job["height"][0]) - 2, 20, 2, 16, 3)
                job["x"] = (1, int(job["width"][0]) - 2, 20, 1, 17, 4)
                written = job.tobytes() + len(table).to_bytes(2, "little") + table + data
                (folder / f"{number:03}").write_bytes(written)
                number += 1


def main(seconds: int, keep: bool) -> int:
    """Build it and let it run; its exit status."""
    folder = Path(tempfile.mkdtemp(prefix="native-fuzz-"))
    for name in ("found", "seeds", "kept"):
        (folder / name).mkdir()
    seeds(folder / "seeds")
    with zipfile.ZipFile(CORPUS) as kept:
        for number, name in enumerate(kept.namelist()):
            (folder / "seeds" / f"kept-{number:04}").write_bytes(kept.read(name))
    here = Path(__file__).parent
    checks = "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"
    sources = f"-I{SOURCES}", str(SOURCES / "kernels.c"), str(here / "fuzz.c")
    subprocess.run(["clang", *FLAGS, *checks, *sources, "-lm", "-o", str(folder / "fuzz")], check=True)
    print(folder, flush=True)
    command = [str(folder / "fuzz"), f"-max_total_time={seconds}", "-max_len=20000", "-print_final_stats=1"]
    status = subprocess.run([*command, "found", "seeds"], cwd=folder).returncode
    if keep and not status:
        subprocess.run([*command, "-merge=1", "kept", "found", "seeds"], cwd=folder, check=True)
        inputs = sorted((file.read_bytes() for file in (folder / "kept").iterdir()), key=lambda one: (len(one), one))
        with zipfile.ZipFile(CORPUS, "w") as kept:
            for number, data in enumerate(inputs):
                kept.writestr(zipfile.ZipInfo(f"{number:04}"), data, zipfile.ZIP_LZMA)
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 60, sys.argv[2:] == ["keep"]))
