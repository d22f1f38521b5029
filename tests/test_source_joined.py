"""Several sources as one store, and classes with other names: compared with each source converted alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import write
from small_stores import class_folders, tsds as command, voc
from stores import contents, interrupted, png_bytes
from tensorstore_ds.errors import OptionError, SourceError

SIZE = {"size": (16, 16)}


def convert(out: Path, *paths: Path, **options: Any) -> tsds.Store:
    source = tsds.Sources(*paths) if len(paths) > 1 else paths[0]
    tsds.convert(source, out, tsds.ConvertOptions(**{**SIZE, "workers": 0, **options}))
    return tsds.open(out)


def faces(root: Path, *points: tuple[str, int], label: str = "") -> Path:
    """One image with one box and its parts."""
    parts = "".join(f"<part name='{name}' x='{x}' y='3'/>" for name, x in points)
    box = f"<box top='1' left='1' width='8' height='8'>{label and f'<label>{label}</label>'}{parts}</box>"
    image = png_bytes(np.zeros((12, 12, 3), np.uint8))
    return write(
        root, {"f.xml": f"<dataset><images><image file='f.png'>{box}</image></images></dataset>", "f.png": image}
    )


def keys(split: tsds.Split) -> list[str]:
    return [split["key"][row] for row in range(len(split))]


def test_samples_are_those_of_each_source_with_the_classes_of_all(tmp_path: Path) -> None:
    first, second = class_folders(tmp_path / "a", "cat", "dog"), class_folders(tmp_path / "b", "bird", "cat")
    joined = convert(tmp_path / "joined.tsds", first, second)
    alone = [convert(tmp_path / f"{path.name}.tsds", path)["train"] for path in (first, second)]
    split = joined["train"]
    assert joined.manifest.fields["label"].classes == ("cat", "dog", "bird")
    assert keys(split) == [f"{name}/{key}" for name, each in zip("ab", alone, strict=True) for key in keys(each)]
    np.testing.assert_array_equal(split["image"][:], np.concatenate([each["image"][:] for each in alone]))
    names = [each.fields["label"].classes[label] for each in alone for label in each["label"][:]]
    assert [joined.manifest.fields["label"].classes[label] for label in split["label"][:]] == names
    assert joined.manifest.provenance["source"] == "a + b"


def test_a_division_keeps_each_class_in_its_share(tmp_path: Path) -> None:
    sources = [class_folders(tmp_path / name, "cat", "dog", count=10) for name in "ab"]
    store = convert(tmp_path / "out.tsds", *sources, split_into={"train": 0.8, "val": 0.2})
    assert {name: np.bincount(store[name]["label"][:]).tolist() for name in store} == {"train": [16, 16], "val": [4, 4]}


def test_keypoints_come_to_the_places_of_their_names(tmp_path: Path) -> None:
    first = faces(tmp_path / "a", ("left_eye", 2), ("right_eye", 6), label="face")
    second = faces(tmp_path / "b", ("nose", 4), ("right_eye", 7), label="face")
    store = convert(tmp_path / "out.tsds", first, second, size=(12, 12))
    field = store.manifest.fields["objects"]
    assert (field.keypoints, field.flip_pairs) == (("left_eye", "right_eye", "nose"), ((0, 1),))
    found = np.concatenate([store["train"]["objects"][row]["keypoints"] for row in range(2)])[:, :, 0]
    np.testing.assert_array_equal(found, [[2, 6, np.nan], [np.nan, 7, 4]])


def test_problems_say_which_source(tmp_path: Path) -> None:
    good, bad = class_folders(tmp_path / "good", "cat"), class_folders(tmp_path / "bad", "cat")
    next(bad.rglob("*.png")).write_bytes(b"no image")
    with pytest.raises(SourceError, match=r"^bad/cat/"):
        convert(tmp_path / "out.tsds", good, bad)
    assert len(convert(tmp_path / "out.tsds", good, bad, on_error="skip")["train"]) == 5


def test_objects_without_labels_get_the_class_unknown(tmp_path: Path) -> None:
    boxes = voc(tmp_path / "boxes", "a")
    dots = faces(tmp_path / "dots")
    store = convert(tmp_path / "out.tsds", boxes, dots)
    assert store.manifest.fields["objects"].classes == ("cat", "unknown")
    assert [store["train"]["objects"][row]["labels"].tolist() for row in range(2)] == [[0], [1]]
    assert tsds.verify(tmp_path / "out.tsds") == []


def test_sources_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    boxes = voc(tmp_path / "boxes", "a")
    dots = faces(tmp_path / "dots")
    with pytest.raises(OptionError, match="expected two sources or more, found 1"):
        tsds.Sources(boxes)
    with pytest.raises(OptionError, match="`images` is the folder of one source"):
        convert(tmp_path / "out.tsds", boxes, dots, images=tmp_path)
    with pytest.raises(SourceError, match="there is no such file"):
        convert(tmp_path / "out.tsds", boxes, tmp_path / "nowhere")
    assert not list(tmp_path.glob("out.tsds*"))


def test_an_interrupted_conversion_goes_on(tmp_path: Path) -> None:
    sources = [class_folders(tmp_path / name, "cat", "dog", count=4) for name in "ab"]
    joined, options = tsds.Sources(*sources), tsds.ConvertOptions(**SIZE, workers=0, shard_nbytes=16 * 16 * 3 * 4)
    tsds.convert(joined, tmp_path / "whole.tsds", options)
    interrupted(joined, tmp_path / "out.tsds", 16, options)
    assert tsds.convert(joined, tmp_path / "out.tsds", options).resumed == 3
    assert contents(tmp_path / "out.tsds") == contents(tmp_path / "whole.tsds")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_class_map_merges_renames_and_removes(tmp_path: Path, workers: int) -> None:
    source = class_folders(tmp_path / "a", "cat", "dog", "kitten")
    store = convert(tmp_path / "out.tsds", source, class_map={"kitten": "cat", "dog": ""}, workers=workers)
    assert store.manifest.fields["label"].classes == ("cat",)
    assert store["train"]["label"][:].tolist() == [0] * 3 + [-1] * 3 + [0] * 3
    assert keys(store["train"])[0] == "cat/0.png"
    boxes = voc(tmp_path / "boxes", "a", boxes=(("cat", 1, 2, 8, 9), ("dog", 2, 2, 9, 9)))
    store = convert(tmp_path / "boxes.tsds", boxes, class_map={"cat": "", "dog": "hound"}, workers=workers)
    assert store.manifest.fields["objects"].classes == ("hound",)
    objects = store["train"]["objects"][0]
    assert (objects["labels"].tolist(), len(objects["boxes"])) == ([0], 1)


def test_a_class_map_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "a", "cat")
    with pytest.raises(OptionError, match=r"`class_map`: .* source \(cat\), found 'cats'. Did you mean cat\?"):
        convert(tmp_path / "out.tsds", source, class_map={"cats": "cat"})
    with pytest.raises(OptionError, match="`class_map`: expected classes that stay in label, found none"):
        convert(tmp_path / "out.tsds", source, class_map={"cat": ""})
    with pytest.raises(OptionError, match="`class_map`: expected old and new names"):
        tsds.ConvertOptions(class_map={})


def test_a_plan_knows_the_class_map(tmp_path: Path) -> None:
    source, out = class_folders(tmp_path / "a", "cat", "dog"), tmp_path / "out.tsds"
    options = tsds.ConvertOptions(**SIZE, class_map={"dog": "cat"})
    tsds.clusters.plan(source, out, options, tasks=1)
    tsds.clusters.convert_task(out, 0, workers=0)
    tsds.clusters.commit(out)
    assert tsds.open(out)["train"]["label"][:].tolist() == [0] * 6


def test_the_command(tmp_path: Path) -> None:
    sources = [class_folders(tmp_path / name, "cat", "dog") for name in "ab"]
    (tmp_path / "names.txt").write_text("dog = cat\n")
    words = ("--size", 8, "--class-map", tmp_path / "names.txt", "--workers", 0)
    done = command("convert", *sources, tmp_path / "o.tsds", *words)
    assert done.exit_code == 0, done.output
    assert tsds.open(tmp_path / "o.tsds").manifest.fields["label"].classes == ("cat",)
    dry = command("convert", *sources, tmp_path / "p.tsds", "--dry-run")
    assert dry.exit_code == 0 and "joined, 12 samples" in dry.output
    refused = command("convert", *sources, tmp_path / "p.tsds", "--engine", "dask")
    assert refused.exit_code == 2 and "takes one SRC" in refused.output
    assert "Missing argument 'OUT'" in command("convert", sources[0]).output
    inside = command("convert", *sources, sources[0] / "o.tsds")
    assert inside.exit_code == 1 and "lies inside the source" in inside.output


def test_the_same_source_twice_is_refused(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "faces", "cat", "dog")
    for other in (source, tmp_path / "x" / ".." / "faces", f"{source}/"):
        with pytest.raises(OptionError, match=r"which are the same\. Leave one of them out"):
            tsds.Sources(source, other)
    done = command("convert", source, source, tmp_path / "o.tsds")
    assert done.exit_code == 1 and "which are the same" in done.output
    (tmp_path / "all").mkdir()
    source = class_folders(tmp_path / "all" / "cat", "cat", "dog")
    inner = class_folders(tmp_path / "all" / "cat" / "more", "cat")
    summary = tsds.convert(tsds.Sources(source, inner), tmp_path / "p.tsds", workers=0)
    assert f"{inner} lies inside {source}: its images may be stored twice." in summary.notes


@pytest.mark.parametrize("names", [("train", "val"), ("Train", "test", "val")])
def test_sources_named_as_splits_are_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    sources = [class_folders(tmp_path / name, "cat", "dog", count=i + 1) for i, name in enumerate(names)]
    store = convert(tmp_path / "out.tsds", *sources)
    assert {name: len(store[name]) for name in store} == {name.lower(): 2 * (i + 1) for i, name in enumerate(names)}
    for name, source in zip(names, sources, strict=True):
        alone = convert(tmp_path / f"{name}.tsds", source)["train"]
        split = store[name.lower()]
        np.testing.assert_array_equal(split["image"][:], alone["image"][:])
        np.testing.assert_array_equal(split["label"][:], alone["label"][:])
        assert keys(split) == [f"{name}/{key}" for key in keys(alone)]


def test_sources_with_other_names_are_one_split(tmp_path: Path) -> None:
    sources = [class_folders(tmp_path / name, "cat", "dog", count=2) for name in ("train", "more")]
    store = convert(tmp_path / "out.tsds", *sources)
    assert {name: len(store[name]) for name in store} == {"train": 8}


def test_names_that_differ_in_case_become_one_by_the_map(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "src", "Dog", "dog", "cat", count=2)
    with pytest.raises(tsds.SourceError, match=r"found Dog and dog\. Make them one with `class_map`"):
        convert(tmp_path / "a.tsds", source)
    split = convert(tmp_path / "b.tsds", source, class_map={"Dog": "dog"})["train"]
    assert split.fields["label"].classes == ("dog", "cat")
    expected = {"Dog": 0, "dog": 0, "cat": 1}
    assert {split[i]["key"]: int(split["label"][i]) for i in range(6)} == {
        f"{name}/{i}.png": label for name, label in expected.items() for i in range(2)
    }
    with pytest.raises(tsds.SourceError, match="found cat and CAT"):
        convert(tmp_path / "c.tsds", source, class_map={"Dog": "dog", "dog": "CAT"})
