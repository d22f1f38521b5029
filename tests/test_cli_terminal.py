"""One door to the terminal: nothing that a store, a checkpoint or a source says is obeyed by it."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_stores import ROOT, VALID, tsds

pytestmark = pytest.mark.slow

#: Sets the window's title, rings, deletes, turns text magenta (in two ways), turns it round, and begins a new line.
NASTY = "\x1b]0;owned\x07\x7f\x1b[35m\x9b35m\u200f\u202e\u2066[red]x\r\nINJECTED"
#: The same for XML, which has no control characters of ASCII.
NASTY_XML = "&#x9b;35m&#x202e;&#x200f;&#x2066;[red]x&#xd;&#xa;INJECTED"
OBEYED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]|^INJECTED", re.MULTILINE)

TRAIN = (
    *("--image-size", "12x12", "--patch-size", 6, "--width", 8, "--depth", 1, "--heads", 2, "--mlp-width", 8),
    *("--batch-size", 4, "--epochs", 1, "--device", "cpu", "--threads", 1),
)


def safe(output: str) -> str:
    found = OBEYED.search(output)
    assert found is None, repr(output[max(0, found.start() - 200) : found.end() + 50])
    return output


def run(*arguments: object, status: int | None = 0) -> str:
    """What a command prints, on both streams."""
    done = tsds(*arguments)
    assert status is None or done.exit_code == status, done.output
    assert "Traceback" not in done.output
    return safe(done.stdout) + safe(done.stderr)


def process(*arguments: object) -> str:
    """The same, of a process."""
    words = [sys.executable, "-m", "tsds_cli", *map(os.fspath, map(str, arguments))]
    done = subprocess.run(words, capture_output=True, timeout=60, check=True)
    return safe(done.stdout.decode()) + safe(done.stderr.decode())


# --- hostile stores ----------------------------------------------------------------------------------------------


def rewrite(store: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a store's root metadata; all tests here do it through this."""
    path = store / "zarr.json"
    document = json.loads(path.read_bytes())
    change(document)
    attributes = document.get("attributes")
    sealed = isinstance(attributes, dict) and "tsds_sha256" in attributes
    if sealed:
        attributes["tsds_sha256"] = "0" * 64
    data = json.dumps(document).encode()
    path.write_bytes(data.replace(b"0" * 64, hashlib.sha256(data).hexdigest().encode(), 1) if sealed else data)


def strings(value: Any, *place: Any) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """The place of every string in a tree, and whether it is the name of a member."""
    if isinstance(value, str):
        yield place, False
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if isinstance(key, str):
            yield (*place, key), True
        yield from strings(item, *place, key)


def planted(tree: Any, place: tuple[Any, ...], name: bool) -> None:
    """Put `NASTY` in a place of a tree."""
    for step in place[:-1]:
        tree = tree[step]
    if name:
        tree[NASTY] = tree.pop(place[-1])
    else:
        tree[place[-1]] = NASTY


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders of which every name is hostile, and an image that is none."""
    root = tmp_path_factory.mktemp("hostile") / NASTY
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in (f"a{NASTY}", f"b{NASTY}"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(4):
                Image.fromarray(rng.integers(0, 256, (12, 12), np.uint8)).save(folder / f"{i}{NASTY}.png")
    (folder / f"9{NASTY}.png").write_bytes(b"no image")
    (root / "train" / f"{NASTY}.txt").write_text("left out")
    return root


@pytest.fixture(scope="module")
def store(source: Path) -> Path:
    """What is made of them by a process, with hostile strings in all that a manifest may say freely."""
    out = source.parent / f"out{NASTY}"
    given = ("--on-error", "skip", "--license", "LicenseRef-Own", "--citation", NASTY, "--workers", 2)
    shown = process("convert", source, out, *given)
    assert "skipped: 1" in shown

    def everywhere(document: dict[str, Any]) -> None:
        manifest = document["attributes"]["tsds"]
        manifest["license"] = NASTY
        origin = manifest["provenance"]
        origin.update({name: NASTY for name, value in origin.items() if isinstance(value, str)})
        origin.update(skipped={NASTY: 3}, left_out={NASTY: NASTY}, options={NASTY: NASTY}, **{NASTY: NASTY})
        for split in manifest["splits"].values():
            split["statistics"]["size"]["distinct"] = {NASTY: 5}
            split["statistics"][NASTY] = {NASTY: [NASTY]}

    rewrite(out, everywhere)
    return out


def test_what_is_looked_for_is_found() -> None:
    assert OBEYED.search("INJECTED") and not OBEYED.search("one\ntwo · 猫 [red] INJECTED\n")
    assert all(OBEYED.search(c) for c in NASTY if not c.isprintable() and c != "\n")


def test_every_command_on_a_hostile_store(store: Path, tmp_path: Path) -> None:
    for command in ("info", "stats", "verify", "warm", "evict"):
        shown = process(command, store)
        assert r"\x1b]0;owned\x07" in shown or command not in ("info", "stats")  # escaped, not left out
        run(command, store, "--json")
    run("preview", store, "--out", tmp_path / f"{NASTY}.png")
    run("repack", store, tmp_path / f"small{NASTY}", "--layout", "zarr")
    run("repack", store, tmp_path / f"json{NASTY}", "--layout", "zarr", "--json")
    for wrong in ("stats", "preview", "warm"):
        run(wrong, store, "--split", NASTY, status=1)
    (store / "train" / "zarr.json").rename(store / "gone")
    for command in ("info", "verify"):
        run(command, store, status=1)
        run(command, store, "--json", status=1)
    (store / "gone").rename(store / "train" / "zarr.json")


def test_training_and_prediction_on_a_hostile_store(source: Path, store: Path, tmp_path: Path) -> None:
    out = tmp_path / NASTY
    assert "INJECTED" in run("train", store, "--out", out, *TRAIN)  # in names of classes, escaped
    run("train", store, "--out", tmp_path / "json", *TRAIN, "--json")
    run("train", store, "--out", out, *TRAIN, "--resume", "--width", 16, status=1)
    images = sorted((source / "test").glob("*/*.png"))
    good, bad = [image for image in images if not image.name.startswith("9")], images[-1]
    assert run("predict", out / "best.pt", *good).count("INJECTED") > len(good)
    run("predict", out / "best.pt", *good, "--json")
    run("predict", out / "best.pt", bad, status=1)
    run("predict", out / f"{NASTY}.pt", bad, status=1)
    run("predict", bad, bad, status=1)


def test_measurements_on_a_hostile_store(source: Path, store: Path, tmp_path: Path) -> None:
    few = ("--seconds", 1, "--device", "cpu", "--batch-size", 4, "--model", "none")
    assert "recommended" in run("doctor", store, *few)
    few = ("--seconds", 0.01, "--device", "cpu", "--batch-sizes", 4, "--ways", "store", "--no-train")
    assert "delivered" in run("bench", store, "--out", tmp_path / NASTY, *few)


@pytest.mark.parametrize("name", ["classification.tsds", "detection.tsds"])
def test_every_string_of_a_manifest(name: str, tmp_path: Path) -> None:
    """One after the other: some are refused, others shown."""
    store = tmp_path / "s"
    shutil.copytree(VALID / name, store)
    whole = json.loads((store / "zarr.json").read_bytes())
    places = list(strings(whole))
    assert len(places) > 80
    for place, is_name in places:
        changed = copy.deepcopy(whole)
        planted(changed, place, is_name)
        rewrite(store, lambda document, changed=changed: (document.clear(), document.update(changed))[0])  # type: ignore[misc]
        for command in ("info", "stats", "verify"):
            run(command, store, status=None)
        run("info", store, "--json", status=None)


# --- hostile sources ---------------------------------------------------------------------------------------------


def csv(root: Path) -> Path:
    Image.new("L", (8, 8)).save(root / f"{NASTY}.png")
    path = root / f"{NASTY}.csv"
    rows = [f'"{NASTY}.png","{NASTY}"', f'"{NASTY}.png",b', '"\x1b[2Jgone.png","c"']
    path.write_text("\n".join(["path,label", *rows]), "utf-8", newline="")
    return path


def text_list(root: Path) -> Path:
    Image.new("L", (8, 8)).save(root / "\x1b[35m\u202e.png")
    path = root / "list.txt"
    path.write_text("\x1b[35m\u202e.png \x1b[35m\u202ea\n\x1b[35mgone.png \x9b35mb\n", "utf-8")
    return path


def voc(root: Path) -> Path:
    for name in ("Annotations", "JPEGImages"):
        (root / name).mkdir()
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>8</ymax></bndbox>"
    for i, (word, edge) in enumerate(
        ((NASTY_XML, box), ("cat", box.replace(">9<", f">{NASTY_XML}<")), (NASTY_XML, ""))
    ):
        Image.new("RGB", (12, 10)).save(root / "JPEGImages" / f"{i}{NASTY}.png")
        text = f"<object><name>{word}</name><pose>{NASTY_XML}</pose>{edge}</object>"
        text = f"<annotation><filename>{i}{NASTY_XML}</filename>{text}</annotation>"
        (root / "Annotations" / f"{i}{NASTY}.xml").write_text(text, "utf-8")
    return root


def imglab(root: Path) -> Path:
    Image.new("RGB", (12, 10)).save(root / "a.png")
    path = root / f"{NASTY}.xml"
    image = "<image file='{}'><box top='1' left='1' width='{}' height='5'><label>{}</label>{}</box></image>"
    part = f"<part name='{NASTY_XML}' x='2' y='3'/>"
    images = [("a.png", 6, NASTY_XML), (NASTY_XML, 6, "b"), ("a.png", NASTY_XML, "b")]
    text = "".join(image.format(*words, part) for words in images)
    path.write_text(f"<dataset><name>{NASTY_XML}</name><images>{text}</images></dataset>", "utf-8")
    return path


def npz(root: Path) -> Path:
    path = root / f"{NASTY}.npz"
    np.savez(path, **{"images": np.zeros((3, 8, 8), np.uint8), f"{NASTY}labels": np.zeros(3, np.int64)})
    return path


def idx(root: Path) -> Path:
    for name in (f"train{NASTY}-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        (root / name).write_bytes(b"\0\0\x08\x01\0\0\0\x02\x07\x1b")
    return root


def empty(root: Path) -> Path:
    (root / NASTY).mkdir()
    return root / NASTY


@pytest.mark.parametrize("made", [csv, text_list, voc, imglab, npz, idx, empty], ids=lambda made: made.__name__)
def test_conversions_of_a_hostile_source(made: Callable[[Path], Path], tmp_path: Path) -> None:
    (tmp_path / NASTY).mkdir()
    source, out = made(tmp_path / NASTY), tmp_path / f"out{NASTY}"
    shown = ""
    for more in ((), ("--json",)):
        shown += run("convert", source, out, "--dry-run", *more, status=None)
        shown += run("convert", source, out, "--workers", 0, *more, status=None)
    shown += run("convert", source, out, "--workers", 0, "--on-error", "skip", status=None)
    if out.exists():
        for command in ("info", "stats", "verify"):
            shown += run(command, out)
    assert "INJECTED" in shown


def test_a_dry_run_of_hostile_folders(source: Path, tmp_path: Path) -> None:
    assert "INJECTED" in run("convert", source, tmp_path / "out", "--dry-run", status=1)
    run("convert", source, tmp_path / "out", "--dry-run", "--json", status=1)
    run("convert", source, tmp_path / f"out{NASTY}", "--workers", 0, status=1)


def test_hostile_arguments(source: Path, tmp_path: Path) -> None:
    words = tmp_path / f"{NASTY}.txt"
    words.write_text(f"{NASTY}\n{NASTY}\n", "utf-8")
    for option in ("--classes", "--keypoints"):
        run("convert", source, tmp_path / "out", option, words, status=None)
    for option in ("--format", "--size", "--split-into", "--shard-size", "--nonsense", "--images", "--workers"):
        run("convert", source, tmp_path / "out", option, NASTY, status=None)
    for given in ([NASTY], [f"--{NASTY}"], ["info"], ["info", NASTY], ["info", "a", NASTY], ["info", "a", f"-{NASTY}"]):
        run(*given, status=None)
    for given in (["--rows", NASTY], ["--count", NASTY]):
        run("preview", "a", *given, status=2)
    run("train", "a", "--image-size", NASTY, status=2)
    run("bench", "a", "--ways", NASTY, status=2)


# --- on a terminal -----------------------------------------------------------------------------------------------

#: What `tsds` itself says to a terminal: colors but magenta, where to write next, and whether the cursor is shown.
OWN = re.compile(r"\x1b\[(?!35m|0;35m)[0-9;]*m|\x1b\[[0-9]*[AGK]|\x1b\[\?25[lh]|\r")


def on_a_terminal(*arguments: object) -> str:
    """What a process prints on a terminal; its own colors and movements left out."""
    controller, terminal = pty.openpty()
    words = [sys.executable, "-m", "tsds_cli", *map(str, arguments)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "400"}
    started = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal, env=environment)
    os.close(terminal)
    printed = b""
    try:
        while block := os.read(controller, 65536):
            printed += block
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(controller)
    assert started.wait(timeout=60) == 0
    assert b"\x1b[" in printed  # it knew that it was on a terminal
    return safe(OWN.sub("", printed.decode()))


def test_on_a_terminal(source: Path, store: Path, tmp_path: Path) -> None:
    for command in ("info", "stats"):
        assert "INJECTED" in on_a_terminal(command, store)
    shown = on_a_terminal("convert", source, tmp_path / f"out{NASTY}", "--workers", 0, "--on-error", "skip")
    assert "Converting" in shown and "INJECTED" in shown


def test_a_bar_takes_no_markup() -> None:
    code = (
        "import io, sys\n"
        "class Terminal(io.StringIO):\n"
        "    def isatty(self): return True\n"
        "sys.stderr = Terminal()\n"
        "from tsds_cli.progress import ProgressBar\n"
        "with ProgressBar() as bar:\n"
        "    bar.show('x[red]\\x1b]0;owned\\x07', 1, 2, 'y[bold]\\x1b]0;owned\\x07')\n"
        "print(ascii(sys.stderr.getvalue()))\n"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    shown = OWN.sub("", ast.literal_eval(done.stdout))
    assert r"x[red]\x1b]0;owned\x07" in shown and r"y[bold]\x1b]0;owned\x07" in shown
    safe(shown)


# --- there is no other door --------------------------------------------------------------------------------------


def other_doors(code: str) -> list[str]:
    """Calls in a module that print past `text.echo`."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Name) and node.id == "print":
            found.append("print")
        if isinstance(node, ast.Attribute):
            of_click = isinstance(node.value, ast.Name) and node.value.id == "click"
            if node.attr in ("print", "write", "writelines", "log", "rule") or (
                of_click
                and ("echo" in node.attr or node.attr in ("style", "secho", "prompt", "confirm", "progressbar"))
            ):
                found.append(ast.unparse(node))
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) == "TextColumn"
            and "markup=False" not in ast.unparse(node)
        ):
            found.append(ast.unparse(node))
    return found


def test_no_command_prints_past_the_door() -> None:
    assert other_doors("click.secho(1); print(2); sys.stdout.write(3); console.print(4); TextColumn('{x}')") != []
    modules = sorted((ROOT / "cli" / "tsds_cli").rglob("*.py"))
    assert len(modules) > 15
    found = {module.name: other_doors(module.read_text("utf-8")) for module in modules if module.name != "text.py"}
    others = {"measure.py": ["comparison.write"], "memory.py": ["click.confirm"], "signals.py": ["os.write"]}
    assert {name: calls for name, calls in found.items() if calls} == others  # of a file; a question; an end at once
