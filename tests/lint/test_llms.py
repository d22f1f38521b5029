"""The documentation for programs that read text: complete, without directives, and with links that lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from doc_pages import DOCS, ROOT
from public_names import public_names

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site has beside its HTML."""
    spec = importlib.util.spec_from_file_location("llms", DOCS / "llms.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("site")
    write: Callable[[Path], list[str]] = module.write
    assert sorted(write(folder)) == sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    return folder


def test_each_page_is_there_and_listed_once(site: Path) -> None:
    own = {path.relative_to(DOCS).with_suffix(".md") for path in (*DOCS.glob("*.md"), *DOCS.glob("*/*.*"))}
    own = {path for path in own if path.parts[0] not in ("ru", "zh-CN", "formats", "examples", "_build", "_static")}
    own = {path for path in own if (DOCS / path).exists() or (DOCS / path).with_suffix(".rst").exists()}
    own |= {path.relative_to(ROOT) for path in (ROOT / "formats" / "sources").glob("*.md")}
    assert own <= {path.relative_to(site) for path in site.rglob("*.md")}
    text = (site / "llms.txt").read_text("utf-8")
    assert text.startswith("# tensorstore-ds\n\n> Convert a folder") and text.count("\n# ") == 0
    listed = re.findall(r"^- \[.+\]\((.+?)\): \S", text, re.MULTILINE)
    assert len({*listed}) == len(listed) and {str(path) for path in own} - {"index.md"} <= {*listed}


def test_no_directive_is_left(site: Path) -> None:
    for path in site.rglob("*.md"):
        text = path.read_text("utf-8")
        assert text.startswith("# ") and "{toctree}" not in text and "{include}" not in text, path
        assert not re.search(r"^\.\. \w+::|:(?:class|doc|func|obj):`|\{eval-rst\}", text, re.MULTILINE), path


def test_links_lead_to_pages(site: Path) -> None:
    for path in site.rglob("*.md"):
        for link in _LINK.findall(_CODE.sub("", path.read_text("utf-8"))):
            page = Path(os.path.normpath(path.parent / link))
            is_of_site = link.endswith(".md") and not re.match(r"https?:", link)
            in_repository = ROOT / page.relative_to(site) if page.is_relative_to(site) else ROOT / page.name
            outside = in_repository.exists() or (DOCS / link).exists()
            assert not is_of_site or page.exists() or outside, (path, link)


def test_the_one_file_has_the_guide_and_every_public_name(site: Path) -> None:
    text = (site / "llms-full.txt").read_text("utf-8")
    for name in ("quickstart", "training", "writing", "editing", "sharing"):
        assert (site / f"{name}.md").read_text("utf-8").strip() in text
    headings = {*re.findall(r"^### (\S+)$", text, re.MULTILINE)}
    names = {re.sub(r"^tensorstore_ds\.(annex\.)?", "tsds.", name) for name in public_names()}
    assert names <= headings
    assert "tsds.convert(\n    source: " in text and "by: By = 'key'," in text
    assert text.count("```") % 2 == 0 and " object at 0x" not in text
