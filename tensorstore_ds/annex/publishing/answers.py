"""What only people know of their data: the questions, the file of the answers, and which of them are missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorstore_ds.errors import OptionError, SourceError, one_line
from tensorstore_ds.options import meant, shortened
from tensorstore_ds.regular_files import decode_text, read_file

#: Bytes of a file of answers.
_LIMIT = 1024**2
_DATE = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")


@dataclass(frozen=True, slots=True)
class Question:
    """A question of the card.

    `asks` is the question as a sentence. Only required questions count for `strict`.
    """

    asks: str
    is_required: bool = True
    is_list: bool = False


#: By the name of their answer, in the order of the file.
QUESTIONS: Mapping[str, Question] = {
    "title": Question("The name of the data set, as people write it. Left empty: the name of the store.", False),
    "description": Question("What are the data, and why do they exist? Left empty: the description in the store."),
    "creators": Question('Who made them? People as "Family, Given", organizations by their name.', is_list=True),
    "contact": Question("Whom can people ask?"),
    "url": Question("Where can the data set be found?"),
    "version": Question("The version of the data set, such as 1.0.0.", False),
    "published": Question("The date of publication, such as 2026-11-23. Left empty: when the store was made.", False),
    "publisher": Question("Who publishes it, such as Zenodo or a university? Left empty: the creators.", False),
    "doi": Question("Its DOI, such as 10.5281/zenodo.1234567, if it has one.", False),
    "collection": Question("How, where and when were the images collected, and by whom?"),
    "preprocessing": Question("What was done to the images before the conversion? The card has the rest.", False),
    "annotation": Question("Who labelled the data, by which rules and with which tool, and how was it checked?"),
    "use_cases": Question("What are the data good for, and what should they not be used for?"),
    "limitations": Question("What are the data not: what is missing, wrong or out of date?"),
    "biases": Question("Who or what appears more often, or differently, than in the world?"),
    "sensitive_information": Question("Are there people, license plates, patients, places? Did they agree?"),
    "social_impact": Question("What can happen to people because of these data, for good and for bad?"),
    "maintenance": Question("Who keeps the data, for how long, and how are errors reported and corrected?"),
    "annotations_creators": Question(
        "Who annotated, as Hugging Face names it: crowdsourced, expert-generated, found, machine-generated, "
        "no-annotation, other.",
        False,
        True,
    ),
    "source_datasets": Question(
        "Data sets that this one was made of: original, or their names on the Hub.", False, True
    ),
    "tags": Question("Words by which people look for it.", False, True),
}

Answers = Mapping[str, Any]


def template() -> str:
    """A ``card.yaml`` without answers."""
    lines = [
        "# What only you know of the data. Answer in plain text or Markdown; for several lines, write",
        "#   key: |",
    ]
    lines += ["#     and the lines below it, indented.", ""]
    for name, question in QUESTIONS.items():
        optional = "" if question.is_required else " (optional)"
        lines += [f"# {question.asks}{optional}", f"{name}: {'[]' if question.is_list else chr(34) * 2}", ""]
    return "\n".join(lines)


def read_answers(path: Path) -> dict[str, Any]:
    """The non-empty answers in a YAML file, by the names of `QUESTIONS`."""
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise OptionError(f"{path}: expected answers in YAML, in a file that ends in .yaml, found {path.name}.")
    try:
        text = decode_text(read_file(path, str(path), _LIMIT), str(path))
    except SourceError as error:
        if error.reason == "text-encoding":
            raise OptionError(str(error)) from error
        raise OptionError(f"{error} Write a card without answers first, which makes a card.yaml to fill in.") from error
    found = _yaml(text, path)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise OptionError(f"{path}: expected names and answers, found something else. Write title: ... for one.")
    answers = {str(name): _answer(path, str(name), value) for name, value in found.items()}
    return {name: answer for name, answer in answers.items() if answer}


def _answer(path: Path, name: str, value: Any) -> Any:
    question = QUESTIONS.get(name)
    if question is None:
        advice = meant(name, QUESTIONS) or f" Use {', '.join(QUESTIONS)}."
        raise OptionError(f"{path}: expected a question of the card, found {one_line(shortened(name))}.{advice}")
    if question.is_list:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
            return [each.strip() for each in texts if each.strip()]
    elif isinstance(value, str):
        text = value.strip()
        if name == "published" and text and not _DATE.fullmatch(text):
            raise OptionError(
                f"{path}: {name}: expected a date, such as 2026-11-23, found {one_line(shortened(text))}."
            )
        return text
    expected = "a list of texts" if question.is_list else "text in quotes"
    raise OptionError(f"{path}: {name}: expected {expected}, found {type(value).__name__}.")


def _yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        node = yaml.compose(text, yaml.BaseLoader)
        found = yaml.load(text, yaml.BaseLoader)  # noqa: S506  # makes texts, lists and mappings of texts, no objects
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}:" if mark is not None else ""
        problem = getattr(error, "problem", None) or "characters that YAML does not allow"
        raise OptionError(f"{path}:{line} expected YAML, found other text ({one_line(problem)}).") from error
    except (RecursionError, ValueError, TypeError) as error:  # a key may be a list there
        raise OptionError(f"{path}: expected names and answers, found other YAML.") from error
    names = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    if len(set(map(str, names))) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise OptionError(f"{path}: expected each answer once, found {one_line(str(twice))} twice.")
    return found
