"""The soak, on small numbers: the same processes, and the same bounds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import soak
from benchmarks.measure import Figure

pytestmark = [pytest.mark.slow, pytest.mark.drawn(1, of="soaks")]

linux = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from /proc")


@linux
def test_a_small_soak_keeps_the_bounds(disk_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = disk_path / "figures.json"
    given = ["--epochs", "20", "--readers", "2", "--drops", "5", "--json", str(file), "--scratch", str(disk_path)]
    assert soak.main(given) == 0, capsys.readouterr().out
    content = json.loads(file.read_text())
    assert {"cpu", "cores", "memory", "date"} <= content["machine"].keys()
    assert [figure["met"] for figure in content["figures"]] == [True] * 16
    assert re.fullmatch(r"[\d.]+ MB after 10, [\d.]+ MB after 20; \d+ s", content["figures"][0]["note"])
    assert list(disk_path.iterdir()) == [file]


def test_a_bound_that_is_exceeded_is_a_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "make_noise", lambda folder, *_: (folder.mkdir(), (folder / "images.npy").touch()))
    monkeypatch.setattr(soak, "measure_epochs", lambda *_: [Figure("memory more", 6.0, 5.0, "MB")])
    monkeypatch.setattr(soak, "measure_drops", lambda *_: [Figure("threads more", 0, 0)])
    monkeypatch.setattr(soak, "DIFFERING", 4)
    monkeypatch.setattr(soak, "measure_sizes", lambda *_: [])
    monkeypatch.setattr(soak, "measure_readers", lambda *_: [])
    monkeypatch.setattr(soak, "measure_loaders", lambda *_: [])
    assert soak.main(["--scratch", str(tmp_path)]) == 1
    monkeypatch.setattr(soak, "measure_epochs", lambda *_: [])
    assert soak.main(["--scratch", str(tmp_path)]) == 0
