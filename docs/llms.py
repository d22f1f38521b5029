"""The site for programs that read text: ``llms.txt``, each page as Markdown, and guide and API in one file.

See https://llmstxt.org. `conf.py` writes these files next to the HTML.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

HERE = Path(__file__).parent
#: Folders beside this one with pages of the site.
NEIGHBORS = ("formats", "examples")
#: `FULL` contains all pages of the sidebar but the ones of its last part, the reference, and the API.
INDEX, FULL = "llms.txt", "llms-full.txt"
_TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```\n\n?", re.MULTILINE | re.DOTALL)
_INCLUDE = re.compile(r"^```\{include\} (\S+)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^\.\. ([\w:]+):: (\S+)\n((?:   .*\n)*)", re.MULTILINE)
_ROLE = re.compile(r":(\w+):`~?([^`]+)`")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def write(folder: Path, others: Iterable[str] = ()) -> list[str]:
    """Write all files, also of pages that no table of contents lists; returns their names."""
    parts = dict(sidebar())
    names = [name for pages in parts.values() for _, name in pages]
    names = [*dict.fromkeys(["index", *names, *nested(names), *others])]
    pages = {name: page(name) for name in names}
    files = {f"{name}.md": text for name, text in pages.items()}
    files[INDEX] = "\n".join(listing(parts, pages)) + "\n"
    guide = [name for part in [*parts][:-1] for _, name in parts[part]]
    api = [name for name in names if name.startswith("api/")]
    files[FULL] = "\n\n".join(
        [opening(pages), *(pages[name].strip() for name in (*guide, *api))]
    )
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return [*files]


def sidebar() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each part of the sidebar with the titles and names of its pages."""
    for block in _TOCTREE.findall((HERE / "index.md").read_text("utf-8")):
        caption = re.search(r":caption: (.*)", block)
        yield (
            caption[1] if caption else "",
            re.findall(r"^(.+) <(.+)>$", block, re.MULTILINE),
        )


def nested(names: list[str]) -> Iterator[str]:
    """Names of the pages that the tables of contents of these pages list."""
    for name in names:
        path = source(name)
        if path.suffix == ".md":
            for block in _TOCTREE.findall(path.read_text("utf-8")):
                for entry in re.findall(r"^(?:.*<)?([\w/.-]+)>?$", block, re.MULTILINE):
                    yield os.path.normpath(f"{Path(name).parent}/{entry}")


def listing(
    parts: dict[str, list[tuple[str, str]]], pages: dict[str, str]
) -> Iterator[str]:
    """The lines of ``llms.txt``."""
    yield opening(pages)
    yield ""
    yield f"- [{FULL}]({FULL}): the guide and the whole Python API in one file"
    for part, entries in parts.items():
        yield f"\n## {part}\n"
        for title, name in entries:
            yield f"- [{title}]({name}.md): {first_sentence(pages[name])}"
    listed = {name for entries in parts.values() for _, name in entries} | {"index"}
    yield "\n## Optional\n"
    for name in [each for each in pages if each not in listed]:
        title = pages[name].partition("\n")[0].removeprefix("# ")
        yield f"- [{title}]({name}.md): {first_sentence(pages[name])}"


def opening(pages: dict[str, str]) -> str:
    """Title and summary of the project."""
    return f"# tensorstore-ds\n\n> {first_sentence(pages['index'])}"


def first_sentence(text: str) -> str:
    """The first sentence of a page behind its title."""
    for paragraph in re.split(r"\n{2,}", _FENCED.sub("", text)):
        if paragraph and not re.match(r"[#<!|>*\-]|\s", paragraph):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph.replace("\n", " "))
            found = re.match(r".*?[.:](?= |$)|.*", plain)
            return found[0].rstrip(":") if found else ""
    return ""


# --- pages --------------------------------------------------------------------------------------------------------


def source(name: str) -> Path:
    """The file of a page, which may be in a folder beside this one."""
    places = (HERE / f"{name}.md", HERE / f"{name}.rst", HERE.parent / f"{name}.md")
    return next(path for path in places if path.is_file())


def page(name: str) -> str:
    """A page as Markdown, without tables of contents and with what it includes."""
    path = source(name)
    text = path.read_text("utf-8")
    if path.suffix == ".rst":
        return "\n".join(api_page(text)).strip() + "\n"
    text = _INCLUDE.sub(lambda found: included(path.parent, *found.groups()), text)
    text = _TOCTREE.sub("", text)
    text = re.sub(r"^<!--.*?-->\n+", "", text, flags=re.MULTILINE | re.DOTALL)
    if path.is_relative_to(HERE):
        text = re.sub(
            rf"(\]\((?:\.\./)*)\.\./((?:{'|'.join(NEIGHBORS)})/)", r"\1\2", text
        )
    return re.sub(r"(\]\([^)\s]+?)\.rst(?=[)#])", r"\1.md", text.strip() + "\n")


def included(folder: Path, name: str, options: str) -> str:
    """The part of a file that a page includes."""
    text = (folder / name).read_text("utf-8")
    for option, side in (("start-after", 2), ("end-before", 0)):
        if mark := re.search(rf":{option}: (.*)", options):
            text = text.partition(mark[1])[side]
    root = re.search(r":relative-docs: (.*)", options)
    return (
        text.replace(f"]({root[1]}/", "](").strip() + "\n"
        if root
        else text.strip() + "\n"
    )


# --- the API ------------------------------------------------------------------------------------------------------


def api_page(text: str) -> Iterator[str]:
    """A page of the API: its text, and a section for each name."""
    text = re.sub(r"^(.+)\n=+$", r"# \1", text, flags=re.MULTILINE)
    text = re.sub(r"^(.+)\n-+$", r"## \1", text, flags=re.MULTILINE)
    module, end = "tensorstore_ds", 0
    for found in _DIRECTIVE.finditer(text):
        yield prose(text[end : found.start()])
        directive, name, options = found.groups()
        end = found.end()
        if directive == "currentmodule":
            module = name
        else:
            yield from described(directive, module, name, options)
    yield prose(text[end:])


def prose(text: str) -> str:
    """Text between directives: roles become code, and consoles become blocks."""
    text = _ROLE.sub(
        lambda found: (
            f"[{found[2].strip('/')}](../{found[2].strip('/')}.md)"
            if found[1] == "doc"
            else f"`{found[2]}`"
        ),
        text,
    )
    return re.sub(
        r"(^>>> (?:.+\n)+)",
        r"```python\n\1```\n",
        text.rstrip() + "\n",
        flags=re.MULTILINE,
    )


def described(directive: str, module: str, name: str, options: str) -> Iterator[str]:
    """A name, its signature and docstring; of a class also its members."""
    where, _, last = (
        name if name.startswith("tensorstore_ds") else f"{module}.{name}"
    ).rpartition(".")
    if directive == "automodule":
        return
    if directive.startswith("py:"):  # its text follows
        yield f"\n### {short(f'{where}.{last}')}\n"
        return
    value = getattr(importlib.import_module(where), last)
    shown = short(f"{where}.{last}")
    yield f"\n### {shown}\n"
    yield signature(shown, value)
    yield documented(value)
    if directive == "autoclass":
        if fields := attributes(value, wanted_of(options)):
            yield "\n".join(["", *fields])
        for member, each in members(value, wanted_of(options)):
            yield f"\n#### {shown}.{member}\n"
            yield signature(f"{last}.{member}", each)
            yield documented(each)


def short(name: str) -> str:
    """A name as programs write it: ``tsds.editing.Fold``."""
    return re.sub(r"^tensorstore_ds\.(annex\.)?", "tsds.", name)


def wanted_of(options: str) -> tuple[set[str] | None, set[str]]:
    """The members that a directive chooses, None for all public ones, and those that it leaves out."""
    found = {
        key: {each.strip() for each in value.split(",") if each.strip()}
        for key, value in re.findall(r":([\w-]+):(.*)", options)
    }
    if "members" not in found:
        return found.get("special-members", set()), set()
    chosen = found["members"] | found.get("special-members", set())
    return (chosen if found["members"] else None), found.get("exclude-members", set())


def members(
    owner: type, wanted: tuple[set[str] | None, set[str]]
) -> Iterator[tuple[str, Any]]:
    """Public methods and properties of a class, in the order of its source."""
    chosen, left_out = wanted
    for name, value in vars(owner).items():
        plain = (
            value.__func__ if isinstance(value, classmethod | staticmethod) else value
        )
        is_wanted = not name.startswith("_") if chosen is None else name in chosen
        is_member = inspect.isfunction(plain) or isinstance(plain, property)
        is_member |= type(plain).__name__ == "cached_property"
        if is_wanted and is_member and name not in left_out and documented(value):
            yield name, plain


def attributes(owner: type, wanted: tuple[set[str] | None, set[str]]) -> list[str]:
    """A line for each attribute that a comment in the source describes."""
    try:
        found = ModuleAnalyzer.for_module(owner.__module__).find_attr_docs()
    except PycodeError:
        return []
    chosen, left_out = wanted
    return [
        f"- `{name}`: {' '.join(' '.join(lines).split())}"
        for (place, name), lines in found.items()
        if place == owner.__qualname__
        and (chosen is None or name in chosen)
        and name not in left_out
        and not name.startswith("_")
    ]


class _Plain(str):
    """An annotation that signatures show without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def signature(name: str, value: Any) -> str:
    """A block with the signature; empty for what is not called."""
    if isinstance(value, property) or not callable(value):
        return ""
    if isinstance(value, type) and value.__init__ is not object.__init__:
        value = value.__init__
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [
        each.replace(annotation=_Plain(each.annotation))
        if isinstance(each.annotation, str)
        else each
        for each in found.parameters.values()
        if each.name != "self"
    ]
    found = found.replace(parameters=parameters)
    if isinstance(found.return_annotation, str):
        found = found.replace(return_annotation=_Plain(found.return_annotation))
    text = str(found).removesuffix(" -> None").replace("Ellipsis", "...")
    text = re.sub(r"<function (\w+)[^>]*>", r"\1", _ADDRESS.sub("", text))
    if len(text) > 100:
        text = (
            "(\n    "
            + ",\n    ".join(split_parameters(text))
            + ",\n)"
            + text.rpartition(")")[2]
        )
    return f"```python\n{name}{text}\n```\n"


def split_parameters(text: str) -> list[str]:
    """The parameters of a signature as a text."""
    inner, depth, parts = text[1 : text.rindex(")")], 0, [""]
    for letter in inner:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def documented(value: Any) -> str:
    """The docstring, with its examples as blocks."""
    text = inspect.cleandoc(getattr(value, "__doc__", None) or "")
    lines, found, is_open = text.splitlines(), list[str](), False
    for line in lines:
        begins = line.lstrip().startswith(">>> ")
        if begins and not is_open:
            found += ["```python"]
            is_open = True
        if is_open and not line.strip():
            found += ["```"]
            is_open = False
        found.append(line.lstrip() if is_open else line)
    text = "\n".join(found + ["```"] * is_open)
    return _ROLE.sub(lambda role: f"`{role[2]}`", textwrap.dedent(text))
