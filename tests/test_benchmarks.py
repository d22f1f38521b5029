"""The benchmark of loaders: its data, its proof of what was delivered, and its loaders' processes, on tiny sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import lane, race
from benchmarks.checksums import Columns, digest, expected_digest, marks
from benchmarks.loading import large_figures, objects_figures
from benchmarks.measure import Figure, Table
from benchmarks.peers import ALL, MEMCPY, OURS, PEERS, Peer
from benchmarks.race import Entry, Result
from benchmarks.samples import Arrays, make_digits, make_noise, open_arrays

ROWS, SHAPE = 21, (8, 6, 3)


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks") / "noise"
    make_noise(folder, ROWS, SHAPE)
    return folder


def batches(folder: Path, rows: list[int], size: int = 4) -> list[Columns]:
    """Columns of some rows, images as (B, C, H, W)."""
    images, labels = (torch.from_numpy(np.array(array)) for array in open_arrays(folder))
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return [Columns(images[part].permute(0, 3, 1, 2), labels[part]) for part in parts]


def digest_of(found: list[Columns]) -> str:
    return digest(mark for columns in found for mark in marks(columns, grey=False))


def test_any_order_of_all_samples_has_the_expected_digest(noise: Path) -> None:
    order = np.random.default_rng(0).permutation(ROWS).tolist()
    assert digest_of(batches(noise, order)) == expected_digest(noise)


@pytest.mark.parametrize("rows", [[*range(ROWS - 1)], [*range(ROWS), 3], [*range(ROWS - 1), 3]])
def test_a_sample_that_is_missing_or_repeated_changes_the_digest(noise: Path, rows: list[int]) -> None:
    assert digest_of(batches(noise, rows)) != expected_digest(noise)


def test_labels_that_went_to_other_images_change_the_digest(noise: Path) -> None:
    (columns,) = batches(noise, [*range(ROWS)], ROWS)
    assert digest_of([Columns(columns.images, columns.labels.roll(1))]) != expected_digest(noise)


def test_boxes_count_in_any_order_within_their_image() -> None:
    image = torch.ones(1, 3, 4, 4).byte()
    boxes, labels = torch.tensor([[1.0, 2, 3, 4], [0, 0, 2, 2]]), torch.tensor([1, 0])

    def of(boxes: torch.Tensor, labels: torch.Tensor) -> str:
        return digest(marks(Columns(image, torch.empty(0), [(labels, boxes)]), grey=False))

    assert of(boxes, labels) == of(boxes.flip(0), labels.flip(0))
    assert of(boxes, labels) != of(boxes, labels.flip(0))
    assert of(boxes, labels) != of(boxes[:1], labels[:1])


def test_grey_files_as_three_channels_have_the_digest_of_one(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in "01":
        (tmp_path / "files" / label).mkdir(parents=True)
        for i in range(3):
            Image.fromarray(rng.integers(0, 256, (5, 4), np.uint8)).save(tmp_path / "files" / label / f"{i}.png")
    folder = tmp_path / "digits"
    make_digits(folder, tmp_path / "files")
    assert Arrays(folder)[5][1] == 1
    images, labels = (torch.from_numpy(np.array(array)) for array in open_arrays(folder))
    columns = Columns(images.permute(0, 3, 1, 2).expand(-1, 3, -1, -1), labels)
    assert digest(marks(columns, grey=True)) == expected_digest(folder)


@pytest.mark.slow
def test_a_race_of_a_loader_that_works_and_one_that_fails(
    noise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "_say", lambda text: None)
    entries = Entry(OURS, "2 threads", 4), Entry(Peer("Broken", "no_such_peer"), "", 4)
    ours, broken = race.race(entries[:1], entries[1:], noise, tmp_path, repeat=2, expected=expected_digest(noise))
    assert ours.state == "ready", ours.reason
    assert ours.rows == ROWS and len(ours.seconds) == 2 and ours.behind == [1, 1] and ours.rate
    assert broken.state == "failed" and "no_such_peer" in broken.reason and broken.rate is None
    assert not list(tmp_path.iterdir())  # what was converted is gone


def test_a_loader_that_delivers_something_else_is_no_result(
    noise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "_say", lambda text: None)
    (result,) = race.race([Entry(MEMCPY, "1 thread", 4)], [], noise, tmp_path, repeat=1, expected="another")
    assert result.state == "failed" and "not what is stored" in result.reason and result.rate is None


def test_a_peer_that_is_not_installed_is_missing(noise: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALL, "absent", Peer("Absent", "absent"))
    (answer,) = lane.main("absent", "", noise, tmp_path, 4)
    assert answer["state"] == "missing" and "absent" in answer["reason"]


def test_what_was_not_measured_says_how_to_install_it_and_is_neither_met_nor_missed() -> None:
    entries = [Entry(peer, mode, 4) for peer in (OURS, MEMCPY, *PEERS) for mode in peer.modes]
    share, ffcv = large_figures([Result(entry, "missing", "No module") for entry in entries])
    assert ffcv.met is None and ffcv.measured == "not measured" and "pip install ffcv" in ffcv.note
    assert share.met is None
    assert all("--voc" in figure.note for figure in objects_figures([]))
    assert Figure("it", 2.0, 1.0, at_least=True).met is True


def test_every_peer_has_its_module_and_says_how_to_get_it() -> None:
    folder = Path(race.__file__).parent / "peers"
    assert {file.stem for file in folder.glob("*.py")} - {"__init__"} == set(ALL)
    assert all(peer.install and peer.package for peer in PEERS)


def test_a_table_is_markdown() -> None:
    lines = list(Table("Loaders", ("a", "b"), [("1", "2")]).lines())
    assert lines == ["Loaders:", "", "| a | b |", "| --- | --- |", "| 1 | 2 |"]
