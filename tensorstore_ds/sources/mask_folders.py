"""Folders of images and folders of their masks, recognized by their names."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tensorstore_ds.errors import SourceError
from tensorstore_ds.regular_files import entries, exists, is_dir, is_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES
from tensorstore_ds.sources.files import find_file, glance, walk_files
from tensorstore_ds.sources.images import is_plain
from tensorstore_ds.sources.splits import SPLIT_NAMES, split_names, words_of

#: Names of folders of images and of masks, in lower case without spaces, ``-`` and ``_``, likely ones first.
#: The name of a split may be before or behind them; alone it means images.
_IMAGES = (
    "images", "image", "imgs", "img", "imgdir", "jpegimages", "original", "originals", "originalimages", "image2"
)  # fmt: skip
_SURE = ("masks", "mask", "anndir", "segmentationclass", "annotations")  # of masks, whatever the names of the files
_MASKS = (
    *_SURE, "labels", "label", "gt", "gts", "groundtruth", "groundtruths", "annotation", "annot", "annots", "ann",
    "anns", "segmentation", "segmentations", "segmentationmasks", "seg", "segs", "semantic", "labelimages",
)  # fmt: skip
_CITY_IMAGES, _CITY_MASKS = "leftimg8bit", {"gtfine": "_gtFine_labelIds", "gtcoarse": "_gtCoarse_labelIds"}
_CITY_ENDING = "_leftImg8bit"
_FEW = 100  # folders two levels below that are looked into
#: Names of folders of masks that are looked for there, where listing all folders would take long.
_SPELLED = ("masks", "Masks", "mask", "labels", "label", "gt", "annotations", "ann_dir", "SegmentationClass")
_PROBED = 16  # masks of a folder whose names are compared
#: What follows the name of an image in the name of its mask.
_ENDINGS = (
    "", "_mask", "_masks", "_label", "_labels", "_gt", "_seg", "_segmentation", "_groundtruth", "_train_id", "_L"
)  # fmt: skip
_MASK_WORDS = frozenset(
    {"mask", "masks", "label", "labels", "gt", "annot", "annotation", "annotations", "seg", "segmentation"}
    | {"groundtruth", "semantic", "truth"}
)


class MaskFolders(NamedTuple):
    """A folder of images and one of masks, relative to the source, with a trailing ``/``, and their split.

    Both may be the same folder.
    """

    images: str
    masks: str
    split: str


def find_mask_folders(root: Path) -> list[MaskFolders]:
    """Folders of images and masks of a source: one pair, or one per split; empty if there are none."""
    for prefix in ("", *(f"{path.relative_to(root).as_posix()}/" for path in _below(root))):
        if pairs := _side_by_side(root, prefix):
            above, _, last = prefix[:-1].rpartition("/")
            if last.lower() not in SPLIT_NAMES:
                return pairs
            tops = sorted(name for name in _folders(root / above) if name.lower() in SPLIT_NAMES)
            return [
                pair._replace(split=name) for top, name in split_names(tops).items()
                for pair in _side_by_side(root, f"{above}/{top}/".removeprefix("/"))[:1]
            ]  # fmt: skip
    if _holds_both(root):
        return [MaskFolders("", "", "train")]
    tops = [name for name in _folders(root) if name.lower() in SPLIT_NAMES and _holds_both(root / name)]
    return [MaskFolders(f"{top}/", f"{top}/", name) for top, name in split_names(sorted(tops)).items()]


def _holds_both(folder: Path) -> bool:
    """Whether most images of a folder have a mask beside them: ``a_mask.png`` of ``a.jpg``."""
    counts = Counter(name.rpartition(".")[0].endswith(_ENDINGS[1:]) for name in _files(folder))
    if not counts[True] or 2 * counts[True] < counts[False]:
        return False
    files = [name.rpartition(".") for name in _files(folder)]
    stems = {stem for stem, _, suffix in files if f".{suffix.lower()}" in IMAGE_SUFFIXES}
    masks = {stem for stem in stems if stem.endswith(_ENDINGS[1:])}
    return bool(masks) and _most(masks, stems - masks, _ENDINGS[1:])


def has_xml(root: Path, folders: MaskFolders) -> bool:
    """Whether there are XML annotations next to the masks; these are of a different format."""
    above, around = folders.images[:-1].rpartition("/")[0], folders.masks[:-1].rpartition("/")[0]
    if above == around:
        return is_dir(root / above / "Annotations")
    return any(file.startswith(f"{around}/") and file.lower().endswith(".xml") for file in glance(root))


def _side_by_side(root: Path, prefix: str) -> list[MaskFolders]:
    """The pair of folders in the folder `prefix`, or one pair per split."""
    images: dict[str, list[tuple[int, str]]] = {}
    masks: dict[str, list[tuple[int, str]]] = {}
    for name in _folders(root / prefix):
        split, word = _words(name)
        for words, found in (((*_IMAGES, _CITY_IMAGES, *[""] * bool(split)), images), ((*_MASKS, *_CITY_MASKS), masks)):
            if word in words:
                found.setdefault(split, []).append((words.index(word), name))
    pairs: dict[str, MaskFolders] = {}
    for split in sorted(images.keys() & masks.keys()):
        both = [(f"{prefix}{i}/", f"{prefix}{m}/") for _, i in sorted(images[split]) for _, m in sorted(masks[split])]
        if found_pair := next((pair for i, m in both if (pair := _pair(root, i, m, split or "train"))), None):
            pairs[split] = found_pair
    return [pairs[""]] if "" in pairs else list(pairs.values())


def _words(name: str) -> tuple[str, str]:
    """Split in a folder's name, or empty, and the rest: ``train`` and ``masks`` of Train_Masks."""
    word = re.sub(r"[-_ ]", "", name.lower())
    if word in (*_IMAGES, *_MASKS):
        return "", word
    for split in sorted(SPLIT_NAMES, key=len, reverse=True):
        if word.startswith(split) or word.endswith(split):
            return split, word.removeprefix(split) if word.startswith(split) else word.removesuffix(split)
    return "", word


def _pair(root: Path, images: str, masks: str, split: str) -> MaskFolders | None:
    """Pair 2 folders, or a folder and one within it, if their files match."""
    inside = (f"{masks}{name}/" for name in sorted(_folders(root / masks)))
    fitting = next((each for each in itertools.chain([masks], inside) if _fits(root, images, each)), None)
    if fitting is None and _words(masks.split("/")[-2])[1] in _SURE and find_file(root / masks, IMAGE_SUFFIXES)[0]:
        fitting = masks  # the scan reports unpaired files
    return None if fitting is None else MaskFolders(images, fitting, split)


def _fits(root: Path, images: str, masks: str) -> bool:
    """Whether most of the first files in a folder of masks have the names of images."""
    begin, endings = endings_of(masks)
    some: list[str] = []
    with contextlib.suppress(SourceError):  # the scan reports it
        some = [path.rpartition(".")[0] for path in itertools.islice(masks_in(root, masks), _PROBED)]
    stems = [[stem.removesuffix(ending) + begin for ending in endings if stem.endswith(ending)] for stem in some]
    suffixes = [each for suffix in sorted(IMAGE_SUFFIXES) for each in (suffix, suffix.upper())]
    found = [any(is_file(root / f"{images}{stem}{suffix}") for stem in each for suffix in suffixes) for each in stems]
    return 2 * sum(found) > len(found)


def masks_in(root: Path, masks: str) -> Iterator[str]:
    """Files in a folder of masks that can be masks; Cityscapes has other files there."""
    begin, endings = endings_of(masks)
    for path in walk_files(root / masks, IMAGE_SUFFIXES):
        if not begin or path.rpartition(".")[0].endswith(endings):
            yield path


def endings_of(masks: str) -> tuple[str, tuple[str, ...]]:
    """What follows the common part of the names of images, and of masks, where several are possible."""
    ending = next((_CITY_MASKS[word] for word in map(str.lower, masks.split("/")) if word in _CITY_MASKS), None)
    return ("", _ENDINGS) if ending is None else (_CITY_ENDING, (ending,))


def _below(root: Path) -> list[Path]:
    """Folders 1 and 2 levels below with a folder of masks: splits, or VOCdevkit and its content.

    Each folder is listed once, because there may be thousands of classes.
    """
    found = []
    for top in _folders(root):
        inside = _folders(root / top)
        found += [root / top] if any(_words(name)[1] in (*_MASKS, *_CITY_MASKS) for name in inside) else []
        inside = inside if len(inside) <= _FEW else []  # more are classes
        found += [root / top / name for name in inside if any(exists(root / top / name / each) for each in _SPELLED)]
    return sorted(found)


def _folders(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):  # walking reports why
        return [name for name, is_folder in entries(folder) if is_folder]
    return []


def _files(folder: Path) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from (name for name, is_folder in entries(folder) if not is_folder)


def note_of_masks(images: Iterable[str], level: int) -> tuple[str, ...]:
    """A note about images whose names look like masks of others.

    `level` is the number of folders above those that may contain images and masks.
    """
    stems: dict[str, set[str]] = {}
    for path in images:
        *above, own = path.rpartition(".")[0].split("/", level + 1)
        stems.setdefault("/".join(above), set()).add(own)
    plain = {folder for folder, some in stems.items() if is_plain(_name(folder)) and len(some) > 1}
    named = {folder for folder in stems if not _MASK_WORDS.isdisjoint(words_of(_name(folder)))}
    named |= {f for f, some in stems.items() if f not in plain and any(stems[each] == some for each in plain)}
    ended = {f for f, some in stems.items() if 2 * sum(stem.endswith(_ENDINGS[1:]) for stem in some) > len(some)}
    for folder in sorted(named | ended):
        beside = [f for f in stems.keys() - named - ended if f.rpartition("/")[0] == folder.rpartition("/")[0]]
        endings = _ENDINGS if folder in named else _ENDINGS[1:]
        other = next((each for each in sorted(beside) if _most(stems[folder], stems[each], endings)), None)
        if other is not None:
            what = f"{folder} has files of the same names as {other}: if they are masks"
            return (f"{what}, rename the folders masks and images.",)
    for folder, some in stems.items():
        masks = {stem for stem in some if stem.endswith(_ENDINGS[1:])}
        if _most(masks, some - masks, _ENDINGS[1:]):
            what = f"{folder or 'the folder'} has images with the names of others and an ending, such as {min(masks)}"
            return (f"{what}: if they are masks, move them into a folder masks, and the others into a folder images.",)
    return ()


def _name(folder: str) -> str:
    return folder.rpartition("/")[2]


def _most(masks: set[str], images: set[str], endings: tuple[str, ...]) -> bool:
    """Whether most of these stems are stems of images with one of the endings."""
    fit = sum(any(m.endswith(end) and m.removesuffix(end) in images for end in endings) for m in masks)
    return 2 * fit > len(masks)
