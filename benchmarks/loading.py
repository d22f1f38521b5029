"""Whole epochs of the loader and of its peers: large images, MNIST, and images with boxes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.chart import Bar, Panel, draw
from benchmarks.checksums import expected_digest
from benchmarks.measure import Figure, Settings, Table
from benchmarks.peers import FFCV, IMAGE_FOLDER, MEMCPY, OURS, PEERS, TENSOR_DATASET, VOC_DETECTION, Peer
from benchmarks.race import Entry, Result, race
from benchmarks.samples import make_digits, make_noise, make_objects

ROWS, SHAPE, BATCH = 5000, (256, 256, 3), 256
DIGITS_BATCH, SMALL_BATCH = 1000, 100
OBJECTS_BATCH = 16


def measure(settings: Settings) -> Sequence[Figure | Table]:
    """Figures of three races, the table of all loaders, and the chart if one is asked for."""
    before = os.getloadavg()[0]
    large = race_large(settings)
    digits = race_digits(settings)
    objects = race_objects(settings) if settings.voc else []
    panels = [
        _panel(f"{ROWS:,} images of 256x256x3, batch {BATCH}", large),
        _panel(
            f"train split of {settings.digits_name}, batch {DIGITS_BATCH}",
            [r for r in digits if r.entry.batch == DIGITS_BATCH],
        ),
        *([_panel(f"VOC boxes with images, batch {OBJECTS_BATCH}", objects)] if objects else []),
    ]
    if settings.chart:
        draw(panels, settings.chart, "Images a second, shuffled epochs from the page cache, two threads or two workers")
    figures = [*large_figures(large), *digits_figures(digits), *objects_figures(objects)]
    after = os.getloadavg()[0]
    title = f"Images a second, and how many times ours are (load average {before:.1f} before, {after:.1f} after)"
    return [*figures, Table(title, *_rows(large, digits, objects))]


# --- races --------------------------------------------------------------------------------------------------------


def race_large(settings: Settings, rows: int = ROWS, shape: tuple[int, int, int] = SHAPE) -> list[Result]:
    """Images of 196 KB, where bytes count."""
    source, scratch = settings.scratch / "noise", settings.scratch / "noise-race"
    make_noise(source, rows, shape)
    scratch.mkdir()
    fixed = [Entry(OURS, "2 threads", BATCH), *(Entry(MEMCPY, mode, BATCH) for mode in MEMCPY.modes)]
    others = [Entry(peer, mode, BATCH) for peer in PEERS for mode in peer.modes]
    return race(fixed, others, source, scratch, repeat=settings.repeat, expected=expected_digest(source))


def race_digits(settings: Settings) -> list[Result]:
    """Images of 784 bytes, where what is done for each image counts."""
    source, scratch = settings.scratch / "digits", settings.scratch / "digits-race"
    make_digits(source, settings.digits / "train")
    scratch.mkdir()
    fixed = [
        Entry(OURS, "2 threads", DIGITS_BATCH),
        Entry(OURS, "2 threads", SMALL_BATCH),
        Entry(MEMCPY, "1 thread", DIGITS_BATCH),
    ]
    others = [
        Entry(peer, mode, DIGITS_BATCH)
        for peer in (*PEERS, IMAGE_FOLDER)
        for mode in peer.modes
        if not mode.startswith("RGB")  # FFCV's images are of three channels
    ]
    return race(fixed, others, source, scratch, repeat=settings.repeat, expected=expected_digest(source))


def race_objects(settings: Settings) -> list[Result]:
    """Images with boxes, from files that torchvision can read as well."""
    source, scratch = settings.scratch / "objects", settings.scratch / "objects-race"
    make_objects(source, settings.voc or Path())
    scratch.mkdir()
    fixed = [Entry(OURS, mode, OBJECTS_BATCH) for mode in ("padded", "list")]
    others = [Entry(VOC_DETECTION, mode, OBJECTS_BATCH) for mode in VOC_DETECTION.modes]
    return race(fixed, others, source, scratch, repeat=settings.repeat, expected=None)


# --- figures ------------------------------------------------------------------------------------------------------


def large_figures(results: Sequence[Result]) -> list[Figure]:
    """The share of memcpy, and FFCV."""
    what = f"load shuffled batches of {BATCH} images of 256x256x3, 2 threads: speed, relative to"
    one, two = (_find(results, MEMCPY, mode) for mode in MEMCPY.modes)
    note = f"{_rate(results[0])} against {_rate(one)}; 2 threads of memcpy: {_rate(two)}"
    figures = [Figure(f"{what} memcpy in one thread", one.slower, 0.75, "x", at_least=True, note=note)]
    return [*figures, _against(what, results[0], _best(results, FFCV), 2)]


def digits_figures(results: Sequence[Result]) -> list[Figure]:
    """FFCV, TensorDataset, a smaller batch, and the files themselves."""
    ours, small = (
        next(r for r in results if r.entry.peer is OURS and r.entry.batch == n) for n in (DIGITS_BATCH, SMALL_BATCH)
    )
    what = f"load shuffled batches of {DIGITS_BATCH} digits: speed, relative to"
    share = None if small.slower is None else 1 / small.slower
    plain = _best([r for r in results if not r.entry.mode.startswith("whole")], TENSOR_DATASET)
    return [
        _against(what, ours, _best(results, FFCV), 1.7),
        _against(what, ours, plain, 15),
        _against(what, ours, _best(results, IMAGE_FOLDER), 200),
        Figure(
            f"load batches of {SMALL_BATCH} digits: speed, relative to batches of {DIGITS_BATCH}",
            share,
            0.5,
            "x",
            at_least=True,
            note=f"{_rate(small)} against {_rate(ours)}",
        ),
    ]


def objects_figures(results: Sequence[Result]) -> list[Figure]:
    """VOCDetection, for both forms of objects."""
    figures = []
    for form in ("padded", "list"):
        what = f"load shuffled batches of {OBJECTS_BATCH} images with boxes, `{form}`: speed, relative to"
        if not results:
            figures.append(Figure(f"{what} VOCDetection", None, 10, "x", at_least=True, note="not measured: --voc DIR"))
            continue
        ours, theirs = _find(results, OURS, form), _best(results, VOC_DETECTION)
        figures.append(_against(what, ours, theirs, 10))
    return figures


def _against(what: str, ours: Result, theirs: Result, limit: float) -> Figure:
    """How many times `theirs` we are; both relative to the first entry, round by round."""
    value = None if theirs.slower is None or ours.slower is None else theirs.slower / ours.slower
    name = f"{theirs.entry.peer.title}, {theirs.entry.mode}"
    note = f"{_rate(ours)} against {_rate(theirs)}" if value is not None else _why_not(theirs)
    return Figure(f"{what} {name}", value, limit, "x", decimals=1, at_least=True, note=note)


def _best(results: Sequence[Result], peer: Peer) -> Result:
    found = [result for result in results if result.entry.peer is peer]
    return max(found, key=lambda result: result.rate or 0)


def _find(results: Sequence[Result], peer: Peer, mode: str) -> Result:
    return next(result for result in results if result.entry.peer is peer and result.entry.mode == mode)


def _why_not(result: Result) -> str:
    if result.state == "missing":
        return f"not measured, not installed ({result.reason}): {result.entry.peer.install}"
    return f"not measured, {result.state}: {result.reason}"


def _rate(result: Result) -> str:
    return f"{result.rate:,.0f}/s" if result.rate else "not measured"


# --- table and chart ----------------------------------------------------------------------------------------------


def _rows(*races: Sequence[Result]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """A row a loader and mode: images a second in each race, and how many times ours are."""
    head = ("loader", "used with", "256x256x3", "ours", "digits", "ours", "with boxes", "ours")
    rows: dict[tuple[str, str, int], list[str]] = {}
    for number, results in enumerate(races):
        for result in results:
            entry = result.entry
            small = entry.batch if entry.batch == SMALL_BATCH else 0
            row = rows.setdefault((entry.peer.title, entry.mode, small), [""] * 6)
            row[2 * number] = f"{result.rate:,.0f}" if result.rate else _why_not(result)
            row[2 * number + 1] = _times(result.slower) if result.slower else ""
    versions = {result.entry.peer.title: result.version for results in races for result in results if result.version}
    return head, [
        (
            f"{title} {versions.get(title, '')}".strip(),
            f"{mode}, batch {small}" if small else mode,
            *cells,
        )
        for (title, mode, small), cells in rows.items()
    ]


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} x" if ratio >= 10 else f"{ratio:.2f} x"


def _panel(title: str, results: Sequence[Result]) -> Panel:
    bars = [
        Bar(f"{r.entry.peer.title}, {r.entry.mode}", r.rate, ours=r.entry.peer is OURS, limit=r.entry.peer is MEMCPY)
        for r in results
        if r.rate
    ]
    return Panel(title, sorted(bars, key=lambda bar: -bar.value))
