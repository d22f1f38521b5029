"""The guide lists every page once, in the order of the sidebar; the page of error codes has every reason code."""

from __future__ import annotations

import re
import tomllib

from doc_pages import DOCS, ROOT, blocks

#: Pages that the first page lists: they are beside the guide in the bar at the top.
BESIDE = ["commands", "api/index"]


def sidebar() -> list[tuple[str, str]]:
    """Titles and pages of the guide's tables of contents, in order."""
    found = [block.text for block in blocks("docs/guide.md") if block.kind == "{toctree}"]
    return [entry for text in found for entry in re.findall(r"^(.+) <(.+)>$", text, re.MULTILINE)]


def test_the_guide_lists_what_the_sidebar_lists() -> None:
    text = (DOCS / "guide.md").read_text("utf-8")
    links = re.findall(r"^- \[([^\]]+)\]\((\S+)\.md\)", text, re.MULTILINE)
    listed = [(title, page.removeprefix("../")) for title, page in links]
    assert [entry for entry in listed if entry[1] not in BESIDE] == sidebar()
    assert len({page for _, page in listed}) == len(listed)
    groups = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert groups == re.findall(r"^:caption: (.+)$", text, re.MULTILINE)


def test_the_guide_lists_every_page() -> None:
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index", "guide", *BESIDE}
    assert pages == {page for _, page in sidebar() if "/" not in page}


def test_every_entry_of_the_guide_says_when_to_read_it() -> None:
    text = (DOCS / "guide.md").read_text("utf-8")
    for entry in re.findall(r"^- \[.+?(?=\n- |\n\n)", text, re.MULTILINE | re.DOTALL):
        sentence = entry.partition("): ")[2]
        assert sentence.endswith("."), entry
        assert 15 < len(sentence) < 150, entry


def test_the_page_of_error_codes_has_every_code() -> None:
    reasons = (ROOT / "formats/v1/reasons.md").read_text("utf-8")
    wanted = set(re.findall(r"^\| `([a-z0-9-]+)` \|", reasons, re.MULTILINE))
    page = (DOCS / "errors.md").read_text("utf-8").partition("\n## Errors of options")[0]
    tables = "".join(re.findall(r"^\| (`.*?) \|", page, re.MULTILINE))
    listed = page.partition("The program that wrote the store has an error:")[2].partition("Convert again.")[0]
    found = re.findall(r"`([a-z0-9-]+)`", tables + listed)
    assert wanted == {*found}


def test_the_page_of_the_installation_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    table = (DOCS / "install.md").read_text("utf-8").partition("\n## Extras\n")[2].partition("\n## ")[0]
    found = re.findall(r"`([a-z0-9]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert sorted(found) == sorted(project["optional-dependencies"])
