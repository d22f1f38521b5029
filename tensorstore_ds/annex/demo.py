"""Convert two small data sets of real handwritten digits, and show the result.

The digits come with scikit-learn (1,797 of 8 x 8 pixels, from the UCI repository): nothing is downloaded.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.annex.exporting.export import export
from tensorstore_ds.annex.pictures import save_png
from tensorstore_ds.annex.pictures.contact_sheet import preview
from tensorstore_ds.conversion.convert import convert
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.errors import OptionError, TsdsError
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.reading.verification import verify

if TYPE_CHECKING:
    from tensorstore_ds.annex.training.history import Listeners
    from tensorstore_ds.annex.training.report import TrainReport

#: A digit in a scene, and its box x1 y1 x2 y2 in pixels, x2 and y2 exclusive.
_Placed = tuple[int, tuple[int, int, int, int]]

SCENES = 200
SCENE_SIZE = (120, 160)  # height, width
_TRAIN_SCENES = 150
_MARKER = ".tsds-demo"
#: Everything that a demo writes to its folder. A later demo removes only these.
_LEFT = (
    *("digits.run", "scenes-coco", "scenes-coco.partial"),
    *(f"{a}{b}" for a in ("digits", "scenes") for b in ("", ".tsds", ".tsds.partial", ".png")),
)
#: Options for a vision transformer whose test accuracy is above 0.95 after less than a minute. The model is so small
#: that a second thread makes it only 1/3 faster, and several times slower if a different process uses the core, because
#: threads wait for each other by spinning.
TRAINING = {"model": "seed", "epochs": 30, "batch_size": 32, "learning_rate": 2e-3, "torch_threads": 1}


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the demo."""

    done: str  #: what was done, in words
    path: Path  #: path of the result
    seconds: float  #: duration of the step


def run(out: Path) -> Iterator[Step]:
    """Write both data sets into `out`, convert and verify them, and draw contact sheets; yields each finished step.

    The results of an earlier demo in `out` are replaced. Other files are not changed.

    Raises:
        OptionError: scikit-learn is not installed, or `out` contains something that is not from a demo.
        TsdsError: a store that was just written is damaged.
    """
    images, labels = load_digits()
    _clear(out)
    yield from _show(out, "digits", lambda path: write_digits(path, images, labels), ConvertOptions(format="folders"))
    yield from _show(out, "scenes", lambda path: write_scenes(path, images, labels), ConvertOptions(format="voc"))
    exported = export(out / "scenes.tsds", out / "scenes-coco", "coco")
    yield Step(f"exported them as COCO's JSON, {exported.files} files", exported.path, exported.seconds)


def train_digits(out: Path, listeners: Listeners | None = None, **changes: Any) -> TrainReport | None:
    """Train on the digits that `run` has converted, and write the results to ``digits.run`` in `out`.

    `changes` are options of `TrainOptions` that replace the values in `TRAINING`. Raises ModuleNotFoundError without
    torch or torchvision.
    """
    from tensorstore_ds.annex.training.options import TrainOptions
    from tensorstore_ds.annex.training.train import train

    options = TrainOptions(**{**TRAINING, **changes})
    return train(out / "digits.tsds", options, out=out / "digits.run", listeners=listeners)


def _show(out: Path, name: str, write: Callable[[Path], str], options: ConvertOptions) -> Iterator[Step]:
    source, store, sheet = out / name, out / f"{name}.tsds", out / f"{name}.png"
    begun = time.perf_counter()
    written = write(source)
    yield Step(f"wrote {written}", source, time.perf_counter() - begun)

    summary = convert(source, store, options)
    samples = sum(summary.rows.values())
    yield Step(f"converted {samples:,} samples, {samples / summary.seconds:,.0f} a second", store, summary.seconds)

    begun = time.perf_counter()
    problems = verify(store)
    if problems:
        raise TsdsError(f"{store}: expected a sound store, found {problems[0]}")
    yield Step(f"verified {summary.nbytes / 1e6:.1f} MB", store, time.perf_counter() - begun)

    begun = time.perf_counter()
    split = open_store(store)["train"]
    count = 60 if name == "digits" else 12
    save_png(preview(split, count=count), sheet)
    yield Step(f"drew {count} of them", sheet, time.perf_counter() - begun)


def _clear(out: Path) -> None:
    """Make `out`, or remove the results of an earlier demo."""
    check_outside_stores(out / _MARKER)
    if out.exists() and not (out / _MARKER).is_file() and not (out.is_dir() and not any(out.iterdir())):
        found = "expected a new or empty folder, or an earlier demo's folder, found something else."
        raise OptionError(f"{out}: {found} Choose another `out`.")
    out.mkdir(parents=True, exist_ok=True)
    (out / _MARKER).write_text("tsds demo may replace what it wrote here: digits*, scenes*\n", "utf-8")
    for path in (out / name for name in _LEFT):
        if path.suffix == ".png":
            path.unlink(missing_ok=True)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """scikit-learn's digits: images (1797, 8, 8) uint8 from 0 to 255, and labels (1797,) int64.

    Raises `OptionError` if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits as load
    except ImportError as error:
        raise OptionError(
            "demo: expected scikit-learn, which has the digits, found none. "
            "pip install '.[demo]' in a clone of tensorstore-ds"
        ) from error
    digits: Any = load()
    return np.rint(digits.images * (255 / 16)).astype(np.uint8), digits.target.astype(np.int64)


def write_digits(path: Path, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """Write ``train/<digit>/0000.png`` and ``test/<digit>/0004.png``; returns a description of the files.

    Every fifth image is in ``test``.
    """
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = path / ("test" if i % 5 == 4 else "train") / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i:04d}.png")
    return f"{len(images):,} PNG images in class folders"


def write_scenes(path: Path, images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """Write `SCENES` fixed pictures of several digits in the layout of a VOCdevkit; returns a description of them."""
    root = path / "VOC2012"
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(0)
    stems = [f"scene_{i:04d}" for i in range(SCENES)]
    objects = 0
    for stem in stems:
        scene, placed = _scene(rng, images, labels)
        objects += len(placed)
        Image.fromarray(scene).save(root / "JPEGImages" / f"{stem}.jpg", quality=92)
        (root / "Annotations" / f"{stem}.xml").write_text(_annotation(f"{stem}.jpg", placed), "utf-8")
    lists = {"train": stems[:_TRAIN_SCENES], "val": stems[_TRAIN_SCENES:], "trainval": stems}
    for name, listed in lists.items():
        (root / "ImageSets/Main" / f"{name}.txt").write_text("".join(f"{stem}\n" for stem in listed), "utf-8")
    return f"{SCENES} JPEG scenes with {objects:,} boxes, as Pascal VOC"


def _scene(
    rng: np.random.Generator, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], list[_Placed]]:
    """A picture (H, W, 3) with digits that do not overlap."""
    height, width = SCENE_SIZE
    scene = _background(rng)
    placed: list[_Placed] = []
    for _ in range(int(rng.integers(3, 8))):
        chosen = int(rng.integers(len(images)))
        ink = _ink(images[chosen], int(rng.integers(26, 54)))
        h, w = ink.shape
        x, y = int(rng.integers(2, width - w - 2)), int(rng.integers(2, height - h - 2))
        box = (x, y, x + w, y + h)
        if any(
            box[0] < x2 + 3 and x1 < box[2] + 3 and box[1] < y2 + 3 and y1 < box[3] + 3
            for _, (x1, y1, x2, y2) in placed
        ):
            continue
        patch = scene[y : y + h, x : x + w]
        color = rng.uniform(200, 255, 3) if patch.mean() < 128 else rng.uniform(0, 60, 3)  # bright on dark
        patch += (color - patch) * ink[:, :, None]
        placed.append((int(labels[chosen]), box))
    return np.clip(np.rint(scene), 0, 255).astype(np.uint8), placed


def _background(rng: np.random.Generator) -> NDArray[np.float64]:
    """A cloudy and grainy gradient between two colors: (H, W, 3), about 0 to 255."""
    height, width = SCENE_SIZE
    first, second = rng.uniform(40, 215, (2, 3))
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    slope = (np.cos(angle) * (x - 0.5) + np.sin(angle) * (y - 0.5)) / 1.42 + 0.5
    coarse = Image.fromarray(rng.normal(0, 22, (8, 10)).astype(np.float32))
    clouds = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))
    grain = rng.normal(0, 7, (height, width, 3))
    scene: NDArray[np.float64] = first + (second - first) * slope[:, :, None] + clouds[:, :, None] + grain
    return scene


def _ink(image: NDArray[np.uint8], size: int) -> NDArray[np.float64]:
    """A digit's ink from 0 to 1, enlarged smoothly and cropped to its extent: (h, w), neither above `size`."""
    enlarged = np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)) / 255.0
    ink = np.clip((enlarged - 0.25) / 0.4, 0, 1)
    rows, columns = np.flatnonzero((ink > 0.3).any(axis=1)), np.flatnonzero((ink > 0.3).any(axis=0))
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def _annotation(filename: str, placed: list[_Placed]) -> str:
    height, width = SCENE_SIZE
    lines = [f"\t<filename>{filename}</filename>"]
    lines += [f"\t<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"]
    for digit, (x1, y1, x2, y2) in placed:
        box = f"<xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        flags = "<truncated>0</truncated><difficult>0</difficult>"
        lines += [f"\t<object><name>{digit}</name>{flags}<bndbox>{box}</bndbox></object>"]
    return "\n".join(["<annotation>", *lines, "</annotation>\n"])
