"""Fields of a data type, a layout or a requirement that came later: all other fields are read, by every way."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from small_stores import tsds as command
from tensorstore_ds.errors import FormatError

STORE = Path(__file__).parents[1] / "formats/v1/conformance/valid/unreadable-fields.tsds"
REASONS = {
    "embedding": "the data type bfloat16",
    "depth": "the layout blosc2",
    "tracks": "the requirement 'deltas'",
    "points": "the data type float8_e4m3",
}


def run(*words: object) -> tuple[int, str]:
    done = command(*words)
    return done.exit_code, done.output


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORE, tmp_path / "s.tsds"))


def test_the_other_fields_are_read_and_these_are_named() -> None:
    split = tsds.open(STORE)["train"]
    assert set(split.fields) == {"image", "label"}
    assert split["label"].take([0, 1]).tolist() == [1, 0]
    assert set(split[0]) == {"image", "label"}
    for name, reason in REASONS.items():
        with pytest.raises(FormatError) as caught:
            split[name]
        assert caught.value.reason == "unreadable-field"
        assert reason in str(caught.value)


def test_info_and_verify_name_them() -> None:
    for word in ("info", "verify"):
        code, output = run(word, STORE)
        assert code == 0
        for name, reason in REASONS.items():
            assert any(name in line and reason in line for line in output.splitlines()), (word, name)


def test_a_data_set_has_the_other_fields() -> None:
    torch = pytest.importorskip("torch")
    sample = tsds.StoreDataset(STORE, "train")[1]
    assert set(sample) == {"image", "label"}
    assert torch.equal(torch.as_tensor(sample["label"]), torch.tensor(0))


@pytest.mark.parametrize(
    "words",
    [
        ("filter", "{store}", "{out}", "--where", "label == 'a'"),
        ("merge", "{store}", "{store}", "{out}"),
        ("repack", "{store}", "{out}", "--layout", "zarr"),
    ],
)
def test_rows_are_not_written_anew_without_them(words: tuple[str, ...], store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tsds"
    code, output = run(*(word.format(store=store, out=out) for word in words))
    assert code != 0
    assert "embedding" in output and "bfloat16" in output
    assert not out.exists()


def test_it_does_not_grow(store: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "more.npz", images=np.zeros((1, 4, 4, 1), np.uint8), labels=np.zeros(1, np.int64))
    before = (store / "zarr.json").read_bytes()
    code, output = run("append", store, tmp_path / "more.npz")
    assert code != 0
    assert "embedding" in output
    assert (store / "zarr.json").read_bytes() == before


def test_no_sample_is_erased(store: Path) -> None:
    before = (store / "zarr.json").read_bytes()
    code, output = run("erase", store, "--where", "label == 'a'")
    assert code != 0
    assert "embedding" in output
    assert (store / "zarr.json").read_bytes() == before
    assert tsds.verify(store) == []


def test_a_copy_has_them_and_a_part_may_leave_them_out(store: Path, tmp_path: Path) -> None:
    tsds.copy(store, tmp_path / "all.tsds")
    assert tsds.open(tmp_path / "all.tsds").sha256 == tsds.open(store).sha256
    assert tsds.verify(tmp_path / "all.tsds") == []
    tsds.pull(store, tmp_path / "part.tsds", fields=["image", "tracks"])
    part = tsds.open(tmp_path / "part.tsds")
    assert (set(part.manifest.fields), set(part.manifest.unreadable)) == ({"image"}, {"tracks"})
    assert tsds.verify(tmp_path / "part.tsds") == []
    assert (tmp_path / "part.tsds/train/00000/tracks/deltas/c/0").read_bytes() == b"2"


def test_notes_and_packing_keep_them(store: Path, tmp_path: Path) -> None:
    tsds.annotate(store, license="MIT")
    assert set(tsds.open(store).manifest.unreadable) == set(REASONS)
    tsds.pack(store, tmp_path / "s.tsds.zip")
    assert tsds.verify(tmp_path / "s.tsds.zip") == []
    assert tsds.open(tmp_path / "s.tsds.zip")["train"]["label"].take([0]).tolist() == [1]


def test_they_can_be_real_arrays_with_metadata(store: Path, tmp_path: Path) -> None:
    """A later version has a zarr.json for its arrays; the files are hashed as they are."""
    code, output = run("verify", store)
    assert (code, "OK" in output) == (0, True)
    (store / "train/00000/embedding/c/0/0").write_bytes(b"x" * 16)
    assert [problem.reason for problem in tsds.verify(store)] == ["checksum"]
    (store / "train/00000/embedding/c/0/0").unlink()
    assert {problem.reason for problem in tsds.verify(store)} == {"missing-file"}
