"""The page of figures and the README's table say what the results in benchmarks/results/ say."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import figures
from benchmarks.__main__ import MEASUREMENTS, main
from benchmarks.figures import (
    CHART,
    END,
    HEADLINE,
    INDEX,
    PAGE,
    README,
    draw,
    headline,
    load_results,
    page,
    short_table,
    text_with,
)
from benchmarks.measure import Settings

RESULTS = load_results()


def test_the_page_is_made_of_the_results() -> None:
    assert PAGE.read_text() == page(RESULTS), "python -m benchmarks.figures writes it"


def test_the_table_of_the_readme_is_made_of_them_too() -> None:
    text = README.read_text()
    assert text == text_with(text, short_table(RESULTS["loading"])) and text.count(END) == 1
    assert len(short_table(RESULTS["loading"]).splitlines()) == 2 + 6 + 2


def test_so_is_the_figure_of_the_first_page() -> None:
    text = INDEX.read_text()
    assert text == text_with(text, headline(RESULTS["loading"]), *HEADLINE)
    (rate,) = re.findall(r"\*\*([\d,]+) images per second\*\*", text)
    assert f"**tensorstore-ds** | **{rate}** (" in README.read_text()


def test_the_factors_of_photographs_are_those_of_their_rates() -> None:
    figures = RESULTS["photographs"]["figures"]
    for figure in figures:
        ours, theirs = (float(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", figure["note"])[:2])
        assert figure["value"] == pytest.approx(ours / theirs, rel=0.005), figure["what"]
    crops = "speed, photographs, training crops, encoding `jpeg`, relative to"
    named = [one for one in figures if one["what"].startswith(crops)]
    shown = [f"{figure['value']:.1f}x" for figure in named]
    (sentence,) = re.findall(r"training crops of photographs come [^.]*\.[^.]*\.[^.]*\.", README.read_text())
    assert re.findall(r"[\d.]+x", sentence) == shown


def test_every_result_is_of_a_measurement_and_says_its_machine_and_date() -> None:
    assert set(RESULTS) <= {*MEASUREMENTS, "gpu"}
    assert all(
        {"cpu", "libc", "python", "torch", "numpy", "date"} <= result["machine"].keys() for result in RESULTS.values()
    )


def test_another_result_is_another_page() -> None:
    results = copy.deepcopy(RESULTS)
    results["loading"]["races"][0]["ways"][0]["rate"] = 1234.4
    results["loading"]["races"][0]["ways"][-1].update(rate=None, reason="it broke")
    changed = page(results)
    assert "| **1,234** (" in changed and "| not measured: it broke |" in changed
    assert "**1,234**" in short_table(results["loading"])


def test_what_was_not_measured_is_left_out() -> None:
    assert "tsds --help" in page({"startup": RESULTS["startup"]})
    assert "## Loading" not in page({"startup": RESULTS["startup"]})


def test_the_chart_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(RESULTS["loading"], tmp_path / "chart.png")
    with Image.open(tmp_path / "chart.png") as image, Image.open(CHART) as committed:
        assert image.size == committed.size and len(image.convert("RGB").getcolors(10**6) or ()) > 10


def test_a_measurement_becomes_a_file_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def measure(settings: Settings) -> dict[str, object]:
        assert settings.digits == tmp_path and settings.scratch.is_dir()
        return {"machine": {"cpu": "AMD", "memory": "1 GiB"}, "figures": []}

    (tmp_path / "train").mkdir()
    monkeypatch.setattr("benchmarks.__main__.MEASUREMENTS", {"take": measure})
    monkeypatch.setattr(figures, "main", written.append)
    main(["take", "--mnist", str(tmp_path), "--results", str(tmp_path / "out")])
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["take.json"] and not written
    monkeypatch.setattr("benchmarks.__main__.RESULTS", tmp_path / "out")
    main(["take", "--mnist", str(tmp_path), "--results", str(tmp_path / "out")])
    assert written == [[]]


@pytest.mark.parametrize("arguments", [["nonsense"], ["--repeat", "0"], ["--mnist", "/nowhere"], ["--voc", "/nowhere"]])
def test_wrong_usage(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
