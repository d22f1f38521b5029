"""Statistics of a split by field: class counts, mean and standard deviation, numbers of objects, original sizes.

Each kind of field has its own class of sums. Worker processes sum blocks, and the sums are added up. Sums of 8- and
16-bit pixels are exact integers, so that the result does not depend on how the work was divided.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import native

#: Original sizes are listed one by one up to this many different ones.
MAX_DISTINCT_SIZES = 16
#: Larger than the numbers of any channel; NaN and infinity are not below it either.
_LARGEST = 1e300
#: Pixels are squared in pieces of this size, so that squares of a large image never fill memory, and of this many
#: lines, whose sum 16 bits can hold.
_PIECE_NBYTES = 4 * 1024**2
_PIECE_LINES = 256
#: Minimum length of a line that is summed separately.
_SHORT = 256
#: Divisor of integers in statistics, by their dtype.
_SCALES = {"uint8": 255, "uint16": 65535}
#: The compiled kernel supports at most this many channels.
_MOST_CHANNELS = 4


class Statistics(dict[str, "Sums"]):
    """The sums of some samples, by field."""

    def add(self, other: Mapping[str, Sums | None]) -> None:
        """Add the sums of other samples; None adds nothing."""
        for name, sums in other.items():
            if sums is not None:
                self[name] = self[name] + sums if name in self else sums

    def summary(self) -> dict[str, Any]:
        """Return the statistics in the manifest's form: ``formats/v1/spec.md`` section 4.5."""
        return {name: summary for name, sums in self.items() if (summary := sums.summary())}

    def dump(self) -> dict[str, Any]:
        """Return the sums as JSON, to store the sums of a finished shard on disk."""
        return {name: {"kind": sums.kind, **vars(sums)} for name, sums in self.items()}

    @classmethod
    def parse(cls, data: Mapping[str, Mapping[str, Any]]) -> Self:
        """Parse the result of `dump`. Raises `KeyError`, `TypeError` or `ValueError` for other data."""
        members = {name: dict(sums) for name, sums in dict(data).items()}
        return cls({name: _SUMS[sums.pop("kind")](**sums) for name, sums in members.items()})


@dataclass(frozen=True)
class Sums:
    """Sums over the samples of one field. Each kind of field has its own subclass."""

    kind: ClassVar[str]  #: of the field

    def __add__(self, other: Self) -> Self:
        """Return the sums over the samples of both."""
        raise NotImplementedError

    def less(self, part: Sums) -> Sums | None:
        """Return the sums without some of the samples, or None if the rest must be counted."""
        return None

    def summary(self) -> dict[str, Any]:
        """Return the field's statistics in the manifest's form, empty if unknown."""
        raise NotImplementedError

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> Sums | None:
        """Return the sums of a summary and its weight (pixels or samples), or None without known valid members."""
        raise NotImplementedError


def parse_summary(kind: str, summary: object, weight: int) -> Sums | None:
    """Parse the summary of a field of any kind, from any value, as in `Sums.of`."""
    return _SUMS[kind].of(summary, weight) if kind in _SUMS and isinstance(summary, Mapping) else None


def join_summaries(kind: str, parts: Iterable[tuple[object, int]]) -> dict[str, Any]:
    """Join pairs of statistics and weight of a field, empty if one lacks them. Additional classes are at the end."""
    sums = [parse_summary(kind, *part) for part in parts]
    known = [each for each in sums if each is not None]
    return functools.reduce(operator.add, known).summary() if known and len(known) == len(sums) else {}


# --- labels, objects, masks -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelSums(Sums):
    """Number of samples of each class."""

    kind: ClassVar[str] = "label"
    class_counts: list[int]

    @classmethod
    def of_labels(cls, labels: NDArray[np.int64], classes: int) -> LabelSums:
        """Sum labels (n,). Negative ones are samples without a label."""
        return cls(np.bincount(labels[labels >= 0], minlength=classes).tolist())

    def __add__(self, other: Self) -> Self:
        return replace(self, class_counts=_add_counts(self.class_counts, other.class_counts))

    def less(self, part: Sums) -> LabelSums | None:
        counts = _less_counts(self.class_counts, part.class_counts) if isinstance(part, LabelSums) else None
        return None if counts is None else LabelSums(counts)

    def summary(self) -> dict[str, Any]:
        return {"class_counts": self.class_counts}

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> LabelSums | None:
        counts = _counts(summary.get("class_counts"))
        return None if counts is None else cls(counts)


@dataclass(frozen=True)
class MultiLabelSums(Sums):
    """Number of samples to which each class applies, and of unknown ones. None means unknown."""

    kind: ClassVar[str] = "labels"
    class_counts: list[int]
    unknown: list[int] | None

    @classmethod
    def of_labels(cls, labels: NDArray[np.int8]) -> MultiLabelSums:
        """Sum rows (n, C): 1 if a class applies, negative if unknown."""
        return cls((labels > 0).sum(axis=0).tolist(), (labels < 0).sum(axis=0).tolist())

    def __add__(self, other: Self) -> Self:
        unknown = _if_both(_add_counts, self.unknown, other.unknown)
        return replace(self, class_counts=_add_counts(self.class_counts, other.class_counts), unknown=unknown)

    def less(self, part: Sums) -> MultiLabelSums | None:
        if not isinstance(part, MultiLabelSums):
            return None
        counts = _less_counts(self.class_counts, part.class_counts)
        unknown = _if_both(_less_counts, self.unknown, part.unknown)
        return None if counts is None or unknown is None else MultiLabelSums(counts, unknown)

    def summary(self) -> dict[str, Any]:
        return {"class_counts": self.class_counts, **({} if self.unknown is None else {"unknown": self.unknown})}

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> MultiLabelSums | None:
        counts = _counts(summary.get("class_counts"))
        return None if counts is None else cls(counts, _counts(summary.get("unknown")))


@dataclass(frozen=True)
class MaskSums(Sums):
    """Number of pixels of each class, and of ignored pixels. None means unknown."""

    kind: ClassVar[str] = "mask"
    class_counts: list[int]
    ignored: int | None

    @classmethod
    def of_masks(cls, masks: NDArray[Any], classes: int, ignored: int | None) -> MaskSums:
        """Sum masks (n, H, W), in which pixels of the value `ignored` belong to no class."""
        values = int(np.iinfo(masks.dtype).max) + 1
        counts = sum((np.bincount(mask.reshape(-1), minlength=values) for mask in masks), np.zeros(values, np.int64))
        return cls(counts[:classes].tolist(), 0 if ignored is None else int(counts[ignored]))

    def __add__(self, other: Self) -> Self:
        ignored = _if_both(operator.add, self.ignored, other.ignored)
        return replace(self, class_counts=_add_counts(self.class_counts, other.class_counts), ignored=ignored)

    def less(self, part: Sums) -> MaskSums | None:
        if not isinstance(part, MaskSums) or self.ignored is None or part.ignored is None:
            return None
        counts = _less_counts([*self.class_counts, self.ignored], [*part.class_counts, part.ignored])
        same = len(self.class_counts) == len(part.class_counts)
        return MaskSums(counts[:-1], counts[-1]) if same and counts is not None else None

    def summary(self) -> dict[str, Any]:
        return {"class_counts": self.class_counts, **({} if self.ignored is None else {"ignored": self.ignored})}

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> MaskSums | None:
        counts, ignored = _counts(summary.get("class_counts")), summary.get("ignored")
        return None if counts is None else cls(counts, ignored if type(ignored) is int else None)


@dataclass(frozen=True)
class ObjectSums(Sums):
    """Number of objects, in total and of each class.

    `numbers` are the numbers of objects in samples, as in `_add_ranges`. It and `class_counts` may be None for unknown.
    `keypoints` are as in `absent_keypoints`, `emptied` is the number of samples that lost all objects, and `doubtful`
    has the number and an example of each kind of doubtful box. These three are for notes to the user, not for the
    summary.
    """

    kind: ClassVar[str] = "objects"
    numbers: list[int] | None = field(default_factory=list)
    class_counts: list[int] | None = None
    keypoints: list[int] = field(default_factory=list)
    emptied: int = 0
    doubtful: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of_objects(
        cls,
        lengths: NDArray[np.int64],
        labels: NDArray[np.int64] | None,
        classes: int,
        keypoints: NDArray[np.float32] | None = None,
    ) -> ObjectSums:
        """Sum the number of objects of each sample (n,), their class indices (M,) and keypoints (M, K, 2)."""
        counts = None if labels is None else np.bincount(labels, minlength=classes).tolist()
        return cls(_range_of(lengths), counts, [] if keypoints is None else absent_keypoints(keypoints))

    def __add__(self, other: Self) -> Self:
        numbers = _if_both(_add_ranges, self.numbers, other.numbers)
        counted = [each.class_counts for each in (self, other) if each.numbers != []]
        class_counts = functools.reduce(functools.partial(_if_both, _add_counts), counted) if counted else None
        return replace(
            self,
            numbers=numbers,
            class_counts=class_counts,
            keypoints=_add_counts(self.keypoints, other.keypoints),
            emptied=self.emptied + other.emptied,
            doubtful=add_doubtful(self.doubtful, other.doubtful),
        )

    def less(self, part: Sums) -> ObjectSums | None:
        if not isinstance(part, ObjectSums) or (self.class_counts is None) != (part.class_counts is None):
            return None
        numbers = _if_both(_less_ranges, self.numbers, part.numbers)
        counts = _if_both(_less_counts, self.class_counts, part.class_counts)
        is_known = numbers is not None and (counts is not None or self.class_counts is None)
        return ObjectSums(numbers, counts) if is_known else None

    def summary(self) -> dict[str, Any]:
        counts = {} if self.class_counts is None else {"class_counts": self.class_counts}
        return {**counts, **({"total": self.numbers[1], **_summary_of(self.numbers)} if self.numbers else {})}

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> ObjectSums | None:
        total, numbers = summary.get("total"), _parse_range(summary, weight)
        numbers = [weight, total, *numbers[2:]] if numbers and type(total) is int else None
        counts = _counts(summary.get("class_counts"))
        return None if numbers is counts is None else cls(numbers, counts)


def add_doubtful(one: Mapping[str, list[Any]], other: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Add counts, and keep the first example."""
    both = {kind: list(found) for kind, found in one.items()}
    for kind, (count, example) in other.items():
        both.setdefault(kind, [0, example])[0] += count
    return both


def absent_keypoints(keypoints: NDArray[np.float32]) -> list[int]:
    """Return the number of objects with at least one keypoint (M, K, 2), and of those without each keypoint."""
    absent: NDArray[np.bool_] = np.any(np.isnan(keypoints), axis=2)
    absent = absent[~np.all(absent, axis=1)]
    return [len(absent), *absent.sum(axis=0).tolist()]


# --- images -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageSums(Sums):
    """Sums of pixel values and their squares, by channel.

    `count` is the number of pixels. `sum` and `squares` are empty if images have no common channels, or float64
    overflows. `file_nbytes`, of the source's image files, and `images_of`, the number of image files by channels, are
    for notes to the user.
    """

    kind: ClassVar[str] = "image"
    dtype: str = ""
    count: int = 0
    sum: list[Any] = field(default_factory=list)
    squares: list[Any] = field(default_factory=list)
    file_nbytes: int = 0
    images_of: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of_pixels(cls, pixels: NDArray[Any]) -> ImageSums:
        """Sum pixels (..., W, C)."""
        return cls(pixels.dtype.name, math.prod(pixels.shape[:-1]), *_channel_sums(pixels))._if_finite()

    def __add__(self, other: Self) -> Self:
        both = other if other.count else self
        if self.count and other.count:
            channels = _common_channels(len(self.sum), len(other.sum)) if self.dtype == other.dtype else 0
            total, squares = (
                _add_counts(*(_as_channels(values, channels) for values in pair)) if channels else []
                for pair in ((self.sum, other.sum), (self.squares, other.squares))
            )
            both = replace(self, count=self.count + other.count, sum=total, squares=squares)._if_finite()
        images_of = dict(Counter(self.images_of) + Counter(other.images_of))
        return replace(both, file_nbytes=self.file_nbytes + other.file_nbytes, images_of=images_of)

    def _if_finite(self) -> Self:
        """Drop sums that overflow float64, such as squares of 1e200: JSON has no infinity."""
        return self if all(map(math.isfinite, self.sum + self.squares)) else replace(self, sum=[], squares=[])

    def summary(self) -> dict[str, Any]:
        if not self.sum:
            return {}
        scale, count = _SCALES.get(self.dtype, 1), self.count
        mean, std = [], []
        for total, squares in zip(self.sum, self.squares, strict=True):
            mean.append(total / count / scale)
            if isinstance(total, int):  # exact until the one division, so that nothing cancels
                variance = (count * squares - total * total) / (count * count)
            else:  # this order prevents overflow
                variance = squares / count - (total / count) * (total / count)
            std.append(math.sqrt(max(variance, 0.0)) / scale)
        return _Moments(mean, std, scale, 1, count).summary()

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> Sums | None:
        mean, std, scale = summary.get("mean"), summary.get("std"), summary.get("scale", 1)
        if not isinstance(mean, list) or not isinstance(std, list) or len(mean) != len(std) or not mean:
            return None
        if not all(_is_number(n) and abs(n) < _LARGEST for n in (*mean, *std, scale)) or min(std) < 0:
            return None
        reduction = summary.get("reduction")
        return _Moments(mean, std, scale, reduction if type(reduction) is int else 1, max(1, weight))


@dataclass(frozen=True)
class _Moments(Sums):
    """Mean and standard deviation of each channel, and the number of pixels, if the sums are unknown."""

    kind: ClassVar[str] = "image"
    mean: list[float]
    std: list[float]
    scale: float
    reduction: int
    count: int

    def __add__(self, other: Self) -> Self:
        channels = _common_channels(len(self.mean), len(other.mean)) if self.scale == other.scale else 0
        each = [self.mean, other.mean, self.std, other.std] if channels else [[]] * 4
        rows = list(zip(*(_as_channels(values, channels) for values in each), strict=True))
        share = other.count / (self.count + other.count)
        mean = [a + (b - a) * share for a, b, *_ in rows]  # so that equal means do not change
        std = [
            math.sqrt(u * u + (v * v - u * u) * share + (b - a) * (b - a) * share * (1 - share)) for a, b, u, v in rows
        ]
        reduction, count = max(self.reduction, other.reduction), self.count + other.count
        return replace(self, mean=mean, std=std, reduction=reduction, count=count)

    def less(self, part: Sums) -> ImageSums | None:
        """Subtract sums of integers, which follow from mean and standard deviation without loss.

        Sums of squares are exact below 2^50: 10^10 values of 8 bits are below it, 262,144 values of 16 bits can exceed
        it.
        """
        scale = _SCALES.get(part.dtype) if isinstance(part, ImageSums) else None
        if not isinstance(part, ImageSums) or scale != self.scale or self.reduction > 1:
            return None
        moments = zip(self.mean, self.std, strict=True)
        total = _less_counts([round(mean * scale * self.count) for mean in self.mean], part.sum)
        of_all = [round((mean**2 + std**2) * scale**2 * self.count) for mean, std in moments]
        if max(of_all, default=0) >= 1 << 50:
            return None
        squares, count = _less_counts(of_all, part.squares), self.count - part.count
        is_known = total is not None and squares is not None and len(part.sum) == len(self.mean) and count > 0
        return ImageSums(part.dtype, count, total or [], squares or []) if is_known else None

    def summary(self) -> dict[str, Any]:
        if not self.mean or not all(map(math.isfinite, self.mean + self.std)):
            return {}
        reduction = {"reduction": self.reduction} if self.reduction > 1 else {}
        return {"mean": self.mean, "std": self.std, "scale": self.scale, **reduction}


def _common_channels(first: int, second: int) -> int:
    """Return the common channels of images: equal numbers, or 3 for gray and color images, which load as RGB."""
    return first if first == second else 3 if {first, second} == {1, 3} else 0


def _as_channels(values: list[Any], channels: int) -> list[Any]:
    """Return numbers by channel. A gray image has the same values in each."""
    return values * channels if len(values) == 1 else values


def _channel_sums(pixels: NDArray[Any]) -> tuple[list[Any], list[Any]]:
    """Return sums and sums of squares of each channel of pixels (..., W, C): exact for 8 and 16 bits, else float64."""
    width, channels = pixels.shape[-2:]
    fits_kernel = pixels.dtype == np.uint8 and channels <= _MOST_CHANNELS and pixels.flags.c_contiguous
    if native.core is not None and fits_kernel:
        sums = native.core.sums(pixels, channels)
        return list(sums[:channels]), list(sums[channels:])
    if width * channels < _SHORT:  # a whole image as a line
        width *= math.prod(pixels.shape[-3:-2])
    lines = pixels.reshape(-1, width * channels)
    # Sum whole lines first, along the long contiguous axis, and fold them into channels afterwards.
    step = min(_PIECE_LINES, max(1, _PIECE_NBYTES // max(1, lines[:1].nbytes)))
    with np.errstate(over="ignore", invalid="ignore"):  # the caller drops sums that are not finite
        total, squares = _line_sums(lines[:step])
        for start in range(step, len(lines), step):
            more = _line_sums(lines[start : start + step])
            total, squares = total + more[0], squares + more[1]
        return total.reshape(width, channels).sum(0).tolist(), squares.reshape(width, channels).sum(0).tolist()


def _line_sums(lines: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return sums and sums of squares of at most `_PIECE_LINES` along axis 0: exact for 8 and 16 bits, else float64."""
    if lines.dtype == np.uint8:  # the narrowest type that holds them, which takes half of the time
        squares = np.multiply(lines, lines, dtype=np.uint16)  # 255 squared is 65025
        total = lines.sum(0, dtype=np.uint16), squares.sum(0, dtype=np.uint32)
        return total[0].astype(np.uint64), total[1].astype(np.uint64)
    if lines.dtype == np.uint16:
        wide = lines.astype(np.uint64)
        return wide.sum(0), (wide * wide).sum(0)
    values = lines.astype(np.float64)
    return values.sum(0), (values * values).sum(0)


# --- sizes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SizeSums(Sums):
    """Original sizes: heights and widths as in `_add_ranges`, and the number of samples of each size."""

    kind: ClassVar[str] = "size"
    height: list[int] | None
    width: list[int] | None
    distinct: dict[str, int] | None  #: None if there are too many

    @classmethod
    def of_sizes(cls, sizes: NDArray[np.int32]) -> SizeSums:
        """Sum sizes (n, 2), height and width."""
        each, counts = np.unique(sizes.astype(np.int64) @ [2**32, 1], return_counts=True)
        sides = zip(*(side.tolist() for side in np.divmod(each + 2**31, 2**32)), counts.tolist(), strict=True)
        named = {f"{h}x{w - 2**31}": n for h, w, n in sides}
        return cls(_range_of(sizes[:, 0]), _range_of(sizes[:, 1]), _add_distinct({}, named))

    def less(self, part: Sums) -> SizeSums | None:
        if not isinstance(part, SizeSums) or self.distinct is None or part.distinct is None:
            return None
        left = {size: count - part.distinct.get(size, 0) for size, count in self.distinct.items()}
        left = {size: count for size, count in left.items() if count}
        sizes = [size.split("x") for size in left if re.fullmatch(r"[0-9]{1,9}x[0-9]{1,9}", size)]
        is_known = part.distinct.keys() <= self.distinct.keys() and len(sizes) == len(left) > 0
        if not is_known or min(left.values()) < 0:
            return None
        counts = list(left.values())
        height, width = (
            [sum(counts), sum(n * count for n, count in zip(side, counts, strict=True)), min(side), max(side)]
            for side in (list(map(int, each)) for each in zip(*sizes, strict=True))
        )
        return SizeSums(height, width, left)

    def __add__(self, other: Self) -> Self:
        rules: Mapping[str, Any] = {"height": _add_ranges, "width": _add_ranges, "distinct": _add_distinct}
        both = {name: _if_both(add, getattr(self, name), getattr(other, name)) for name, add in rules.items()}
        return replace(self, **both)

    def summary(self) -> dict[str, Any]:
        sides = {"height": self.height, "width": self.width}
        return {**{name: _summary_of(side) for name, side in sides.items() if side}, "distinct": self.distinct}

    @classmethod
    def of(cls, summary: Mapping[str, Any], weight: int) -> SizeSums | None:
        height, width = (_parse_range(summary.get(side), weight) for side in ("height", "width"))
        distinct = summary.get("distinct")
        is_known = isinstance(distinct, Mapping) and all(type(n) is int for n in distinct.values())
        return None if height is width is None and not is_known else cls(height, width, distinct if is_known else None)


def _add_distinct(a: dict[str, int], b: dict[str, int]) -> dict[str, int] | None:
    joined = {size: a.get(size, 0) + b.get(size, 0) for size in sorted({*a, *b})}
    return joined if len(joined) <= MAX_DISTINCT_SIZES else None


# --- helpers ----------------------------------------------------------------------------------------------------

T = TypeVar("T")


def _if_both(add: Callable[[T, T], T | None], a: T | None, b: T | None) -> T | None:
    """Add two values, or return None if one is unknown."""
    return None if a is None or b is None else add(a, b)


def _add_counts(a: list[Any], b: list[Any]) -> list[Any]:
    """Add counts by class. The longer list has additional classes at its end."""
    short, long = sorted((a, b), key=len)
    return [x + y for x, y in zip(short, long, strict=False)] + long[len(short) :]


def _less_counts(a: list[int], b: list[int]) -> list[int] | None:
    """Subtract counts by class, or return None if one would be negative."""
    left = [x - y for x, y in zip(a, [*b, *[0] * (len(a) - len(b))], strict=False)]
    return left if len(b) <= len(a) and min(left, default=0) >= 0 else None


def _less_ranges(a: list[int], b: list[int]) -> list[int] | None:
    """Subtract a part from a range of `_add_ranges`, or return None if its minimum or maximum may be in the part."""
    if not b:
        return a
    return [a[0] - b[0], a[1] - b[1], *a[2:]] if a and a[0] > b[0] and a[2] < b[2] and b[3] < a[3] else None


def _add_ranges(a: list[int], b: list[int]) -> list[int]:
    """Add [number of values, sum, minimum, maximum] of two sets of values, empty for no values."""
    return [a[0] + b[0], a[1] + b[1], min(a[2], b[2]), max(a[3], b[3])] if a and b else a or b


def _range_of(values: NDArray[Any]) -> list[int]:
    """Return number, sum, minimum and maximum of integers (n,)."""
    return [len(values), int(values.sum(dtype=np.int64)), int(values.min()), int(values.max())] if len(values) else []


def _summary_of(known: list[int]) -> dict[str, Any]:
    samples, total, least, largest = known
    return {"min": least, "max": largest, "mean": total / samples}


def _parse_range(summary: object, samples: int) -> list[int] | None:
    """Parse the summary of a range, or return None if a member has a different type."""
    if not isinstance(summary, Mapping) or not samples:
        return None
    found: list[Any] = [summary.get(name) for name in ("min", "max", "mean")]
    least, largest, mean = found
    if not all(_is_number(n) and abs(n) < 2**53 for n in found):
        return None
    return [samples, round(mean * samples), least, largest] if type(least) is type(largest) is int else None


def _counts(value: object) -> list[int] | None:
    """Return the value if it is a list of integers."""
    return value if isinstance(value, list) and all(type(n) is int for n in value) else None


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float)


#: By the kind of their field.
_SUMS: Mapping[str, type[Sums]] = {
    sums.kind: sums for sums in (LabelSums, MultiLabelSums, ObjectSums, MaskSums, ImageSums, SizeSums)
}
