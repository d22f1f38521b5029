"""Check the content of a store: copies within and between splits, labels, blank images, boxes, classes."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds import words
from tensorstore_ds.annex.checking.annotations import absent_keypoints, few_samples, odd_boxes, sample_of
from tensorstore_ds.annex.checking.findings import CheckedSample, CheckFindings, Copies, OddImage, SharedImages
from tensorstore_ds.annex.checking.hashes import SIDE, correlations, perceptual_hashes
from tensorstore_ds.annex.checking.looks import look
from tensorstore_ds.annex.checking.options import CheckOptions
from tensorstore_ds.annex.checking.predictions import Given, read_predictions, suspect_labels, suspect_objects
from tensorstore_ds.annex.checking.quality import MEASURES, odd_images
from tensorstore_ds.annex.checking.search import Found, components, mirrored_pairs, near_pairs
from tensorstore_ds.annex.editing.rows import opened_for_editing, reading_progress
from tensorstore_ds.annex.keywords import CheckKeywords
from tensorstore_ds.conversion.result import OnProgress, Progress, in_notebook
from tensorstore_ds.errors import ConversionError, OptionError
from tensorstore_ds.format.kinds import ImageField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.options import chosen, takes_options
from tensorstore_ds.reading.store import Split, Store
from tensorstore_ds.reading.verification import require_whole

_BLOCK = 8192  # pairs, and objects, that are judged at a time: 32 MB of thumbnails, some times
_PICKED = ("test", "val", "valid", "validation")  # splits whose copies stay, first


@takes_options(CheckOptions)
def check_store(
    store: str | os.PathLike[str],
    options: CheckOptions | None = None,
    *,
    others: Sequence[str | os.PathLike[str]] = (),
    predictions: Given | None = None,
    progress: OnProgress | None = None,
    **keywords: Unpack[CheckKeywords],
) -> CheckFindings:
    """Check the content of a store: copies, unreadable images, odd images and boxes, rare classes, wrong labels.

    >>> found = tsds.check_store("photos.tsds")
    >>> found.samples, found.copies, found.unreadable
    (12, (), ())
    >>> [(few.name, few.split, few.count) for few in found.classes]
    [('cat', 'train', 4), ('dog', 'train', 4), ('cat', 'val', 2), ('dog', 'val', 2)]

    Every image is read once. Identical images are found by a digest of the stored bytes. Modified copies are found by a
    perceptual hash of 63 bits, and each pair is confirmed by comparing thumbnails of 32 x 32 pixels. Memory use is
    about 50 bytes per sample, plus 1 kB per image in a temporary file for the thumbnails.

    All pairs of hashes that differ in at most `distance` bits are found, except among very similar hashes. If more than
    4096 hashes agree in a band of bits, each is compared with only 4096 of them: pairs may be missing, and `notes`
    reports it. If more than 32 hashes are equal, only pairs with the first of them are compared.

    Args:
        store: path or URL of the store.
        options: all options as one object.
        others: paths or URLs of other stores, whose images are compared with the images of this one. Copies across
            stores are reported, such as a train image of this store in the test split of another one. Nothing else of
            the other stores is checked.
        predictions: predictions of a model that was not trained on these samples, to find wrong labels and objects.
            Either the name of a field of shape (classes,) with probabilities, or a mapping from split names to one of:
            an array of probabilities, floats (rows, classes), where a row with NaN has no prediction; the path of a
            ``.npy`` file with such an array; COCO results, such as `StoreDetections.coco_results`; the path of a JSON
            file with COCO results. Probabilities need cleanlab, the extra ``clean``.
        progress: function that is called with the progress, as in `convert`.
        keywords: options by name, such as ``min_class=3``. Each overrides `options`.

    Raises:
        FormatError: the store is damaged.
        OptionError: the store has no images, or `predictions` do not fit it.
        SourceError: a file of `predictions` cannot be read.
        ConversionError: the disk of the temporary file is full.
    """
    options, notify = chosen(options, CheckOptions, keywords), progress or in_notebook()
    opened = opened_for_editing(store, notify)
    stores = {"": opened, **{str(words.shown_path(each)): opened_for_editing(each, notify) for each in others}}
    for each in stores.values():
        if not of_kind(each.manifest.fields, ImageField):
            raise OptionError(f"{each.path}: expected a field of images, found none.")
    read = read_predictions(opened, predictions)
    for each in stores.values():
        require_whole(each, "Copy the store again.", reading_progress(notify))
    with tempfile.TemporaryFile(prefix="tsds-") as file:
        try:
            seen = _look(stores, file, notify)
        except OSError as error:
            message = f"{tempfile.gettempdir()}: {error.strerror}. Set TMPDIR to another folder."
            raise ConversionError(message) from error
        notes: list[str] = []
        copies = list(_copies(seen, options, notes))
    own = sum(len(opened[name]) for name in opened)
    constant = [seen.sample(i) for i in np.flatnonzero(seen.constant[:own]).tolist()]
    unreadable = [(seen.sample(i), message) for i, message in sorted(seen.unreadable.items()) if i < own]
    dropped = [each for group in copies for each in group.samples[1:]]
    dropped += [*constant, *(sample for sample, _ in unreadable)]
    drop = {name: tuple(sorted({e.row for e in dropped if e.split == name and not e.store})) for name in opened}
    images = [
        OddImage(seen.sample(number), why, value)
        for number, why, value in (odd_images(seen.qualities[:own], opened, options) if options.odd_images else ())
        if not seen.constant[number] and number not in seen.unreadable
    ]
    labels = [each for name, found in read.probabilities.items() for each in suspect_labels(opened[name], found)]
    detections = read.detections.items()
    return CheckFindings(
        samples=own,
        copies=tuple(copies),
        constant=tuple(constant),
        unreadable=tuple(unreadable),
        boxes=tuple(odd for name in opened for odd in odd_boxes(opened[name], options)),
        classes=tuple(few_samples(opened, options.min_class)),
        notes=tuple(notes),
        drop={name: rows for name, rows in drop.items() if rows},
        keypoints=tuple(each for name in opened for each in absent_keypoints(opened[name], options)),
        images=tuple(images),
        labels=tuple(sorted(labels, key=lambda each: each.margin)),
        objects=tuple(each for name, found in detections for each in suspect_objects(opened[name], found, options)),
        sha256=opened.sha256,
        shared=tuple(_shared(copies)),
    )


def _shared(copies: Iterable[Copies]) -> Iterator[SharedImages]:
    """Numbers of samples of the store with a copy in a split of another one, the splits that leak first."""
    found = Counter[tuple[str, str, str]]()
    for group in copies:
        theirs = {(each.store, each.split) for each in group.samples if each.store}
        found.update((each.split, *other) for each in group.samples if not each.store for other in theirs)
    for (split, store, other), count in sorted(found.items(), key=lambda each: each[0][0] == each[0][2]):
        yield SharedImages(split, store, other, count)


@dataclass
class _Seen:
    """Results for all images in the order of splits, the ones of other stores last."""

    splits: list[tuple[str, Split]]  # with the names of their stores, empty for the store that is checked
    starts: list[int]  # numbers of the first sample of each split, and of the one behind the last
    thumbnails: NDArray[np.uint8]  # (n, 32, 32), a map
    hashes: NDArray[np.uint64]  # (2, n) of the thumbnails, and of the thumbnails mirrored
    digests: NDArray[np.uint64]  # (n, 2) of the bytes as they are stored
    constant: NDArray[np.bool_]  # (n,) whether all pixels are the same
    qualities: NDArray[np.float32]  # (n, 3) measures of each image
    unreadable: dict[int, str]  # why an image cannot be decoded, by its number

    def sample(self, number: int) -> CheckedSample:
        """A sample as findings name it."""
        i = int(np.searchsorted(self.starts, number, "right")) - 1
        store, split = self.splits[i]
        return replace(sample_of(split, number - self.starts[i]), store=store)


def _look(stores: Mapping[str, Store], file: Any, notify: OnProgress) -> _Seen:
    splits = [(name, store[split]) for name, store in stores.items() for split in store]
    counts = [len(split) for _, split in splits]
    starts, total = [0, *np.cumsum(counts).tolist()], sum(counts)
    seen = _Seen(
        splits,
        starts,
        np.empty((0, SIDE, SIDE), np.uint8),
        np.empty((2, total), np.uint64),
        np.empty((total, 2), np.uint64),
        np.zeros(total, np.bool_),
        np.empty((total, len(MEASURES)), np.float32),
        {},
    )
    for (name, split), first in zip(splits, starts[:-1], strict=True):
        made = stores[name].manifest.conversion_options
        is_padded = made.get("size") is not None and made.get("fit") == "pad" and made.get("objects") == "whole"
        looks = look(split, is_padded=is_padded) if len(split) else ()
        for start, small, digests, constant, measured, problems in looks:
            at = slice(first + start, first + start + len(small))
            file.write(small.data)  # and not through the map: there a full disk would end the process
            seen.digests[at], seen.constant[at], seen.qualities[at] = digests, constant, measured
            for i, mirrored in enumerate((False, True)):
                seen.hashes[i, at] = perceptual_hashes(small, mirrored=mirrored)
            seen.unreadable |= {first + row: problem.message for row, problem in problems}
            notify(Progress("check", at.stop, total))
    file.flush()
    if total:
        seen.thumbnails = np.memmap(file, np.uint8, "r", shape=(total, SIDE, SIDE))
    return seen


def _copies(seen: _Seen, options: CheckOptions, notes: list[str]) -> Iterator[Copies]:
    """Groups of copies, the largest first."""
    count = len(seen.constant)
    bare = seen.constant.copy()
    bare[list(seen.unreadable)] = True
    whole = np.flatnonzero(~bare)
    digests = np.ascontiguousarray(seen.digests[whole]).view("V16").ravel()
    _, firsts, same = np.unique(digests, return_index=True, return_inverse=True)
    exact = np.arange(count)
    exact[whole] = whole[firsts[same]]
    pairs = np.stack([np.arange(count), exact], axis=1)[exact != np.arange(count)]
    if options.near:
        unique = whole[firsts]
        found = near_pairs(seen.hashes[0, unique], options.distance)
        confirmed = _confirmed(seen, found, unique, options.similarity)
        crowded = found.crowded
        if options.mirrored:
            found = mirrored_pairs(seen.hashes[0, unique], seen.hashes[1, unique], options.distance)
            more = _confirmed(seen, found, unique, options.similarity, mirrored=True)
            confirmed, crowded = np.concatenate([confirmed, more]), max(crowded, found.crowded)
        pairs = np.concatenate([pairs, confirmed])
        if crowded:
            notes.append(
                f"{crowded:,} images have hashes so much alike that not all pairs of them were compared: changed "
                "copies among them may be missing. Choose a smaller `distance`."
            )
    else:
        encodings = {field.encoding for _, split in seen.splits for field in of_kind(split.fields, ImageField).values()}
        if len(encodings) > 1:
            notes.append(
                f"the stores have images of different encodings ({', '.join(sorted(encodings))}), so copies among them "
                "rarely have the same bytes. `near=True` also finds those that look the same."
            )
    groups = components(count, pairs)
    members = np.unique(pairs)
    order = members[np.argsort(groups[members], kind="stable")]
    cuts = np.flatnonzero(np.diff(groups[order])) + 1
    own = next((first for (name, _), first in zip(seen.splits, seen.starts, strict=False) if name), count)
    for group in sorted(np.split(order, cuts), key=len, reverse=True) if len(order) else ():
        if group.min() < own:  # it is not of other stores alone
            yield _group(seen, group.tolist(), len(np.unique(exact[group])) == 1)


def _confirmed(
    seen: _Seen, found: Found, numbers: NDArray[np.int64], similarity: float, *, mirrored: bool = False
) -> NDArray[np.int64]:
    """The pairs of sample numbers whose thumbnails look the same."""
    pairs = numbers[found.pairs].reshape(-1, 2)
    kept = [np.empty((0, 2), np.int64)]
    for start in range(0, len(pairs), _BLOCK):
        some = pairs[start : start + _BLOCK]
        alike = correlations(seen.thumbnails[some[:, 0]], seen.thumbnails[some[:, 1]], mirrored=mirrored)
        kept.append(some[alike >= similarity])
    return np.concatenate(kept)


def _group(seen: _Seen, numbers: Sequence[int], exact: bool) -> Copies:
    samples = [seen.sample(number) for number in numbers]
    names = (split.name for _, split in seen.splits)
    order = {name: i for i, name in enumerate(dict.fromkeys((*_PICKED, *(n for n in names if n != "train"))))}
    samples.sort(key=lambda each: (order.get(each.split, len(order)), each.store, each.row))
    labels = {(each.store, each.label) for each in samples if each.label is not None}
    disagree = len(labels) > len({store for store, _ in labels})  # classes of other stores may have other names
    return Copies(exact, tuple(samples), len({each.split for each in samples}) > 1, disagree)
