"""``python -m benchmarks.figures``: docs/figures.md, its chart and the README's table, out of the results as JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.run import PARTS, shown
from benchmarks.loading import SMALL_BATCH, Ways, best
from benchmarks.measure import FIGURE_HEAD, RESULTS, ROOT, figures_of, table
from benchmarks.peers import MEMCPY, OURS
from benchmarks.torchvision_transforms import BY_IMAGE, CONTIGUOUS, OURS as OURS_ROW, WHOLE
from tensorstore_ds.comparison.results import Way

PAGE, CHART, README = ROOT / "docs/figures.md", ROOT / "docs/loading.png", ROOT / "README.md"
ROW_SIZES = ROOT / "docs/row_sizes.png"
BEGIN, END = "<!-- figures begin -->", "<!-- figures end -->"
PHOTOGRAPHS_CHART = ROOT / "docs/photographs.png"
INDEX, HEADLINE = ROOT / "docs/index.md", ("<!-- headline begin -->", "<!-- headline end -->")
#: Left out of the machine's description: the same everywhere, or of no weight.
_UNSAID = ("tensorstore-ds", "torchvision")

#: A row with fewer rounds shows their number, and a ratio of `tsds bench` with fewer epochs is not shown.
ROUNDS = 7

Result = Mapping[str, Any]
_Bar = tuple[str, Mapping[str, Any], str]  # its name, the way that it shows, its label

_HEAD = """# Figures

`python -m benchmarks` measures these figures and generates this page from `benchmarks/results/`.
`benchmarks/README.md` describes each measurement. The machine and the date are below each table. Everything was
measured on a CPU, except results in [On a GPU](#on-a-gpu).

A ratio is the quotient of two medians. If the medians are printed next to it, the range of the rounds follows in
brackets. The default is 7 rounds; a row with fewer shows their number, if it is known."""
_LOADING = """## Loading

The table shows images per second, in shuffled epochs from the page cache. "Ours: 5 x" means that this project's
loader is 5x faster. The loaders took turns, each as its documentation advises, with two threads or two workers. Each
delivered every sample once. Brackets contain the range of the rounds, and their number if it is below 7.

![Images per second of every loader, as bars](loading.png)"""
_COLD = """The memory of the host can cache a disk, and cannot be emptied from inside the machine. The note of the
first epoch reports signs of this."""
_BENCH = "The table shows seconds per epoch. Numbers with ~ are estimates from a part of an epoch."
_EPOCHS = "Each number is the median of {epochs}. Ratios need at least 7."
_TRAIN = """On a few cores, the model takes most of the time, with any loader. Only a few steps were measured, and
their times differ by 20 %. This project's loader was **not measured on a GPU**."""
_LEARNING = """## Training

[From folder to training](training.md#learning-rate-batch-size-and-augmentation) shows the accuracy of `tsds train`
on MNIST. In the demo, 0.983 of the test digits are correct after 39 seconds (one run, one thread, 2026-11-21)."""
_GPU = """## On a GPU

`python -m benchmarks gpu` measures these parts on your GPU in 10 minutes: see [On your
GPU](measuring.md#on-your-gpu). The expected values are estimates for an H100 with PCIe 5 and 16 cores. They were not
measured. Tests run the scripts on a fake CUDA runtime."""
_JOB = """## The whole job

A conversion pays off when the epochs have saved its time. "The first batch" is timed in a new process, from
`import tensorstore_ds` to the batch, after `import torch`."""
_TRANSFORMS = """## Batch transforms

The table shows images per second with a batch transform, and their share of the rate without one. On the CPU, the
threads that gather also transform. `Normalize` makes float32, so it writes 4x more bytes."""
_TORCHVISION = """## Batch transforms and torchvision

These tables compare the batch transforms with `torchvision.transforms.v2` ({torchvision}), in one thread on a CPU.
The images are {images}. Transforms with a probability change every image. "CPU" is the processor time per image in
microseconds, median and range. Other programs used the machine, so factors compare medians of processor time; the
factor of wall time follows in brackets. 2.0 x means that this project is 2x faster.

- **Image by image**: torchvision transforms each image separately. Collating is not timed.
- **Whole batch**: torchvision makes the same change to all images of the batch in one call. `MixUp` and `CutMix`
  exist only in this form, and `MixUp` raises an error for uint8 images.
- **Contiguous**: the factor against image by image if this project's images are also contiguous. Otherwise they are
  in channels-last memory, as the loader returns them.

At 224x224x3, some transforms with few operations per pixel are below 1, mostly of float32 images: a batch transform
also copies each changed image into the batch, and separates and interleaves channels-last memory. At 32x32x3,
torchvision spends most of its time per call."""
_ROW_SIZES = """## Row sizes

Random rows are gathered from memory in one thread, into two buffers. One begins at a page boundary, as large buffers
of the loader and of `take` do, the other one 16 bytes later. Each row has a fixed cost, so small rows are slower.
Whether the misaligned buffer is slower depends on the processor and the C library; `tsds doctor` measures it. The
speed of `memcpy` differs between tables, so compare speeds only within one table.

![Gigabytes per second by the size of a row, as lines](row_sizes.png)"""
_PHOTOGRAPHS = """## Photographs

The tables show epochs of JPEG photographs from the page cache. The loaders take turns, with 2 threads or 2 worker
processes, unless a row names 1 thread. Training crops are `RandomResizedCrop(224)`. Validation crops are the center
224x224 of images whose shorter side is resized to 256. Both are batches of 256 uint8 images. For detection, batches
are whole images with boxes.

"Images per CPU second" divides by the CPU time of the process, its threads and its workers, so other programs affect
it less. Each cell is the median of the rounds, with the range in brackets. "kB per image" is the size of the files
that a loader reads:

- `jpeg`: quality 90 with restart markers, at most 500 pixels a side. Only the crop is decoded.
- `source`: the original JPEG files. Only the crop is decoded.
- `raw`: pixels, at most 500 pixels a side. `smart`: each image as `raw` or as `jpeg`.
- FFCV `jpg`: quality 90, at most 500 pixels a side, as in FFCV's example for ImageNet. Compare it with `jpeg`. FFCV
  decodes each image whole.
- FFCV `jpg, full size`: quality 90 at full size, because FFCV cannot store the original files. Compare it with
  `source`.
- Files: the original JPEG files, in folders. torchvision, torchcodec, DALI (on the CPU) and SPDL read them."""
_KERNELS = """The next table compares the loader with and without its compiled kernels ({kernels}; {photographs})."""
_PROFILE = """The next table shows the CPU time of a training crop in microseconds, in one thread, by the functions
of the compiled kernels, sampled with Linux' perf. Below it are the rates with more threads and the encoding `jpeg`."""
_CONVERTING = """A conversion decodes with Pillow, as the bare loop does. It also lists the files twice, counts
statistics, and syncs and hashes every byte. Filter, sample and merge also check their input."""

_TILES = """## Tiles of large images

One thread cuts random [tiles](tiles.md) of 640 x 640 pixels out of one image of 20,000 x 20,000 pixels. The image
shows photographs side by side, as a JPEG file of quality 90 with restart markers (`jpeg`) or without (`source`). The
reference is the same tiles of its parts of 1,000 x 1,000 pixels."""

_VIEWER = """## The viewer

[`tsds view`](viewer.md) shows a store of a million images of 24 x 24 pixels, each with a label, a number and two
boxes, in Chromium without a GPU, in a window of 1280 x 800 pixels. The columns of two filters are loaded before the
jumps and clicks."""

_PULLING = """The processor limits a pull from the same machine to about 1 GB/s, or 8 Gbit/s: unlike obstore alone, a
pull computes SHA-256, syncs files, and writes a journal. With a slower network, the network is the limit."""


def load_results(folder: Path = RESULTS) -> dict[str, Any]:
    """By name, those that there are."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """The whole page."""
    parts = [_HEAD]
    if "loading" in results:
        parts += [_LOADING, *_races(results["loading"])]
        parts += _figures(results, "loading")
    if {"photographs", "photograph_kernels", "profile_photographs"} & set(results):
        parts += _photographs(results)
    if {"loading_cold", "larger_than_memory", "soak"} & set(results):
        figures = _figures(results, "loading_cold", "larger_than_memory", "soak")
        parts += ["## The first epoch, and memory", _COLD, *figures]
    for name, title in (("bench_mnist", "MNIST"), ("bench_bccd", "BCCD"), ("bench_mnist_train", "MNIST, training")):
        if name in results:
            parts += [f"## `tsds bench` on {title}", *([_TRAIN] if name.endswith("train") else [])]
            parts += _comparison(results[name])
    if "whole_job" in results:
        parts += [_JOB, *_figures(results, "whole_job", "first_batch")]
    if "batch_transforms" in results:
        parts += [_TRANSFORMS, *_transforms(results["batch_transforms"]), *_figures(results, "batch_transforms")]
    if "torchvision_transforms" in results:
        parts += _against_torchvision(results["torchvision_transforms"])
        parts += _figures(results, "torchvision_transforms")
    if "row_sizes" in results:
        parts += [_ROW_SIZES, *_row_sizes(results["row_sizes"]), *_figures(results, "row_sizes")]
    if "tiles" in results:
        parts += [_TILES, *_figures(results, "tiles")]
    if "viewer" in results:
        parts += [_VIEWER, *_figures(results, "viewer")]
    parts += _gpu(results.get("gpu", {}))
    parts += [_LEARNING, "## Converting and opening"]
    parts += [
        *_figures(
            results,
            "convert_mnist",
            "convert_photographs",
            "engines",
            "scan_coco",
            "check_content",
            "edit_stores",
            "take",
            "open_large",
            "memory",
            "startup",
        ),
        _CONVERTING,
    ]
    if {"remote", "mirror", "pull"} & set(results):
        parts += ["## Stores by URL", *_figures(results, "remote", "mirror", "pull"), _PULLING]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def measured_on(result: Result) -> str:
    """A line: the machine and the date."""
    machine = {**result["machine"], "memory": result["machine"]["memory"].partition(",")[0]}  # without what was free
    words = [word for name, word in machine.items() if name not in _UNSAID and "not installed" not in word]
    return f"*Measured on {', '.join(words)}.*"


def _figures(results: Mapping[str, Result], *names: str) -> list[str]:
    """A table of the figures of some results, with the machines and dates that are not the same for all."""
    present = [results[name] for name in names if name in results]
    rows = [figure.row for result in present for figure in figures_of(result)]
    return ["\n".join(table(FIGURE_HEAD, rows)), *dict.fromkeys(map(measured_on, present))] if rows else []


def _gpu(result: Result) -> list[str]:
    """A row per part, measured or not."""
    rows = [[f"`{name}`", part.what, part.expected, shown(result, name)] for name, part in PARTS.items()]
    described = [measured_on(result)] if result else []
    return [_GPU, "\n".join(table(("part", "what is measured", "expected", "measured"), rows)), *described]


# --- loaders ------------------------------------------------------------------------------------------------------


def _races(result: Result) -> list[str]:
    """A row per loader and mode, a column per data set."""
    races = result["races"]
    cells: dict[str, list[str]] = {}
    for place, one in enumerate(races):
        for way in one["ways"]:
            small = f", batch {SMALL_BATCH}" if way["batch_size"] == SMALL_BATCH else ""
            title = f"{way['title']} {way['version']}".strip()
            row = cells.setdefault(f"{title}, {way['mode']}{small}".rstrip(", "), [""] * len(races))
            row[place] = f"not measured: {way['reason']}" if way["rate"] is None else _rate(way)
    ours = [name for name in cells if name.startswith(OURS.title)]
    rows = [[f"**{name}**", *cells[name]] for name in ours]
    rows += [[name, *row] for name, row in cells.items() if name not in ours]
    return ["\n".join(table(("", *(one["title"] for one in races)), rows, right=1)), measured_on(result)]


def _rate(way: Mapping[str, Any]) -> str:
    """Median rate; in brackets the range and number of rounds, as far as they are known, and the speedup of ours.

    >>> _rate({"title": "FFCV", "rate": 50.0, "ratio": 2.0}), _rate({"title": "tensorstore-ds", "rate": 100.0})
    ('50 (ours: 2.0 x)', '**100**')
    >>> _rate({"title": "FFCV", "rate": 50.0, "ratio": 2.0, "seconds": [0.02, 0.04]})
    '50 (25 to 50; 2 rounds; ours: 2.0 x)'
    """
    rate = f"{way['rate']:,.0f}"
    if way["title"] == OURS.title:
        rate, ratio = f"**{rate}**", ""
    else:
        ratio = f"ours: {_times(way['ratio'])}" if way["ratio"] else ""
    seconds = way.get("seconds", ())
    spread = f"{1 / max(seconds):,.0f} to {1 / min(seconds):,.0f}" if seconds else ""
    rounds = f"{len(seconds)} round{'s' if len(seconds) > 1 else ''}" if 0 < len(seconds) < ROUNDS else ""
    words = "; ".join(filter(None, (spread, rounds, ratio)))
    return f"{rate} ({words})" if words else rate


def _times(ratio: float) -> str:
    decimals = 0 if ratio >= 9.95 else 1 if ratio >= 1 else 2
    return f"{ratio:,.{decimals}f} x"


def short_table(result: Result) -> str:
    """The README's: six rows, each the best use of its kind."""
    races = result["races"]
    rows = [
        [name, *(_rate(way) if way else "" for way in (_best(one["ways"], title) for one in races))]
        for name, title in (
            (f"**{OURS.title}**", OURS.title),
            ("`memcpy` of the same bytes, one thread", MEMCPY.title),
            ("`memcpy` of the same bytes, two threads", MEMCPY.modes[1]),
            ("FFCV, best raw mode", "FFCV"),
            ("TensorDataset + DataLoader, best configuration", "TensorDataset + DataLoader"),
            ("files: torchvision + DataLoader", "files ("),
        )
    ]
    head = ("images per second", *(one["title"] for one in races))
    return "\n".join([*table(head, rows, right=1), "", measured_on(result)])


def _best(ways: Ways, title: str) -> Mapping[str, Any] | None:
    titles = [way["title"] for way in ways if way["title"].startswith(title) and way["rate"]]
    if title == MEMCPY.modes[1]:  # which `best` leaves out
        return next((way for way in ways if (way["title"], way["mode"]) == (MEMCPY.title, title) and way["rate"]), None)
    return best(ways, titles[0]) if titles else None


# --- photographs --------------------------------------------------------------------------------------------------


def _photographs(results: Mapping[str, Result]) -> list[str]:
    """A table per task; then the targets, what the kernels bring, and where the time goes."""
    parts = [_PHOTOGRAPHS]
    if "photographs" in results:
        result = results["photographs"]
        parts += [f"Medians of the photographs: {result['photographs']}."] if "photographs" in result else []
        parts += ["![Images per second of photographs, as bars](photographs.png)"]
        head = ("", "kB per image", "images per second", "images per CPU second")
        for one in result["races"]:
            rows = [_photograph_row(way) for way in one["ways"]]
            parts += [f"**{one['title']}**", "\n".join(table(head, rows, right=1))]
        parts += _figures(results, "photographs")
    if "photograph_kernels" in results:
        result = results["photograph_kernels"]
        head = ("", *(f"images per {second}, {way}" for second in ("second", "CPU second") for way in _KERNEL_WAYS))
        rows = [_kernels_row(row) for row in result["rows"]]
        parts += [_KERNELS.format(**result), "\n".join(table((*head, "factor", "CPU factor"), rows, right=1))]
        parts += _figures(results, "photograph_kernels")
    if "profile_photographs" in results:
        result = results["profile_photographs"]
        encodings = [name for name in result["parts"][0] if name != "part"]
        rows = [[row["part"], *(f"{row[name]:,.0f}" for name in encodings)] for row in result["parts"]]
        rates = [way for way in result["threads"] if way["rate"]]
        threads = ", ".join(f"{way['threads']}: {way['rate']:,.0f}" for way in rates)
        head = ("microseconds for an image", *(f"`{name}`" for name in encodings))
        parts += [_PROFILE, "\n".join(table(head, rows, right=1))]
        parts += [f"Images per second by threads: {threads}.", measured_on(result)]
    return parts


_KERNEL_WAYS = {"with kernels": "with", "without": "without"}


def _photograph_row(way: Mapping[str, Any]) -> list[str]:
    title = photograph_title(way)
    title = f"**{title}**" if way["title"] == OURS.title else title
    if way["rate"] is None:
        return [title, "", f"not measured: {way['reason']}", ""]
    return [title, f"{way['nbytes'] / 1e3:,.0f}" if "nbytes" in way else "", _rates(way), _rates(way, "cpu_")]


def _kernels_row(row: Mapping[str, Any]) -> list[str]:
    threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
    rates = [_rates(row[way], kind) for kind in ("", "cpu_") for way in _KERNEL_WAYS.values()]
    factors = [_times(row["with"][rate] / row["without"][rate]) for rate in ("rate", "cpu_rate")]
    return [f"`{row['encoding']}`, {row['task']}, {threads}", *rates, *factors]


def _rates(way: Mapping[str, Any], kind: str = "") -> str:
    """Median and range of the rounds; nothing if only the clock was read.

    >>> _rates({"rate": 500.0, "seconds": [0.001, 0.003, 0.002]}), _rates({"rate": 500.0}, "cpu_")
    ('500 (333 to 1,000)', '')
    """
    seconds = way.get(f"{kind}seconds", ())
    return _range([way[f"{kind}rate"], 1 / max(seconds), 1 / min(seconds)]) if seconds else ""


def photograph_title(way: Mapping[str, Any]) -> str:
    """A loader, and how it keeps photographs.

    >>> photograph_title({"title": "FFCV", "version": "1.0.2", "mode": "jpg"})
    'FFCV 1.0.2, jpg'
    >>> photograph_title({"title": "tensorstore-ds", "version": "", "mode": "jpeg", "threads": 1})
    'tensorstore-ds, jpeg, 1 thread'
    """
    threads = "1 thread" if way.get("threads") == 1 else ""
    return ", ".join(filter(None, [f"{way['title']} {way['version']}".strip(), way["mode"], threads]))


# --- tsds bench ---------------------------------------------------------------------------------------------------


def _comparison(result: Result) -> list[str]:
    """A row per way, a column per phase and batch size."""
    cells = {(cell["way"], cell["phase"], cell["batch_size"]): cell for cell in result["cells"]}
    phases = {"load": "loading", "train": "training"}
    measured = {(phase, size) for _, phase, size in cells}
    columns = [(phase, size) for phase in phases for size in result["batch_sizes"] if (phase, size) in measured]
    rows = []
    for way in (Way(**way) for way in result["ways"]):
        row = [_seconds(cells.get((way.name, *column))) for column in columns]
        if any(row):
            rows.append([f"**{way.full_title}**" if way.ours else way.full_title, *row])
    for group, name in (("files", "files"), ("tensors", "TensorDataset")):
        ratios = [_advantage(result["ways"], cells, group, column) for column in columns]
        rows += [[f"speedup over the best from {name}", *ratios]] if any(ratios) else []
    shape = " x ".join(map(str, (result["shape"] or ())[:2]))
    counts = [cell["epochs"] for cell in result["cells"] if cell.get("epochs")]
    epochs = f"{min(counts)} to {max(counts)} epochs" if counts else "a number of epochs that was not stored"
    words = f"{_BENCH} {_EPOCHS.format(epochs=epochs)}"
    what = f"The train split, {result['samples']:,} images{f' of {shape}' if shape else ''}. {words}"
    head = ("batch", *(f"{phases[p]}, {size:,}" for p, size in columns))
    return [what, "\n".join(table(head, rows, right=1)), *_firsts(result["ways"]), measured_on(result)]


def _firsts(ways: Sequence[Result]) -> list[str]:
    """A line: the first epoch of the quickest way from the files, and of ours."""
    measured = [way for way in ways if way["first"] and way["first"]["seconds"]]
    measured.sort(key=lambda way: way["first"]["seconds"])
    files, ours = ([way for way in measured if way["group"] == group][:1] for group in ("files", "store"))
    words = [f"{_seconds(way['first'])} s ({Way(**way).full_title})" for way in (*files, *ours)]
    return [f"The first epoch, from files that are not in memory, took {', '.join(words)}."] if words else []


def _seconds(cell: Mapping[str, Any] | None) -> str:
    """Three digits at most.

    >>> _seconds({"seconds": 0.0319, "reckoned": False}), _seconds({"seconds": 41.3, "reckoned": True})
    ('0.032', '~41')
    """
    if cell is None or cell["seconds"] is None:
        return ""
    seconds = cell["seconds"]
    decimals = 0 if seconds >= 10 else 1 if seconds >= 1 else 2 if seconds >= 0.1 else 3
    parts = cell.get("reckoned", cell.get("batches", 0) < cell.get("of", 0))
    return f"{'~' if parts else ''}{seconds:.{decimals}f}"


def _advantage(ways: Sequence[Result], cells: Mapping[Any, Result], group: str, column: tuple[str, int]) -> str:
    """The quotient of the medians, if both are medians of `ROUNDS` epochs or more."""

    def quickest(names: list[str]) -> Result | None:
        measured = [cells[name, *column] for name in names if (name, *column) in cells]
        return min((cell for cell in measured if cell["seconds"]), key=lambda cell: cell["seconds"], default=None)

    ours = quickest([way["name"] for way in ways if way["ours"]])
    others = quickest([way["name"] for way in ways if way["group"] == group])
    if ours is None or others is None or min(each.get("epochs", 0) for each in (ours, others)) < ROUNDS:
        return ""
    return _times(others["seconds"] / ours["seconds"])


# --- batch transforms ---------------------------------------------------------------------------------------------


def _transforms(result: Result) -> list[str]:
    """A row per transform, a column per data set."""
    rows: dict[str, list[str]] = {}
    bare: dict[str, float] = {}
    for each in result["transforms"]:
        bare.setdefault(each["data"], each["rate"])  # the first row of each data set has no transform
        rows.setdefault(each["transform"], []).append(f"{each['rate']:,.0f} ({each['rate'] / bare[each['data']]:.2f})")
    head = ("images per second", *dict.fromkeys(each["data"] for each in result["transforms"]))
    return ["\n".join(table(head, [[name, *cells] for name, cells in rows.items()], right=1))]


def _against_torchvision(result: Result) -> list[str]:
    """A table per data set: a row per transform."""
    head = ("", "ours, images/s", "CPU", "image by image, images/s", "CPU", "ours", "contiguous", "whole batch: ours")
    parts = [_TORCHVISION.format(images=result["images"], torchvision=result["machine"]["torchvision"])]
    for data in dict.fromkeys(each["data"] for each in result["transforms"]):
        rows = [_against_row(each) for each in result["transforms"] if each["data"] == data]
        parts += [f"**{data}**", "\n".join(table(head, rows, right=1))]
    return parts


def _against_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A transform's cells: empty where torchvision has none."""
    ours, contiguous, alone, batch = (row[name] for name in (OURS_ROW, CONTIGUOUS, BY_IMAGE, WHOLE))
    cells = [row["transform"], f"{ours['rate']:,.0f}", _range(ours["cpu_us"])]
    if alone is None:
        cells += [""] * 4
    else:
        factor = alone["cpu_ratio"] / contiguous["cpu_ratio"]
        cells += [f"{alone['rate']:,.0f}", _range(alone["cpu_us"]), _both(alone), _times(factor)]
    return (*cells, _both(batch) if batch else "")


def _range(values: Sequence[float]) -> str:
    """Median and range.

    >>> _range([1234.5, 1200, 1301]), _range([3.14159, 3, 3.5])
    ('1,234 (1,200 to 1,301)', '3.1 (3.0 to 3.5)')
    """
    decimals = 0 if values[0] >= 99.5 else 1
    middle, low, high = (f"{value:,.{decimals}f}" for value in values)
    return f"{middle} ({low} to {high})"


def _both(way: Mapping[str, Any]) -> str:
    """How many times as fast as a way this project is, by processor time, and by wall time in brackets."""
    return f"{_times(way['cpu_ratio'])} ({_times(way['ratio'])})"


# --- row sizes ----------------------------------------------------------------------------------------------------


def _row_sizes(result: Result) -> list[str]:
    """A row per size, a column per way to copy."""
    rows = [
        [
            _binary(each["row_nbytes"]),
            f"{each['memcpy'] / 1e9:.1f}",
            *(f"{each[name] / 1e9:.1f} ({each[name] / each['memcpy']:.2f})" for name in ("aligned", "misaligned")),
        ]
        for each in result["sizes"]
    ]
    head = ("GB/s (relative to memcpy), rows of", "memcpy in one piece", "rows, aligned", "rows, misaligned")
    return ["\n".join(table(head, rows, right=1))]


def _binary(nbytes: int) -> str:
    """A power of two in words.

    >>> _binary(64), _binary(16384), _binary(4 * 1024**2)
    ('64 B', '16 KiB', '4 MiB')
    """
    for unit in ("B", "KiB"):
        if nbytes < 1024:
            return f"{nbytes} {unit}"
        nbytes //= 1024
    return f"{nbytes} MiB"


def draw_row_sizes(result: Result, file: Path) -> None:
    """A line per way to copy, over the sizes of rows in equal steps, on a linear scale that begins at 0."""
    from tensorstore_ds.pictures.sheet import EVAL, FADED, TRAIN, sheet

    sizes = result["sizes"]
    ways = {
        "memcpy": ("memcpy in one piece", FADED, ":"),
        "aligned": ("rows, aligned buffer", EVAL, "o-"),
        "misaligned": ("rows, misaligned by 16 bytes", TRAIN, "s--"),
    }
    with sheet(file, 5.2, 3.6) as figure:
        axes = figure.subplots()
        for name, (title, color, form) in ways.items():
            rates = [each[name] / 1e9 for each in sizes]
            axes.plot(range(len(sizes)), rates, form, color=color, label=title, linewidth=1.8, markersize=5)
        axes.set_title("GB/s, random rows, 1 thread", fontsize=11.5)
        axes.set_xticks(range(len(sizes)), [_binary(each["row_nbytes"]) for each in sizes], fontsize=8.5)
        axes.set_xlabel("size of a row")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        axes.legend(loc="lower right", fontsize=9.5)


# --- files --------------------------------------------------------------------------------------------------------


def headline(result: Result) -> str:
    """The one figure of the site's first page: of this project's loader, on the first data set."""
    first, machine = result["races"][0], result["machine"]
    way = _best(first["ways"], OURS.title)
    assert way is not None
    where = f"{machine['cpu']}, {machine['cores']}"
    rate = f"The loader gives **{way['rate']:,.0f} images per second**"
    return f"{rate} ({first['title']}, on {where}).\n[All figures](figures.md)."


def text_with(text: str, put: str, begin: str = BEGIN, end: str = END) -> str:
    """A page, such as the README, with a table or a line between its marks."""
    return re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{put}\n\n{end}", text, flags=re.DOTALL)


def draw(result: Result, file: Path) -> None:
    """A panel per data set: a bar per loader in its best use, the longest first, on a linear scale that begins at 0.

    Where `memcpy` alone would make all other bars short, its bar is cut, and says so.
    """
    panels = []
    for one in result["races"]:
        titles = dict.fromkeys(way["title"] for way in one["ways"] if way["rate"])
        ways = sorted((best(one["ways"], title) for title in titles), key=lambda way: way["rate"])
        longest = 1.25 * max(way["rate"] for way in ways if way["title"] != MEMCPY.title)
        bars = [(_short_name(way), way, _bar_label(way, cut=way["rate"] > longest)) for way in ways]
        panels.append((one["title"], bars, longest))
    _draw_bars("Images per second, shuffled epochs from the page cache", panels, file)


def draw_photographs(result: Result, file: Path) -> None:
    """A panel per task, a bar per loader and use, the longest first."""
    panels = []
    for one in result["races"]:
        ways = sorted((way for way in one["ways"] if way["rate"]), key=lambda way: way["rate"])
        bars = [(photograph_title({**way, "version": ""}), way, f"{way['rate']:,.0f}") for way in ways]
        panels += [(_PANELS[one["task"]], bars, max(way["rate"] for way in ways))] if ways else []
    _draw_bars("Photographs: images per second", panels, file, room=1.3)


_PANELS = {"train": "training crops", "validate": "validation crops", "detect": "whole images and boxes"}


def _draw_bars(
    title: str, panels: Sequence[tuple[str, Sequence[_Bar], float]], file: Path, *, room: float = 2.45
) -> None:
    """Each panel has a title, bars, and the length at which they are cut; `room` is the width in longest bars."""
    from tensorstore_ds.pictures.sheet import EDGE, EVAL, FADED, INK, sheet

    heights = [len(bars) + 1.6 for _, bars, _ in panels]
    with sheet(file, 5.2, 0.29 * sum(heights) + 0.4) as figure:
        figure.suptitle(title, fontsize=11.5, x=0.01, ha="left")
        every = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for axes, (name, bars, longest) in zip(every, panels, strict=True):
            colors = [{OURS.title: EVAL, MEMCPY.title: EDGE}.get(way["title"], FADED) for _, way, _ in bars]
            lengths = [min(way["rate"], longest) for _, way, _ in bars]
            drawn = axes.barh([short for short, _, _ in bars], lengths, color=colors, height=0.74)
            axes.bar_label(drawn, [label for _, _, label in bars], padding=4, fontsize=10, color=INK)
            axes.set_xlim(0, room * max(lengths))
            axes.set_xticks([])
            axes.tick_params(axis="y", labelsize=10, length=0)
            axes.spines["bottom"].set_visible(False)
            axes.set_title(name, fontsize=10.5)


def _short_name(way: Mapping[str, Any]) -> str:
    """What a loader is called beside its bar.

    >>> _short_name({"title": "TensorDataset + DataLoader"}), _short_name({"title": "files (ImageFolder)"})
    ('TensorDataset', 'files (ImageFolder)')
    """
    return str(way["title"].removesuffix(" + DataLoader"))


def _bar_label(way: Mapping[str, Any], *, cut: bool) -> str:
    if way["title"] == OURS.title:
        return f"{way['rate']:,.0f}"
    return _rate({**way, "seconds": ()}) + (", cut" if cut else "")


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, the README's table, and, where there is matplotlib, the charts."""
    argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__).parse_args(arguments)
    results = load_results()
    PAGE.write_text(page(results))
    if "loading" in results:
        README.write_text(text_with(README.read_text(), short_table(results["loading"])))
        INDEX.write_text(text_with(INDEX.read_text(), headline(results["loading"]), *HEADLINE))
        draw(results["loading"], CHART)
    if "row_sizes" in results:
        draw_row_sizes(results["row_sizes"], ROW_SIZES)
    if "photographs" in results:
        draw_photographs(results["photographs"], PHOTOGRAPHS_CHART)


if __name__ == "__main__":
    main()
