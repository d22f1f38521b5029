"""Pages of the documentation: their blocks of code, and how these are run, in order, in a folder of their own.

A page's Python blocks share their names, as if they were typed into one interpreter. One that begins with a comment
``# name.py`` is a file instead: it is written, and a later command of the page has to run it.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

import tensorstore_ds as tsds
from mask_sources import write_folders
from tensorstore_ds.annex import demo
from tensorstore_ds.conversion.options import ConvertOptions
from tsds_cli.main import main

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Kinds of blocks that are run.
RUN = ("bash", "console", "python")
#: A command or a block that takes longer has failed.
SECONDS = 60
#: What commands are given besides, unless the page says it itself, so that none takes long.
SHORTER = {
    "train": {"--epochs": "1", "--model": "seed", "--batch-size": "8"},
    "bench": {"--seconds": "0.2", "--batch-sizes": "16", "--ways": "store"},
    "doctor": {"--seconds": "1", "--model": "seed"},
}
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^ *(?P=fence)`*$", re.M | re.S)
_INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}\S.*\n)+")
_FILE = re.compile(r"# (?P<name>[a-z_]+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code.

    Attributes:
        page: relative to the repository.
        line: of its first line of code, from 1.
        kind: the fence's info string, ``bash`` for one; ``example`` of an indented block.
        text: the code.
    """

    page: str
    line: int
    kind: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All pages, relative to the repository, without translations and the copies of neighbors that the build makes."""
    others = [DOCS / name for name in ("_build", "formats", "examples", "zh-CN", "ru")]
    found = [page for page in DOCS.rglob("*.md") if not any(page.is_relative_to(folder) for folder in others)]
    return [str(page.relative_to(ROOT)) for page in [*sorted(found), ROOT / "README.md", ROOT / "examples/README.md"]]


def blocks(page: str) -> list[Block]:
    """A page's blocks in order."""
    text = (ROOT / page).read_text("utf-8")
    fenced = [(match.start("text"), match["info"].strip(), match["text"]) for match in _FENCE.finditer(text)]
    prose = _FENCE.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)  # of the same length, without code
    indented = [(match.start(), "example", match[0]) for match in _INDENTED.finditer(prose)]
    found = sorted([*fenced, *indented])
    return [Block(page, text.count("\n", 0, start) + 1, kind, code) for start, kind, code in found]


def command_lines(block: Block) -> list[str]:
    """The commands of a block: all lines that are no comments, or in a ``console`` those after a ``$``."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.kind == "console":
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def arguments(command: str) -> list[str]:
    """A command as the list of words to start it with."""
    program, *words = shlex.split(command, comments=True)
    extra = SHORTER.get(words[0], {}) if program == "tsds" else {}
    added = [word for option, value in extra.items() if option not in words for word in (option, value)]
    if program not in ("tsds", "python"):
        raise ValueError(f"expected a tsds or a python command, found {command!r}")
    return [program, *words, *added]


def made_stores(page: str) -> set[str]:
    """Names of the stores that a page converts itself."""
    text = "".join(block.text for block in blocks(page) if block.kind in RUN)
    return set(re.findall(r"tsds convert \S+ (\S+)", text)) | set(re.findall(r'\.convert\(\S+, "(\S+?)"', text))


# --- what the pages begin with ----------------------------------------------------------------------------------

FACE = {"left_eye": (20, 24), "right_eye": (40, 24), "nose": (30, 36), "mouth_left": (22, 48), "mouth_right": (38, 48)}


def write_sources(root: Path) -> None:
    """The data sets that pages convert, and, for pages that begin with one, the stores that others have converted."""
    images, labels = demo.load_digits()
    write_photos(root / "photos", images, labels)
    write_photos(root / "june", images, labels, first=30)
    with mock.patch.multiple(demo, SCENES=12, _TRAIN_SCENES=8):
        demo.write_scenes(root / "VOCdevkit", images, labels)
    write_faces(root / "faces")
    write_folders(root / "city", 8, size=(72, 96))
    (root / "city/classes.txt").write_text("ground\nsquare\n")
    made = {"photos": "photos.tsds", "VOCdevkit": "voc.tsds", "faces": "faces.tsds", "city": "city.tsds"}
    for source, store in made.items():
        options = ConvertOptions(fit=tsds.Fit(64, "crop" if source == "photos" else "pad"), workers=0)
        tsds.convert(root / source, root / store, options)


def write_photos(root: Path, images: np.ndarray, labels: np.ndarray, first: int = 0) -> None:
    """Class folders with JPEG files of several sizes: three classes of 24, 12 and 6 for training, 4 each for tests.

    Args:
        first: number of the first digit of each class.
    """
    for label, (name, count) in enumerate({"cat": 24, "dog": 12, "emu": 6}.items()):
        for i, row in enumerate(np.flatnonzero(labels == label)[first : first + count + 4]):
            folder = root / ("train" if i < count else "test") / name
            folder.mkdir(parents=True, exist_ok=True)
            size = (80, 60) if i % 2 else (72, 96)
            Image.fromarray(images[row]).resize(size).convert("RGB").save(folder / f"{i}.jpg")


def write_faces(root: Path) -> None:
    """dlib's XML for images of 72 x 60 pixels (height x width) with a face each, of which some lack their nose."""
    root.mkdir()
    rng = np.random.default_rng(0)
    for split, count in {"training": 24, "testing": 8}.items():
        lines = []
        for i in range(count):
            pixels = rng.integers(0, 60, (72, 60, 3), np.uint8)
            shift = rng.integers(-8, 9, 2)
            points = {name: np.array(point) + shift for name, point in FACE.items()}
            for x, y in points.values():
                pixels[y - 2 : y + 3, x - 2 : x + 3] = 255
            Image.fromarray(pixels).save(root / f"{split}{i}.png")
            shown = {name: point for name, point in points.items() if name != "nose" or i % 4}
            parts = "".join(f"<part name='{name}' x='{x}' y='{y}'/>" for name, (x, y) in shown.items())
            box = f"<box top='{8 + shift[1]}' left='{10 + shift[0]}' width='40' height='48'><label>face</label>"
            lines.append(f"<image file='{split}{i}.png'>{box}{parts}</box></image>")
        text = f"<?xml version='1.0'?>\n<dataset><images>{''.join(lines)}</images></dataset>\n"
        (root / f"{split}.xml").write_text(text, "utf-8")


# --- in processes of their own ----------------------------------------------------------------------------------


def run_command(words: list[str], folder: Path, log: Path) -> None:
    """Run a command in this process, which ends with its exit status."""
    _settle(folder, log)
    if words[0] == "tsds":
        sys.argv = words
        main()
    else:
        sys.exit(subprocess.run([sys.executable, *words[1:]], stdin=subprocess.DEVNULL, check=False).returncode)


def run_python(blocks: Connection, folder: Path, log: Path) -> None:
    """Run the Python blocks that come, each with the names of those before it; every answer is whether it went well."""
    _settle(folder, log)
    names: dict[str, object] = {"__name__": "__main__"}
    while (block := blocks.recv()) is not None:
        code = "\n" * (block.line - 1) + block.text.replace('"cuda"', '"cpu"')
        try:
            exec(compile(code, str(ROOT / block.page), "exec"), names)  # noqa: S102  # the project's own pages
        except BaseException:
            traceback.print_exc()
            blocks.send(False)
        else:
            blocks.send(True)
        sys.stdout.flush()


def _settle(folder: Path, log: Path) -> None:
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(folder)
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


class Page:
    """Runs a page's blocks, one after the other. A context manager, whose end ends what still runs.

    Args:
        page: relative to the repository.
        folder: to run them in.
        log: of all that is printed.
        context: starts processes.
    """

    def __init__(self, page: str, folder: Path, log: Path, context: ForkServerContext) -> None:
        self._blocks = blocks(page)
        self._folder = folder
        self._log = log
        self._context = context
        self._processes: list[ForkServerProcess] = []
        self._interpreter: Connection | None = None

    def __enter__(self) -> Page:
        self._log.touch()
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    def run(self) -> str | None:
        """Run all blocks; where one fails, what and where."""
        files: set[str] = set()
        for block in self._blocks:
            if block.kind in ("bash", "console"):
                for command in command_lines(block):
                    files -= set(command.split())
                    if not self._command(command):
                        return f"{block.where}: {command}"
            elif block.kind == "python" and (file := _FILE.match(block.text)):
                (self._folder / file["name"]).write_text(block.text, "utf-8")
                files.add(file["name"])
            elif block.kind == "python" and not self._python(block):
                return block.where
        return f"no command runs {', '.join(sorted(files))}" if files else None

    def _command(self, command: str) -> bool:
        words = arguments(command)
        process = self._start(run_command, words)
        process.join(SECONDS)
        return process.exitcode == 0 or (words[1] == "check" and process.exitcode == 1)  # it has found something

    def _python(self, block: Block) -> bool:
        if self._interpreter is None:
            self._interpreter, other = self._context.Pipe()
            self._start(run_python, other)
        self._interpreter.send(block)
        return self._interpreter.poll(SECONDS) and self._interpreter.recv()

    def _start(self, target: Callable[..., None], *given: object) -> ForkServerProcess:
        process = self._context.Process(target=target, args=(*given, self._folder, self._log))
        process.start()
        self._processes.append(process)
        return process
