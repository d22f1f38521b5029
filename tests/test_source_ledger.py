"""The ledger: everything in a source that its reader did not use is reported, once for each kind."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

import tensorstore_ds
from small_stores import class_folders, tsds, voc
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.ledger import ANY, TEXT, USED, Ledger


def texts(ledger: Ledger) -> list[str]:
    return list(map(str, ledger.problems()))


def test_members_of_json_that_are_not_known() -> None:
    ledger = Ledger(Path("x"))
    known = {"shapes": {"label": USED, "points": USED}, "version": USED, "by_name": {ANY: {"id": USED}}}
    shape = {"label": "a", "points": [{"x": 1}], "score": 0.5, "note": "", "group": None, "tags": []}
    for name in ("1.json", "2.json"):
        ledger.members(
            {"shapes": [shape, shape], "by_name": {"a": {"id": 1, "age": 7}}, "extra": {"x": 0}}, known, name
        )
    assert texts(ledger) == [
        '1.json: not read: "score", in 2 files.',
        '1.json: not read: "age", in 2 files.',
        '1.json: not read: "extra", in 2 files.',
    ]


def test_elements_of_xml_that_are_not_known() -> None:
    ledger = Ledger(Path("x"))
    known = {"object": {"name": USED, "box": {"@x": USED}, "parts": {TEXT: USED, ANY: USED}, "note": {}}}
    text = """<annotation version="2"><object><name>a</name><box x="1" y="2"/><parts>1 2<nose/></parts><note> hi </note>
        <pose>left</pose><empty/><deep><er a=" "/></deep></object><objects><object><name>b</name></object></objects>
        </annotation>"""
    ledger.element(ElementTree.fromstring(text), known, "a.xml")  # noqa: S314  # its own text
    assert texts(ledger) == [
        "a.xml: not read: the attribute version of <annotation>.",
        "a.xml: not read: the attribute y of <box>.",
        "a.xml: not read: the text of <note>.",
        "a.xml: not read: <pose>.",
        "a.xml: not read: <objects>.",
    ]


@pytest.mark.parametrize("archive", [False, True])
def test_files_that_no_reader_uses(archive: bool, tmp_path: Path) -> None:
    source = class_folders(tmp_path / "photos", "cat", "dog")
    for name in (
        "cat/a.jsonl",
        "cat/b.jsonl",
        "metadata.jsonl",
        "README.md",
        "LICENSE",
        ".hidden",
        "Thumbs.db",
        "names",
        "cat/.DS_Store",
    ):
        (source / name).write_text("x")
    if archive:
        source = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", source))
    contents = open_source(source).contents()
    assert [(each.where, each.reason, each.message) for each in contents.left_out] == [
        ("cat/a.jsonl", "not-read", "not read: 2 .jsonl files in cat."),
        ("metadata.jsonl", "not-read", "not read."),
        ("names", "not-read", "not read."),
    ]


def test_the_command_prints_every_kind_and_strict_refuses(tmp_path: Path) -> None:
    source = class_folders(tmp_path / "photos", "cat", "dog")
    for name in ("metadata.jsonl", "boxes.xyz"):
        (source / name).write_text("x")
    lines = ["  not-read: boxes.xyz: not read.", "  not-read: metadata.jsonl: not read."]
    done = tsds("convert", source, tmp_path / "a.tsds", "--workers", 0)
    assert done.exit_code == 0 and set(lines) <= set(done.stdout.splitlines())
    dry = tsds("convert", source, tmp_path / "b.tsds", "--dry-run")
    assert dry.exit_code == 0 and set(lines) <= set(dry.stdout.splitlines())
    listed = [json.loads(line) for line in (tmp_path / "a.tsds" / "skipped.jsonl").read_text().splitlines()]
    assert [(each["where"], each["reason"]) for each in listed] == [
        ("boxes.xyz", "not-read"),
        ("metadata.jsonl", "not-read"),
    ]
    for more in ([], ["--dry-run"]):
        refused = tsds("convert", source, tmp_path / "c.tsds", "--strict", "--workers", 0, *more)
        assert refused.exit_code == 1 and "boxes.xyz: not read" in refused.stderr and "--strict" in refused.stderr
    assert not (tmp_path / "c.tsds").exists()
    for name in ("metadata.jsonl", "boxes.xyz"):
        (source / name).unlink()
    assert tensorstore_ds.convert(source, tmp_path / "c.tsds", strict=True, workers=0).left_out == ()


def test_images_of_another_folder_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    voc(tmp_path / "voc", "a", "b")
    monkeypatch.chdir(tmp_path)
    for images in ("voc/JPEGImages", "../" + tmp_path.name + "/voc/JPEGImages"):
        found = tensorstore_ds.estimate("voc", images=Path(images))
        assert (found.rows, found.left_out) == ({"train": 2}, ())


def test_what_is_said_of_the_whole_source_hides_no_file(tmp_path: Path) -> None:
    shapes = [{"label": "a", "points": [[1, 2], [3, 4]], "shape_type": form} for form in ("rectangle", "line")]
    text = json.dumps({"shapes": shapes, "imagePath": "a.jpg", "imageHeight": 9, "imageWidth": 9})
    (tmp_path / "a.json").write_text(text)
    for name in ("a.jpg", "more.csv"):
        (tmp_path / name).write_bytes(b"")
    left_out = open_source(tmp_path).contents().left_out
    assert any(each.where == str(tmp_path) and each.reason == "shapes" for each in left_out)
    assert "more.csv" in [each.where for each in left_out]


def test_names_of_members_are_no_options(tmp_path: Path) -> None:
    """A member that has the name of an option is printed as it is in the file."""
    source = tmp_path / "src"
    source.mkdir()
    Image.new("RGB", (30, 20)).save(source / "0.png")
    shape = {"label": "a", "points": [[1, 2], [9, 9]], "shape_type": "rectangle", "color": "red"}
    (source / "0.json").write_text(json.dumps({"shapes": [shape], "imagePath": "0.png"}))
    printed = tsds("convert", source, tmp_path / "o.tsds", "--workers", 0).output
    assert 'not read: "color".' in printed and "--color" not in printed
