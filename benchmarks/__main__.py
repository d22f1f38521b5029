"""``python -m benchmarks``: measure, keep the results as JSON, and write the page of figures of them."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import (
    batch_transforms,
    check_content,
    convert_mnist,
    edit_stores,
    engines,
    feed,
    figures,
    larger_than_memory,
    loading,
    loading_cold,
    memory,
    mirror,
    open_large,
    pull,
    remote,
    row_sizes,
    scan_coco,
    soak,
    startup,
    tiles,
    torchvision_transforms,
    training,
    viewer,
    views,
    whole_job,
)
from benchmarks.gpu import run as gpu
from benchmarks.measure import RESULTS, Settings, say, write_result
from benchmarks.photographs import (
    conversion as photograph_conversion,
    kernels as photograph_kernels,
    race as photograph_race,
)
from benchmarks.samples import write_digits

MEASUREMENTS: Mapping[str, Callable[[Settings], Mapping[str, Any]]] = {
    "loading": loading.measure,
    "loading_cold": loading_cold.measure,
    "feed": feed.measure,
    "larger_than_memory": larger_than_memory.measure,
    "convert_mnist": convert_mnist.measure,
    "engines": engines.measure,
    "scan_coco": scan_coco.measure,
    "check_content": check_content.measure,
    "edit_stores": edit_stores.measure,
    "row_sizes": row_sizes.measure,
    "tiles": tiles.measure,
    "viewer": viewer.measure,
    "open_large": open_large.measure,
    "remote": remote.measure,
    "mirror": mirror.measure,
    "pull": pull.measure,
    "memory": memory.measure,
    "startup": startup.measure,
    "soak": soak.measure,
    "batch_transforms": batch_transforms.measure,
    "torchvision_transforms": torchvision_transforms.measure,
    "views": views.measure,
    "whole_job": whole_job.measure,
    "first_batch": whole_job.measure_first_batch,
    "photographs": photograph_race.measure,
    "photograph_kernels": photograph_kernels.measure,
    "convert_photographs": photograph_conversion.measure,
    "keep_photographs": photograph_conversion.measure_kept,
    "training": training.measure,
}
#: Those that take hours.
ONLY_IF_NAMED = ("training",)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is named; nearly all of it if nothing is. The first word ``gpu`` measures on a GPU."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["gpu"]:
        sys.exit(gpu.main(given[1:]))
    usual = [name for name in MEASUREMENTS if name not in ONLY_IF_NAMED]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    named = f"{', '.join(MEASUREMENTS)} (default: all but {', '.join(ONLY_IF_NAMED)})"
    parser.add_argument("measurements", nargs="*", metavar="NAME", help=named)
    parser.add_argument("--mnist", type=Path, metavar="DIR", help="MNIST as PNG files: train/0 to test/9")
    parser.add_argument("--voc", type=Path, metavar="DIR", help="a VOC folder with a split train, such as BCCD")
    photographs = "JPEG photographs in class folders, such as ImageNet's train (default: drawn ones)"
    parser.add_argument("--photographs", type=Path, metavar="DIR", help=photographs)
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="rounds of what is compared (default: 7)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where to keep the results")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="a folder on a disk with 12 GB free")
    options = parser.parse_args(given)
    unknown = [name for name in options.measurements if name not in MEASUREMENTS]
    if unknown:
        parser.error(f"expected some of {', '.join(MEASUREMENTS)}, found {unknown[0]}")
    if options.repeat < 1:
        parser.error(f"--repeat: expected at least 1, found {options.repeat}")
    if options.mnist is not None and not options.mnist.joinpath("train").is_dir():
        parser.error(f"--mnist: expected a folder with train/0 to test/9, found {options.mnist}")
    if options.voc is not None and not options.voc.joinpath("Annotations").is_dir():
        parser.error(f"--voc: expected a folder with Annotations, found {options.voc}")
    if options.photographs is not None and not any(options.photographs.glob("*/*.[jJ][pP]*[gG]")):
        parser.error(f"--photographs: expected a folder of class folders of JPEG files, found {options.photographs}")
    with _digits(options.mnist, options.scratch) as (digits, name):
        for measurement in options.measurements or usual:
            say(f"measuring {measurement} ...")
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
                settings = Settings(Path(folder), digits, name, options.repeat, options.voc, options.photographs)
                result = MEASUREMENTS[measurement](settings)
            if result:
                write_result(options.results / f"{measurement}.json", result)
            say(f"  took {time.monotonic() - begun:.0f} s{'' if result else ': nothing was measured'}")
    if options.results == RESULTS:
        figures.main([])


@contextmanager
def _digits(mnist: Path | None, scratch: Path | None) -> Iterator[tuple[Path, str]]:
    """The folder of 70,000 PNG files, and what they are."""
    if mnist is not None:
        yield mnist.absolute(), "MNIST"
        return
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        say("no --mnist given: drawing 70,000 digits of 28x28 pixels instead ...")
        write_digits(Path(folder))
        yield Path(folder), "drawn digits"


if __name__ == "__main__":
    main()
