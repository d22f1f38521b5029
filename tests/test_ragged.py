"""Fields with any number of rows for each sample: as given, wherever stores are written, joined, read and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tensorstore_ds as tsds
from small_stores import tsds as command
from stores import Samples, store_of
from tensorstore_ds.conversion.convert import convert_source
from tensorstore_ds.format.kinds import RaggedField
from tensorstore_ds.format.schema import ArraySpec
from tensorstore_ds.sources.base import Contents, Reference, Sample, Source

LENGTHS = {"train": [3, 0, 1, 7, 2, 0, 5, 1, 4], "test": [2, 2, 0]}
IMAGE = np.arange(6 * 5 * 3, dtype=np.uint8).reshape(6, 5, 3)


def given(dtype: Any = np.float16, shape: tuple[int, ...] = (4,), seed: int = 0) -> dict[str, list[NDArray[Any]]]:
    rng = np.random.default_rng(seed)
    return {split: [(rng.normal(size=(m, *shape)) * 9).astype(dtype) for m in some] for split, some in LENGTHS.items()}


def images(path: Path) -> Path:
    """A store of several shards, without the field."""
    with tsds.Writer(path, classes=["a", "b"], shard_nbytes=200) as writer:
        for split, some in LENGTHS.items():
            for row in range(len(some)):
                writer.append(split, image=IMAGE + row, label=row % 2, key=f"{split}/{row}")
    return path


def stored(path: Path, name: str = "words") -> dict[str, list[NDArray[Any]]]:
    store = tsds.open(path)
    return {split: [store[split][name][row] for row in range(len(store[split]))] for split in store}


def are_same(found: dict[str, list[NDArray[Any]]], expected: dict[str, list[NDArray[Any]]]) -> bool:
    return found.keys() == expected.keys() and all(
        [(a.dtype, a.shape, a.tobytes()) for a in found[split]] == [(a.dtype, a.shape, a.tobytes()) for a in some]
        for split, some in expected.items()
    )


@pytest.mark.drawn(2)
@pytest.mark.parametrize("layout", ["memmap", "zarr"])
@pytest.mark.parametrize(("dtype", "shape"), [(np.float16, (4,)), (np.int32, ()), (np.uint16, (2, 3))], ids=str)
def test_values_are_those_given(tmp_path: Path, layout: Any, dtype: Any, shape: tuple[int, ...]) -> None:
    path, values = images(tmp_path / "s.tsds"), given(dtype, shape)
    tsds.editing.add_fields(path, {"words": values})
    if layout == "zarr":
        tsds.repack(path, tmp_path / "z.tsds", layout="zarr")
        path = tmp_path / "z.tsds"
    assert are_same(stored(path), values) and tsds.verify(path) == []
    assert isinstance(tsds.open(path).manifest.fields["words"], RaggedField)
    store = tsds.open(path)
    first = np.asarray(store.zarr()[f"{store['train'].shard_paths[0]}/words/rows"])
    assert first.tobytes() == np.concatenate(values["train"])[: len(first)].tobytes()


def test_the_writer_and_python_sources(tmp_path: Path) -> None:
    values = given()
    with tsds.Writer(tmp_path / "w.tsds", shard_nbytes=200) as writer:
        for split, some in values.items():
            for each in some:
                tensor = torch.from_numpy(each)
                writer.append(split, image=IMAGE, words=tsds.conversion.RaggedRows(tensor))
    samples = {
        split: Samples([{"image": IMAGE, "words": tsds.conversion.RaggedRows(each)} for each in some])
        for split, some in values.items()
    }
    tsds.convert(samples, tmp_path / "c.tsds", workers=0)
    for name in ("w", "c"):
        assert are_same(stored(tmp_path / f"{name}.tsds"), values), name
        assert tsds.verify(tmp_path / f"{name}.tsds") == []
    with tsds.Writer(tmp_path / "x.tsds") as writer:
        writer.append("train", image=IMAGE, words=tsds.conversion.RaggedRows(np.zeros((2, 3))))
        for wrong in (np.zeros((2, 4)), np.zeros((2, 3), np.float32)):
            with pytest.raises(
                tsds.SourceError, match="expected the fields of the first sample, words lists of float64"
            ):
                writer.append("train", image=IMAGE, words=tsds.conversion.RaggedRows(wrong))
        with pytest.raises(tsds.SourceError, match=r"Pass its view\(torch.uint16\)"):
            writer.append(
                "train", image=IMAGE, words=tsds.conversion.RaggedRows(torch.zeros(2, 3, dtype=torch.bfloat16))
            )


def test_stores_made_of_stores(tmp_path: Path) -> None:
    path, values = images(tmp_path / "s.tsds"), given()
    tsds.editing.add_fields(path, {"words": values})
    kept = {split: [row for row in range(len(some)) if row % 2 == 0] for split, some in values.items()}
    tsds.editing.filter_store(path, tmp_path / "f.tsds", rows=kept)
    expected = {split: [values[split][row] for row in rows] for split, rows in kept.items()}
    assert are_same(stored(tmp_path / "f.tsds"), expected)
    lacking = images(tmp_path / "l.tsds")
    tsds.editing.merge_stores([path, lacking], tmp_path / "m.tsds")
    empty = np.empty((0, 4), np.float16)
    assert are_same(stored(tmp_path / "m.tsds"), {s: [*some, *[empty] * len(some)] for s, some in values.items()})
    tsds.erase(path, keys=["train/3"])
    expected = {split: [e for i, e in enumerate(some) if (split, i) != ("train", 3)] for split, some in values.items()}
    assert are_same(stored(path), expected) and tsds.verify(path) == []

    tsds.copy(path, tmp_path / "changed.tsds")
    changed = {split: [each.copy() for each in some] for split, some in expected.items()}
    changed["train"][2][0] += 1
    tsds.editing.add_fields(tmp_path / "changed.tsds", {"words": changed}, replace=True)
    found = tsds.editing.compare_stores(path, tmp_path / "changed.tsds").splits["train"]
    assert {name: each.keys for name, each in found.fields.items()} == {"words": ["train/2"]}
    done = command("pull", path, tmp_path / "part.tsds", "--fields", "words,key")
    assert done.exit_code == 0, done.output
    assert set(tsds.open(tmp_path / "part.tsds").manifest.fields) == {"words", "key"}
    assert are_same(stored(tmp_path / "part.tsds"), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_batches_are_lists_of_tensors(tmp_path: Path, threads: int) -> None:
    path, values = images(tmp_path / "s.tsds"), given()
    tsds.editing.add_fields(path, {"words": values})
    dataset = tsds.StoreDataset(path, "train")
    loader = tsds.DataLoader(dataset, batch_size=4, shuffle=True, seed=3, num_threads=threads)
    seen = 0
    for batch in loader:
        for image, words in zip(batch["image"], batch["words"], strict=True):
            row = int(image[0, 0, 0])  # the image is IMAGE + row
            assert words.dtype == torch.float16 and np.array_equal(words.numpy(), values["train"][row])
            seen += 1
    assert seen == len(values["train"])
    assert np.array_equal(dataset[3]["words"], values["train"][3])
    pair = next(iter(tsds.DataLoader(tsds.StoreDataset(path, "train", return_as="tuple"), batch_size=2)))
    assert [each.shape[0] for each in pair] == [2, 2]  # images and labels, as without the field


def test_bfloat16_as_numbers_of_16_bits(tmp_path: Path) -> None:
    path = images(tmp_path / "s.tsds")
    values = {split: [torch.randn(m, 4).to(torch.bfloat16) for m in some] for split, some in LENGTHS.items()}
    with pytest.raises(tsds.OptionError, match=r"Pass its view\(torch.uint16\)"):
        tsds.editing.add_fields(path, {"words": values})
    bits = {split: [each.view(torch.uint16).numpy() for each in some] for split, some in values.items()}
    tsds.editing.add_fields(path, {"words": bits})
    (batch,) = tsds.DataLoader(tsds.StoreDataset(path, "train"), batch_size=9)
    for found, expected in zip(batch["words"], values["train"], strict=True):
        assert torch.equal(found.view(torch.bfloat16), expected)


def test_refusals(tmp_path: Path) -> None:
    path, values = images(tmp_path / "s.tsds"), given()
    values["train"][4] = values["train"][4].astype(np.float32)
    with pytest.raises(tsds.OptionError, match=r"words: expected an array \(m, ...\) of float16 4 .*in row 4 of train"):
        tsds.editing.add_fields(path, {"words": values})
    same = {split: [np.zeros((2, 4)) for _ in some] for split, some in LENGTHS.items()}
    tsds.editing.add_fields(path, {"fixed": same})  # as many rows everywhere: an array
    assert tsds.open(path)["train"].column("fixed").spec.shape == (2, 4)
    same["test"][0] = np.zeros((1, 4))  # of one split alone
    tsds.editing.add_fields(path, {"words": same})
    assert isinstance(tsds.open(path).manifest.fields["words"], RaggedField)


def test_the_table_has_lists(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path, values = images(tmp_path / "s.tsds"), given()
    tsds.editing.add_fields(path, {"words": values})
    tsds.exporting.write_table(path, tmp_path / "t.parquet")
    found = parquet.read_table(tmp_path / "t.parquet").column("words").to_pylist()
    assert found == [each.astype(float).tolist() for split in tsds.open(path) for each in values[split]]


@pytest.mark.parametrize("shape", [(), (3,)], ids=str)
def test_lists_of_a_parquet_file(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, values = images(tmp_path / "s.tsds"), given(np.float32, shape)
    kind = pa.list_(pa.list_(pa.float32(), 3) if shape else pa.float32())
    cells = [None if split == "test" and not len(e) else e.tolist() for split, some in values.items() for e in some]
    keys = [f"{split}/{row}" for split, some in values.items() for row in range(len(some))]
    table = pa.table({"key": keys[::-1], "words": pa.array(cells[::-1], kind)})
    parquet.write_table(table, tmp_path / "t.parquet", row_group_size=5)
    assert command("add", path, tmp_path / "t.parquet").exit_code == 0
    assert are_same(stored(path), values) and tsds.verify(path) == []
    lists = pa.array([[[1.0], [1.0, 2.0]]] * len(keys), pa.list_(pa.list_(pa.float32())))
    parquet.write_table(pa.table({"key": keys, "more": lists}), tmp_path / "u.parquet")
    with pytest.raises(tsds.OptionError, match="Lists in lists need a fixed size"):
        tsds.editing.add_file(path, tmp_path / "u.parquet")


def test_store_of_samples_without_any_row(tmp_path: Path) -> None:
    empty = np.empty((0, 3), np.float32)
    made = store_of(tmp_path / "s.tsds", [{"image": IMAGE, "words": tsds.conversion.RaggedRows(empty)}] * 3)
    assert [each.shape for each in stored(made.path)["train"]] == [(0, 3)] * 3 and tsds.verify(made.path) == []


class Doubles(Source):
    """A source that gives numbers of 64 bits for a field of 32."""

    name = "doubles"
    is_audited = False

    def scan(self) -> Contents:
        return Contents({"words": RaggedField.of(ArraySpec("float32", (2,)))}, {"train": range(3)})

    def read(self, split: str, reference: Reference) -> Sample:
        return Sample(self.key(split, reference), IMAGE, arrays={"words": np.full((int(reference), 2), 0.5)})


def test_numbers_of_a_source_get_the_type_of_the_field(tmp_path: Path) -> None:
    options = tsds.ConvertOptions(workers=0)
    convert_source(Doubles(tmp_path, options), tmp_path / "o.tsds", options, lambda event: None)
    assert [rows.tolist() for rows in stored(tmp_path / "o.tsds")["train"]] == [[[0.5, 0.5]] * n for n in range(3)]
    assert tsds.verify(tmp_path / "o.tsds") == []
