"""The card of a store: its text as a whole, hostile names, and what each kind of store has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import tensorstore_ds as tsds
from small_stores import image_field, label_field, voc, write_store
from stores import class_folders, detections, files_of, store_of
from tensorstore_ds import words
from tensorstore_ds.annex.publishing.escaping import code_block, markdown
from tensorstore_ds.annex.publishing.readme import _HUB_LICENSES, _hub_license
from tensorstore_ds.conversion.licenses import license_expression

HOSTILE = [
    "<script>alert(1)</script>",
    "a | b",
    "](javascript:alert(1))",
    "![x](https://evil.example/p.png)",
    "*bold* _it_ `code` ~~no~~",
    "line\nbreak\r\n---\nlicense: other",
    "\x1b[31mred\x1b[0m",
    "- item: {a: [1]}",
    '"quoted" \\ back',
    "'; DROP",
    "&lt;b&gt;",
    "$\\int$",
    "www.evil.example",
    "\u202egnp.exe",
    "猫 Ü",
    "${x} {{y}} %s",
]


def small(path: Path) -> Path:
    """A store whose bytes are always the same."""
    images = np.arange(5 * 4 * 3 * 3, dtype=np.uint8).reshape(5, 4, 3, 3)
    images[3] = images[0]
    arrays = {"image": images, "label": np.array([0, 1, 1, 0, 1])}
    return write_store(
        path,
        {"image": image_field(images), "label": label_field("cat", "dog|fox")},
        ("train", 5, arrays),
        statistics={"label": {"class_counts": [2, 3]}},
        provenance={
            "tool": "tensorstore-ds",
            "tool_version": "0.1.0",
            "source": "pets_and_more",
            "source_format": "folders",
            "options": {"encoding": "raw", "layout": "memmap", "seed": 7, "fit": "pad", "quality": 90},
            "created": "2026-11-02T10:00:00+00:00",
        },
        license="CC-BY-4.0",
        citation="We, 2026\n```\nand more",
    )


ANSWERS = """\
title: "Pets"
description: |
  Pictures of pets.
creators: ["Doe, Jane", "Pets e.V."]
collection: With a telephone.
biases: More dogs.
tags: [pets]
"""

GOLDEN = """\
---
license: cc-by-4.0
pretty_name: "Pets"
size_categories:
- "n<1K"
task_categories:
- "image-classification"
tags:
- "tsds"
- "zarr"
- "pets"
---

# Pets

Pictures of pets.

![Samples of train](pictures/samples.jpg)

## What is in it

| split | samples | size |
| --- | --: | --: |
| train | 5 | SIZE |

| field | kind | content |
| --- | --- | --- |
| image | image | uint8 4 x 3 x 3 |
| label | label | int64 · 2 classes |

## Classes of label

2 classes; the numbers are samples.

| # | class | samples |  |
| --: | --- | --: | --- |
| 0 | cat | 2 | ████████████████ |
| 1 | dog\\|fox | 3 | ████████████████████████ |

## Load it

The data are the folder `pets.tsds`: a [Zarr v3](https://zarr-specs.readthedocs.io) store whose arrays are also memory \
maps. With the Python package tensorstore_ds:

```python
import tensorstore_ds as tsds
store = tsds.open("pets.tsds", sha256="DIGEST")
sample = store["train"][0]  # a dict of image, label
```

`tsds verify pets.tsds` checks every byte. The digest above is of the content: a license or a DOI that is \
added later does not change it. zarr-python and NumPy also read the arrays.

Beside this card: `CITATION.cff`.

## How it was made

### Collection

With a telephone.

### Conversion

|  |  |
| --- | --- |
| source | pets\\_and\\_more |
| format | folders |
| converted | 2026-11-02T10:00:00+00:00 |
| by | tensorstore-ds 0.1.0 |
| option `encoding` | raw |
| option `layout` | memmap |
| option `seed` | 7 |

## Known faults

Nothing was left out by the conversion.

## Duplicates

Images that are the same, byte for byte, as one before them: 1. Similar images were not looked for.

## Before you use it

### Biases

More dogs.

## License and citation

License: CC-BY-4.0

Creators: Doe, Jane; Pets e.V.

````
We, 2026
```
and more
````
"""


def test_the_card_as_a_whole(tmp_path: Path) -> None:
    store = tsds.open(small(tmp_path / "pets.tsds"))
    (tmp_path / "answers.yaml").write_text(ANSWERS)
    made = tsds.card(store.path, answers=tmp_path / "answers.yaml")
    assert made.path == tmp_path / "pets-card"
    assert made.files == ("CITATION.cff", "README.md", "pictures/samples.jpg")
    size = words.size(store.manifest.splits["train"].shards[0].nbytes)
    expected = GOLDEN.replace("DIGEST", store.content_sha256).replace("SIZE", size)
    assert (made.path / "README.md").read_text("utf-8") == expected


def test_the_same_store_always_gives_the_same_papers_and_is_not_touched(tmp_path: Path) -> None:
    store = small(tmp_path / "pets.tsds")
    before = {p: p.stat().st_mtime_ns for p in store.rglob("*")}
    (tmp_path / "answers.yaml").write_text(ANSWERS)
    made = [tsds.card(store, tmp_path / name, answers=tmp_path / "answers.yaml", croissant=True) for name in "ab"]
    assert made[0].files == made[1].files
    assert "croissant.json" in made[0].files and "pictures/samples.jpg" in made[0].files
    for name in made[0].files:
        assert (made[0].path / name).read_bytes() == (made[1].path / name).read_bytes(), name
    assert {p: p.stat().st_mtime_ns for p in store.rglob("*")} == before


def test_the_card_tells_all_that_was_done_to_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")  # 2023-11-14
    images = np.zeros((4, 8, 8, 3), np.uint8)
    columns = {"image": images, "label": np.array([0, 1, 0, 1])}
    store = write_store(
        tmp_path / "a.tsds", {"image": image_field(images), "label": label_field("cat", "dog")}, ("train", 4, columns)
    )
    tsds.editing.filter_store(store, tmp_path / "b.tsds", "label == 'cat'")
    tsds.repack(tmp_path / "b.tsds", tmp_path / "c.tsds", layout="zarr")
    tsds.repack(tmp_path / "c.tsds", tmp_path / "d.tsds", encoding=tsds.Jpeg(70))
    tsds.annotate(tmp_path / "d.tsds", license="MIT")
    text = text_of(tsds.card(tmp_path / "d.tsds")).replace("\\", "")
    lines = [line for line in text.splitlines() if line.startswith("| afterwards")]
    told = ["filter", "repack: layout zarr", "repack: encoding jpeg, quality 70", "annotate: changed license"]
    assert len(lines) == 4
    for line, what in zip(lines, told, strict=True):
        assert f"2023-11-14 {what}" in line


# --- answers are asked for ----------------------------------------------------------------------------------------


def test_the_first_call_asks_and_the_next_reads(tmp_path: Path) -> None:
    store = small(tmp_path / "pets.tsds")
    made = tsds.card(store)
    assert made.questions == made.path / "card.yaml"
    assert made.missing[:3] == ("description", "creators", "contact")
    asked = made.questions.read_text()
    made.questions.write_text(asked.replace('description: ""', "description: Cats."))
    assert "description" not in tsds.card(store).missing
    assert "\n\nCats.\n\n" in text_of(made)
    assert "description: Cats." in made.questions.read_text()


def test_strict_names_all_that_is_missing_and_writes_nothing_else(tmp_path: Path) -> None:
    store = small(tmp_path / "pets.tsds")
    message = r"missing description, creators, contact, url, .*, maintenance"
    with pytest.raises(tsds.OptionError, match=message) as caught:
        tsds.card(store, strict=True)
    assert "\n" not in str(caught.value)
    assert [p.name for p in (tmp_path / "pets-card").iterdir()] == ["card.yaml"]


def test_what_the_store_says_counts_and_a_paper_that_is_there_does_not_become_wrong(tmp_path: Path) -> None:
    store = small(tmp_path / "pets.tsds")
    tsds.annotate(store, description="From the store.", citation="")
    made = tsds.card(store, croissant=True)
    assert "description" not in made.missing and made.missing[-1] == "citation"
    assert "From the store." in text_of(made)
    digest = tsds.annotate(store, license="MIT").content_sha256
    tsds.card(store)
    found = json.loads((made.path / "croissant.json").read_text())
    assert found["license"] == "https://spdx.org/licenses/MIT.html" and digest in text_of(made)


@pytest.mark.parametrize("inside", [".", "papers", "train/papers"])
def test_a_store_holds_no_papers(tmp_path: Path, inside: str) -> None:
    store = small(tmp_path / "pets.tsds")
    with pytest.raises(tsds.OptionError, match="this lies inside the store"):
        tsds.card(store, store / inside)
    assert tsds.verify(store) == []


def test_answers_that_cannot_be_read_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match=r"none\.yaml: cannot be read"):
        tsds.card(small(tmp_path / "pets.tsds"), answers=tmp_path / "none.yaml")
    assert [each.name for each in tmp_path.iterdir()] == ["pets.tsds"]


def test_no_erased_sample_stays_in_a_card(tmp_path: Path) -> None:
    store = tsds.convert(class_folders(tmp_path / "source"), tmp_path / "s.tsds", size=8, workers=0).path
    before = {*tsds.card(store, tmp_path / "card", croissant=True).files}
    (tmp_path / "card" / "preview" / "notes.txt").write_text("mine")
    tsds.erase(store, rows={"test": range(8)})
    made = tsds.card(store, tmp_path / "card")
    assert {*made.files} == before - {"preview/test.parquet"}
    assert {*files_of(made.path)} == {*made.files, "card.yaml", "preview/notes.txt"}


def test_no_link_is_followed(tmp_path: Path) -> None:
    store, outside = small(tmp_path / "pets.tsds"), tmp_path / "outside"
    outside.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / "pictures").symlink_to(outside)
    with pytest.raises(tsds.OptionError, match="pictures: expected a folder, found a link"):
        tsds.card(store, out)
    (out / "pictures").unlink()
    (out / "README.md").symlink_to(outside / "README.md")
    (outside / "README.md").write_text("mine")
    tsds.card(store, out)
    assert (outside / "README.md").read_text() == "mine"
    assert not (out / "README.md").is_symlink()


# --- kinds of stores ----------------------------------------------------------------------------------------------


def text_of(made: tsds.publishing.Card) -> str:
    return (made.path / "README.md").read_text("utf-8")


def head_of(made: tsds.publishing.Card) -> Any:
    return yaml.safe_load(text_of(made).split("---\n")[1])


def test_a_detection_store(tmp_path: Path) -> None:
    source = voc(tmp_path / "voc", "a", "b", boxes=[("cat", 1, 2, 8, 9), ("dog", 3, 3, 3, 7)])
    tsds.convert(source, tmp_path / "v.tsds", tsds.ConvertOptions(workers=0, on_error="skip"))
    made = tsds.card(tmp_path / "v.tsds", croissant=True)
    assert head_of(made)["task_categories"] == ["object-detection"]
    paths = [each["path"] for each in head_of(made)["configs"][0]["data_files"]]
    assert paths and all((made.path / path).is_file() for path in paths)
    assert re.search(r"\| box-empty \| 2 \| .*has no area", text_of(made))
    assert "the same, byte for byte, as one before them: 1" in text_of(made)


@pytest.mark.parametrize(
    ("kind", "tasks", "shown", "hidden"),
    [
        ("landmarks", ["object-detection", "keypoint-detection"], "3 keypoints", "## Classes"),
        ("masks", ["image-segmentation"], "## Classes of mask\n\n2 classes; the numbers are pixels.", "objects"),
        ("images", None, "No license was given", "license:"),
    ],
)
def test_stores_of_other_kinds(tmp_path: Path, kind: str, tasks: list[str] | None, shown: str, hidden: str) -> None:
    rng = np.random.default_rng(0)
    image, masks = rng.integers(0, 256, (8, 8, 3), np.uint8), rng.integers(0, 2, (4, 8, 8), np.uint8)
    samples: list[dict[str, Any]] = {
        "landmarks": [{k: v for k, v in each.items() if k != "labels"} for each in detections()],
        "masks": [{"image": image, "mask": mask} for mask in masks],
        "images": [{"image": image}],
    }[kind]
    classes = ("ground", "road") if kind == "masks" else ()
    made = tsds.card(store_of(tmp_path / "s.tsds", samples, classes).path, croissant=True)
    assert head_of(made).get("task_categories") == tasks and made.missing[-2:] == ("license", "citation")
    assert shown in text_of(made) and hidden not in text_of(made)


def test_five_thousand_classes(tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(5000)]
    samples = [{"image": np.full((2, 2, 1), i % 256, np.uint8), "label": min(i, 4000)} for i in range(60)]
    made = tsds.card(store_of(tmp_path / "s.tsds", samples, names).path, croissant=True)
    text = text_of(made)
    assert text.count("| class ") - 1 == 50  # without the head of the table
    assert "5,000 classes; the numbers are samples. The table has the 50 most frequent; the others have 0 to 1" in text
    found = json.loads((made.path / "croissant.json").read_text())
    records = {each["@id"]: each for each in found["recordSet"]}
    assert len(records["classes-label"]["data"]) == 5000


def test_stores_of_no_samples_large_ones_and_repeated_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, pixels = np.zeros((0, 4, 4, 3), np.uint8), np.zeros((2, 2, 2, 3), np.uint8)
    store = write_store(tmp_path / "s.tsds", {"image": image_field(images)}, ("train", 0, {"image": images}))
    assert "| train | 0 |" in text_of(tsds.card(store, croissant=True))
    store = write_store(
        tmp_path / "r.tsds",
        {"image": image_field(pixels)},
        ("train", 2, {"image": pixels}),
        ("test", 2, {"image": np.stack([pixels[0], pixels[0] + 1])}),
    )
    assert "as one before them: 2; 1 of them repeat an image of another split." in text_of(tsds.card(store))
    monkeypatch.setattr("tensorstore_ds.annex.publishing.facts._READ_FOR_DUPLICATES", 10)
    assert "They were not looked for, because the store has" in text_of(tsds.card(store))


# --- names of strangers -------------------------------------------------------------------------------------------


def test_hostile_names_are_only_names(tmp_path: Path) -> None:
    samples = [{"image": np.full((4, 4, 3), i, np.uint8), "label": i} for i in range(len(HOSTILE))]
    store = store_of(tmp_path / "s.tsds", samples, HOSTILE)

    texts = {"citation": ["```", "<img src=x>", *HOSTILE], "description": ["Plain.", "", *HOSTILE]}
    tsds.annotate(store.path, **{name: "\n".join(lines) for name, lines in texts.items()})
    made = tsds.card(store.path, croissant=True)
    text = text_of(made)
    body, citation = text.split("## License and citation")
    assert "<" not in body.replace("n<1K", "") and not re.search("[\x1b\u202e]", text)
    assert citation.count("````") == 2 and citation.endswith("````\n")
    assert body.count("\n---\n") == 1  # the end of the head
    assert re.search(r"^Plain\.\n\n&lt;script&gt;alert\(1\)&lt;/script&gt; a \\\| b ", body, re.MULTILINE)
    assert set(head_of(made)) == {"configs", "pretty_name", "size_categories", "tags", "task_categories"}
    table = text.split("## Classes of label")[1].split("## Load it")[0]
    rows = [line for line in table.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) == len(HOSTILE)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)
    assert not re.search(r"(?<!\\)[*`~$]|(?<!\\)\]\(", "".join(rows))
    found = json.loads((made.path / "croissant.json").read_text())
    records = {each["@id"]: each for each in found["recordSet"]}
    assert [each["classes-label/name"] for each in records["classes-label"]["data"]] == HOSTILE


def test_a_hostile_manifest_is_only_text(tmp_path: Path) -> None:
    nasty = "x\n---\n<b>|`\x1b]0;owned\x07"
    images = np.zeros((2, 4, 4, 3), np.uint8)
    store = write_store(
        tmp_path / f"s {nasty.replace('/', '')}.tsds",
        {"image": image_field(images), "label": label_field("a")},
        ("train", 2, {"image": images, "label": np.array([0, -1])}),
        statistics={"label": {"class_counts": nasty}, "image": nasty, nasty: nasty},
        license=nasty,
        citation=nasty,
        provenance={
            "tool": nasty,
            "source": nasty,
            "created": nasty,
            "options": {nasty: nasty, "fit": {nasty: [nasty]}},
            "history": [nasty, {"options": {nasty: nasty}}],
            "description": 5,
        },
    )
    made = tsds.card(store, croissant=True)
    text = text_of(made)
    body = text.split("\n---\n")[1].split("\n```\nx\n")[0]
    assert "<b>" not in body and "\x1b" not in text
    assert text.count("\n---\n") == 2  # the end of the head, and in the block of the citation
    assert head_of(made)["license"] == "other" and head_of(made)["license_name"] == nasty
    assert "1 class, which were not counted: a." in text


def test_markdown_is_one_line_that_reads_the_same() -> None:
    for text in HOSTILE:
        escaped = markdown(text)
        assert "\n" not in escaped
        plain = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", escaped)
        plain = plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        assert plain == text or not text.isprintable() or "\\" in text
    assert code_block("````\nx") == "`````\n````\nx\n`````"
    assert code_block("a\x1bb") == "```\na\\x1bb\n```"


def test_samples_that_are_an_iterator_of_other_types(tmp_path: Path) -> None:
    samples = [{"image": np.linspace(0, 1, 48, dtype=np.float32).reshape(4, 4, 3), "label": 0}]
    assert (
        "preview/train.parquet" in tsds.card(store_of(tmp_path / "s.tsds", samples, ["a"]).path, croissant=True).files
    )


def test_a_packed_store_has_to_be_unpacked(tmp_path: Path) -> None:
    tsds.pack(small(tmp_path / "pets.tsds"), tmp_path / "pets.tsds.zip")
    with pytest.raises(
        tsds.OptionError, match=r"pets\.tsds\.zip: expected a store that is a folder, .* Unpack it with tsds unpack"
    ):
        tsds.card(tmp_path / "pets.tsds.zip", tmp_path / "card")
    assert not (tmp_path / "card").exists()


def test_licenses_of_the_hub_are_those_of_spdx() -> None:
    for name in _HUB_LICENSES:
        assert license_expression(name).lower() == name
    for name in ("CC-BY-2.5", "CC-BY-NC-SA-2.0", "CDLA-Permissive-1.0", "MIT"):
        assert _hub_license(name) == [f"license: {name.lower()}"]
    assert _hub_license("ODbL-1.0") == ["license: odbl"]
    assert _hub_license("LicenseRef-Ours") == ["license: other", 'license_name: "LicenseRef-Ours"']
