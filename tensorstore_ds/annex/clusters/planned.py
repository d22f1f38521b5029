"""The plan of a conversion by several processes, in files: none of them scans the source again.

::

    OUT.partial/plan/
      plan.json            behind its checksum, which is the plan's digest: all but what follows
      problems.jsonl       what is wrong with the source, and what is left out of it
      train.references     the references of a split of the source: UTF-8, back to back
      train.ends           where each begins and the last one ends: int64
      train.rows           which of them a split of the store has, if they do not follow one another: int64

References are mapped, so that a process reads those of its own shards alone. For each shard, plan.json has a digest of
its references.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from tensorstore_ds.annex.clusters import plain
from tensorstore_ds.conversion.blocks import RowFormat
from tensorstore_ds.conversion.build import PLAN, versions
from tensorstore_ds.conversion.options import ConvertOptions
from tensorstore_ds.conversion.plan import ChosenRows, ShardName, plan_shards
from tensorstore_ds.conversion.preparation import Prepared, as_wanted
from tensorstore_ds.conversion.shard_conversion import reference_digest
from tensorstore_ds.durable import sync
from tensorstore_ds.errors import ConversionError, OptionError, Problem, SourceError, one_line
from tensorstore_ds.format.arrays import dump_json
from tensorstore_ds.format.manifest_parser import parse_fields
from tensorstore_ds.regular_files import exists, is_file, status_of
from tensorstore_ds.sources import FORMATS
from tensorstore_ds.sources.base import Contents, Reference, Source
from tensorstore_ds.sources.files import PackedStrings

#: Maximum number of tasks in a plan, unless one is asked for: clusters limit the size of a job array, often to 1,001.
TASKS = 1000
_DIGEST = 32  # characters of the digest of a shard's references


@dataclass(frozen=True)
class Plan:
    """Plan of a conversion by several processes, as returned by `plan`.

    Attributes:
        path: path of the future store.
        sha256: digest of the plan, which every finished shard contains.
        shards: number of samples of each shard, by split and number, the largest shards first.
        tasks: number of tasks into which the shards are divided. A process may choose a different number.
        options: options of the conversion.
        is_new: whether this call made the plan. If False, the plan existed already.
    """

    path: Path
    sha256: str
    shards: Mapping[ShardName, int]
    tasks: int
    options: ConvertOptions
    is_new: bool
    data: Mapping[str, Any]  #: content of plan.json

    @property
    def folder(self) -> Path:
        """Folder of the files of the plan."""
        return self.path.with_name(f"{self.path.name}.partial") / PLAN

    @property
    def source(self) -> str:
        """Name of the source, without its folder."""
        return one_line(cast(Path, plain.load(self.data["source"])).name)

    @property
    def samples(self) -> int:
        """Number of samples in all shards."""
        return sum(self.shards.values())

    def task(self, index: int, tasks: int | None = None) -> list[ShardName]:
        """Return the shards of a task: every `tasks`-th shard, so that each task has large and small shards.

        Args:
            index: number of the task, from 0.
            tasks: number of tasks. None uses the number of the plan.
        """
        return list(self.shards)[index :: self.tasks if tasks is None else tasks]

    # --- for a process that converts ---

    @cached_property
    def prepared(self) -> Prepared:
        """The source as it was planned.

        Raises:
            SourceError: this process cannot see the source, or finds a different one at its path.
            OptionError: this process has different versions of this library or its dependencies.
        """
        data = self.data
        if data["versions"] != versions():
            found, planned = ", ".join(versions()), ", ".join(data["versions"])
            message = f"planned with tensorstore-ds {planned}; this process has tensorstore-ds {found}"
            raise OptionError(f"{self.path}: {message}. Install the same versions everywhere.")
        source = self._source()
        row, contents = data["format"], Contents({}, {})
        format = RowFormat(
            parse_fields(row["fields"]), plain.load(row["image"]), self.options.on_error, row["channels"], row["dtype"]
        )
        return Prepared(source, contents, self.splits, format, data["row_nbytes"])

    def _source(self) -> Source:
        opened = FORMATS[self.data["source_format"]].load()(plain.load(self.data["source"]), self.options)
        source = as_wanted([opened], self.options)
        where = str(source.path)
        if not exists(source.path):
            message = "this process does not see the source that was planned."
            raise SourceError(Problem(where, "no-such-source", message), "Mount it at the same path on every machine.")
        for name, size, sha256 in self.data["probes"]:
            path = Path(plain.load(name))
            if (
                not (path.is_file() or is_file(path))
                or status_of(path).st_size != size
                or (sha256 and _sha256(path) != sha256)
            ):
                message = "expected the file that was planned with, found another or none."
                advice = "Give every machine the same source, or remove the plan and plan again."
                raise SourceError(Problem(str(path), "source-changed", message), advice)
        if source.scanned is None:
            source.scan()
        for name, value in plain.load(self.data["state"]).items():
            setattr(source, name, value)
        return source

    @cached_property
    def splits(self) -> dict[str, ChosenRows]:
        """The samples of each split of the store."""
        lists = {name: self._list(name, count) for name, count in self.data["lists"].items()}
        return {
            name: ChosenRows(each["from"], lists[each["from"]], self._rows(name, each["rows"]))
            for name, each in self.data["splits"].items()
        }

    def _list(self, name: str, count: int | None) -> Sequence[Reference]:
        if count is not None:
            return range(count)
        with (self.folder / f"{name}.references").open("rb") as file:
            text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return PackedStrings.of(text, np.memmap(self.folder / f"{name}.ends", "<i8", "r"))

    def _rows(self, name: str, rows: list[int] | None) -> Any:
        return np.memmap(self.folder / f"{name}.rows", "<i8", "r") if rows is None else range(*rows)

    def selection(self, names: Iterable[ShardName]) -> dict[ShardName, ChosenRows]:
        """Return the samples of some shards.

        Raises:
            ConversionError: the samples differ from the planned ones.
        """
        every = plan_shards(self.splits, self.data["rows_per_shard"])
        digests = {(split, index): digest for split, index, _, digest in self.data["shards"]}
        some = {name: every[name] for name in names}
        for name, shard in some.items():
            if reference_digest(shard).hexdigest()[:_DIGEST] != digests[name]:
                raise ConversionError(f"{self.folder}: its files are damaged. Remove {self.folder.parent}, plan again.")
        return some

    # --- for the one that commits ---

    def problems(self) -> tuple[list[Problem], tuple[Problem, ...]]:
        """Return the problems of the source, and the parts of it that are left out."""
        with open(self.folder / "problems.jsonl", encoding="utf-8") as file:
            every = [(Problem(*each), is_left_out) for *each, is_left_out in map(json.loads, file)]
        return [each for each, left_out in every if not left_out], tuple(each for each, left_out in every if left_out)


def read_plan(out: Path, data: dict[str, Any] | None, *, is_new: bool = False) -> Plan:
    """The plan at `out` from the content of plan.json; raises `ConversionError` if that is None."""
    if data is None:
        partial = out.with_name(f"{out.name}.partial")
        raise ConversionError(f"{partial}: the plan cannot be read. Remove this directory, and plan again.")
    sha256 = hashlib.sha256(dump_json(data)).hexdigest()
    shards = {(split, index): rows for split, index, rows, _ in data["shards"]}
    largest_first = dict(sorted(shards.items(), key=lambda item: -item[1]))
    return Plan(out, sha256, largest_first, data["tasks"], plain.load(data["options"]), is_new, data)


def write_plan(
    folder: Path, prepared: Prepared, options: ConvertOptions, asked: Mapping[str, Any], tasks: int | None
) -> dict[str, Any]:
    """Write and sync the files of a plan except plan.json; returns the content of plan.json."""
    source, contents, format = prepared.source, prepared.contents, prepared.format
    rows_per_shard = max(1, options.shard_nbytes // max(1, prepared.row_nbytes))
    shards = plan_shards(prepared.splits, rows_per_shard)
    lists = {split.source_split: split.listed for split in prepared.splits.values()}
    counts = {name: _write_list(folder, name, listed) for name, listed in lists.items()}
    splits = {name: _write_rows(folder, name, split) for name, split in prepared.splits.items()}
    with open(folder / "problems.jsonl", "w", encoding="utf-8") as file:
        for is_left_out, problems in ((False, contents.problems), (True, contents.left_out)):
            for problem in problems:
                file.write(json.dumps([*asdict(problem).values(), is_left_out]) + "\n")
    for path in folder.iterdir():
        sync(path)
    return {
        "versions": versions(),
        "asked": asked,
        "source": plain.dump(source.path),
        "source_format": source.name,
        "state": plain.dump({name: getattr(source, name) for name in source.scanned or ()}),
        "options": plain.dump(options),
        "format": {
            "fields": {name: field.dump() for name, field in format.fields.items()},
            "image": plain.dump(format.image),
            "channels": format.channels,
            "dtype": format.dtype,
        },
        "row_nbytes": prepared.row_nbytes,
        "rows_per_shard": rows_per_shard,
        "lists": counts,
        "splits": splits,
        "tasks": max(1, min(len(shards), TASKS)) if tasks is None else tasks,
        "probes": _probes(prepared),
        "shards": [
            [split, index, len(shard), reference_digest(shard).hexdigest()[:_DIGEST]]
            for (split, index), shard in shards.items()
        ],
    }


def _write_list(folder: Path, name: str, listed: Sequence[Reference]) -> int | None:
    """Write the references of a split of the source; numeric references need no file, only their count."""
    if isinstance(listed, range):
        return len(listed)
    packed = listed if isinstance(listed, PackedStrings) else PackedStrings(cast("Sequence[str]", listed))
    text, ends = packed.buffers
    (folder / f"{name}.references").write_bytes(text)
    (folder / f"{name}.ends").write_bytes(np.asarray(ends, "<i8").data)
    return None


def _write_rows(folder: Path, name: str, split: ChosenRows) -> dict[str, Any]:
    rows = split.rows
    if isinstance(rows, range):
        return {"from": split.source_split, "rows": [rows.start, rows.stop, rows.step]}
    (folder / f"{name}.rows").write_bytes(np.ascontiguousarray(rows, "<i8").data)
    return {"from": split.source_split, "rows": None}


def _probes(prepared: Prepared) -> list[list[Any]]:
    """Some files that identify the source for other processes: path, size, and SHA-256 of those that all samples share.

    An image of every split is enough to notice that another folder is mounted there.
    """
    source, probes = prepared.source, []
    for path in source.common_files():
        probes.append([plain.dump(str(path)), path.stat().st_size, _sha256(path)])
    for split in prepared.splits.values():
        for name in source.files(next(iter(split))) if len(split) else ():
            if is_file(name):
                probes.append([plain.dump(name), status_of(name).st_size, ""])
    return probes


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
