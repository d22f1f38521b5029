"""croissant.json, by mlcroissant: its rules, and its records. Nothing is fetched: no process here has a network."""

from __future__ import annotations

import hashlib
import json
import socket
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds as tsds
from small_stores import voc
from stores import class_folders, store_of
from tensorstore_ds.annex.publishing import croissant as croissant_module

ANSWERS = "\n".join(
    f'{name}: "The answer: {name}"'
    for name in (
        *("title", "description", "contact", "collection", "preprocessing", "annotation", "use_cases", "limitations"),
        *("biases", "sensitive_information", "social_impact", "maintenance"),
    )
)
ANSWERS += (
    '\ncreators: ["Doe, Jane", "Pets e.V."]\nurl: https://example.org/pets\nversion: 1.2.0\npublished: 2026-11-02\n'
)

#: What NeurIPS asks for.
RESPONSIBLE = (
    *("dataLimitations", "dataBiases", "personalSensitiveInformation", "dataUseCases", "dataSocialImpact"),
    *("dataCollection", "dataPreprocessingProtocol", "dataAnnotationProtocol", "dataReleaseMaintenancePlan"),
)


@pytest.fixture(scope="module")
def mlcroissant() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlcroissant
    return mlcroissant


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something was to be fetched")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def described(store: Path, **options: Any) -> tuple[Path, dict[str, Any]]:
    """The folder of the papers, and what its croissant.json says."""
    answers = store.parent / "answers.yaml"
    answers.write_text(ANSWERS)
    made = tsds.card(store, answers=answers, croissant=True, **options)
    return made.path, json.loads((made.path / "croissant.json").read_text())


def validated(mlcroissant: Any, folder: Path, *, warns: bool = True) -> Any:
    """With `warns`, license and citation are missing, of which mlcroissant warns only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = mlcroissant.Dataset(folder / "croissant.json")
    issues = dataset.metadata.ctx.issues
    assert not issues.errors and (warns or not issues.warnings), issues.report()
    return dataset


def records(dataset: Any, name: str) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(dataset.records(name))


def plain(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text


def test_a_classification_store(tmp_path: Path, mlcroissant: Any) -> None:
    tsds.convert(class_folders(tmp_path / "source"), tmp_path / "pets.tsds", tsds.ConvertOptions(workers=0))
    store = tsds.annotate(tmp_path / "pets.tsds", license="CC0-1.0", citation="Doe, 2026")
    folder, found = described(store.path, strict=True)
    assert (found["license"], found["citeAs"]) == ("https://spdx.org/licenses/CC0-1.0.html", "Doe, 2026")
    assert all(found[f"rai:{name}"] for name in RESPONSIBLE)
    dataset = validated(mlcroissant, folder, warns=False)
    assert dataset.metadata.data_biases == ["The answer: biases"]
    assert {plain(r["splits/name"]): r["splits/samples"] for r in records(dataset, "splits")} == {"train": 8, "test": 8}
    assert [plain(row["classes-label/name"]) for row in records(dataset, "classes-label")] == ["ant", "bee"]
    rows = records(dataset, "preview-train")
    split = store["train"]
    assert [row["preview-train/label"] for row in rows] == split["label"].take(range(8)).tolist()
    for row, pixels in zip(rows, split["image"].take(range(8)), strict=True):  # tiny images lose nothing
        assert np.array_equal(np.asarray(row["preview-train/image"].convert("L")), pixels[:, :, 0])


def test_a_detection_store(tmp_path: Path, mlcroissant: Any) -> None:
    store = tmp_path / "v.tsds"
    tsds.convert(voc(tmp_path / "voc", "a", "b"), store, tsds.ConvertOptions(workers=0))
    folder, _ = described(store)
    dataset = validated(mlcroissant, folder)
    split = tsds.open(store).splits[0]
    rows = records(dataset, f"preview-{split}")
    boxes = tsds.open(store)[split]["objects"][0]["boxes"]
    assert np.allclose(rows[0][f"preview-{split}/objects/bbox"], np.hstack([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]]))
    assert rows[0][f"preview-{split}/objects/category"] == [0]
    assert isinstance(rows[0][f"preview-{split}/drawn"], Image.Image)


def test_every_file_of_the_store_is_listed_as_it_is(tmp_path: Path) -> None:
    store = store_of(tmp_path / "my store.tsds", [{"image": np.zeros((4, 4, 3), np.uint8)}] * 3)
    folder, found = described(store.path)
    files = {each["contentUrl"]: each for each in found["distribution"]}
    # The layout of a repository: the papers, and the store beside them under its shared name.
    (folder / "my-store.tsds").symlink_to(store.path)
    expected = {f"my-store.tsds/{p.relative_to(store.path)}" for p in store.path.rglob("*") if p.is_file()}
    assert files.keys() == expected | {"preview/train.parquet"}
    for path, each in files.items():
        data = (folder / path).read_bytes()
        assert each["contentSize"] == f"{len(data)} B", path
        assert each["sha256"] == hashlib.sha256(data).hexdigest(), path


def test_of_many_files_each_field_is_a_set(tmp_path: Path, mlcroissant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(croissant_module, "_MOST_FILES", 3)
    store = store_of(tmp_path / "s.tsds", [{"image": np.zeros((4, 4, 3), np.uint8), "label": 0}] * 3, ["a"])
    folder, found = described(store.path)
    validated(mlcroissant, folder)
    kinds = [each["@type"] for each in found["distribution"]]
    assert "cr:FileSet" in kinds
    (folder / "s.tsds").symlink_to(store.path)
    sets = [each["includes"] for each in found["distribution"] if each["@type"] == "cr:FileSet"]
    listed = {each["contentUrl"] for each in found["distribution"] if each["@type"] == "cr:FileObject"}
    for path in (p for p in store.path.rglob("*") if p.is_file()):
        name = f"s.tsds/{path.relative_to(store.path)}"
        assert name in listed or any(
            Path(name).match(each.replace("**", "*/" * n + "*")) for each in sets for n in range(6)
        )


def test_captions(tmp_path: Path, mlcroissant: Any) -> None:
    pixels = np.zeros((8, 10, 3), np.uint8)
    given = [["a cat", "ein Kater"], [], ["猫"]]
    store = store_of(tmp_path / "s.tsds", [{"image": pixels, "captions": texts} for texts in given])
    folder, _ = described(store.path)
    rows = records(validated(mlcroissant, folder), "preview-train")
    assert [[plain(text) for text in row["preview-train/captions"]] for row in rows] == given
