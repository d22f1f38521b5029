from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tensorstore_ds
from jpeg_files import exif_of
from small_stores import VALID, class_folders, tsds, voc
from stores import interrupted
from tensorstore_ds import ConvertOptions, Keypoints
from tensorstore_ds.options import flat, from_flat
from waiting import wait_for

TSDS = [sys.executable, "-m", "tsds_cli"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return class_folders(tmp_path / "photos", "cat", "dog", count=5)


def convert(source: Path, *arguments: object) -> tensorstore_ds.Store:
    """Convert in this process, and open."""
    out = source.parent / "out.tsds"
    done = tsds("convert", source, out, "--workers", 0, *arguments)
    assert done.exit_code == 0, done.output
    return tensorstore_ds.open(out)


# --- options ----------------------------------------------------------------------------------------------------


#: Flags, and the options that they are.
FLAGS: list[tuple[str, dict[str, Any]]] = [
    (
        "--format voc --layout zarr --encoding jpeg --quality 50 --size 224 --fit crop --color gray --images pictures",
        {"format": "voc", "layout": "zarr", "encoding": "jpeg", "quality": 50, "size": (224, 224), "fit": "crop",
         "color": "gray", "images": Path("pictures")},
    ),
    (
        "--size 480x640 --seed 7 --split-into train=0.75,val=0.25 --shard-size 500MB --workers 3",
        {"size": (480, 640), "seed": 7, "split_into": {"train": 0.75, "val": 0.25}, "shard_nbytes": 500_000_000,
         "workers": 3},
    ),
    (
        "--split-into train=75%,val=25% --on-error skip --max-pixels 1000 --license CC0-1.0",
        {"split_into": {"train": 0.75, "val": 0.25}, "on_error": "skip", "max_pixels": 1000, "license": "CC0-1.0"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "expected"), FLAGS)
def test_every_option_reaches_the_library(
    flags: str, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def run(*given: Any, progress: Any) -> None:
        seen.extend(given)
        raise KeyboardInterrupt

    monkeypatch.setattr("tensorstore_ds.convert", run)
    tsds("convert", "src", "out", *flags.split(), "--citation", "Us, 2025")
    assert seen == [
        Path("src"),
        Path("out"),
        ConvertOptions(citation="Us, 2025", **from_flat(ConvertOptions, expected)),
    ]
    usual = flat(ConvertOptions())
    assert all(usual[name] != value for name, value in expected.items())


def test_a_store_is_made_and_described(photos: Path) -> None:
    out = photos.parent / "my photos.tsds"
    done = tsds("convert", photos, out, "--workers", 1)
    assert done.exit_code == 0
    assert done.stderr == ""  # no terminal, no progress bar
    first, *_, last = done.stdout.splitlines()
    assert re.fullmatch(rf"{re.escape(str(out))}  10 samples, [\d.]+ kB, [\d.]+ m?s, [\d,]+ samples/s", first)
    assert "  train  10\n" in done.stdout
    assert f"info '{out}'" in last and "skipped" not in done.stdout
    assert len(tensorstore_ds.open(out)["train"]) == 10


def test_classes_come_in_the_order_of_a_file_or_of_names(photos: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\nbird\n", "utf-8")
    for given in (names, "dog, cat,bird"):
        assert convert(photos, "--classes", given)["train"].fields["label"].classes == ("dog", "cat", "bird")
        shutil.rmtree(tmp_path / "out.tsds")
    names.write_text("dog, cat", "utf-8")
    done = tsds("convert", photos, tmp_path / "x.tsds", "--classes", names)
    assert "The list has one name, 'dog, cat': write one name per line." in done.stderr
    done = tsds("convert", photos, tmp_path / "x.tsds", "--classes", "nowhere")
    assert "The list has one name, 'nowhere': if that is a file, correct its path." in done.stderr
    done = tsds("convert", photos, tmp_path / "x.tsds", "--classes", tmp_path / "nothing")
    assert (done.exit_code, "the class list cannot be used" in done.stderr) == (1, True)


def test_keypoints_come_in_the_order_of_a_file(tmp_path: Path) -> None:
    source = tmp_path / "faces"
    source.mkdir()
    Image.new("L", (9, 9)).save(source / "a.png")
    part = "<part name='{}' x='1' y='2'/>"
    parts = part.format("left") + part.format("right")
    box = f"<box top='1' left='1' width='5' height='5'>{parts}</box>"
    (source / "faces.xml").write_text(f"<dataset><images><image file='a.png'>{box}</image></images></dataset>")
    names = tmp_path / "names.txt"
    names.write_text("right\nleft\n", "utf-8")
    field = convert(source, "--keypoints", names)["train"].fields["objects"]
    assert Keypoints(field.keypoints).names == ("right", "left")


def test_json_says_what_was_done(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tsds"
    done = json.loads(tsds("convert", photos, out, "--workers", 0, "--json").stdout)
    assert done["path"] == str(out)
    assert done["rows"] == {"train": 10}
    assert done["nbytes"] == tensorstore_ds.open(out).nbytes


# --- bad samples ------------------------------------------------------------------------------------------------


def test_a_bad_sample_stops_the_conversion(photos: Path, tmp_path: Path) -> None:
    (photos / "cat" / "7.png").write_text("not an image")
    done = tsds("convert", photos, tmp_path / "out.tsds", "--workers", 0)
    assert done.exit_code == 1
    assert re.fullmatch(
        r"tsds: cat/7\.png: .+ With --on-error skip such samples are left out\. "
        r"--dry-run lists all of them except damaged pixels\.\n",
        done.stderr,
    )
    assert not (tmp_path / "out.tsds").exists()


def test_what_the_source_leaves_out_is_counted(tmp_path: Path) -> None:
    source = voc(tmp_path / "voc", "a", "b", "c")
    lists = source / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for name, stems in {"train": "a\nb\n", "val": "c\n", "trainval": "a\nb\nc\n"}.items():
        (lists / f"{name}.txt").write_text(stems)
    done = tsds("convert", source, tmp_path / "out.tsds", "--workers", 0)
    assert "left out: split-union 1\n  split-union: " in done.stdout
    assert "  train  2\n  val    1\n" in done.stdout


@pytest.mark.parametrize("words", [("", "out"), ("photos", "")])
def test_an_empty_path_is_wrong_usage(words: tuple[str, str]) -> None:
    done = tsds("convert", *words)
    assert done.exit_code == 2
    assert "expected a path, found an empty text" in done.stderr


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("tensorstore_ds.convert", run)
    with pytest.raises(ZeroDivisionError):
        tsds("convert", "a", "b")


# --- dry run ----------------------------------------------------------------------------------------------------


def test_dry_run_says_what_would_be_and_writes_nothing(photos: Path, tmp_path: Path) -> None:
    done = tsds("convert", photos, tmp_path / "out.tsds", "--dry-run")
    assert done.exit_code == 0
    assert "folders, 10 samples" in done.stdout
    assert re.search(r"classes +2: cat, dog", done.stdout)
    assert re.search(r"sizes +12x10 \(10\), height x width", done.stdout)
    assert re.search(r"as memmap +\d+\.\d kB\n +as zarr +\d+\.\d kB", done.stdout)
    assert re.search(r"memory +memmap fits into the [\d.]+ GB", done.stdout)
    assert re.search(r"time +about [\d.]+ [mµ]?s", done.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {"photos"}


def test_dry_run_refuses_a_store_inside_the_source(photos: Path) -> None:
    inside = photos / "out.tsds"
    real, dry = tsds("convert", photos, inside), tsds("convert", photos, inside, "--dry-run")
    assert dry.exit_code == 1 and "lies inside the source" in dry.stderr
    assert dry.stderr == real.stderr


def test_dry_run_as_json(photos: Path, tmp_path: Path) -> None:
    found = json.loads(tsds("convert", photos, tmp_path / "out.tsds", "--dry-run", "--json").stdout)
    assert found["rows"] == {"train": 10}
    assert found["fields"]["image"] == {"kind": "image", "dtype": "uint8", "shape": [12, 10, 3], "encoding": "raw"}
    assert set(found["nbytes"]) == {"memmap", "zarr"}


def test_dry_run_finds_what_is_wrong_with_boxes_and_says_what_it_does_not_look_at(tmp_path: Path) -> None:
    source = voc(tmp_path / "voc", "a", boxes=[("cat", 1, 2, 8, 9), ("cat", 1, 2, 1, 9)])
    done = tsds("convert", source, tmp_path / "out.tsds", "--dry-run")
    assert done.exit_code == 1
    assert "  box-empty: JPEGImages/a.png: object 2 of 2 in Annotations/a.xml: the box (1, 2, 1, 9)" in done.stdout
    assert "checked: annotations, image headers, and the pixels of a few images." in done.stdout
    assert done.stderr.startswith("tsds: 1 problem would stop the conversion.")
    assert tsds("convert", source, tmp_path / "out.tsds").exit_code == 1


def test_images_and_boxes_that_were_skipped_are_counted_apart(tmp_path: Path) -> None:
    bad = ("cat", 5, 5, 5, 9)  # without area
    source = voc(tmp_path / "voc", "a", "b", boxes=[("cat", 1, 2, 8, 9), bad])
    shutil.copytree(voc(tmp_path / "more", "c", boxes=[bad]), source, dirs_exist_ok=True)
    (source / "Annotations" / "d.xml").write_text("<annotation></annotation>")
    for more, counted, stored in (
        ("skip", "skipped: 1 image and 3 boxes (no-image 1, box-empty 3)", {"a": 1, "b": 1, "c": 0}),
        ("skip-image", "skipped: 4 images (no-image 1, box-empty 3)", {}),
    ):
        (tmp_path / "ok").mkdir(exist_ok=True)
        out = tmp_path / f"{more}.tsds"
        keep = voc(tmp_path / f"good-{more}", "z")
        shutil.copytree(keep, source, dirs_exist_ok=True)
        done = tsds("convert", source, out, "--workers", 0, "--on-error", more)
        assert done.exit_code == 0
        assert counted in done.stdout
        note = "images that lost all their boxes, and are stored as images without objects: 1."
        assert (note in done.stdout + done.stderr) == (more == "skip")
        split = tensorstore_ds.open(out)["train"]
        found = {split[i]["key"]: len(split[i]["objects"]["boxes"]) for i in range(len(split))}
        assert found == {f"JPEGImages/{name}.png": boxes for name, boxes in (stored | {"z": 1}).items()}
    done = json.loads(
        tsds("convert", source, tmp_path / "j.tsds", "--workers", 0, "--on-error", "skip", "--json").stdout
    )
    assert (done["skipped_images"], done["skipped_boxes"], done["skipped"]) == (1, 3, {"no-image": 1, "box-empty": 3})


def test_a_conversion_does_not_go_on_with_shards_in_which_boxes_were_left_out(tmp_path: Path) -> None:
    source = voc(tmp_path / "voc", "a", "b", "c", boxes=[("cat", 1, 2, 8, 9), ("cat", 5, 5, 5, 9)])
    (last,) = source.glob("**/c.xml")
    last.write_text(last.read_text().replace("<xmin>5<", "<xmin>4<"))  # an image that stays
    options = ConvertOptions(workers=0, shard_nbytes=1, on_error="skip")
    interrupted(source, tmp_path / "s.tsds", 2, options)
    with pytest.raises(tensorstore_ds.OptionError, match="another conversion"):
        tensorstore_ds.convert(source, tmp_path / "s.tsds", options, on_error="skip-image")


def test_dry_run_names_a_damaged_image_and_all_other_problems(photos: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (40, 40, 3), np.uint8)
    damaged = photos / "cat" / "0.jpg"  # among so few, every image is tried
    Image.fromarray(noise).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:-900])
    for i in range(11):
        (photos / "dog" / f"bad{i:02d}.png").write_text("not an image")
    done = tsds("convert", photos, tmp_path / "out.tsds", "--dry-run")
    assert done.exit_code == 1
    assert "problems: 12 (not-an-image 11, truncated-image 1)" in done.stdout
    assert done.stdout.count("  not-an-image: dog/bad") + done.stdout.count("  truncated-image: ") == 10
    assert "... and 2 more; --json prints all" in done.stdout
    assert "truncated-image: cat/0.jpg: this image is damaged" in done.stdout
    assert "--encoding source" in done.stdout  # the others were tried
    assert done.stderr.startswith("tsds: 12 problems would stop the conversion.")
    assert tsds("convert", photos, tmp_path / "out.tsds", "--dry-run", "--on-error", "skip").exit_code == 0
    found = json.loads(tsds("convert", photos, tmp_path / "out.tsds", "--dry-run", "--json").stdout)
    assert {(each["where"], each["reason"]) for each in found["problems"]} == {
        ("cat/0.jpg", "truncated-image"),
        *((f"dog/bad{i:02d}.png", "not-an-image") for i in range(11)),
    }
    assert tsds("convert", photos, tmp_path / "out.tsds", "--on-error", "skip", "--workers", 0).exit_code == 0
    assert len(tensorstore_ds.open(tmp_path / "out.tsds")["train"]) == 10


@pytest.mark.parametrize("encoding", ["raw", "source", "auto"])
def test_an_image_of_another_depth_is_named_and_can_be_skipped(photos: Path, tmp_path: Path, encoding: str) -> None:
    Image.new("I;16", (10, 12)).save(photos / "cat" / "odd.png")
    out = tmp_path / "out.tsds"
    arguments = ("convert", photos, out, "--encoding", encoding, "--workers", 0)
    for more in (["--dry-run"], []):
        done = tsds(*arguments, *more)
        assert done.exit_code == 1
        assert "cat/odd.png" in done.output
        assert not out.exists()
    assert "16-bit gray (1, cat/odd.png)" in done.stderr
    done = tsds(*arguments, "--dry-run", "--on-error", "skip")
    assert (done.exit_code, done.stderr) == (0, "")
    assert "unsupported-depth: cat/odd.png: expected uint8 pixels, as most images have, found uint16." in done.stdout
    done = tsds(*arguments, "--on-error", "skip")
    assert done.exit_code == 0
    assert "skipped: 1 image (unsupported-depth 1)" in done.stdout and str(out / "skipped.jsonl") in done.stdout
    keys = tensorstore_ds.open(out)["train"]["key"]
    assert sorted(keys[i] for i in range(len(keys))) == sorted(
        f"{name}/{i}.png" for name in ("cat", "dog") for i in range(5)
    )


# --- processes --------------------------------------------------------------------------------------------------


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """One large image under many names: enough work to be interrupted."""
    folder = tmp_path / "many" / "noise"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (1200, 1200), np.uint8)
    Image.fromarray(pixels).save(folder / "000.png", compress_level=1)
    for i in range(1, 80):
        os.link(folder / "000.png", folder / f"{i:03d}.png")
    return tmp_path / "many"


@pytest.mark.slow
def test_ctrl_c_keeps_finished_shards(many: Path, tmp_path: Path) -> None:
    out, partial = tmp_path / "out.tsds", tmp_path / "out.tsds.partial"
    command = [*TSDS, "convert", str(many), str(out), "--size", "32", "--shard-size", "10000", "--workers", "2"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for(lambda: len(list(partial.glob("journal/*.json"))) >= 2)  # the first one is whole
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the command and its workers
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr == f"tsds: interrupted; finished shards are kept in {partial}, the same command goes on from there\n"
    assert stdout == "" and not out.exists()

    done = tsds("convert", many, out, "--size", 32, "--shard-size", 10000, "--workers", 0)
    assert re.search(r"^used again: \d+ shards? that an earlier run had finished$", done.stdout, re.MULTILINE)
    assert len(tensorstore_ds.open(out)["train"]) == 80
    assert not partial.exists()


@pytest.mark.slow
def test_progress_is_drawn_on_a_terminal(many: Path, tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    command = [*TSDS, "convert", str(many), str(tmp_path / "out"), "--size", "32", "--shard-size", "50000"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=terminal, env=environment)
    os.close(terminal)
    drawn = b""
    try:
        while block := os.read(controller, 65536):
            drawn += block
    except OSError:  # Linux says so when the other end is closed
        pass
    stdout, _ = process.communicate(timeout=60)
    os.close(controller)
    assert process.returncode == 0
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.decode())
    assert re.search(r"Converting .*\d+ % \d+/80 · [\d,.]+ samples/s · [\d.]+ kB +\d+:\d+ +left", shown)
    assert b"\x1b" not in stdout


def test_a_closed_stdout_is_no_error() -> None:
    code = f"import os, sys; os.close(1); os.execv(sys.executable, {[*TSDS, 'info', str(VALID / 'detection.tsds')]!r})"
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_terminal_without_unicode_gets_escapes() -> None:
    command = [*TSDS, "info", str(VALID / "classification.tsds")]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, env=environment, timeout=30)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "dög".encode("latin-1") in done.stdout and b"\\u2588" in done.stdout


# --- places -----------------------------------------------------------------------------------------------------


def test_a_folder_whose_name_is_no_utf8(photos: Path) -> None:
    strange = photos.rename(photos.with_name("photos_\udcff"))
    store = convert(strange)
    assert store.manifest.provenance["source"] == "photos_\\udcff"
    copy = strange / "copy.tsds"
    (strange.parent / "out.tsds").rename(copy)
    assert tsds("repack", copy, strange.parent / "packed.tsds", "--layout", "zarr").exit_code == 0
    list_of_images = strange.with_name("list.txt")
    list_of_images.write_text("cat/0.png cat\n")
    assert len(convert(list_of_images, "--images", strange)["train"]) == 1


def test_a_folder_of_images_that_would_be_ignored_is_refused(photos: Path) -> None:
    with pytest.raises(tensorstore_ds.OptionError, match=r"`images`: .* found the format sequence"):
        tensorstore_ds.estimate([np.zeros((4, 4), np.uint8)], tensorstore_ds.ConvertOptions(images=photos / "cat"))


def test_masks_beside_boxes_are_named(tmp_path: Path) -> None:
    source = voc(tmp_path / "voc", "a", "b")
    for more in ([], ["--dry-run"]):
        done = tsds("convert", source, tmp_path / "boxes.tsds", "--workers", 0, *more)
        assert "--format masks" not in done.output
    (source / "SegmentationClass").mkdir()
    assert "--format masks" not in tsds("convert", source, tmp_path / "empty.tsds", "--workers", 0).output
    shutil.copy(next((source / "JPEGImages").iterdir()), source / "SegmentationClass" / "a.png")
    for more in ([], ["--dry-run"]):
        done = tsds("convert", source, tmp_path / "out.tsds", "--workers", 0, *more)
        assert done.exit_code == 0 and "For the masks, convert with --format masks." in done.output


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--color", "rgb", "--dry-run"), ("--layout", "zarr")])
def test_a_size_that_fits_nowhere_is_refused_before_an_image_is_decoded(
    photos: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    monkeypatch.setattr("tensorstore_ds.imaging.picture.decode_file", None)
    side = ("--size", 900_000, "--max-pixels", 10**12)
    done = tsds("convert", photos, photos.with_name("out.tsds"), *side, *more)
    assert done.exit_code == 1
    assert re.fullmatch(r"tsds: .*at least [\d,.]+ (TB|bytes) .*smaller --size\.\n", done.stderr)
    assert list(photos.parent.iterdir()) == [photos]


def test_a_dry_run_of_what_the_disk_cannot_hold_is_refused(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(photos)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    done = tsds("convert", photos, photos.parent / "not" / "yet" / "out.tsds", "--dry-run")
    assert (done.exit_code, "free on this disk, found 1.0 kB" in done.stderr) == (1, True)


def test_one_xml_file_as_the_source(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", "a")
    done = tsds("convert", root / "Annotations" / "a.xml", tmp_path / "s.tsds")
    assert f"the Pascal VOC annotation of one image: convert the folder {root}." in done.stderr
    (tmp_path / "all.xml").write_text("<annotations><picture/></annotations>")
    done = tsds("convert", tmp_path / "all.xml", tmp_path / "s.tsds")
    found = "expected <image> elements, as CVAT for images 1.1 has them, found none. The root <annotations>"
    assert found in done.stderr


def test_a_size_in_the_message_is_that_of_the_turned_image(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", "a")
    annotation = root / "Annotations" / "a.xml"
    size = "<size><width>12</width><height>10</height></size></annotation>"
    annotation.write_text(annotation.read_text().replace("</annotation>", size))
    Image.new("L", (12, 10)).save(root / "JPEGImages" / "a.png", exif=exif_of(6))
    told = "is for an image of 10x12 (height x width), the image is 12x10 as its EXIF orientation shows it"
    assert told in tsds("convert", root, tmp_path / "s.tsds").stderr
    Image.new("L", (10, 12)).save(root / "JPEGImages" / "a.png")
    assert "the image is 12x10." in tsds("convert", root, tmp_path / "s.tsds").stderr


@pytest.mark.parametrize(("size", "is_told"), [("12x10", True), ("10x12", False), ("11x12", False), ("24x20", True)])
def test_height_and_width_that_are_mixed_up(tmp_path: Path, size: str, is_told: bool) -> None:
    source = voc(tmp_path / "voc", "a", "b")  # 10 x 12
    for more in ([], ["--dry-run"]):
        done = tsds("convert", source, tmp_path / "s.tsds", "--size", size, "--workers", 0, *more)
        assert ("if height and width were mixed up" in done.output) == is_told


def test_absent_keypoints_are_told(tmp_path: Path) -> None:
    part = "<part name='{}' x='1' y='2'/>"
    boxes = [[0, 1, 2], [0, 2], [0], []]
    texts = (f"<box top='1' left='1' width='5' height='5'>{''.join(map(part.format, each))}</box>" for each in boxes)
    tmp_path.joinpath("src").mkdir()
    Image.new("L", (9, 9)).save(tmp_path / "src" / "a.png")
    whole = f"<dataset><images><image file='a.png'>{''.join(texts)}</image></images></dataset>"
    (tmp_path / "src" / "faces.xml").write_text(whole)
    done = tsds("convert", tmp_path / "src", tmp_path / "s.tsds", "--workers", 0)
    assert "note: keypoints that are absent, of 3 objects with keypoints: 1 in 2, 2 in 1." in done.output


def test_images_that_a_list_does_not_find(tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "l.csv").write_text("path,label\nsub/b.png,x\n")
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    Image.new("L", (9, 9)).save(tmp_path / "photos" / "sub" / "b.png")
    words = ("convert", tmp_path / "lists" / "l.csv", tmp_path / "s.tsds", "--workers", 0)
    done = tsds(*words)
    place = tmp_path / "lists" / "sub" / "b.png"
    advice = "If the images are in another folder, name it with --images."
    shown = place if len(str(place)) <= 100 else f"...{str(place)[-100:]}"
    assert done.stderr == f"tsds: sub/b.png: {shown}: cannot be read: No such file or directory. {advice}\n"
    assert tsds(*words, "--images", tmp_path / "photos").exit_code == 0
