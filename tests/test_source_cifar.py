"""CIFAR's binary version from literal bytes, and its Python version from pickles written operation by operation."""

from __future__ import annotations

import pickle
import pickletools
import struct
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

import tensorstore_ds as tsds
from labelling_files import scan
from tensorstore_ds.errors import SourceError
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.cifar_pickle import read_batch

CLASSES = ("airplane", "cat", "dog")


def images(count: int, seed: int) -> NDArray[np.uint8]:
    """(n, 3, 32, 32), as the files have them."""
    return np.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), np.uint8)


def old_text(text: bytes) -> bytes:
    """A str of Python 2, as its cPickle writes it with protocol 2."""
    return (b"U" + bytes([len(text)]) if len(text) < 256 else b"T" + struct.pack("<i", len(text))) + text


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)


def old_list(items: list[bytes]) -> bytes:
    return b"](" + b"".join(items) + b"e"


def old_array(pixels: NDArray[np.uint8], *, kind: bytes = b"u1", fortran: bytes = b"\x89") -> bytes:
    rows, length = len(pixels), pixels[0].size
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU" + bytes([len(kind)]) + kind + b"K\x00K\x01\x87R"
    dtype += b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return (
        made
        + b"(K\x01"
        + number(rows)
        + number(length)
        + b"\x86"
        + dtype
        + fortran
        + old_text(pixels.tobytes())
        + b"tb"
    )


def old_dict(**members: bytes) -> bytes:
    """A pickled dict of protocol 2."""
    inside = b"".join(old_text(name.encode()) + value for name, value in members.items())
    return b"\x80\x02}q\x01(" + inside + b"u."


def old_batch(pixels: NDArray[np.uint8], names: list[str] | None = None, **labels: list[int]) -> bytes:
    lists = {name: old_list([number(each) for each in values]) for name, values in labels.items()}
    files = {} if names is None else {"filenames": old_list([old_text(name.encode()) for name in names])}
    return old_dict(batch_label=old_text(b"training batch 1 of 5"), **lists, data=old_array(pixels), **files)


def write(root: Path, **files: bytes) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (root / name.replace("__", ".")).write_bytes(data)
    return root


def binary(pixels: NDArray[np.uint8], *labels: list[int]) -> bytes:
    rows = zip(*labels, pixels, strict=True)
    return b"".join(bytes(each[:-1]) + each[-1].tobytes() for each in rows)


def cifar10(root: Path, *, is_binary: bool) -> tuple[Path, dict[str, NDArray[np.uint8]]]:
    first, second, test = images(3, 1), images(2, 2), images(2, 3)
    if is_binary:
        labelled = zip((first, second, test), ([0, 1, 2], [1, 0], [2, 2]), strict=True)
        batches = dict(zip(("data_batch_1__bin", "data_batch_2__bin", "test_batch__bin"), labelled, strict=True))
        files = {name: binary(pixels, labels) for name, (pixels, labels) in batches.items()}
        write(root, **files, batches__meta__txt="\n".join(CLASSES).encode() + b"\n\n", readme__html=b"x")
    else:
        names = [[f"{seed}_{i}.png" for i in range(3)] for seed in "abc"]
        files = {
            "data_batch_1": old_batch(first, names[0], labels=[0, 1, 2]),
            "data_batch_2": old_batch(second, names[1][:2], labels=[1, 0]),
            "test_batch": old_batch(test, names[2][:2], labels=[2, 2]),
        }
        listed = old_dict(label_names=old_list([old_text(name.encode()) for name in CLASSES]), num_vis=number(3072))
        write(root, **files, batches__meta=listed)
    return root, {"train": np.concatenate([first, second]), "test": test}


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin", "cifar-10-batches-py"])
def test_ten_classes(tmp_path: Path, is_binary: bool, inside: str) -> None:
    _, pixels = cifar10(tmp_path / "s" / inside, is_binary=is_binary)
    assert open_source(tmp_path / "s").name == "cifar"
    tsds.convert(tmp_path / "s", tmp_path / "o.tsds", tsds.ConvertOptions(workers=2))
    store = tsds.open(tmp_path / "o.tsds")
    for name, expected in pixels.items():
        np.testing.assert_array_equal(store[name]["image"][:], expected.transpose(0, 2, 3, 1))
    assert store.manifest.fields["label"].classes == CLASSES
    assert store["train"]["label"][:].tolist() == [0, 1, 2, 1, 0]
    keys = [store["train"]["key"][row] for row in range(5)]
    named = [f"data_batch_{i}/{row:05d}" for i, count in ((1, 3), (2, 2)) for row in range(count)]
    assert keys == (named if is_binary else ["a_0.png", "a_1.png", "a_2.png", "b_0.png", "b_1.png"])
    assert tsds.verify(tmp_path / "o.tsds") == []


@pytest.mark.parametrize("is_binary", [True, False])
def test_fine_and_coarse_labels(tmp_path: Path, is_binary: bool) -> None:
    train, test = images(3, 1), images(2, 2)
    if is_binary:
        files = {"train__bin": binary(train, [1, 0, 1], [2, 0, 1]), "test__bin": binary(test, [0, 0], [1, 1])}
        write(tmp_path / "s", **files, fine_label_names__txt=b"a\nb\nc\n", coarse_label_names__txt=b"x\ny\n")
    else:
        pickled = [
            old_batch(train, fine_labels=[2, 0, 1], coarse_labels=[1, 0, 1]),
            old_batch(test, fine_labels=[1, 1], coarse_labels=[0, 0]),
        ]
        names = {"fine_label_names": "abc", "coarse_label_names": "xy"}
        meta = old_dict(**{name: old_list([old_text(n.encode()) for n in letters]) for name, letters in names.items()})
        write(tmp_path / "s", train=pickled[0], test=pickled[1], meta=meta)
    tsds.convert(tmp_path / "s", tmp_path / "o.tsds", tsds.ConvertOptions(workers=0))
    store = tsds.open(tmp_path / "o.tsds")
    fields = store.manifest.fields
    assert [(name, fields[name].classes) for name in fields if fields[name].kind == "label"] == [
        ("label", ("a", "b", "c")),
        ("coarse", ("x", "y")),
    ]
    assert store["train"]["label"][:].tolist() == [2, 0, 1]
    assert store["train"]["coarse"][:].tolist() == [1, 0, 1]
    assert store["train"].class_counts == {"label": {"a": 1, "b": 1, "c": 1}, "coarse": {"x": 1, "y": 2}}
    assert store["test"].class_counts == {"label": {"a": 0, "b": 2, "c": 0}, "coarse": {"x": 2, "y": 0}}
    assert tsds.verify(tmp_path / "o.tsds") == []
    loader = tsds.DataLoader(tsds.StoreDataset(tmp_path / "o.tsds", "train"), batch_size=3)
    assert next(iter(loader))["coarse"].tolist() == [1, 0, 1]
    if is_binary:
        grown = np.concatenate([train, images(2, 3)])
        write(tmp_path / "s", train__bin=binary(grown, [1, 0, 1, 1, 1], [2, 0, 1, 0, 0]))
        tsds.append(tmp_path / "o.tsds", tmp_path / "s", workers=0)
        counts = {"label": {"a": 3, "b": 1, "c": 1}, "coarse": {"x": 1, "y": 4}}
        assert tsds.open(tmp_path / "o.tsds")["train"].class_counts == counts


def test_without_names_of_classes(tmp_path: Path) -> None:
    write(tmp_path / "s", data_batch_1__bin=binary(images(2, 0), [0, 1]))
    _, contents = scan(tmp_path / "s", "cifar")
    assert contents.fields["label"].classes == ("0", "1")
    _, contents = scan(tmp_path / "s", "cifar", classes=("ox", "yak", "zebra"))
    assert contents.fields["label"].classes == ("ox", "yak", "zebra")
    with pytest.raises(SourceError, match="expected labels below 1, the number of class names, found 1"):
        scan(tmp_path / "s", "cifar", classes=("ox",))


def test_names_that_repeat_are_no_keys(tmp_path: Path) -> None:
    write(tmp_path / "s", data_batch_1=old_batch(images(2, 0), ["a.png", "a.png"], labels=[0, 1]))
    source, contents = scan(tmp_path / "s", "cifar")
    keys = [source.key("train", each) for each in contents.splits["train"]]
    assert keys == ["data_batch_1/00000", "data_batch_1/00001"]


def test_it_is_what_pickle_reads(tmp_path: Path) -> None:
    """The files of these tests are pickles; and those that Python 3 wrote until protocol 5 are read, too."""
    pixels = images(4, 5)
    data = old_batch(pixels, ["a", "b", "c", "d"], labels=[0, 1, 2, 300])
    loaded: dict[bytes, Any] = pickle.loads(data, encoding="bytes")  # noqa: S301  # of this test
    np.testing.assert_array_equal(loaded[b"data"], pixels.reshape(4, -1))
    assert loaded[b"labels"] == [0, 1, 2, 300]
    for protocol in (3, 4):
        members = {"data": pixels.reshape(4, -1), "labels": [0, 1, 2, 300], "filenames": ["a", "b", "c", "d"]}
        again = read_batch(pickle.dumps(members, protocol=protocol), "x", 3072)
        assert again.labels["label"].tolist() == [0, 1, 2, 300] and list(again.keys) == ["a", "b", "c", "d"]
    found = read_batch(data, "x", 3072)
    assert data[found.offset : found.offset + pixels.nbytes] == pixels.tobytes()


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil"),))


def test_nothing_of_a_file_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostile = [pickle.dumps({"data": Evil(), "labels": []}, protocol=n) for n in range(6)]
    hostile += [b"cos\nsystem\n(S'touch evil'\ntR.", b"\x80\x02}(U\x04datacos\nsystem\nU\ntouch evil\x85Ru."]
    hostile += [b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncos\nsystem\nK\x00\x85U\x01b\x87Ru."]
    for data in hostile:
        with pytest.raises(SourceError, match="x: expected a pickled dict") as caught:
            read_batch(data, "x", 3072)
        assert caught.value.reason == "array-file"
    assert not (tmp_path / "evil").exists()


PIXELS = images(2, 0)
BAD: list[tuple[bytes, str]] = [
    (b"\x80\x02", "expected a pickled dict"),
    (b"\x80\x02}.", "expected an array of 0 rows"),
    (old_batch(PIXELS, labels=[0]), "expected an array of 1 rows"),
    (old_batch(PIXELS[:, :1], labels=[0, 1]), "expected an array of 2 rows of 3,072 bytes"),
    (old_dict(labels=old_list([number(0)] * 2), data=old_array(PIXELS, kind=b"f4")), "expected pixels of 8 bits"),
    (old_dict(labels=old_list([number(0)] * 2), data=old_array(PIXELS, fortran=b"\x88")), "expected pixels of 8 bits"),
    (old_dict(labels=old_list([old_text(b"a")] * 2), data=old_array(PIXELS)), "expected 2 whole numbers as label"),
    (old_dict(labels=old_text(b"ab"), data=old_array(PIXELS)), "expected an array of 0 rows"),
    (old_batch(PIXELS, labels=[0, 1])[:-100], "expected a pickled dict"),
]


@pytest.mark.parametrize(("data", "found"), BAD, ids=[found for _, found in BAD])
def test_bad_pickles(tmp_path: Path, data: bytes, found: str) -> None:
    write(tmp_path / "s", data_batch_1=data)
    with pytest.raises(SourceError, match=found) as caught:
        scan(tmp_path / "s", "cifar")
    assert str(caught.value).startswith("data_batch_1: ") and len(str(caught.value).splitlines()) == 1


def test_bad_binaries(tmp_path: Path) -> None:
    write(tmp_path / "s", data_batch_1__bin=binary(PIXELS, [0, 1])[:-1])
    with pytest.raises(SourceError, match=r"expected images of 3,073 bytes with their labels, found a file of 6,145"):
        scan(tmp_path / "s", "cifar")
    write(tmp_path / "t", data_batch_1__bin=b"")
    with pytest.raises(SourceError, match="found a file of 0 bytes"):
        scan(tmp_path / "t", "cifar")
    with pytest.raises(SourceError, match="expected files such as data_batch_1"):
        open_source(write(tmp_path / "u", x=b""), "cifar").contents()


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_changed_bytes_are_refused_or_read(seed: int, changes: int) -> None:
    random = Random(seed)
    data = bytearray(old_batch(PIXELS, ["a", "b"], labels=[0, 1]))
    ends = [at or 0 for _, _, at in pickletools.genops(bytes(data))]
    for _ in range(changes):
        near = min(random.choice(ends) + random.randrange(6), len(data) - 1)
        data[near if random.random() < 0.8 else random.randrange(len(data))] = random.randrange(256)
    try:
        batch = read_batch(bytes(data), "x", 3072)
    except SourceError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert len(batch.labels["label"]) == 2 and batch.offset + 2 * 3072 <= len(data)


def doubled(depth: int) -> bytes:
    """A list of texts that holds the list below it twice, this many times over, in a few bytes a time."""
    ends = b"".join(b"q%ch%ce" % (i, i) for i in range(depth))
    return b"](" * (depth + 1) + old_text(b"x") * 2 + b"e" + ends


NESTED = {
    "twice, 40 times over": doubled(40),
    "in itself": b"]q\x05h\x05a",
    "200,000 deep": b"]" * 200_000 + b"a" * 199_999,
    "a long text 100,000 times": b"](" + old_text(b"x" * 60_000) + b"q\x05" + b"h\x05" * 100_000 + b"e",
}


@pytest.mark.parametrize("name", NESTED)
def test_values_that_unpack_to_more_than_the_file_are_not_followed(tmp_path: Path, name: str) -> None:
    """As a member with another name they are not looked at, and as one that is read they are no texts or numbers."""
    value = NESTED[name]
    good = old_list([old_text(b"cat"), old_text(b"dog")])
    batch = old_dict(labels=old_list([number(0), number(1)]), data=old_array(PIXELS), filenames=value)
    write(tmp_path / "s", data_batch_1=batch, batches__meta=old_dict(z=value, label_names=good))
    contents = open_source(tmp_path / "s", "cifar").scan()
    keys = [str(each).partition("\0")[0] for each in contents.splits["train"]]
    assert contents.fields["label"].classes == ("cat", "dog") and keys == ["data_batch_1/00000", "data_batch_1/00001"]
    write(tmp_path / "t", data_batch_1=batch, batches__meta=old_dict(label_names=value))
    assert open_source(tmp_path / "t", "cifar").scan().fields["label"].classes == ("0", "1")
    write(tmp_path / "u", data_batch_1=old_dict(labels=value, data=old_array(PIXELS)))
    with pytest.raises(SourceError, match="data_batch_1: expected ") as caught:
        open_source(tmp_path / "u", "cifar").scan()
    assert len(str(caught.value).splitlines()) == 1
    kind = old_array(PIXELS).replace(b"U\x02u1", value)
    write(tmp_path / "v", data_batch_1=old_dict(labels=old_list([number(0), number(1)]), data=kind))
    with pytest.raises(SourceError, match="data_batch_1: expected "):
        open_source(tmp_path / "v", "cifar").scan()
