"""A format of its own: beside each image a file with its class, cat.jpg and cat.cls."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import click
import numpy as np

import tensorstore_ds as tsds
from tensorstore_ds.annex.exporting.base import Exporter
from tensorstore_ds.annex.exporting.samples import Names
from tensorstore_ds.errors import Problem
from tensorstore_ds.format.kinds import LabelField
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Match, Reference, Sample, Source
from tensorstore_ds.sources.names import order_classes


class ClsSource(Source):
    """A reference is the name of an image in the folder."""

    name: ClassVar[str] = "cls"

    @classmethod
    def detect(cls, path: Path) -> Match:
        """Look for .cls files."""
        # ONLY: the images alone would also be a folder without labels.
        return Match.ONLY if path.is_dir() and any(path.glob("*.cls")) else Match.NO

    def scan(self) -> Contents:
        """List the images that have a .cls file."""
        images = sorted(each.name for each in self.path.iterdir() if each.suffix.lower() in IMAGE_SUFFIXES)
        files = {image: (self.path / image).with_suffix(".cls") for image in images}
        names = {image: file.read_text().strip() for image, file in files.items() if file.is_file()}
        missing = [Problem(image, "no-annotation", "expected a .cls file.") for image in images if image not in names]
        classes = order_classes(names.values(), self.options.classes, str(self.path))
        self._labels = {image: classes.index(name) for image, name in names.items()}
        labels = np.array(list(self._labels.values()), np.int64)
        fields = {"label": LabelField(classes=classes)}
        return Contents(fields, {"train": list(names)}, {"train": labels}, tuple(missing))

    def files(self, reference: Reference) -> tuple[str, ...]:
        """Return the image and the .cls file: if one has changed, an interrupted conversion reads both again."""
        image = self.path / str(reference)
        return str(image), str(image.with_suffix(".cls"))

    def read(self, split: str, reference: Reference) -> Sample:
        """Read one sample."""
        return Sample(str(reference), self.path / str(reference), self._labels[str(reference)])


class ClsExporter(Exporter):
    """Images as they are stored, each with its class."""

    name: ClassVar[str] = "cls"
    takes: ClassVar[tuple[type, ...]] = (LabelField,)

    def export_split(self, split: str) -> None:
        """Write the samples of a split."""
        for sample in self.samples(split, Names()):
            self.write(f"{split}/{sample.name}", sample.image)
            label = self.classes[sample.label] if sample.label is not None and sample.label >= 0 else ""
            self.write(f"{split}/{Path(sample.name).with_suffix('.cls')}", f"{label}\n".encode())


@click.command()
@click.argument("store", type=click.Path(path_type=Path))
def classes(store: Path) -> None:
    """Print how many samples of a STORE each class has."""
    opened = tsds.open(store)
    for split in opened:
        for name, count in opened[split].class_counts.get("label", {}).items():
            click.echo(f"{split} {name} {count}")
