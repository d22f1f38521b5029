"""Sources, written, scanned and read; and a table of what is expected of them."""

from __future__ import annotations

import contextlib
import io
import pickle
import struct
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from tensorstore_ds.errors import SourceError
from tensorstore_ds.format.kinds import LabelField, LabelsField, ObjectsField
from tensorstore_ds.format.kinds.objects import LISTS, OBJECT_VALUES
from tensorstore_ds.sources import open_source
from tensorstore_ds.sources.base import Contents, Sample, Source, SourceOptions

Files = Mapping[str, str | bytes]


def write(root: Path, files: Files) -> Path:
    """A folder with these files; the content of images does not matter to a scan. ``x/`` is an empty folder."""
    for name, content in files.items():
        path = root / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def tar(*members: tuple[str, bytes] | tarfile.TarInfo, format: int = tarfile.GNU_FORMAT) -> bytes:
    """An archive; members that are headers alone have no data."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        for member in members:
            header, data = (
                (member, b"") if isinstance(member, tarfile.TarInfo) else (tarfile.TarInfo(member[0]), member[1])
            )
            header.size = len(data)
            archive.addfile(header, io.BytesIO(data))
    return buffer.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


IDX_CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx(array: Any) -> bytes:
    """The bytes of an IDX file, written from the description of the format."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, IDX_CODES[array.dtype.name], array.ndim, *array.shape)
    return bytes(header + array.astype(array.dtype.newbyteorder(">")).tobytes())


def blank(*names: str) -> dict[str, str | bytes]:
    """Empty files, such as images that only a scan sees."""
    return dict.fromkeys(names, "")


def reasons(problems: Any) -> list[tuple[str, str]]:
    return [(problem.where, problem.reason) for problem in problems]


def field(contents: Contents) -> ObjectsField:
    found = contents.fields["objects"]
    assert isinstance(found, ObjectsField)
    return found


def plain(value: Any) -> Any:
    """Lists in the place of arrays and tuples, None in the place of NaN, and floats of few digits."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return None if value != value else round(value, 6)
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


class Has:
    """Equal to every text that contains all of these."""

    def __init__(self, *parts: str) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and all(part in other for part in self.parts)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Has{self.parts}"


class Found:
    """What a source has, in plain values, once its samples are read as a worker process reads them."""

    def __init__(self, source: Source) -> None:
        self.contents = source.contents()
        self.source: Source = pickle.loads(pickle.dumps(source))  # noqa: S301  of this process
        self.samples: dict[str, list[Sample]] = {
            split: [self.source.read(split, each) for each in references]
            for split, references in self.contents.splits.items()
        }
        self.keys = {split: [each.key for each in some] for split, some in self.samples.items()}
        self.labels = {split: [each.label for each in some] for split, some in self.samples.items()}
        self.fields = list(self.contents.fields)
        self.problems, self.left_out = reasons(self.contents.problems), reasons(self.contents.left_out)
        self.said = [str(each) for each in (*self.contents.problems, *self.contents.left_out)]
        self.notes = list(self.contents.notes)
        self._check()

    def _check(self) -> None:
        """What holds for every source."""
        assert all("\n" not in each for each in self.said)
        for split, references in self.contents.splits.items():
            keys = self.keys[split]
            assert keys == [self.source.key(split, each) for each in references] and len(set(keys)) == len(keys)
            assert not any(key.startswith("/") or ".." in key.split("/") for key in keys)
            if self.contents.labels is not None:
                known = self.contents.labels[split]
                assert known.dtype == np.int64 and known.tolist() == self.labels[split]
            for each in self.samples[split]:
                assert each.label is None or -1 <= each.label < len(self.contents.fields["label"].classes)
                self._check_fields(each)

    def _check_fields(self, sample: Sample) -> None:
        for name in self.contents.fields.keys() & sample.arrays.keys():
            if isinstance(multi := self.contents.fields[name], LabelsField):
                assert sample.arrays[name].dtype == np.int8 and sample.arrays[name].shape == (len(multi.classes),)
        if sample.objects is None:
            return
        table = field(self.contents)
        assert set(sample.objects) == set(table.values)
        counts = {len(value) for value in sample.objects.values()}
        assert len(counts) == 1
        for name, value in sample.objects.items():
            if name in LISTS:
                continue
            dtype, shape = OBJECT_VALUES[name]
            assert value.dtype.kind == np.dtype(dtype).kind, name
            wanted = [len(table.keypoints) if side == "K" else side for side in shape]
            assert name == "oriented_boxes" or list(value.shape[1:]) == wanted, name

    @property
    def splits(self) -> list[str]:
        return list(self.samples)

    @property
    def images(self) -> list[str]:
        """Of all samples, below the source's own path."""
        return [str(each.image).removeprefix(f"{self.source.path}/") for each in self._all()]

    @property
    def sizes(self) -> list[Any]:
        """Of all samples, (height, width) as the annotations have it."""
        return [each.annotated_size for each in self._all()]

    @property
    def pictures(self) -> list[Any]:
        """The images of all samples: pixels, the bytes of a file, or its path."""
        return [each.image for each in self._all()]

    @property
    def classes(self) -> list[str]:
        return list(self._field.classes)

    @property
    def values(self) -> list[str]:
        """Names of the values of objects."""
        return list(field(self.contents).values)

    @property
    def keypoints(self) -> list[str]:
        return list(field(self.contents).keypoints)

    @property
    def flip_pairs(self) -> list[tuple[int, int]]:
        return list(field(self.contents).flip_pairs)

    @property
    def points(self) -> list[Any]:
        """Keypoints of all samples."""
        return [plain((each.objects or {})["keypoints"]) for each in self._all()]

    @property
    def multi(self) -> list[Any]:
        """What is known of each class, for all samples."""
        return [plain(each.arrays["labels"]) for each in self._all()]

    @property
    def texts(self) -> list[Any]:
        return [dict(each.texts) for each in self._all()]

    @property
    def names(self) -> list[Any]:
        """Of all samples, the name of the class; of those with several labels or objects, all names."""
        found: list[Any] = []
        for each in self._all():
            if "labels" in (each.objects or ()):
                found.append([self.classes[label] for label in each.objects["labels"]])
            elif "labels" in each.arrays:
                found.append([self.classes[i] for i in np.flatnonzero(each.arrays["labels"] == 1)])
            else:
                found.append(None if each.label in (None, -1) else self.classes[each.label or 0])
        return found

    def __getattr__(self, name: str) -> list[Any]:
        """A value of the objects, or an array, of each sample of all splits, such as `boxes`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return [plain((each.objects if name in (each.objects or ()) else each.arrays)[name]) for each in self._all()]

    @property
    def _field(self) -> Any:
        fields = self.contents.fields
        return next((fields[name] for name in ("label", "labels", "objects") if name in fields), LabelField())

    def _all(self) -> Iterator[Sample]:
        return (each for some in self.samples.values() for each in some)


def found(path: Path, format: str = "auto", **options: Any) -> Found:
    return Found(open_source(path, format, SourceOptions(**options)))


def refused(path: Path, format: str = "auto", match: str | None = None, **options: Any) -> str:
    """The reason why a source is refused, in one line."""
    with pytest.raises(SourceError, match=match) as caught:
        open_source(path, format, SourceOptions(**options)).contents()
    assert "\n" not in str(caught.value)
    return caught.value.reason


def converted(source: Any, **options: Any) -> tuple[tsds.Store, tsds.conversion.Summary]:
    """A valid store of a source, made in this process beside it."""
    folder = Path(source).parent
    out = folder / f"{len(list(folder.iterdir()))}.tsds"
    summary = tsds.convert(source, out, tsds.ConvertOptions(**{"workers": 0, **options}))
    assert tsds.verify(out) == []
    return tsds.open(out), summary


def stored(source: Path, **options: Any) -> tsds.Store:
    """Its store alone."""
    return converted(source, **options)[0]


@contextlib.contextmanager
def refusing(reason: str, match: str | None = None) -> Iterator[None]:
    """What is done within is refused for this reason, in one line."""
    with pytest.raises(SourceError, match=match) as caught:
        yield
    assert caught.value.reason == reason and "\n" not in str(caught.value)


def bad(source: Source, split: str, reference: Any) -> str:
    """The reason why a sample cannot be read, in one line."""
    with pytest.raises(SourceError) as caught:
        source.read(split, reference)
    assert "\n" not in str(caught.value)
    return caught.value.reason


@dataclass(frozen=True)
class Case:
    """A source, and some of what is found in it by the names in `Found`; or why it is refused."""

    files: Files
    at: str
    options: Mapping[str, Any]
    expected: Mapping[str, Any]


def case(files: Files, at: str = "", options: Mapping[str, Any] | None = None, **expected: Any) -> Case:
    """One of these files, or ``at`` the folder of all. ``refused`` is a reason, or a reason and a part of the text."""
    return Case(files, at, options or {}, expected)


def check(case: Case, root: Path, format: str) -> None:
    write(root, case.files)
    options = {name: root / value if name == "images" else value for name, value in case.options.items()}
    if "refused" in case.expected:
        why = case.expected["refused"]
        reason, match = (why, None) if isinstance(why, str) else why
        found_reason = refused(root / case.at, format, match, **options)
        assert found_reason == reason, f"{found_reason}, not {reason}"
        return
    agrees(found(root / case.at, format, **options), case.expected)


def agrees(got: Found, expected: Mapping[str, Any]) -> None:
    """Compare some of what is found; what an array or a list of texts is expected to have comes as plain values."""
    pairs = {name: (plain(getattr(got, name)), plain(value)) for name, value in expected.items()}
    different = {name: f"{one!r}, not {other!r}" for name, (one, other) in pairs.items() if one != other}
    assert not different, different
