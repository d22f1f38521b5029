"""The table of samples, read by other programs, against the values of the store."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import VALID, tsds as command
from stores import class_folders, store_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

CLASSES = ("cat", "dog")


@pytest.fixture
def full(tmp_path: Path) -> tsds.Store:
    """A store with each kind of field, some of them unknown."""
    rng, samples = np.random.default_rng(3), []
    for i in range(9):
        count = i % 3
        corners = rng.uniform(0, 4, (count, 2))
        samples.append(
            {
                "image": rng.integers(0, 256, (7, 8, 3), np.uint8),
                "label": i % 3 - 1,  # -1 is unknown
                "loss": np.float32(rng.normal()) if i else np.float32("nan"),
                "half": rng.normal(size=3).astype(np.float16),
                "grid": rng.integers(-9, 9, (2, 3), np.int16),
                "count": np.uint8(200 + i),
                "captions": [f"text {i}, \u20ac"] * (i % 3),
                "objects": {
                    "boxes": np.concatenate([corners, corners + 2], axis=1),
                    "labels": rng.integers(0, 2, count),
                    "truncated": rng.integers(0, 2, count),
                },
            }
        )
    return store_of(tmp_path / "full.tsds", samples, CLASSES, shard_nbytes=700)


def expected_rows(store: tsds.Store) -> list[dict[str, Any]]:
    """The values of each sample, read one by one."""
    found = []
    for split in store:
        for row in range(len(store[split])):
            sample = store[split][row]
            objects = sample["objects"]
            found.append(
                {
                    "key": sample["key"],
                    "split": split,
                    "row": row,
                    "label": CLASSES[int(sample["label"])] if sample["label"] >= 0 else None,
                    "loss": float(sample["loss"]),
                    "half": sample["half"].astype(float).tolist(),
                    "grid": sample["grid"].tolist(),
                    "count": int(sample["count"]),
                    "captions": list(sample["captions"]),
                    "objects": [
                        {"box": box.tolist(), "label": CLASSES[int(label)], "truncated": int(truncated)}
                        for box, label, truncated in zip(
                            objects["boxes"], objects["labels"], objects["truncated"], strict=True
                        )
                    ],
                    "height": 7,
                    "width": 8,
                }
            )
    return found


def test_a_row_for_each_sample(full: tsds.Store, tmp_path: Path) -> None:
    done = tsds.exporting.write_table(full.path, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    rows, expected = table.to_pylist(), expected_rows(full)
    assert np.isnan(rows[0].pop("loss")) and np.isnan(expected[0].pop("loss"))
    assert rows == expected
    assert (done.samples, done.left_out) == ({"train": 9}, {})
    frame = pytest.importorskip("pandas").read_parquet(tmp_path / "t.parquet")
    assert frame["key"].tolist() == [row["key"] for row in expected]
    assert [list(each) for each in frame["half"]] == [row["half"] for row in expected]


def test_other_programs_read_it(full: tsds.Store, tmp_path: Path) -> None:
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    place = tmp_path / "t.parquet"
    tsds.exporting.write_table(full.path, place)
    expected = expected_rows(full)
    query = f"SELECT key, o.label, o.box[3] FROM (SELECT key, unnest(objects) AS o FROM '{place}')"  # noqa: S608
    found = duckdb.sql(query).fetchall()
    assert found == [(row["key"], each["label"], each["box"][2]) for row in expected for each in row["objects"]]
    frame = polars.read_parquet(place)
    assert frame["objects"].to_list() == [row["objects"] for row in expected]
    duckdb.sql(f"COPY (SELECT key FROM '{place}' WHERE label = 'dog') TO '{tmp_path / 'dogs.csv'}'")  # noqa: S608
    dogs = [row["row"] for row in expected if row["label"] == "dog"]
    assert tsds.editing.find_keys(full.path, tmp_path / "dogs.csv") == {"train": dogs}


@pytest.mark.parametrize("name", sorted(path.name for path in VALID.glob("*.tsds")))
def test_every_valid_store(name: str, tmp_path: Path) -> None:
    store = tsds.open(VALID / name)
    done = tsds.exporting.write_table(store.path, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.num_rows == sum(done.samples.values()) == sum(len(store[split]) for split in store)
    keys = [split.key(row) for split in (store[each] for each in store) for row in range(len(split))]
    if "key" in table.column_names:
        assert table.column("key").to_pylist() == keys
    for each in store.manifest.fields:
        is_there = each in table.column_names or f"{each}_field" in table.column_names or each in done.left_out
        assert is_there or store.manifest.fields[each].kind in ("image", "size", "key"), each


def test_labels_that_several_classes_can_apply_to(tmp_path: Path) -> None:
    image = np.zeros((3, 3, 3), np.uint8)
    given = [[1, 0, 1], [0, 0, 0], [-1, -1, -1]]
    with tsds.Writer(tmp_path / "s.tsds", classes=["a", "b", "c"]) as writer:
        for some in given:
            names = [name for name, applies in zip("abc", some, strict=True) if applies > 0]
            writer.append("train", image=image, labels=None if -1 in some else names)
    tsds.exporting.write_table(tmp_path / "s.tsds", tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").column("labels").to_pylist() == [["a", "c"], [], None]


@pytest.mark.parametrize("name", ["label-range--above", "label-range--object"])
def test_labels_that_are_no_classes(name: str, tmp_path: Path) -> None:
    with pytest.raises(tsds.FormatError, match=r"expected labels in \[.*, \d\), found \d to \d"):
        tsds.exporting.write_table(VALID.with_name("invalid") / f"{name}.tsds", tmp_path / "t.parquet")


def test_objects_of_outlines_alone(tmp_path: Path) -> None:
    store = VALID.with_name("invalid") / "polygon-range--half.tsds"  # whose polygons are not read
    assert tsds.exporting.write_table(store, tmp_path / "t.parquet").left_out == {"objects.polygons": 1}


def test_refusals(full: tsds.Store, tmp_path: Path) -> None:
    for place, message in (("t.csv", "expected a file that ends in .parquet"), ("full.tsds/t.parquet", "inside")):
        with pytest.raises(tsds.OptionError, match=message):
            tsds.exporting.write_table(full.path, tmp_path / place)
    (tmp_path / "t.parquet").write_bytes(b"")
    with pytest.raises(tsds.errors.StoreExistsError):
        tsds.exporting.write_table(full.path, tmp_path / "t.parquet")
    with pytest.raises(tsds.OptionError, match="expected splits of train, found 'x'"):
        tsds.exporting.write_table(full.path, tmp_path / "u.parquet", splits=["x"])
    assert not (tmp_path / "u.parquet").exists()


# --- keys that come back ------------------------------------------------------------------------------------------


def test_lists_of_keys(tmp_path: Path) -> None:
    tsds.convert(class_folders(tmp_path / "photos"), tmp_path / "s.tsds", workers=0)
    store, wanted = tsds.open(tmp_path / "s.tsds"), [("train", 6), ("train", 1), ("test", 3)]
    keys = [(store[split].key(row), split) for split, row in wanted]
    expected = {split: sorted(row for name, row in wanted if name == split) for split in store}
    (tmp_path / "k.txt").write_text("\ufeff" + "\n\n".join(key for key, _ in keys) + "\n")
    for name, columns in (("one.csv", 1), ("two.csv", 2), ("two.tsv", 2)):
        with (tmp_path / name).open("w", newline="") as file:
            rows = [("key", "split")[:columns], *(each[:columns] for each in keys)]
            csv.writer(file, delimiter="\t" if name.endswith("tsv") else ",").writerows(rows)
    table = {"split": [split for _, split in keys], "file_name": [key for key, _ in keys], "x": [1.5] * 3}
    pq.write_table(pa.table(table), tmp_path / "k.parquet")
    for name in ("k.txt", "one.csv", "two.csv", "two.tsv", "k.parquet"):
        assert tsds.editing.find_keys(store.path, tmp_path / name) == expected, name
        out = tmp_path / f"{name}.tsds"
        assert command("filter", store.path, out, "--keys", tmp_path / name).exit_code == 0
        made = tsds.open(out)
        assert {made[each].key(row) for each in made for row in range(len(made[each]))} == {key for key, _ in keys}
    both = tsds.editing.filter_store(store.path, tmp_path / "b.tsds", "label == 'bee'", rows={"train": [0, 1, 6]})
    bees = [row for row in (0, 1, 6) if store["train"]["label"][row] == 1]
    assert both.rows["train"] == len(bees)


def test_lists_that_name_no_samples(tmp_path: Path) -> None:
    tsds.convert(class_folders(tmp_path / "photos"), tmp_path / "s.tsds", workers=0)
    bad = {
        "none.txt": ("train/ant/77.png\n", "expected keys of samples, found 1 that no sample has"),
        "split.csv": ("key,split\ntrain/ant/0.png,nowhere\n", "nowhere"),
        "other.csv": ("key,split\ntrain/ant/0.png,test\n", "no sample has"),
        "column.csv": ("name_of_it\nx\n", "expected a column key"),
    }
    for name, (content, message) in bad.items():
        (tmp_path / name).write_text(content)
        with pytest.raises(tsds.TsdsError, match=message):
            tsds.editing.find_keys(tmp_path / "s.tsds", tmp_path / name)
    done = command("view", tmp_path / "s.tsds", "--keys", tmp_path / "none.txt", "--no-open")
    assert done.exit_code == 1 and "no sample has" in done.stderr


def test_the_command(tmp_path: Path) -> None:
    tsds.convert(class_folders(tmp_path / "photos"), tmp_path / "s.tsds", workers=0)
    done = command("table", tmp_path / "s.tsds", tmp_path / "t.parquet", "--split", "test")
    assert done.exit_code == 0 and done.stdout.startswith(f"{tmp_path / 't.parquet'}  8 samples, ")
    assert set(pq.read_table(tmp_path / "t.parquet").column("split").to_pylist()) == {"test"}
    found = json.loads(command("table", tmp_path / "s.tsds", tmp_path / "u.parquet", "--json").stdout)
    assert found["samples"] == {"train": 8, "test": 8}


def test_a_split_without_objects_of_one_keypoint(tmp_path: Path) -> None:
    image = np.zeros((3, 3, 3), np.uint8)
    with tsds.Writer(tmp_path / "s.tsds") as writer:
        for split, count in (("train", 1), ("val", 0)):
            values = {"boxes": np.ones((count, 4)) * [0, 0, 2, 2], "keypoints": np.ones((count, 1, 2))}
            writer.append(split, image=image, **values, visibility=np.full((count, 1), 2))
    tsds.exporting.write_table(tmp_path / "s.tsds", tmp_path / "t.parquet")
    rows = pq.read_table(tmp_path / "t.parquet").column("objects").to_pylist()
    assert [[each["visibility"] for each in row] for row in rows] == [[2], []]
