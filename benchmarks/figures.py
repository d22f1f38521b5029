"""``python -m benchmarks.figures``: docs/figures.md, its chart and the README's table, out of the results as JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.run import PARTS, shown
from benchmarks.loading import SMALL_BATCH, Ways, best
from benchmarks.measure import FIGURE_HEAD, RESULTS, ROOT, figures_of, table
from benchmarks.peers import MEMCPY, OURS
from benchmarks.torchvision_transforms import BY_IMAGE, WHOLE

PAGE, CHART, README = ROOT / "docs/figures.md", ROOT / "docs/loading.png", ROOT / "README.md"
BEGIN, END = "<!-- figures begin -->", "<!-- figures end -->"
PHOTOGRAPHS_CHART = ROOT / "docs/photographs.png"
INDEX, HEADLINE = ROOT / "docs/index.md", ("<!-- headline begin -->", "<!-- headline end -->")
#: Left out of the machine's description: the same everywhere, or of no weight.
_UNSAID = ("tensorstore-ds", "torchvision")

#: A row with fewer rounds shows their number.
ROUNDS = 7

Result = Mapping[str, Any]
_Bar = tuple[str, Mapping[str, Any], str]  # its name, the way that it shows, its label

_HEAD = """# Figures

`python -m benchmarks` measures these figures and generates this page from `benchmarks/results/`, which also contains
each round. `benchmarks/README.md` describes each measurement. Everything was measured on a CPU.

A ratio is the quotient of two medians, of 7 rounds unless a row shows their number. The range of the rounds follows in
brackets. A line below each table names the machine and the date:

"""
_LOADING = """## Loading

The table shows images per second, in shuffled epochs from the page cache. "Ours: 5 x" means that this project's
loader is 5x faster. The loaders took turns, each as its documentation advises, with two threads or two workers. Each
delivered every sample once.

![Images per second of every loader, as bars](loading.png)"""
_PHOTOGRAPHS = """## Photographs

Epochs of JPEG photographs from the page cache. The loaders take turns, with 2 threads or 2 worker processes, unless a
row names 1 thread. Training crops are `RandomResizedCrop(224)`. Validation crops are the center 224x224 of images whose
shorter side is resized to 256. Both are batches of 256 uint8 images. For detection, batches are whole images with
boxes.

"Images per CPU second" divides by the CPU time of the process, its threads and its workers, so other programs affect
it less. "kB per image" is the size of the files that a loader reads:

- `jpeg`: quality 90 with restart markers, at most 500 pixels a side. Only the crop is decoded.
- `source`: the original JPEG files. Only the crop is decoded.
- `raw`: pixels, at most 500 pixels a side.
- FFCV `jpg`: quality 90, at most 500 pixels a side, as in FFCV's example for ImageNet. Compare it with `jpeg`. FFCV
  decodes each image whole.
- FFCV `jpg, full size`: quality 90 at full size, because FFCV cannot store the original files. Compare it with
  `source`.
- Files: the original JPEG files, in folders. torchvision, torchcodec, DALI (on the CPU) and SPDL read them."""
_COLD = """## The first epoch, and memory

The memory of the host can cache a disk, and cannot be emptied from inside the machine. The note of the first epoch
reports signs of this."""
_FEED = """## What a fast GPU notices

Measured without a GPU. Ideal are 1 for the first batch, 0 for waiting and 1 for steps. A step of the script takes 1.3x
the loader's time for a batch. On a machine with fewer cores than threads, the waiting contains the time until the
system gives a core back to the script."""
_JOB = """## The whole job

A conversion pays off when the epochs have saved its time. "The first batch" is timed in a new process, from
`import tensorstore_ds` to the batch, after `import torch`."""
_TRANSFORMS = """## Batch transforms

The table shows images per second with a batch transform, and their share of the rate without one. On the CPU, the
threads that gather also transform. `Normalize` makes float32, so it writes 4x more bytes."""
_TORCHVISION = """## Batch transforms and torchvision

The speed of the batch transforms relative to `torchvision.transforms.v2`, in one thread on a CPU: the quotient of the
medians of processor time. Transforms with a probability change every image.

- First number: torchvision transforms each image separately. Collating is not timed.
- Second number: torchvision makes the same change to all images of the batch in one call. `MixUp` and `CutMix` exist
  only in this form, and `MixUp` raises an error for uint8 images.

At 224x224x3, some transforms with few operations per pixel are below 1: a batch transform also copies each changed
image into the batch, and separates and interleaves channels-last memory. At 32x32x3, torchvision spends most of its
time per call."""
_ROW_SIZES = """## Row sizes

Random rows are gathered from memory in one thread, into two buffers. One begins at a page boundary, as large buffers
of the loader and of `take` do, the other one 16 bytes later. Each row has a fixed cost, so small rows are slower."""
_TILES = """## Tiles of large images

One thread cuts random [tiles](large-images.md) of 640 x 640 pixels out of one image of 20,000 x 20,000 pixels. The
image shows photographs side by side, as a JPEG file of quality 90 with restart markers (`jpeg`) or without (`source`).
The reference is the same tiles of its parts of 1,000 x 1,000 pixels."""
_VIEWER = """## The viewer

[`tsds view`](viewer.md) shows a store of a million images of 24 x 24 pixels, each with a label, a number and two
boxes, in Chromium without a GPU, in a window of 1280 x 800 pixels. The columns of two filters are loaded before the
jumps and clicks."""
_GPU = """## On a GPU

`python -m benchmarks gpu` measures the loader on your GPU in 10 minutes: see [On your GPU](gpu.md#on-your-gpu).
`--list` shows its parts and what to expect.

One NVIDIA H100 80GB (PCIe 5, 16 lanes) with 16 cores of an Intel Xeon, torch 2.11.0+cu130 and Python 3.12 was measured
at commit 1fbbf04f, in one run each. Images per second of training with photographs of ImageNet,
`RandomResizedCrop(224)`, batch 256, bf16 and channels last, in epochs of 30 batches; in brackets the share of the time
in which the GPU was idle:

| | one batch that stays on the GPU | `jpeg` | `source` | ImageFolder, 16 workers |
| --- | --: | --: | --: | --: |
| ResNet-18 | 11,969 | 9,221 (19 %) | 6,669 (38 %) | 3,338 |
| ResNet-18, `num_threads=16` | | 8,985 (22 %) | 8,001 (31 %) | |
| ResNet-50 | 4,023 | 3,608 (8 %) | 3,223 (12 %) | 2,515 |

The GPU waited because each batch was made by one thread, and each epoch began with empty queues. Both were changed
after this run, and the result was not measured on a GPU yet. The loader alone, in images per second:

| threads | 1 | 2 | 4 | 8 | 16 |
| --- | --: | --: | --: | --: | --: |
| `source` | 1,006 | 2,082 | 3,803 | 6,801 | 11,160 |
| `jpeg` | 1,465 | 2,756 | 5,478 | 10,653 | 16,995 |

nvJPEG decoded 8,160 whole images per second. Seconds of an epoch of MNIST with a small ViT in float32:

| batch | TensorDataset | TensorDataset, pinned, 4 workers | store, page cache | store, `residency="device"` |
| --- | --: | --: | --: | --: |
| 500 | 2.293 | 1.951 | 2.410 | 2.054 |
| 1,000 | 1.150 | 0.954 | 0.687 | 0.722 |
| 5,000 | 0.902 | 0.603 | 0.409 | 0.399 |
| 10,000 | 0.854 | 0.592 | 0.389 | 0.383 |

The ways of batch 500 were not measured in turns, so their order may be chance. A step of a small model took 0.766 ms,
and 0.087 ms in a CUDA graph with `into`. With `torch.compile`, a ViT trained 12,573 images per second in place of 6,877
(bf16). Raw pixels of 224x224 trained a ViT tiny at 6,734, small at 4,201 and base at 2,086 images per second, and the
GPU was idle for at most 1.7 % of the time."""
_CONVERTING = """## Converting and opening

A conversion decodes with Pillow, as the bare loop does. It also lists the files twice, counts statistics, and syncs and
hashes every byte. Filter, sample and merge also check their input."""
_URLS = """## Stores by URL

The processor limits a pull from the same machine to about 1 GB/s: unlike obstore alone, a pull computes SHA-256, syncs
files, and writes a journal. With a slower network, the network is the limit."""


def load_results(folder: Path = RESULTS) -> dict[str, Any]:
    """By name, those that there are."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def page(results: Mapping[str, Result]) -> str:
    """The whole page: sections whose results there are, then the machines in its head."""
    parts = []
    for text, names in _SECTIONS:
        present = {name: results[name] for name in names if name in results}
        if not present and text is not _GPU:
            continue
        parts.append(text)
        rows = []
        for name, result in present.items():
            parts += _TABLES[name](result) if name in _TABLES else []
            rows += [] if name in _OWN_FIGURES else [figure.row for figure in figures_of(result)]
        parts += ["\n".join(table(FIGURE_HEAD, rows))] if rows else []
        parts += dict.fromkeys(map(measured_on, present.values()))
    text = "\n\n".join(part.strip("\n") for part in parts)
    machines: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return f"*Machine {machines.setdefault(found[1], str(1 + len(machines)))}, {found[2]}.*"

    text = re.sub(r"\*Measured on (.*), (\S+)\.\*", number, text)
    return _HEAD + "\n".join(f"{place}. {words}" for words, place in machines.items()) + f"\n\n{text}\n"


def measured_on(result: Result) -> str:
    """A line: the machine and the date."""
    machine = {**result["machine"], "memory": result["machine"]["memory"].partition(",")[0]}  # without what was free
    words = [word for name, word in machine.items() if name not in _UNSAID and "not installed" not in word]
    return f"*Measured on {', '.join(words)}.*"


def _gpu(result: Result) -> list[str]:
    """A row per part, measured or not."""
    rows = [[f"`{name}`", part.what, shown(result, name)] for name, part in PARTS.items()]
    return ["\n".join(table(("part", "what is measured", "measured"), rows))]


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
    return ["\n".join(table(("", *(one["title"] for one in races)), rows, right=1))]


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


def _photographs(result: Result) -> list[str]:
    """A table per task, then the targets, by the clock and by CPU time."""
    parts = [f"Medians of the photographs: {result['photographs']}."]
    parts += ["![Images per second of photographs, as bars](photographs.png)"]
    head = ("", "kB per image", "images per second", "images per CPU second")
    for one in result["races"]:
        rows = [_photograph_row(way) for way in one["ways"]]
        parts += [f"**{one['title']}**", "\n".join(table(head, rows, right=1))]
    targets: dict[str, list[str]] = {}
    for figure in figures_of(result):
        _, target, measured, _ = figure.row
        targets.setdefault(figure.what.partition(", photographs, ")[2], [target]).append(measured)
    rows = [[what, *cells, *[""] * (3 - len(cells))] for what, cells in targets.items()]
    return [*parts, "\n".join(table(("", "target", "speed", "images per CPU second"), rows))]


def _kernels(result: Result) -> list[str]:
    """A row per encoding, task and number of threads."""
    what = f"The loader with and without its compiled kernels ({result['kernels']}; {result['photographs']}):"
    head = ("images per CPU second", "with kernels", "without", "factor", "factor of wall time")
    return [what, "\n".join(table(head, list(map(_kernels_row, result["rows"])), right=1))]


def _photograph_row(way: Mapping[str, Any]) -> list[str]:
    title = photograph_title(way)
    title = f"**{title}**" if way["title"] == OURS.title else title
    if way["rate"] is None:
        return [title, "", f"not measured: {way['reason']}", ""]
    return [title, f"{way['nbytes'] / 1e3:,.0f}" if "nbytes" in way else "", _rates(way), _rates(way, "cpu_")]


def _kernels_row(row: Mapping[str, Any]) -> list[str]:
    threads = f"{row['threads']} thread{'s' if row['threads'] > 1 else ''}"
    factors = [_times(row["with"][rate] / row["without"][rate]) for rate in ("cpu_rate", "rate")]
    return [
        f"`{row['encoding']}`, {row['task']}, {threads}",
        *(_rates(row[n], "cpu_") for n in ("with", "without")),
        *factors,
    ]


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
    """A row per transform, a column per data set; empty where torchvision has none."""
    rows: dict[str, list[str]] = {}
    for each in result["transforms"]:
        factors = [_times(each[name]["cpu_ratio"]) if each[name] else "-" for name in (BY_IMAGE, WHOLE)]
        rows.setdefault(each["transform"], []).append(", ".join(factors) if set(factors) != {"-"} else "")
    head = (result["images"], *dict.fromkeys(each["data"] for each in result["transforms"]))
    return ["\n".join(table(head, [[name, *cells] for name, cells in rows.items()], right=1))]


def _range(values: Sequence[float]) -> str:
    """Median and range.

    >>> _range([1234.5, 1200, 1301]), _range([3.14159, 3, 3.5])
    ('1,234 (1,200 to 1,301)', '3.1 (3.0 to 3.5)')
    """
    decimals = 0 if values[0] >= 99.5 else 1
    middle, low, high = (f"{value:,.{decimals}f}" for value in values)
    return f"{middle} ({low} to {high})"


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


#: The text of each section, and the results that it shows.
_SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (_LOADING, ("loading",)),
    (_PHOTOGRAPHS, ("photographs", "photograph_kernels")),
    (_COLD, ("loading_cold", "larger_than_memory", "soak")),
    (_FEED, ("feed",)),
    (_JOB, ("whole_job", "first_batch")),
    (_TRANSFORMS, ("batch_transforms",)),
    (_TORCHVISION, ("torchvision_transforms",)),
    (_ROW_SIZES, ("row_sizes",)),
    (_TILES, ("tiles",)),
    (_VIEWER, ("viewer",)),
    (_GPU, ("gpu",)),
    (
        _CONVERTING,
        (
            *("convert_mnist", "convert_photographs", "engines", "scan_coco", "check_content"),
            *("edit_stores", "open_large", "memory", "startup"),
        ),
    ),
    (_URLS, ("remote", "mirror", "pull")),
)
#: What a result shows besides its figures.
_TABLES: Mapping[str, Callable[[Result], list[str]]] = {
    "loading": _races,
    "photographs": _photographs,
    "photograph_kernels": _kernels,
    "batch_transforms": _transforms,
    "torchvision_transforms": _against_torchvision,
    "row_sizes": _row_sizes,
    "gpu": _gpu,
}
#: Results whose tables show their figures.
_OWN_FIGURES = ("photographs", "photograph_kernels", "gpu")


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
    from tensorstore_ds.annex.pictures.sheet import EDGE, EVAL, FADED, INK, sheet

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
    if "photographs" in results:
        draw_photographs(results["photographs"], PHOTOGRAPHS_CHART)


if __name__ == "__main__":
    main()
