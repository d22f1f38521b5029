"""Copies of earlier states of a store, which become its present one: only what changed is fetched."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.conftest import ROWS, write_images
from remote.test_push_update import add_field, append, erase
from small_stores import tsds as command
from stores import files_of
from tensorstore_ds.sharing import receiving

Change = Callable[[Path], Any]


def update_labels(path: Path) -> None:
    """One sample gets other pixels: its shard is written again, with equal labels and keys."""
    folder = path.with_name("images")
    (folder / "a" / "000.png").write_bytes((folder / "a" / "002.png").read_bytes())
    tsds.update(path, folder)


def relicense(path: Path) -> None:
    """The root alone is another."""
    tsds.annotate(path, license="CC0-1.0")


CHANGES: dict[str, tuple[Change, ...]] = {
    **{change.__name__: (change,) for change in (append, add_field, update_labels, erase, relicense)},
    "several": (append, erase, add_field, update_labels),
}


def digests(path: Path) -> dict[str, int]:
    """The sizes of a store's files by SHA-256."""
    return {hashlib.sha256(data).hexdigest(): len(data) for data in files_of(path).values()}


def values(store: tsds.Store) -> str:
    return repr([[store[name][row] for row in range(len(store[name]))] for name in store])


@pytest.mark.parametrize("by_url", [True, False])
@pytest.mark.parametrize("changes", CHANGES)
def test_only_what_changed_is_fetched(grown: tuple[Path, str], tmp_path: Path, changes: str, by_url: bool) -> None:
    path, url = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(url, out)
    reader, before, was = tsds.open(out), digests(out), values(tsds.open(out))
    for change in CHANGES[changes]:
        change(path)
    if by_url:
        tsds.push(path, url, update=True)
    done = tsds.pull(url if by_url else path, out, update=True)
    assert (done.sha256, done.was_there) == (tsds.open(path).sha256, False)
    assert tsds.verify(out) == []
    tsds.pull(path, tmp_path / "fresh.tsds")
    kept = {f"{name}/{n:05d}/" for name, each in tsds.open(out).manifest.splits.items() for n in each.replaced}
    found = {name: data for name, data in files_of(out).items() if not name.startswith(tuple(kept))}
    assert found == files_of(tmp_path / "fresh.tsds")
    root, now = (out / "zarr.json").stat().st_size, digests(out)
    changed = sum(size for digest, size in now.items() if digest not in before)
    assert changed - root <= done.moved <= 1.1 * changed
    if erase in CHANGES[changes]:
        assert list((out / "train").glob("*/zarr.json")) and not any((out / name).exists() for name in kept)
        with pytest.raises(tsds.FormatError) as caught:
            values(reader)
        assert caught.value.reason == "replaced"
    else:
        assert values(reader) == was
    again = tsds.pull(path, out, update=True)
    assert (again.was_there, again.moved, again.sha256) == (True, 0, done.sha256)
    assert sorted(each.name for each in tmp_path.iterdir() if each.name.startswith("copy")) == ["copy.tsds"]


def test_a_part_is_updated_with_the_same_names(grown: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = grown
    out, part = tmp_path / "labels.tsds", {"fields": ["label", "key"]}
    tsds.pull(path, out, **part)
    append(path)
    for other in ({}, {"fields": ["label"]}):
        with pytest.raises(tsds.TsdsError, match="expected a"):
            tsds.pull(path, out, update=True, **other)
    add_field(path)  # all shards are written again
    with pytest.raises(tsds.TsdsError, match="expected a"):
        tsds.pull(path, out, update=True, fields=["label"])
    done = tsds.pull(path, out, update=True, **part)
    tsds.pull(path, tmp_path / "fresh.tsds", **part)
    assert tsds.open(out).sha256 == tsds.open(tmp_path / "fresh.tsds").sha256 == done.sha256
    assert tsds.verify(out) == [] and len(tsds.open(out)["train"]) == 45
    assert tsds.pull(path, out, **part).was_there


@pytest.mark.parametrize("makes", ["another", "later", "changed", "file"])
def test_what_is_no_earlier_state_stays(grown: tuple[Path, str], tmp_path: Path, makes: str) -> None:
    path, _ = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out)
    if makes == "another":
        expected = "expected an earlier state of the store, found another store"
        tsds.convert(tmp_path / "images", tmp_path / "other.tsds", size=8, workers=0)
        path = tmp_path / "other.tsds"
    elif makes == "later":
        expected = "found a later state of it"
        add_field(out)
    elif makes == "changed":  # both have changed
        expected = "found another store"
        add_field(out)
        add_field(path, "gain")
    else:
        expected = "expected a new path or a copy of this store, found an earlier state of it"
        tsds.pack(path, tmp_path / "packed.zip")
        out = tmp_path / "packed.zip"
        add_field(path)
    before = files_of(out) if out.is_dir() else {"": out.read_bytes()}
    with pytest.raises(tsds.errors.StoreExistsError, match=expected):
        tsds.pull(path, out, update=True)
    assert (files_of(out) if out.is_dir() else {"": out.read_bytes()}) == before
    assert not (tmp_path / f"{out.name}.partial").exists()


def test_links_are_not_followed(grown: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out)
    append(path)
    (out / "train").rename(tmp_path / "elsewhere")
    (out / "train").symlink_to(tmp_path / "elsewhere")
    before = files_of(tmp_path / "elsewhere")
    with pytest.raises(tsds.TsdsError):
        tsds.pull(path, out, update=True)
    assert files_of(tmp_path / "elsewhere") == before


def test_the_advice_of_the_command_leads_to_success(grown: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = grown
    out = tmp_path / "copy.tsds"
    assert command("pull", str(path), str(out)).exit_code == 0
    append(path)
    for name in ("copy", "pull"):
        refused = command(name, str(path), str(out))
        assert refused.exit_code == 1 and "Update it with tsds pull and --update" in refused.stderr
    assert command("pull", str(path), str(out), "--update", "--verify").exit_code == 0
    assert np.array_equal(tsds.open(out)["train"]["label"][:], tsds.open(path)["train"]["label"][:])


@pytest.mark.parametrize("part", [{}, {"fields": ["image", "label", "key"]}])
def test_an_erasure_of_before_is_no_reason_to_lose_readers(grown: tuple[Path, str], tmp_path: Path, part: Any) -> None:
    path, _ = grown
    erase(path)
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out, **part)
    reader, was = tsds.open(out), values(tsds.open(out))
    update_labels(path)
    tsds.pull(path, out, update=True, **part)
    if not part:  # the root of a part lists no replaced shards
        assert values(reader) == was
    assert values(tsds.open(out)) != was and tsds.verify(out) == []


def test_a_split_that_came_and_went(grown: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out)
    write_images(tmp_path / "more" / "val", 100, 2)
    tsds.append(path, tmp_path / "more")
    tsds.erase(path, rows={"val": [0, 1]})
    tsds.pull(path, out, update=True)
    assert tsds.verify(out) == [] and list(tsds.open(out)) == list(tsds.open(path))


@pytest.mark.parametrize("has_grown", [True, False])
@pytest.mark.parametrize("damage", ["zeros", "cut", "gone", "list"])
def test_a_damaged_copy_is_mended(grown: tuple[Path, str], tmp_path: Path, damage: str, has_grown: bool) -> None:
    path, _ = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out)
    damaged = min(each for each in (out / "train").rglob("*") if each.is_file() and "/image/c/" in each.as_posix())
    size = damaged.stat().st_size
    if damage == "gone":
        damaged.unlink()
    elif damage == "list":
        (out / damaged.relative_to(out).parents[-3] / "zarr.json").write_bytes(b"{")
    else:
        damaged.write_bytes(bytes(size if damage == "zeros" else size // 2))
    if damage == "zeros":
        with pytest.raises(tsds.FormatError, match=r"same command again, or mend it with `update=True`\."):
            tsds.pull(path, out, verify=True)
    if has_grown:
        append(path)
    done = tsds.pull(path, out, update=True, verify=damage != "gone")
    assert not done.was_there and (damage == "list" or done.moved >= size)
    assert tsds.verify(out) == [] and files_of(out) == files_of(path)


def test_a_damaged_store_leaves_the_copy(grown: tuple[Path, str], tmp_path: Path) -> None:
    path, _ = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out)
    append(path)
    before = files_of(out)
    last = max(each for each in (path / "train").rglob("*") if each.is_file() and "/image/c/" in each.as_posix())
    last.write_bytes(bytes(last.stat().st_size))
    with pytest.raises(tsds.TsdsError):
        tsds.pull(path, out, update=True)
    assert files_of(out) == before and tsds.verify(out) == []


@pytest.mark.parametrize("what", ["link", "notes.txt", "train/notes.txt", "train/00000/image/x", "copy is a link"])
def test_what_is_not_of_the_store_is_left_alone(grown: tuple[Path, str], tmp_path: Path, what: str) -> None:
    path, _ = grown
    out, precious = tmp_path / "copy.tsds", tmp_path / "precious"
    tsds.pull(path, out)
    write_images(tmp_path / "more" / "val", 100, 2)
    tsds.append(path, tmp_path / "more")
    (precious / "00000").mkdir(parents=True)
    (precious / "00000" / "x").write_text("mine")
    if what == "link":
        (out / "val").symlink_to(precious)
    elif what != "copy is a link":
        (out / what).write_text("mine")
    else:
        out.rename(tmp_path / "elsewhere.tsds")
        out.symlink_to(tmp_path / "elsewhere.tsds")
    before = files_of(precious), files_of(out)
    with pytest.raises(tsds.OptionError, match=r"expected (files of the store|the folder of a copy)"):
        tsds.pull(path, out, update=True)
    assert (files_of(precious), files_of(out)) == before and len(tsds.open(out)["train"]) == ROWS


def test_own_changes_of_a_part_are_kept(
    grown: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = grown
    out, part = tmp_path / "copy.tsds", {"fields": ["label", "key"]}
    tsds.pull(path, out, **part)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    for each in (path, out):
        add_field(each)
    with pytest.raises(tsds.errors.StoreExistsError, match="found another store"):
        tsds.pull(path, out, update=True, fields=["label", "key", "loss"])


def test_a_store_that_changes_between_two_calls(
    grown: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The work of an interrupted refresh is dropped, and no file of the copy is written into."""
    path, _ = grown
    out = tmp_path / "copy.tsds"
    tsds.pull(path, out)
    before = files_of(out)
    for change in (append, update_labels):
        change(path)
        with monkeypatch.context() as patch:
            patch.setattr(receiving.Pull, "complete", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                tsds.pull(path, out, update=True)
        assert files_of(out) == before
    out.rename(tmp_path / "moved.tsds")
    with pytest.raises(tsds.OptionError, match="parts of another copy"):
        tsds.pull(path, out)
    (tmp_path / "moved.tsds").rename(out)
    assert files_of(out) == before
    tsds.pull(path, out, update=True)
    assert tsds.open(out).sha256 == tsds.open(path).sha256 and tsds.verify(out) == []


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt
