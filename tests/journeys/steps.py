"""What a newcomer does with a data set, step by step. Each step is a test that each data set goes through."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

import tensorstore_ds as tsds
from journeys import oracle
from journeys.agreement import (
    agree,
    annotations_agree,
    content,
    files_of,
    rows_of,
    same_pictures,
    statistics_agree,
)
from journeys.commands import Shell
from journeys.data_sets import DataSet
from journeys.oracle import Facts, mode_of
from journeys.photographs import upright

#: Images of which all are compared; of larger sets, every n-th.
MANY = 2000


class Trip:
    """A data set in a folder of its own, and its store."""

    def __init__(self, data: DataSet, folder: Path) -> None:
        self.data = data
        self.shell = Shell(folder)
        self.folder = folder
        self.source = folder / "photos"
        data.make(self.source)
        self.facts: Facts = data.read(self.source)
        self.store = folder / "photos.tsds"
        self.first = self.shell.program("convert", "photos", "photos.tsds", fails=None)
        self.skip = ("--on-error", "skip") if self.facts.bad or self.facts.bad_boxes else ()
        if self.skip:
            self.shell.run("convert", "photos", "photos.tsds", *self.skip)
        # To learn from, and to evaluate on.
        self.divided = self.store
        if not data.has_splits:
            self.divided = folder / "divided.tsds"
            self.shell.run("split", self.store, self.divided, "train=0.75,val=0.25")

    @property
    def every(self) -> int:
        """Of so many images, one is compared."""
        return 1 + len(self.facts.samples) // MANY

    def learning(self, epochs: int = 1) -> tuple[object, ...]:
        """Flags of `tsds train`, so that an epoch takes a moment."""
        samples = len(tsds.open(self.divided)["train"])
        batch_size = min(samples, max(8, samples // 100))
        few = ("--model", "seed", "--epochs", epochs, "--batch-size", batch_size)
        return (*few, "--lr", "1e-2", "--torch-threads", 1)

    @property
    def mixed(self) -> bool:
        """Whether there are gray and color images."""
        return len({mode_of(sample.path) for sample in self.facts.samples.values()}) > 1

    @property
    def has_labels(self) -> bool:
        return any(sample.things is None for sample in self.facts.samples.values())


class Journey:
    """The steps, for the data set that a subclass names."""

    data_set: ClassVar[str]
    sets: ClassVar[Mapping[str, DataSet]]

    # --- convert, look, check -----------------------------------------------------------------------------------

    def test_convert(self, trip: Trip) -> None:
        """A bad file stops the conversion and is named; without it, the store has what an oracle reads."""
        if trip.skip:
            assert trip.first.status == 1
            assert trip.first.stderr.splitlines()[-1].startswith("tsds: ")
            assert any(Path(key).name in trip.first.stderr for key in trip.facts.bad) or trip.facts.bad_boxes
            assert "skip" in trip.first.stderr
        else:
            assert trip.first.status == 0, trip.first.stderr
        store = tsds.open(trip.store)
        agree(store, trip.facts, trip.data, every=trip.every)
        assert store[store.splits[0]].fields["image"].encoding == trip.data.encoding
        listed = (
            [json.loads(line) for line in (trip.store / "skipped.jsonl").read_text().splitlines()] if trip.skip else []
        )
        for key in trip.facts.bad:
            assert any(key in line["where"] for line in listed), key

    def test_the_source_is_not_touched(self, trip: Trip, tmp_path: Path) -> None:
        trip.data.make(tmp_path / "again")
        if not any(path.is_symlink() for path in trip.source.iterdir()):
            assert files_of(trip.source) == files_of(tmp_path / "again")

    def test_dry_run(self, trip: Trip) -> None:
        before = sorted(trip.folder.iterdir())
        found = trip.shell.json("convert", "photos", "never.tsds", "--dry-run", *trip.skip)
        assert sorted(trip.folder.iterdir()) == before
        # A dry run reads headers: it does not know yet which files are damaged behind them.
        bad = len(trip.facts.bad)
        assert sum(found["rows"].values()) - bad <= len(trip.facts.samples) <= sum(found["rows"].values())
        assert found["classes"] == trip.facts.classes

    def test_look(self, trip: Trip) -> None:
        info = trip.shell.json("info", trip.store)
        assert {name: split["rows"] for name, split in info["splits"].items()} == {
            name: len(samples) for name, samples in trip.facts.splits.items()
        }
        field = info["fields"]["label" if trip.has_labels else "objects"]
        assert field["classes"] == trip.facts.classes
        assert info["nbytes"] <= sum(path.stat().st_size for path in trip.store.rglob("*") if path.is_file())
        assert info["sha256"] == tsds.open(trip.store).sha256
        statistics_agree(trip.shell.json("stats", trip.store), trip.facts, trip.data)
        text = trip.shell.run("info", trip.store).stdout + trip.shell.run("stats", trip.store).stdout
        for name in trip.facts.classes:
            assert name in text
        trip.shell.run("preview", trip.store, "--out", "sheet.png", "--count", 6)
        with Image.open(trip.folder / "sheet.png") as sheet:
            sheet.load()
            assert sheet.format == "PNG"
            assert len(np.unique(np.asarray(sheet.convert("L")))) > 50  # there is something on it

    def test_check(self, trip: Trip) -> None:
        found = trip.shell.json("check", trip.store, "--out", "findings.json", "--no-near", fails=None)
        assert found["samples"] == len(trip.facts.samples)
        assert not found["unreadable"]
        splits = {key: name for name, samples in trip.facts.splits.items() for key in samples}
        everything = {key: sample for samples in trip.facts.splits.values() for key, sample in samples.items()}
        expected = same_pictures(everything, trip.data)
        copies = [{sample["key"] for sample in each["samples"]} for each in found["copies"]]
        assert sorted(map(sorted, copies)) == sorted(map(sorted, expected))
        for each in found["copies"]:
            keys = {sample["key"] for sample in each["samples"]}
            assert each["is_leak"] == (len({splits[key] for key in keys}) > 1)
            assert each["labels_disagree"] == (len({everything[key].label for key in keys}) > 1)
        assert sum(map(len, found["drop"].values())) == sum(len(each) - 1 for each in expected) + len(found["constant"])
        if found["drop"]:
            trip.shell.run("filter", trip.store, "clean.tsds", "--without", "findings.json")
            clean = tsds.open(trip.folder / "clean.tsds")
            kept = {key for name in clean.splits for key in rows_of(clean[name])}
            assert len(kept) == len(everything) - sum(map(len, found["drop"].values()))
            assert all(len(keys & kept) == 1 for keys in expected)
            again = trip.shell.json("check", trip.folder / "clean.tsds", "--no-near", fails=None)
            assert not again["copies"]

    def test_verify(self, trip: Trip) -> None:
        trip.shell.run("verify", trip.store)
        copied = trip.folder / "damaged.tsds"
        shutil.copytree(trip.store, copied)
        largest = max((path for path in copied.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        with open(largest, "r+b") as file:
            file.seek(largest.stat().st_size // 3)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 0x10]))
        done = trip.shell.run("verify", copied, fails=1)
        assert largest.relative_to(copied).as_posix() in done.stdout
        shutil.rmtree(copied)

    # --- split, resize, read ------------------------------------------------------------------------------------

    def test_split(self, trip: Trip, draw: random.Random) -> None:
        """Splits are disjoint and complete, and each class is divided as was asked for."""
        out, share = trip.folder / "parts.tsds", draw.choice([0.5, 0.6, 0.8])
        trip.shell.run("split", trip.store, out, f"train={share},val={1 - share:.1f}", "--seed", draw.randrange(100))
        store = tsds.open(out)
        everything = {key: sample for samples in trip.facts.splits.values() for key, sample in samples.items()}
        parts = {name: rows_of(store[name]) for name in store.splits}
        assert not parts["train"].keys() & parts["val"].keys()
        assert parts["train"].keys() | parts["val"].keys() == everything.keys()
        for name, rows in parts.items():
            for key, row in rows.items():
                annotations_agree(store[name], row, everything[key], trip.facts)
        labels = {sample.label for sample in everything.values() if sample.things is None}
        for label in labels:
            of_class = [key for key, sample in everything.items() if sample.label == label]
            assert abs(len(parts["train"].keys() & set(of_class)) - share * len(of_class)) <= 1, label

    @pytest.mark.drawn
    def test_one_size(self, trip: Trip, draw: random.Random) -> None:
        """With `--size`, pixels are Pillow's and annotations move as they do."""
        fit, size = draw.choice(["pad", "crop", "stretch"]), draw.choice([(96, 96), (64, 112), (120, 80)])
        out = trip.folder / "small.tsds"
        trip.shell.run("convert", "photos", out, "--size", f"{size[0]}x{size[1]}", "--fit", fit, "--on-error", "skip")
        store = tsds.open(out)
        for name, samples in trip.facts.splits.items():
            rows = rows_of(store[name])
            assert rows.keys() == samples.keys()
            for key, sample in list(samples.items())[:: trip.every]:
                mode = "RGB" if trip.data.color is None and trip.mixed else trip.data.color or mode_of(sample.path)
                expected, move, inside = fitted(upright(sample.path, mode), size, fit)
                found = np.asarray(store[name]["image"][rows[key]])
                difference = np.abs(found.astype(int) - expected)
                assert difference.mean() < 0.6 and np.percentile(difference, 99) <= 8, (key, difference.mean())
                if sample.things is not None:
                    objects = store[name]["objects"][rows[key]]
                    boxes = move(np.array([thing.box for thing in sample.things]).reshape(-1, 2)).reshape(-1, 4)
                    boxes = np.clip(boxes, 0, [size[1], size[0], size[1], size[0]])
                    kept = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
                    np.testing.assert_allclose(objects["boxes"], boxes[kept], atol=2e-3)
                    assert inside or not kept.all() or len(boxes) == kept.sum()
                    if "keypoints" in objects:
                        points = [
                            [thing.points.get(point, (np.nan, np.nan)) for point in trip.facts.points]
                            for thing, keep in zip(sample.things, kept, strict=True)
                            if keep
                        ]
                        moved = move(np.array(points, float).reshape(-1, 2)).reshape(objects["keypoints"].shape)
                        np.testing.assert_allclose(objects["keypoints"], moved, atol=2e-3)

    def test_three_lines(self, trip: Trip) -> None:
        """Of README.md, as they are there."""
        split = tsds.open(trip.store)["train"]
        some = [row % len(split) for row in (7, 3, 5)]  # the set of real faces has 4 for training
        samples = trip.facts.splits["train"]
        keys = [split["key"][row] for row in some]
        if trip.data.encoding == "raw":
            images = split["image"].take(some)
            for image, key in zip(images, keys, strict=True):
                assert np.array_equal(image, upright(samples[key].path, trip.data.color or "RGB"))
        if not trip.has_labels:
            return
        labels = split["label"].take(some)
        named = [trip.facts.classes[label] if label >= 0 else None for label in labels]
        assert named == [samples[key].label for key in keys]
        if trip.data.size is not None:
            dataset = tsds.StoreDataset(str(trip.store), "train", return_as="tuple")
            loader = tsds.DataLoader(dataset, batch_size=8, shuffle=True, device="cpu")
            seen: list[int] = []
            for images, labels in loader:
                assert images.dtype == torch.uint8 and images.shape[2:] == trip.data.size
                seen += labels.tolist()
            expected = [-1 if s.label is None else trip.facts.classes.index(s.label) for s in samples.values()]
            assert sorted(seen) == sorted(expected)

    # --- train, predict, resume ---------------------------------------------------------------------------------

    @pytest.mark.drawn
    def test_train_and_predict(self, trip: Trip, tmp_path: Path) -> None:
        """Predictions, and the loss and metrics of the evaluation, are what the model says of Pillow's pixels."""
        run = tmp_path / "run"
        said = trip.shell.run("train", trip.divided, *trip.learning(), "--image-size", 56, "--out", run)
        report = json.loads((run / "report.json").read_text())
        assert len((run / "history.jsonl").read_text().splitlines()) == report["epochs"] == 1
        split = tsds.open(trip.divided)[report["facts"]["eval_split"]]
        everything = {key: sample for samples in trip.facts.splits.values() for key, sample in samples.items()}
        keys = list(rows_of(split))[:200]
        paths = [everything[key].path for key in keys]
        predicted = trip.shell.json("predict", run / "best.pt", *paths)
        assert [Path(each["path"]) for each in predicted] == paths
        outputs = by_hand(run / "best.pt", paths, trip.data)
        near = 2e-3 if trip.data.encoding == "raw" else 0.05  # of files, which may be decoded at a half
        if report["task"] == "classification":
            chances = outputs.softmax(1)
            for each, row in zip(predicted, chances, strict=True):
                by_name = {best["class"]: best["probability"] for best in each["best"]}
                expected = dict(zip(report["classes"] and trip.facts.classes, row.tolist(), strict=True))
                assert by_name == pytest.approx({name: expected[name] for name in by_name}, abs=near)
                assert expected[each["class"]] >= max(expected.values()) - 2 * near
            labels = [everything[key].label for key in keys]
            known = [i for i, label in enumerate(labels) if label is not None]
            truth = torch.tensor([trip.facts.classes.index(str(labels[i])) for i in known])
            if len(keys) == len(split) and trip.data.encoding == "raw":
                loss = torch.nn.functional.cross_entropy(outputs[known], truth)
                assert report["best"]["loss"] == pytest.approx(float(loss), abs=5e-3)
                right = int((outputs[known].argmax(1) == truth).sum())
                assert abs(report["best"]["accuracy"] * len(known) - right) <= 1  # one may be a draw
        elif report["task"] == "multilabel":
            for each, row in zip(predicted, outputs.sigmoid(), strict=True):
                assert each["probabilities"] == pytest.approx(
                    dict(zip(trip.facts.classes, row.tolist(), strict=True)), abs=near
                )
        else:
            for each, row, path in zip(predicted, outputs, paths, strict=True):
                height, width = upright(path, "L").shape[:2]
                points = (row.view(-1, 2).numpy() + 0.5) * (width, height)  # from the middle of the image
                found = np.array(list(each["keypoints"].values()))
                assert list(each["keypoints"]) == trip.facts.points
                np.testing.assert_allclose(found, points, atol=near * max(height, width))
        assert "next" in said.stdout or report["task"] in said.stdout

    # --- share ---------------------------------------------------------------------------------------------------

    def test_share_by_url(self, trip: Trip, tmp_path: Path) -> None:
        """A store that `tsds serve` serves is read, looked at, checked and pulled from its URL."""
        with trip.shell.serving(trip.store) as url:
            store = tsds.open(url, cache_dir=tmp_path / "cache")
            assert store.sha256 == tsds.open(trip.store).sha256
            for name in store.splits:
                local = tsds.StoreDataset(trip.store, name)
                for row in range(0, len(local), trip.every):
                    assert torch.equal(tsds.StoreDataset(store, name)[row]["image"], local[row]["image"]), (name, row)
            agree(store, trip.facts, trip.data, every=trip.every)
            batches = tsds.DataLoader(tsds.StoreDataset(store, "train", fields=["key"]), 4, shuffle=True)
            assert sorted(key for batch in batches for key in batch["key"]) == sorted(trip.facts.splits["train"])
            assert trip.shell.json("info", url)["sha256"] == store.sha256
            assert trip.shell.json("stats", url) == trip.shell.json("stats", trip.store)
            trip.shell.run("preview", url, "--out", tmp_path / "sheet.png", "--count", 4)
            trip.shell.run("pull", url, tmp_path / "pulled.tsds")
        assert files_of(tmp_path / "pulled.tsds") == files_of(trip.store)

    def test_one_file_and_a_push(self, trip: Trip, tmp_path: Path) -> None:
        trip.shell.run("pack", trip.store, tmp_path / "packed.zip")
        packed = tsds.open(tmp_path / "packed.zip")
        agree(packed, trip.facts, trip.data, every=4 * trip.every)
        trip.shell.run("unpack", tmp_path / "packed.zip", tmp_path / "unpacked.tsds")
        trip.shell.run("push", trip.store, (tmp_path / "pushed").as_uri())
        for name in ("unpacked.tsds", "pushed"):
            assert files_of(tmp_path / name) == files_of(trip.store)

    # --- grow ----------------------------------------------------------------------------------------------------

    #: Commands that bring a store up to its source, which has grown and changed.
    GROWING: ClassVar[tuple[str, ...]] = ("append", "update")

    @pytest.mark.parametrize("command", GROWING)
    def test_grow(self, trip: Trip, tmp_path: Path, command: str) -> None:
        """The source has grown: `append` adds its new samples. It has also changed: `update` takes that, and adds none.

        All other samples stay as they are, in their rows, and a second call finds nothing to do.
        """
        if trip.data.grow is None or trip.data.change is None:
            pytest.skip("real data do not grow")
        source, store = tmp_path / "photos", tmp_path / "photos.tsds"
        shutil.copytree(trip.source, source)
        shutil.copytree(trip.store, store)
        before = tsds.open(store)
        trip.data.grow(source)
        if command == "update":
            trip.data.change(source)
        later = trip.data.read(source)
        had, has = (
            {key: each for some in of.splits.values() for key, each in some.items()} for of in (trip.facts, later)
        )
        assert has.keys() - had.keys()
        changed = [
            key for key in had.keys() & has.keys() if content(had[key], trip.data) != content(has[key], trip.data)
        ]
        assert bool(changed) == (command == "update")
        said = trip.shell.json(command, store, source, *trip.skip)
        for name, keys in (
            ("updated", {*changed}),
            ("already_there", had.keys() & has.keys() - set(changed)),
            ("added" if command == "append" else "not_added", has.keys() - had.keys()),
        ):
            assert said[name]["count"] == len(keys) and {*said[name]["keys"]} <= keys
        assert said["only_in_store"] == len(had.keys() - has.keys())
        grown = tsds.open(store)
        agree(grown, trip.facts.followed_by(later, adds=command == "append"), trip.data)
        for name in before.splits:
            keys = list(rows_of(before[name]))
            assert list(rows_of(grown[name]))[: len(keys)] == keys
        trip.shell.run("verify", store)
        again = trip.shell.json(command, store, source, *trip.skip)
        assert tsds.open(store).sha256 == grown.sha256, again
        if command == "update":
            trip.shell.run("append", store, source, *trip.skip)
            agree(tsds.open(store), trip.facts.followed_by(later, adds=True), trip.data)

    # --- out, and in again --------------------------------------------------------------------------------------

    def test_export_and_convert_again(self, trip: Trip, tmp_path: Path, draw: random.Random) -> None:
        """Of a format: an oracle reads the exported files, and the store that is made of them has the same samples.

        Class folders have no place for samples without a label beside others. The summary counts them.
        """
        format = draw.choice(trip.data.exports)
        out = tmp_path / format
        said = trip.shell.json("export", trip.store, out, "--to", format)
        expected = {
            split: {key: each for key, each in some.items() if format != "folders" or each.label is not None}
            for split, some in trip.facts.splits.items()
        }
        lost = len(trip.facts.samples) - sum(map(len, expected.values()))
        assert said["samples"] == {split: len(some) for split, some in expected.items()}
        assert said["left_out"].get("samples without a label", 0) == lost
        assert lost == 0 or any("parquet" in note for note in said["notes"])
        if format in ("voc", "coco", "folders"):
            self.exported_agrees(expected, out, format)
        again = tmp_path / "again.tsds"
        options = ("--encoding", trip.data.encoding) if format != "npy" else ()
        trip.shell.run("convert", out, again, *options)
        first, second = tsds.open(trip.store), tsds.open(again)
        if set(first.splits) == set(second.splits) and format != "folders":
            trip.shell.run("compare", trip.store, again, "--by", "row", fails=None)
        for name in second.splits:
            rows = rows_of(first[name])
            kept = digests(first, name, sorted(rows[key] for key in expected[name]))
            assert sorted(digests(second, name, range(len(second[name])))) == sorted(kept), name

    @staticmethod
    def exported_agrees(expected: Mapping[str, Mapping[str, oracle.Sample]], out: Path, format: str) -> None:
        if format == "folders":
            found = oracle.class_folders(out)
        elif format == "voc":
            found = oracle.voc(out)
        else:
            jsons = sorted((out / "annotations").glob("instances_*.json"))
            splits = [path.stem.removeprefix("instances_") for path in jsons]
            texts = {split: f"annotations/captions_{split}.json" for split in splits}
            there = {split: name if (out / name).exists() else None for split, name in texts.items()}
            found = oracle.coco(out, {s: (f"annotations/instances_{s}.json", there[s], s) for s in splits})
        assert found.splits.keys() == expected.keys()
        for name, samples in found.splits.items():
            exported = sorted(description(sample) for sample in samples.values())
            descriptions = sorted(description(sample) for sample in expected[name].values())
            for one, other in zip(exported, descriptions, strict=True):
                assert one == other

    def test_compare(self, trip: Trip, tmp_path: Path) -> None:
        """A repacked store is the same; one that lacks a sample is not, and the difference is named."""
        trip.shell.run("repack", trip.store, tmp_path / "packed.tsds", "--layout", "zarr")
        trip.shell.run("compare", trip.store, tmp_path / "packed.tsds")
        (tmp_path / "drop.json").write_text(json.dumps({"drop": {"train": [2]}}))
        trip.shell.run("filter", trip.store, tmp_path / "less.tsds", "--without", tmp_path / "drop.json")
        key = tsds.open(trip.store)["train"]["key"][2]
        done = trip.shell.run("compare", trip.store, tmp_path / "less.tsds", fails=1)
        assert key in done.stdout


# --- by hand ----------------------------------------------------------------------------------------------------


def fitted(pixels: np.ndarray, size: tuple[int, int], fit: str) -> tuple[np.ndarray, Any, bool]:
    """An image (H, W, C) as docs/sources.md says of `--fit`, by Pillow; what moves points; whether all is inside."""
    (height, width), (to_height, to_width) = pixels.shape[:2], size
    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    canvas = np.zeros((*size, pixels.shape[2]), np.uint8)
    if fit == "stretch":
        part, new, top, left = (0.0, 0.0, float(width), float(height)), size, 0, 0
    elif fit == "crop":
        scale = max(to_height / height, to_width / width)
        w, h = to_width / scale, to_height / scale
        part, new, top, left = ((width - w) / 2, (height - h) / 2, (width + w) / 2, (height + h) / 2), size, 0, 0
    else:
        scale = min(to_height / height, to_width / width)
        part, new = (0.0, 0.0, float(width), float(height)), (round(height * scale), round(width * scale))
        top, left = (to_height - new[0]) // 2, (to_width - new[1]) // 2
    resized = np.asarray(image.resize((new[1], new[0]), Image.Resampling.BILINEAR, box=part)).reshape(*new, -1)
    canvas[top : top + new[0], left : left + new[1]] = resized
    zoom = np.array([new[1] / (part[2] - part[0]), new[0] / (part[3] - part[1])])
    return canvas, (lambda points: (points - part[:2]) * zoom + (left, top)), fit != "crop"


def by_hand(checkpoint: Path, paths: list[Path], data: DataSet) -> torch.Tensor:
    """What a model says of image files that Pillow has decoded and torchvision resized."""
    model, card = tsds.training.load_model(checkpoint)
    mode = "L" if card.vit.channels == 1 else "RGB"
    mean, std = (torch.tensor(values)[:, None, None] for values in (card.mean, card.std))
    images = []
    for path in paths:
        pixels = torch.from_numpy(upright(path, mode).copy()).permute(2, 0, 1)
        resized = v2.functional.resize(pixels, list(card.vit.image_size), antialias=True)
        images.append((resized.float() / 255 - mean) / std)
    with torch.inference_mode():
        return model(torch.stack(images)).float()


def digests(store: tsds.Store, split: str, rows: Iterable[int]) -> list[int]:
    dataset = tsds.StoreDataset(store, split, fields=["image"])
    return [hash(dataset[row]["image"].numpy().tobytes()) for row in rows]


def description(sample: oracle.Sample) -> tuple[Any, ...]:
    """Of a sample whatever an export keeps, without its name: pixels, label, objects, captions."""
    pixels = upright(sample.path)
    things = [
        (
            *(round(float(np.float32(value)), 2) for value in thing.box),
            thing.name or "object",  # what an export calls it
            tuple(
                (name, *(round(float(np.float32(v)), 2) for v in point)) for name, point in sorted(thing.points.items())
            ),
        )
        for thing in sample.things or []
    ]
    return hash(pixels.tobytes()), sample.label or "", things, sample.captions
