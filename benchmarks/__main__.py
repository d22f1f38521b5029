"""``python -m benchmarks``: measure the figures, and print them as a Markdown table."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks import (
    convert_mnist,
    loading,
    loading_cold,
    loading_memory,
    memory,
    open_large,
    profile_convert,
    startup,
    take,
)
from benchmarks.images import write_digits
from benchmarks.measure import Figure, Settings, Table, machine

FIGURES: Mapping[str, Callable[[Settings], Sequence[Figure | Table]]] = {
    "convert_mnist": convert_mnist.measure,
    "take": take.measure,
    "open_large": open_large.measure,
    "memory": memory.measure,
    "startup": startup.measure,
    "loading": loading.measure,
    "loading_cold": loading_cold.measure,
    "loading_shared": loading_memory.measure_shared,
    "loading_epochs": loading_memory.measure_epochs,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is named; all of it if nothing is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"{', '.join(FIGURES)} (default: all)")
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="MNIST as PNG files: train/0 to test/9")
    parser.add_argument("--voc", type=Path, metavar="DIR", help="a VOC folder with a split train, such as BCCD")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the loaders' speeds, a PNG file")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="rounds of what is compared (default: 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here, too")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="a folder on a disk with 12 GB free (default: the system's)"
    )
    parser.add_argument("--profile", action="store_true", help="say where the time of a conversion goes, and end")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.figures if name not in FIGURES]
    if unknown:
        parser.error(f"expected figures out of {', '.join(FIGURES)}, found {unknown[0]}")
    if given.repeat < 1:
        parser.error(f"--repeat: expected at least 1, found {given.repeat}")
    if given.mnist is not None and not given.mnist.joinpath("train").is_dir():
        parser.error(f"--mnist: expected a folder with train/0 to test/9, found {given.mnist}")
    if given.voc is not None and not given.voc.joinpath("Annotations").is_dir():
        parser.error(f"--voc: expected a folder with Annotations, found {given.voc}")
    if given.chart is not None and importlib.util.find_spec("matplotlib") is None:
        parser.error("--chart: expected matplotlib to draw with, found none. pip install matplotlib")
    with _digits(given.mnist, given.scratch) as (digits, name):
        if given.profile:
            with _settings(given, digits, name) as settings:
                for line in profile_convert.profile(settings):
                    print(line)
            return
        found: list[Figure | Table] = []
        for figure in given.figures or FIGURES:
            _say(f"measuring {figure} ...")
            with _settings(given, digits, name) as settings:
                found += FIGURES[figure](settings)
    figures = [item for item in found if isinstance(item, Figure)]
    tables = [item for item in found if isinstance(item, Table)]
    print("\n".join(table(figures, machine())))
    for item in tables:
        print("", *item.lines(), sep="\n")
    if given.json:
        lines = [{**dataclasses.asdict(figure), "met": figure.met} for figure in figures]
        beside = [dataclasses.asdict(item) for item in tables]
        content = {"machine": machine(), "figures": lines, "tables": beside}
        given.json.write_text(json.dumps(content, indent=1) + "\n")


@contextmanager
def _digits(mnist: Path | None, scratch: Path | None) -> Iterator[tuple[Path, str]]:
    """The folder of 70,000 PNG files, and what they are."""
    if mnist is not None:
        yield mnist.absolute(), "the 70,000 MNIST PNGs"
        return
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        _say("no --mnist given: drawing 70,000 digits of 28x28 pixels instead ...")
        write_digits(Path(folder))
        yield Path(folder), "70,000 drawn PNGs of 28x28"


@contextmanager
def _settings(given: argparse.Namespace, digits: Path, name: str) -> Iterator[Settings]:
    with tempfile.TemporaryDirectory(dir=given.scratch) as folder:
        yield Settings(Path(folder), digits, name, given.repeat, given.voc, given.chart)


def table(figures: Sequence[Figure], described: Mapping[str, str]) -> Iterator[str]:
    """Lines of Markdown: the machine with the date, and a row a figure."""
    yield f"Measured on {', '.join(described.values())}."
    yield ""
    yield "| figure | target | measured | |"
    yield "|---|---|---|---|"
    for figure in figures:
        yield f"| {figure.what} | {figure.target} | {figure.measured} | {figure.note} |"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
