"""WebDataset: tar files whose members share a name for each sample: formats/sources/webdataset.md."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from tensorstore_ds.annex.sources.json_files import read_object
from tensorstore_ds.annex.sources.packed import PackedSource, files_at
from tensorstore_ds.annex.sources.row_table import RowTable
from tensorstore_ds.errors import OptionError, Problem, SourceError
from tensorstore_ds.format.kinds import OBJECT_VALUES, TextField
from tensorstore_ds.format.kinds.label import UNLABELLED
from tensorstore_ds.regular_files import FILE_LIMIT, check_machine, is_file, open_file, os_errors, read_head
from tensorstore_ds.sources.base import IMAGE_SUFFIXES, Contents, Reference, Sample, SourceOptions, no_column
from tensorstore_ds.sources.files import PROBED_FILES, PackedStrings, encoding_problem
from tensorstore_ds.sources.forms import FormError, kind, noted, placed
from tensorstore_ds.sources.json_objects import parse_object
from tensorstore_ds.sources.ledger import USED, Known, Ledger
from tensorstore_ds.sources.row_objects import Label, RowObjects, label_of, row_objects
from tensorstore_ds.sources.samples import TEXT_NAMES, texts_of
from tensorstore_ds.sources.splits import no_samples, numbered_splits
from tensorstore_ds.tar_members import FOLDER, TarMember, TarMembers

JSON_LIMIT = 64 << 20  # bytes
#: Members that are read, beside images, and the most bytes that they may have.
_READ = {".cls": 1 << 12, ".json": JSON_LIMIT, ".txt": JSON_LIMIT}
#: The field of what .txt says.
_CAPTIONS = "captions"
#: Beside the archives: JSON with the names of classes and keypoints. With the suffix .json, Hugging Face's
#: `load_dataset` could take it for the data.
NAMES_FILE = "FIELDS"
#: Members of JSON that are one label, or that tell nothing of the sample.
_KNOWN = ("label", "class", "key", "__key__", "__url__")
#: Message for an image that is skipped because its name has a second dot.
_RULE = ", because the name of a sample ends at its first dot"
_COMPRESSED = (".tgz", ".gz")  # archives that the scan refuses, and says why
_MEMBERS_OF = "members"  # of archives, in the ledger
_MEMBERS = 1 << 12  # names in JSON that are remembered
_PROBED = 64
_OPEN = 16
_PREAD = getattr(os, "pread", None)  # missing on Windows; each process reads one member at a time
_SHAPES = re.compile(rb'"shapes"\s*:')  # labelme's, which may be in tar files as well
_WORDS = re.compile(rb"[^-+.\deE\s]")  # which YOLO's labels have not
_CORRECT = "Correct the member."
_ADVICE = "Write the archive again, or download it again."


@dataclass(slots=True)
class _Entry:
    """Members of a sample as found: (offset, nbytes) of each that is read."""

    image: str = ""  #: its path in the archive
    places: dict[str, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class WebDatasetSource(PackedSource):
    """A reference is the sample's key, NUL, the number of its archive, positions in it, and its label."""

    name: ClassVar[str] = "webdataset"
    scanned: ClassVar[tuple[str, ...] | None] = ("_files", "_table", "_texts", "_members")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._names = (path if path.is_dir() else path.parent) / NAMES_FILE
        self._table = RowTable()
        self._texts: dict[str, None] = {}  # names of fields
        self._members: dict[str, None] = {}  # names in JSON, for `column`

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the first members are images, and .cls or .json files with their names, or there is `NAMES_FILE`."""
        files = files_at(path, {".tar"}, alone=_COMPRESSED, quick=True)[:PROBED_FILES]
        return any(is_file(each.with_name(NAMES_FILE)) or _is_labelled(each) for each in files)

    def scan(self) -> Contents:
        """Read the headers of all members, and labels and JSON."""
        self._files = files_at(self.path, {".tar"}, alone=_COMPRESSED)
        if not self._files:
            raise SourceError(Problem(str(self.path), "empty-source", "expected .tar files, found none."))
        splits, notes = numbered_splits([self._where(i) for i in range(len(self._files))])
        problems: list[Problem] = []
        left_out: list[Problem] = []
        try:
            rows = self._rows(splits, problems, left_out)
        except _ApartError:
            problems, left_out = [], []
            rows = self._rows(splits, problems, left_out, together=False)
        if not rows:
            message = " ".join(["expected images in the archives, found none.", *map(str, self.ledger.problems()[:1])])
            raise SourceError(problems or Problem(str(self.path), "empty-source", message))
        fields = self._table.fields(self.options, str(self.path)) | {name: TextField() for name in self._texts}
        return Contents(fields, rows, None, tuple(problems), tuple(left_out), notes)

    def read(self, split: str, reference: Reference) -> Sample:
        key, number, rest = str(reference).split("\0", 2)
        archive, where = self._files[int(number)], f"{self._where(int(number))}: {key}"
        label, *places = rest.split("\0")
        image, described, caption = (_place(text) for text in places)
        data = _pread(archive, *image, where)
        objects, texts = None, dict[str, list[str]]()
        if caption[1] >= 0:
            with placed(where, _CORRECT):
                texts[_CAPTIONS] = [_text(_pread(archive, *caption, where), ".txt")]
        arrays = {"labels": self._table.several_of(None, "labels", where)} if self._table.has_several else {}
        if described[1] and (self._table.has_objects or self._table.has_several or self._texts):
            about = _Described(_pread(archive, *described, where), where)
            objects = about.objects
            if arrays:
                arrays["labels"] = self._table.several_of(about.several(), "labels", where)
            for name, found in about.texts().items():
                texts[name] = list(dict.fromkeys([*texts.get(name, ()), *found])) if name in texts else list(found)
        index: int | None = None
        if self._table.has_labels:
            index = self._table.labels.index(label_of(label or None, "label"), where)
        return Sample(key, data, index, self._table.arrays(objects, where), arrays=arrays, texts=texts)

    def column(self, name: str) -> Callable[[str, Reference], str]:
        """Values of a member of each sample's JSON."""
        if name not in self._members:
            raise no_column(self, name, self._members)

        def value(split: str, reference: Reference) -> str:
            key, number, _, _, described, _ = str(reference).split("\0")
            where, place = f"{self._where(int(number))}: {key}", _place(described)
            data = _pread(self._files[int(number)], *place, where) if place[1] else b"{}"
            found = parse_object(data, where).get(name)
            if isinstance(found, dict | list):
                raise OptionError(f"`split_by`: {where}: expected a number or a text as {name}, found {kind(found)}.")
            return "" if found is None else str(found)

        return value

    def common_files(self) -> tuple[Path, ...]:
        return (*self._files, *([self._names] if is_file(self._names) else []))

    def _rows(
        self, splits: Mapping[str, str], problems: list[Problem], left_out: list[Problem], *, together: bool = True
    ) -> dict[str, PackedStrings]:
        """References of each split; raises `_ApartError` if `together` but the members of a sample are not adjacent."""
        self._table, self._texts, self._members, self.ledger = RowTable(), {}, {}, Ledger(self.path)
        if is_file(self._names):
            self._table.give(read_object(self._names, NAMES_FILE, JSON_LIMIT), NAMES_FILE)
        rows: dict[str, PackedStrings] = {}
        keys: dict[str, array[int]] = {}  # hashes of those of the images in their archives
        for i, (where, split) in enumerate(splits.items()):
            hashes = keys.setdefault(split, array("q"))
            with os_errors(where), open_file(self._files[i], where) as file:
                samples = _samples(file, where, self.ledger, together)
                rows.setdefault(split, PackedStrings()).extend(
                    self._noted(i, samples, file, hashes, problems, left_out)
                )
        for split, hashes in keys.items():
            if len(np.unique(np.asarray(hashes))) < len(hashes):
                rows[split] = PackedStrings(map(self._with_archive, rows[split]))
        return {split: each for split, each in rows.items() if len(each)}

    def _with_archive(self, reference: str) -> str:
        """The reference with the name of the archive before the key."""
        return f"{self._where(int(reference.split(chr(0), 2)[1]))[:-4]}/{reference}"

    def _noted(
        self,
        number: int,
        samples: Iterator[tuple[str, _Entry]],
        file: BinaryIO,
        hashes: array[int],
        problems: list[Problem],
        left_out: list[Problem],
    ) -> Iterator[str]:
        """References of the samples of an archive."""
        where, found = self._where(number), False
        for key, entry in samples:
            found = True
            if (rest := self._note(key, entry, file, where, problems)) is not None:
                hashes.append(hash(entry.image))
                yield f"{entry.image}\0{number}\0{rest}"
        if not found:
            left_out.append(no_samples(where))

    def _note(self, key: str, entry: _Entry, file: BinaryIO, where: str, problems: list[Problem]) -> str | None:
        """End of a sample's reference, after noting its label and objects; None if it is left out."""
        here = f"{where}: {entry.image or key + next(iter(entry.places), '')}"
        if not entry.image and not entry.problems:
            message = "expected an image (.jpg, .png, .webp, ...) of the same name, found none. Add it."
            entry.problems.append(Problem(here, "no-image", message))
        if entry.problems:
            problems += entry.problems
            return None
        with noted(problems), placed(here, _CORRECT):
            label, name = self._label(entry, file), None
            if ".json" in entry.places:
                described = _Described(_read_at(file, *entry.places[".json"]), here)
                self._members.update(dict.fromkeys(list(described.members)[: _MEMBERS - len(self._members)]))
                self.ledger.members(described.members, described.known(), where)
                label, name = described.agreed(label)
                if described.objects is not None:
                    self._table.note(described.objects)
                    described.note_names(self._table)
                self._texts.update(dict.fromkeys(described.texts()))
                if (several := described.several()) is not None:
                    self._table.note_several(several, "labels")
            if label is not None:
                self._table.has_labels = True
                self._table.labels.note(label, name)
            if ".txt" in entry.places:
                self._texts[_CAPTIONS] = None
            places = (entry.places["image"], entry.places.get(".json", (0, 0)), entry.places.get(".txt", (0, -1)))
            return "\0".join(["" if label is None else str(label), *(f"{start} {nbytes}" for start, nbytes in places)])
        return None

    def _label(self, entry: _Entry, file: BinaryIO) -> Label | None:
        if ".cls" not in entry.places:
            return None
        return label_of(_text(_read_at(file, *entry.places[".cls"]), ".cls"), ".cls")


class _Described:
    """Content of a sample's JSON."""

    def __init__(self, data: bytes, where: str) -> None:
        self.members = parse_object(data, where)
        nested = self.members.get("objects")
        self._values: dict[str, Any] = nested if isinstance(nested, dict) else self.members
        self._texts = self._values.get("classes")
        self.objects: RowObjects | None = None
        lists = (name for name in ("labels", "tags", "classes") if isinstance(self.members.get(name), list))
        self._several = next(lists, "")  # the list of the sample's labels, unless it has objects
        if all(self._values.get(name) is None for name in ("boxes", "oriented_boxes", "keypoints")):
            return
        self._several = ""
        with placed(where, _CORRECT):
            self.objects = row_objects(self._values, self._labels())

    def texts(self) -> dict[str, tuple[str, ...]]:
        """Texts of each field, by the name of the member."""
        named = ((_CAPTIONS if name == "caption" else name, self.members.get(name)) for name in sorted(TEXT_NAMES))
        return {name: texts for name, value in named if value is not None and (texts := texts_of(value)) is not None}

    def several(self) -> list[Any] | None:
        """Labels of the sample, if there is a list of them, and not one for each object."""
        return self.members[self._several] if self._several else None

    def known(self) -> Known:
        """Members that are read, or that are not about the sample."""
        of_objects = dict.fromkeys((*OBJECT_VALUES, "classes"), USED) if self.objects is not None else {}
        known: dict[str, Any] = dict.fromkeys((*_KNOWN, self._several or _KNOWN[0]), USED)
        known |= dict.fromkeys((name for name in TEXT_NAMES if texts_of(self.members.get(name)) is not None), USED)
        return known | (of_objects if self._values is self.members else {"objects": of_objects})

    def agreed(self, label: Label | None) -> tuple[Label | None, str | None]:
        """Label of the sample and its name, where .cls contains `label`."""
        members = ((name, self.members.get(name)) for name in ("label", "class"))
        labels = {label, *(label_of(value, name) for name, value in members)} - {None}
        numbers = [each for each in labels if isinstance(each, int)]
        texts = [each for each in labels if isinstance(each, str)]
        if max(len(numbers), len(texts)) > 1:
            raise FormError(f"expected one label, found {' and '.join(sorted(map(str, labels)))}")
        return (numbers[0], next(iter(texts), None)) if numbers else (next(iter(texts), None), None)

    def note_names(self, table: RowTable) -> None:
        """Note the names of the objects' class numbers."""
        if self.objects is None or not self.objects.labels or not isinstance(self._texts, list):
            return
        for number, name in zip(self.objects.labels, self._texts, strict=True):
            if not isinstance(number, str):
                table.categories.note(number, name)

    def _labels(self) -> list[Label] | None:
        numbers = self._values.get("labels")
        if not isinstance(self._texts, list | None) or not isinstance(numbers, list | None):
            raise FormError(f"expected lists of labels and classes, found {kind(self._texts or numbers)}")
        if self._texts is not None and not all(isinstance(each, str) and each.strip() for each in self._texts):
            raise FormError("expected names as classes, found something else")
        if numbers is None:
            return None if self._texts is None else list(self._texts)
        if self._texts is not None and len(self._texts) != len(numbers):
            raise FormError(f"expected a name for each of {len(numbers)} labels, found {len(self._texts)}")
        labels = [label_of(each, "labels") for each in numbers]
        if any(each is None or each == UNLABELLED for each in labels):
            raise FormError("expected a label for each object, found none")
        return [each for each in labels if each is not None]


# --- archives -------------------------------------------------------------------------------------------------------


def _is_labelled(archive: Path) -> bool:
    """Whether the first members include an image and a .cls, .json or text file with the same name."""
    if read_head(archive, 512)[257:262] != b"ustar":
        return False
    images, labels = set(), set()
    with suppress(SourceError), os_errors(archive.name), open_file(archive, archive.name) as file:
        for number, member in enumerate(_members(file, archive.name)):
            key, suffix = _key_of(member.name.removeprefix("./"))
            if suffix in IMAGE_SUFFIXES:
                images.add(key)
            elif suffix == ".cls":
                labels.add(key)
            elif not member.kind and suffix in (".json", ".txt"):
                data = _read_at(file, member.start, min(member.nbytes, 1 << 16))
                if not _SHAPES.search(data) if suffix == ".json" else _WORDS.search(data):
                    labels.add(key)
            if number >= _PROBED or images & labels:
                break
    return bool(images & labels)


def _key_of(name: str) -> tuple[str, str]:
    """Name of a sample, up to the first dot of a member's last part, and the rest in lower case."""
    folder, slash, last = name.rpartition("/")
    stem, dot, suffix = last.partition(".")
    return f"{folder}{slash}{stem}" if stem else "", f"{dot}{suffix}".lower()


class _ApartError(Exception):
    """The members of a sample are not adjacent."""


_Member = tuple[str, str, TarMember]


def _samples(file: BinaryIO, where: str, ledger: Ledger, together: bool) -> Iterator[tuple[str, _Entry]]:
    """Samples of an archive by name, in the order of their first members; `ledger` receives the other members.

    Without `together`, all are in memory at once. With it, `_ApartError` is raised at the end if members are not
    adjacent.
    """
    named = ((*_key_of(each.name.removeprefix("./")), each) for each in _members(file, where) if each.kind != FOLDER)
    members = (each for each in named if each[0])  # without hidden names, such as those that macOS adds
    if not together:
        yield from _entries(members, where, ledger).items()
        return
    hashes = array("q")
    for key, some in groupby(members, itemgetter(0)):
        hashes.append(hash(key))
        yield from _entries(some, where, ledger).items()
    if len(np.unique(np.asarray(hashes))) < len(hashes):
        raise _ApartError


def _entries(members: Iterable[_Member], where: str, ledger: Ledger) -> dict[str, _Entry]:
    """Samples by name, in the order of their first members; `ledger` receives the other members."""
    entries: dict[str, _Entry] = {}
    dotted: dict[str, list[tuple[str, str]]] = {}  # images with more in their suffix, such as a.seg.png or 22.05.jpg
    for key, suffix, member in members:
        name = member.name.removeprefix("./")
        is_image = suffix in IMAGE_SUFFIXES
        if not is_image and suffix not in _READ:
            last = "." + suffix.rpartition(".")[2] if suffix else ""
            if last in IMAGE_SUFFIXES:
                dotted.setdefault(key, []).append((name, last))
            else:
                ledger.unread(f"*{last}", f"{where}: {name}", _MEMBERS_OF)
            continue
        entry = entries.setdefault(key, _Entry())
        if problem := _problem(member, name, suffix, f"{where}: {name}"):
            entry.problems.append(problem)
        elif is_image and entry.image:
            message = f"expected one image of a sample, found {entry.image} too. Remove one."
            entry.problems.append(Problem(f"{where}: {name}", "ambiguous-image", message))
        elif suffix in entry.places:
            message = "expected each member once, found it twice. Remove one."
            entry.problems.append(Problem(f"{where}: {name}", "duplicate-key", message))
        else:
            entry.image = name if is_image else entry.image
            entry.places["image" if is_image else suffix] = member.start, member.nbytes
    for key, names in dotted.items():
        entry = entries.setdefault(key, _Entry())
        if entry.image or not any(re.search("[0-9]", name.partition(".")[2]) for name, _ in names):
            for name, last in names:
                ledger.unread(f"*{last}" if entry.image else f"*.*{last}{_RULE}", f"{where}: {name}", _MEMBERS_OF)
            if not entry.places:
                del entries[key]
            continue
        (name, last), more = names[0], f", and {len(names) - 1:,} more" if len(names) > 1 else ""
        rule = f"the name of a sample ends at its first dot, and there is no {key}{last}"
        message = f"not stored{more}: {rule}. Write the other dots as _."
        entry.problems.append(Problem(f"{where}: {name}", "no-image", message))
    lonely = [key for key, each in entries.items() if each.places.keys() == {".txt"} and not each.problems]
    for key in lonely:  # such as a README
        del entries[key]
        ledger.unread("*.txt", f"{where}: {key}.txt", _MEMBERS_OF)
    return entries


def _problem(member: TarMember, name: str, suffix: str, where: str) -> Problem | None:
    """Problem of a member to be read."""
    limit = _READ.get(suffix, FILE_LIMIT)
    if name.startswith("/") or "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
        return Problem(where, "unsafe-path", "expected a plain relative name of a member. Write the archive again.")
    if problem := encoding_problem(name):
        return problem
    if member.kind:
        return Problem(where, "packed-file", f"expected a file, found {member.kind}. {_ADVICE}")
    if member.nbytes > limit:
        message = (
            f"expected a member of at most {limit:,} bytes, found {member.nbytes:,}. Make it smaller, or remove it."
        )
        return Problem(where, "packed-file", message)
    return None


def _members(file: BinaryIO, where: str) -> Iterator[TarMember]:
    """Headers of an archive, without contents; raises `SourceError` `packed-file` if compressed, damaged or cut."""
    if file.read(2) == b"\x1f\x8b":
        message = "expected a plain tar file, found one that gzip has compressed."
        raise SourceError(Problem(where, "packed-file", message), "Decompress it with gunzip first.")
    try:
        yield from TarMembers(file)
    except (GeneratorExit, SourceError):
        raise
    except Exception as error:  # a damaged header can raise nearly any exception
        if not isinstance(error, RecursionError):
            check_machine(where, error)
        message = f"expected a tar file, found it damaged: {' '.join(str(error).split())[:200]}."
        raise SourceError(Problem(where, "packed-file", message), _ADVICE) from error


# --- bytes of members -----------------------------------------------------------------------------------------------


def _read_at(file: BinaryIO, start: int, nbytes: int) -> bytes:
    file.seek(start)
    return file.read(nbytes)


def _text(data: bytes, suffix: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormError(f"expected {suffix} in UTF-8, found other bytes") from error


def _place(text: str) -> tuple[int, int]:
    start, nbytes = map(int, text.split())
    return start, nbytes


class _Descriptor:
    """Keeps an archive open for the next member."""

    def __init__(self, path: Path, where: str) -> None:
        self.file = open_file(path, where, 0)

    def __del__(self) -> None:
        if file := getattr(self, "file", None):
            file.close()


@lru_cache(_OPEN)
def _opened(path: Path, where: str, identity: tuple[int, ...]) -> _Descriptor:
    return _Descriptor(path, where)


def _pread(path: Path, start: int, nbytes: int, where: str) -> bytes:
    """Bytes of a member; raises `SourceError` if the archive has changed and no longer contains them."""
    with os_errors(where):
        status = path.stat()
        data = b""
        if start + nbytes <= status.st_size:
            opened = _opened(path, path.name, (status.st_ino, status.st_size, status.st_mtime_ns))
            data = _PREAD(opened.file.fileno(), nbytes, start) if _PREAD else _read_at(opened.file, start, nbytes)
    if len(data) != nbytes:
        message = f"expected {nbytes:,} bytes of a member, found {len(data):,}: the archive has changed."
        raise SourceError(Problem(where, "packed-file", message), "Do not change a source while it is read.")
    return data
