from __future__ import annotations

import doctest
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest

from command_pages import VARYING, masked, page as page_of, run_examples
from doc_pages import DOCS, ROOT, RUN, Page, blocks, made_stores, pages, write_sources
from tsds_cli.main import COMMANDS

PAGES = pages()


# --- what the pages begin with ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data sets that pages convert, and, for pages that begin with one, the stores that others have converted."""
    root = tmp_path_factory.mktemp("sources")
    write_sources(root)
    return root


@pytest.fixture(scope="module")
def context() -> Iterator[ForkServerContext]:
    """Makes processes that have torch loaded: to load it takes longer than most commands do."""
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(["doc_pages", "tensorstore_ds.annex.training.train", "matplotlib.figure"])
    yield found
    forkserver._forkserver._stop()


# --- tests ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(15)
@pytest.mark.skipif(sys.platform != "linux", reason="pages look into /proc, and evict")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.startswith("docs/commands/") and any(b.kind in RUN for b in blocks(page))],
)
def test_every_command_and_snippet_runs(page: str, sources: Path, tmp_path: Path, context: ForkServerContext) -> None:
    folder, log = tmp_path / "page", tmp_path / "log"
    own = made_stores(page)
    shutil.copytree(sources, folder, copy_function=os.link, ignore=lambda _, names: own.intersection(names))
    with Page(page, folder, log, context) as run:
        failed = run.run()
    if failed:
        pytest.fail(f"{failed}\n{log.read_text('utf-8', 'replace')[-4000:]}", pytrace=False)


@pytest.mark.slow
@pytest.mark.drawn(6)
@pytest.mark.skipif(sys.platform != "linux", reason="commands warm and evict")
@pytest.mark.parametrize("name", [name for name in COMMANDS if "```console" in page_of(name).read_text("utf-8")])
def test_the_page_of_a_command_shows_what_it_prints(name: str, sources: Path, disk_path: Path) -> None:
    folder = shutil.copytree(sources, disk_path / "page")
    shown = [block.text for block in blocks(str(page_of(name).relative_to(ROOT))) if block.kind == "console"]
    printed = run_examples(page_of(name), folder)
    assert all(len(text.splitlines()) > text.count("$ ") for text in printed)
    if name not in VARYING:
        assert [masked(text) for text in printed] == [masked(text) for text in shown]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "failed"),
    [
        ("```bash\ntsds info\n# tsds nonsense\n```\n", "page.md:2: tsds info"),
        ("```console\n$ tsds --version\n0\n$ tsds info nothing.tsds\n```\n", "page.md:2: tsds info nothing.tsds"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", "page.md:6"),
        ("```python\n# never.py\n```\n", "no command runs never.py"),
        ("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n", None),
    ],
)
def test_what_fails_is_noticed(code: str, failed: str | None, tmp_path: Path, context: ForkServerContext) -> None:
    page = tmp_path / "page.md"
    page.write_text(code, "utf-8")
    with Page(str(page), tmp_path, tmp_path / "log", context) as run:
        found = run.run()
    assert (found and found.removeprefix(f"{tmp_path}/")) == failed


@pytest.mark.drawn(5)
@pytest.mark.parametrize("page", sorted(path.name for path in (DOCS / "api").glob("*.rst")))
def test_examples_of_pages_run(page: str, place: Callable[[str], dict[str, Any]]) -> None:
    text = (DOCS / "api" / page).read_text("utf-8")
    examples = doctest.DocTestParser().get_examples(text)
    assert examples
    test = doctest.DocTest(examples, place(text), page, str(DOCS / "api" / page), 0, text)
    log = list[str]()
    assert not doctest.DocTestRunner(verbose=False).run(test, out=log.append).failed, "".join(log)
