"""Pages: what is not run says why, links lead somewhere, and the sidebar lists each page once."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from pathlib import Path

import click

import tensorstore_ds as tsds
from doc_pages import DOCS, ROOT, RUN, blocks, command_lines, pages
from public_names import described, public_names
from tsds_cli.main import cli

PAGES = pages()
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: Blocks that are not run: the page and how the first line begins, with the reason.
NOT_RUN = {
    "docs/quickstart.md: pip install": "installs",
    "docs/quickstart.md: photos/": "a folder tree",
    "docs/install.md: pip install": "installs",
    "docs/install.md: python -m venv": "installs",
    "docs/install.md: uv venv": "installs",
    "docs/install.md: tsds cache clear": "removes what is kept, and the package",
    "docs/migrate.md: from ffcv.loader": "needs FFCV",
    "docs/migrate.md: dataset = litdata": "needs LitData",
    "docs/encodings.md: encodings, from a few images": "what a dry run has printed; its rates are this machine's",
    "docs/large-images.md: pip install": "installs",
    "docs/sources.md: left out: not-read": "what a conversion has printed",
    "docs/resuming.md: torchrun --nproc-per-node 2 -m tsds_cli": "test_train_ranks.py starts two ranks",
    "docs/resuming.md: torchrun --nproc-per-node 2 examples/imagenet.py": "test_examples.py starts two ranks",
    "docs/resuming.md: torchrun --nnodes": "cluster/test_training.py does it in network namespaces",
    "docs/viewer.md: $ tsds view photos.tsds": "browser/test_viewer.py opens its page",
    "docs/viewer.md: widget = tsds.show": "test_widget.py and browser/test_widget.py show it",
    "docs/clients.md: from tensorstore_ds.annex.adapters.timm": "clients/test_adapters.py runs such lines, with timm",
    "docs/clients.md: from tensorstore_ds.annex.adapters.transformers": "likewise, with transformers",
    "docs/clients.md: from rfdetr": "clients/test_rfdetr.py trains so",
    "docs/clients.md: from ultralytics": "clients/test_ultralytics.py trains so",
    "docs/gpu.md: pip install": "installs; fake_cuda runs the command without a GPU",
    "docs/folds.md: bccd.tsds, train": "what tsds folds has printed of real data",
    "docs/editing.md: cat = animal": "a class map; test_editing.py reads one",
    "docs/keypoints.md: faces/": "a folder tree",
    "docs/keypoints.md: city/": "a folder tree",
    "docs/plain-reading.md: photos.tsds/": "a folder tree",
    "docs/plain-reading.md: npm install": "clients/test_zarrita.py runs it where Node is",
    "docs/plain-reading.md: import napari": "opens a window",
    "docs/sharing.md: title: Pets": "answers; test_papers_answers.py reads such files",
    "docs/sharing.md: $ tsds serve": "runs until Ctrl-C; test_cli_serve.py starts and stops it",
    "docs/clusters.md: JOB=": "cluster/test_slurm.py submits such jobs",
    "docs/training.md: $ python -c": "downloads weights; test_vit.py loads such a file",
    "docs/resuming.md: #SBATCH": "a job for Slurm; its last line is run above it on the page",
    "README.md: make demo": "installs",
    "README.md: pip install": "installs; the commands after it are those of docs/quickstart.md and docs/training.md",
    "README.md: mnist.tsds": "what the commands have printed of the real MNIST",
    "examples/README.md: tsds convert photos": "test_examples.py does it from Python",
    "examples/README.md: -import torchvision": "test_examples.py compares it with the files",
}


def test_what_is_not_run_says_why() -> None:
    found = [
        f"{block.page}: {block.text}"
        for page in PAGES
        for block in blocks(page)
        if block.kind not in (*RUN, "example") and not block.kind.startswith("{")
    ]
    assert not [text for text in found if not text.startswith(tuple(NOT_RUN))]
    assert not [known for known in NOT_RUN if not any(text.startswith(known) for text in found)]


def test_indented_examples_are_understood() -> None:
    """They show options, on data of any name, and are parsed only; the same commands are run on the other pages."""
    for block in (block for page in PAGES for block in blocks(page) if block.kind == "example"):
        for line in command_lines(block):
            name, *words = shlex.split(re.sub(r"^(tsds|torchrun .*-m tsds_cli) ", "", line))
            command = cli.get_command(click.Context(cli), name)
            assert command is not None, (block.where, line)
            with command.make_context(name, words):
                pass


def test_every_public_name_is_described() -> None:
    assert public_names().keys() <= described().keys()
    assert len(tsds.__all__) <= 80


def test_every_page_is_in_a_table_of_contents() -> None:
    seen, waiting = set(), ["index"]
    while waiting:
        name = waiting.pop()
        seen.add(name)
        page = DOCS / f"{name}.md"
        for block in blocks(str(page.relative_to(ROOT))) if page.exists() else []:
            if block.kind == "{toctree}":
                entries = re.findall(r"^(?:.*<)?([^:<>\n]+?)>?$", block.text, re.MULTILINE)
                waiting += [os.path.normpath(f"{Path(name).parent}/{entry}") for entry in entries]
    formats = {str(path.with_suffix("").relative_to(ROOT)) for path in (ROOT / "formats/sources").glob("*.md")}
    own = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.rst")}
    own |= {page.removeprefix("docs/").removesuffix(".md") for page in PAGES if page.startswith("docs/")}
    assert own | formats <= seen
    assert all((DOCS / f"{n}.md").exists() or (DOCS / f"{n}.rst").exists() or (ROOT / f"{n}.md").exists() for n in seen)


def anchors(path: Path) -> set[str]:
    """What the headings of a page can be linked by, as GitHub and MyST have it."""
    headings = re.findall(r"^#+ (.+)$", re.sub(_FENCED, "", path.read_text("utf-8")), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a page, and the heading that the link names, are there; addresses of other sites are not asked."""
    if re.match(r"https?://", link):
        return True
    file, _, anchor = link.partition("#")
    target = (page.parent / file).resolve() if file else page
    there = target.exists() or (target.parent / f"{target.stem}.rst").exists()
    return there and (not anchor or anchor in anchors(target))


def test_links_lead_somewhere() -> None:
    texts = {ROOT / page: re.sub(_FENCED, "", (ROOT / page).read_text("utf-8")) for page in PAGES}
    links = [(page, link) for page, text in texts.items() for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    assert [(page, link) for page, link in links if not leads_somewhere(page, link)] == []


def test_design_names_all_dependencies_and_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "DESIGN.md").read_text().partition("## 9. Dependencies")[2]
    always, _, table = text.partition("| extra |")
    names = {re.split(r"[>=\[]", each)[0] for each in project["dependencies"]}
    assert {name for name in names if name not in always} == set()
    assert set(re.findall(r"`([a-z0-9]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.M)))) == {
        *project["optional-dependencies"]
    }


def sidebar() -> list[tuple[str, str]]:
    """Titles and pages of the first page's tables of contents, in order."""
    found = [block.text for block in blocks("docs/index.md") if block.kind == "{toctree}"]
    return [entry for text in found for entry in re.findall(r"^(.+) <(.+)>$", text, re.MULTILINE)]


def test_the_sidebar_lists_every_page_once() -> None:
    listed = [page for _, page in sidebar()]
    assert sorted(page for page in listed if "/" not in page) == sorted(
        path.stem for path in DOCS.glob("*.md") if path.stem != "index"
    )
    assert len({*listed}) == len(listed)


def test_the_page_of_the_installation_has_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    table = (DOCS / "install.md").read_text("utf-8").partition("\n## Extras\n")[2].partition("\n## ")[0]
    found = re.findall(r"`([a-z0-9]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.MULTILINE)))
    assert sorted(found) == sorted(project["optional-dependencies"])
