"""What can be asked of a conversion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tensorstore_ds.conversion.encode import ImageOptions
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.schema import Encoding, Keypoints, Layout
from tensorstore_ds.imaging.codecs import MAX_PIXELS, Color
from tensorstore_ds.imaging.placement import Fit
from tensorstore_ds.sources.base import SourceOptions
from tensorstore_ds.sources.files import encoding_problem

OnError = Literal["fail", "skip"]


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """All that can be asked of a conversion.

    Attributes:
        format: of the source: a name of `sources.FORMATS`, or ``auto``.
        layout: ``memmap`` to train from, ``zarr`` (compressed) to share.
        encoding, quality, size, fit, color, max_pixels: of images, see `encode.ImageOptions`; size is (height, width).
        classes, keypoints, images: of the source, see `sources.base.SourceOptions`.
        split: divide the source's samples: name to fraction.
        seed: of that division.
        shard_nbytes: size of a shard's largest field, about.
        workers: processes; 0 for none but this one, None for the cores that this process may use.
        on_error: ``fail`` stops at the first bad sample, ``skip`` leaves it out and names it in ``skipped.jsonl``.
        license, citation: noted in the manifest.
    """

    format: str = "auto"
    layout: Layout = "memmap"
    encoding: Encoding = "raw"
    quality: int = 90
    size: tuple[int, int] | None = None
    fit: Fit = "pad"
    color: Color = "auto"
    max_pixels: int = MAX_PIXELS
    classes: tuple[str, ...] | None = None
    keypoints: Keypoints | None = None
    images: Path | None = None
    split: Mapping[str, float] | None = None
    seed: int = 0
    shard_nbytes: int = 4 * 1024**3
    workers: int | None = None
    on_error: OnError = "fail"
    license: str | None = None
    citation: str | None = None

    def check(self) -> None:
        """Raise `OptionError` for options that contradict each other, or that no store can hold."""
        self.image.check()
        if not 0 <= self.seed < 2**63:
            raise OptionError(f"--seed: expected a number in [0, 2^63), found one of {self.seed.bit_length()} bits.")
        for name, text in (("license", self.license), ("citation", self.citation)):
            if text is not None and encoding_problem(text) is not None:
                raise OptionError(f"--{name}: expected text in UTF-8, found other bytes.")

    @property
    def image(self) -> ImageOptions:
        """The options that concern images."""
        return ImageOptions(self.encoding, self.quality, self.size, self.fit, self.color, self.max_pixels)

    @property
    def source(self) -> SourceOptions:
        """The options that concern the source."""
        return SourceOptions(self.classes, self.keypoints, self.images)

    def deciding(self) -> dict[str, Any]:
        """All that may decide the bytes of a shard: what must be the same in the run that a conversion goes on from."""
        return {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(self).items()
            if name not in _NOT_DECIDING
        }

    def recorded(self) -> dict[str, Any]:
        """What is noted in the store of how it was made; names of fields say the rest, and paths are private."""
        return {name: value for name, value in self.deciding().items() if name not in _NOT_RECORDED}


_NOT_DECIDING = frozenset({"workers", "on_error", "license", "citation"})
_NOT_RECORDED = frozenset({"format", "classes", "keypoints", "images"})
