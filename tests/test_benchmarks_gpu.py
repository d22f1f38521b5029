"""How the parts of ``python -m benchmarks gpu`` are run and judged; tests/fake_cuda runs the parts themselves."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import main as benchmarks_main
from benchmarks.figures import page
from benchmarks.gpu import part, run
from benchmarks.gpu.data import NotHereError, Settings
from benchmarks.gpu.run import PARTS, Outcome, main, run_part, shown
from benchmarks.measure import Figure

RIGHT, WRONG = Figure("wrong epochs", 0, 0), Figure("wrong epochs", 2, 0)


def outcomes_of(monkeypatch: pytest.MonkeyPatch, **found: Outcome) -> None:
    """Let parts have found this, on a machine with a GPU."""
    monkeypatch.setattr(run, "has_gpu", lambda: True)
    facts = Outcome("facts", rows=[{"gpu": "Fast One", "driver": "driver 1.2"}])
    monkeypatch.setattr(run, "run_part", lambda name, *_, **__: {"facts": facts, **found}[name])


def test_without_a_gpu_there_is_one_line_and_a_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "has_gpu", lambda: False)
    with pytest.raises(SystemExit) as ended:
        benchmarks_main(["gpu"])
    printed = capsys.readouterr()
    assert ended.value.code == 1 and printed.err.count("\n") == 1 and not printed.out
    assert "expected a GPU that torch can use, found none" in printed.err
    assert main(["--list"]) == 0
    assert [line.partition(" (")[0] for line in capsys.readouterr().out.splitlines()] == list(PARTS)
    assert sum(part.limit for part in PARTS.values()) <= 600
    for one in PARTS.values():
        module, _, name = one.function.partition(".")
        assert callable(getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name))


@pytest.mark.parametrize(("figure", "status", "word"), [(RIGHT, 0, "right: wrong epochs"), (WRONG, 1, "WRONG: wrong")])
def test_the_status_tells_what_is_wrong(
    figure: Figure,
    status: int,
    word: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcomes_of(monkeypatch, races=Outcome("races", 1.0, [{"loader": "threads", "batches": 4}], [figure]))
    assert main(["--parts", "races", "--out", str(tmp_path / "gpu.json")]) == status
    assert word in (printed := capsys.readouterr().out) and "| loader  | batches |" in printed
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["machine"]["gpu"] == "Fast One" and [one["part"] for one in result["parts"]] == ["facts", "races"]
    assert result["figures"][0]["met"] is (status == 0)


def test_what_fails_has_no_time_or_is_ended(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broken = {name: Outcome(name, reason="status 1: no", failed=True) for name in ("races", "ddp", "copies")}
    outcomes_of(monkeypatch, **broken)
    assert [main(["--parts", name]) for name in broken] == [1, 1, 0]  # the first two are proofs
    capsys.readouterr()
    assert main(["--parts", "idle", "--seconds", "0"]) == 0
    assert "not measured to the end: facts, idle" in capsys.readouterr().out

    def ended(name: str, *_: Any, **__: Any) -> Outcome:
        if name == "idle":
            raise KeyboardInterrupt
        return Outcome(name, rows=[{"GB/s": 3}])

    monkeypatch.setattr(run, "run_part", ended)
    with pytest.raises(KeyboardInterrupt):
        main(["--parts", "copies,idle", "--out", str(tmp_path / "gpu.json")])
    assert shown(json.loads((tmp_path / "gpu.json").read_text()), "copies") == "GB/s: 3 to 3"


def test_a_part_in_its_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run_code(code: str, seconds: float = 300) -> Outcome:
        monkeypatch.setattr(run, "_command", lambda name, scratch, file, small: [sys.executable, "-c", code, str(file)])
        return run_part("copies", tmp_path, seconds)

    failed = run_code("raise ValueError('no such thing')")
    assert failed.failed and "not measured to the end: status 1: ValueError: no such thing" in failed.lines()

    def yields(settings: Settings) -> Any:
        yield {"small": settings.small}
        yield RIGHT
        raise NotHereError("no nvJPEG")

    monkeypatch.setattr("benchmarks.gpu.speed.copies", yields)
    part.main(["copies", str(tmp_path), str(tmp_path / "copies.jsonl"), "--small"])
    content = (tmp_path / "copies.jsonl").read_text()
    found = run_code(f"import sys; open(sys.argv[1], 'w').write({content!r})")
    assert (found.rows, found.figures, found.reason) == ([{"small": True}], [RIGHT], "no nvJPEG")
    assert not found.failed and not found.wrong
    (tmp_path / "copies.jsonl").write_text('{"row": {"GB/s": 3}}\n{"row": {"GB')
    late = run_code("import time; time.sleep(3600)", 0.1)
    assert late.rows == [{"GB/s": 3}] and "more than" in late.reason and not late.failed


def test_the_page_has_what_was_measured() -> None:
    outcomes = [Outcome("facts", rows=[{"gpu": "Fast One"}]), Outcome("memory", figures=[WRONG])]
    outcomes += [Outcome("copies", rows=[{"GB/s": 3}, {"GB/s": 2000.5}]), Outcome("nvjpeg", reason="no nvJPEG")]
    result = run.result_of(outcomes)
    expected = {"memory": "WRONG", "copies": "GB/s: 3 to 2,000.5", "nvjpeg": "not measured to the end: no nvJPEG"}
    assert {name: shown(result, name) for name in expected} == expected
    assert shown(result, "idle") == "not measured" and "Fast One" in page({"gpu": result})


@pytest.mark.parametrize("arguments", [["--parts", "races,nonsense"], ["--out", "/nowhere/at/all.json"], ["more"]])
def test_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
