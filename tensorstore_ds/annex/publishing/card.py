"""Write the papers that go with a shared store into a folder beside it."""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from pathlib import Path

from tensorstore_ds.annex.pictures.contact_sheet import preview
from tensorstore_ds.annex.publishing.answers import QUESTIONS, read_answers, template
from tensorstore_ds.annex.publishing.citing import citation_cff
from tensorstore_ds.annex.publishing.croissant import croissant_json
from tensorstore_ds.annex.publishing.facts import Facts, facts_of
from tensorstore_ds.annex.publishing.preview_table import NBYTES, preview_table
from tensorstore_ds.annex.publishing.readme import readme
from tensorstore_ds.durable import unwritable, write_file
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ImageField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.reading.store import open as open_store
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.regular_files import tidied

#: Samples on the sheet.
_SAMPLES = 12


@dataclass(frozen=True, slots=True)
class Card:
    """Result of `card`."""

    path: Path  #: Path of the folder.
    files: tuple[str, ...]  #: Paths of the written files relative to `path`, in order.
    #: Required questions without an answer, and `license` or `citation` if the store has none.
    missing: tuple[str, ...]
    questions: Path  #: Path of the file with the questions and answers.


def card(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    answers: str | os.PathLike[str] | None = None,
    croissant: bool = False,
    strict: bool = False,
) -> Card:
    """Write a dataset card for the store at `path` into a folder, with pictures and citation files.

    >>> found = tsds.card("photos.tsds", "photos-card")
    >>> "README.md" in found.files
    True
    >>> found.missing[:2]
    ('description', 'creators')

    Facts that the store contains are filled in. Everything else is read from `card.yaml` in the folder. The first call
    creates this file with the questions to answer. Existing files are replaced, except the answers. The same store and
    answers always give the same files.

    Args:
        path: path of the store, which is not changed.
        out: path of the folder, which is created if it does not exist. None is ``NAME-card`` next to ``NAME.tsds``.
        answers: path of a different file of answers, in YAML.
        croissant: also write `croissant.json`, and the folder `preview` with small samples as Parquet. Both are also
            written if an earlier call wrote them. The folder then contains everything that a repository of the Hub
            needs next to the store.
        strict: raise an error if an answer is missing, and do not write the card.

    Raises:
        FormatError: there is no store, or it is damaged.
        OptionError: the store is packed, the answers cannot be read, `strict` is set and some are missing, or a
            required package is not installed.
        SourceError: an image cannot be decoded.
        OutputError: a file cannot be written.
    """
    store = open_store(path)
    if store.path.is_file():
        raise OptionError(
            f"{store.path}: expected a store that is a folder, found a packed one. Unpack it with tsds unpack."
        )
    folder = tidied(out) if out is not None else store.path.with_name(f"{store.path.name.removesuffix('.tsds')}-card")
    check_outside_stores(folder / "README.md")
    questions = tidied(answers) if answers is not None else folder / "card.yaml"
    if answers is None and not os.path.lexists(questions):
        _make(folder)
        write_file(questions, template().encode())
    facts = facts_of(store, read_answers(questions))
    missing = _missing(facts)
    if strict and missing:
        advice = "Fill them in; license and citation are noted by tsds annotate."
        raise OptionError(f"{questions}: expected answers to all questions, missing {', '.join(missing)}. {advice}")
    describes = croissant or (folder / "croissant.json").exists()  # which would be wrong by now
    previews = _previews(facts) if describes else {}
    papers = {
        "pictures/samples.jpg": _samples(facts),
        **{f"preview/{name}.parquet": data for name, data in previews.items()},
        "CITATION.cff": citation_cff(facts).encode(),
        "croissant.json": croissant_json(facts, previews).encode() if describes else b"",
    }
    papers = {name: data for name, data in papers.items() if data}
    papers["README.md"] = readme(facts, previews=list(previews), papers=papers).encode()
    for name, data in papers.items():
        _make((folder / name).parent)
        write_file(folder / name, data)
    for left in (folder / "preview").glob("*.parquet") if describes else ():
        if left.stem not in previews and not left.parent.is_symlink():
            left.unlink()  # of a split whose samples are gone, which may have been erased
    return Card(folder, tuple(sorted(papers)), missing, questions)


def _missing(facts: Facts) -> tuple[str, ...]:
    known = {**facts.answers, "description": facts.description}
    asked = [name for name, question in QUESTIONS.items() if question.is_required and not known.get(name)]
    return (*asked, *(name for name in ("license", "citation") if not getattr(facts.store.manifest, name)))


def _previews(facts: Facts) -> dict[str, bytes]:
    if not of_kind(facts.store.manifest.fields, ImageField):
        return {}
    return {name: preview_table(facts.store[name], NBYTES // len(facts.filled)) for name in facts.filled}


def _make(folder: Path) -> None:
    """Make the folder of the card; a link in its place is an error, because it leads elsewhere."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error
    if folder.name in ("pictures", "preview") and folder.is_symlink():
        raise OptionError(f"{folder}: expected a folder, found a link. Remove it.")


def _samples(facts: Facts) -> bytes:
    """Some samples of the first split as a JPEG file, if there are images; raises `SourceError` if one is damaged."""
    buffer = io.BytesIO()
    if facts.filled and of_kind(facts.store.manifest.fields, ImageField):
        preview(facts.store[facts.filled[0]], count=_SAMPLES).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()
