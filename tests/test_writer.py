"""The Writer: the store of a conversion of the same samples, whatever happens on the way."""

import errno
import json
import multiprocessing
import pickle
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from stores import Samples, contents, detections, png_bytes

CLASSES = ["ant", "bee", "cow"]
SMALL = 60  # bytes of a shard: two images of 30 bytes


def digits(count=9):
    """Gray images of 6 x 5 pixels with a label and a key each."""
    rng = np.random.default_rng(0)
    return [{"key": f"d{i}", "image": rng.integers(0, 256, (6, 5), np.uint8), "label": i % 3} for i in range(count)]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "o.tsds"


@pytest.fixture
def partial(tmp_path):
    return tmp_path / "o.tsds.partial"


def write(out, samples, split="train", **options):
    with tsds.Writer(out, **{"classes": CLASSES, "shard_nbytes": SMALL, **options}) as writer:
        writer.extend(split, samples)
    return writer.summary


def fresh(tmp_path, samples, **options):
    write(tmp_path / "fresh.tsds", samples, **options)
    return contents(tmp_path / "fresh.tsds")


# --- what is written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["memmap", "zarr"])
@pytest.mark.parametrize("shard_nbytes", [2**30, 1500])
def test_the_store_is_that_of_a_conversion(tmp_path, out, layout, shard_nbytes):
    samples = detections(9)
    options = {"classes": ("a", "b"), "layout": layout, "shard_nbytes": shard_nbytes}
    with tsds.Writer(out, **options) as writer:
        for sample in samples:
            writer.append("train", **sample)
    assert not list(tmp_path.glob("*.partial"))
    assert writer.summary.rows == {"train": 9}
    assert writer.summary.nbytes == tsds.open(out).nbytes
    tsds.convert(samples, tmp_path / "c.tsds", tsds.ConvertOptions(workers=0, **options))
    origin = ("source", "source_format")
    assert contents(out, *origin) == contents(tmp_path / "c.tsds", *origin)
    assert tsds.verify(out) == []


def test_blocks_and_shards_end_where_those_of_a_conversion_end(tmp_path, out, monkeypatch):
    monkeypatch.setattr("tensorstore_ds.conversion.plan.BLOCK_ROWS", 3)
    samples = [np.full((3, 4), i / 7, np.float32) for i in range(40)]
    write(out, samples, shard_nbytes=48 * 7, classes=None)
    tsds.convert(samples, tmp_path / "c.tsds", tsds.ConvertOptions(workers=0, shard_nbytes=48 * 7))
    origin = ("source", "source_format")
    assert contents(out, *origin) == contents(tmp_path / "c.tsds", *origin)
    assert len(tsds.open(out).manifest.splits["train"].shards) == 6


@pytest.mark.parametrize("encoding", ["jpeg", "source"])
def test_encoded_images_of_any_size(out, encoding):
    files = [png_bytes(np.full((4 + i, 9, 3), i, np.uint8)) for i in range(7)]
    write(out, ({"image": file} for file in files), encoding=encoding, shard_nbytes=3 * len(files[0]), classes=None)
    store = tsds.open(out)
    assert len(store.manifest.splits["train"].shards) > 1
    assert np.asarray(store["train"]["size"]).tolist() == [[4 + i, 9] for i in range(7)]
    if encoding == "source":
        assert [store["train"]["image"][i] for i in range(7)] == files
    assert tsds.verify(out) == []


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


def test_several_splits_in_turn_and_their_order(out):
    with tsds.Writer(out, shard_nbytes=SMALL) as writer:
        for i in range(10):
            writer.append(("Test", "train")[i % 2], np.full((6, 5), i, np.uint8), key=i)
    store = tsds.open(out)
    assert list(store) == ["train", "test"]
    assert np.asarray(store["test"]["image"])[:, 0, 0, 0].tolist() == [0, 2, 4, 6, 8]
    assert [store["train"]["key"][i] for i in range(5)] == ["1", "3", "5", "7", "9"]


def test_an_array_that_is_filled_again_changes_nothing(out):
    image, more = np.empty((6, 5), np.uint8), np.empty(2, np.float32)
    with tsds.Writer(out) as writer:
        for i in range(5):
            image[:], more[:] = i, i
            writer.append("train", image=image, position=more)
    split = tsds.open(out)["train"]
    assert np.asarray(split["image"])[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert np.asarray(split["position"])[:, 1].tolist() == [0, 1, 2, 3, 4]


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


def test_what_is_not_stored_of_a_sample_is_noted(out):
    write(out, [{**sample, "caption": "a"} for sample in digits()])
    assert tsds.open(out).manifest.provenance["left_out"] == {"not-listed": 1}
    assert json.loads((out / "skipped.jsonl").read_text())["where"] == "<samples>: caption"


# --- generators -------------------------------------------------------------------------------------------------


def test_an_iterator_is_converted(tmp_path, out):
    events = []
    summary = tsds.convert(
        (sample for sample in digits()), out, tsds.ConvertOptions(classes=tuple(CLASSES)), progress=events.append
    )
    assert summary.rows == {"train": 9}
    assert [event.done for event in events] == list(range(1, 10))
    assert contents(out) == fresh(tmp_path, digits(), shard_nbytes=2**32)


def test_iterators_by_split_beside_a_sequence(out):
    source = {"val": Samples(digits(4)), "train": iter(digits(6))}
    assert tsds.convert(source, out, tsds.ConvertOptions(classes=tuple(CLASSES))).rows == {"train": 6, "val": 4}
    assert tsds.open(out)["val"]["key"][3] == "d3"


def test_what_an_iterator_cannot_be_asked(out):
    with pytest.raises(tsds.OptionError, match="`split` divides a source of known length"):
        tsds.convert(iter(digits()), out, tsds.ConvertOptions(split={"a": 0.5, "b": 0.5}))
    with pytest.raises(tsds.OptionError, match="val: expected samples, found int"):
        tsds.convert({"train": iter(digits()), "val": 7}, out)


# --- bad samples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "reason", "text"),
    [
        ((np.zeros((6, 5), np.uint8), 7), "unknown-class", "expected a label of the 3 classes, found 7"),
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


def test_a_sample_that_was_refused_may_be_passed_over_by_the_caller(tmp_path, out):
    with tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer:
        for sample in digits():
            writer.append("train", **sample)
            with pytest.raises(tsds.SourceError):
                writer.append("train", image=b"no image", label=0, key="bad")
    np.testing.assert_array_equal(tsds.open(out)["train"]["image"][8][:, :, 0], digits()[8]["image"])
    assert len(tsds.open(out)["train"]) == 9


def test_an_image_of_another_shape_is_never_left_out(tmp_path, out):
    samples = [np.zeros((6, 5), np.uint8), np.zeros((6, 5, 3), np.uint8)]
    with pytest.raises(tsds.SourceError, match=r"found 6x5x3 uint8. Pass `size` and `color`") as caught:
        write(out, samples, on_error="skip", classes=None)
    assert caught.value.reason == "shapes-differ"
    assert list(tmp_path.iterdir()) == []


def test_a_split_whose_samples_are_all_bad_stays_as_an_empty_one(out):
    with tsds.Writer(out, on_error="skip") as writer:
        writer.append("test", b"no image")
        writer.append("train", np.zeros((6, 5), np.uint8))
    assert writer.summary.rows == {"train": 1, "test": 0}
    assert tsds.verify(out) == []


@pytest.mark.parametrize("samples", [[], [b"no image"]])
def test_nothing_to_be_stored(tmp_path, out, samples):
    with pytest.raises(tsds.SourceError, match="No sample is left to be stored"):
        write(out, samples, on_error="skip")
    assert list(tmp_path.iterdir()) == []


def test_labels_need_names(out):
    with pytest.raises(tsds.SourceError, match=r"expected class names.*`classes`"):
        write(out, digits(), classes=None)


def test_options_that_have_no_meaning(tmp_path, out):
    with pytest.raises(tsds.OptionError, match="tint: expected an option of ConvertOptions, one of classes, "):
        tsds.Writer(out, tint="rgb")
    with pytest.raises(tsds.OptionError, match="the Writer is not open"):
        tsds.Writer(out).append("train", np.zeros((2, 2), np.uint8))
    with pytest.raises(tsds.OptionError, match="does not exist"), tsds.Writer(tmp_path / "no" / "where.tsds"):
        pass
    out.mkdir()
    with pytest.raises(tsds.StoreExistsError), tsds.Writer(out):
        pass
    with tsds.Writer(tmp_path / "a.tsds") as writer:
        writer.append("Train", np.zeros((2, 2), np.uint8))
        with pytest.raises(tsds.SourceError, match="both would be named train"):
            writer.append("train", np.zeros((2, 2), np.uint8))


def test_two_samples_of_the_same_key(tmp_path, out):
    with pytest.raises(tsds.SourceError, match="expected keys that differ, found one twice"):
        write(out, [*digits(), digits()[3]])
    assert list(tmp_path.iterdir()) == []


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


def test_stopped_when_it_commits_no_sample_is_made_again(tmp_path, out, monkeypatch):
    def stop(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tensorstore_ds.conversion.workspace.Workspace._rename", stop)
        with pytest.raises(KeyboardInterrupt):
            Calls().write(out)
    calls = Calls()
    assert calls.write(out).resumed == 5
    assert calls.called == []
    assert contents(out) == fresh(tmp_path, digits())


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
    assert Calls().write(out, license="CC0").resumed == 2


def test_a_split_that_is_not_written_any_more_leaves_nothing(tmp_path, out):
    with pytest.raises(KeyboardInterrupt), tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL) as writer:
        writer.extend("old", digits())
        raise KeyboardInterrupt
    write(out, digits())
    assert contents(out) == fresh(tmp_path, digits())


def test_bad_samples_of_finished_shards_are_named_again(tmp_path, out):
    samples = [{"key": "bad", "image": b"no image", "label": 0}, *({**s, "note": "x"} for s in digits())]
    with (
        pytest.raises(KeyboardInterrupt),
        tsds.Writer(out, classes=CLASSES, shard_nbytes=SMALL, on_error="skip") as writer,
    ):
        writer.extend("train", samples[:6])
        raise KeyboardInterrupt
    assert write(out, samples, on_error="skip").resumed == 2
    assert contents(out) == fresh(tmp_path, samples, on_error="skip")


SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_writer import Calls, tsds
calls = Calls(40)
real = calls._call
def call(i):
    print(i, flush=True)
    sys.stdin.read(1)
    return real(i)
calls._call = call
calls.write({out!r})
"""


@pytest.mark.parametrize("number", [1, 13, 26, 39])
def test_killed_at_any_moment(tmp_path, out, number):
    script = SCRIPT.format(tests=str(Path(__file__).parent), out=str(out))
    run = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    for line in run.stdout:
        if int(line) == number:
            run.kill()
            break
        run.stdin.write("x")
        run.stdin.flush()
    run.communicate()
    assert run.returncode == -signal.SIGKILL and not out.exists()
    calls = Calls(40)
    assert calls.write(out).resumed == number // 2
    assert calls.called[0] == number // 2 * 2
    assert contents(out) == fresh(tmp_path, digits(40))


@pytest.mark.parametrize("when", ["a block", "a shard", "the commit"])
def test_a_full_disk_is_one_line_and_the_writer_cannot_go_on(tmp_path, out, monkeypatch, when):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    place = {"a block": "blocks.write_at", "a shard": "shard_writer.check_in_file", "the commit": "workspace.sync"}[
        when
    ]
    monkeypatch.setattr(f"tensorstore_ds.conversion.{place}", full)
    with pytest.raises(tsds.ConversionError, match="the disk is full"):
        write(out, digits())
    monkeypatch.undo()
    shutil.rmtree(tmp_path / "o.tsds.partial", ignore_errors=True)
    monkeypatch.setattr("tensorstore_ds.conversion.blocks.write_at", full)
    with pytest.raises(tsds.ConversionError, match="could not be written"), tsds.Writer(out) as writer:
        with pytest.raises(tsds.ConversionError, match="the disk is full"):
            writer.extend("train", [np.zeros((6, 5), np.uint8)] * 512)
        monkeypatch.undo()
    assert not out.exists()


def test_two_writers_at_once_are_refused(out):
    with tsds.Writer(out) as writer:
        with pytest.raises(tsds.ConversionError, match="another conversion is writing here"), tsds.Writer(out):
            pass
        writer.append("train", np.zeros((2, 2), np.uint8))


# --- several processes ------------------------------------------------------------------------------------------


def write_job(job, samples):
    return job.write(samples)


def parts(count, samples):
    size = -(-len(samples) // count)
    return [samples[i : i + size] for i in range(0, len(samples), size)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_write_a_shard_each(tmp_path, out, method):
    samples = digits(12)
    with tsds.Writer(out, classes=CLASSES) as writer, multiprocessing.get_context(method).Pool(2) as pool:
        jobs = [(writer.shard("train", i), part) for i, part in enumerate(parts(3, samples))]
        assert pool.starmap(write_job, jobs) == [4, 4, 4]
        writer.extend("val", samples[:2])
    store = tsds.open(out)
    assert writer.summary.rows == {"train": 12, "val": 2}
    assert len(store.manifest.splits["train"].shards) == 3
    np.testing.assert_array_equal(np.asarray(store["train"]["image"])[..., 0], [s["image"] for s in samples])
    assert store["train"].statistics["class_counts"] == [4, 4, 4]
    assert tsds.verify(out) == []
    assert not list(tmp_path.glob("*.partial"))


def test_shards_of_an_interrupted_run_are_not_written_again(tmp_path, out):
    samples = parts(3, digits(12))
    with pytest.raises(KeyboardInterrupt), tsds.Writer(out, classes=CLASSES) as writer:
        for i in (0, 2):
            writer.shard("train", i).write(samples[i])
        raise KeyboardInterrupt
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("image/**/*") if path.is_file()}
    assert len(before) > 1
    with tsds.Writer(out, classes=CLASSES) as writer:
        jobs = [writer.shard("train", i) for i in range(3)]
        with pytest.raises(tsds.OptionError, match=r"the shard train/00002 .* same keys in the same order"):
            jobs[2].write(samples[1])
        for job, part in zip(jobs, samples, strict=True):
            job.write(part)
        after = {path: path.stat().st_mtime_ns for path in before}
    assert after == before
    assert np.asarray(tsds.open(out)["train"]["label"]).tolist() == [0, 1, 2] * 4


def test_what_jobs_are_refused(tmp_path, out, partial):
    with tsds.Writer(out, classes=CLASSES) as writer:
        job = pickle.loads(pickle.dumps(writer.shard("train", 0)))  # noqa: S301
        with pytest.raises(tsds.OptionError, match="written by jobs"):
            writer.append("train", digits()[0])
        writer.append("val", digits()[0])
        with pytest.raises(tsds.OptionError, match="appended to this split"):
            writer.shard("val", 0)
        with pytest.raises(tsds.SourceError, match="expected samples, found none"):
            job.write([])

        def again():
            with pytest.raises(tsds.ConversionError, match="another process is writing the shard train/00000"):
                job.write(digits())
            yield from digits()

        assert job.write(again()) == 9
    with pytest.raises(tsds.StoreExistsError):
        job.write(digits())
    out.rename(tmp_path / "moved.tsds")
    with pytest.raises(tsds.ConversionError, match="expected the Writer that this shard is for, found that it has end"):
        job.write(digits())
    assert not partial.exists()
    with tsds.Writer(out, classes=CLASSES) as writer:  # of another run
        with pytest.raises(tsds.ConversionError, match="expected the Writer that this shard is for"):
            job.write(digits())
        writer.extend("train", digits())


def test_all_jobs_must_be_done_and_agree(tmp_path, out):
    missing = pytest.raises(tsds.ConversionError, match="expected the shard train/00001, found that it was not written")
    with missing, tsds.Writer(out, classes=CLASSES) as writer:
        for i in range(3):
            writer.shard("train", i)
        writer.shard("train", 0).write(digits())
        writer.shard("train", 2).write(digits())
    shutil.rmtree(tmp_path / "o.tsds.partial")
    differing = r"train/00001: expected the fields of the first shard, .* found image"
    with pytest.raises(tsds.SourceError, match=differing), tsds.Writer(out) as writer:
        for i in range(2):
            writer.shard("train", i).write([np.zeros((6, 5 + i), np.uint8)])


def test_a_process_that_outlives_its_writer_is_waited_for(out, partial):
    """SIGKILL of the parent alone: what its children still write is not mixed with another run."""
    code = f"""
import multiprocessing, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_writer import digits, tsds

def slow():
    yield digits()[0]
    print("begun", flush=True)
    sys.stdin.read()
    yield digits()[1]

def work(job):
    sys.stdin = open(0, closefd=False)
    job.write(slow())

if __name__ == "__main__":
    with tsds.Writer({str(out)!r}, classes=["ant", "bee", "cow"]) as writer:
        process = multiprocessing.get_context("spawn").Process(target=work, args=(writer.shard("train", 0),))
        process.start()
        process.join()
"""
    path = out.with_name("script.py")
    path.write_text(code)
    run = subprocess.Popen([sys.executable, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "begun\n"
    run.kill()
    run.wait()
    with pytest.raises(tsds.ConversionError, match="a process of an interrupted run is still writing here"):
        write(out, digits())
    run.stdin.close()
    run.stdout.read()  # until the child has ended, too
    run.stdout.close()
    summary = write(out, digits(), shard_nbytes=2**32)
    assert (summary.rows, summary.resumed) == ({"train": 9}, 1)  # what the child has finished is whole
    assert not partial.exists()
