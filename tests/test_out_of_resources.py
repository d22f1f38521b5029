"""Where the machine has too little of something, nothing that is finished goes, nothing whole is called damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from tensorstore_ds import machine
from tensorstore_ds.annex.editing import rows
from tensorstore_ds.format.kinds import key
from tensorstore_ds.reading import store_files

ROWS = 24


def refuse(error: BaseException) -> Callable[..., Any]:
    def refused(*args: Any, **keywords: Any) -> Any:
        raise error

    return refused


@pytest.fixture(params=["memory", "MemoryError", "EMFILE", "ENOMEM", "EIO"])
def at_commit(request: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the check of the finished store fail for want of something, once."""

    def begin() -> None:
        if request.param == "memory":
            monkeypatch.setattr(machine, "_UNASKED_NBYTES", 0)
            monkeypatch.setattr(machine, "memory_limit", lambda: 1)
        elif request.param == "MemoryError":
            monkeypatch.setattr(key, "repeated_key", refuse(MemoryError()))
        else:
            number = getattr(errno, request.param)

            def check(table: Any) -> Any:  # not before: the last files may still be copied
                monkeypatch.setattr(store_files.os, "open", refuse(OSError(number, os.strerror(number))))
                return store_files.open_file(Path("x"), "zarr.json")

            monkeypatch.setattr(key, "repeated_key", check)

    return begin


def shards(work: Path) -> list[str]:
    return sorted(path.parent.relative_to(work / "store").as_posix() for path in work.glob("store/*/*/zarr.json"))


def test_a_writer_keeps_its_shards(
    tmp_path: Path, at_commit: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "w.tsds"

    def write(last: Callable[[], None]) -> tsds.conversion.Summary | None:
        with tsds.Writer(out, classes=["a"], shard_nbytes=64 * 4) as writer:
            for i in range(ROWS):
                writer.append("train", image=np.full((8, 8), i, np.uint8), label=0, key=f"k{i}")
            last()
        return writer.summary

    with pytest.raises(
        tsds.errors.ConversionError, match=r"kept in .*\.partial; .*run the same command again to go on"
    ) as caught:
        write(at_commit)
    assert "damage" not in str(caught.value) and "\n" not in str(caught.value)
    assert len(shards(tmp_path / "w.tsds.partial")) == ROWS // 4
    monkeypatch.undo()
    summary = write(lambda: None)
    assert summary is not None and summary.resumed == ROWS // 4
    assert [tsds.open(out)["train"].key(i) for i in range(ROWS)] == [f"k{i}" for i in range(ROWS)]
    assert not (tmp_path / "w.tsds.partial").exists()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store of six shards."""
    with tsds.Writer(tmp_path / "source.tsds", classes=["a", "b"], shard_nbytes=64 * 4) as writer:
        for i in range(ROWS):
            writer.append("train", image=np.full((8, 8), i, np.uint8), label=i % 2, key=f"k{i}")
    return tmp_path / "source.tsds"


EDITS: dict[str, Callable[..., tsds.conversion.Summary]] = {
    "filter": lambda source, out, **rest: tsds.editing.filter_store(source, out, "label == 'a'", **rest),
    "split": lambda source, out, **rest: tsds.editing.split_store(source, out, {"train": 0.5, "val": 0.5}, **rest),
    "sample": lambda source, out, **rest: tsds.editing.sample_store(source, out, 9, **rest),
    "relabel": lambda source, out, **rest: tsds.editing.relabel_store(source, out, {"a": "c"}, **rest),
    "merge": lambda source, out, **rest: tsds.editing.merge_stores([source, source], out, **rest),
}


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_keeps_its_shards_and_goes_on(
    tmp_path: Path, source: Path, name: str, at_commit: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = EDITS[name](source, tmp_path / "whole.tsds")

    def progress(event: tsds.conversion.Progress) -> None:
        if event.stage == "copy" and event.done == event.total > 0:
            at_commit()

    out = tmp_path / "out.tsds"
    with pytest.raises(
        tsds.errors.ConversionError, match=r"kept in .*\.partial; .*run the same command again to go on"
    ):
        EDITS[name](source, out, progress=progress)
    kept = shards(tmp_path / "out.tsds.partial")
    assert kept and not out.exists()
    monkeypatch.undo()
    assert EDITS[name](source, out).resumed == len(kept)
    assert tsds.open(out).content_sha256 == tsds.open(whole.path).content_sha256
    assert not (tmp_path / "out.tsds.partial").exists() and tsds.verify(out) == []


def test_a_shard_of_other_rows_is_not_taken_for_a_finished_one(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress(event: tsds.conversion.Progress) -> None:
        if event.stage == "copy" and event.done == event.total > 0:
            monkeypatch.setattr(key, "repeated_key", refuse(MemoryError()))

    with pytest.raises(tsds.errors.ConversionError, match="shards are kept in"):
        tsds.editing.filter_store(source, tmp_path / "out.tsds", drop={"train": [0, 9]}, progress=progress)
    monkeypatch.undo()
    kept = len(shards(tmp_path / "out.tsds.partial"))
    other = tsds.editing.filter_store(
        source, tmp_path / "out.tsds", drop={"train": [1, 9]}
    )  # of the step, nothing else differs
    gone = kept - other.resumed
    (note,) = (note for note in other.notes if "of other rows, stores or fields" in note)
    assert f"{gone} finished shard" in note
    split = tsds.open(tmp_path / "out.tsds")["train"]
    assert [split.key(i) for i in range(len(split))] == [f"k{i}" for i in range(ROWS) if i not in (1, 9)]


def test_a_layout_is_changed_from_where_it_stopped(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def progress(event: tsds.conversion.Progress) -> None:
        if event.stage == "compress" and event.done == ROWS // 2:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    out = tmp_path / "out.tsds"
    with pytest.raises(tsds.errors.ConversionError, match=r"the disk is full\. Finished shards are kept in "):
        tsds.repack(source, out, layout="zarr", progress=progress)
    assert len(shards(tmp_path / "out.tsds.partial")) == 2  # the third one is not finished when its rows are
    assert tsds.repack(source, out, layout="zarr").resumed == 2
    assert tsds.editing.compare_stores(source, out).is_empty and tsds.verify(out) == []


@pytest.mark.parametrize("name", ["merge", "repack"])
def test_nothing_is_called_kept_where_no_shard_is_finished(
    tmp_path: Path, source: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows.ShardRows, "write", refuse(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    change = EDITS.get(name, lambda source, out: tsds.repack(source, out, layout="zarr"))
    with pytest.raises(
        tsds.errors.ConversionError, match=r"the disk is full\. Nothing was kept; make room and run the same"
    ):
        change(source, tmp_path / "out.tsds")
    assert not (tmp_path / "out.tsds.partial").exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT])
def test_a_whole_store_is_not_called_damaged(source: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tsds.open(source)
    monkeypatch.setattr(store_files.os, "open", refuse(OSError(number, os.strerror(number))))
    for read in (lambda: tsds.open(source), lambda: store["train"]["image"][0], lambda: tsds.verify(source)):
        with pytest.raises(
            tsds.errors.ResourceError, match=r"expected enough .* found that the system has no more"
        ) as caught:
            read()
        assert caught.value.reason == "no-resource" and not isinstance(caught.value, tsds.FormatError)


def test_a_store_that_memory_cannot_check_is_not_called_damaged(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_UNASKED_NBYTES", 0)
    monkeypatch.setattr(machine, "memory_limit", lambda: 1)
    commands: list[Callable[[], object]] = [
        lambda: tsds.verify(source),
        lambda: tsds.editing.filter_store(source, tmp_path / "x.tsds", "label == 'a'"),
        lambda: tsds.editing.compare_stores(source, source),
        lambda: tsds.repack(source, tmp_path / "x.tsds", layout="zarr"),
    ]
    for command in commands:
        with pytest.raises(tsds.errors.ResourceError, match="1 bytes of memory") as caught:
            command()
        assert "damage" not in str(caught.value) and "Copy" not in str(caught.value)


def test_append_keeps_what_it_has_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    from tensorstore_ds.annex.editing import append as module

    for folder, count in (("a", 2), ("b", 3)):
        (tmp_path / folder / "x").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (8, 8), (i, i, i)).save(tmp_path / folder / "x" / f"{folder}{i}.png")
    store = tmp_path / "s.tsds"
    tsds.convert(tmp_path / "a", store, workers=0)
    before = tsds.open(store).sha256
    with monkeypatch.context() as context:
        context.setattr(module, "_found", refuse(MemoryError()))
        with pytest.raises(tsds.errors.ConversionError, match="Nothing was changed"):
            tsds.append(store, tmp_path / "b", workers=0)
    assert tsds.open(store).sha256 == before and tsds.verify(store) == []
    assert shards(tmp_path / "s.tsds.append" / "new.partial") == ["train/00000"]
    summary = tsds.append(store, tmp_path / "b", workers=0)
    assert summary.resumed == 1 and summary.rows == {"train": 5}
    assert not (tmp_path / "s.tsds.append").exists() and tsds.verify(store) == []
