"""Read data sets in other formats: `FORMATS` lists them, `open_source` opens one, `base` defines a source.

No format is imported before it is used, so that the list itself costs nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tensorstore_ds.archives import UNREAD, plain
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.options import meant_path
from tensorstore_ds.plugins import Plugins
from tensorstore_ds.regular_files import entries, exists, is_dir, os_errors

if TYPE_CHECKING:
    from tensorstore_ds.sources.base import Source, SourceOptions


#: All formats that can be read from a path, by name. ``formats/sources/`` describes the built-in formats. Other
#: packages add formats with an entry point ``tsds.sources``.
FORMATS = Plugins(
    "tsds.sources",
    "tensorstore_ds",
    {
        "arrays": ("annex.sources.arrays.numpy_files", "ArraysSource", "NumPy's .npy and .npz files"),
        "coco": ("annex.sources.coco.source", "CocoSource", "COCO's JSON: boxes, keypoints and segmentations"),
        "cvat": ("annex.sources.cvat", "CvatSource", "CVAT for images 1.1: XML with shapes"),
        "dota": ("annex.sources.dota", "DotaSource", "DOTA: a text file of quadrilaterals for each image"),
        "folders": ("sources.folders", "FolderSource", "images in class folders, or without labels"),
        "hdf5": ("annex.sources.hdf5", "Hdf5Source", "HDF5: images as an array, or as the bytes of files"),
        "idx": ("annex.sources.arrays.idx", "IdxSource", "MNIST's files"),
        "imglab": ("sources.imglab", "ImglabSource", "dlib's XML: boxes and keypoints"),
        "labelme": ("annex.sources.labelme", "LabelmeSource", "labelme: a JSON file with shapes for each image"),
        "labelstudio": ("annex.sources.labelstudio", "LabelStudioSource", "Label Studio's JSON export"),
        "list": ("sources.list.source", "ListSource", "a text or CSV file with a line for each image"),
        "lmdb": ("annex.sources.lmdb.source", "LmdbSource", "LMDB: image files with labels, or Caffe's Datum"),
        "masks": ("annex.sources.masks", "MaskSource", "images and masks of the same names, or Pascal VOC's"),
        "mds": ("annex.sources.mds.source", "MdsSource", "MosaicML Streaming's shards"),
        "panlabel": ("annex.sources.panlabel", "PanlabelSource", "39 formats of boxes, through the program panlabel"),
        "parquet": ("annex.sources.parquet", "ParquetSource", "Parquet with a column of images, as of Hugging Face"),
        "pts": ("annex.sources.pts", "PtsSource", "300-W and iBUG: a .pts file of facial points for each image"),
        "voc": ("sources.voc.source", "VocSource", "Pascal VOC: an XML file for each image"),
        "webdataset": ("annex.sources.webdataset", "WebDatasetSource", "WebDataset: tar files of images and labels"),
        "yolo": ("annex.sources.yolo.source", "YoloSource", "Ultralytics and Darknet: a text file for each image"),
    },
)


#: An archive of this format is read as one; others are folders.
_TARS = "webdataset"
#: The format that `SourceOptions.via` asks for.
_VIA = "panlabel"


def open_source(path: Path, format: str = "auto", options: SourceOptions | None = None) -> Source:
    """Open the source at `path` in a format, or in the one format that recognizes it.

    Raises `SourceError` `no-such-source`, `unreadable-file`, `unknown-format`, `empty-source`, or `ambiguous-format` if
    several formats recognize it; raises `OptionError` if `options.via` does not fit the format.
    """
    from tensorstore_ds.sources.base import SourceOptions  # imports NumPy, which the list of formats does not need

    with os_errors(str(path)):  # such as a name that is too long
        is_there = exists(path)
    if not is_there:
        message = f"there is no such file or folder.{meant_path(path)}"
        raise SourceError(Problem(str(path), "no-such-source", message))
    if format == "auto" and path.is_file() and FORMATS[_TARS].load().detect(whole := plain(path)):
        if whole != path:
            problem = Problem(str(path), "archive", "expected WebDataset's .tar files, found a compressed one.")
            raise SourceError(problem, "Decompress it, and name the .tar file.")
        format = _TARS
    if format != _TARS and not path.is_dir() and is_dir(path):
        path = _inside(path)
    if options is not None and options.via is not None:
        if format not in ("auto", _VIA):
            raise OptionError(f"`via`: expected no other format beside it, found {format}. Leave one of them out.")
        format = _VIA
    names = [format] if format != "auto" else recognized(path)
    if len(names) == 1:
        made: type[Source] = FORMATS[names[0]].load()
        return made(path, options or SourceOptions())
    if names:
        problem = Problem(str(path), "ambiguous-format", f"this could be {' or '.join(names)}.")
        raise SourceError(problem, "Name the format with `format`, or convert one data set, by its own folder.")
    if is_dir(path) and not exists(path / "zarr.json"):
        inner = _inside(path)
        if inner != path:
            return open_source(inner, format, options)
        _check_images(path)
    problem = Problem(str(path), "unknown-format", "no known data set format was recognized.")
    raise SourceError(problem, _advice(path))


def recognized(path: Path) -> list[str]:
    """Formats whose `detect` returns the highest certainty for a path."""
    from tensorstore_ds.sources.base import Match
    from tensorstore_ds.sources.files import listed_once

    with listed_once():
        found = {name: Match.of(each.load().detect(path)) for name, each in FORMATS.items()}
    surest = max(found.values())
    return [name for name, match in found.items() if match == surest != Match.NO]


def _inside(path: Path) -> Path:
    """The single folder around all content of a folder or archive, as archives often have it, else `path`.

    A folder named as a split or a class does not count.
    """
    from tensorstore_ds.sources.files import LITTER
    from tensorstore_ds.sources.splits import SPLIT_NAMES

    shown = [each for each in entries(path) if each[0][0] != "." and each[0].lower() not in LITTER]
    if len(shown) != 1 or not shown[0][1] or shown[0][0].lower() in SPLIT_NAMES:
        return path
    folder = path / shown[0][0]
    is_around = folder.name == path.name.partition(".")[0] or any(is_folder for _, is_folder in entries(folder))
    return _inside(folder) if is_around else path


def _check_images(path: Path) -> None:
    """Raise `SourceError` if a folder has no images where formats look for them; the message says where some are."""
    from tensorstore_ds.sources.base import IMAGE_SUFFIXES
    from tensorstore_ds.sources.files import find_file, glance, no_images
    from tensorstore_ds.sources.images import FOLDERS
    from tensorstore_ds.sources.ledger import note_of_beside
    from tensorstore_ds.sources.splits import SPLIT_NAMES

    if any(name.lower().endswith(tuple(IMAGE_SUFFIXES)) for name in glance(path)):
        return
    image, others = find_file(path, IMAGE_SUFFIXES)
    if image is None:
        raise no_images(path, others)
    folders = image.split("/")[:-1]
    depth = next((i for i, name in enumerate(folders) if name.lower() in SPLIT_NAMES), 0) or len(folders) - 1
    inner = path.joinpath(*folders[:depth])
    message = f"expected images in this folder or two levels below, found the first ones in {'/'.join(folders)}."
    around = (path.joinpath(*folders[:i]) for i in range(depth))
    beside = (
        (top, *each) for top, own in zip(around, folders, strict=False) for each in entries(top) if each[0] != own
    )
    for top, name, is_folder in beside:
        if is_folder and name.lower() not in FOLDERS and (other := find_file(top / name, IMAGE_SUFFIXES)[0]):
            how = "the `format` folders reads all" if top == path else f"convert {top}"
            advice = f"There are more, such as {name}/{other}: {how}. Or convert {inner} alone."
            raise SourceError(Problem(str(path), "unknown-format", message), advice)
    raise SourceError(Problem(str(path), "unknown-format", message), f"Convert {inner}.{note_of_beside(path, inner)}")


def _advice(path: Path) -> str:
    """Advice for a path that no format recognizes."""
    from tensorstore_ds.sources.base import IMAGE_SUFFIXES

    if path.name.lower().endswith(UNREAD):
        return "It seems to be an archive: unpack it, and name the folder, or pack it as .zip or .tar."
    if is_dir(path) and exists(path / "zarr.json"):
        return "It seems to be a store: read it as it is, or write it again with tsds repack."
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return "It seems to be one image: name the folder that holds the images."
    if path.suffix.lower() == ".xml" and not is_dir(path):
        from tensorstore_ds.sources.xml import file_root

        if file_root(path) == "annotation":
            folder = path.parent.parent if path.parent.name == "Annotations" else path.parent
            return f"It seems to be the Pascal VOC annotation of one image: convert the folder {folder}."
        return "Single XML files are read if they are from dlib's imglab (root <dataset>) or CVAT (root <annotations>)."
    return f"Name the format with `format` ({', '.join(FORMATS)})."
