"""The reader, the verifier and the checker of readers on the conformance stores, beside zarr-python and TensorStore."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

import jpeg_entries
import tensorstore_ds as tsds
from tensorstore_ds.errors import FormatError
from tensorstore_ds.format.manifest import CONVENTION
from tensorstore_ds.reading.columns import Column, RaggedColumn

V1 = Path(__file__).parents[1] / "formats" / "v1"
CONFORMANCE = V1 / "conformance"
CASES = json.loads((CONFORMANCE / "cases.json").read_text("utf-8"))["cases"]
VALID = [case["path"] for case in CASES if case["valid"]]
INVALID = [case for case in CASES if not case["valid"]]


def invalid(*stages: str) -> list[Any]:
    return [pytest.param(case, id=Path(case["path"]).stem) for case in INVALID if case["stage"] in stages]


def touch(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Every array of every split, by its path relative to the split: what maps all there is."""
    store = tsds.open(path)
    arrays = {}
    for name in store.splits:
        split = store[name]
        for field in split.fields:
            column = split[field]
            arrays |= touch_column(f"{name}/{field}", column)
    return arrays


def touch_column(name: str, column: Column | RaggedColumn) -> dict[str, np.ndarray[Any, Any]]:
    if isinstance(column, Column):
        return {name: np.asarray(column)}
    arrays = {f"{name}/offsets": np.asarray(column.offsets)}
    for value, each in {**column.values, **column.lists, **column.per_row}.items():
        arrays |= touch_column(f"{name}/{value}", each)
    return arrays


def assert_same(found: Any, expected: np.ndarray[Any, Any]) -> None:
    """Equal in shape, dtype and every byte, so that NaN equals NaN."""
    found = np.asarray(found)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert found.tobytes() == expected.tobytes()


@pytest.fixture(scope="module")
def stores() -> Iterator[Mapping[str, Any]]:
    """What the generator put into the valid stores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(CONFORMANCE))
        yield importlib.import_module("valid_stores").stores()
        for name in ("valid_stores", "plain_store"):
            sys.modules.pop(name, None)


@pytest.fixture
def copied(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of a valid store."""
    return Path(shutil.copytree(CONFORMANCE / "valid" / f"{request.param}.tsds", tmp_path / "copy.tsds"))


# --- the stores themselves --------------------------------------------------------------------------------------


def entries(folder: Path) -> dict[str, bytes | str]:
    """Every file below a folder, by path; a link as its target."""
    paths = [p for part in ("valid", "invalid") for p in (folder / part).rglob("*")] + [folder / "cases.json"]
    return {
        str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else p.read_bytes()
        for p in paths
        if p.is_symlink() or p.is_file()
    }


def test_the_generator_writes_the_committed_bytes(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-B", CONFORMANCE / "make_conformance.py", tmp_path], check=True)
    made, committed = entries(tmp_path), entries(CONFORMANCE)
    assert made.keys() == committed.keys()
    assert [path for path in made if made[path] != committed[path]] == []


def test_the_generator_needs_only_numpy() -> None:
    own = {path.stem for path in CONFORMANCE.glob("*.py")}
    for path in CONFORMANCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names | own | {"numpy"}, path


def test_every_valid_store_is_described() -> None:
    table = (CONFORMANCE / "README.md").read_text("utf-8").split("| valid store |")[1].split("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for row in rows for name in re.findall("`(.*?)`", row)} == {Path(path).stem for path in VALID}


def test_every_code_of_a_store_is_documented_and_has_a_case() -> None:
    section = (V1 / "reasons.md").read_text("utf-8").split("## Of a store")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([a-z-]+)`", section, re.MULTILINE)) == {case["reason"] for case in INVALID}


def test_the_specification_gives_the_convention_that_is_written() -> None:
    blocks = re.findall(r"```json\n(.*?)```", (V1 / "spec.md").read_text("utf-8"), re.DOTALL)
    assert CONVENTION in [json.loads(block) for block in blocks if block.startswith('{"uuid"')]


def test_the_page_of_bytes_shows_the_smallest_store() -> None:
    """Every file of it, without what is written behind the bytes and the lines."""
    text = (V1 / "hexdump.md").read_text("utf-8")
    shown = dict(re.findall(r"^## `(\S+)`\n.*?^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    store = CONFORMANCE / "valid/minimal.tsds"
    assert shown.keys() == {path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file()}
    for path, lines in shown.items():
        data = (store / path).read_bytes()
        if path.endswith(".json"):
            assert re.sub(r" +// .*", "", lines).encode() == data
            continue
        at = 0
        for place, line in re.findall(r"^([0-9a-f]{2})  ((?:[0-9a-f]{2} )+) ", lines, re.MULTILINE):
            assert int(place, 16) == at
            assert data[at : at + len(bytes.fromhex(line))] == bytes.fromhex(line)
            at += len(bytes.fromhex(line))
        assert at == len(data)


# --- valid ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", VALID)
def test_our_reader_reads_what_was_written_and_verifies_it(path: str, stores: Mapping[str, Any]) -> None:
    expected = stores[Path(path).stem]
    found = touch(CONFORMANCE / path)
    assert tsds.verify(CONFORMANCE / path) == []
    for split, shards in expected.splits.items():
        for name in shards[0].arrays if shards else ():
            parts = [shard.arrays[name] for shard in shards]
            if name.endswith("/offsets"):
                ends = np.cumsum([part[-1] for part in parts])
                parts[1:] = [part[1:] + end for part, end in zip(parts[1:], ends, strict=False)]
            assert_same(found.pop(f"{split}/{name}"), np.concatenate(parts))
    assert all(array.size == 0 or name.endswith("offsets") for name, array in found.items())  # splits without shards


@pytest.mark.parametrize("path", VALID)
def test_zarr_tensorstore_and_memmap_read_the_same(path: str, stores: Mapping[str, Any]) -> None:
    store, root = stores[Path(path).stem], CONFORMANCE / path
    group: Any = zarr.open_group(root, mode="r")
    for split, shards in store.splits.items():
        for i, shard in enumerate(shards):
            for name, expected in shard.arrays.items():
                place = f"{split}/{i if shard.number is None else shard.number:05d}/{name}"
                assert_same(group[place][...], expected)
                spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{root / place}/"}}
                assert_same(tensorstore.open(spec, read=True).result().read().result(), expected)
                if store.layout_of(name) == "memmap" and len(expected):
                    file = root / place / "/".join("c" + "0" * expected.ndim)
                    assert_same(np.memmap(file, expected.dtype, "r", shape=expected.shape), expected)


# --- invalid ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", invalid("open", "map", "verify"))
def test_it_is_refused_at_its_stage_and_verify_finds_it(case: Mapping[str, Any]) -> None:
    """When opened; when mapped, or earlier; or only by verify, which then finds nothing else."""
    path, reason, stage = CONFORMANCE / case["path"], case["reason"], case["stage"]
    if stage == "verify":
        touch(path)
    else:
        with pytest.raises(FormatError) as caught:
            tsds.open(path) if stage == "open" else touch(path)
        assert caught.value.reason == reason and str(caught.value).isprintable()
        assert stage == "map" or {problem.reason for problem in caught.value.problems} == {reason}
    problems = tsds.verify(path)
    found = {problem.reason for problem in problems}
    assert found == {reason} if stage == "verify" else reason in found
    assert all(str(problem).isprintable() for problem in problems)


@pytest.mark.parametrize("case", invalid("decode"))
def test_verify_finds_wrong_entries_where_it_can_walk_through_the_pixels(
    case: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jpeg_entries.use(monkeypatch, jpeg_entries.no_entries)
    touch(CONFORMANCE / case["path"])
    assert tsds.verify(CONFORMANCE / case["path"]) == []
    jpeg_entries.use(monkeypatch, jpeg_entries.index)
    assert {problem.reason for problem in tsds.verify(CONFORMANCE / case["path"])} == {case["reason"]}


@pytest.mark.parametrize("index", [jpeg_entries.no_entries, jpeg_entries.index], ids=["without", "with"])
def test_entries_are_looked_at_with_and_without_the_compiled_part(index: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg_entries.use(monkeypatch, index)
    assert tsds.verify(CONFORMANCE / "valid/entries.tsds") == []
    wrong = [case for case in INVALID if case["reason"] == "image-entries" and case["stage"] == "verify"]
    assert len(wrong) == 9
    for case in wrong:
        assert [problem.reason for problem in tsds.verify(CONFORMANCE / case["path"])] == ["image-entries"]


def test_entries_of_the_valid_store_are_those_of_its_files() -> None:
    split = tsds.open(CONFORMANCE / "valid/entries.tsds")["train"]
    lists = split["image"].per_row["entries"]
    found = [len(entries) for entries in lists[:]]
    assert found == [4, 4, 0, 0]
    for file, entries in zip(split["image"][:], lists[:], strict=True):
        assert entries.astype("<u4").tobytes() == jpeg_entries.index(file)


# --- cases too large or too many to keep ------------------------------------------------------------------------


@pytest.mark.parametrize("copied", ["minimal"], indirect=True)
def test_a_root_above_the_limit_is_refused_unread(copied: Path) -> None:
    with (copied / "zarr.json").open("r+b") as file:
        file.truncate(64 * 1024**2 + 1)  # sparse
    with pytest.raises(FormatError) as caught:
        tsds.open(copied)
    assert caught.value.reason == "manifest-json"


@pytest.mark.parametrize("copied", ["minimal"], indirect=True)
def test_a_file_cut_after_opening_is_refused_when_mapped(copied: Path) -> None:
    store = tsds.open(copied)
    with (copied / "train/00000/image/c/0/0/0/0").open("r+b") as file:
        file.truncate(10)
    with pytest.raises(FormatError) as caught:
        np.asarray(store["train"]["image"])
    assert caught.value.reason == "file-size"


def test_the_table_of_readers_is_of_these_cases() -> None:
    """``python make_table.py`` writes it anew."""
    table = (CONFORMANCE / "README.md").read_text("utf-8").split("<!-- written by make_table.py -->")[1]
    row = next(line for line in table.splitlines() if line.startswith("| tensorstore-ds |"))
    counts = [len(VALID), *(len(invalid(stage)) for stage in ("open", "map", "verify", "decode"))]
    assert row.split(" | ")[2:] == [*(f"{n} of {n}" for n in counts[:-1]), f"{counts[-1]} of {counts[-1]} |"]


# --- the checker of readers --------------------------------------------------------------------------------------

CHECKER, READERS = CONFORMANCE / "check_reader.py", CONFORMANCE / "readers"
MINIMAL = next(case for case in CASES if case["path"] == "valid/minimal.tsds")
SHORT = next(case for case in CASES if case["path"] == "invalid/file-size--short.tsds")


def checked(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, CHECKER, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def judged(case: dict[str, Any], answer: str, *, status: int = 0) -> str | None:
    """What the checker says of a reader that prints `answer` and ends with `status`."""
    code = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[2]))"
    command = [sys.executable, "-c", code, answer, str(status)]
    found: str | None = runpy.run_path(str(CHECKER))["problem"](case, command, "map")
    return found


def test_right_answers() -> None:
    assert judged(MINIMAL, json.dumps({"arrays": MINIMAL["arrays"]})) is None
    assert judged(SHORT, '{"reason": "file-size"}', status=3) is None


@pytest.mark.parametrize(
    ("case", "answer", "status", "message"),
    [
        (MINIMAL, '{"arrays": {}}', 0, "train/00000/image missing"),
        (
            MINIMAL,
            '{"arrays": {"train/00000/image": {"dtype": "int8"}}}',
            0,
            'train/00000/image: expected {"dtype": "uint8"',
        ),
        (MINIMAL, json.dumps({"arrays": {**MINIMAL["arrays"], "x": {}}}), 0, "x unexpected"),
        (MINIMAL, "{}", 0, "no member arrays"),
        (MINIMAL, '{"reason": "manifest"}', 1, "refused: manifest"),
        (MINIMAL, "no JSON", 0, "status 0, no JSON object on stdout: nothing on stderr"),
        (SHORT, '{"arrays": {}}', 0, "accepted, expected file-size: "),
        (SHORT, '{"reason": "manifest"}', 1, "refused with manifest, expected file-size: "),
        (SHORT, "[]", 1, "status 1, no JSON object"),
    ],
)
def test_wrong_answers(case: dict[str, Any], answer: str, status: int, message: str) -> None:
    assert str(judged(case, answer, status=status)).startswith(message)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_reader_that_is_killed_has_refused_nothing() -> None:
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 11)"]
    assert runpy.run_path(str(CHECKER))["problem"](SHORT, command, "map") == "ended by signal 11"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "stages"),
    [("--jobs=2", ["verify"]), ("--decode", ["decode", "verify"]), ("--no-verify", []), ("--valid-only", None)],
)
def test_the_stages_that_are_tried(option: str, stages: list[str] | None) -> None:
    table = checked(option, sys.executable, "-S", "-E", "-c", "print('{}')").stdout.splitlines()
    found = sorted(line.split()[1] for line in table if line.startswith("invalid, "))
    assert found == ([] if stages is None else sorted(["map", "open", *stages]))


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["tensorstore_ds_python", "zarr_python", "tensorstore_python"])
def test_a_reader_answers_right(reader: str, eighth: slice) -> None:
    """All cases nightly, elsewhere one in eight: test_conformance.py has all of them in one process."""
    problem, of_zarr = runpy.run_path(str(CHECKER))["problem"], reader != "tensorstore_ds_python"
    command = [sys.executable, str(READERS / f"{reader}.py")]
    cases = [case for case in CASES if case["valid"] or not (of_zarr or case["stage"] == "decode")]
    assert len(cases) > 30
    stages = [(case, "map" if of_zarr else case.get("stage", "verify")) for case in cases[eighth]]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(lambda each: problem(each[0], command, each[1], of_zarr=of_zarr), stages))
    assert [(case["path"], wrong) for (case, _), wrong in zip(stages, answers, strict=True) if wrong] == []


@pytest.mark.slow
def test_a_reader_that_accepts_everything_fails() -> None:
    done = checked("--no-verify", "--jobs", 2, sys.executable, "-S", "-c", "print('{}')")
    counts = {line[:16].strip(): line.split()[-2:] for line in done.stdout.splitlines()[-5:]}
    assert done.returncode == 1
    assert counts["invalid, map"][1] == counts["valid"][1] == "0"
    assert "invalid, verify" not in counts
