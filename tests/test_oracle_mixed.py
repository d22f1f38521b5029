"""Which samples come when: mixtures of stores, and resuming, as their documentation says.

What is expected is computed in whole numbers and fractions, from what the stores were made of. Only random orders of
mixtures and with weights are taken from samplers of this library.

``TSDS_ORACLE=20000 TSDS_ORACLE_SEED=1 python -m pytest tests/test_oracle_mixed.py -k many`` tries so many cases of each
kind, the same ones for the same seed.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies as st

import tensorstore_ds as tsds

pytestmark = pytest.mark.slow

CLASSES = {"a": ["ant", "bee"], "b": ["bee", "cow", "ant"], "c": ["dog"]}
ROWS = {"a": 13, "b": 30, "c": 5}
#: What each store has, in this order.
FIELDS = {"a": ["image", "label", "objects", "age", "key"], "b": ["image", "label", "objects", "age", "key"]}
FIELDS["c"] = ["image", "label", "objects", "key"]

quick = settings(
    max_examples=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


def sample_of(name: str, row: int) -> dict[str, Any]:
    """What a store has in a row: classes by their names."""
    own = CLASSES[name]
    boxes = np.array([[i, row % 5, i + 1, 6] for i in range(row % 4)], np.float32).reshape(-1, 4)
    found = {
        "image": np.full((6, 6, 3), 100 * "abc".index(name) + row, np.uint8),
        "label": own[row % len(own)],
        "boxes": boxes,
        "labels": [own[(row + i) % len(own)] for i in range(len(boxes))],
        "key": f"{name}{row}",
    }
    return found if name == "c" else {**found, "age": np.float32(row / 4)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores a, b and c."""
    folder = tmp_path_factory.mktemp("mixed")
    for name, own in CLASSES.items():
        with tsds.Writer(folder / f"{name}.tsds", classes=own) as writer:
            for row in range(ROWS[name]):
                sample = sample_of(name, row)
                labels = np.array([own.index(each) for each in sample["labels"]], np.int64)
                writer.append("train", **{**sample, "label": own.index(sample["label"]), "labels": labels})
    return folder


def dealt(order: list[int], rank: int, ranks: int, *, drop_last: bool, even: bool = True) -> list[int]:
    """What a rank gets of an order: every row in turn; to be even, rows of the beginning once more, or none."""
    if even or drop_last:
        length = len(order) // ranks if drop_last else -(-len(order) // ranks)
        order = list(itertools.islice(itertools.cycle(order), length * ranks))
    return order[rank::ranks]


def shuffled(count: int, number: int, epoch: int) -> list[int]:
    order = np.arange(count)
    np.random.Generator(np.random.PCG64(np.random.SeedSequence(number, spawn_key=(epoch,)))).shuffle(order)
    return order.tolist()


# --- mixtures ---------------------------------------------------------------------------------------------------------


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    """Some stores or parts of them, with or without shares, and how they are loaded."""
    names = draw(st.permutations("abc"))[: draw(st.integers(2, 3))]
    parts = {
        name: draw(st.none() | st.lists(st.integers(0, ROWS[name] - 1), min_size=1, unique=True)) for name in names
    }
    shares = draw(
        st.none() | st.lists(st.integers(0, 9), min_size=len(names), max_size=len(names)).filter(lambda w: w[0])
    )
    common = [name for name in FIELDS[names[0]] if all(name in FIELDS[each] for each in names)]
    classes = list(dict.fromkeys(itertools.chain.from_iterable(CLASSES[name] for name in names)))
    return {
        "parts": parts,
        "shares": shares,
        "changing": shares is not None and draw(st.booleans()),
        "epoch_length": draw(st.sampled_from(["first", "shortest"]) | st.integers(1, 90)),
        "fields": draw(st.none() | st.lists(st.sampled_from(common), min_size=1, unique=True)),
        "classes": draw(st.none() | st.permutations([*classes, "elk"])),
        "epochs": draw(st.integers(1, 3)),
        "ranks": draw(st.integers(1, 3)),
        "order": {"seed": draw(st.integers(0, 3)), "drop_last": draw(st.booleans())},
        "batch_size": draw(st.integers(1, 9)),
        "num_threads": draw(st.integers(1, 2)),
    }


def check_mixture(folder: Path, case: dict[str, Any]) -> None:
    parts, shares, length = case["parts"], case["shares"], case["epoch_length"]
    rows_of = {name: list(range(ROWS[name])) if rows is None else rows for name, rows in parts.items()}
    given_parts: list[Any] = []
    for name, rows in parts.items():
        path = folder / f"{name}.tsds"
        given_parts.append(path if rows is None else tsds.StoreDataset(path, fields=FIELDS[name]).subset(rows))
    options: dict[str, Any] = {"classes": case["classes"]}
    stores: Any = given_parts
    lengths = [len(rows) for rows in rows_of.values()]

    def weights(epoch: int) -> list[int]:
        """Of each epoch others, if they change."""
        return [(w + epoch) % 10 + (i == 0) for i, w in enumerate(shares)] if case["changing"] else shares

    if case["changing"]:
        length = length if isinstance(length, int) else 50
        options |= {"weights": weights, "epoch_length": length}
    elif shares is not None:
        stores, options["epoch_length"] = dict(zip(given_parts, shares, strict=True)), length
    first = next(iter(parts))
    usual = [name for name in FIELDS[first] if name != "key" or parts[first] is not None]
    fields = case["fields"] or [name for name in usual if all(name in FIELDS[each] for each in parts)]
    dataset = tsds.MixedDataset(stores, fields=case["fields"], **options)
    classes = list(case["classes"] or dict.fromkeys(itertools.chain.from_iterable(CLASSES[name] for name in parts)))
    has_classes = "label" in fields or "objects" in fields
    assert list(dataset.fields) == fields and list(dataset.classes) == classes * has_classes
    samples = [sample_of(name, row) for name, rows in rows_of.items() for row in rows]
    assert len(dataset) == len(samples)
    if "label" in fields:
        assert [classes[label] for label in dataset.targets] == [sample["label"] for sample in samples]
    owners = np.repeat(np.arange(len(lengths)), lengths)
    assert dataset.part_of(np.arange(len(samples))).tolist() == owners.tolist()

    streams: list[list[int]] = [[] for _ in lengths]
    ranks, order_options = case["ranks"], case["order"]
    for epoch in range(case["epochs"]):
        if shares is None:
            whole = shuffled(len(samples), order_options["seed"], epoch)
        else:
            sampler = dataset.sampler(**order_options)
            assert sampler is not None
            sampler.set_epoch(epoch)
            whole = sampler.rows().tolist()
            check_shares(owners[whole].tolist(), weights(epoch), lengths, length)
            for row in whole:
                streams[owners[row]].append(row)
        for rank in range(ranks):
            place = {**order_options, "rank": rank, "num_replicas": ranks}
            own: Any = dataset.sampler(**place) if shares else tsds.ShuffleSampler(len(samples), **place)
            loader = tsds.DataLoader(dataset, case["batch_size"], sampler=own, num_threads=case["num_threads"])
            loader.set_epoch(epoch)
            expected = dealt(whole, rank, ranks, drop_last=order_options["drop_last"])
            batches = list(loader)
            assert len(batches) == -(-len(expected) // case["batch_size"])
            for number, batch in enumerate(batches):
                chosen = expected[number * case["batch_size"] :][: case["batch_size"]]
                check_members(batch, [samples[row] for row in chosen], fields, classes)
    for stream, begin, count in zip(streams, np.cumsum([0, *lengths]).tolist(), lengths, strict=False):
        for at in range(0, len(stream), count):
            shown = stream[at : at + count]  # all of a store, before one comes again
            assert len(set(shown)) == len(shown) and min(shown) >= begin and max(shown) < begin + count


def check_shares(owners: list[int], weights: list[int], lengths: list[int], length: Any) -> None:
    """Whether stores come by the method of Sainte-Lague: the k-th sample of a store at (k + 1/2) / weight."""
    counts, last = [0] * len(weights), Fraction(0)
    for owner in owners:
        assert weights[owner]
        at = Fraction(2 * counts[owner] + 1, 2 * weights[owner])
        assert at >= last
        counts[owner], last = counts[owner] + 1, at
    following = [Fraction(2 * n + 1, 2 * w) for n, w in zip(counts, weights, strict=True) if w]
    if isinstance(length, int):
        assert len(owners) == length and min(following) >= last
        return
    ends = [Fraction(2 * n - 1, 2 * w) if w else None for n, w in zip(lengths, weights, strict=True)]
    end = ends[0] if length == "first" else min(each for each in ends if each is not None)
    assert last == end and min(following) > last


def check_members(batch: dict[str, Any], samples: list[dict[str, Any]], fields: list[str], classes: list[str]) -> None:
    """Whether a batch has exactly these fields of these samples."""
    assert list(batch) == fields
    for name in fields:
        assert len(batch[name]) == len(samples)
        for value, sample in zip(batch[name], samples, strict=True):
            if name == "image":
                assert torch.equal(value, torch.from_numpy(sample["image"]).permute(2, 0, 1))
            elif name == "label":
                assert classes[value] == sample["label"]
            elif name == "objects":
                assert [classes[label] for label in value["labels"]] == sample["labels"]
                assert torch.equal(value["boxes"], torch.from_numpy(sample["boxes"]))
            else:
                assert value == sample[name]


# --- resuming ---------------------------------------------------------------------------------------------------------


@st.composite
def resumed(draw: st.DrawFn) -> dict[str, Any]:
    """A sampler, and runs of (ranks, batch size, batches), each but the first from the state of the one before."""
    kind = draw(st.sampled_from(["shuffle", "in order", "subset", "weighted", "mixed"]))
    drop_last = draw(st.booleans())
    even = drop_last or kind in ("weighted", "mixed") or draw(st.booleans())
    run = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(0, 5))
    return {
        "kind": kind,
        "order": {"seed": draw(st.integers(0, 3)), "drop_last": drop_last, **({} if even else {"even_batches": False})},
        "epoch": draw(st.integers(0, 2)),
        "runs": draw(st.lists(run, min_size=2, max_size=4)),
        "num_threads": draw(st.integers(1, 2)),
    }


def check_resumed(folder: Path, case: dict[str, Any]) -> None:
    kind, options, epoch = case["kind"], case["order"], case["epoch"]
    drop_last, even = options["drop_last"], options.get("even_batches", True)
    dataset: tsds.StoreDataset = tsds.StoreDataset(folder / "b.tsds", fields=["key"])
    if kind == "mixed":
        stores = {folder / "a.tsds": 2, folder / "b.tsds": 3}
        dataset = tsds.MixedDataset(stores, fields=["key"], epoch_length=31)
    keys = [dataset.key(row) for row in range(len(dataset))]
    assert [dataset.key(row) for row in range(-len(dataset), 0)] == keys

    def sampler(rank: int, ranks: int) -> Any:
        place = {**options, "rank": rank, "num_replicas": ranks}
        if kind == "mixed":
            return dataset.sampler(**place)  # type: ignore[attr-defined]
        if kind == "subset":
            return tsds.loading.SubsetSampler(np.arange(29, 5, -1), **place)
        if kind == "weighted":
            return tsds.WeightedSampler(np.arange(1, 31), replacement=False, **place)
        return tsds.ShuffleSampler(30, shuffle=kind == "shuffle", **place)

    def order(of: int) -> list[str]:
        if kind in ("shuffle", "in order"):
            rows = shuffled(30, options["seed"], of) if kind == "shuffle" else list(range(30))
        elif kind == "subset":
            rows = [29 - place for place in shuffled(24, options["seed"], of)]
        else:
            one = sampler(0, 1)
            one.set_epoch(of)
            rows = one.rows().tolist()
        return [keys[row] for row in rows]

    def loaders(ranks: int, batch_size: int) -> list[tsds.DataLoader[Any]]:
        threads = case["num_threads"]
        return [
            tsds.DataLoader(dataset, batch_size, sampler=sampler(rank, ranks), num_threads=threads)
            for rank in range(ranks)
        ]

    whole, seen, state = order(epoch), 0, None
    for number, (ranks, batch_size, batches) in enumerate(case["runs"]):
        if state is not None and state["num_replicas"] == ranks:
            batch_size = state["batch_size"]  # another one is refused
        current = loaders(ranks, batch_size)
        for loader in current:
            loader.load_state_dict(state) if state is not None else loader.set_epoch(epoch)
        rest = whole[seen:]
        if even and not drop_last:  # the repeated ones are of the beginning of the epoch
            rest += whole[: -len(rest) % ranks]
        expected = [dealt(rest, rank, ranks, drop_last=drop_last, even=even) for rank in range(ranks)]
        most = min(len(each) for each in expected) // batch_size
        is_last = number == len(case["runs"]) - 1
        for loader, own in zip(current, expected, strict=True):
            taken = list(itertools.islice(iter(loader), None if is_last else min(batches, most)))
            assert [len(batch["key"]) for batch in taken[:-1]] == [batch_size] * len(taken[:-1])
            found = [key for batch in taken for key in batch["key"]]
            assert found == own[: None if is_last else batch_size * min(batches, most)]
        states = [json.loads(json.dumps(loader.state_dict())) for loader in current]
        if is_last:
            break
        seen += ranks * batch_size * min(batches, most)
        assert all(each == states[0] for each in states) or not even
        state = states[0]
        if state["epoch"] > epoch:
            break
    for rank, loader in enumerate(current):  # the next epoch is whole again
        next_epoch = dealt(order(epoch + 1), rank, ranks, drop_last=drop_last, even=even)
        assert [key for batch in loader for key in batch["key"]] == next_epoch


# --- drawn cases ------------------------------------------------------------------------------------------------------

ORACLES: dict[str, tuple[st.SearchStrategy[dict[str, Any]], Callable[[Path, dict[str, Any]], None]]] = {
    "mixtures": (mixtures(), check_mixture),
    "resuming": (resumed(), check_resumed),
}


@pytest.mark.parametrize("of", ORACLES)
@quick
@given(st.data())
def test_some(folder: Path, of: str, data: st.DataObject) -> None:
    cases, check = ORACLES[of]
    check(folder, data.draw(cases))


@pytest.mark.drawn(1, of="oracles")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("of", ORACLES)
@seed(int(os.environ.get("TSDS_ORACLE_SEED", "0")))
@settings(quick, max_examples=int(os.environ.get("TSDS_ORACLE", "80")), database=None)
@given(st.data())
def test_many(folder: Path, of: str, data: st.DataObject) -> None:
    cases, check = ORACLES[of]
    check(folder, data.draw(cases))
