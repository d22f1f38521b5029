"""What stays together when a data set is divided, from a source and in a store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from labelling_files import tar, write
from small_stores import class_folders, tsds as command
from stores import png_bytes, store_of
from tensorstore_ds.conversion.groups import key_group
from tensorstore_ds.errors import OptionError

SHARES = {"train": 0.6, "val": 0.4}


def scans(root: Path, patients: int = 10, each: int = 4) -> Path:
    """Class folders with several images of each patient."""
    class_folders(root, "ill", "well", count=patients * each // 2)
    for i, path in enumerate(sorted(root.rglob("*.png"))):
        path.rename(path.with_name(f"patient{i // each:02d}_{i}.png"))
    return root


def keys(store: tsds.Store) -> dict[str, list[str]]:
    return {name: [store[name]["key"][row] for row in range(len(store[name]))] for name in store}


def convert(path: Path, out: Path, **options: Any) -> tsds.Store:
    tsds.convert(path, out, tsds.ConvertOptions(workers=0, split_into=SHARES, **options))
    return tsds.open(out)


def test_by_a_pattern_in_the_key(tmp_path: Path) -> None:
    store = convert(scans(tmp_path / "s"), tmp_path / "o.tsds", split_by=r"patient(\d+)")
    patients = {name: {key.split("patient")[1][:2] for key in each} for name, each in keys(store).items()}
    assert {name: len(each) for name, each in keys(store).items()} == {"train": 24, "val": 16}
    assert not patients["train"] & patients["val"]


def test_by_folder(tmp_path: Path) -> None:
    store = convert(scans(tmp_path / "s"), tmp_path / "o.tsds", split_by="folder")
    assert {len({key.partition("/")[0] for key in each}) for each in keys(store).values()} == {1}


def test_by_files_of_equal_bytes(tmp_path: Path) -> None:
    root = scans(tmp_path / "s")
    for path in sorted(root.rglob("*.png")):
        shutil.copy(path, path.with_name(f"copy{path.name}"))
    store = convert(root, tmp_path / "o.tsds", split_by="duplicates")
    found = {name: {key.replace("copy", "") for key in each} for name, each in keys(store).items()}
    assert not found["train"] & found["val"]
    assert all(2 * len(found[name]) == len(each) for name, each in keys(store).items())


def test_by_images_of_equal_bytes_with_an_annotation_each(tmp_path: Path) -> None:
    box = "<object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>4</xmax><ymax>4</ymax></bndbox></object>"
    for i in range(20):
        image = png_bytes(np.full((6, 6), i // 2, np.uint8))
        write(tmp_path / "s", {f"{i}.png": image, f"{i}.xml": f"<annotation>{box.format('ab'[i % 2])}</annotation>"})
    found = keys(convert(tmp_path / "s", tmp_path / "o.tsds", split_by="duplicates"))
    assert {name: len(each) for name, each in found.items()} == {"train": 12, "val": 8}
    groups = {name: {int(key.removesuffix(".png")) // 2 for key in each} for name, each in found.items()}
    assert not groups["train"] & groups["val"]


def test_a_store_is_divided_by_groups(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (10, 6, 6, 3), np.uint8)
    samples = [{"image": images[i % 10], "site": np.int64(i // 6)} for i in range(30)]
    path = store_of(tmp_path / "s.tsds", samples).path
    for by, group in (
        ("site", lambda key: int(key.split("/")[1]) // 6),
        ("duplicates", lambda key: int(key.split("/")[1]) % 10),
        (r"\d$", lambda key: key[-1]),
    ):
        out = tmp_path / f"{len(list(tmp_path.iterdir()))}.tsds"
        tsds.editing.split_store(path, out, SHARES, group_by=by)
        train, val = ({group(key) for key in each} for each in keys(tsds.open(out)).values())
        assert train and val and not train & val, by


def test_keys_without_a_match_are_groups_of_their_own() -> None:
    group = key_group(r"patient(\d+)", "group_by")
    assert [group(key) for key in ("patient1_a", "patient1_b", "other")] == ["1", "1", "other"]


@pytest.mark.parametrize("pattern", ["(", "[", "x" * 5000])
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(OptionError, match="`split_by`: expected folder, duplicates or a regular expression, found "):
        convert(scans(tmp_path / "s"), tmp_path / "o.tsds", split_by=pattern)
    assert not list(tmp_path.glob("o.tsds*"))


# --- columns ------------------------------------------------------------------------------------------------------


def visits(folder: Path, how: str) -> Any:
    """40 images of ten patients, whose names do not say the patient: the value of a column, or none for the last."""
    names = [f"{i:02d}.png" for i in range(40)]
    patients = ["" if i == 39 else f"p{i % 10}" for i in range(40)]
    folder.mkdir()
    files = {name: png_bytes(np.full((4, 4, 3), i, np.uint8)) for i, name in enumerate(names)}
    if how in ("list", "frame"):
        for name, data in files.items():
            (folder / name).write_bytes(data)
    if how == "list":
        rows = ["path,label,Patient No", *(f"{name},{'ab'[i % 2]},{patients[i]}" for i, name in enumerate(names))]
        (folder / "list.csv").write_text("\n".join(rows))
        return folder / "list.csv"
    if how == "frame":
        frame = pytest.importorskip("pandas").DataFrame({"path": names, "Patient No": patients})
        return frame.replace("", None)
    if how == "parquet":
        pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        images = [{"bytes": data, "path": name} for name, data in files.items()]
        columns = {"image": images, "Patient No": [each or None for each in patients], "boxes": [[1]] * 40}
        pq.write_table(pa.table(columns), folder / "x.parquet", row_group_size=7)
        return folder / "x.parquet"
    members = list[tuple[str, bytes]]()
    for i, each in enumerate(files.items()):
        described = {"Patient No": patients[i] or None, "boxes": [[0, 0, 2, 2], [1, 1, 3, 3]], "labels": [0, 1]}
        members += [each, *([] if i == 38 else [(f"{i:02d}.json", json.dumps(described).encode())])]
    return write(folder, {"0.tar": tar(*members)}) / "0.tar"


@pytest.mark.parametrize("how", ["list", "frame", "parquet", "webdataset", "crops", "joined"])
def test_by_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """All of a patient go together; those of none are divided one by one; the column is no field."""
    monkeypatch.chdir(tmp_path)
    source = visits(tmp_path / "s", {"crops": "webdataset", "joined": "list"}.get(how, how))
    options: dict[str, Any] = {"images": tmp_path / "s"} if how == "frame" else {}
    if how == "crops":
        options["cut"] = tsds.conversion.ObjectCrops()
    if how == "joined":
        source = tsds.Sources(source.parent, visits(tmp_path / "t", "webdataset"))
    done = tsds.convert(
        source,
        tmp_path / "o.tsds",
        tsds.ConvertOptions(workers=0, split_into=SHARES, split_by="column:Patient No", **options),
    )
    found = {name: [each.split("#")[0][-6:] for each in own] for name, own in keys(tsds.open(done.path)).items()}
    numbers = {name: {int(each[:2]) for each in own if each[:2] < "38"} for name, own in found.items()}
    train, val = ({number % 10 for number in each} for each in numbers.values())
    assert train | val == set(range(10)) and not train & val
    count = {"crops": 78, "joined": 80}.get(how, 40)
    assert sum(map(len, found.values())) == count
    assert "patient_no" not in tsds.open(done.path).manifest.fields


@pytest.mark.parametrize(
    ("how", "column", "message"),
    [
        ("list", "patient", "expected a column of list.csv, found 'patient': path, label, Patient No are there."),
        ("frame", "x", "found 'x': path, Patient No are there."),
        ("parquet", "Patient_No", r"found 'Patient_No': .* are there. Did you mean Patient No\?"),
        ("parquet", "image", "expected numbers or texts in the column image, found struct"),
        ("webdataset", "", "expected a column of 0.tar, found '': Patient No, boxes, labels are there."),
        ("webdataset", "boxes", r"0.tar: 00.png: expected a number or a text as boxes, found list"),
        ("folders", "x", "expected a column of s, found 'x': the format folders has none."),
    ],
)
def test_columns_that_are_none(tmp_path: Path, how: str, column: str, message: str) -> None:
    source = scans(tmp_path / "s") if how == "folders" else visits(tmp_path / "s", how)
    images = tmp_path / "s" if how == "frame" else None
    options = tsds.ConvertOptions(workers=0, split_into=SHARES, split_by=f"column:{column}", images=images)
    with pytest.raises(OptionError, match=f"^`split_by`: .*{message}"):
        tsds.convert(source, tmp_path / "o.tsds", options)


def test_a_store_has_no_columns(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s.tsds", [np.zeros((4, 4, 3), np.uint8)] * 3)
    with pytest.raises(OptionError, match=r"`group_by`: expected .*found 'column:key'"):
        tsds.editing.split_store(store.path, tmp_path / "o.tsds", SHARES, group_by="column:key")


def test_split_by_without_split_and_without_files(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`split_by` belongs to `split_into`"):
        tsds.ConvertOptions(split_by="folder")
    images = np.zeros((6, 4, 4), np.uint8)
    np.save(tmp_path / "a.npy", images)
    with pytest.raises(OptionError, match="share all files"):
        convert(tmp_path / "a.npy", tmp_path / "o.tsds", split_by="duplicates")


def test_the_command(tmp_path: Path) -> None:
    convert(scans(tmp_path / "s"), tmp_path / "o.tsds")
    done = command("split", tmp_path / "o.tsds", tmp_path / "p.tsds", "a=0.5,b=0.5", "--group-by", "patient([0-9]+)")
    assert done.exit_code == 0, done.output
    first, second = (
        {key.split("patient")[1][:2] for key in each} for each in keys(tsds.open(tmp_path / "p.tsds")).values()
    )
    assert not first & second


def test_a_grouping_that_finds_nothing_is_refused(tmp_path: Path) -> None:
    """It would keep nothing together, and nobody would notice."""
    source = class_folders(tmp_path / "src", "ant", "bee")
    for by, hint in (("folders", "Did you mean folder"), ("patient", "found 'patient'")):
        options = tsds.ConvertOptions(workers=0, split_into={"a": 0.5, "b": 0.5}, split_by=by)
        with pytest.raises(tsds.OptionError, match=rf"`split_by`: expected an expression that finds .*{hint}"):
            tsds.convert(source, tmp_path / "o.tsds", options)
    tsds.convert(source, tmp_path / "s.tsds", tsds.ConvertOptions(workers=0))
    with pytest.raises(tsds.OptionError, match=r"`group_by`: expected an expression that finds .*Did you mean label"):
        tsds.editing.split_store(tmp_path / "s.tsds", tmp_path / "x.tsds", {"a": 0.5, "b": 0.5}, group_by="labels")


def test_fewer_groups_than_splits(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "src", "cat", count=4)
    options = tsds.ConvertOptions(workers=0, split_into={"train": 0.5, "val": 0.5}, split_by="folder")
    with pytest.raises(tsds.OptionError, match=r"found none: the 4 samples in train are 1 group, which stay whole"):
        tsds.convert(root, tmp_path / "s.tsds", options)
