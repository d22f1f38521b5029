"""The documentation site: `make docs` builds it, offline, into docs/_build/html."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from sphinx.application import Sphinx

import tensorstore_ds
from tensorstore_ds.version import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import llms  # noqa: E402  # a file beside this one

#: Folders beside this one, and what of them is part of the site.
NEIGHBORS = {
    "formats": (
        "v1/*.*",
        "v1/examples/*.*",
        "v1/examples/c/*.*",
        "v1/conformance/README.md",
        "sources/*.md",
    ),
    "examples": ("README.md",),
}
PROJECT = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]
#: Where the repository can be seen: `[project.urls]` in pyproject.toml says it; without it there is no link.
REPOSITORY = PROJECT.get("urls", {}).get("Repository")
_ALIAS = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
_FUNCTION = re.compile(r"<function \S+?>+")

project = "tensorstore-ds"
version = release = __version__
copyright = "the tensorstore-ds authors. Apache License 2.0"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "zh-CN", "ru"]  # the site is in English alone
# In a docstring `name` is something of this library where there is such a thing, and an argument or a value elsewhere.
default_role = "py:obj"
highlight_language = "text"
suppress_warnings = [
    "misc.highlighting_failure"
]  # the specification shows JSON with names in place of values
myst_heading_anchors = 3
copybutton_prompt_text = (
    r">>> |\.\.\. |\$ "  # from consoles and examples, only what is typed is copied
)
copybutton_prompt_is_regexp = True

add_module_names = False
autosummary_generate = (
    False  # the pages are written by hand; the tables are links to them
)
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {
    name: name
    for name in ("ArrayLike", "DTypeLike", "NDArray", "Rows", "Keys", "Params", "Names")
}
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [
    ("Attributes", "params_style")
]  # else members with docstrings are described twice
toc_object_entries_show_parents = "hide"  # else names are cut off beside the page
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = f"tensorstore-ds {version}"
templates_path = ["_templates"]
html_sidebars = {"**": ["sidebar.html"], "genindex": [], "search": []}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navigation_with_keys": False,
    "navbar_center": [],
    "footer_start": ["copyright"],
    "footer_end": [],
    "icon_links": [
        {"name": "Repository", "url": REPOSITORY, "icon": "fa-brands fa-git-alt"}
    ]
    if REPOSITORY
    else [],
}


def setup(app: Sphinx) -> None:
    """Called by Sphinx before it looks for pages."""
    copy_neighbors()
    app.connect("source-read", link_to_copies)
    app.connect("source-read", add_tables)
    app.connect("autodoc-process-signature", shorten)
    app.connect("build-finished", add_texts)
    fold_options()


def copy_neighbors() -> None:
    """Bring pages that lie beside this folder into it, because Sphinx reads one folder only."""
    for folder, patterns in NEIGHBORS.items():
        shutil.rmtree(HERE / folder, ignore_errors=True)
        for page in (
            page
            for pattern in patterns
            for page in (HERE.parent / folder).glob(pattern)
        ):
            copy = HERE / folder / page.relative_to(HERE.parent / folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(
                page, copy
            )  # with its time, so that Sphinx reads again only what has changed


def link_to_copies(app: Sphinx, docname: str, source: list[str]) -> None:
    """In the site, links of a page of `docs/` to a neighbor's page lead to its copy."""
    source[0] = re.sub(
        rf"\]\(((?:\.\./)*)\.\./((?:{'|'.join(NEIGHBORS)})/\S+?\.md)",
        r"](\1\2",
        source[0],
    )


def add_tables(app: Sphinx, docname: str, source: list[str]) -> None:
    """On the first page of the API, for each of its pages a table of the public names with their first sentence."""
    if docname != "api/index":
        return
    for page in re.findall(
        r"^[a-z]+$", source[0].partition("{toctree}")[2], re.MULTILINE
    ):
        text = (HERE / "api" / f"{page}.rst").read_text("utf-8")
        lines = [".. autosummary::", "   :nosignatures:", ""]
        module = "tensorstore_ds"
        for directive, name in re.findall(
            r"^\.\. (\w+):: ([\w.]+)$", text, re.MULTILINE
        ):
            if directive == "currentmodule":
                module = name
            elif directive != "automodule" and "." not in name:
                lines.append(f"   ~{module}.{name}")
        table = "\n".join(lines)
        source[0] += (
            f"\n## [{text.partition(chr(10))[0]}]({page}.rst)\n\n```{{eval-rst}}\n{table}\n```\n"
        )


def add_texts(app: Sphinx, error: Exception | None) -> None:
    """Write each page as Markdown next to its HTML, and the files for programs that read text."""
    if error is None and app.builder.format == "html":
        llms.write(Path(app.outdir), sorted(app.env.found_docs))


def fold_options() -> None:
    """Show options as ``**keywords``: the class of the options, on the same page, describes them."""
    names = {name: getattr(tensorstore_ds, name) for name in tensorstore_ds.__all__}
    for module in [m for m in names.values() if isinstance(m, ModuleType)]:
        names |= {name: getattr(module, name) for name in module.__all__}
    for obj in names.values():
        obj = obj.__init__ if isinstance(obj, type) else obj
        while isinstance(obj, FunctionType):
            vars(obj).pop("__signature__", None)
            obj = getattr(obj, "__wrapped__", None)


def shorten(
    app: Sphinx, what: str, name: str, obj: object, options: object, *parts: str | None
) -> Any:
    """In signatures, an alias inside of another type by its name too, and a function that is a default as ``...``."""
    return tuple(
        part and _ALIAS.sub(r"\1", _FUNCTION.sub("...", part)) for part in parts
    )
