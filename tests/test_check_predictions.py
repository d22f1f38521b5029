"""Labels that predictions contradict, compared with cleanlab, and objects, compared with the rules in other words."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cleanlab.filter import find_label_issues
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from torchvision.ops import box_iou

import tensorstore_ds as tsds
from detection_stores import CLASSES, shapes
from small_stores import tsds as command
from stores import store_of
from tensorstore_ds.annex.checking.predictions import object_issues
from tensorstore_ds.annex.training.checkpoint import load, save
from tensorstore_ds.errors import SourceError, TrainingError
from training_stores import labelled, small


def by_cleanlab(labels: Any, probabilities: Any, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows that cleanlab itself finds, by margin: row, label, the most probable class, its probability, the margin."""
    ranked = find_label_issues(
        labels, probabilities, filter_by="confident_learning", return_indices_ranked_by="normalized_margin", n_jobs=1
    )
    found = []
    for row in ranked.tolist():
        given, p = int(labels[row]), probabilities[row].astype(float)
        margin = p[given] - np.delete(p, given).max()
        found.append((row, names[given], names[p.argmax()], round(p[given], 5), round(margin, 5)))
    return sorted(found, key=lambda each: (each[-1], each[0]))


def shown(store: tsds.Store, predictions: Any) -> list[tuple[Any, ...]]:
    found = tsds.check_store(store.path, near=False, odd_images=False, predictions=predictions).labels
    return [(each.sample.row, each.label, each.suggested, each.self_confidence, each.margin) for each in found]


DIGITS = tuple("0123456789")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[tsds.Store, Any, Any, set[int]]:
    """600 handwritten digits, the labels of 30 changed; probabilities by cross validation; and these 30 rows."""
    data, rng = load_digits(), np.random.default_rng(0)
    labels, changed = data.target[:600].astype(int), rng.permutation(600)[:30]
    labels[changed] = (labels[changed] + rng.integers(1, 10, 30)) % 10
    model = LogisticRegression(max_iter=2000, C=10)
    made = cross_val_predict(model, data.data[:600] / 16, labels, cv=3, method="predict_proba").astype(np.float32)
    images = (data.images[:600, :, :, None] * 15).astype(np.uint8)
    samples = [{"image": image, "label": int(label)} for image, label in zip(images, labels, strict=True)]
    return store_of(tmp_path_factory.mktemp("digits") / "s.tsds", samples, DIGITS), labels, made, {*changed.tolist()}


def test_changed_labels_of_digits_are_found_as_cleanlab_finds_them(digits: Any) -> None:
    store, labels, made, changed = digits
    found = shown(store, {"train": made})
    assert found == by_cleanlab(labels, made, DIGITS)
    rows = {each[0] for each in found}
    assert len(rows & changed) >= 22  # of 30
    truth = load_digits().target
    assert sum(each[2] == str(truth[each[0]]) for each in found if each[0] in changed) >= 20


def test_rows_without_a_prediction_are_left_out(digits: Any) -> None:
    store, labels, made, _ = digits
    missing = made.copy()
    missing[::3, 1] = np.nan
    rows = np.flatnonzero(np.arange(600) % 3)
    expected = [(int(rows[i]), *others) for i, *others in by_cleanlab(labels[rows], made[rows], DIGITS)]
    assert shown(store, {"train": missing}) == expected and len(expected) > 15
    missing[:] = np.nan
    assert shown(store, {"train": missing}) == []


def test_classes_without_samples(digits: Any, tmp_path: Path) -> None:
    """No label is judged if all are equal; otherwise the classes that no sample has are never suggested."""
    _, labels, made, _ = digits
    for kept in ({3}, {1, 3, 8}):
        rows = [row for row in range(600) if labels[row] in kept]
        samples = [{"image": np.zeros((2, 2, 1), np.uint8), "label": int(labels[row])} for row in rows]
        store = store_of(tmp_path / f"{len(kept)}.tsds", samples, DIGITS)
        found = shown(store, {"train": made[rows]})
        assert found == (by_cleanlab(labels[rows], made[rows], DIGITS) if len(kept) > 1 else [])


def test_probabilities_of_16_bits(digits: Any) -> None:
    """Rounded ones may be more than 1."""
    store, _, made, _ = digits
    rounded = (made * np.float32(1.0005)).astype(np.float16)
    expected = {each[0] for each in shown(store, {"train": made})}
    assert len(expected ^ {each[0] for each in shown(store, {"train": rounded})}) <= 2


def test_without_cleanlab(digits: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cleanlab", None)
    with pytest.raises(tsds.OptionError) as error:
        tsds.check_store(digits[0].path, predictions={"train": np.full((600, 10), 0.1, np.float32)})
    advice = "pip install '.[clean]' in a clone of tensorstore-ds"
    assert str(error.value) == f"to find labels that are probably wrong, cleanlab is needed: {advice}"


def classified(path: Path, **fields: Any) -> tuple[tsds.Store, NDArray[np.int64], NDArray[np.float32]]:
    """A store of 60 samples, the labels of some wrong, and the probabilities of a model that is often right."""
    rng = np.random.default_rng(7)
    true = rng.integers(0, 3, 60)
    labels = np.where(rng.random(60) < 0.2, rng.integers(0, 3, 60), true)
    logits = rng.normal(size=(60, 3))
    logits[np.arange(60), true] += 2.5
    made = (np.exp(logits) / np.exp(logits).sum(1, keepdims=True)).astype(np.float32)
    samples = [
        {"image": rng.integers(0, 256, (8, 8, 1), np.uint8), "label": int(y), **({"probs": p} if fields else {})}
        for y, p in zip(labels, made, strict=True)
    ]
    return store_of(path, samples, ("ant", "bee", "cow")), labels, made


def test_arrays_files_and_fields_give_the_same(tmp_path: Path) -> None:
    store, labels, made = classified(tmp_path / "s.tsds", probs=True)
    np.save(tmp_path / "p.npy", made)
    np.save(tmp_path / "f.npy", np.asfortranarray(made))
    expected = by_cleanlab(labels, made, ("ant", "bee", "cow"))
    ways: list[Any] = [{"train": each} for each in (made, made.tolist(), torch.from_numpy(made), tmp_path / "p.npy")]
    for predictions in (*ways, {"train": str(tmp_path / "f.npy")}, "probs"):
        found = tsds.check_store(store.path, near=False, predictions=predictions)
        rows = [(s.sample.row, s.label, s.suggested, s.self_confidence, s.margin) for s in found.labels]
        assert rows == expected and len(rows) > 4
        assert not found.is_clean and found.drop == {}
    assert tsds.check_store(store.path, near=False).is_clean


def test_the_command(tmp_path: Path) -> None:
    store, _, made = classified(tmp_path / "s.tsds", probs=True)
    np.save(tmp_path / "p.npy", made)
    found = tsds.check_store(store.path, near=False, predictions={"train": made})
    for given in (f"train={tmp_path / 'p.npy'}", "probs"):
        done = command("check", store.path, "--no-near", "--predictions", given, "--json", "--out", tmp_path / "f.json")
        assert done.exit_code == 1
        data = json.loads(done.stdout)
        assert json.loads((tmp_path / "f.json").read_text()) == data
        assert [(each["sample"]["row"], each["margin"]) for each in data["labels"]] == [
            (each.sample.row, each.margin) for each in found.labels
        ]
    shown = command("check", store.path, "--no-near", "--predictions", "probs").stdout
    first = found.labels[0]
    assert f"labels that are probably wrong: {len(found.labels)}\n" in shown
    assert f"{first.sample.place}: {first.label}, probably {first.suggested} (margin {first.margin:.2f})\n" in shown


def test_predictions_that_do_not_fit(tmp_path: Path) -> None:
    store, _, made = classified(tmp_path / "s.tsds")
    np.save(tmp_path / "pickled.npy", np.array([{}], object), allow_pickle=True)
    (tmp_path / "p.txt").write_text("0.5")
    (tmp_path / "p.json").write_text("[]")
    for given, message in (
        ({"train": made[:59]}, r"expected floats of shape \(60, 3\).*found float32 of shape \(59, 3\)"),
        ({"train": made[:, :2]}, r"class of label, found float32 of shape \(60, 2\)"),
        ({"train": np.zeros((60, 3), int)}, "expected floats.*found int64"),
        ({"train": made * 3}, "that add up to 1, found 3 in row 0"),
        ({"train": made + np.float32([1, -1, 0])}, "from 0 to 1 that add up to 1, found 1 in row 0"),
        ({"val": made}, "expected its only split train, found 'val'"),
        ("probs", "expected no array field, found 'probs'. Give files by split"),
        ({"train": tmp_path / "p.txt"}, "expected probabilities in a .npy file"),
        ({"train": tmp_path / "p.json"}, "expected objects with boxes and classes"),
    ):
        with pytest.raises(tsds.OptionError, match=message):
            tsds.check_store(store.path, predictions=given)  # type: ignore[arg-type]  # what a user may give
    for name, message in (("pickled.npy", "never read"), ("none.npy", "No such file")):
        with pytest.raises(SourceError, match=message):
            tsds.check_store(store.path, predictions={"train": tmp_path / name})
    for flags in (["--predictions", "probs", "--predictions", "train=p.npy"], ["--predictions", "train=a.npy"] * 2):
        done = command("check", store.path, *flags)
        assert done.exit_code == 1 and "expected SPLIT=FILE once for each split, or one FIELD" in done.stderr


# --- objects --------------------------------------------------------------------------------------------------------


def greedy(objects: NDArray[np.float64], seen: NDArray[np.float64], least: float) -> list[tuple[str, int | None, int]]:
    """The rules from their description, over all pairs in the order of their IoU, by torchvision's IoU."""
    ious = box_iou(torch.tensor(seen[:, 2:]), torch.tensor(objects[:, 2:])).numpy()
    pairs = sorted(np.ndindex(*ious.shape), key=lambda each: -ious[each])
    used_d: set[int] = set()
    used_o = {int(o) for o in np.flatnonzero(objects[:, 1] == 0)}
    found: list[tuple[str, int | None, int]] = []
    for why, same, limit in (("", True, least), ("swapped", False, least), ("misplaced", True, 0.1)):
        for d, o in pairs:
            agrees = bool(seen[d, 0] == objects[o, 0])
            if ious[d, o] >= limit and agrees == same and d not in used_d and o not in used_o:
                used_d.add(d)
                used_o.add(o)
                found += [(why, o, d)] if why else []
    for d, (x1, y1, x2, y2) in enumerate(seen[:, 2:].tolist()):
        covered = [
            max(0, min(x2, b[2]) - max(x1, b[0])) * max(0, min(y2, b[3]) - max(y1, b[1])) / ((x2 - x1) * (y2 - y1))
            for b in objects[objects[:, 1] == 0, 2:].tolist()
        ]
        if d not in used_d and max([0, *ious[d]]) < least and max([0, *covered]) < 0.5:
            found.append(("overlooked", None, d))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_objects_are_judged_by_the_rules(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def boxes(count: int, near: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        corner = rng.uniform(0, 60, (count, 2))
        made = np.concatenate([corner, corner + rng.uniform(8, 40, (count, 2))], axis=1)
        if near is not None and len(near):
            made[: len(near)] = near[:count] + rng.uniform(-3.5, 3.5, near[:count].shape)
        return made

    own = boxes(int(rng.integers(0, 7)))
    objects = np.column_stack([rng.integers(0, 2, len(own)), rng.random(len(own)) < 0.8, own])
    placed = boxes(len(own) + 2, own)
    seen = np.column_stack([rng.integers(0, 2, len(placed)), np.ones(len(placed)), placed])
    for least in (0.3, 0.5, 0.75):
        found = [issue[:3] for issue in object_issues(objects, seen, min_iou=least)]
        assert sorted(found, key=str) == sorted(greedy(objects, seen, least), key=str)


def results_of(samples: list[dict[str, Any]], score: float = 0.95) -> list[dict[str, Any]]:
    """COCO's results of a detector that finds every object where it is."""
    return [
        {"image_id": row + 1, "category_id": int(k) + 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
        for row, sample in enumerate(samples)
        for (x1, y1, x2, y2), k in zip(sample["boxes"], sample["labels"], strict=True)
    ]


@pytest.fixture
def faulty(tmp_path: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store of 20 images. An object is missing in row 2, misplaced in row 5, and of a wrong class in row 9."""
    samples = shapes(20, seed=3)
    results = results_of(samples)
    samples[2] |= {"boxes": samples[2]["boxes"][1:], "labels": samples[2]["labels"][1:]}
    x1, y1, x2, y2 = samples[5]["boxes"][0]
    width, height = x2 - x1, y2 - y1
    samples[5]["boxes"][0] = [x1, y1, x1 + width * 0.6, y1 + height * 0.6]  # an IoU of 0.36
    samples[9]["labels"][0] = 1 - samples[9]["labels"][0]
    return store_of(tmp_path / "s.tsds", samples, CLASSES).path, results  # type: ignore[return-value]


FAULTS = [(2, None, "overlooked", 0), (5, 0, "misplaced", 0.36), (9, 0, "swapped", 1)]


def test_planted_faults_of_objects_are_named_and_no_others(faulty: Any, tmp_path: Path) -> None:
    path, results = faulty
    (tmp_path / "r.json").write_text(json.dumps(results))
    for given in (results, tmp_path / "r.json"):
        found = tsds.check_store(path, near=False, predictions={"train": given})
        assert [(each.sample.row, each.object, each.why) for each in found.objects] == [f[:3] for f in FAULTS]
        assert [each.iou for each in found.objects] == pytest.approx([f[3] for f in FAULTS], abs=0.02)
    overlooked, misplaced, swapped = found.objects
    x, y, width, height = next(r for r in results if r["image_id"] == 3)["bbox"]
    assert overlooked.box == (x, y, x + width, y + height) and overlooked.label is None
    assert (misplaced.label, swapped.label) == (misplaced.suggested, CLASSES[1 - CLASSES.index(swapped.suggested)])
    assert not found.is_clean
    assert not tsds.check_store(path, near=False, predictions={"train": results}, prediction_score=0.96).objects
    only = tsds.check_store(path, near=False, predictions={"train": results}, prediction_iou=0.3).objects
    assert [each.why for each in only] == ["overlooked", "swapped"]
    done = command("check", path, "--no-near", "--predictions", f"train={tmp_path / 'r.json'}")
    assert done.exit_code == 1
    for title in ("objects that were probably overlooked", "boxes that are probably misplaced"):
        assert f"{title}: 1\n" in done.stdout
    assert f"object 1 is {swapped.label}, detected {swapped.suggested} at (" in done.stdout


def test_ignored_objects_are_neither_judged_nor_overlooked(tmp_path: Path) -> None:
    samples = shapes(6, seed=3, difficult=1)
    results = results_of(samples)
    for result in results:
        result["category_id"] = 3 - result["category_id"]
    store = store_of(tmp_path / "s.tsds", samples, CLASSES)
    assert not tsds.check_store(store.path, near=False, predictions={"train": results}).objects


def test_results_that_do_not_fit(faulty: Any) -> None:
    path, results = faulty
    for name, value, message in (
        ("image_id", 21, "result 1: expected image_id, 1 to 20, found 21. Ids count from 1"),
        ("image_id", 0, "expected image_id, 1 to 20, found 0"),
        ("category_id", 3, "expected category_id, 1 to 2, found 3"),
        ("category_id", True, "expected category_id"),
        ("bbox", [1, 2, 3], "expected bbox, a list of 4 numbers"),
        ("bbox", [1, 2, -3, 4], "sides of 0 or more, found -3"),
        ("bbox", [1, 2, "3", 4], "expected bbox, a number"),
        ("score", None, "expected score, a number"),
    ):
        with pytest.raises(tsds.OptionError, match=message):
            tsds.check_store(path, predictions={"train": [results[0] | {name: value}]})


# --- predictions of a trained model ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, and two runs: each was trained on one fold of two."""
    folder = tmp_path_factory.mktemp("folds")
    store = labelled(folder)
    for number in (1, 2):
        options = small(epochs=8, learning_rate=5e-3, augment="none", fold=f"{number}/2", stratify="label")
        tsds.train(store, options, out=folder / f"run{number}")
    return folder


@pytest.mark.slow
def test_folds_fill_one_file(trained: Path, tmp_path: Path) -> None:
    """Of each fold as many are right as the report of its run says."""
    store, file = tsds.open(trained / "store.tsds"), tmp_path / "p.npy"
    labels = np.asarray(store["train"]["label"][:])
    for number, absent in ((1, 30), (2, 0)):
        flags = ["--fold", "--split", "train", "--device", "cpu"]
        checkpoint = trained / f"run{number}" / "best.pt"
        done = command("predict", checkpoint, store.path, *flags, "--probabilities", file, "--json")
        assert done.exit_code == 0, done.output
        expected = {"samples": 60, "predicted": 30, "absent": absent, "written": [str(file)]}
        assert json.loads(done.stdout) == expected
        made = np.load(file)
        rows = tsds.folds(store, 2, stratify="label").fold(number).val
        assert made.dtype == np.float32 and made.shape == (60, 3) and np.isnan(made).any(1).sum() == absent
        np.testing.assert_allclose(made[rows].sum(1), 1, atol=1e-5)
        report = json.loads((trained / f"run{number}" / "report.json").read_text())
        assert (made[rows].argmax(1) == labels[rows]).mean() == pytest.approx(report["best"]["accuracy"])
    whole = tsds.training.predict_probabilities(trained / "run1" / "best.pt", store.path, split="train", device="cpu")
    rows = tsds.folds(store, 2, stratify="label").fold(1).val
    np.testing.assert_allclose(whole[rows], made[rows], atol=1e-5)
    shown = command("predict", trained / "run1" / "best.pt", store.path, "--probabilities", tmp_path / "t.npy")
    assert shown.stdout == f"{tmp_path / 't.npy'}: probabilities of 21 samples\n"  # of the split test
    assert tsds.check_store(store.path, near=False, predictions={"train": file}).samples == 81


def test_probabilities_that_cannot_be_written(trained: Path, tmp_path: Path) -> None:
    store, checkpoint = trained / "store.tsds", trained / "run1" / "best.pt"
    np.save(tmp_path / "other.npy", np.zeros((60, 4)))
    fold = ["--split", "train", "--fold"]
    for flags, message in (
        (
            [*fold, "--probabilities", tmp_path / "other.npy"],
            "expected probabilities of shape (60, 3), found float64 of",
        ),
        ([*fold, "--probabilities", store / "p.npy"], "store.tsds"),
        (fold, "--fold: expected --probabilities with it"),
        ([*fold, "1/4"], "--fold: expected no value, since the checkpoint has its fold, found 1/4. Leave it out."),
        (
            ["--fold", "--probabilities", tmp_path / "p.npy"],
            "expected train of 60 samples, whose fold the run held out",
        ),
    ):
        done = command("predict", checkpoint, store, *flags)
        assert done.exit_code == 1 and message in done.stderr, done.output
        assert len(done.stderr.splitlines()) == 1
    image = next((trained / "source" / "test" / "a").iterdir())
    done = command("predict", checkpoint, image, "--probabilities", tmp_path / "p.npy")
    assert done.stderr.startswith("tsds: --probabilities: expected one store, found images.")
    done = command("predict", checkpoint, tmp_path / "no.tsds", "--split", "train")
    assert done.stderr.startswith(f"tsds: {tmp_path / 'no.tsds'}: there is no such store.")
    assert not (tmp_path / "p.npy").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "held",
    [None, {}, 3, {"split": "train", "samples": 60, "rows": torch.tensor([60])}, {"rows": torch.zeros(1, 1)}],
    ids=["none", "empty", "number", "outside", "shape"],
)
def test_a_checkpoint_without_a_usable_fold(trained: Path, tmp_path: Path, held: object) -> None:
    """The rows in a checkpoint may be anyone's: they are checked before they are used."""
    card, content = load(trained / "run1" / "best.pt")
    save(tmp_path / "best.pt", card, {"weights": content["weights"], "held_out": held})
    message = "a run with `fold`, found another" if held is None else "best.pt: expected a checkpoint of tsds train"
    with pytest.raises(TrainingError, match=message):
        tsds.training.predict_probabilities(
            tmp_path / "best.pt", trained / "store.tsds", split="train", fold=True, device="cpu"
        )


@pytest.mark.slow
def test_probabilities_are_numbers_of_the_classes_of_the_store(trained: Path, tmp_path: Path) -> None:
    """Columns of other classes would be compared with the wrong labels, and NaN reads as a row of another fold."""
    card, content = load(trained / "run1" / "best.pt")
    weights = {name: torch.full_like(value, torch.nan) for name, value in content["weights"].items()}
    save(tmp_path / "nan.pt", card, {"weights": weights})
    other = dataclasses.replace(card, task=dataclasses.replace(card.task, classes=card.task.classes[::-1]))
    save(tmp_path / "other.pt", other, {"weights": content["weights"]})
    for name, error in (("nan", TrainingError), ("other", tsds.OptionError)):
        with pytest.raises(error, match=r"expected a model that says numbers|expected the classes of the model"):
            tsds.training.predict_probabilities(tmp_path / f"{name}.pt", trained / "store.tsds", device="cpu")


@pytest.mark.slow
def test_the_fold_of_a_run_is_its_own(tmp_path: Path) -> None:
    """Whatever groups and seed the run had, no sample that it was trained on is predicted."""
    store = labelled(tmp_path)
    options = small(epochs=1, fold="2/3", groups="duplicates", stratify="label", fold_seed=5)
    tsds.train(store, options, out=tmp_path / "run")
    found = tsds.training.predict_probabilities(
        tmp_path / "run" / "last.pt", store, split="train", fold=True, device="cpu"
    )
    expected = tsds.folds(store, 3, groups="duplicates", stratify="label", seed=5).fold(2).val
    assert np.flatnonzero(~np.isnan(found).any(1)).tolist() == expected.tolist()
