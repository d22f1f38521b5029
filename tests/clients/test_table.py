"""The table of docs/clients.md says what the other tests of this folder have shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from clients.table import FRAMEWORKS, LIMITS, PAGE, WORKS, marked_lines, table, with_table, without_versions

FILES = list(Path(__file__).parent.glob("test_*.py"))


@pytest.fixture
def whole_table(request: pytest.FixtureRequest) -> str:
    """The table of this run, if all tests ran and none failed."""
    config, session = request.config, request.session
    marked = {mark.args for item in session.items for mark in item.iter_markers() if mark.name in ("works", "limit")}
    seen = {(name, what) for key in (WORKS, LIMITS) for name, each in config.stash[key].items() for what in each}
    if session.testsfailed or seen != marked or len({item.path for item in session.items}) < len(FILES):
        pytest.skip("not all tests of this folder ran, or some failed")
    assert {name for name, _ in seen} == set(FRAMEWORKS)
    return table(config.stash[WORKS], config.stash[LIMITS])


def test_the_page_says_what_ran(whole_table: str, request: pytest.FixtureRequest) -> None:
    page = PAGE.read_text("utf-8")
    if request.config.getoption("write"):
        PAGE.write_text(with_table(page, whole_table), "utf-8")
    else:
        assert without_versions(with_table(page, whole_table)) == without_versions(page), "make test-clients WRITE=1"


def test_lines_are_counted() -> None:
    code = "x = 1  # tsds\n\n\nclass A:  # tsds\n    b = 1\n\n    c = 2\n\n\ndef f():\n    return 1\n"
    assert marked_lines(code) == 4


def test_versions_may_differ() -> None:
    page = "| timm: `a.py` | 1.0 | b | 3 | c |\n"
    assert without_versions(page) == without_versions(page.replace("1.0", "1.1"))
    assert without_versions(page) != without_versions(page.replace("3", "4"))
