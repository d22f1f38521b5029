from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keyword_types
import tensorstore_ds as tsds
from small_stores import class_folders
from tensorstore_ds import ConvertOptions, OptionError
from tensorstore_ds.annex.measuring import BenchOptions, DiagnoseOptions
from tensorstore_ds.annex.training import TrainOptions, ViTOptions
from tensorstore_ds.options import declarations, flat, meant, meant_path, user_path


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("size", 224, (224, 224)),
        ("size", [4, 5], (4, 5)),
        ("size", np.array([4, 5]), (4, 5)),
        ("size", np.int64(4), (4, 4)),
        ("size", torch.tensor(4), (4, 4)),
        ("shard_nbytes", np.int64(2**40), 2**40),
        ("max_pixels", np.uint16(7), 7),
        ("seed", np.array(7), 7),
        ("workers", np.int32(0), 0),
        ("classes", ["cat", "dog"], ("cat", "dog")),
        ("classes", np.array(["cat"]), ("cat",)),
        ("split_into", {"train": np.float32(0.5), "val": 0.5}, {"train": 0.5, "val": 0.5}),
        ("encoding", np.str_("jpeg"), "jpeg"),
        ("images", "~/photos", Path.home() / "photos"),
    ],
)
def test_a_value_becomes_one_of_pythons_own_types(name: str, value: Any, kept: Any) -> None:
    options = ConvertOptions(**{name: value})
    taken = flat(options)[name]
    assert taken == kept
    assert type(taken) is type(kept)
    assert all(type(a) is type(b) for a, b in zip(taken, kept, strict=True)) if isinstance(kept, tuple) else True
    json.dumps(options._deciding())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("size", (4,), "expected a number or (height, width), found (4,)."),
        ("size", (4, 4, 4), "expected a number or (height, width), found (4, 4, 4)."),
        ("size", "8x8", "expected a number or (height, width), found '8x8'."),
        ("size", (True, True), "expected 1 or more, found (True, True)."),
        ("size", True, "expected 1 or more, found (True, True)."),
        ("size", (0, 5), "expected 1 or more, found 0x5."),
        ("quality", True, "expected 1 to 95, found True."),
        ("quality", "90", "expected 1 to 95, found '90'."),
        ("quality", None, "expected 1 to 95, found None."),
        ("shard_nbytes", True, "expected 1 to 9,007,199,254,740,991, found True."),
        ("shard_nbytes", 10**30, f"expected 1 to 9,007,199,254,740,991, found {10**30}."),
        ("max_pixels", 10**400, "found 10000000000000000000... (401 characters)."),
        pytest.param("max_pixels", 10**5000, "found a number of thousands of digits.", id="5000 digits"),
        ("classes", [1, 2], "expected text, found 1."),
        ("classes", [None], "expected text, found None."),
        ("classes", ["a\ud800"], "expected text in UTF-8, found other bytes."),
        ("classes", "cat", "expected a list of names, found cat."),
        ("classes", {"cat", "dog"}, "expected a list of names, found a set."),
        ("classes", 5, "expected a list of names, found 5."),
        ("classes", [], "expected at least one name, found none."),
        ("keypoints", ["nose"], "expected Keypoints, found ['nose']."),
        ("images", 5, "expected a path, found 5."),
        ("license", 5, "expected text, found 5."),
        ("license", b"x", "expected text, found b'x'."),
        ("citation", "\ud800", "expected text in UTF-8, found other bytes."),
        ("split_into", "train=1", "expected names and fractions, such as {'train': 0.9, 'val': 0.1}, found train=1."),
        ("split_into", {1: 1.0}, "expected names and fractions, such as {'train': 0.9, 'val': 0.1}, found {1: 1.0}."),
        ("split_into", {"a": "1"}, "expected a number, found '1'."),
        ("split_into", {"a": float("nan")}, "expected a number, found nan."),
        ("split_into", {"a": 10**400}, "found 10000000000000000000... (401 characters)."),
        ("fit", "cover", "expected one of pad, crop, stretch, found cover."),
        ("encoding", "jpg", "expected one of auto, raw, jpeg, source, found jpg. Did you mean jpeg?"),
        ("encoding", 5, "expected one of auto, raw, jpeg, source, found 5."),
        ("on_error", "x" * 5000, "found xxxxxxxxxxxxxxxxxxxx... (5,000 characters)."),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_when_options_are_made(name: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError) as error:
        ConvertOptions(**{name: value})
    assert str(error.value).startswith(f"`{name}`: ")
    assert str(error.value).endswith(message)
    assert len(str(error.value)) < 200


def test_options_of_training_are_taken_alike() -> None:
    options = TrainOptions(image_size=16, seed=np.int64(3), num_threads=np.int64(1), learning_rate=np.float32(0.5))  # type: ignore[arg-type]
    assert options == TrainOptions(image_size=(16, 16), seed=3, num_threads=1, learning_rate=0.5)
    assert json.loads(json.dumps(options.as_data()))["learning_rate"] == 0.5
    with pytest.raises(OptionError, match=r"`image_size`: expected a number or \(height, width\), found \(16,\)"):
        TrainOptions(image_size=(16,))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="`flip`: expected True or False, found 1"):
        TrainOptions(flip=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("cls", [ConvertOptions, TrainOptions, BenchOptions, DiagnoseOptions])
def test_defaults_are_taken_as_they_are(cls: type[Any]) -> None:
    made = cls()
    for field in dataclasses.fields(made):
        assert getattr(made, field.name) == field.default
        assert type(getattr(made, field.name)) is type(field.default)


def test_what_is_no_object_of_options_is_refused(tmp_path: Path) -> None:
    photos, out = class_folders(tmp_path / "photos", "cat"), tmp_path / "out.tsds"
    with pytest.raises(OptionError, match=r"^options: expected ConvertOptions, found a dict\. Pass options by name, "):
        tsds.convert(photos, out, {"size": (28, 28)})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expected ConvertOptions, found a TrainOptions"):
        tsds.estimate(photos, TrainOptions())  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="expected TrainOptions, found an int"):
        tsds.train(out, 5, out=tmp_path / "run")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == [photos]


def test_a_changed_option_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"^`split`: .* Did you mean `split_into`\?$"):  # its earlier name
        tsds.convert(tmp_path, tmp_path / "out.tsds", split={"train": 1.0})  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=r"^`shard_size`: .* Did you mean `shard_nbytes`\?$"):
        tsds.Writer(tmp_path / "out.tsds", shard_size=3)
    with pytest.raises(OptionError, match="`classes`: expected a list of names, found cat"):
        tsds.Writer(tmp_path / "out.tsds", classes="cat")


def test_numbers_of_a_model_are_pythons() -> None:
    vit = ViTOptions(image_size=8, channels=np.int64(3), patch_size=4, width=8, depth=1, heads=2, mlp_width=8)  # type: ignore[arg-type]
    assert vit.image_size == (8, 8)
    assert type(vit.channels) is int


def test_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    class_folders(tmp_path / "photos", "cat")
    tsds.convert("~/photos", "~/out.tsds", workers=0)
    tsds.repack("~/out.tsds", "~/packed.tsds", layout="zarr")
    assert tsds.open("~/packed.tsds").path == tmp_path / "packed.tsds"
    assert not tsds.verify("~/out.tsds")
    with tsds.Writer("~/written.tsds") as writer:
        writer.append("train", np.zeros((2, 2), np.uint8))
    assert (tmp_path / "written.tsds").is_dir()
    assert user_path("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


def test_what_was_meant_is_asked_only_where_it_is_close() -> None:
    assert meant("sise", ("license", "size")) == " Did you mean size?"
    assert meant("tint", ("fit",)) == ""


@pytest.mark.parametrize(
    ("function", "cls"),
    [
        (tsds.convert, ConvertOptions),
        (tsds.estimate, ConvertOptions),
        (tsds.clusters.plan, ConvertOptions),
        (tsds.clusters.convert_on, ConvertOptions),
        (tsds.Writer, ConvertOptions),
        (tsds.append, ConvertOptions),
        (tsds.update, ConvertOptions),
        (tsds.repack, tsds.conversion.RepackOptions),
        (tsds.check_store, tsds.checking.CheckOptions),
        (tsds.bench, BenchOptions),
        (tsds.diagnose, DiagnoseOptions),
        (tsds.train, TrainOptions),
    ],
)
def test_a_signature_lists_the_options_as_keywords(function: Any, cls: type[Any]) -> None:
    parameters = inspect.signature(function).parameters
    for name, declaration in declarations(cls).items():
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default in (declaration.default, ...)
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    names = [*declarations(cls), *getattr(cls, "SHORT", ())]
    assert [*parameters][-len(names) :] == names


def test_options_as_keywords(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", "cat")
    tsds.convert(photos, tmp_path / "a.tsds", size=8, workers=0)
    tsds.convert(photos, tmp_path / "b.tsds", ConvertOptions(size=(8, 8), workers=0))
    assert tsds.open(tmp_path / "a.tsds").content_sha256 == tsds.open(tmp_path / "b.tsds").content_sha256
    assert tsds.estimate(photos, size=8).nbytes == tsds.estimate(photos, ConvertOptions(size=(8, 8))).nbytes


def test_keywords_override_an_object_of_options(tmp_path: Path) -> None:
    photos = class_folders(tmp_path / "photos", "cat")
    tsds.convert(photos, tmp_path / "a.tsds", ConvertOptions(size=(8, 8), workers=0), size=(4, 6))
    assert tsds.open(tmp_path / "a.tsds")["train"]["image"].shape[1:3] == (4, 6)


def test_a_keyword_that_is_no_option_names_the_nearest(tmp_path: Path) -> None:
    expected = r"^`sise`: expected an option of ConvertOptions, found another name\. Did you mean `size`\?$"
    with pytest.raises(OptionError, match=expected):
        tsds.convert(tmp_path / "photos", tmp_path / "a.tsds", sise=8)  # type: ignore[call-arg]
    with pytest.raises(OptionError, match=r"^`zzz`: .*, found another name\. Choose one of distance, similarity, "):
        tsds.check_store(tmp_path / "a.tsds", zzz=1)  # type: ignore[call-arg]


def test_the_types_of_keywords_are_those_of_the_options() -> None:
    for page in keyword_types.CLASSES:
        assert page.read_text("utf-8") == keyword_types.module(page), "run: python tests/keyword_types.py"


def test_a_missing_path_is_guessed_from_a_thousand_names(tmp_path: Path) -> None:
    for number in range(1200):
        (tmp_path / f"x{number}").touch()
    assert meant_path(tmp_path / "x11991") != "" and meant_path(tmp_path / "photos") == ""
    assert meant_path(tmp_path / "missing" / "photos") == meant_path(tmp_path / "a\0b" / "photos") == ""


def test_a_misspelled_suffix_is_told_from_a_folder_of_the_same_name(tmp_path: Path) -> None:
    for name in ("photos", "photos.tsds"):
        (tmp_path / name).mkdir()
    assert [meant_path(tmp_path / name) for name in ("photos.tsd", "foto.tsds", "photo")] == [
        " Did you mean photos.tsds?",
        " Did you mean photos.tsds?",
        " Did you mean photos?",
    ]
