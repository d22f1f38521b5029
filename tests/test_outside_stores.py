"""No command writes a store, an archive or a folder into a store: a store lists its files, and has no others."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import tsds as command
from stores import class_folders

#: The arguments of each command that writes something new, of the store `a.tsds` and what goes with it.
COMMANDS: dict[str, tuple[str, ...]] = {
    "convert": ("convert", "photos", "OUT"),
    "plan": ("plan", "photos", "OUT", "--tasks", "2"),
    "repack": ("repack", "a.tsds", "OUT", "--layout", "zarr"),
    "repack --encoding": ("repack", "a.tsds", "OUT", "--encoding", "jpeg"),
    "export": ("export", "a.tsds", "OUT", "--to", "folders"),
    "filter": ("filter", "a.tsds", "OUT", "--split", "train"),
    "split": ("split", "a.tsds", "OUT", "train=0.5,val=0.5"),
    "sample": ("sample", "a.tsds", "OUT", "--per-class", "1"),
    "relabel": ("relabel", "a.tsds", "OUT", "--class-map", "names.txt"),
    "merge": ("merge", "other.tsds", "a.tsds", "OUT"),
    "pack": ("pack", "a.tsds", "OUT"),
    "unpack": ("unpack", "a.zip", "OUT"),
    "pull": ("pull", "URL", "OUT"),
    "copy": ("copy", "a.tsds", "OUT"),
    "pull of a part": ("pull", "URL", "OUT", "--only", "train"),
    "card": ("card", "a.tsds", "OUT"),
    "preview": ("preview", "a.tsds", "--out", "OUT.png"),
    "check": ("check", "a.tsds", "--no-near", "--min-class", "0", "--out", "OUT"),
}
#: More of them, which need longer for what they write, or write only what they find.
REFUSED = COMMANDS | {
    "check --picture": ("check", "a.tsds", "--picture", "OUT.png"),
    "train": ("train", "a.tsds", "--device", "cpu", "--out", "OUT"),
    "bench": ("bench", "a.tsds", "--out", "OUT"),
    "demo": ("demo", "--no-train", "--out", "OUT"),
}


def arguments(name: str, folder: Path, out: str) -> list[str]:
    replaced = {"OUT": out, "OUT.png": f"{out}.png", "URL": (folder / "a.tsds").as_uri()}
    return [replaced.get(each, each) for each in REFUSED[name]]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outside")
    class_folders(folder / "photos", per_class=2)
    tsds.convert(folder / "photos", folder / "a.tsds", tsds.ConvertOptions(workers=0))
    tsds.editing.filter_store(folder / "a.tsds", folder / "other.tsds", splits=["train"])
    tsds.pack(folder / "a.tsds", folder / "a.zip")
    (folder / "names.txt").write_text("ant = bee\n")
    (folder / "link.tsds").symlink_to("a.tsds")
    (folder / "within").symlink_to("a.tsds/train/00000", target_is_directory=True)
    return folder


#: How the place in the store is written.
PLACES: dict[str, Callable[[Path], str]] = {
    "in the store": lambda folder: str(folder / "a.tsds" / "new"),
    "in a shard": lambda folder: str(folder / "a.tsds" / "train" / "00000" / "new"),
    "behind a link to the store": lambda folder: str(folder / "link.tsds" / "new"),
    "behind a link to a shard": lambda folder: str(folder / "within" / "new"),
    "relative": lambda folder: os.path.join("other.tsds", "..", "a.tsds", "new"),  # noqa: PTH118
}


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("name", "place"), [*((name, "in the store") for name in REFUSED), *(("copy", place) for place in PLACES)]
)
def test_refused(prepared: Path, name: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    before, out = names_in(prepared), PLACES[place](prepared)
    result = command(*arguments(name, prepared, out))
    assert result.exit_code == 1
    assert "lies inside the store" in result.stderr and str(prepared / "a.tsds") in result.stderr
    assert len([line for line in result.stderr.splitlines() if not line.startswith("note: ")]) == 1
    assert names_in(prepared) == before
    assert tsds.verify(prepared / "a.tsds") == []


@pytest.mark.parametrize("name", COMMANDS)
def test_written_elsewhere(prepared: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same command, with the advice of the message followed."""
    monkeypatch.chdir(prepared)
    result = command(*arguments(name, prepared, str(tmp_path / "new")))
    assert result.exit_code == 0, result.output
    assert os.listdir(tmp_path)


def test_writer_and_append(prepared: Path) -> None:
    with pytest.raises(tsds.OptionError, match="lies inside the store"), tsds.Writer(prepared / "a.tsds/new") as writer:
        writer.append("train", np.zeros((2, 2, 3), np.uint8))
    before = names_in(prepared)
    with pytest.raises(tsds.OptionError, match="found a store"):
        tsds.append(prepared / "a.tsds", prepared / "a.tsds/train")
    assert names_in(prepared) == before


def test_findings(prepared: Path) -> None:
    before = names_in(prepared)
    with pytest.raises(tsds.OptionError, match="lies inside the store"):
        tsds.check_store(prepared / "a.tsds").save(prepared / "a.tsds" / "findings.json")
    assert names_in(prepared) == before


@pytest.mark.parametrize("name", ["train", "bench", "demo"])
def test_a_store_is_no_folder_for_results(prepared: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(prepared)
    before = names_in(prepared)
    result = command(*arguments(name, prepared, "a.tsds"))
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1 and str(prepared / "a.tsds") in result.stderr
    assert names_in(prepared) == before


def test_beside_a_plain_zarr_group(prepared: Path, tmp_path: Path) -> None:
    """Stores may be members of a Zarr hierarchy that is not of this library."""
    (tmp_path / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    tsds.copy(prepared / "a.tsds", tmp_path / "b.tsds")
    assert tsds.verify(tmp_path / "b.tsds") == []
