"""Images and masks in two folders, or as Pascal VOC keeps them: formats/sources/masks.md."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.coco.files import is_coco
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import MaskField
from tensorstore_ds.imaging.codecs import decode_image, decode_mask, open_image, quiet_pillow
from tensorstore_ds.regular_files import TEXT_LIMIT, entries, is_dir, is_file, read_file, read_lines
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, Source
from tensorstore_ds.sources.files import PackedStrings, encoding_problem, walk_files
from tensorstore_ds.sources.mask_folders import MaskFolders, endings_of, find_mask_folders, has_xml, masks_in
from tensorstore_ds.sources.names import number_classes, read_classes
from tensorstore_ds.sources.splits import SPLIT_NAMES, Splits, drop_unions, no_samples, split_names

_VOC, _LISTS = "SegmentationClass/", "ImageSets/Segmentation"
#: Files with the names of classes, as of labelme2voc. Those of CVAT and Kaggle also have the color of each class.
_ROBOFLOW, _LABELMAPS = "_classes.csv", ("labelmap.txt", "class_dict.csv", "class_dict_seg.csv")
_NAMES = ("classes.txt", "class_names.txt", _ROBOFLOW)
_IGNORED_NAME = "__ignore__"  # of labelme2voc, for -1
_BORDER = 0xE0E0C0  # outline of Pascal VOC's objects, not a class
#: The classes of Pascal VOC 2007 to 2012, in the order of the numbers in its masks.
VOC_CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip
#: Number of masks searched for values out of range, if classes have names.
_PROBED = 16
_FOREGROUND, _FOREGROUND_16 = 255, 65535
_JPEG = (".jpg", ".jpeg", ".jfif")
#: A JPEG changes 0 and 255 by this much where a mask is even, and more at edges, which are a small part of it.
_CHANGE, _EDGES = 2, 0.2


class MaskSource(Source):
    """A reference is the paths of an image and its mask, separated by NUL, which paths cannot contain."""

    name: ClassVar[str] = "masks"
    scanned: ClassVar[tuple[str, ...] | None] = ("_colors", "_foreground")
    _colors: tuple[int, ...] = ()  #: of the classes, where the masks may have colors instead of numbers
    _foreground = 0  #: the number of the class 1 in masks of 0 and 255, or of 0 and 65535

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether there are folders of images and masks without XML or COCO annotations next to them."""
        if not is_dir(path) or is_coco(path):
            return False
        return any(not has_xml(path, pair) for pair in find_mask_folders(path))

    def scan(self) -> Contents:
        """Pair images with masks by name; reads masks if the classes have no names."""
        folders = find_mask_folders(self.path)
        if not folders:
            message = "expected a folder of images and a folder of masks with the same names of files, found none."
            advice = "Name the folders images and masks, with files such as images/a.jpg and masks/a.png."
            raise SourceError(Problem(str(self.path), "empty-source", message), advice)
        problems: list[Problem] = []
        left_out: list[Problem] = []
        splits: dict[str, PackedStrings] = {}
        for pair in folders:
            alone: list[Problem] = []
            references = PackedStrings(self._pairs(pair, alone))
            lists = self.path / pair.images / ".." / _LISTS
            if pair.masks.endswith(_VOC) and is_dir(lists):
                splits.update(self._listed(lists, references, problems, left_out))
                left_out += [Problem(p.where, "not-listed", "not stored: it has no mask.") for p in alone]
                continue
            problems += alone
            for split, some in _by_folder(references, pair).items():
                splits.setdefault(split, PackedStrings()).extend(some)
        splits = {split: references for split, references in splits.items() if references}
        if not splits:
            raise SourceError(problems or Problem(str(self.path), "empty-source", "no image here has a mask."))
        notes: list[str] = []
        beside = [file for pair in folders if is_file(self.path / (file := f"{pair.masks}{_ROBOFLOW}"))]
        lines = {file: [*read_lines(self.path / file, "class list").values()] for file in beside}
        self.ledger.use(*(file for file in beside if lines[file] == lines[beside[0]]))
        field = MaskField.of(self._classes(folders[0], splits, notes))
        return Contents({"mask": field}, splits, None, tuple(problems), tuple(left_out), tuple(notes))

    def read(self, split: str, reference: Reference) -> Sample:
        image, _, mask = str(reference).partition("\0")
        path = self.path / mask
        decoded: Any = path
        if self._colors or self._foreground:
            decoded = _by_color(path, self._colors) if self._colors else _binary(path, self._foreground)
        return Sample(image, self.path / image, masks={"mask": decoded})

    def files(self, reference: Reference) -> tuple[str, ...]:
        return tuple(f"{self.path}/{path}" for path in str(reference).split("\0"))

    def _pairs(self, folders: MaskFolders, problems: list[Problem]) -> Iterator[str]:
        """References of the images with a mask; unpaired files become problems."""
        begin, endings = endings_of(folders.masks)
        masks = {path.rpartition(".")[0]: path for path in masks_in(self.path, folders.masks)}
        if folders.images == folders.masks:
            masks = {stem: path for stem, path in masks.items() if stem.endswith(endings[1:])}
        found = {*masks.values()} if folders.images == folders.masks else ()
        for path in walk_files(self.path / folders.images, IMAGE_SUFFIXES):
            if path in found:
                continue
            stem = path.rpartition(".")[0].removesuffix(begin)
            mask = next((masks.pop(stem + ending) for ending in endings if stem + ending in masks), None)
            if mask is None:
                message = f"expected a mask of the same name in {folders.masks}, found none. Add it, or move this away."
                problems.append(Problem(folders.images + path, "no-annotation", message))
            elif problem := encoding_problem(path) or encoding_problem(mask):
                problems.append(problem)
            else:
                yield f"{folders.images}{path}\0{folders.masks}{mask}"
        for mask in masks.values():
            message = f"expected an image of the same name in {folders.images}, found none. Add it, or remove the mask."
            problems.append(Problem(folders.masks + mask, "no-image", message))

    def _listed(
        self, folder: Path, references: Sequence[str], problems: list[Problem], left_out: list[Problem]
    ) -> dict[str, PackedStrings]:
        """Splits from lists of ids; a list that is the union of others is left out."""
        numbers = {Path(self.key("", reference)).stem: i for i, reference in enumerate(references)}
        rows = {}
        for path in sorted(
            folder / name for name, is_folder in entries(folder) if name.endswith(".txt") and not is_folder
        ):
            where = f"{_LISTS}/{path.name}"
            self.ledger.use(path)
            ids = read_file(path, where, TEXT_LIMIT).decode("utf-8-sig", "surrogateescape").split()
            for missing in dict.fromkeys(id for id in ids if id not in numbers):
                message = f"expected an image and a mask of this name, which {where} lists, found none."
                problems.append(Problem(missing, "no-annotation", f"{message} Add them, or remove the line."))
            rows[path.stem] = np.array(list(dict.fromkeys(numbers[id] for id in ids if id in numbers)), np.int64)
            if not ids:
                left_out.append(no_samples(where))
                del rows[path.stem]
        drop_unions(Splits(rows, left_out=left_out), lambda name: f"{_LISTS}/{name}.txt")
        stored = {int(row) for some in rows.values() for row in some}
        for i, reference in enumerate(references):
            if i not in stored:
                left_out.append(Problem(self.key("", reference), "not-listed", "not stored: no split lists it."))
        names = split_names(rows)
        return {names[name]: PackedStrings(references[int(i)] for i in some) for name, some in rows.items()}

    def _classes(self, folders: MaskFolders, splits: dict[str, PackedStrings], notes: list[str]) -> tuple[str, ...]:
        """Class names: from the options, a file, Pascal VOC, or the values that occur. Notes palettes that differ."""
        named = self.options.classes
        for name in _NAMES if named is None else ():
            if named is None and (listed := self._beside(folders.masks, name)) is not None:
                self.ledger.use(listed)
                named = tuple(each for each in read_classes(listed) if each != _IGNORED_NAME)
                if name == _ROBOFLOW:  # Pixel Value, Class; or of images, with other columns
                    is_of_masks = bool(named) and named[0].lower().startswith("pixel value")
                    named = tuple(each.partition(",")[2].strip() for each in named[1:]) if is_of_masks else None
        found_maps = (self._beside(folders.masks, name) for name in _LABELMAPS)
        if named is None and (labelmap := next(filter(None, found_maps), None)) is not None:
            self.ledger.use(labelmap)
            labels = _labels(labelmap)
            named, colors = tuple(name for name, _ in labels), {color for _, color in labels if color is not None}
            self._colors = tuple(c for _, c in labels if c is not None) if len(colors) == len(labels) else ()
        if named is None and folders.masks.endswith(_VOC):
            named = VOC_CLASSES
        references = itertools.chain.from_iterable(splits.values())
        values: set[int] = set()
        palette: dict[int, tuple[tuple[int, ...], str]] = {}  # color of each value, and the first mask with it
        for reference in itertools.islice(references, None if named is None else _PROBED):
            path = reference.partition("\0")[2]
            with contextlib.suppress(SourceError), quiet_pillow():  # the conversion reads it again and reports it
                data = read_file(self.path / path, path)
                found = np.unique(_numbers(data, path)).tolist()
                values.update(found)
                of_mask = None if notes or self._colors else open_image(data, key=path).getpalette()
                own = {i: tuple(of_mask[3 * i : 3 * i + 3]) for i in found} if of_mask else {}
                if wrong := [i for i, color in own.items() if palette.setdefault(i, (color, path))[0] != color]:
                    one, first = palette[wrong[0]]
                    what = f"{wrong[0]} has the color {one} in {first}, and {own[wrong[0]]} in {path}"
                    notes.append(f"the palettes of masks differ: {what}. Numbers are read, not colors: compare some.")
        foreground = max(values, default=0)
        if values in ({0, _FOREGROUND}, {0, _FOREGROUND_16}):
            if named is not None and len(named) != 2:
                message = f"expected the numbers of {len(named)} classes in the masks, found 0 and {foreground} alone."
                raise SourceError(
                    Problem(str(self.path), "mask-range", message), "Name two classes, such as no and yes."
                )
            self._foreground, values = foreground, {0, 1}
            notes.append(f"masks have the numbers 0 and {foreground} alone: {foreground} is read as the class 1.")
        if named is not None:
            return number_classes((), named, str(self.path))
        ignored = _FOREGROUND if foreground <= _FOREGROUND else _FOREGROUND_16
        most = max((value for value in values if value != ignored), default=0)
        return tuple(map(str, range(most + 1)))

    def _beside(self, masks: str, name: str) -> Path | None:
        """A file of this name at the top of the source, next to the folder `masks`, or in it."""
        places = (self.path, self.path / masks[:-1].rpartition("/")[0], self.path / masks)
        return next((path for place in places if is_file(path := place / name)), None)


def _labels(path: Path) -> list[tuple[str, int | None]]:
    """Names and colors from CVAT's ``name:red,green,blue:parts:actions`` or a CSV file, in line order."""
    is_csv = path.suffix == ".csv"
    labels: list[tuple[str, int | None]] = []
    for line in read_lines(path, "class list").values():
        name, _, rest = line.strip().partition("," if is_csv else ":")
        if name and not name.startswith("#") and (not is_csv or rest[-1:].isdecimal()):
            numbers = rest.partition(":")[0].split(",")
            is_color = len(numbers) == 3 and all(n.strip().isdecimal() and int(n[-9:]) < 256 for n in numbers)
            labels.append((name, int.from_bytes(int(n) for n in numbers) if is_color else None))
    return labels


def _numbers(data: bytes, path: str) -> NDArray[Any]:
    """`decode_mask`, with the numbers of a JPEG that had 0 and 255 alone as the nearer of these.

    Raises `SourceError` `mask-range` for a JPEG that had others.
    """
    mask = decode_mask(data, key=path)
    if not path.lower().endswith(_JPEG):
        return mask
    if np.count_nonzero((mask > _CHANGE) & (mask < _FOREGROUND - _CHANGE)) > _EDGES * mask.size:
        message = "expected masks whose numbers are classes, found a JPEG, which changes the numbers."
        raise SourceError(Problem(path, "mask-range", message), "Write all masks again as PNG.")
    return np.where(mask > _FOREGROUND // 2, _FOREGROUND, 0)


def _by_color(path: Path, colors: Sequence[int]) -> Path | NDArray[Any]:
    """(H, W) class indices of a mask with a color per class; the file itself if it contains indices.

    Raises `SourceError` `mask-range` for a color that is no class.
    """
    data = read_file(path, str(path))
    mode = open_image(data, key=str(path)).mode
    if mode not in ("P", "RGB", "RGBA"):
        return path
    pixels = decode_image(data, color="rgb", key=str(path)).astype(np.uint32)
    packed = pixels[:, :, 0] << 16 | pixels[:, :, 1] << 8 | pixels[:, :, 2]
    found, places = np.unique(packed, return_inverse=True)
    numbers = {_BORDER: _FOREGROUND, **{color: i for i, color in enumerate(colors)}}
    unknown = next((color for color in found.tolist() if color not in numbers), None)
    if unknown is not None:
        if mode == "P":
            return path
        message = f"expected the colors of the class list in the mask, found {','.join(map(str, unknown.to_bytes(3)))}."
        raise SourceError(Problem(str(path), "mask-range", message), "Add its class there, or correct the mask.")
    values = np.array([numbers[color] for color in found.tolist()], np.uint8 if len(colors) < 256 else np.uint16)
    mask: NDArray[Any] = values[places.reshape(packed.shape)]
    return mask


def _binary(path: Path, foreground: int) -> NDArray[np.uint8]:
    """(H, W) 0 and 1 of a mask of 0 and `foreground`; raises `SourceError` `mask-range` for other numbers."""
    mask = _numbers(read_file(path, str(path)), str(path))
    if (wrong := mask[(mask != 0) & (mask != foreground)]).size:
        message = f"expected 0 and {foreground}, as in the masks before, found {wrong[0]}."
        raise SourceError(Problem(str(path), "mask-range", message), "Correct the mask.")
    return np.asarray(mask == foreground, np.uint8)


def _by_folder(references: Sequence[str], folders: MaskFolders) -> dict[str, list[str]]:
    """References by the top folder of images if all of these are splits, else by the split of the folders."""
    tops: dict[str, list[str]] = {}
    for reference in references:
        top, slash, _ = reference[len(folders.images) :].partition("\0")[0].partition("/")
        tops.setdefault(top if slash else "", []).append(reference)
    if not all(top.lower() in SPLIT_NAMES for top in tops):
        return {folders.split: list(references)}
    return {name: tops[top] for top, name in split_names(tops).items()}
