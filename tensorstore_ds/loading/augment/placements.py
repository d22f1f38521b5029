"""Positions of images that are cut, resized, padded and mirrored, computed before a pixel is decoded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True, slots=True)
class Placements:
    """For each of B images: a part, resized, put onto a canvas, and optionally mirrored. Pairs are y, x.

    Several steps make one placement, so an image is resized only once. `origin` and `extent` (B, 2) float64 are the
    part in pixels of the image, `resized` (B, 2) int64 its new size, or 0 if nothing is left. `offset` (B, 2) int64 is
    its position on the canvas of `size` (B, 2) int64; it may begin before the canvas and end after it. Only [`first`,
    `last`), (B, 2) int64, of the canvas may show the image, so that padding does not show again what an earlier step
    has cut off, although the pixels at the edges depend on it.

    `flip` (B,) bool mirrors the canvas at last. `fill` is the value of the canvas, None if no step sets it. An object
    is dropped if a smaller share of its box than `min_visibility` is visible. `is_exact` is true if the pixels must be
    those of the whole file, decoded at its own size.
    """

    origin: NDArray[np.float64]
    extent: NDArray[np.float64]
    resized: NDArray[np.int64]
    offset: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    size: NDArray[np.int64]
    flip: NDArray[np.bool_]
    fill: float | None = None
    min_visibility: float = 0.0
    is_exact: bool = True

    @classmethod
    def whole(cls, sizes: ArrayLike) -> Self:
        """Return placements of images with these (B, 2) heights and widths, unchanged."""
        size = np.asfortranarray(sizes, np.int64).reshape(-1, 2, order="F")  # NumPy computes along y, and along x
        zeros = np.zeros_like(size)
        return cls(zeros.astype(float), size.astype(float), size, zeros, zeros, size, size, np.zeros(len(size), bool))

    def __len__(self) -> int:
        return len(self.size)

    @property
    def window(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Begin and end (B, 2) of the visible image on the canvas, before it is mirrored."""
        low = np.maximum(self.offset, self.first).clip(0, self.size)
        return low, np.minimum(self.offset + self.resized, self.last).clip(low, self.size)

    @property
    def zoom(self) -> NDArray[np.float64]:
        """Pixels of the canvas per pixel of the image, (B, 2)."""
        return self.resized / self.extent

    def crop(self, corner: ArrayLike, size: ArrayLike, min_visibility: float = 0.0) -> Self:
        """Cut parts of (height, width) `size` from the canvases, at `corner`: (B, 2), or one for all."""
        least = max(self.min_visibility, min_visibility)
        size = np.broadcast_to(np.asarray(size, np.int64), self.size.shape)
        corner = np.broadcast_to(np.asarray(corner, np.int64), size.shape).copy(order="K")
        x = corner[:, 1]
        corner[:, 1] = np.where(self.flip, self.size[:, 1] - size[:, 1] - x, x)
        offset, first, last = self.offset - corner, self.first - corner, self.last - corner
        return replace(self, offset=offset, first=first, last=last, size=size, min_visibility=least)

    def pad(self, before: ArrayLike, after: ArrayLike, fill: float) -> Self:
        """Add (B, 2) pixels at the top and left, and at the bottom and right. ValueError for a second fill value."""
        before, after = np.asarray(before, np.int64), np.asarray(after, np.int64)
        if not (before.any() or after.any()):
            return self
        if self.fill not in (None, fill):
            raise ValueError(f"fill: expected one for all steps of a plan, found {self.fill:g} and {fill:g}.")
        added = before
        if (before[..., 1] != after[..., 1]).any():
            added = np.where(self.flip[:, None] & np.array([False, True]), after, before)
        first, last = np.maximum(self.first, 0) + added, np.minimum(self.last, self.size) + added
        offset, size = self.offset + added, self.size + (before + after)
        return replace(self, offset=offset, first=first, last=last, size=size, fill=fill)

    def resize(self, sizes: ArrayLike) -> Self:
        """Resize the canvases to (B, 2) heights and widths, or one for all. Canvases of that size do not change."""
        sizes = np.broadcast_to(np.asarray(sizes, np.int64), self.size.shape)
        fit = (sizes == self.size).all(axis=1, keepdims=True)
        if fit.all():
            return self
        cut = self._without_hidden()
        zoom = sizes / cut.size
        seen = cut.resized > 0
        fills = (cut.resized == cut.size) | ~seen  # keep at least one pixel of a thin image
        resized = np.where(fills, sizes * seen, np.rint(cut.resized * zoom).clip(1, sizes)).astype(np.int64)
        offset = np.rint(cut.offset * zoom).astype(np.int64).clip(0, sizes - resized)
        moved = replace(cut, resized=resized, offset=offset, first=offset, last=offset + resized, size=sizes)
        names = ("origin", "extent", "resized", "offset", "first", "last") if fit.any() else ()
        return replace(moved, **{name: np.where(fit, getattr(self, name), getattr(moved, name)) for name in names})

    def mirror(self, where: NDArray[np.bool_]) -> Self:
        """Mirror the canvases left to right where `where`, (B,)."""
        return replace(self, flip=self.flip ^ where)

    def _without_hidden(self) -> Self:
        """Return the same picture with parts that contain only what is visible."""
        low, high = self.window
        if (low == self.offset).all() and (high == self.offset + self.resized).all():
            return self
        share = self.extent / np.maximum(1, self.resized)
        extent = np.maximum((high - low) * share, np.finfo(float).tiny)
        origin = self.origin + (low - self.offset) * share
        return replace(self, origin=origin, extent=extent, resized=high - low, offset=low, first=low, last=high)
