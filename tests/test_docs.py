from __future__ import annotations

import importlib
import multiprocessing
import os
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path

import click
import pytest

import tensorstore_ds as tsds
from command_pages import VARYING, masked, page as page_of, run_examples
from doc_pages import DOCS, ROOT, Block, Page, blocks, command_lines, made_stores, pages, write_sources
from tsds_cli.main import COMMANDS, cli

PAGES = pages()
RUN = ("bash", "console", "python")
#: Blocks that are not run: the page and how the first line begins, with the reason.
NOT_RUN = {
    "docs/quickstart.md: pip install": "installs",
    "docs/quickstart.md: photos/": "a folder tree",
    "docs/install.md: pip install": "installs",
    "docs/install.md: python -m venv": "installs",
    "docs/install.md: uv venv": "installs",
    "docs/install.md: tsds cache clear": "removes what is kept, and the package",
    'docs/migrate.md: dataset = tsds.StoreDataset("imagenet.tsds"': "needs a .beton file and a GPU",
    "docs/migrate.md: dataset = (": "needs WebDataset",
    "docs/migrate.md: from litdata": "needs LitData",
    "docs/migrate.md: from datasets": "downloads",
    "docs/encodings.md: encodings, from a few images": "what a dry run has printed; its rates are this machine's",
    "docs/tuning.md: LoaderStats": "what the block above it has printed",
    "docs/large-images.md: pip install": "installs",
    "docs/sources.md: pip install": "installs",
    "docs/sources.md: left out: not-read": "what a conversion has printed",
    "docs/ddp.md: torchrun --nproc-per-node 2 -m tsds_cli": "test_train_ranks.py starts two ranks",
    "docs/ddp.md: torchrun --nproc-per-node 2 examples/ddp.py": "test_examples.py starts two ranks",
    "docs/ddp.md: torchrun --nnodes": "cluster/test_training.py does it in network namespaces",
    "docs/viewer.md: $ tsds view photos.tsds": "browser/test_viewer.py opens its page",
    "docs/viewer.md: widget = tsds.show": "test_widget.py and browser/test_widget.py show it",
    "docs/adapters.md: from tensorstore_ds.adapters.timm": "clients/test_adapters.py runs such lines, with timm",
    "docs/adapters.md: from tensorstore_ds.adapters.transformers": "likewise, with transformers",
    "docs/clients.md: from rfdetr": "clients/test_rfdetr.py trains so",
    "docs/clients.md: from ultralytics": "clients/test_ultralytics.py trains so",
    "docs/clients.md: make test-clients": "installs",
    "docs/measuring.md: pip install": "installs; fake_cuda runs the command without a GPU",
    "docs/folds.md: mnist.tsds, train": "what tsds folds has printed of real data",
    "docs/folds.md: bccd.tsds, train": "what tsds folds has printed of real data",
    "docs/folds.md: faces.tsds, train": "what tsds folds has printed of real data",
    "docs/editing.md: cat = animal": "a class map; test_editing.py reads one",
    "docs/keypoints.md: faces/": "a folder tree",
    "docs/masks.md: city/": "a folder tree",
    "docs/plain-reading.md: photos.tsds/": "a folder tree",
    "docs/plain-reading.md: npm install": "clients/test_zarrita.py runs it where Node is",
    "docs/zarr.md: import napari": "opens a window",
    "docs/papers.md: title: Pets": "answers; test_papers_answers.py reads such files",
    "docs/papers.md: README.md": "a folder tree",
    "docs/sources.md: kitten = cat": "a class map; test_source_joined.py reads one",
    "docs/serve.md: $ tsds serve": "runs until Ctrl-C; test_cli_serve.py starts and stops it",
    "docs/slurm.md: JOB=": "cluster/test_slurm.py submits such jobs",
    "docs/resuming.md: #SBATCH": "a job for Slurm; its last line is run above it on the page",
    "README.md: make demo": "installs",
    "README.md: pip install": "installs; the commands after it are those of docs/quickstart.md and docs/training.md",
    "examples/README.md: tsds convert photos": "test_examples.py does it from Python",
    "examples/README.md: -import torchvision": "test_examples.py compares it with the files",
}


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
    found.set_forkserver_preload(["doc_pages", "tensorstore_ds.training.train", "matplotlib.figure"])
    yield found
    forkserver._forkserver._stop()


# --- tests ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.drawn(15)
@pytest.mark.skipif(sys.platform != "linux", reason="pages look into /proc, and lock and evict")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.startswith("docs/commands/") and any(b.kind in RUN for b in blocks(page))],
)
def test_every_command_and_snippet_runs(page: str, sources: Path, tmp_path: Path, context: ForkServerContext) -> None:
    if page == "docs/page-cache.md":
        require_locking()
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
def test_the_page_of_a_command_shows_what_it_prints(name: str, sources: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(sources, tmp_path / "page")
    shown = [block.text for block in blocks(str(page_of(name).relative_to(ROOT))) if block.kind == "console"]
    printed = run_examples(page_of(name), folder)
    assert all(len(text.splitlines()) > text.count("$ ") for text in printed)
    if name not in VARYING:
        assert [masked(text) for text in printed] == [masked(text) for text in shown]


def require_locking() -> None:
    """Skip where this process may not lock a store of a MiB in memory."""
    import resource

    if 0 <= resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] < 2**20:
        pytest.skip("this process may lock too little memory: ulimit -l")


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


def test_what_is_not_run_says_why() -> None:
    found = [
        f"{block.page}: {block.text}"
        for page in PAGES
        for block in blocks(page)
        if block.kind not in (*RUN, "example") and not block.kind.startswith("{")
    ]
    assert not [text for text in found if not text.startswith(tuple(NOT_RUN))]
    assert not [known for known in NOT_RUN if not any(text.startswith(known) for text in found)]


@pytest.mark.parametrize(
    "block", [b for page in PAGES for b in blocks(page) if b.kind == "example"], ids=lambda block: block.where
)
def test_indented_examples_are_understood(block: Block) -> None:
    """They show options, on data of any name, and are parsed only; the same commands are run on the other pages."""
    for line in command_lines(block):
        name, *words = shlex.split(re.sub(r"^(tsds|torchrun .*-m tsds_cli) ", "", line))
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, line
        with command.make_context(name, words):
            pass


def test_every_public_name_is_described() -> None:
    described = {}
    for page in (DOCS / "api").glob("*.rst"):
        module = ""
        for directive, name in re.findall(r"^\.\. ([\w:]+):: (\S+)$", page.read_text("utf-8"), re.MULTILINE):
            if directive == "currentmodule":
                module = name
            elif directive != "automodule":
                described[name] = importlib.import_module(module)
    assert set(tsds.__all__) <= set(described)
    for name, module in described.items():
        where, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(where) if where else module, last), name


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
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"^```.*?^```$", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?://", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists() or (target.parent / f"{target.stem}.rst").exists(), link
        assert not anchor or anchor in anchors(target), link


def test_design_names_all_dependencies_and_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "DESIGN.md").read_text().partition("## 9. Dependencies")[2]
    always, _, table = text.partition("| extra |")
    names = {re.split(r"[>=\[]", each)[0] for each in project["dependencies"]}
    assert {name for name in names if name not in always} == set()
    assert set(re.findall(r"`([a-z0-9]+)`", "".join(re.findall(r"^\|([^|]*)\|", table, re.M)))) == {
        *project["optional-dependencies"]
    }
