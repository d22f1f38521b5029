"""Whole runs, on small stores."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from global_state import global_state
from stores import store_of
from tensorstore_ds.annex.training.run import Run
from tensorstore_ds.durable import locked_folder
from tensorstore_ds.errors import OptionError, TrainingError, TrainingStopped
from training_stores import annotated, labelled, load_history, one_line, patterns, signal_in_pass, small, trained


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return labelled(tmp_path_factory.mktemp("train"))


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without matplotlib, but for the run of all tests here: `test_plots.py` looks at the pictures, which take long."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def state(folder: Path, name: str = "last.pt") -> dict[str, Any]:
    return torch.load(folder / name, weights_only=True)


def equal(a: Any, b: Any) -> bool:
    """Whether two trees of tensors and values are the same, bit for bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


# --- a run -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tsds.training.TrainReport]:
    out = tmp_path_factory.mktemp("runs") / "run"
    before = global_state()
    report = tsds.train(store, small(epochs=16, learning_rate=5e-3, augment="none"), out=out)
    assert report is not None
    assert global_state() == before
    return out, report


@pytest.mark.slow
def test_a_model_learns(run: tuple[Path, tsds.training.TrainReport]) -> None:
    assert run[1].best["accuracy"] > 0.9
    history = load_history(run[0])
    assert history[-1].train["loss"] < history[0].train["loss"] / 2


def test_what_is_kept(run: tuple[Path, tsds.training.TrainReport]) -> None:
    out, report = run
    assert {"best.pt", "last.pt", "history.jsonl", "report.json"} <= {path.name for path in out.iterdir()}
    assert not list(out.glob("*partial*"))
    history = load_history(out)
    assert [record.epoch for record in history] == list(range(1, 17))
    best = max(history, key=lambda r: (r.eval or {})["accuracy"])
    assert report.best_epoch == best.epoch and report.best == best.eval
    written = json.loads((out / "report.json").read_text("utf-8"))
    assert written["best"] == best.eval and written["task"] == "classification"
    assert written["options"]["learning_rate"] == 5e-3
    assert written["facts"]["train_samples"] == 60 and written["facts"]["eval_samples"] == 21
    assert [c["class"] for c in written["classes"]] == ["a", "b", "c"]
    assert sum(c["samples"] for c in written["classes"]) == 21
    right = sum(c["samples"] * c["accuracy"] for c in written["classes"])
    assert right / 21 == pytest.approx(report.best["accuracy"])


def test_the_best_model_is_the_one_evaluated(run: tuple[Path, tsds.training.TrainReport], store: Path) -> None:
    model, card = tsds.training.load_model(run[0] / "best.pt")
    assert card.task.classes == ("a", "b", "c")
    dataset = tsds.StoreDataset(store, "test")
    normalize = tsds.Normalize.from_split(tsds.open(store)["train"])
    batch = next(iter(tsds.DataLoader(dataset, len(dataset))))
    with torch.inference_mode():
        right = model(normalize(batch)["image"]).argmax(1) == batch["label"]
    assert float(right.float().mean()) == pytest.approx(run[1].best["accuracy"])


def test_a_run_is_a_function_of_its_options(store: Path, tmp_path: Path) -> None:
    for name, seed, threads in (("a", 0, 1), ("b", 0, 3), ("c", 1, 1)):
        tsds.train(store, small(epochs=1, seed=seed, num_threads=threads), out=tmp_path / name)
    a, b, c = (state(tmp_path / name)["weights"] for name in "abc")
    assert equal(a, b) and not equal(a, c)


def test_listeners_and_torchs_threads(store: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    events: list[tsds.training.TrainProgress] = []
    records: list[tuple[int, int, Mapping[str, float]]] = []
    before = torch.get_num_threads()
    listeners = tsds.training.Listeners(
        notes.append, events.append, lambda r: records.append((r.epoch, torch.get_num_threads(), r.train))
    )
    options = small(epochs=2, torch_threads=3, image_size=(8, 8))
    tsds.train(store, options, out=tmp_path / "run", listeners=listeners)
    assert notes[0] == "task: classification, because the store has labels"
    assert "60 samples of train, shuffled, rows from the page cache" in notes[1] and "21 of test" in notes[1]
    assert "2x2 patches of 4 pixels, images of 8x8, resized from 12x12; fp32 on cpu" in notes[2]
    assert [(e.epoch, e.batch) for e in events if e.batch == e.batches] == [(1, 8), (2, 8)]
    assert all(0 <= e.wait_share <= 1 and e.samples_per_second > 0 for e in events)
    assert events[-1].seconds_left == 0 and events[-1].metrics == pytest.approx(records[-1][2])
    assert [record[:2] for record in records] == [(1, 3), (2, 3)] and torch.get_num_threads() == before


def test_images_are_flipped_whose_keypoints_are_not_learned(tmp_path: Path) -> None:
    """The pairs of left and right are not known, and not needed."""
    objects = {"boxes": [[1.0, 1, 5, 5]], "keypoints": [[[1.0, 1], [5, 5]]]}
    store_of(tmp_path / "s.tsds", [{**sample, "objects": objects} for sample in patterns(12)], ("a", "b", "c"))
    report, _ = trained(tmp_path / "s.tsds", tmp_path / "run", epochs=1, flip=True)
    assert report.task == "classification"
    with pytest.raises(OptionError, match="pairs of keypoints that change places"):
        trained(tmp_path / "s.tsds", tmp_path / "other", epochs=1, flip=True, task="keypoints")


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("loading", "waited for batches that were not finished. tsds doctor {} finds"),
        ("handover", "waited for the handing over of finished batches. tsds doctor {} measures"),
        ("script", "left the GPU idle, though batches were ready"),
        ("training", ""),
    ],
)
def test_what_limits_a_long_run_is_its_last_note(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str, words: str
) -> None:
    monkeypatch.setattr(tsds.loading.LoaderStats, "cause", cause)
    runs = [(0.0, words and f"training {words.format(store)}"), (1e9, "")]
    for least, expected in runs if cause == "loading" else runs[:1]:
        monkeypatch.setattr("tensorstore_ds.annex.training.report.LONG", least)
        notes: list[str] = []
        listeners = tsds.training.Listeners(notes.append)
        tsds.train(store, small(epochs=1), out=tmp_path / str(least), listeners=listeners)
        assert notes[-1].startswith(expected or "ViT of")


# --- going on ----------------------------------------------------------------------------------------------------

#: With everything on that draws numbers or keeps a state.
BUSY: dict[str, Any] = {
    "epochs": 3,
    "accumulate": 3,  # eight batches an epoch: the last step has two
    "ema": 0.9,
    "dropout": 0.2,
    "mix": "mixup",
    "augment": "strong",
    "label_smoothing": 0.1,
    "balance": "inverse",
    "precision": "bf16",
    "flip": True,
}


@pytest.fixture(scope="module")
def uninterrupted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    tsds.train(store, small(**BUSY), out=out)
    return out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "passes", "epoch", "batch"),
    [
        (signal.SIGTERM, 1, 1, 3),  # in the first batch of a step of three
        (signal.SIGINT, 6, 1, 6),  # in the last one
        (signal.SIGTERM, 8, 1, 8),  # in the last batch of an epoch
        (signal.SIGINT, 12, 2, 6),
    ],
)
def test_a_stopped_run_goes_on_to_the_same_bits(
    store: Path, tmp_path: Path, uninterrupted: Path, number: int, passes: int, epoch: int, batch: int
) -> None:
    """After a signal in a pass through the model, the step is finished."""
    out, place = tmp_path / "run", f"in epoch {epoch} after {batch} of 8 batches"
    handlers = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)]
    stopping = pytest.raises(TrainingStopped, match=rf"stopped {place}.*`resume`")
    with signal_in_pass(number, passes=passes), stopping as stopped:
        tsds.train(store, small(**BUSY), out=out)
    assert stopped.value.signal == number and state(out)["batch"] == batch
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)] == handlers
    _, notes = trained(store, out, resume=True, **BUSY, num_threads=2)
    assert f"goes on {place}" in notes
    ended, whole = state(out), state(uninterrupted)
    for name in ("weights", "learner", "tally"):
        assert equal(ended[name], whole[name]), name
    got, expected = load_history(out), load_history(uninterrupted)
    assert [(r.epoch, r.train, r.eval) for r in got] == [(r.epoch, r.train, r.eval) for r in expected]


def test_a_run_killed_after_its_checkpoint_evaluates_again(store: Path, tmp_path: Path, uninterrupted: Path) -> None:
    """Between last.pt and the line in the history: last.pt of epoch 2, and a history of epoch 1, half of 2."""
    out = tmp_path / "run"

    class Killed(Exception):
        pass

    def kill(record: tsds.training.EpochRecord) -> None:
        if record.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        tsds.train(store, small(**BUSY), out=out, listeners=tsds.training.Listeners(epoch=kill))
    lines = (out / "history.jsonl").read_bytes()
    (out / "history.jsonl").write_bytes(lines[:-20])
    tsds.train(store, small(**BUSY), out=out, resume=True)
    assert equal(state(out)["weights"], state(uninterrupted)["weights"])
    assert equal(state(out, "best.pt"), {**state(uninterrupted, "best.pt"), "record": state(out, "best.pt")["record"]})
    assert [r.eval for r in load_history(out)] == [r.eval for r in load_history(uninterrupted)]


def test_another_number_of_ranks_resumes_an_order_by_blocks_between_epochs(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorstore_ds.annex.training.data.fits", lambda *_, **__: False)
    out = tmp_path / "run"
    listeners = tsds.training.Listeners(epoch=lambda record: record.epoch > 1 or shutil.copy(out / "last.pt", tmp_path))
    tsds.train(store, small(epochs=2), out=out, listeners=listeners)
    saved = torch.load(tmp_path / "last.pt", weights_only=True)
    saved["loader"] |= {"num_replicas": 2, "batches": saved["batch"] // 2}  # as if two ranks had trained
    torch.save(saved | {"ranks": 2, "batch": saved["batch"] // 2}, out / "last.pt")
    report, _ = trained(store, out, epochs=2, resume=True)
    assert report.epochs == 2 and state(out)["ranks"] == 1


def test_the_speed_of_an_epoch_counts_the_samples_of_other_ranks(store: Path, tmp_path: Path) -> None:
    out, events = tmp_path / "run", list[tsds.training.TrainProgress]()
    with signal_in_pass(signal.SIGTERM, passes=4), pytest.raises(TrainingStopped):
        trained(store, out, epochs=1)
    saved = state(out)
    saved["loader"] |= {"num_replicas": 2, "batch": 2, "batches": 4}  # as if two ranks had trained in 1,000 seconds
    torch.save(saved | {"ranks": 2, "batch": 2, "seconds": 1000.0}, out / "last.pt")
    tsds.train(store, small(epochs=1), out=out, resume=True, listeners=tsds.training.Listeners(progress=events.append))
    assert events[-1].batch == events[-1].batches == 4
    assert events[-1].samples_per_second == pytest.approx(64 / 1000, rel=0.05)


@pytest.mark.parametrize("windows", [9, 0])
def test_a_run_goes_on_in_its_order_whatever_memory_is_free_then(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    """Samples that do not fit into memory are shuffled within windows, which have a share of the free memory."""
    data = "tensorstore_ds.annex.training.data"

    def free(blocks: int) -> None:
        monkeypatch.setattr(f"{data}.fits", lambda *_, **__: not blocks)
        monkeypatch.setattr(f"{data}.memory_limit", lambda: 8 * 288 * blocks)

    monkeypatch.setattr(f"{data}.BLOCK_NBYTES", 288)
    free(6)
    trained(store, tmp_path / "whole", epochs=1)
    with signal_in_pass(signal.SIGTERM, passes=3), pytest.raises(TrainingStopped):
        trained(store, tmp_path / "run", epochs=1)
    free(windows)
    trained(store, tmp_path / "run", epochs=1, resume=True)
    found, expected = state(tmp_path / "run"), state(tmp_path / "whole")
    assert found["window_blocks"] == 6 and equal(found["weights"], expected["weights"])


@pytest.fixture(scope="module")
def brief(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an epoch, to look at."""
    out = tmp_path_factory.mktemp("runs") / "brief"
    _, notes = trained(store, out, epochs=1, resume=True)
    assert f"there is no run in {out} to resume: a new one begins" in notes
    return out


def test_a_run_that_has_ended_is_as_it_was(store: Path, brief: Path, tmp_path: Path) -> None:
    shutil.copytree(brief, tmp_path / "run")
    report, notes = trained(store, tmp_path / "run", epochs=1, resume=True)
    assert "all epochs are trained: the last one is evaluated again" in notes
    written = json.loads((brief / "report.json").read_text("utf-8"))
    assert [report.best, report.seconds] == [written["best"], written["seconds"]]
    assert equal(state(tmp_path / "run")["weights"], state(brief)["weights"])


def test_the_history_and_the_best_model_agree_if_an_evaluation_is_not_repeated_exactly(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another machine. The best model is of epoch 2, then it would be of epoch 1, whose weights are gone."""
    out, recorded = tmp_path / "run", Run.record

    def evaluated(accuracy: Mapping[int, float]) -> None:
        def record(run: Run, tally: Any) -> tsds.training.EpochRecord:
            found = recorded(run, tally)
            return dataclasses.replace(found, eval={"accuracy": accuracy[found.epoch]})

        monkeypatch.setattr(Run, "record", record)

    evaluated({1: 0.5, 2: 0.6})
    trained(store, out, epochs=2)
    evaluated({2: 0.4})
    report, _ = trained(store, out, epochs=2, resume=True)
    best = json.loads(state(out, "best.pt")["record"])
    assert report.best_epoch == best["epoch"] == 2
    assert load_history(out)[-1].eval == report.best == best["eval"] == {"accuracy": 0.6}


def test_a_last_model_is_no_best_one(store: Path, brief: Path, tmp_path: Path) -> None:
    shutil.copytree(brief, tmp_path / "run")
    shutil.copy(brief / "last.pt", tmp_path / "run" / "best.pt")
    with pytest.raises(TrainingError, match=r"best.pt: expected a checkpoint .* Remove it.") as error:
        trained(store, tmp_path / "run", epochs=1, resume=True)
    one_line(error.value)
    (tmp_path / "run" / "best.pt").unlink()
    trained(store, tmp_path / "run", epochs=1, resume=True)


def test_a_run_whose_best_model_was_moved_away_ends(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    trained(store, out, epochs=2)
    first, second = (json.loads(line) for line in (out / "history.jsonl").read_bytes().splitlines())
    first["eval"]["accuracy"] = 2.0
    (out / "history.jsonl").write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n", "utf-8")
    (out / "best.pt").unlink()
    report, notes = trained(store, out, epochs=2, resume=True)
    assert (report.best_epoch, report.classes) == (1, [])
    assert notes[-1] == "best.pt is gone: the report has no results by class or keypoint"


def test_a_run_is_not_overwritten(store: Path, brief: Path, tmp_path: Path) -> None:
    before = (brief / "last.pt").read_bytes()
    with pytest.raises(OptionError, match=r"found a run. Go on with `resume`, or choose another `out`") as error:
        trained(store, brief, epochs=1)
    assert one_line(error.value) and (brief / "last.pt").read_bytes() == before
    (tmp_path / "run").touch()
    with pytest.raises(OptionError, match=r"run: expected a folder, found a file. Choose another `out`.") as error:
        trained(store, tmp_path / "run", epochs=1)
    one_line(error.value)


def test_two_runs_do_not_write_to_one_folder(store: Path, brief: Path, tmp_path: Path) -> None:
    shutil.copytree(brief, tmp_path / "run")
    before = (tmp_path / "run" / "last.pt").stat().st_ino  # another file replaces it
    with locked_folder(tmp_path / "run"), pytest.raises(TrainingError, match="another process trains") as error:
        trained(store, tmp_path / "run", epochs=1, resume=True)
    assert one_line(error.value) and (tmp_path / "run" / "last.pt").stat().st_ino == before
    trained(store, tmp_path / "run", epochs=1, resume=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 2}, "`epochs`: expected 1 as in the checkpoint, found 2"),
        ({"width": 32}, "`vit.width`: expected 16 as in the checkpoint, found 32"),
        ({"learning_rate": 1e-2}, "`learning_rate`: expected 0.001 as in the checkpoint, found 0.01"),
        ({"mix": "cutmix"}, "`mix`: expected none as in the checkpoint, found cutmix"),
        ({"classes": 2}, "`task.classes`: expected ['a', 'b', 'c'] as in the checkpoint, found ['a', 'b']"),
        ({"train": 66}, "`samples`: expected 60 as in the checkpoint, found 66"),
    ],
)
def test_another_runs_checkpoint_is_refused(
    store: Path, brief: Path, tmp_path: Path, changes: Any, message: str
) -> None:
    if changes.keys() & {"classes", "train"}:
        store, changes = labelled(tmp_path, **changes), {}
    with pytest.raises(TrainingError, match="Use the same store and options, or another `out`") as error:
        trained(store, brief, resume=True, **{"epochs": 1, **changes})
    assert message in one_line(error.value)


# --- tasks -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "metric", "better"),
    [
        ("multilabel", "map", 0.8),
        ("classification+keypoints", "accuracy", 0.8),
        ("auto", "nme", -0.75),
    ],
)
def test_tasks_of_objects(tmp_path: Path, task: Any, metric: str, better: float) -> None:
    path = annotated(tmp_path / "s.tsds")
    changes = {"learning_rate": 5e-3, "eval_split": "train", "augment": "none", "image_size": (16, 16)}
    report, _ = trained(path, tmp_path / "run", task=task, epochs=40, **changes)
    assert report.metric == metric and report.task == ("keypoints" if task == "auto" else task)
    value = report.best[metric]
    assert (value if better > 0 else -value) > better
    if "keypoints" in report.task:
        assert [p["samples"] for p in report.keypoints] == [24, 24]


def test_without_a_split_to_evaluate_on(tmp_path: Path) -> None:
    report, notes = trained(annotated(tmp_path / "s.tsds"), tmp_path / "run", epochs=2)
    assert report.best_epoch is None and report.last["loss"] > 0
    assert any("no split to evaluate on" in note and "`split_into=train=0.9" in note for note in notes)
    assert equal(state(tmp_path / "run", "best.pt")["weights"], state(tmp_path / "run")["weights"])


# --- what a user can get wrong -----------------------------------------------------------------------------------


def refused(store: Path, out: Path, **changes: Any) -> str:
    with pytest.raises((OptionError, TrainingError)) as error:
        tsds.train(store, small(**{"epochs": 1, **changes}), out=out)
    assert not out.exists() or not (out / "last.pt").exists()
    return one_line(error.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_where_one_was_asked_for(store: Path, tmp_path: Path) -> None:
    message = refused(store, tmp_path / "run", device="cuda")
    assert message.startswith("`device`: expected one that this machine has, found cuda")
    assert message.endswith('Use `device="cpu"`.')


def test_a_class_that_is_only_tested_is_named(tmp_path: Path) -> None:
    path = labelled(tmp_path)
    for file in (tmp_path / "source" / "train" / "c").iterdir():
        file.unlink()
    tsds.convert(tmp_path / "source", tmp_path / "t.tsds", tsds.ConvertOptions(workers=0))
    _, notes = trained(tmp_path / "t.tsds", tmp_path / "run", epochs=1)
    assert any("test has samples of classes that train has none of: c" in note for note in notes)
    _, notes = trained(path, tmp_path / "run2", epochs=1)
    assert not any("has none of" in note for note in notes)


def test_a_loss_that_is_no_number(store: Path, tmp_path: Path) -> None:
    message = refused(store, tmp_path / "run", learning_rate=1e30, clip=0.0, warmup=0.0)
    assert "epoch 1: expected a loss that is a number, found nan" in message
    assert "Try `learning_rate=1e+29` or less" in message


# --- samples without a label -------------------------------------------------------------------------------------


def partly_labelled(path: Path, train: list[int], test: list[int], *, skip: bool = False) -> Path:
    """A store of `patterns` with other labels; if asked for, without the samples of the test that have none."""
    with tsds.Writer(path, classes=["a", "b", "c"]) as writer:
        for split, labels in (("train", train), ("test", test)):
            for sample, label in zip(patterns(len(labels)), labels, strict=True):
                if split == "train" or label >= 0 or not skip:
                    writer.append(split, image=sample["image"], label=label)
    return path


@pytest.mark.parametrize("mix", ["none", "mixup"])
def test_samples_without_a_label_add_nothing(tmp_path: Path, mix: Any) -> None:
    train, test = [row % 3 if row % 5 else -1 for row in range(60)], [0, 1, 2, -1, -1, 2]
    store = partly_labelled(tmp_path / "s.tsds", train, test)
    report, notes = trained(store, tmp_path / "run", epochs=2, batch_size=12, mix=mix)
    assert "12 of 60 samples of train have no label: they teach no class" in notes
    assert "2 of 6 samples of test have no label: they do not count" in notes
    assert [row["samples"] for row in report.classes] == [1, 1, 2]
    # The last epoch is as one that is evaluated on the samples with labels alone.
    alone = partly_labelled(tmp_path / "known.tsds", train, test, skip=True)
    other, _ = trained(alone, tmp_path / "other", epochs=2, batch_size=12, mix=mix)
    assert len(tsds.open(alone)["test"]) == 4 and dict(report.last) == pytest.approx(dict(other.last))


def test_an_epoch_may_begin_with_samples_without_a_label(tmp_path: Path) -> None:
    """No batch of them has a mean of nothing, which would end the run."""
    store = partly_labelled(tmp_path / "s.tsds", [0, 1] + [-1] * 30, [-1])
    report, notes = trained(store, tmp_path / "run", epochs=2, batch_size=2)
    assert 0 < report.last["loss"] < 5
    assert any("there is no split with labels to evaluate on" in note for note in notes)


def test_a_balanced_run_never_draws_samples_without_a_label(tmp_path: Path) -> None:
    store = partly_labelled(tmp_path / "u.tsds", [0, 1, 2] * 4 + [-1] * 12, [0, 1])
    trained(store, tmp_path / "run", epochs=1, batch_size=4, balance="inverse")
    assert load_history(tmp_path / "run")[0].train["accuracy"] >= 0


def test_a_run_learns_from_a_split_that_is_named_training(tmp_path: Path) -> None:
    store, out = tmp_path / "s.tsds", tmp_path / "run"
    tsds.convert({"training": patterns(16), "testing": patterns(8)}, store, workers=0, classes=["a", "b", "c"])
    report, notes = trained(store, out, epochs=1)
    assert any(each.startswith("16 samples of training, ") for each in notes)
    assert report.facts["eval_split"] == "testing"
    assert trained(store, out, epochs=1, resume=True)[0].best == report.best


# --- folds -------------------------------------------------------------------------------------------------------


def test_a_run_on_a_fold_trains_on_the_others_and_resumes_with_this_fold_alone(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = small(epochs=2, fold="2/4", stratify="label")
    report, notes = trained(store, out, options)
    fold = tsds.folds(store, 4, stratify="label")[1]
    assert (len(fold.train), len(fold.val)) == (45, 15)
    expected = {"train_samples": 45, "eval_samples": 15, "eval_split": "train", "fold": "2/4"}
    assert {name: report.facts[name] for name in expected} == expected
    assert any(note.startswith("45 samples of train, ") and note.endswith("evaluated on 15 of train") for note in notes)
    assert "fold 2/4 of train is evaluated, the others are trained on, stratified by label" in notes
    labels = np.asarray(tsds.open(store)["train"]["label"])
    assert [each["samples"] for each in report.classes] == np.bincount(labels[fold.val]).tolist()
    assert [record.epoch for record in load_history(out)] == [1, 2]
    with pytest.raises(TrainingError, match=r"`fold`: expected 2/4 as in the checkpoint, found 3/4"):
        tsds.train(store, small(epochs=2, fold="3/4", stratify="label"), out=out, resume=True)
    with pytest.raises(TrainingError, match=r"`stratify`: expected label as in the checkpoint, found None"):
        tsds.train(store, small(epochs=2, fold="2/4"), out=out, resume=True)
    assert trained(store, out, options, resume=True)[0].best == report.best


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fold": "6/5"}, r"`fold`: expected a fold and how many there are, 2 or more, such as 1/5 to 5/5, found 6/5"),
        ({"fold": "0/5"}, "found 0/5"),
        ({"fold": "a/b"}, "found a/b"),
        ({"fold": "1/1"}, "found 1/1"),
        ({"fold": "2"}, "found 2"),
        ({"fold": "1/61"}, "`k`: expected at most 60, the samples of store.tsds, train, found 61"),
        ({"fold": "1/5", "stratify": "labels"}, "fields image, label, .*found 'labels'. Did you mean label"),
        ({"fold": "1/5", "eval_split": "test"}, "`eval_split`: expected none with `fold`"),
        ({"stratify": "label"}, "`stratify`: expected none without `fold`, such as `fold=1/5`, found label"),
        ({"fold_seed": 1}, "`fold_seed`: expected none without `fold`"),
    ],
)
def test_a_fold_that_cannot_be(store: Path, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        tsds.train(store, small(**options), out=tmp_path / "run")


@pytest.mark.parametrize("balance", ["none", "inverse"])
def test_rows_of_the_fold_are_not_trained_on(store: Path, balance: Any) -> None:
    from tensorstore_ds.annex.training.data import fold_of, task_of, train_loader
    from tensorstore_ds.annex.training.process import Ranks

    opened, options = tsds.open(store), small(fold="1/3", balance=balance)
    fold = fold_of(opened, options)
    assert fold is not None
    ranks, transform = Ranks(0, 1, torch.device("cpu")), tsds.Compose([])
    loader, _ = train_loader(opened, task_of(opened["train"]), options, transform, ranks, rows=fold.train)
    images = np.asarray(opened["train"]["image"])
    rows = {images[row].tobytes(): row for row in range(len(images))}
    drawn = {rows[image.numpy().tobytes()] for batch in loader for image in batch["image"].contiguous()}
    assert drawn <= set(fold.train.tolist())
    assert balance != "none" or drawn == set(fold.train.tolist())
