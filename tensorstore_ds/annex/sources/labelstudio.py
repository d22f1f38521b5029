"""Label Studio's JSON export, a list of tasks with their annotations: formats/sources/labelstudio.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar
from urllib.parse import unquote

import msgspec
import numpy as np

from tensorstore_ds.annex.sources.json_files import decoded, finite, members, read_list, text, values
from tensorstore_ds.annex.sources.shapes import attach_points, ellipse_box
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, LabelsField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.regular_files import decode_text, is_file, read_file, read_head
from tensorstore_ds.sources.annotations import AnnotatedObject, AnnotatedSource, Box, unpack
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, SourceOptions
from tensorstore_ds.sources.files import PROBED_FILES, encoding_problem, glance
from tensorstore_ds.sources.forms import FormError, kind, noted
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.ledger import USED
from tensorstore_ds.sources.names import order_classes
from tensorstore_ds.sources.splits import split_word
from tensorstore_ds.sources.xml import Place

FILE_LIMIT = 256 << 20  # bytes
VALUES_LIMIT = 1 << 23  # of a file: about 300,000 boxes
_HEAD = 1 << 16
_TASKS = re.compile(r"\s*\[\s*\{")
_ANNOTATIONS = re.compile(r'"annotations"\s*:\s*\[')
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://|data:")
_UPLOAD = re.compile(r"(?:^|/)data/upload/(?:[0-9]+/)?(.*)", re.DOTALL)
_LOCAL = re.compile(r"(?:^|/)data/local-files/?\?d=([^&]*)", re.DOTALL)
_HASH = re.compile(r"[0-9a-f]{8}-(?=.)")
#: Members that are read, or say only who has annotated when. Those of results that are not read are reported by type.
_BOOKKEEPING = (
    *("id", "created_at", "updated_at", "created_username", "updated_by", "project", "file_upload", "inner_id"),
    *("total_annotations", "cancelled_annotations", "total_predictions", "comment_count", "comment_authors"),
    *("unresolved_comment_count", "last_comment_updated_at", "storage_filename", "is_labeled", "overlap", "allow_skip"),
    *("completed_by", "was_cancelled", "ground_truth", "draft_created_at", "lead_time", "prediction", "result_count"),
    *("unique_id", "import_id", "last_action", "bulk_created", "task", "parent_prediction", "parent_annotation"),
    "last_created_by",
)
_OF_VALUES = (
    *("x", "y", "width", "height", "rotation", "points", "closed", "radiusX", "radiusY", "format", "rle", "choices"),
    *("labels", "rectanglelabels", "polygonlabels", "ellipselabels", "keypointlabels", "brushlabels"),
    *("text", "rating", "number", "datetime", "taxonomy", "ranker"),
)
_OF_RESULTS = (
    *("id", "type", "from_name", "to_name", "origin", "original_width", "original_height", "image_rotation"),
    *("parentID", "from_id", "to_id", "direction"),
)
_KNOWN_RESULT = {**dict.fromkeys(_OF_RESULTS, USED), "value": dict.fromkeys(_OF_VALUES, USED)}
_KNOWN_ANNOTATION = {**dict.fromkeys(_BOOKKEEPING, USED), "result": _KNOWN_RESULT}


class _Task(msgspec.Struct):
    """Members of a JSON file that identify it as a list of tasks."""

    annotations: list[msgspec.Raw]
    data: dict[str, msgspec.Raw]


@dataclass(slots=True)
class Annotation:
    """Content of one annotation of a task."""

    objects: list[AnnotatedObject] = field(default_factory=list)
    choices: dict[str, None] = field(default_factory=dict)  #: the classes of the image
    size: tuple[int, int] = (0, 0)  #: (height, width) of the image; 0 where nothing lies on it
    unstored: Counter[str] = field(default_factory=Counter)
    unread: list[str] = field(default_factory=list)  #: kinds of results


class LabelStudioSource(AnnotatedSource):
    """A reference has the classes of the image as well."""

    name: ClassVar[str] = "labelstudio"
    scanned: ClassVar[tuple[str, ...] | None] = ("_reader", "_has_objects", "_choices", "_several")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._has_objects = False
        self._choices: dict[str, int] = {}  # class of an image -> label
        self._several: LabelsField | None = None  # where some image has several classes
        self._has_several = False

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether it is a JSON file that begins with a list of annotated tasks, or a folder with one."""
        if is_file(path):
            return path.suffix.lower() == ".json" and _has_tasks(path)
        files = [file for file in glance(path) if file.lower().endswith(".json")]
        return any(cls.detect(path / file) for file in files[:PROBED_FILES])

    def scan(self) -> Contents:
        """Read every export."""
        jsons, images = self._walked(".json")
        files = [file for file in jsons if is_file(self.path) or self.detect(self._root / file)]
        found, named = self._annotations, dict[str, str]()
        for file in sorted(set(jsons).difference(files)):  # it may have been an export
            with noted(found.problems):
                decoded(read_file(self._root / file, file, FILE_LIMIT), file, msgspec.Raw)
        for file in files:
            with noted(found.problems):
                tasks = read_list(self._root / file, file, FILE_LIMIT, VALUES_LIMIT)
                self.ledger.use(file)
                for i, task in enumerate(tasks, 1):
                    with noted(found.problems):
                        image, row = self._task(task, f"{file}: task {i}", images)
                        if image in found.images or image in found.bad:
                            found.bad.add(image)
                            message = (
                                f"expected each image in one task, found it again in {file}: task {i}. Remove one."
                            )
                            raise SourceError(Problem(image, "duplicate-key", message))
                        if row is not None:
                            found.images[image] = row
                            named[image] = split_word(PurePosixPath(file).stem)
                        else:
                            found.left_out.append(Problem(image, "not-listed", "not stored: it is not annotated."))
        self.ledger.use(*found.bad)
        for image in found.bad:
            found.images.pop(image, None)
        if found.left_out and not found.images and not found.problems:
            raise SourceError(found.left_out)
        self._has_objects = bool(self._annotations.classes) or not self._choices
        missing = "expected a list of annotated tasks, found none."
        beside = "not stored: no task has it."
        contents = self._by_folder(images, missing, beside, labelled=self._has_objects, named=named)
        return replace(contents, fields=self._fields(contents.fields), labels=self._labels(contents.splits))

    def read(self, split: str, reference: Reference) -> Sample:
        sample, names = super().read(split, reference), unpack(reference)[1].texts
        objects = sample.objects if self._has_objects else None
        if self._several is not None:
            row = self._several.row_of([self._choices[name] for name in names] or None)
            return replace(sample, arrays={"labels": row}, objects=objects)
        return replace(sample, label=self._label(reference) if self._choices else None, objects=objects)

    def _label(self, reference: Reference) -> int:
        return next((self._choices[name] for name in unpack(reference)[1].texts), UNLABELLED)

    def _fields(self, objects: Mapping[str, Field]) -> Mapping[str, Field]:
        """Fields of objects, classes of images, or both; a class list applies to the objects if there are any."""
        fields = dict(objects) if self._has_objects else {}
        if self._choices:
            wanted = None if self._has_objects else self.options.classes
            classes = order_classes(self._choices, wanted, str(self.path), self.options.class_map)
            self._choices = {name: i for i, name in enumerate(classes)}
            if self._has_several:
                fields["labels"] = self._several = LabelsField.of(classes)
            else:
                fields["label"] = LabelField(classes=classes)
        return fields

    def _labels(self, references: Mapping[str, Sequence[Reference]]) -> dict[str, Any] | None:
        if not self._choices or self._several is not None:
            return None
        return {split: np.array([self._label(each) for each in some], np.int64) for split, some in references.items()}

    def _task(self, task: object, where: str, images: ImageIndex) -> tuple[str, int | None]:
        """Image of a task, and its row; None without annotations.

        The image is bad if something else is wrong.
        """
        image = ""
        try:
            content = members(task, "a task")
            if "annotations" not in content or "data" not in content:
                raise FormError("expected annotations and data, as the export JSON has them, found neither")
            data = members(content["data"], "data")
            image = find_image(data, images)
            if problem := encoding_problem(image):
                raise SourceError(problem)
            chosen, others = _chosen(values(content["annotations"], "annotations"))
            if chosen is None:
                return image, None
            annotation = read_results(values(chosen.get("result"), "result"))
        except FormError as error:
            self._annotations.bad.update([image] if image else [])
            raise SourceError(Problem(where, "annotation", f"{error}. Correct the task, or remove it.")) from error
        except SourceError as error:
            raise SourceError(Problem(where, error.reason, error.problems[0].message)) from error
        annotation.unstored["second-annotation"] += others
        for unread in annotation.unread:
            self.ledger.unread(unread, where, "tasks")
        about = {name: value for name, value in content.items() if name != "annotations"}
        known = {**dict.fromkeys(_BOOKKEEPING, USED), "data": {_image_member(data): USED}}
        self.ledger.members(about, known, where, "tasks")
        self.ledger.members(chosen, _KNOWN_ANNOTATION, where, "tasks")
        self._choices.update(dict.fromkeys(annotation.choices, 0))
        self._has_several |= len(annotation.choices) > 1
        self._annotations.leave_out(annotation.unstored, where)
        return image, self._annotations.add(image, annotation.objects, annotation.size, *annotation.choices, file="")


def _has_tasks(path: Path) -> bool:
    """Whether a JSON file is a list of tasks with annotations, from its beginning, or all of it if necessary."""
    head = read_head(path, _HEAD)
    text = decode_text(head, path.name, errors="replace")
    if not _TASKS.match(text):
        return False
    found = _ANNOTATIONS.search(text)
    if found is not None and any(text.find(word, found.end()) >= 0 for word in ('"result"', '"completed_by"')):
        return True
    try:
        data = read_file(path, path.name, FILE_LIMIT) if len(head) == _HEAD else b""
        return bool(data) and bool(decoded(data, path.name, list[_Task]))
    except SourceError:
        return False


def _image_member(data: Mapping[str, Any]) -> str:
    """Name of the member with the path of a task's image; raises `FormError`."""
    texts = {key: value for key, value in data.items() if isinstance(value, str) and value}
    suffixes = tuple(IMAGE_SUFFIXES)
    likely = [key for key, value in texts.items() if unquote(value).partition("?")[0].lower().endswith(suffixes)]
    likely += [key for key, value in texts.items() if _LOCAL.search(value) or _UPLOAD.search(value)]
    name = "image" if "image" in texts else next(iter(likely), None)
    if name is None:
        raise FormError("expected the path of an image in data, found none")
    return name


def find_image(data: Mapping[str, Any], images: ImageIndex) -> str:
    """Path of a task's image: an upload, a file of local storage, or any path.

    Raises `FormError` if no text could be one, and `SourceError` `no-image` for the URL of a different server or if
    no file has its name.
    """
    written = str(data[_image_member(data)])
    match = _LOCAL.search(written) or _UPLOAD.search(written)
    if match is None and _URL.match(written):
        message = f"expected a file, found the URL {written[:100]!r}."
        advice = "Download the images, and write their names in its place."
        raise SourceError(Problem("", "no-image", f"{message} {advice}"))
    path = unquote(match[1] if match else written).replace("\\", "/")
    folder, _, name = path.rpartition("/")
    for each in dict.fromkeys((name, _HASH.sub("", name, count=1))):  # with and without the letters that an upload gets
        if found := images.find_by_end(f"{folder}/{each}", ""):
            return found
    message = f"expected an image named {name[:200]}, found none. Add it, or name its folder with `images`."
    raise SourceError(Problem("", "no-image", message))


def _chosen(annotations: Sequence[Any]) -> tuple[Mapping[str, Any] | None, int]:
    """The annotation to use: the one marked as ground truth, else the first; and the number of others."""
    done = [members(each, "an annotation") for each in annotations]
    done = [each for each in done if not each.get("was_cancelled")]
    best = next((each for each in done if each.get("ground_truth")), done[0] if done else None)
    return best, len(done) - bool(done)


def read_results(results: Sequence[Any]) -> Annotation:
    """Combine the results of an annotation; those with one id are one region."""
    annotation = Annotation()
    regions: dict[str | int, dict[str, Any]] = {}
    for i, each in enumerate(results, 1):
        result = members(each, f"result {i}")
        value = members(result.get("value"), f"result {i}: value")
        name = result.get("id")
        key = name if isinstance(name, str) else i
        if key in regions or {"x", "points", "rle"} & value.keys():
            regions.setdefault(key, {}).update({**result, **value})
        elif result.get("type") == "choices":
            _choose(values(value.get("choices"), "choices"), annotation)
        else:
            annotation.unread.append(f"results of type {kind(result.get('type'))}")
    points: list[tuple[object, str, Place]] = []
    groups: dict[object, list[int]] = {}  # the object of each region
    for key, region in regions.items():
        try:
            found = _region(region, annotation)
        except FormError as error:
            raise FormError(f"region {str(key)[:40]}: {error}") from error
        if isinstance(found, AnnotatedObject):
            groups[key] = [len(annotation.objects)]
            annotation.objects.append(found)
        elif found is not None:
            parent = region.get("parentID")
            points.append((parent if isinstance(parent, str) else None, *found))
    annotation.unstored["points"] += attach_points(points, annotation.objects, groups)
    return annotation


def _choose(choices: Sequence[Any], annotation: Annotation) -> None:
    for each in choices:
        choice = text(each, "a choice")
        if "\0" in choice:
            raise FormError("expected a choice, found a zero character")
        annotation.choices[choice] = None


def _region(region: Mapping[str, Any], annotation: Annotation) -> AnnotatedObject | tuple[str, Place] | None:
    """An object, or a keypoint with its name; None for others. Percent become pixels of the image."""
    if "rle" in region or not ({"x", "points"} & region.keys()):
        annotation.unstored["shapes"] += 1
        return None
    if region.get("image_rotation"):
        raise FormError(f"expected an image that was not turned, found image_rotation {kind(region['image_rotation'])}")
    width, height = (_side(region.get(f"original_{side}")) for side in ("width", "height"))
    if annotation.size not in ((0, 0), (height, width)):
        raise FormError(f"expected an image of one size, found {height}x{width} (height x width) too")
    annotation.size = height, width
    labels = [
        label for key, some in region.items() if key.endswith("labels") and isinstance(some, list) for label in some
    ]
    label = text(labels[0] if labels else None, "a label")
    annotation.unstored["attributes"] += len(labels) - 1 + ("choices" in region)
    scale = width / 100, height / 100
    if "points" in region:
        places = [_place(point, scale) for point in values(region["points"], "points")]
        if len(places) < 3:
            raise FormError(f"expected three points of a polygon or more, found {len(places)}")
        return AnnotatedObject.around(label, polygon=places)
    start = _place([region.get("x"), region.get("y")], scale)
    turn = finite(region.get("rotation") or 0, "rotation")
    if "radiusX" in region:
        radii = _place([region["radiusX"], region.get("radiusY")], scale)
        return AnnotatedObject(label, ellipse_box(start, radii, turn))
    if "height" not in region:
        return label, start
    size = _place([region.get("width"), region["height"]], scale)
    box: Box = (*start, start[0] + size[0], start[1] + size[1])
    return AnnotatedObject.of_rectangle(label, box, turn, start)


def _side(value: object) -> int:
    if isinstance(value, int) and 0 < value < 2**31:
        return value
    raise FormError(f"expected original_width and original_height, the image's size, found {kind(value)}")


def _place(point: object, scale: Place) -> Place:
    if not isinstance(point, list) or len(point) != 2:
        raise FormError(f"expected two numbers, found {kind(point)}")
    x, y = finite(point[0], "x or width"), finite(point[1], "y or height")
    if max(abs(x), abs(y)) > 1e6:
        raise FormError(f"expected percent of the image, found {x:g} {y:g}")
    return x * scale[0], y * scale[1]
