"""The file of answers, and what else may stand in it."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorstore_ds as tsds
from tensorstore_ds.annex.publishing.answers import QUESTIONS, read_answers, template


def read(folder: Path, text: str | bytes, name: str = "card.yaml") -> dict[str, object]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_answers(path)


def test_a_template_has_all_questions_and_no_answer(tmp_path: Path) -> None:
    assert read(tmp_path, template()) == {}
    assert [line.split(":")[0] for line in template().splitlines() if line[:1].isalpha()] == list(QUESTIONS)
    filled = template().replace('""', '"x"').replace("[]", "[x]").replace('published: "x"', "published: 2026-11-02")
    assert read(tmp_path, filled).keys() == QUESTIONS.keys()


def test_answers_are_texts_as_they_are_written(tmp_path: Path) -> None:
    text = "version: 1.10\ntitle: no\npublished: 2026-11-02\ndescription: |\n  a\n\n  b: c\n"
    text += "creators: [one, '2']\ntags: x\n"
    assert read(tmp_path, text) == {
        "version": "1.10",
        "title": "no",
        "published": "2026-11-02",
        "description": "a\n\nb: c",
        "creators": ["one", "2"],
        "tags": ["x"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bias: x", r"expected a question of the card, found bias\. Did you mean biases\?"),
        ("qqq: x", r"found qqq\. Use title, description"),
        ("title: [a]", "title: expected text in quotes, found list"),
        ("creators: {a: b}", "creators: expected a list of texts, found dict"),
        ("creators: [[a]]", "creators: expected a list of texts"),
        ("a: &a [x, x]\ncreators: [*a, *a]", "found a|creators: expected a list"),
        ("published: tomorrow", "published: expected a date, such as 2026-11-23, found tomorrow"),
        ("title: a\ntitle: b", "expected each answer once, found title twice"),
        ("title: 'a", "line 1: expected YAML|line 2: expected YAML"),
        ("title: !!python/object/apply:os.system ['true']", "expected text in quotes, found list"),
        ("- a\n- b", "expected names and answers"),
        ("just text", "expected names and answers"),
        ("? [a]\n: b", "expected names and answers|expected a question|expected YAML"),
        ("title: \x07", "characters that YAML does not allow"),
        ("[" * 5000, "expected"),
        (b"title: \xff", "expected text in UTF-8"),
        ("x" * (1024**2 + 1), "at most 1,048,576 bytes"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(tsds.OptionError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_files_of_other_kinds(tmp_path: Path) -> None:
    assert read(tmp_path, "title: !!python/name:os.system x") == {"title": "x"}  # nothing is made of a tag
    with pytest.raises(tsds.OptionError, match=r"none\.yaml: cannot be read: No such file"):
        read_answers(tmp_path / "none.yaml")
    with pytest.raises(tsds.OptionError, match=r"ends in \.yaml"):
        read(tmp_path, "{}", "card.json")
