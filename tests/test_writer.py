"""The Writer: the store of a conversion of the same samples, whatever happens on the way."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from stores import Samples, contents, png_bytes
from tensorstore_ds.conversion.blocks import BlockRows
from tensorstore_ds.format.kinds import LabelField

CLASSES = ["ant", "bee", "cow"]
SMALL = 60  # bytes of a shard: two images of 30 bytes


def digits(count=9):
    """Gray images of 6 x 5 pixels with a label and a key each."""
    rng = np.random.default_rng(0)
    return [{"key": f"d{i}", "image": rng.integers(0, 256, (6, 5), np.uint8), "label": i % 3} for i in range(count)]


@pytest.fixture
def partial(tmp_path):
    return tmp_path / "o.tsds.partial"


def write(out, samples, split="train", **options):
    with tsds.Writer(out, **{"classes": CLASSES, "shard_nbytes": SMALL, **options}) as writer:
        writer.extend(split, samples)
    return writer.summary


def stopped(out, samples, split="train", **options):
    """Write, then stop as Ctrl-C does."""
    with pytest.raises(KeyboardInterrupt), tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL, **options) as writer:
        writer.extend(split, samples)
        raise KeyboardInterrupt


def fresh(tmp_path, samples, **options):
    write(tmp_path / "fresh.tsds", samples, **options)
    return contents(tmp_path / "fresh.tsds")


# --- what is written --------------------------------------------------------------------------------------------


def test_all_forms_of_an_image(tmp_path, out):
    pixels = np.arange(30, dtype=np.uint8).reshape(6, 5)
    (tmp_path / "a.png").write_bytes(png_bytes(pixels))
    images = [pixels, Image.fromarray(pixels), tmp_path / "a.png", str(tmp_path / "a.png"), png_bytes(pixels)]
    with tsds.Writer(out, classes=CLASSES) as writer:
        for image in images:
            writer.append("train", image=image, label="bee")
            writer.append("train", (image, 1))
            writer.append("train", lambda image=image: (image, "bee"))
    split = tsds.open(out)["train"]
    assert (np.asarray(split["image"])[..., 0] == pixels).all()
    assert np.asarray(split["label"]).tolist() == [1] * 15
    assert split["key"][14] == "train/00014"


def test_an_array_that_is_filled_again_changes_nothing(out):
    image, mask, more = np.empty((6, 5), np.uint8), np.empty((6, 5), np.uint8), np.empty(2, np.float32)
    boxes = np.zeros((1, 4))
    with tsds.Writer(out, classes=["a", "b", "c", "d", "e"]) as writer:
        for i in range(5):
            image[:], mask[:], more[:], boxes[:, 2:] = i, i, i, i + 1
            writer.append("train", image=image, mask=mask, position=more, boxes=boxes)
    split = tsds.open(out)["train"]
    assert np.asarray(split["image"])[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert np.asarray(split["mask"])[:, 5, 4].tolist() == [0, 1, 2, 3, 4]
    assert np.asarray(split["position"])[:, 1].tolist() == [0, 1, 2, 3, 4]
    assert [split["objects"][i]["boxes"][0, 2] for i in range(5)] == [1, 2, 3, 4, 5]


class Refilled:
    """A sequence whose samples are all the same two arrays."""

    image, mask, classes = np.empty((6, 5), np.uint8), np.empty((6, 5), np.uint8), ("a", "b", "c", "d", "e")

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.image[:], self.mask[:] = index, index
        return {"image": self.image, "mask": self.mask}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sequence_may_fill_an_array_again(out, workers):
    tsds.convert(Refilled(), out, tsds.ConvertOptions(workers=workers))
    split = tsds.open(out)["train"]
    assert np.asarray(split["image"])[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert np.asarray(split["mask"])[:, 5, 4].tolist() == [0, 1, 2, 3, 4]


def test_the_fields_of_another_store(tmp_path, out):
    write(tmp_path / "a.tsds", digits())
    fields = tsds.open(tmp_path / "a.tsds")["train"].fields
    with tsds.Writer(out, fields=fields) as writer:
        writer.append("train", image=np.zeros((6, 5), np.uint8), label="cow")
    assert tsds.open(out)["train"].fields == fields
    with pytest.raises(tsds.SourceError, match="expected the fields of the first sample, label"):
        write(tmp_path / "b.tsds", [np.zeros((6, 5), np.uint8)], fields=fields)
    with pytest.raises(tsds.SourceError, match=r"expected images uint8 6 x 5 x 1, found uint8 7 x 5 x 1"):
        write(tmp_path / "b.tsds", [(np.zeros((7, 5), np.uint8), 1)], fields=fields)


def test_fields_without_images(out):
    with pytest.raises(tsds.OptionError, match="`fields`: expected the fields of a split, image among them"):
        tsds.Writer(out, fields={"label": LabelField(classes=("cow",))})


def test_what_is_not_stored_of_a_sample_is_noted(out):
    write(out, [{**sample, "remark": "a"} for sample in digits()])
    assert tsds.open(out).manifest.provenance["left_out"] == {"not-listed": 1}
    assert json.loads((out / "skipped.jsonl").read_text())["where"] == "<samples>: remark"


def test_what_only_a_later_sample_has_is_noted_once(out):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer:
        writer.append("train", image=image, label=0)
        for _ in range(4):
            writer.append("train", image=image, label=0, remark="hello", mask=None)
    assert [problem.where for problem in writer.summary.left_out] == ["<samples>: remark", "<samples>: mask"]


def test_a_sample_and_values_are_too_much(out):
    with tsds.Writer(out, classes=CLASSES) as writer:
        with pytest.raises(tsds.OptionError, match=r"append: expected a sample, or its values.*and label\."):
            writer.append("train", np.zeros((6, 5), np.uint8), label=1)
        writer.append("train", (np.zeros((6, 5), np.uint8), 1))


def test_a_key_that_is_given_twice(out):
    sample = {"image": np.zeros((6, 5), np.uint8), "key": "a"}
    with tsds.Writer(out) as writer:
        writer.append("train", sample, key="a")
        assert writer.summary is None
    assert writer.summary.left_out == () and tsds.open(out)["train"]["key"][0] == "a"


def test_class_names_that_nothing_uses_are_noted(out):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out, classes=CLASSES) as writer:
        writer.append("train", image=image, lable=0)
    (note,) = writer.summary.notes
    assert note.startswith("`classes` was not used") and "Found the fields lable" in note
    source, options = [{"image": image, "lable": 0}], tsds.ConvertOptions(classes=tuple(CLASSES), workers=0)
    assert tsds.estimate(source, options).notes == (note,)


def test_a_mask_that_is_no_mask_is_noted(out):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out, classes=CLASSES) as writer:
        writer.append("train", image=image, label=0, mask=image.astype(np.float32))
    assert [note.partition(":")[0] for note in writer.summary.notes] == ["mask is stored as an array, float32 6 x 5"]


def test_masks_of_0_and_255_alone_are_noted(out):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out, classes=("no", "yes")) as writer:
        for split in ("train", "val"):
            writer.append(split, image=image, mask=np.array([0] * 29 + [255], np.uint8).reshape(6, 5))
    assert writer.summary.notes == (
        "mask has the numbers 0 and 255 alone, and 255 means ignored. If it is the class 1, write 1 in its place.",
    )
    source = [{"image": image, "mask": np.array([[0, 1, 255, 0, 0]] * 6, np.uint8)}]
    assert tsds.convert(source, f"{out}2", tsds.ConvertOptions(classes=("no", "yes"), workers=0)).notes == ()


def test_renamed_splits_are_noted(tmp_path, out):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out) as writer:
        for split in ("Train set!", "../x", "Val"):
            writer.append(split, image)
    expected = (
        "the split 'Train set!' is named train_set_ in the store.",
        "the split '../x' is named ___x in the store.",
    )
    assert writer.summary.notes == expected
    source, options = {"Train set!": [image], "../x": [image]}, tsds.ConvertOptions(workers=0)
    assert tsds.convert(source, tmp_path / "c.tsds", options).notes == expected
    assert tsds.estimate(source, options).notes == expected


@pytest.mark.parametrize("split", [0, None, [], b"train"])
def test_a_split_that_is_no_text(out, split):
    with tsds.Writer(out) as writer:
        with pytest.raises(tsds.SourceError, match="expected a split's name, which is text"):
            writer.append(split, np.zeros((6, 5), np.uint8))
        writer.append("train", np.zeros((6, 5), np.uint8))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"label": 1.5}, "expected a label that is a whole number or the name of a class, found 1.5"),
        ({"label": [0, 1]}, r"or the name of a class, found int64 \(2,\)"),
        ({"": 1}, "expected a field's name with letters"),
        ({"a": np.zeros((1,) * 32)}, "expected at most 31 dimensions, found 32 in a"),
        ({"A b": 1, "a_b": 1}, "expected names that differ, found a_b"),
    ],
)
def test_fields_that_no_store_can_have_are_refused_at_once(out, values, text):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out, classes=CLASSES) as writer:
        with pytest.raises(tsds.SourceError, match=text):
            writer.append("train", {"image": image, **values})
        writer.append("train", image)
    assert writer.summary.rows == {"train": 1}


def test_a_label_that_the_first_sample_had_not(out):
    image = np.zeros((6, 5), np.uint8)
    with pytest.raises(tsds.SourceError, match=r"train/00001: .* The first sample had no label"):
        write(out, [{"image": image}, {"image": image, "label": 1}])


def test_samples_without_a_label(out):
    image = np.zeros((6, 5), np.uint8)
    with tsds.Writer(out, classes=CLASSES) as writer:
        for label in (None, 1, -1, CLASSES[0]):
            writer.append("train", image=image, label=label)
        with pytest.raises(tsds.SourceError, match="found -2"):
            writer.append("train", image=image, label=-2)
        with pytest.raises(tsds.SourceError, match="expected the fields of the first sample"):
            writer.append("train", image=image)
        writer.append("test", image=image, label=None)
    assert writer.summary.notes == ("samples without a label: 2 of 4 in train, 1 of 1 in test.",)
    store = tsds.open(out)
    assert store["train"]["label"][:].tolist() == [-1, 1, -1, 0] and store["test"]["label"][:].tolist() == [-1]
    assert store["train"].class_counts["label"] == {CLASSES[0]: 1, CLASSES[1]: 1} | dict.fromkeys(CLASSES[2:], 0)
    assert store["train"].unlabelled == {"label": 2} and store["test"].unlabelled == {"label": 1}
    assert tsds.verify(out) == []


# --- generators -------------------------------------------------------------------------------------------------


def test_the_progress_of_an_iterator(out):
    events = []
    tsds.convert(iter(digits()), out, tsds.ConvertOptions(classes=tuple(CLASSES)), progress=events.append)
    assert [event.done for event in events] == [*range(1, 10), 9]
    assert events[-1].total == 9  # known in the end


def test_iterators_by_split_beside_a_sequence(out):
    source = {"val": Samples(digits(4)), "train": iter(digits(6))}
    assert tsds.convert(source, out, tsds.ConvertOptions(classes=tuple(CLASSES))).rows == {"train": 6, "val": 4}
    assert tsds.open(out)["val"]["key"][3] == "d3"


class Faulty(Samples):
    def __getitem__(self, index):
        if index == 1:
            raise StopIteration
        return super().__getitem__(index)


@pytest.mark.parametrize("alone", [True, False])
def test_a_sequence_beside_an_iterator_is_as_one_alone(tmp_path, out, alone):
    image = np.zeros((6, 5), np.uint8)
    source = {"a": Faulty([(image, 0)] * 4, CLASSES)}
    if not alone:
        source["b"] = iter([(image, "cow")])
    options = tsds.ConvertOptions(on_error="skip", workers=0)
    summary = tsds.convert(source, out, options)
    assert summary.rows["a"] == 3 and summary.skipped == {"unreadable-file": 1}
    assert tsds.open(out)["a"].fields["label"].classes == tuple(CLASSES)
    assert json.loads((out / "skipped.jsonl").read_text())["where"] == "a/00001"
    with pytest.raises(tsds.SourceError, match=r"a/00001: its __getitem__\(1\) raised StopIteration"):
        tsds.convert({**source, "b": iter([(image, 0)])}, tmp_path / "f.tsds")


def test_what_an_iterator_cannot_be_asked(out):
    with pytest.raises(tsds.OptionError, match="`split_into` divides a source of known length"):
        tsds.convert(iter(digits()), out, tsds.ConvertOptions(split_into={"a": 0.5, "b": 0.5}))
    with pytest.raises(tsds.OptionError, match="val: expected samples, found int"):
        tsds.convert({"train": iter(digits()), "val": 7}, out)


# --- bad samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason", "text"),
    [
        ((np.zeros((6, 5), np.uint8), 7), "unknown-class", "expected a label of the 3 classes ("),
        (np.zeros((6, 5), np.uint8), "annotation", "expected the fields of the first sample, label"),
        ((b"no image", 1), "not-an-image", "train/00001"),
        (("nowhere.png", 1), "unreadable-file", "train/00001"),
        ({"picture": 1}, "annotation", "expected a key image"),
    ],
)
def test_a_bad_sample_stops_or_is_left_out_and_named(tmp_path, out, bad, reason, text):
    good = [(sample["image"], sample["label"]) for sample in digits(5)]
    samples = [good[0], bad, *good[1:]]
    with pytest.raises(tsds.SourceError, match=re.escape(text)) as caught:
        write(out, samples)
    assert caught.value.reason == reason and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    summary = write(out, samples, on_error="skip")
    assert summary.skipped == {reason: 1} and summary.rows == {"train": 5}
    assert json.loads((out / "skipped.jsonl").read_text())["where"] == "train/00001"
    assert np.asarray(tsds.open(out)["train"]["label"]).tolist() == [0, 1, 2, 0, 1]
    assert tsds.verify(out) == []


def test_bad_samples_before_the_first_good_one(out):
    samples = [(b"no image", 0), ("nowhere.png", 1), *((s["image"], s["label"]) for s in digits(3))]
    assert write(out, samples, on_error="skip").skipped == {"not-an-image": 1, "unreadable-file": 1}
    lines = (out / "skipped.jsonl").read_text().splitlines()
    assert [json.loads(line)["where"] for line in lines] == ["train/00000", "train/00001"]


@pytest.mark.parametrize("path", ["nope.png", "/" + "a/" * 90 + "b\n.png"])
def test_a_path_that_cannot_be_read_is_named(out, path):
    shown = path if len(path) < 100 else "..." + path[-100:]
    with tsds.Writer(out, on_error="skip") as writer:
        writer.append("train", image=path)
        writer.append("train", image=np.zeros((6, 5), np.uint8))
    message = f"{shown}: cannot be read: No such file or directory."
    assert json.loads((out / "skipped.jsonl").read_text())["message"] == message
    options = tsds.ConvertOptions(on_error="skip", workers=0)
    (problem,) = tsds.estimate([np.zeros((6, 5), np.uint8), path], options).problems
    assert (problem.where, problem.message) == ("train/00001", message)
    assert "\n" not in str(problem)


def test_a_sample_that_was_refused_changes_nothing(tmp_path, out):
    """Neither the next number nor what a later run expects, nor which splits there are."""
    with tsds.Writer(out, classes=CLASSES) as writer:
        with pytest.raises(tsds.SourceError):
            writer.append("val", b"no image")
        for sample in digits(3):
            with pytest.raises(tsds.SourceError):
                writer.append("train", b"no image")
            writer.append("train", (sample["image"], sample["label"]))
    split = tsds.open(out)["train"]
    assert [split["key"][i] for i in range(3)] == ["train/00000", "train/00001", "train/00002"]
    assert writer.summary.rows == {"train": 3}
    out.rename(tmp_path / "first.tsds")
    with pytest.raises(KeyboardInterrupt), tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer:
        for sample in digits():
            with pytest.raises(tsds.SourceError):
                writer.append("train", image=b"cut off", label=0, key=sample["key"])
            writer.append("train", **sample)
        raise KeyboardInterrupt
    assert write(out, digits()).resumed == 4
    assert contents(out) == fresh(tmp_path, digits())


def test_after_its_block_a_writer_takes_nothing(tmp_path, out):
    writer = tsds.Writer(out)
    with writer:
        writer.append("train", np.zeros((2, 2), np.uint8))
    failed = tsds.Writer(tmp_path / "failed.tsds")
    with pytest.raises(KeyboardInterrupt), failed:
        failed.append("train", np.zeros((2, 2), np.uint8))
        raise KeyboardInterrupt
    for each in (writer, failed):
        with pytest.raises(tsds.OptionError, match="the Writer is not open"):
            each.append("train", np.zeros((2, 2), np.uint8))
        with pytest.raises(tsds.OptionError, match="the Writer is not open"):
            each.extend("train", [])
        with pytest.raises(tsds.OptionError, match="the Writer is not open"), each:
            pass
    assert writer.summary.rows == {"train": 1}
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_an_image_of_another_shape_is_never_left_out(tmp_path, out):
    samples = [np.zeros((6, 5), np.uint8), np.zeros((6, 5, 3), np.uint8)]
    with pytest.raises(tsds.SourceError, match=r"found 6x5x3 uint8. Pass `size` and `color`") as caught:
        write(out, samples, on_error="skip", classes=None)
    assert caught.value.reason == "shapes-differ"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("samples", [[], [b"no image"]])
def test_nothing_to_be_stored(tmp_path, out, samples):
    with pytest.raises(tsds.SourceError, match="No sample is left to be stored"):
        write(out, samples, on_error="skip")
    assert list(tmp_path.iterdir()) == []


def test_labels_need_names(out):
    with pytest.raises(tsds.SourceError, match=r"expected class names.*`classes`"):
        write(out, digits(), classes=None)


def test_options_that_have_no_meaning(tmp_path, out):
    with pytest.raises(tsds.OptionError, match="`tint`: expected an option of ConvertOptions, found another name"):
        tsds.Writer(out, tint="rgb")
    with pytest.raises(tsds.OptionError, match="the Writer is not open"):
        tsds.Writer(out).append("train", np.zeros((2, 2), np.uint8))
    with pytest.raises(tsds.OptionError, match="does not exist"), tsds.Writer(tmp_path / "no" / "where.tsds"):
        pass
    out.mkdir()
    with pytest.raises(tsds.errors.StoreExistsError), tsds.Writer(out):
        pass
    with tsds.Writer(tmp_path / "a.tsds") as writer:
        writer.append("Train", np.zeros((2, 2), np.uint8))
        with pytest.raises(tsds.SourceError, match="both would be named train"):
            writer.append("train", np.zeros((2, 2), np.uint8))


def test_two_samples_of_the_same_key(tmp_path, out):
    """Found when the second one comes; a corrected program goes on from the shards before it."""
    with pytest.raises(tsds.SourceError, match=r"^d3: expected keys that differ, found this one twice in train\. Give"):
        write(out, [*digits(), digits()[3]])
    assert not out.exists()
    assert write(out, digits()).resumed == 4
    assert contents(out) == fresh(tmp_path, digits())


def test_a_key_that_was_refused_may_be_repeated_and_other_splits_have_their_own(out):
    with tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer:
        for sample in digits():
            writer.append("train", **sample)
            with pytest.raises(tsds.SourceError, match="expected keys that differ"):
                writer.append("train", **sample)
            writer.append("val", **sample)
    assert writer.summary.rows == {"train": 9, "val": 9}


# --- interruptions ----------------------------------------------------------------------------------------------


class Calls:
    """Samples as functions, which note that they were called."""

    def __init__(self, count=9):
        self.samples = digits(count)
        self.called = []

    def write(self, out, stop=99, **options):
        with tsds.Writer(out, **{"classes": CLASSES, "shard_nbytes": SMALL, **options}) as writer:
            for i, sample in enumerate(self.samples):
                if i == stop:
                    raise KeyboardInterrupt
                writer.append("train", lambda i=i: self._call(i), key=sample["key"])
        return writer.summary

    def _call(self, i):
        self.called.append(i)
        return self.samples[i]["image"], self.samples[i]["label"]


def test_after_an_exception_nothing_appears_and_finished_shards_are_used_again(tmp_path, out, partial):
    with pytest.raises(KeyboardInterrupt):
        Calls().write(out, stop=5)
    assert not out.exists() and partial.stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (partial / "store" / "train").iterdir()) == ["00000", "00001"]
    calls = Calls()
    assert calls.write(out).resumed == 2
    assert calls.called == [4, 5, 6, 7, 8]
    assert contents(out) == fresh(tmp_path, digits())
    assert not partial.exists()


def test_without_keys_nothing_is_kept(tmp_path, out, partial):
    def samples():
        for i, sample in enumerate(digits()):
            if i == 7:
                raise ValueError("a fault of the simulator")
            yield sample["image"], sample["label"]

    with pytest.raises(ValueError, match="a fault of the simulator"):
        write(out, samples())
    assert list(tmp_path.iterdir()) == []


def test_other_keys_than_before_are_refused(tmp_path, out):
    with pytest.raises(KeyboardInterrupt):
        Calls().write(out, stop=5)
    for samples in (digits()[::-1], digits()[1:], digits()[:3]):
        with pytest.raises(tsds.OptionError, match="expected the same keys in the same order, found others"):
            write(out, samples)
    assert write(out, digits()).resumed == 2


def test_other_options_than_before_are_refused(out):
    with pytest.raises(KeyboardInterrupt):
        Calls().write(out, stop=5)
    with pytest.raises(tsds.OptionError, match="finished shards of another conversion are kept here: `classes` was"):
        Calls().write(out, classes=["x", "y", "z"])
    assert Calls().write(out, license="CC0-1.0").resumed == 2


def test_other_images_before_those_of_finished_shards(tmp_path, out):
    with pytest.raises(KeyboardInterrupt):
        Calls().write(out, stop=5)
    larger = {"key": "v", "image": np.zeros((50, 50), np.uint8), "label": 0}
    message = "expected an image of 50x50x1 uint8 like the first one, found 6x5x1"
    with (
        pytest.raises(tsds.SourceError, match=message),
        tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer,
    ):
        writer.extend("val", [larger])
        writer.extend("train", digits())
    assert write(out, digits()).resumed == 2


def test_images_of_another_depth_than_those_of_finished_shards(out):
    files = [png_bytes(np.full((6, 5), i, dtype)) for i, dtype in enumerate([np.uint8] * 4 + [np.uint16])]
    samples = [{"key": f"{i}", "image": file} for i, file in enumerate(files)]
    options = {"encoding": "source", "classes": None}
    with pytest.raises(KeyboardInterrupt), tsds.Writer(out, shard_nbytes=60, **options) as writer:
        writer.extend("train", samples[:4])
        raise KeyboardInterrupt
    for _ in range(2):
        with pytest.raises(
            tsds.SourceError, match="expected an image of uint8 pixels like the first one, found uint16"
        ):
            write(out, samples, **options)


def test_a_split_that_is_not_written_any_more_leaves_nothing(tmp_path, out):
    stopped(out, digits(), "old")
    write(out, digits())
    assert contents(out) == fresh(tmp_path, digits())


def test_bad_samples_of_finished_shards_are_named_again(tmp_path, out):
    samples = [{"key": "bad", "image": b"no image", "label": 0}, *({**s, "note": "x"} for s in digits())]
    stopped(out, samples[:6], on_error="skip")
    assert write(out, samples, on_error="skip").resumed == 2
    assert contents(out) == fresh(tmp_path, samples, on_error="skip")


def test_mended_samples_that_were_skipped_move_those_behind_them(tmp_path, out):
    """The shards behind them end elsewhere then: they are made again, and the same keys are not refused."""
    damaged = [{**sample, "image": b"damaged"} if i in (1, 4) else sample for i, sample in enumerate(digits(12))]
    stopped(out, damaged, on_error="skip")
    half = [*digits(12)[:4], *damaged[4:]]
    with pytest.raises(tsds.SourceError, match="d4"):
        write(out, half)
    assert write(out, digits(12)).resumed == 2
    assert contents(out) == fresh(tmp_path, digits(12))


def test_after_a_full_disk_nothing_is_added_until_the_next_run(out):
    """The disk fills in the middle of the tables, the program catches that and goes on."""
    files = [png_bytes(np.random.default_rng(i).integers(0, 256, (128, 128, 3), np.uint8)) for i in range(100)]
    samples = [{"key": i, "image": file} for i, file in enumerate(files)]
    options = {"encoding": "source", "classes": None, "shard_nbytes": 45 * len(files[0])}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = []
    with (
        pytest.raises(tsds.errors.ConversionError, match="could not be written"),
        tsds.Writer(out, **options) as writer,
    ):
        for i, sample in enumerate(samples):
            if i == 70:
                resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))
            try:
                writer.append("train", sample)
            except tsds.errors.ConversionError as error:
                refused.append(str(error))
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in refused[0] and all("could not be written" in text for text in refused[1:])
    assert len(refused) > 2
    assert write(out, samples, **options).resumed == 1
    assert [tsds.open(out)["train"]["image"][i] for i in range(100)] == files


def test_keys_that_were_damaged_before_the_end_are_removed(out, partial):
    with (
        pytest.raises(tsds.errors.ConversionError, match=r"the finished store does not open .* and was removed"),
        tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer,
    ):
        writer.extend("train", digits())
        offsets = partial / "store" / "train" / "00000" / "key" / "offsets" / "c" / "0"
        offsets.write_bytes(bytes(offsets.stat().st_size))
    assert write(out, digits()).resumed == 0


def test_values_of_objects_count_as_memory(out, monkeypatch):
    """A block is written when it has its bytes, of boxes, too."""
    lengths = []
    real = BlockRows.write

    def write_noted(self, *rest):
        lengths.append(len(self))
        return real(self, *rest)

    monkeypatch.setattr(BlockRows, "write", write_noted)
    boxes = np.tile(np.array([0, 0, 4, 4], np.float32), (20_000, 1))
    with tsds.Writer(out) as writer:
        for _ in range(20):
            writer.append("train", image=np.zeros((4, 4), np.uint8), boxes=boxes)
    assert max(lengths) == 7  # 7 x 320 kB are more than 2 MiB
    assert sum(lengths) == 20


def test_two_writers_at_once_are_refused(out):
    with tsds.Writer(out) as writer:
        with pytest.raises(tsds.errors.ConversionError, match="another conversion is writing here"), tsds.Writer(out):
            pass
        writer.append("train", np.zeros((2, 2), np.uint8))


# --- several processes ------------------------------------------------------------------------------------------


def test_a_forked_child_writes_nothing(out):
    """Neither what the parent still has to write when the child ends, nor samples of its own."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_writer import np, tsds

def append(numbers):
    for i in numbers:
        writer.append("train", image=np.full((6, 5), i % 256, np.uint8), key=i)

with tsds.Writer({str(out)!r}) as writer:
    append(range(600))
    child = os.fork()
    if not child:
        try:
            append(range(600, 1200))
        except tsds.OptionError as error:
            print(error, flush=True)
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    append(range(600, 1200))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "expected the process that opened the Writer, found a child of it" in run.stdout
    split = tsds.open(out)["train"]
    assert [split["key"][i] for i in range(1200)] == [str(i) for i in range(1200)]
    assert tsds.verify(out) == []


def test_a_child_that_outlives_its_killed_parent_has_no_lock(out):
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_writer import digits, tsds

with tsds.Writer({str(out)!r}, classes=["ant", "bee", "cow"], shard_nbytes=60) as writer:
    writer.extend("train", digits()[:5])
    if not os.fork():
        print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
"""
    run = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "forked\n"
    run.kill()
    run.wait()
    assert write(out, digits()).resumed == 2
    run.communicate()
