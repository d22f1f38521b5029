"""What a store would give, before anything is converted: some samples of a source, as files and as a store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Unpack

from tensorstore_ds.annex.editing.chosen import ChosenSource
from tensorstore_ds.annex.keywords import DiagnoseKeywords
from tensorstore_ds.annex.measuring.bench import bench
from tensorstore_ds.annex.measuring.bench_options import BenchOptions
from tensorstore_ds.annex.measuring.bench_results import Cell, Comparison, Phase
from tensorstore_ds.annex.measuring.diagnose_options import DiagnoseOptions, split_of
from tensorstore_ds.archives import decompressing
from tensorstore_ds.conversion.convert import convert_source
from tensorstore_ds.conversion.estimate import Estimate, estimate
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.preparation import open_any
from tensorstore_ds.errors import OptionError
from tensorstore_ds.options import chosen, takes_options
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.regular_files import tidied
from tensorstore_ds.sources.base import Reference, Source

#: Samples that are converted and loaded, at most.
MOST = 2000
#: Share of the seconds for each of the 24 measurements; starting processes and the checks take the rest.
_SHARE, _LEAST = 1 / 40, 0.3


@dataclass(frozen=True, slots=True)
class Forecast:
    """Result of `forecast`: how fast training reads the source files now, and how fast it would read a store."""

    path: str  #: Path of the source.
    split: str  #: Name of the split that was measured.
    measured: int  #: Number of samples that were converted and loaded, spread over the whole split.
    estimate: Estimate  #: Estimate of the store that `convert` would make of the whole source.
    #: Speed of torchvision on the files and of a store with the same samples, each for loading alone and for training a
    #: small ViT.
    comparison: Comparison
    not_measured: str = ""  #: Reason why the files were not measured, or empty.

    @property
    def samples(self) -> int:
        """Number of samples in the split of the source."""
        return self.estimate.rows[self.split]

    def best(self, phase: Phase, group: Literal["files", "store"]) -> Cell | None:
        """Return the fastest measurement of the files or of the store, alone or in training, or None."""
        names = {way.name for way in self.comparison.ways if way.group == group}
        cells = [cell for cell in self.comparison.cells if cell.way in names and cell.phase == phase and cell.rate]
        return max(cells, key=lambda cell: cell.rate or 0.0, default=None)

    def gain(self, phase: Phase) -> float | None:
        """Return the speed of the store divided by the speed of the files, or None if one of them was not measured."""
        files, store = self.best(phase, "files"), self.best(phase, "store")
        return store.rate / files.rate if files and store and files.rate and store.rate else None

    @property
    def wait(self) -> float | None:
        """Share of a training step spent waiting for files, in [0, 1], that a store saves. None if not measured."""
        gain = self.gain("train")
        return None if gain is None else max(0.0, 1 - 1 / gain)


@takes_options(DiagnoseOptions)
def forecast(
    source: str | os.PathLike[str],
    options: DiagnoseOptions | None = None,
    *,
    progress: Callable[[str], None] | None = None,
    **keywords: Unpack[DiagnoseKeywords],
) -> Forecast:
    """Measure how fast training reads a source, and how fast it would read a store, before you convert anything.

    >>> found = tsds.forecast("photos", model="none", seconds=1, device="cpu")
    >>> found.measured, found.estimate.rows
    (8, {'train': 8, 'val': 4})

    First, the headers of all images are read, as `estimate` does. Then up to 2,000 samples, spread over the split, are
    converted into a temporary store. These samples are loaded with torchvision (`ImageFolder`, `VOCDetection` or the
    image files, with torch's DataLoader and its workers) and from the store, each alone and while training a small ViT.
    The source is not changed.

    Args:
        source: a folder, a file or an archive that `convert` reads.
        options: `split`, `image_size`, `batch_size`, `seconds` and `device`. With the model ``none``, only loading is
            measured.
        progress: function that is called with a description of the next measurement.
        keywords: options by name. Each overrides `options`.

    Raises:
        SourceError: the source contains nothing to convert.
        OptionError: the split or the device does not exist, or an option is of no effect here.
        ConversionError: the system's temporary folder has no room for the samples.
    """
    options, told = chosen(options, DiagnoseOptions, keywords), progress or (lambda stage: None)
    usual = DiagnoseOptions(model=options.model if options.model in ("none", "seed") else "tiny")
    for name in ("model", "num_threads", "prefetch_factor", "memory"):
        if getattr(options, name) != getattr(usual, name):
            raise OptionError(f"`{name}`: this is of no effect on a source. Leave it out, or pass a store.")
    path, wanted = tidied(source), ConvertOptions(on_error="skip")
    told("the source")
    with decompressing(), tempfile.TemporaryDirectory(prefix="tsds-forecast-") as folder:
        estimated = estimate(path, wanted)
        scratch = Path(folder)
        opened = open_any(path, wanted)
        contents = opened.contents()
        split = split_of(options.split, list(contents.splits))
        listed = contents.splits[split]
        rows = range(0, len(listed), -(-len(listed) // MOST))
        told(f"{len(rows):,} samples, converted")
        some = ChosenSource(opened, contents, {split: rows})
        made = convert_source(some, scratch / f"{path.name}.tsds", wanted, lambda event: None)
        store = open_store(made.path)[split]
        stored = set(map(store.key, range(len(store))))  # a bad file ends a program that reads files
        kept = [each for each in map(listed.__getitem__, rows) if opened.key(split, each) in stored]
        raw = path if path.is_dir() and len(kept) == len(listed) else _linked(opened, kept, scratch / "files")
        settings = BenchOptions(
            raw=raw,
            split=split,
            image_size=options.image_size,
            batch_sizes=[options.batch_size],
            ways=("store",) if raw is None else ("files", "store"),
            train=options.model != "none",
            seconds=max(_LEAST, _SHARE * options.seconds),
            device=options.device,
        )
        found = bench(made.path, settings, progress=lambda event: told(str(event)))
    reason = "" if raw is not None else f"expected image files in the folder of the source, found none ({opened.name})"
    failed = next((way.reason for way in found.ways if way.group == "files" and way.reason), "")
    return Forecast(str(path), split, made.rows[split], estimated, replace(found, store=str(path)), reason or failed)


def _linked(source: Source, references: Sequence[Reference], folder: Path) -> Path | None:
    """A folder with links to the files of some samples; None if the source has no files.

    A source of another package may name files outside of its folder: no link is made outside of `folder`.
    """
    folder.mkdir()
    root = source.path if source.path.is_dir() else source.path.parent
    for reference in references:
        for name in source.files(reference):
            file = Path(name)
            if not file.is_file() or not file.is_relative_to(root) or ".." in file.parts:
                return None
            link = folder / file.relative_to(root)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(file.absolute())
    return folder if any(folder.iterdir()) else None
