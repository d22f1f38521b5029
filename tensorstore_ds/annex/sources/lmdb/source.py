"""The samples of LMDB databases: formats/sources/lmdb.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.lmdb.database import Entry, is_database, map_file, read_entries
from tensorstore_ds.annex.sources.lmdb.datum import read_datum
from tensorstore_ds.annex.sources.packed import PackedSource, keyed
from tensorstore_ds.annex.sources.row_table import ClassNames
from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import LabelField, TextField
from tensorstore_ds.format.kinds.base import Field
from tensorstore_ds.imaging.codecs import begins_as_image
from tensorstore_ds.regular_files import read_head
from tensorstore_ds.sources.base import Contents, Reference, Sample, SourceOptions
from tensorstore_ds.sources.files import PackedStrings, glance
from tensorstore_ds.sources.forms import FormError, noted, placed
from tensorstore_ds.sources.paths import inside
from tensorstore_ds.sources.row_objects import Label, label_of
from tensorstore_ds.sources.splits import SPLIT_NAMES, no_samples, notes_of_renamed, split_names, word_split

FILE = "data.mdb"
_SUFFIXES = (".mdb", ".lmdb")
_HEAD = 64
_LABEL_LIMIT = 1 << 16  # bytes of a text
_NUMBERED = re.compile(rb"(image|img|label)-(\d{1,12})")
#: Entries about the database: those of deep-text-recognition-benchmark, of folder2lmdb, and their kin.
_ABOUT = re.compile(rb"__.*__|num[-_]?samples|length|len|num", re.DOTALL)
_DIGITS = 16  # of a count in an entry
_AGAIN = "Write the database again."
_PICKLED = re.compile(rb"\x80[\2-\5]|\(dp|\(lp|ccopy_reg")

#: How the values of a database have the images.
Form = Literal["file", "datum"]


@dataclass
class _Rows:
    """Images of a database.

    `rows` are keys and the rest of their references. `others` counts further entries by their first word.
    """

    form: Form = "file"
    rows: list[tuple[object, str]] = field(default_factory=list)
    labels: list[Label | None] = field(default_factory=list)
    others: dict[str, int] = field(default_factory=dict)
    is_numbered: bool = False


class LmdbSource(PackedSource):
    """A reference is the sample's key, NUL, and the positions of its value and of its label if it has one.

    Files are mapped without LMDB's library.
    """

    name: ClassVar[str] = "lmdb"
    scanned: ClassVar[tuple[str, ...] | None] = ("_files", "_form", "_labels", "_as_text")

    def __init__(self, path: Path, options: SourceOptions) -> None:
        super().__init__(path, options)
        self._form: Form = "file"
        self._labels: ClassNames | None = None
        self._as_text = False  # labels are texts, not classes
        self._maps: dict[int, NDArray[np.uint8]] = {}

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether `path` is an LMDB data file, or a folder that contains some."""
        files = _files_of(path)
        return any(is_database(read_head(file, _HEAD)) for file in files)

    def scan(self) -> Contents:
        """Read the keys of all entries and the labels."""
        self._files = [file for file in _files_of(self.path) if is_database(read_head(file, _HEAD))]
        if not self._files:
            message = f"expected LMDB's {FILE} or a folder that holds it, found none."
            raise SourceError(Problem(str(self.path), "unknown-format", message))
        self.ledger.use(*(file.with_name("lock.mdb") for file in self._files))
        texts = [_name_of(file, self.path) for file in self._files]
        names = split_names(word_split(text, len(texts)) for text in texts)
        problems: list[Problem] = []
        left_out: list[Problem] = []
        found: dict[str, _Rows] = {}
        for i, text in enumerate(texts):
            split = names[word_split(text, len(texts))]
            if split in found:
                message = f"expected one database for the split {split}, found two."
                raise SourceError(Problem(text, "split-name", message), "Rename one, or convert each alone.")
            rows = self._read(i, problems)
            if rows.rows:
                found[split] = rows
            else:
                left_out.append(no_samples(text))
        if not found:
            raise SourceError(problems or Problem(str(self.path), "empty-source", "expected images, found none."))
        forms = {rows.form for rows in found.values()}
        if len(forms) > 1:
            message = f"expected databases of one form, found {' and '.join(sorted(forms))}."
            raise SourceError(Problem(str(self.path), "packed-file", message), "Convert each alone.")
        self._form = forms.pop()
        fields = self._choose(found.values())
        for split, rows in found.items():
            for word, count in sorted(rows.others.items()):
                message = f"not stored: {count:,} entries whose keys are {word}."
                left_out.append(Problem(split, "not-listed", message))
        notes = [*notes_of_renamed(names)]
        if self._form == "datum" and any(self._is_raw(rows) for rows in found.values()):
            notes.append(
                "pixels of three channels in a Datum are taken as BGR, as Caffe's convert_imageset and DIGITS write "
                "them: compare some images with tsds preview."
            )
        splits = {split: PackedStrings(keyed(split, rows.rows)) for split, rows in found.items()}
        return Contents(fields, splits, None, tuple(problems), tuple(left_out), tuple(notes))

    def read(self, split: str, reference: Reference) -> Sample:
        key = self.key(split, reference)
        file, *places = map(int, str(reference).rpartition("\0")[2].split())
        value = self._value(file, places[0], places[1], key)
        label: Label | None = None
        if self._form == "datum":
            with placed(key, _AGAIN, reason="packed-file"):
                datum = read_datum(value)
                image, label = datum.image(), datum.label
        else:
            image = bytes(value)
            if len(places) == 4:
                label = _text(self._value(file, places[2], places[3], key), key)
            elif self._labels is not None:
                label = _folder_of(key)
        if self._as_text:
            return Sample(key, image, texts={"text": () if label is None else (str(label),)})
        if self._labels is None:
            return Sample(key, image)
        return Sample(key, image, self._labels.index(_known(label, key), key))

    def _map(self, file: int) -> NDArray[np.uint8]:
        if file not in self._maps:
            self._maps[file] = map_file(self._files[file], self._where(file))
        return self._maps[file]

    def _value(self, file: int, start: int, nbytes: int, key: str) -> memoryview:
        mapped = self._map(file)
        if start + nbytes > len(mapped):
            message = "expected the file of the scan, found a shorter one. Do not change a source while it is read."
            raise SourceError(Problem(key, "packed-file", message))
        return mapped.data[start : start + nbytes]

    # --- entries ---

    def _read(self, file: int, problems: list[Problem]) -> _Rows:
        data, where = self._map(file).data, self._where(file)
        rows = _Rows()
        numbered: dict[bytes, Entry] = {}  # labels by their number
        images: list[tuple[bytes, Entry]] = []
        counts: dict[str, int] = {}  # of samples, as entries say
        plain: list[Entry] = []
        for entry in read_entries(data, where):
            match = _NUMBERED.fullmatch(entry.key)
            if match and match[1] == b"label":
                numbered[match[2]] = entry
            elif match:
                images.append((match[2], entry))
            elif not _ABOUT.fullmatch(entry.key):
                plain.append(entry)
            elif entry.nbytes < _DIGITS and (text := bytes(data[entry.start :][: entry.nbytes])).isdigit():
                counts[_shown(entry.key)] = int(text)
        for number in sorted(numbered.keys() - {number for number, _ in images}):
            message = "expected an image of the same number, found none. Add it, or remove the label."
            problems.append(Problem(f"{where}: {_shown(numbered[number].key)}", "no-image", message))
        if images:
            rows.is_numbered = True
            for entry in plain:
                word = re.split(rb"[^a-zA-Z_]", entry.key[:40], maxsplit=1)[0].decode("latin-1") or "others"
                rows.others[f"{word}-..."] = rows.others.get(f"{word}-...", 0) + 1
            plain = [entry for _, entry in images]
        for key, count in counts.items():
            if count != len(plain):
                self.ledger.unread(f"{key}, which is {count:,}, of {len(plain):,} images", where)
        if plain:
            rows.form = _form_of(data[plain[0].start : plain[0].start + plain[0].nbytes], where, plain[0].key)
        for i, entry in enumerate(plain):
            key = _shown(entry.key)
            label: Label | None = None
            rest = f"{file} {entry.start} {entry.nbytes}"
            with noted(problems):
                if rows.form == "datum":
                    with placed(f"{where}: {key}", _AGAIN, reason="packed-file"):
                        label = read_datum(data[entry.start : entry.start + entry.nbytes]).label
                elif rows.is_numbered and (own := numbered.get(images[i][0])) is not None:
                    label = _text(data[own.start : own.start + own.nbytes], key)
                    rest += f" {own.start} {own.nbytes}"
                elif rows.is_numbered and numbered:
                    message = "expected a label of the same number, found none. Add it, or remove the image."
                    raise SourceError(Problem(key, "no-label", message))
                elif not rows.is_numbered:
                    label = _folder_of(inside(_utf8(entry.key) or "") or "")
                rows.rows.append((_utf8(entry.key), rest))
                rows.labels.append(label)
        return rows

    def _is_raw(self, rows: _Rows) -> bool:
        file, start, nbytes = map(int, rows.rows[0][1].split())
        datum = read_datum(self._map(file).data[start : start + nbytes])
        return not datum.encoded and datum.shape[0] == 3

    def _choose(self, found: Iterable[_Rows]) -> dict[str, Field]:
        """Field of the labels: classes, or texts if numbered images have texts that are not class numbers."""
        every = [label for rows in found for label in rows.labels]
        if all(label is None for label in every):
            return {}
        if any(rows.is_numbered for rows in found):
            digits = {label for label in every if isinstance(label, str)}
            numbers = {int(text) for text in digits if text.isascii() and text.isdigit() and len(text) < 10}
            is_class = len(numbers) == len(digits) and numbers == set(range(len(numbers)))
            if self.options.classes is None and not is_class:
                self._as_text = True
                return {"text": TextField()}
        elif self._form == "file" and any(label is None for label in every):
            return {}  # only some keys begin with a folder
        self._labels = ClassNames()
        for label in every:
            if (known := _known(label, str(self.path))) is not None:
                self._labels.note(known)
        return {"label": LabelField(classes=self._labels.choose(self.options.classes, str(self.path)))}

    def __getstate__(self) -> Mapping[str, Any]:
        return {**self.__dict__, "_maps": {}}  # they would be pickled with all their data


def _form_of(value: memoryview, where: str, key: bytes) -> Form:
    """Form of the first value; raises `SourceError` if it is not an image."""
    head = bytes(value[:_HEAD])
    if begins_as_image(head):
        return "file"
    found, advice = "something else", "Write the bytes of image files, or Caffe's Datum."
    if _PICKLED.match(head):
        found = "a pickled object, which can run any program when it is read"
        advice = "Write the bytes of image files instead, or pass the data set that reads it to tensorstore_ds.convert."
    else:
        try:
            datum = read_datum(value)
            datum.image()
            return "datum"
        except FormError:
            pass
        if b"arrow" in head.lower() or head[:4] == b"\xff\xff\xff\xff":
            found = "an object of pyarrow"
            advice = "Pass the data set that reads it to tensorstore_ds.convert."
        elif len(value) % 3 == 0 or len(value) > 100:
            found = "something else, perhaps pixels without a shape"
            advice = "Write the bytes of image files or Caffe's Datum, or save the pixels as .npy."
    message = f"expected the bytes of an image file or a Datum in {_shown(key)}, found {found}."
    raise SourceError(Problem(where, "packed-file", message), advice)


def _text(value: memoryview, key: str) -> str:
    """Text of a label; raises `SourceError`."""
    if len(value) > _LABEL_LIMIT:
        message = f"expected a label of at most {_LABEL_LIMIT:,} bytes, found {len(value):,}. Correct the label."
        raise SourceError(Problem(key, "annotation", message))
    try:
        return bytes(value).decode()
    except UnicodeDecodeError as error:
        message = "expected a label in UTF-8, found other bytes. Correct the label."
        raise SourceError(Problem(key, "annotation", message)) from error


def _known(label: Label | None, where: str) -> Label | None:
    """Normalize a label with `label_of`; raises `SourceError`."""
    with placed(where, "Correct the label."):
        return label_of(label, "label")


def _folder_of(key: str) -> str | None:
    """Folder of a key's file, which is its class, unless it is a split."""
    folder = key.rpartition("/")[0].rpartition("/")[2]
    return folder if folder and folder.lower() not in SPLIT_NAMES else None


def _utf8(key: bytes) -> str | None:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _shown(key: bytes) -> str:
    return _utf8(key) or f"0x{key[:40].hex()}"


def _name_of(file: Path, root: Path) -> str:
    """Name of a database: its file, or the folder of a data.mdb."""
    if file.name.lower() != FILE:
        return file.stem
    return file.parent.name.removesuffix(".lmdb")


def _files_of(path: Path) -> list[Path]:
    """Files that may be databases: `path`, or all in a folder and its subfolders."""
    if not path.is_dir():
        return [path] if path.is_file() else []
    names = (name for name in glance(path) if name.lower().endswith(_SUFFIXES))
    files = sorted(path / name for name in names if name.lower() != "lock.mdb" and not name.endswith("/lock.mdb"))
    return [file for file in files if file.is_file()]
