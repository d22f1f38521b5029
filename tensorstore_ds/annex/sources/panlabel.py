"""Boxes in any format that panlabel supports, converted to COCO's JSON: formats/sources/panlabel.md."""

from __future__ import annotations

import io
import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import msgspec

from tensorstore_ds.annex.sources.coco.source import CocoSource
from tensorstore_ds.annex.sources.scratch import Scratch
from tensorstore_ds.errors import OptionError, Problem, SourceError, one_line
from tensorstore_ds.regular_files import FILE_LIMIT, is_dir, read_file
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, Source, SourceOptions
from tensorstore_ds.sources.files import walk_files
from tensorstore_ds.sources.images import ImageIndex
from tensorstore_ds.sources.ledger import NOT_READ
from tensorstore_ds.sources.paths import inside

_SECONDS = 3600
_KNOWN = re.compile(r"possible values: ([^\]:]+)\]")
_WARNING = re.compile(r".*?warning: (.+)", re.I)
_EXAMPLE = re.compile(r"'[^']*'|\(.*|\d+")  # the parts of a warning that differ between files


class _Json(msgspec.Struct):
    """COCO's JSON, decoded only for the names and sizes of images."""

    images: list[dict[str, Any]]
    annotations: list[dict[str, Any]]
    categories: msgspec.Raw


class _Issue(msgspec.Struct):
    severity: str
    message: str
    stage: str = ""


class _Report(msgspec.Struct, rename={"format": "from"}):
    issues: list[_Issue] = []
    format: str = ""


class PanlabelSource(Source):
    """Runs panlabel during the scan, and reads its output as COCO; finds images by name."""

    name: ClassVar[str] = "panlabel"

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        root = path if is_dir(path) else path.parent
        self.images = options.images or root
        self._scratch = Scratch()
        self._coco: CocoSource | None = None

    def scan(self) -> Contents:
        """Run panlabel, and scan its output.

        Raises `SourceError` as COCO does or if panlabel cannot read the source, and `OptionError` if panlabel is not
        installed or does not know the format.
        """
        with TemporaryDirectory(prefix="tsds-") as folder:
            written = Path(folder) / "panlabel.json"
            report = self._run(written)
            images = ImageIndex(walk_files(self.images, IMAGE_SUFFIXES))
            data = self._named(read_file(written, str(self.path), FILE_LIMIT), images)
        json, _ = self._scratch.copy(io.BytesIO(data), len(data), "the annotations", ".json")
        self._coco = CocoSource(json, replace(self.options, images=self.images, via=None))
        contents = self._coco.contents()
        lost = dict.fromkeys(one_line(issue.message) for issue in report.issues if issue.severity == "warning")
        left_out = tuple(Problem(str(self.path), "not-listed", f"not stored, says panlabel: {each}.") for each in lost)
        if report.format == "automl-vision":
            left_out += (Problem(str(self.path), NOT_READ, "not read: the split of each row."),)
        told = (each.message for each in report.issues if each.stage == "source_reader" and " only" in each.message)
        notes = (f"panlabel: {one_line(message)}." for message in told)
        return replace(contents, left_out=(*contents.left_out, *left_out), notes=(*contents.notes, *notes))

    def read(self, split: str, reference: Reference) -> Sample:
        assert self._coco is not None  # noqa: S101  # it was scanned
        return self._coco.read(split, reference)

    def common_files(self) -> tuple[Path, ...]:
        """All files except images, because any may contain annotations."""
        if not is_dir(self.path):
            return (self.path,)
        files = sorted(self.path.rglob("*"))
        return tuple(path for path in files if path.is_file() and path.suffix.lower() not in IMAGE_SUFFIXES)

    def _run(self, out: Path) -> _Report:
        # Values are checked as those of COCO are. An absolute path is no flag.
        options = ["--allow-lossy", "--no-validate", "--output-format", "json"]
        words = ["--from", self.options.via or "auto", "--to", "coco", "--input", str(self.path.absolute())]
        command = [_program(), "convert", *words, "--output", str(out), *options]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS, check=False, env={}
            )
        except subprocess.TimeoutExpired as error:
            message = f"panlabel was not done after {_SECONDS // 60} minutes."
            raise SourceError(Problem(str(self.path), "annotation", message), "Run it on its own.") from error
        said = done.stderr.decode(errors="replace")
        if done.returncode == 0:
            report = msgspec.json.decode(done.stdout, type=_Report)
            found = (match[1] for line in dict.fromkeys(said.splitlines()) if (match := _WARNING.fullmatch(line)))
            kinds: dict[str, list[str]] = {}
            for warning in found:
                kinds.setdefault(_EXAMPLE.sub("", warning), []).append(warning)
            report.issues += [_Issue("warning", f"{some[0]}, {len(some):,} in all") for some in kinds.values()]
            return report
        if done.returncode == 2 and (known := _KNOWN.search(said)):
            raise OptionError(f"`via`: expected one of {known[1]}, found {self.options.via!r}.")
        said = one_line(said.strip().removeprefix("Error: ").replace("\n", " "))[:400].rstrip(".")
        advice = "Name the file of the annotations, or correct it."
        if self.options.via in (None, "auto"):
            advice = "Name the format with `via`, or the file of the annotations."
        raise SourceError(Problem(str(self.path), "annotation", f"panlabel cannot read it: {said}."), advice)

    def _named(self, data: bytes, images: ImageIndex) -> bytes:
        """COCO's JSON with paths relative to the folder, for images whose name is unique there."""
        try:
            file = msgspec.json.decode(data, type=_Json)
        except msgspec.MsgspecError as error:
            message = f"expected COCO's JSON of panlabel, found another one: {one_line(str(error))[:200]}."
            raise SourceError(Problem(str(self.path), "annotation", message)) from error
        ends: dict[Any, tuple[float, float]] = {}  # of the boxes of each image
        for each in file.annotations:
            (x, y, width, height), (right, bottom) = each["bbox"], ends.get(each["image_id"], (0, 0))
            ends[each["image_id"]] = max(right, x + width), max(bottom, y + height)
        for image in file.images:
            guess = zip((image["width"], image["height"]), ends.get(image["id"], ()), strict=False)
            if all(abs(size - end) < 1 for size, end in guess):  # panlabel's where a format has no sizes
                image["width"] = image["height"] = 0
            name = image.get("file_name")
            path = inside(name) if isinstance(name, str) else None
            if isinstance(name, str) and (path is None or images.row(path) < 0):
                try:
                    found = images.find_by_stem(name, name) or images.paths[images.find(name, name, [""])]
                    image["file_name"] = found
                except SourceError:
                    continue  # which the scan says with the name as it is
        return msgspec.json.encode(file)


def _program() -> str:
    """Path of the program."""
    try:
        from panlabel import find_panlabel_bin
    except ModuleNotFoundError:
        raise OptionError("panlabel is not installed: pip install '.[formats]' in a clone of tensorstore-ds") from None
    find: Callable[[], str] = find_panlabel_bin
    try:
        return find()
    except FileNotFoundError as error:
        raise OptionError(f"{error} Install it with pip install '.[formats]' in a clone of tensorstore-ds.") from error
