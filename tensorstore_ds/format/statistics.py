"""What a split's samples are like: class counts, channel mean and standard deviation, objects, original sizes.

Blocks are summed in worker processes and added up; sums of 8- and 16-bit pixels are exact integers, so that the result
does not depend on how the work was divided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import native

#: Original sizes are listed one by one up to this many different ones.
MAX_DISTINCT_SIZES = 16
#: No channel has larger numbers; NaN and infinity are not below it either.
_LARGEST = 1e300
#: Pixels are squared in pieces of this size, so that squares of a large image never fill memory; and of so many lines,
#: whose sum 16 bits can hold.
_PIECE_NBYTES = 4 * 1024**2
_PIECE_LINES = 256
#: Numbers of a line that is worth a sum of its own.
_SHORT = 256
#: The compiled kernel adds up no more channels.
_MOST_CHANNELS = 4


class Statistics:
    """Sums over samples, to which blocks and other sums can be added.

    All state is one JSON object, so that a finished shard's sums can wait on disk.
    """

    def __init__(self, sums: Mapping[str, Any] | None = None) -> None:
        self.sums: dict[str, Any] = dict(sums or {})

    def add_labels(self, labels: NDArray[np.int64], classes: int) -> None:
        """Count image labels, (n,); those that are negative stand for samples without one."""
        self.add({"class_counts": np.bincount(labels[labels >= 0], minlength=classes).tolist()})

    def add_objects(self, lengths: NDArray[np.int64], labels: NDArray[np.int64] | None, classes: int) -> None:
        """Count objects: `lengths` (n,) of each sample, and their class indices (M,), if they have any."""
        if len(lengths):
            low, high = int(lengths.min()), int(lengths.max())
            self.add({"objects": {"samples": len(lengths), "total": int(lengths.sum()), "min": low, "max": high}})
        if labels is not None:
            self.add({"object_counts": np.bincount(labels, minlength=classes).tolist()})

    def add_keypoints(self, keypoints: NDArray[np.float32]) -> None:
        """Count absent keypoints, (M, K, 2), of the objects that have some; the manifest does not have these sums."""
        absent: NDArray[np.bool_] = np.any(np.isnan(keypoints), axis=2)
        absent = absent[~np.all(absent, axis=1)]
        self.add({"keypoints": [len(absent), *absent.sum(axis=0).tolist()]})

    def add_sizes(self, sizes: NDArray[np.int32]) -> None:
        """Note original sizes, (n, 2) height width."""
        self.add({"samples": len(sizes)})
        for name, values in zip(("height", "width"), sizes.T.astype(np.int64), strict=True):
            if len(values):
                self.add({name: {"min": int(values.min()), "max": int(values.max()), "sum": int(values.sum())}})
        distinct, counts = np.unique(sizes, axis=0, return_counts=True)
        named = {f"{h}x{w}": int(n) for (h, w), n in zip(distinct.tolist(), counts, strict=True)}
        self.add({"distinct": _add_distinct({}, named)})

    def add_pixels(self, pixels: NDArray[Any], reduction: int = 1) -> None:
        """Sum values and squares by channel, of (..., W, C).

        Args:
            reduction: by how much the image was made smaller for this; each pixel counts for all that it stands for.
        """
        total, squares = _channel_sums(pixels)
        sums = {
            "dtype": pixels.dtype.name,
            "count": math.prod(pixels.shape[:-1]) * reduction**2,
            "sum": [each * reduction**2 for each in total],
            "squares": [each * reduction**2 for each in squares],
            "reduction": reduction,
        }
        self.add({"channels": _if_finite(sums)})

    def add(self, other: Statistics | Mapping[str, Any]) -> None:
        """Add the sums of other samples."""
        sums = other.sums if isinstance(other, Statistics) else other
        for name, value in sums.items():
            self.sums[name] = _ADD[name](self.sums[name], value) if name in self.sums else value

    def summary(self) -> dict[str, Any]:
        """The statistics as the manifest has them: ``formats/v1/spec.md`` section 4.5."""
        sums = self.sums
        summary: dict[str, Any] = {name: sums[name] for name in ("class_counts", "object_counts") if name in sums}
        if "objects" in sums:
            objects = sums["objects"]
            summary["objects"] = {name: objects[name] for name in ("total", "min", "max")}
            summary["objects"]["mean"] = objects["total"] / objects["samples"]
        if sums.get("channels") is not None:
            summary["channels"] = _moments(sums["channels"])
        if "masks" in sums:
            summary["masks"] = sums["masks"]
        if "height" in sums:
            samples = sums["samples"]
            sizes: dict[str, Any] = {}
            for name in ("height", "width"):
                size = sums[name]
                sizes[name] = {"min": size["min"], "max": size["max"], "mean": size["sum"] / samples}
            summary["sizes"] = {**sizes, "distinct": sums["distinct"]}
        return summary


#: A split's statistics as the manifest has them, its samples, and the pixels of its images.
Summary = tuple[Mapping[str, Any], int, int]


def join_summaries(first: Summary, second: Summary) -> dict[str, Any]:
    """The statistics of the samples of two splits together, from those of each; what only one tells is left out.

    Class counts of the second may be longer: classes come after those of the first.
    """
    (a, rows_a, pixels_a), (b, rows_b, pixels_b) = first, second
    joined: dict[str, Any] = {}
    for name in ("class_counts", "object_counts"):
        if name in a and name in b:
            counts = np.zeros(max(len(a[name]), len(b[name])), np.int64)
            counts[: len(a[name])] += np.array(a[name], np.int64)
            counts[: len(b[name])] += np.array(b[name], np.int64)
            joined[name] = counts.tolist()
    if "objects" in a and "objects" in b:
        joined["objects"] = _add_range(*({k: each["objects"][k] for k in ("total", "min", "max")} for each in (a, b)))
        joined["objects"]["mean"] = joined["objects"]["total"] / (rows_a + rows_b)
    moments = channel_moments(a), channel_moments(b)
    known = [each for each in moments if each]
    channels = common_channels(len(known[0][0]), len(known[1][0])) if len(known) == 2 else None
    if channels is not None and known[0][2] == known[1][2]:
        weights = [pixels_a, pixels_b]
        means, stds = (
            np.array([as_channels(values, channels) for values in pair], np.float64)
            for pair in ([mean for mean, *_ in known], [std for _, std, _ in known])
        )
        mean = np.average(means, axis=0, weights=weights)
        variance = np.average(stds**2 + (means - mean) ** 2, axis=0, weights=weights)
        joined["channels"] = {"mean": mean.tolist(), "std": np.sqrt(variance).tolist(), "scale": known[0][2]}
        reduction = max(each["channels"].get("reduction", 1) for each in (a, b))
        joined["channels"] |= {"reduction": reduction} if reduction > 1 else {}
    if "masks" in a and "masks" in b:
        joined["masks"] = _add_masks(a["masks"], b["masks"])
    if "sizes" in a and "sizes" in b:
        sizes: dict[str, Any] = {}
        for name in ("height", "width"):
            one, other = a["sizes"][name], b["sizes"][name]
            mean = (one["mean"] * rows_a + other["mean"] * rows_b) / (rows_a + rows_b)
            sizes[name] = {"min": min(one["min"], other["min"]), "max": max(one["max"], other["max"]), "mean": mean}
        joined["sizes"] = {**sizes, "distinct": _add_distinct(a["sizes"]["distinct"], b["sizes"]["distinct"])}
    return joined


def channel_moments(statistics: Mapping[str, Any]) -> tuple[list[float], list[float], float] | None:
    """Mean and standard deviation of each channel in a split's statistics, of values divided by the third.

    A manifest may come from anywhere: None, too, where these are not finite numbers, one of each a channel.
    """
    found = statistics.get("channels")
    if not isinstance(found, Mapping):
        return None
    mean, std, scale = found.get("mean"), found.get("std"), found.get("scale", 1)
    if not isinstance(mean, list) or not isinstance(std, list) or len(mean) != len(std):
        return None
    if not all(type(n) in (int, float) and abs(n) < _LARGEST for n in (*mean, *std, scale)) or min(std, default=0) < 0:
        return None
    return mean, std, scale


def class_counts(statistics: Mapping[str, Any], name: str, kind: str, classes: Sequence[str]) -> dict[str, int]:
    """How often each class of a field occurs, by its name; empty where the statistics do not say it, in good form."""
    masks = statistics.get("masks")
    mask = masks.get(name) if isinstance(masks, Mapping) else None
    pixels = mask.get("pixels") if isinstance(mask, Mapping) else None
    kinds = {"label": statistics.get("class_counts"), "objects": statistics.get("object_counts"), "mask": pixels}
    counts = kinds.get(kind)
    if not isinstance(counts, list) or len(counts) != len(classes) or not all(type(n) is int for n in counts):
        return {}
    return dict(zip(classes, counts, strict=True))


def _channel_sums(pixels: NDArray[Any]) -> tuple[list[Any], list[Any]]:
    """Sums and sums of squares of each channel of pixels (..., W, C): exact for 8 and 16 bits, else float64."""
    width, channels = pixels.shape[-2:]
    fits_kernel = pixels.dtype == np.uint8 and channels <= _MOST_CHANNELS and pixels.flags.c_contiguous
    if native.core is not None and fits_kernel:
        sums = native.core.sums(pixels, channels)
        return list(sums[:channels]), list(sums[channels:])
    if width * channels < _SHORT:  # a whole image as a line
        width *= math.prod(pixels.shape[-3:-2])
    lines = pixels.reshape(-1, width * channels)
    # Whole lines are summed first, along the long contiguous axis, and folded into channels after.
    step = min(_PIECE_LINES, max(1, _PIECE_NBYTES // max(1, lines[:1].nbytes)))
    with np.errstate(over="ignore", invalid="ignore"):  # sums that are not finite are given up by the caller
        total, squares = _line_sums(lines[:step])
        for start in range(step, len(lines), step):
            more = _line_sums(lines[start : start + step])
            total, squares = total + more[0], squares + more[1]
        return total.reshape(width, channels).sum(0).tolist(), squares.reshape(width, channels).sum(0).tolist()


def _line_sums(lines: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Sums and sums of squares of at most `_PIECE_LINES` along axis 0: exact for 8 and 16 bits, else float64."""
    if lines.dtype == np.uint8:  # in the narrowest type that holds them, which takes half of the time
        squares = np.multiply(lines, lines, dtype=np.uint16)  # 255 squared is 65025
        total = lines.sum(0, dtype=np.uint16), squares.sum(0, dtype=np.uint32)
        return total[0].astype(np.uint64), total[1].astype(np.uint64)
    if lines.dtype == np.uint16:
        wide = lines.astype(np.uint64)
        return wide.sum(0), (wide * wide).sum(0)
    values = lines.astype(np.float64)
    return values.sum(0), (values * values).sum(0)


def _moments(channels: Mapping[str, Any]) -> dict[str, Any]:
    scale = {"uint8": 255, "uint16": 65535}.get(channels["dtype"], 1)
    count = channels["count"]
    mean, std = [], []
    for total, squares in zip(channels["sum"], channels["squares"], strict=True):
        mean.append(total / count / scale)
        if isinstance(total, int):  # exact until the one division, so that nothing cancels
            variance = (count * squares - total * total) / (count * count)
        else:  # in this order, so that nothing overflows
            variance = squares / count - (total / count) * (total / count)
        std.append(math.sqrt(max(variance, 0.0)) / scale)
    reduction = channels["reduction"]
    return {"mean": mean, "std": std, "scale": scale, **({"reduction": reduction} if reduction > 1 else {})}


def _add_lists(a: list[Any], b: list[Any]) -> list[Any]:
    return [x + y for x, y in zip(a, b, strict=True)]


def _add_range(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    rules = {"min": min, "max": max}
    return {name: rules.get(name, lambda x, y: x + y)(a[name], b[name]) for name in a}


def _add_masks(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Pixels of each class, and ignored ones, of each field."""
    joined = {**a, **b}
    for name in a.keys() & b.keys():
        pixels = _add_lists(a[name]["pixels"], b[name]["pixels"])
        joined[name] = {"pixels": pixels, "ignored": a[name]["ignored"] + b[name]["ignored"]}
    return joined


def _add_channels(a: dict[str, Any] | None, b: dict[str, Any] | None) -> dict[str, Any] | None:
    if a is None or b is None or a["dtype"] != b["dtype"]:
        return None
    channels = common_channels(len(a["sum"]), len(b["sum"]))
    if channels is None:
        return None
    sums = {n: _add_lists(as_channels(a[n], channels), as_channels(b[n], channels)) for n in ("sum", "squares")}
    reduction = max(a["reduction"], b["reduction"])
    return _if_finite({"dtype": a["dtype"], "count": a["count"] + b["count"], "reduction": reduction, **sums})


def common_channels(first: int, second: int) -> int | None:
    """Channels of images with so many and others: those of both, or 3 of gray and color images, which load as RGB."""
    return first if first == second else 3 if {first, second} == {1, 3} else None


def as_channels(values: list[Any], channels: int) -> list[Any]:
    """Numbers by channel, of so many channels: a gray image has the same values in each."""
    return values * channels if len(values) == 1 else values


def _if_finite(channels: dict[str, Any]) -> dict[str, Any] | None:
    """None for sums that float64 cannot hold, such as that of squares of 1e200: JSON has no infinity."""
    return channels if all(map(math.isfinite, channels["sum"] + channels["squares"])) else None


def _add_distinct(a: dict[str, int] | None, b: dict[str, int] | None) -> dict[str, int] | None:
    if a is None or b is None:
        return None
    joined = {size: a.get(size, 0) + b.get(size, 0) for size in sorted({*a, *b})}
    return joined if len(joined) <= MAX_DISTINCT_SIZES else None


_ADD: Mapping[str, Any] = {
    "samples": lambda a, b: a + b,
    "class_counts": _add_lists,
    "object_counts": _add_lists,
    "objects": _add_range,
    "height": _add_range,
    "width": _add_range,
    "distinct": _add_distinct,
    "channels": _add_channels,
    "images_of": lambda a, b: {channels: a.get(channels, 0) + b.get(channels, 0) for channels in {**a, **b}},
    "masks": _add_masks,
    "keypoints": _add_lists,
    "emptied": lambda a, b: a + b,
    "file_nbytes": lambda a, b: a + b,
}
