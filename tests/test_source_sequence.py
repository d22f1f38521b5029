"""Python sequences of samples."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import tensorstore_ds as tsds
from labelling_files import bad, plain, refusing
from stores import Samples
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.format.schema import ArraySpec, Keypoints
from tensorstore_ds.sources.base import Contents, Source, SourceOptions
from tensorstore_ds.sources.sequence import SequenceSource

GRAY = np.arange(20, dtype=np.uint8).reshape(4, 5)
COLOR = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
BOXES = [[0, 0, 2, 2.5], [1, 1, 3, 4]]


class Tensor:
    """What is used of a torch tensor."""

    def __init__(self, array: NDArray[Any], format: object = None) -> None:
        self._array = array
        self.shape = array.shape
        if format is not None:
            self.format = format

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> NDArray[Any]:
        return self._array


def scan(sequence: Any, **options: object) -> tuple[SequenceSource, Contents]:
    source = SequenceSource(sequence, SourceOptions(**options))  # type: ignore[arg-type]
    return source, source.contents()


def classes(contents: Contents, field: str = "label") -> tuple[str, ...]:
    return contents.fields[field].classes  # type: ignore[union-attr]


def reasons_of(sequence: Any, match: str | None = None, **options: object) -> str:
    with pytest.raises(SourceError, match=match) as caught:
        scan(sequence, **options)
    assert "\n" not in str(caught.value)
    return caught.value.reason


def labels(source: SequenceSource, contents: Contents) -> list[int | None]:
    return [source.read("train", i).label for i in contents.splits["train"]]


def test_image_and_label() -> None:
    data = [(Image.fromarray(GRAY), 1), (Image.fromarray(COLOR), np.int64(0)), (COLOR, Tensor(np.array(1)))]
    source, contents = scan(Samples(data, classes=["cat", "dog"], targets=[1, 0, 1]))
    assert isinstance(source, Source) and not SequenceSource.detect(Path())
    assert classes(contents) == ("cat", "dog") and contents.labels is not None
    np.testing.assert_array_equal(contents.labels["train"], np.array([1, 0, 1]), strict=True)
    source = pickle.loads(pickle.dumps(source))  # noqa: S301  our own bytes
    samples = [source.read("train", i) for i in contents.splits["train"]]
    assert [(s.key, s.label) for s in samples] == [("train/00000", 1), ("train/00001", 0), ("train/00002", 1)]
    assert (samples[0].image.size, source.files(0)) == ((5, 4), ())
    np.testing.assert_array_equal(samples[2].image, COLOR, strict=True)


@pytest.mark.parametrize(
    "image",
    [
        GRAY,
        COLOR,
        COLOR[..., :1],
        COLOR[..., :2].astype(np.uint16),
        np.ones((7, 9, 6)),
        np.ones((65, 80, 64), np.uint8),
    ],
)
def test_images_alone_as_arrays_and_tensors(image: NDArray[Any]) -> None:
    source, contents = scan([image])
    assert contents.fields == {}
    np.testing.assert_array_equal(source.read("train", 0).image, image, strict=True)
    tensor = Tensor(image if image.ndim == 2 else image.transpose(2, 0, 1))
    for sample in (tensor, (tensor, None), [tensor, None], {"image": tensor}, {"img": tensor}):
        source, _ = scan([sample])
        np.testing.assert_array_equal(source.read("train", 0).image, image, strict=True)


@pytest.mark.parametrize(
    ("sample", "image"),
    [
        *(({"image": image}, Path("a.png")) for image in (Path("a.png"), "a.png")),
        *((sample, b"bytes") for sample in (b"bytes", (b"bytes", None), {"image": b"bytes"})),
    ],
)
def test_paths_and_bytes_of_files_are_images(sample: Any, image: Any) -> None:
    assert scan([sample])[0].read("train", 0).image == image


def test_splits() -> None:
    source, contents = scan({"Train": [GRAY, GRAY], "val": [COLOR], "test": []})
    assert {split: list(rows) for split, rows in contents.splits.items()} == {"train": [0, 1], "val": [0]}
    assert source.read("val", 0).key == "val/00000"


NUMBERED = [(GRAY, 2), (GRAY, 0), (GRAY, 1)]
IMAGENET = [("crane", "bird"), ("crane",), ("crane",)]


@pytest.mark.parametrize(
    ("data", "options", "expected", "numbers"),
    [
        (Samples(NUMBERED), {"classes": ("a", "b", "c")}, ("a", "b", "c"), [2, 0, 1]),
        (Samples(NUMBERED, targets=Tensor(np.array([2, 0, 1]))), {}, ("0", "1", "2"), [2, 0, 1]),
        (Samples(NUMBERED, labels=np.array([2, 0, 1])), {}, ("0", "1", "2"), [2, 0, 1]),
        (Samples(NUMBERED, classes=IMAGENET), {}, ("crane, bird", "crane (1)", "crane (2)"), [2, 0, 1]),
        ([(GRAY, "dog"), (GRAY, "cat")], {"classes": ("cat", "dog")}, ("cat", "dog"), [1, 0]),
        *(
            ([(GRAY, 0), second], {"classes": ("a", "b")}, ("a", "b"), [0, -1])  # a sample without a label
            for second in ((GRAY, None), (GRAY, -1), {"image": GRAY, "label": None}, (GRAY, {"label": None}))
        ),
        *(([(GRAY, none), (GRAY, "b")], {"classes": ("a", "b")}, ("a", "b"), [-1, 1]) for none in (None, -1)),
        *((Samples([(GRAY, none), (GRAY, 1)], classes=["a", "b"]), {}, ("a", "b"), [-1, 1]) for none in (None, -1)),
        (Samples([(GRAY, 1), (GRAY, -1), (GRAY, 0)], targets=[1, -1, 0]), {}, ("0", "1"), [1, -1, 0]),
    ],
)
def test_names_and_labels(data: Any, options: dict[str, Any], expected: tuple[str, ...], numbers: list[int]) -> None:
    source, contents = scan(data, **options)
    assert (classes(contents), labels(source, contents)) == (expected, numbers)
    known = None if contents.labels is None else contents.labels["train"].tolist()
    assert known == (numbers if hasattr(data, "targets") or hasattr(data, "labels") else None)


@pytest.mark.parametrize(
    "data", [[(GRAY, 0)], Samples([(GRAY, 0)], targets=[0], target_transform=str), [(GRAY, "cat")]]
)
def test_labels_without_names_are_refused(data: Any) -> None:
    assert reasons_of(data, "classes") == "unknown-class"


def test_a_detection_target() -> None:
    target = {
        "boxes": Tensor(np.array(BOXES, np.float32), "XYXY"),
        "labels": Tensor(np.array([2, 1])),
        "keypoints": Tensor(np.array([[[1, 2, 2], [0, 0, 0]], [[3, 4, 1], [5, 6, 2]]], np.float32)),
        "difficult": [True, False],
        "image_id": 7,
        "area": [1.0, 2.0],
    }
    empty = {**{k: np.empty((0,)) for k in ("boxes", "labels", "difficult", "area")}, "keypoints": np.empty((0, 2, 3))}
    source, contents = scan(
        [(COLOR, target), (COLOR, empty)], classes=("none", "a", "b"), keypoints=Keypoints(("l", "r"), ((0, 1),))
    )
    assert set(contents.fields) == {"objects"}
    assert classes(contents, "objects") == ("none", "a", "b")
    assert contents.fields["objects"].keypoints == ("l", "r")  # type: ignore[union-attr]
    assert [p.where for p in contents.left_out] == ["<sequence>: image_id"]
    objects: Any = source.read("train", 0).objects
    expected: dict[str, Any] = {
        "boxes": np.array(BOXES), "labels": np.array([2, 1]), "difficult": np.array([1, 0], np.uint8),
        "keypoints": np.array([[[1.0, 2.0], [np.nan, np.nan]], [[3.0, 4.0], [5.0, 6.0]]]), "area": np.array([1.0, 2.0]),
    }  # fmt: skip
    for name, values in expected.items():
        np.testing.assert_array_equal(objects[name], values, strict=True)
    objects = source.read("train", 1).objects
    assert (objects["boxes"].shape, objects["keypoints"].shape) == ((0, 4), (0, 2, 2))


def test_outlines() -> None:
    corners = [[1, 2], [3, 4], [5, 0]]
    target = {"boxes": BOXES, "polygons": [corners, []], "rle": [[], [3, 4, 5]], "iscrowd": [0, 1]}
    none = {"boxes": np.empty((0, 4)), "polygons": [], "rle": [], "iscrowd": []}
    source, contents = scan([(GRAY, target), (GRAY, none)])
    values = contents.fields["objects"].values  # type: ignore[union-attr]
    assert [name for name, spec in values.items() if spec.is_ragged] == ["polygons", "rle"]
    objects: Any = source.read("train", 0).objects
    assert (plain(objects["polygons"]), plain(objects["rle"])) == ([corners, []], [[], [3, 4, 5]])
    assert source.read("train", 1).objects["polygons"] == []  # type: ignore[index]
    for name, wrong in (("polygons", [[1, 2], []]), ("rle", [corners, []]), ("polygons", 3), ("rle", [[], "a"])):
        assert reasons_of([(GRAY, {**target, name: wrong})], name) == "annotation"


@pytest.mark.parametrize(
    "sample", [{"boxes": BOXES, "labels": [0, 1]}, {"objects": {"boxes": BOXES, "labels": [0, 1]}}]
)
def test_a_dict(sample: dict[str, Any]) -> None:
    extra = {"image": GRAY, "label": 1, "Age": 4.5, "embedding": np.zeros((2, 3), ">f4"), "remark": "a cat"}
    source, contents = scan([{**extra, **sample}], classes=("x", "y"))
    assert set(contents.fields) == {"label", "objects", "age", "embedding"}
    assert contents.fields["age"].arrays[""] == ArraySpec("float64")
    assert contents.fields["embedding"].arrays[""] == ArraySpec("float32", (2, 3))
    assert [p.where for p in contents.left_out] == ["<sequence>: remark"]
    read = source.read("train", 0)
    assert read.label == 1
    np.testing.assert_array_equal(read.arrays["age"], np.array(4.5), strict=True)
    np.testing.assert_array_equal(read.arrays["embedding"], np.zeros((2, 3), np.float32), strict=True)
    assert read.objects is not None
    assert read.objects["labels"].tolist() == [0, 1]


def test_a_target_of_numbers_is_a_field() -> None:
    source, contents = scan([(GRAY, np.array([0, 1, 1], bool)), (GRAY, [0.5, 2])])
    assert contents.fields["target"].arrays[""] == ArraySpec("uint8", (3,))
    np.testing.assert_array_equal(source.read("train", 0).arrays["target"], np.array([0, 1, 1], np.uint8), strict=True)
    assert bad(source, "train", 1) == "annotation"


WHOLE: list[tuple[str, Any]] = [
    *(("labels", value) for value in ([0, 0.5], [0, np.nan], np.array([0, 2**63], np.uint64))),
    *(("difficult", value) for value in ([0, 256], [0, -1], [0, 0.5], [0, np.nan])),
    *(("visibility", value) for value in ([[3], [0]], [[-1], [0]], [[258], [0]], [[0.7], [0]])),
    *(("rle", value) for value in ([[-1, 3], [2]], [[0.5, 1.5], [2]], [[2**32, 2], [2]])),
    *(("labels", np.ma.array([0, 1], mask=[0, 1])), ("keypoints", np.ma.array(np.zeros((2, 1, 2)), mask=True))),
]


@pytest.mark.parametrize(("name", "value"), WHOLE, ids=str)
def test_numbers_that_a_store_would_change_are_refused(name: str, value: Any) -> None:
    target = {"boxes": BOXES, "labels": [0.0, 1], "keypoints": [[[1, 2]], [[3, 4]]], name: value}
    assert reasons_of([(GRAY, target)], classes=("a", "b")) == "annotation"


def test_runs_that_are_not_of_their_image_are_refused(tmp_path: Path) -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    for runs, is_right in (([20, 4], True), ([24, 4], False), ([], True)):
        sample = {"image": pixels, "boxes": [[0, 0, 3, 3]], "rle": [runs]}
        if is_right:
            tsds.convert([sample], tmp_path / f"{len(runs)}.tsds")
            assert tsds.verify(tmp_path / f"{len(runs)}.tsds") == []
        else:
            with pytest.raises(tsds.SourceError, match="expected runs of 24 pixels in all, found 28"):
                tsds.convert([sample], tmp_path / "wrong.tsds")


class Format(NamedTuple):
    value: str


@pytest.mark.parametrize(
    "sample",
    [
        *(None, 7, (GRAY,), (GRAY, 1, 2), (GRAY, object()), (GRAY, {}), (GRAY, {"annotation": {"object": []}})),
        *(np.zeros((2, 3, 4, 5)), np.zeros((3, 224, 224)), np.zeros((0, 3)), np.array(["a"]), {"pixels": GRAY}),
        *(Tensor(np.zeros((224, 224, 3))), Tensor(np.zeros((32, 32, 3)))),
        *map(np.zeros, ((3, 32, 32), (32, 32, 32), (80, 80, 65), (8, 32, 32), (6, 6, 6))),
        (GRAY, {"boxes": BOXES, "labels": [1]}),
        (GRAY, {"boxes": [[1, 2, 3]]}),
        (GRAY, {"boxes": "all"}),
        (GRAY, {"boxes": Tensor(np.array(BOXES), Format("XYWH"))}),
        (GRAY, {"keypoints": [[1, 2]]}),
        {"image": GRAY, "objects": {"bbox": BOXES}},
        {"image": GRAY, "key": np.zeros(2)},
    ],
)
def test_samples_that_are_none(sample: Any) -> None:
    assert reasons_of([sample]) == "annotation"


@pytest.mark.parametrize(
    ("data", "reason", "found"),
    [
        *(
            ([(GRAY, 0), second], reason, "train/00001")
            for second, reason in (
                (GRAY, "annotation"),
                ((GRAY, {"boxes": BOXES}), "annotation"),
                ((GRAY, 0.5), "annotation"),
                ((GRAY, 2), "unknown-class"),
                ((GRAY, -2), "unknown-class"),
                ((GRAY, "emu"), "unknown-class"),
            )
        ),
        *(  # objects always have labels
            ([(GRAY, {"boxes": BOXES, "labels": numbers})], "unknown-class", f"found {found}")
            for numbers, found in (([0, -1], -1), ([-1, 0], -1), ([0, 2], 2), (["a", "emu"], "'emu'"))
        ),
    ],
)
def test_a_bad_sample_is_named(data: list[Any], reason: str, found: str) -> None:
    source, _ = scan(data, classes=("a", "b"))
    with refusing(reason, found):
        source.read("train", len(data) - 1)


@pytest.mark.parametrize("names", [["b", "a"], ("b", "a"), np.array(["b", "a"])], ids=lambda each: type(each).__name__)
def test_objects_have_the_names_of_their_classes(names: Any) -> None:
    source, _ = scan(
        [{"image": GRAY, "boxes": BOXES, "labels": [0, 1]}, (GRAY, {"boxes": BOXES, "labels": names})],
        classes=("a", "b"),
    )
    objects = source.read("train", 1).objects
    assert objects is not None
    assert plain(objects["labels"]) == [1, 0]
    assert objects["labels"].dtype == np.int64


def test_none_is_no_label_where_classes_are_those_of_objects() -> None:
    sample = {"image": GRAY, "boxes": BOXES, "labels": [0, 1], "label": None}
    source, contents = scan([sample], classes=("a", "b"))
    assert list(contents.fields) == ["objects"]
    assert source.read("train", 0).label is None


def test_another_number_of_keypoints_is_refused() -> None:
    sample = (GRAY, {"keypoints": np.zeros((1, 3, 2))})
    assert scan([sample])[1].fields["objects"].keypoints == ("0", "1", "2")  # type: ignore[union-attr]
    assert reasons_of([sample], keypoints=Keypoints(("a",))) == "keypoint-count"


class Broken:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> NDArray[Any]:
        if index:
            raise KeyError("lost\nit")
        return GRAY


@pytest.mark.parametrize("workers", [0, 2])
def test_what_only_a_later_sample_has_is_noted(tmp_path: Path, workers: int) -> None:
    samples = [{"image": GRAY}, *({"image": GRAY, "remark": "a"} for _ in range(3))]
    options = tsds.ConvertOptions(workers=workers)
    summary = tsds.convert(samples, tmp_path / "a.tsds", options)
    assert [problem.where for problem in summary.left_out] == ["<sequence>: remark"]
    assert tsds.estimate(samples, options).left_out == summary.left_out


def test_an_exception_of_the_sequence_is_named() -> None:
    source, _ = scan(Broken())
    with refusing("unreadable-file", r"__getitem__\(2\).*KeyError"):
        source.read("train", 2)


def test_images_of_booleans_are_black_and_white(tmp_path: Path) -> None:
    """As in files of NumPy, and as Pillow reads images of one bit."""
    torch = pytest.importorskip("torch")
    pixels = np.eye(8, dtype=bool)
    np.save(tmp_path / "images.npy", pixels[None])
    sources: list[Any] = [[pixels], [torch.tensor(pixels)], [Image.fromarray(pixels)], tmp_path / "images.npy"]
    for i, source in enumerate(sources):
        tsds.convert(source, tmp_path / f"{i}.tsds", workers=0)
        found = tsds.open(tmp_path / f"{i}.tsds")["train"]["image"][0]
        np.testing.assert_array_equal(found, pixels[:, :, None] * np.uint8(255))


def test_a_batch_is_passed_image_by_image(tmp_path: Path) -> None:
    images, labels = np.zeros((5, 8, 9, 3), np.uint8), np.arange(5)
    with refusing("annotation", r"Pass a batch image by image, as zip\(images, labels\) does"):
        tsds.convert((images, labels), tmp_path / "o.tsds")
    tsds.convert(zip(images, labels, strict=True), tmp_path / "o.tsds", classes=list("abcde"))
    assert tsds.open(tmp_path / "o.tsds")["train"]["label"][:].tolist() == labels.tolist()


def test_what_is_no_sequence() -> None:
    def generate() -> Iterator[int]:
        yield 1

    for thing in (generate(), 3, {"train": generate()}):
        with pytest.raises(OptionError, match="__getitem__"):
            scan(thing)
    for empty in ([], {}, {"train": []}):
        assert reasons_of(empty) == "empty-source"


class Eyes(list[Any]):
    """Samples whose keypoints the object names itself."""

    classes = ("face",)
    keypoints: Any = ("left_eye", "nose", "right_eye")


def test_keypoints_that_the_object_names() -> None:
    samples = Eyes([(GRAY, {"keypoints": np.zeros((1, 3, 2)), "labels": [0]})])
    own, given = Keypoints(("a", "b", "c"), ((1, 2),)), Keypoints(("x", "y", "z"), ())
    for named, option, expected in (
        (Eyes.keypoints, None, Keypoints(Eyes.keypoints, ((0, 2),))),
        (own, None, own),
        (own, given, given),
    ):
        samples.keypoints = named
        field: Any = scan(samples, keypoints=option)[1].fields["objects"]
        assert (field.keypoints, field.flip_pairs) == (expected.names, expected.flip_pairs)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_list_keeps_the_keys_of_its_samples(tmp_path: Path, workers: int) -> None:
    samples = [{"key": name, "image": np.full((4, 4), i, np.uint8)} for i, name in enumerate("cab")]
    numbered = [{**sample, "key": i} for i, sample in enumerate(samples)]
    done = tsds.convert({"train": samples, "val": numbered}, tmp_path / "s.tsds", workers=workers)
    store = tsds.open(tmp_path / "s.tsds")
    assert done.left_out == () and list(store["train"].fields) == ["image", "size", "key"]
    for name, expected in (("train", ["c", "a", "b"]), ("val", ["0", "1", "2"])):
        assert [store[name].key(row) for row in range(3)] == expected
        assert [int(store[name]["image"][row][0, 0, 0]) for row in range(3)] == [0, 1, 2]
    some = tsds.convert([*samples, {"image": samples[0]["image"]}], tmp_path / "some.tsds", workers=0)
    assert len(some.left_out) == 1 and tsds.open(tmp_path / "some.tsds")["train"].key(0) == "train/00000"
    for wrong, message in (
        ([*samples, samples[1]], "a: expected keys that differ"),
        ([{**samples[0], "key": "\ud800"}], "in UTF-8"),
    ):
        with pytest.raises(tsds.SourceError, match=message):
            tsds.convert(wrong, tmp_path / "wrong.tsds", workers=workers)


def test_numbers_of_classes_beside_objects(tmp_path: Path) -> None:
    objects = {"boxes": BOXES, "labels": [0, 1]}
    samples = [{"image": GRAY, "labels": np.array(row), "objects": objects} for row in ([1, 0, -1], [0, 1, 1])]
    tsds.convert(samples, tmp_path / "o.tsds", classes=("a", "b", "c"), workers=0)
    split = tsds.open(tmp_path / "o.tsds")["train"]
    assert split["labels"][:].tolist() == [[1, 0, -1], [0, 1, 1]]
    assert (split.fields["labels"].kind, split.fields["labels"].classes) == ("labels", ("a", "b", "c"))
