"""`tsds erase`: how samples are named, what is printed, and how it ends."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds as tsds
from small_stores import class_folders, tsds as command, voc
from tensorstore_ds.annex.editing import in_place


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images, and their store."""
    folder = tmp_path_factory.mktemp("made")
    options = tsds.ConvertOptions(workers=0, shard_nbytes=1, split_into={"train": 0.75, "val": 0.25})
    tsds.convert(class_folders(folder / "photos", "cat", "dog", count=4), folder / "s.tsds", options)
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "s.tsds"


def keys_of(store: Path, split: str = "train") -> list[str]:
    opened = tsds.open(store)
    return [opened[split].key(row) for row in range(len(opened[split]))]


def listed(store: Path, text: str | bytes) -> Path:
    path = store.with_name("list.txt")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_keys(store: Path) -> None:
    keys = keys_of(store)
    file = listed(store, f"\ufeff{keys[1]}\r\n\n{keys[4]}\n")
    words = ("erase", str(store), "--keys", str(file))
    digest = tsds.open(store).sha256
    tried = command(*words, "--dry-run")
    assert f"would erase: 2 samples (2 of train): {keys[1]}, {keys[4]}\ndry run: nothing was changed\n" in tried.stdout
    last = shlex.split(tried.stdout.splitlines()[-1])
    assert last[:1] == ["next:"] and tuple(last[2:]) == words, "the command without --dry-run"
    assert tsds.open(store).sha256 == digest and keys_of(store) == keys
    done = command(*words)
    assert (done.exit_code, done.stderr) == (0, "")
    assert f"\n  train  4\n  val    2\nerased: 2 samples (2 of train): {keys[1]}, {keys[4]}\n" in done.stdout
    assert "\nremoved: 2 shards, " in done.stdout
    assert "Rows behind the erased ones have moved up. Keys are the same. The digest of the store" in done.stdout
    assert "\nThe source " in done.stdout and " and trained models keep the samples.\n" in done.stdout
    assert keys_of(store) == [keys[0], keys[2], keys[3], keys[5]]
    again = command(*words)
    expected = (
        f"--keys: expected keys of samples, found 2 that no sample has: '{keys[1]}', '{keys[4]}'. Nothing was erased."
    )
    assert (again.exit_code, again.stderr) == (1, f"tsds: {expected}\n")


def test_a_table_of_keys_and_splits(store: Path) -> None:
    keys, table = [*keys_of(store), *keys_of(store, "val")], store.with_name("keys.csv")
    table.write_text("split,key\n" + "".join(f"{'train' if i < 6 else 'val'},{keys[i]}\n" for i in (6, 4, 1)))
    done = command("erase", store, "--keys", table, "--json")
    assert json.loads(done.stdout)["erased"] == {"train": 2, "val": 1}, done.output
    assert keys_of(store) == [keys[0], keys[2], keys[3], keys[5]] and keys_of(store, "val") == keys[7:]
    table.write_text(f"split,key\nval,{keys[0]}\n")
    assert (
        f"found 1 that no sample has: '{keys[0]}'. Nothing was erased."
        in command("erase", store, "--keys", table).stderr
    )


def test_rows(store: Path) -> None:
    keys, others = keys_of(store), keys_of(store, "val")
    text = json.dumps({"copies": [], "drop": {"train": [1, 4], "val": [0]}})  # as of tsds check --out
    done = command("erase", store, "--rows", listed(store, text), "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["erased"], found["keys"]) == ({"train": 2, "val": 1}, [keys[1], keys[4], others[0]])
    assert (found["rows"], found["removed_shards"], found["completed"]) == ({"train": 4, "val": 1}, 3, False)
    assert keys_of(store) == [keys[0], keys[2], keys[3], keys[5]]


def test_findings_of_check(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    (folder / "a").mkdir(parents=True)
    data = next((tmp_path / "photos").rglob("*.png")).read_bytes()
    for name in "123":
        (folder / "a" / f"{name}.png").write_bytes(data)
    tsds.convert(folder, tmp_path / "c.tsds", workers=0)
    command("check", tmp_path / "c.tsds", "--no-near", "--out", tmp_path / "findings.json")
    assert command("erase", tmp_path / "c.tsds", "--rows", tmp_path / "findings.json").exit_code == 0
    assert keys_of(tmp_path / "c.tsds") == ["a/1.png"]
    again = command("erase", tmp_path / "c.tsds", "--rows", tmp_path / "findings.json")
    assert again.exit_code == 1 and "expected the store " in again.stderr and again.stderr.count("\n") == 1
    assert command("check", tmp_path / "c.tsds", "--no-near", "--min-class", "0").exit_code == 0


def test_a_condition_and_a_split(store: Path) -> None:
    rows = {name: len(tsds.open(store)[name]) for name in ("train", "val")}
    done = command("erase", store, "--where", "label == 'cat'", "--split", "val")
    assert done.exit_code == 0 and "erased: 1 sample (1 of val): cat/" in done.stdout
    after = {name: len(tsds.open(store)[name]) for name in ("train", "val")}
    assert after == {"train": rows["train"], "val": rows["val"] - 1}
    assert "label" not in json.dumps(tsds.open(store).manifest.provenance["history"])  # the condition is not stored


REFUSED: dict[str, tuple[tuple[str, ...], str | bytes, str]] = {
    "another store": (("--where", "width > 9", "--sha256", "0" * 64), "", "expected the store 0000000"),
    "nothing": ((), "", "Give one of --where, --keys and --rows."),
    "two": (("--where", "width > 1", "--keys", "FILE"), "", "Give one of --where, --keys and --rows."),
    "rows of a split": (("--rows", "FILE", "--split", "val"), "", "--rows names the splits itself: leave out --split."),
    "no condition": (("--where", "width >"), "", "--where: expected a condition"),
    "none meets": (("--where", "width > 999"), "", "--where: expected a condition that some samples meet, found none"),
    "all": (("--where", "width > 0"), "", "expected samples that stay, found none. To delete all samples, remove"),
    "no split": (("--where", "width > 0", "--split", "test"), "", "expected splits of train, val, found 'test'."),
    "no key": (("--keys", "FILE"), "a\nb\nc\nd\n", "found 4 that no sample has: 'a', 'b', 'c' and 1 more."),
    "no keys": (("--keys", "FILE"), "\n\n", "expected samples to erase, found none."),
    "no text": (
        ("--keys", "FILE"),
        b"\xff\xfe\n",
        "list.txt: expected a key on each line, in UTF-8, found other bytes.",
    ),
    "no file": (("--keys", "none.txt"), "", "none.txt: cannot be read: No such file or directory."),
    "a key": (
        ("--rows", "FILE"),
        "cat/1.png\n",
        'expected {"drop": {"train": [3, 17]}}, found no JSON, or other values.',
    ),
    "too far": (
        ("--rows", "FILE"),
        '{"drop": {"train": [6]}}',
        "expected rows of train from 0 to 5 to erase, found 6.",
    ),
    "other JSON": (("--rows", "FILE"), '{"rows": 3}', "found no member 'drop'"),
    "no numbers": (("--rows", "FILE"), '{"drop": {"train": ["a"]}}', "found rows that are no whole numbers."),
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line(store: Path, name: str) -> None:
    words, text, message = REFUSED[name]
    file, before = listed(store, text), tsds.open(store).sha256
    done = command("erase", store, *(str(file) if word == "FILE" else word for word in words))
    assert done.exit_code in (1, 2) and done.stdout == ""
    assert message in done.stderr
    assert name in ("nothing", "two", "rows of a split") or done.stderr.count("\n") == 1
    assert tsds.open(store).sha256 == before and tsds.verify(store) == []


def test_interrupted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("erase", store, "--keys", listed(store, keys_of(store)[2]))

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(in_place, "change_root", interrupt)
        done = command(*words)
    assert (done.exit_code, done.stderr) == (130, "tsds: interrupted; nothing was erased\n")
    assert len(keys_of(store)) == 6 and tsds.verify(store) == []
    with monkeypatch.context() as patched:
        patched.setattr(in_place, "_remove_shard", interrupt)
        done = command(*words)
    told = "tsds: interrupted; the samples are erased, and the same command removes what is left of them\n"
    assert (done.exit_code, done.stderr, len(keys_of(store))) == (130, told, 5)
    kept = "1 replaced shard, "
    until = ", still on this disk: the next tsds append, update, erase or drop removes it\n"
    assert f"not checked: {kept}" in (verified := command("verify", store).stdout)
    assert kept in command("info", store).stdout and until in command("info", store).stdout
    assert json.loads(command("info", store, "--json").stdout)["replaced"]["shards"] == 1
    done = command(*words)
    assert done.exit_code == 0
    assert "completed: an erasure that was interrupted\nremoved: 1 shard, " in done.stdout
    assert command("verify", store).stdout == f"{verified.splitlines()[0]}\n"  # replaced shards were not counted
    assert "replaced shard" not in command("info", store).stdout
    assert json.loads(command("info", store, "--json").stdout)["replaced"] == {"shards": 0, "nbytes": 0}


def test_a_note_of_an_update_names_erase(tmp_path: Path) -> None:
    root = voc(tmp_path / "voc", *"ab")
    command("convert", root, tmp_path / "s.tsds", "--workers", 0, "--size", 8)
    xml = root / "Annotations" / "a.xml"
    xml.write_text(xml.read_text().replace("<xmin>1<", "<xmin>2<"))
    done = command("update", tmp_path / "s.tsds", root, "--workers", 0)
    assert "The next append, update, erase or drop removes them." in done.stderr
