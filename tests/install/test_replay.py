"""The kernels in a small C program: on arm64 they have the bits of x86-64, and threads share no memory of theirs.

`tests/native_fuzz/replay.c` runs the same cases on each processor and prints a digest of each result.
"""

from __future__ import annotations

import functools
import itertools
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from install.conftest import run
from tensorstore_ds import native
from tensorstore_ds.native.compile import FLAGS, HERE, VARIANTS
from test_native import SUBSAMPLINGS, encoded, job_of, tables

SOURCES = [f"-I{HERE}", HERE / "kernels.c", Path(__file__).parents[1] / "native_fuzz" / "replay.c"]
SIZES = [(1, 1), (7, 9), (17, 33), (64, 56), (75, 100), (110, 150)]
#: Pillow's options, and quantizers that the file then gets, for coefficients that have room in 16 bits and others.
LOOKS: list[tuple[dict[str, Any], int]] = [
    *(({"quality": quality}, 0) for quality in (20, 75, 98)),
    *(({"quality": 100}, quantizer) for quantizer in (3, 5, 8, 14, 255)),
    *(({"qtables": [[quantizer] * 64] * 2, "quality": -1}, 40_000) for quantizer in (300, 3000)),
]
FINDS = [native.FIND_NONE, native.FIND_RESTARTS, native.FIND_ENTRIES]

pytestmark = pytest.mark.skipif(
    native.core is None or platform.machine() != "x86_64", reason="no compiled kernels of x86-64 to compare with"
)


def with_quantizers(data: bytes, quantizer: int) -> bytes:
    """The same file with this number in all its tables; 0 leaves them."""
    changed, at = bytearray(data), -1
    while quantizer and (at := data.find(b"\xff\xdb", at + 1)) >= 0:
        nbytes = 2 if data[at + 4] >> 4 else 1
        changed[at + 5 : at + 5 + 64 * nbytes] = quantizer.to_bytes(nbytes) * 64
    return bytes(changed)


def files() -> Iterator[tuple[bytes, tuple[int, int], int, int]]:
    """JPEG files, their upright sizes, their components, and how their parts are found; some are damaged."""
    rng = np.random.default_rng(0)
    for size in SIZES:
        for subsampling in SUBSAMPLINGS:
            for seed, (look, quantizer) in enumerate(LOOKS):
                for find in FINDS:
                    exif, orientation = Image.Exif(), int(rng.integers(1, 9)) if seed % 3 else 1
                    exif[0x0112] = orientation
                    options = {"restart_marker_blocks": int(find == native.FIND_RESTARTS), "exif": exif, **look}
                    data = with_quantizers(encoded(size, subsampling, seed, **options), quantizer)
                    upright = size[::-1] if orientation > 4 else size
                    yield data, upright, 1 if subsampling == "gray" else 3, find
                    if find == native.FIND_NONE:
                        damaged = bytearray(data)
                        damaged[-len(data) // 8] ^= 0x55
                        yield bytes(damaged), upright, 1 if subsampling == "gray" else 3, find


def axis(rng: np.random.Generator, length: int, is_resized: bool) -> tuple[float, float, int]:
    """Origin, extent and resized length of a part of an axis."""
    low = int(rng.integers(length))
    extent = int(rng.integers(1, length - low + 1))
    return low, extent, int(rng.integers(1, 140)) if is_resized else extent


def write_cases(path: Path, step: int) -> Path:
    """Every so many of the files with each scale, cut and resized."""
    rng = np.random.default_rng(1)
    with path.open("wb") as out:
        for data, size, components, find in itertools.islice(files(), None, None, step):
            table = tables(native.core, data)[find]
            for scale in (1, 2, 4, 8):
                y, x = (axis(rng, length, is_resized=scale > 1 or bool(rng.integers(2))) for length in size)
                flip, channels = int(rng.integers(2)), 3 if components == 3 else int(rng.choice([1, 3]))
                marks = len(table) // (4 if find == native.FIND_RESTARTS else 12)
                job = job_of(data, size, components, find, marks, y=y, x=x, scale=scale, flip=flip)
                sizes = np.array([y[2], x[2], channels, len(table), len(data)], np.uint32)
                out.write(sizes.tobytes() + job.tobytes() + table + data)
    return path


def replay(compiler: str, cases: Path, out: Path, *flags: str, runner: tuple[str, ...] = (), threads: int = 1) -> Any:
    """The digests of all results by a compiler, one a line."""
    run(compiler, *FLAGS, "-DVARIANT=plain", "-DKERNELS=kernels_plain", *flags, *SOURCES, "-lm", "-pthread", "-o", out)
    return run(*runner, out, cases, threads).stdout.splitlines()


@pytest.fixture(scope="module")
def on_x86(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, list[str]]]:
    """Every so many of the cases, and their digests on this processor, without its newer instructions."""

    @functools.cache
    def made(step: int) -> tuple[Path, list[str]]:
        folder = tmp_path_factory.mktemp("cases")
        cases = write_cases(folder / "cases", step)
        return cases, replay("cc", cases, folder / "x86")

    return made


@pytest.mark.parametrize("compiler", ["aarch64-linux-gnu-gcc", "clang"])
def test_arm64_has_the_bits_of_x86(tmp_path: Path, on_x86: Any, compiler: str) -> None:
    needed = "aarch64-linux-gnu-gcc", "qemu-aarch64", compiler  # clang uses the C library of the first
    if missing := [name for name in needed if shutil.which(name) is None]:
        pytest.skip(f"{missing[0]} is not here: Debian has gcc-aarch64-linux-gnu, qemu-user and clang")
    cases, wanted = on_x86(1)
    flags = ["-static", *(["--target=aarch64-linux-gnu"] if compiler == "clang" else [])]
    found = replay(compiler, cases, tmp_path / "arm64", *flags, runner=("qemu-aarch64",))
    assert sum(line.startswith("crop: 0,") for line in wanted) > 1000
    assert found == wanted


def need_sanitizer(folder: Path, compiler: str, name: str) -> None:
    (folder / "empty.c").write_text("int main(void) { return 0; }")
    command = [compiler, f"-fsanitize={name}", folder / "empty.c", "-o", folder / "empty"]
    is_there = shutil.which(compiler) is not None and not subprocess.run(command, capture_output=True).returncode
    if not is_there or subprocess.run([folder / "empty"]).returncode:
        pytest.skip(f"the sanitizer of {compiler} for {name} is not here")


def test_threads_share_no_memory(tmp_path: Path, on_x86: Any) -> None:
    """Four threads at once, under ThreadSanitizer."""
    need_sanitizer(tmp_path, "cc", "thread")
    (cases, wanted), flags = on_x86(20), ("-O1", "-g", "-fsanitize=thread")
    own = VARIANTS["x86_64"][native.core.variant()]
    assert replay("cc", cases, tmp_path / "four", *flags, *own, threads=4) == wanted


@pytest.mark.parametrize("variant", VARIANTS["x86_64"])
def test_results_are_made_of_bytes_that_were_written(tmp_path: Path, on_x86: Any, variant: str) -> None:
    """Under MemorySanitizer, even where a filter's weights are 0."""
    need_sanitizer(tmp_path, "clang", "memory")
    (cases, wanted), flags = on_x86(20), ("-O1", "-g", "-fsanitize=memory", "-DCHECKS_WRITTEN")
    assert replay("clang", cases, tmp_path / "checked", *flags, *VARIANTS["x86_64"][variant]) == wanted
