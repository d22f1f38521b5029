"""``python -m benchmarks.figures``: docs/figures.md and the README's chart, out of the results as JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.run import PARTS, shown
from benchmarks.loading import SMALL_BATCH
from benchmarks.measure import FIGURE_HEAD, RESULTS, ROOT, Figure, figures_of, table
from benchmarks.peers import OURS

PAGE, CHART, README = ROOT / "docs/figures.md", ROOT / "docs/photographs.svg", ROOT / "README.md"
BEGIN, END = "<!-- figures begin -->", "<!-- figures end -->"
#: Left out of the machine's description: the same everywhere, or of no weight.
_UNSAID = ("tensorstore-ds", "torchvision")

#: A row with fewer rounds shows their number.
ROUNDS = 7
#: What the page leaves out if it meets its target: what a table above shows, and further cases of a row that it keeps.
_FURTHER = re.compile(
    "|".join(
        (
            *("speed, 256x256x3, relative to FFCV", "speed, digits, relative to [FIT]", "speed, images with boxes"),
            *("MiB, (sequential|block shuffle): bytes read", "rows that sleep", "1,024 more tiles"),
            *("rows in 1 shard, ", "shards, a file of", "requests to open a store", "^check 100,000", "^scan COCO"),
            *("^pairs among", "of MNIST: private memory", "12 megapixels: private", "^tsds (--help|info)"),
            *("50 GB: additional", "zarr.json of 10,000", "128 images in order", "^take random rows"),
        )
    )
)

Result = Mapping[str, Any]
#: The bars of the chart: the loader, how it keeps photographs, and its name there.
_BARS = (
    (OURS.title, "jpeg", "tensorstore-ds, jpeg"),
    (OURS.title, "source", "tensorstore-ds, source (default)"),
    ("FFCV", "jpg", "FFCV"),
    ("files (DALI)", "", "DALI on the CPU, files"),
    ("files (torchvision)", "", "torchvision, files"),
)

_HEAD = """# Figures

`python -m benchmarks` measures these figures and generates this page from `benchmarks/results/`, which also contains
each round, and further figures that meet their targets. `benchmarks/README.md` describes each measurement. All sections
but [On a GPU](#on-a-gpu) are from a CPU.

A ratio is the quotient of two medians, of 7 rounds unless a row shows their number. The range of the rounds follows in
brackets. The machines are:

"""
_LOADING = """## Loading

Images per second in shuffled epochs from the page cache, rounded, with the range of the rounds. "Times slower" compares
with the first row, if both have two threads or two worker processes, and if their ranges do not overlap."""
_PHOTOGRAPHS = """## Photographs

Epochs of JPEG photographs from the page cache, with 2 threads or 2 worker processes, unless a row names 1 thread.
Crops are batches of 256 uint8 images.

"Images per CPU second" divides by the CPU time of the process, its threads and its workers. "kB per image" is the size
of the files that a loader reads:

- `jpeg` and `raw`: images of at most 500 pixels a side, as JPEG of quality 90 with restart markers, or as pixels.
- `source` and files: the original JPEG files.
- FFCV `jpg`: quality 90, at most 500 pixels a side, as in FFCV's example for ImageNet. Compare it with `jpeg`.
- FFCV `jpg, full size`: quality 90 at full size, because FFCV cannot store the original files. Compare it with
  `source`."""
_COLD = """## The first epoch, and memory

A cache in the memory of the host cannot be emptied from inside the machine."""
_FEED = """## What a fast GPU notices

Measured without a GPU. A step of the script takes 1.3x the loader's time for a batch. On a machine with fewer cores
than threads, the waiting contains the time until the system gives a core back to the script."""
_JOB = """## The whole job

"The first batch" is timed in a new process, from `import tensorstore_ds` to the batch, after `import torch`."""
_TRANSFORMS = """## Batch transforms

Images per second with a batch transform on the CPU, and their share of the rate without one. `Normalize` makes float32,
so it writes 4x more bytes."""
_TORCHVISION = """## Batch transforms and torchvision

The speed of the batch transforms by CPU time, in one thread, relative to `torchvision.transforms.v2` image by image.
`benchmarks/results/torchvision_transforms.json` has all of them. Those with few operations per pixel are slower at
224x224x3, because a batch transform also copies each changed image into the batch."""
_ROW_SIZES = """## Row sizes

Random rows are gathered from memory in one thread, into a buffer that begins at a page boundary. Each row has a fixed
cost, so small rows are slower."""
_TILES = """## Tiles of large images

One thread cuts random [tiles](large-images.md) of 640 x 640 pixels out of an image of photographs side by side, as a
JPEG file of quality 90 with restart markers (`jpeg`) or without (`source`), or as pixels. The reference is the same
tiles of its parts of 1,000 x 1,000 pixels."""
_VIEWER = """## The viewer

[`tsds view`](viewer.md) shows a store of a million images of 24 x 24 pixels, each with a label, a number and two
boxes, in Chromium without a GPU."""
_GPU = """## On a GPU

You can measure the loader [on your GPU](gpu.md#on-your-gpu). One NVIDIA H100 80GB (PCIe 5, 16 lanes) with 16 cores of
an Intel Xeon, torch 2.11.0+cu130 and Python 3.12 was measured at commit 1fbbf04f, in one run each. Images per second of
training with photographs of ImageNet, `RandomResizedCrop(224)`, batch 256, bf16 and channels last, in epochs of 30
batches; in brackets the share of the time in which the GPU was idle:

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

Unlike the bare loop, a conversion lists the files twice, counts statistics, and syncs and hashes every byte. Filter,
sample and merge also check their input."""
_URLS = """## Stores by URL

Unlike obstore alone, a pull computes SHA-256, syncs files, and writes a journal. The processor limits it to about 1
GB/s."""


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
            rows += [] if name in _OWN_FIGURES else [each.row for each in figures_of(result) if is_shown(each)]
        parts += ["\n".join(table(FIGURE_HEAD, rows))] if rows else []
        parts += dict.fromkeys(map(measured_on, present.values()))
    text = "\n\n".join(part.strip("\n") for part in parts)
    machines: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return f"*Machine {machines.setdefault(found[1], str(1 + len(machines)))}, {found[2]}.*"

    text = re.sub(r"\*Measured on (.*), (\S+)\.\*", number, text)
    return _HEAD + "\n".join(f"{place}. {words}" for words, place in machines.items()) + f"\n\n{text}\n"


def is_shown(figure: Figure) -> bool:
    """Whether the page has a figure; each missed one is there.

    >>> is_shown(Figure("check 100,000 small images: time", 3.0, 120.0)), is_shown(Figure("scan COCO", 31.0, 30.0))
    (False, True)
    """
    return not figure.met or not _FURTHER.search(figure.what)


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
    """A table per data set, a row per loader and mode, this project's first."""
    parts = []
    head = ("", "images per second", "range", "times slower")
    for one in result["races"]:
        ways = sorted(one["ways"], key=lambda way: way["title"] != OURS.title)
        rows = [_race_row(way, ways[0]) for way in ways]
        parts += [f"**{one['title']}**", "\n".join(table(head, rows, right=1))]
    return parts


def _race_row(way: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    small = f", batch {SMALL_BATCH}" if way["batch_size"] == SMALL_BATCH else ""
    title = f"{way['title']} {way['version']}".strip()
    title = f"{title}, {way['mode']}{small}".rstrip(", ")
    title = f"**{title}**" if way["title"] == OURS.title else title
    if way["rate"] is None:
        return [title, f"not measured: {way['reason']}", "", ""]
    seconds = way["seconds"]
    few = f"; {len(seconds)} rounds" if len(seconds) < ROUNDS else ""
    spread = f"{_rounded(1 / max(seconds))} to {_rounded(1 / min(seconds))}{few}"
    return [title, _rounded(way["rate"]), spread, _slower(way, ours)]


def _slower(way: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """How much slower a way is, where that can be said.

    >>> ours = {"title": "tensorstore-ds", "rate": 100.0, "seconds": [0.009, 0.011]}
    >>> _slower({"title": "FFCV", "mode": "raw, 2 threads", "rate": 50.0, "seconds": [0.02, 0.04]}, ours)
    '2.0'
    >>> _slower({"title": "memcpy", "mode": "2 threads", "rate": 90.0, "seconds": [0.01, 0.02]}, ours)
    'ranges overlap'
    >>> _slower({"title": "memcpy", "mode": "1 thread", "rate": 90.0, "seconds": [0.01, 0.02]}, ours)
    ''
    """
    if way["title"] == OURS.title or not re.search(r"\b2 (threads|workers)", way["mode"]):
        return ""
    if min(way["seconds"]) < max(ours["seconds"]):
        return "ranges overlap"
    return _times(ours["rate"] / way["rate"]).removesuffix(" x")


def _rounded(rate: float) -> str:
    """Whole thousands, of slower ways whole hundreds.

    >>> _rounded(115_410), _rounded(3_668), _rounded(526.4)
    ('115,000', '3,700', '526')
    """
    return f"{round(rate, -3 if rate >= 10_000 else -2 if rate >= 1_000 else 0):,.0f}"


def _times(ratio: float) -> str:
    decimals = 0 if ratio >= 9.95 else 1 if ratio >= 1 else 2
    return f"{ratio:,.{decimals}f} x"


# --- photographs --------------------------------------------------------------------------------------------------


def _photographs(result: Result) -> list[str]:
    """A table per task, then the targets, by the clock and by CPU time."""
    parts = [f"Medians of the photographs: {result['photographs']}."]
    parts += [f"![Images per second of training crops, as bars]({CHART.name})"]
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
    return [what, "\n".join(table(head, [_kernels_row(row) for row in result["rows"] if row["threads"] > 1], right=1))]


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
    bare: dict[str, float] = {}  # the first row of each data set has no transform
    for each in result["transforms"]:
        share = each["rate"] / bare.setdefault(each["data"], each["rate"])
        rows.setdefault(each["transform"], []).append(f"{each['rate']:,.0f} ({share:.2f})")
    head = ("images per second", *bare)
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
            f"{each['aligned'] / 1e9:.1f} ({each['aligned'] / each['memcpy']:.2f})",
        ]
        for each in result["sizes"]
    ]
    head = ("GB/s (relative to memcpy), rows of", "memcpy in one piece", "rows")
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
    (_TORCHVISION, ("torchvision_transforms", "views")),
    (_ROW_SIZES, ("row_sizes",)),
    (_TILES, ("tiles",)),
    (_VIEWER, ("viewer",)),
    (_GPU, ("gpu",)),
    (
        _CONVERTING,
        (
            *("convert_mnist", "convert_photographs", "keep_photographs", "engines", "scan_coco", "check_content"),
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
    "row_sizes": _row_sizes,
    "gpu": _gpu,
}
#: Results whose tables show their figures.
_OWN_FIGURES = ("photographs", "photograph_kernels", "gpu")


# --- files --------------------------------------------------------------------------------------------------------


def chart_of(result: Result) -> str:
    """The README's: the chart, and how it was measured."""
    machine = result["machine"]
    cpu = machine["cpu"].replace("(R)", "").removesuffix(" Processor")
    where = f"{machine['cores']} of an {cpu}, 2 threads or workers"
    return (
        f"![Images per second of training crops: tensorstore-ds, FFCV, DALI, torchvision](docs/{CHART.name})\n\n"
        f"`RandomResizedCrop(224)` of photographs of ImageNet, {where}: medians of {ROUNDS} rounds.\n"
        "[All figures](docs/figures.md), with ranges and missed targets."
    )


def text_with(text: str, put: str) -> str:
    """A page, such as the README, with a text between its marks."""
    return re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n\n{put}\n\n{END}", text, flags=re.DOTALL)


def draw(result: Result) -> str:
    """The chart as SVG, for light and dark themes: a bar per loader with its median, and a line over its range."""
    (race,) = (one for one in result["races"] if one["task"] == "train")
    left, width, row = 265, 760, 34
    ways = [
        next(w for w in race["ways"] if (w["title"], w["mode"]) == bar[:2] and w.get("threads") != 1) for bar in _BARS
    ]
    scale = (width - left - 80) * min(min(way["seconds"]) for way in ways)
    parts = []
    for place, (way, (title, _, name)) in enumerate(zip(ways, _BARS, strict=True)):
        y = 44 + row * place
        low, middle, high = (
            round(scale * each) for each in (1 / max(way["seconds"]), way["rate"], 1 / min(way["seconds"]))
        )
        kind = "ours" if title == OURS.title else "other"
        shown = f"{round(way['rate'], -1 if way['rate'] < 1000 else -2):,.0f}"
        parts += [
            f'<text class="text" x="{left - 10}" y="{y + 16}" text-anchor="end">{name}</text>',
            f'<rect class="{kind}" x="{left}" y="{y}" width="{middle}" height="22" rx="3"/>',
            f'<path class="range" d="M{left + low} {y + 11}H{left + high}"/>',
            f'<text class="text" x="{left + high + 10}" y="{y + 16}">{shown}</text>',
        ]
    height = 44 + row * len(_BARS) + 6
    light = ".page{fill:#fff}.text{fill:#1a2029}.other{fill:#9aa7ba}.ours{fill:#d55e00}.range{stroke:#1a2029}"
    dark = ".page{fill:#12161d}.text{fill:#e7ebf1}.other{fill:#56627a}.ours{fill:#e8792b}.range{stroke:#e7ebf1}"
    style = f"svg{{font:15px system-ui,sans-serif}}{light}@media (prefers-color-scheme:dark){{{dark}}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            'aria-label="Images per second of training crops, as bars">',
            f"<style>{style}</style>",
            f'<rect class="page" width="{width}" height="{height}" rx="8"/>',
            f'<text class="text" x="{left}" y="26" font-weight="600">Training crops of photographs per second</text>',
            *parts,
            "</svg>\n",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page and the README's chart."""
    argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__).parse_args(arguments)
    results = load_results()
    PAGE.write_text(page(results))
    if "photographs" in results:
        README.write_text(text_with(README.read_text(), chart_of(results["photographs"])))
        CHART.write_text(draw(results["photographs"]))


if __name__ == "__main__":
    main()
