"""``tsds add`` and ``tsds drop``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds
from small_stores import tsds

ROWS = {"train": 5, "val": 3}
KEYS = [f"{split}/{i}.png" for split, rows in ROWS.items() for i in range(rows)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "s.tsds"
    rng = np.random.default_rng(0)
    with tensorstore_ds.Writer(path, shard_nbytes=200) as writer:
        for key in KEYS:
            writer.append(key.split("/")[0], image=rng.integers(0, 256, (8, 8, 1), np.uint8), key=key)
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "s.tsds"))


def field(store: Path, name: str) -> list[Any]:
    """The values of all splits, in their order."""
    opened = tensorstore_ds.open(store)
    return [row.tolist() if isinstance(row, np.ndarray) else row for split in opened for row in opened[split][name][:]]


def refused(*words: object) -> str:
    """The one line of a command that fails."""
    done = tsds(*words)
    assert done.exit_code == 1 and done.stdout == "" and done.stderr.startswith("tsds: "), done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_an_array_in_the_order_of_the_store(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "Loss 1.npy", np.arange(8, dtype=">f4"))
    done = tsds("add", store, tmp_path / "Loss 1.npy")
    assert done.exit_code == 0, done.stderr
    assert "added: loss_1 (float32)\n" in done.stdout and "  train  5\n  val    3\n" in done.stdout
    assert field(store, "loss_1") == list(range(8))
    np.save(tmp_path / "v.npy", np.ones((3, 2), bool))
    assert tsds("add", store, tmp_path / "v.npy", "--name", "hard", "--split", "val").exit_code == 0
    assert field(store, "hard") == [[255, 255]] * 5 + [[1, 1]] * 3
    assert tensorstore_ds.open(store).manifest.provenance["history"][-1]["source"] == "v.npy"
    assert tsds("verify", store).exit_code == 0


def test_a_table_by_key_in_any_order(store: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(1).permutation(8)
    lines = [f"{KEYS[i]},{i},{i / 4},{'' if i % 2 else f'tag {i}'}" for i in order]
    (tmp_path / "t.csv").write_text("\n".join(["file_name,N,score,tag", *lines]))
    done = tsds("add", store, tmp_path / "t.csv", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["fields"] == {"n": "int64", "score": "float64", "tag": "texts"}
    assert field(store, "n") == list(range(8)) and field(store, "score") == [i / 4 for i in range(8)]
    assert field(store, "tag") == [[] if i % 2 else [f"tag {i}"] for i in range(8)]


def test_labels_from_a_table(store: Path, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("bad\ngood\n")
    lines = [f"{key}\t{'' if i == 2 else ('good', 'bad')[i % 2]}" for i, key in enumerate(KEYS)]
    (tmp_path / "q.tsv").write_text("\n".join(["key\tquality", *lines]))
    assert tsds("add", store, tmp_path / "q.tsv", "--classes", tmp_path / "names.txt").exit_code == 0
    assert field(store, "quality") == [-1 if i == 2 else 1 - i % 2 for i in range(8)]
    assert tensorstore_ds.open(store)["val"].class_counts["quality"] == {"bad": 2, "good": 1}


def test_parquet(store: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    embedding = np.random.default_rng(0).random((8, 3)).astype(np.float32)
    order = np.random.default_rng(2).permutation(8)
    columns = {
        "key": pa.array([KEYS[i] for i in order]),
        "embedding": pa.FixedSizeListArray.from_arrays(embedding[order].ravel(), 3),
        "tags": pa.array([None if i == 3 else ["a", str(i)] for i in order.tolist()]),
        "flag": pa.array([bool(i % 2) for i in order]),
        "small": pa.array([int(i) for i in order], pa.uint8()),
    }
    pq.write_table(pa.table(columns), tmp_path / "e.parquet", row_group_size=3)
    assert tsds("add", store, tmp_path / "e.parquet").exit_code == 0
    opened = tensorstore_ds.open(store)
    assert np.array_equal(np.concatenate([opened[split]["embedding"][:] for split in opened]), embedding)
    assert opened["val"].column("embedding").dtype == np.float32 and opened["val"].column("small").dtype == np.uint8
    assert field(store, "tags") == [[] if i == 3 else ["a", str(i)] for i in range(8)]
    assert field(store, "flag") == [i % 2 for i in range(8)] and field(store, "small") == list(range(8))
    columns = {"key": pa.array(KEYS), "x": pa.array([None, *range(7)], pa.int32())}
    pq.write_table(pa.table(columns), tmp_path / "n.parquet")
    message = refused("add", store, tmp_path / "n.parquet")
    assert "found none for 1 of 8, such as 'train/0.png'. Pass --missing to give them a value" in message
    assert tsds("add", store, tmp_path / "n.parquet", "--missing", "-1").exit_code == 0
    assert field(store, "x") == [-1, *range(7)]
    pq.write_table(pa.table({"key": pa.array(KEYS), "x": pa.array([[[1.5]]] * 8)}), tmp_path / "l.parquet")
    assert "Pass --replace to replace it, or add only the others with --column." in refused(
        "add", store, tmp_path / "e.parquet"
    )
    assert "expected numbers or texts in x, found list<" in refused("add", store, tmp_path / "l.parquet", "--replace")


def test_missing_samples(store: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("key,a,b\ntrain/1.png,1.5,3\ntrain/4.png,,4\n")
    words = ("add", store, tmp_path / "t.csv", "--column", "a")
    message = refused(*words)
    assert "found none for 7 of 8, such as 'train/0.png', 'train/2.png', 'train/3.png'. Pass --missing" in message
    assert tsds(*words, "--missing", "nan").exit_code == 0
    assert np.array_equal(field(store, "a"), [np.nan, 1.5, *[np.nan] * 6], equal_nan=True)
    whole = ("add", store, tmp_path / "t.csv", "--column", "b", "--name", "count")
    assert "--missing: expected a number that b (int64) can hold, found nan." in refused(*whole, "--missing", "nan")
    assert tsds(*whole, "--missing", "-7").exit_code == 0
    assert field(store, "count") == [-7, 3, -7, -7, 4, -7, -7, -7]


def test_keys_of_a_split(tmp_path: Path) -> None:
    path = tmp_path / "s.tsds"
    with tensorstore_ds.Writer(path) as writer:
        for split in ("train", "val"):
            for key in "ab":
                writer.append(split, image=np.zeros((4, 4, 1), np.uint8), key=key)
    (tmp_path / "t.csv").write_text("key,x\nb,2\na,1\n")
    assert "expected keys that are in one split, found 'b' in train and val." in refused(
        "add", path, tmp_path / "t.csv"
    )
    assert tsds("add", path, tmp_path / "t.csv", "--split", "val").exit_code == 0
    assert field(path, "x") == [-(2**63)] * 2 + [1, 2]
    (tmp_path / "u.csv").write_text("key,split,x\nb,val,4\na,train,1\nb,train,2\na,val,3\n")
    assert tsds("add", path, tmp_path / "u.csv", "--replace").exit_code == 0
    assert field(path, "x") == [1, 2, 3, 4]
    assert tsds("add", path, tmp_path / "u.csv", "--replace", "--split", "train").exit_code == 0


@pytest.mark.parametrize(
    ("name", "text", "words", "message"),
    [
        ("t.csv", "key,a\ntrain/0.png,1\ntrain/0.png,2\n", (), "expected each sample once, found 'train/0.png' twice."),
        ("t.csv", "key,a\nx,1\ny,2\n", (), "expected keys of samples, found 2 that no sample has, such as 'x', 'y'."),
        ("t.csv", "id,a\nx,1\n", (), "a column key with the keys of samples, found id, a. Rename the column"),
        ("t.csv", "id,a\nx,1\n", ("--key", "ID"), "--key: expected a column of t.csv: id, a, found ID."),
        ("t.csv", "key,a,b\nx,1,2\n", ("--name", "n"), "one column for a field, found a, b. Choose it with --column"),
        ("t.csv", "key,a\nx,1\n", ("--column", "aa"), "--column: expected columns of t.csv: a, found aa. Did you mean"),
        ("t.csv", "key,a\nx,1,2\n", (), "t.csv:2: expected 2 columns, found 3. Correct the line."),
        ("t.csv", "key,key\nx,1\n", (), "expected a header with two names or more that differ, found key, key."),
        ("t.csv", "", (), "expected a header with two names or more that differ, found none."),
        ("t.csv", "key,image\n" + "".join(f"{k},1\n" for k in KEYS), (), "does not use itself, found image"),
        ("t.json", "{}", (), "expected a file that ends in .npy, .csv, .tsv, .parquet, found t.json."),
        ("t.npy", "\x93NUMPY", (), "expected a .npy file of version 1, 2 or 3"),
        ("t.npy", "x", ("--key", "k"), "--key: expected a table, found t.npy. Leave it out."),
        ("missing.csv", None, (), "missing.csv"),
    ],
)  # fmt: skip
def test_files_that_are_refused(store: Path, tmp_path: Path, name: str, text: Any, words: Any, message: str) -> None:
    before = tensorstore_ds.open(store).sha256
    if text is not None:
        (tmp_path / name).write_text(text)
    assert message in refused("add", store, tmp_path / name, *words)
    assert tensorstore_ds.open(store).sha256 == before


def test_pickled_and_huge_arrays_are_never_loaded(store: Path, tmp_path: Path) -> None:
    class Boom:
        def __reduce__(self) -> Any:
            return (tmp_path / "boom").touch, ()

    np.save(tmp_path / "p.npy", np.array([Boom()] * 8, object), allow_pickle=True)
    assert "found Python objects, which are pickled and so never read" in refused("add", store, tmp_path / "p.npy")
    assert not (tmp_path / "boom").exists()
    np.save(tmp_path / "h.npy", np.zeros(8))
    data = (tmp_path / "h.npy").read_bytes()
    claimed = data.replace(b"(8,), }           ", b"(9999999999999,), }")[: len(data)]
    (tmp_path / "h.npy").write_bytes(claimed)
    assert "h.npy: expected " in refused("add", store, tmp_path / "h.npy")
    np.save(tmp_path / "short.npy", np.zeros(7))
    message = refused("add", store, tmp_path / "short.npy")
    assert (
        "short: expected 8 rows (5 of train, 3 of val), found 7. For one split alone, name it with --split." in message
    )


def test_drop(store: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((8, 100)))
    np.save(tmp_path / "b.npy", np.zeros(8))
    for name in "ab":
        assert tsds("add", store, tmp_path / f"{name}.npy").exit_code == 0
    assert "still on this disk: the next tsds append, update, erase or drop removes them" in tsds("info", store).stdout
    done = tsds("drop", store, "a")
    assert done.exit_code == 0 and "dropped: a\nremoved: " in done.stdout
    assert [*tensorstore_ds.open(store)["val"].fields] == ["image", "size", "key", "b"]
    assert "still on this disk" not in tsds("info", store).stdout
    assert "expected one of the fields image, size, key, b, found 'a'." in refused("drop", store, "a", "b")
    assert tsds("verify", store).exit_code == 0


def test_an_interrupted_drop_is_completed(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.zeros(8))
    tsds("add", store, tmp_path / "a.npy")

    def fail(path: Any, **options: Any) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("shutil.rmtree", fail)
    message = refused("drop", store, "a")
    assert "the fields are dropped from the store, but their old files could not all be removed" in message
    assert "Run the same command again to remove them." in message
    monkeypatch.undo()
    assert "a" not in tensorstore_ds.open(store)["val"].fields
    done = tsds("drop", store, "a")
    assert done.exit_code == 0 and "completed: a\n" in done.stdout
    assert tensorstore_ds.open(store).replaced == (0, 0)
    assert tsds("drop", store, "a").exit_code == 1
