"""What commands cannot do is one line on stderr, with status 1, and changes no file; wrong usage has status 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tensorstore_ds
from small_stores import INVALID, VALID, class_folders, tsds
from stores import files_of

#: Words of a command, and what its line has; of a path, the first part says where it is.
REFUSED = [
    ("stats VALID/shards.tsds --split dev", "one of the splits train, val, test-0, found 'dev'."),
    ("preview VALID/shards.tsds --split dev", "one of the splits train, val, test-0, found 'dev'."),
    *((f"{name} VALID/minimal.tsds --split no", "found 'no'") for name in ("warm", "evict")),
    *((f"{name} TMP", "this is not a store") for name in ("warm", "evict", "serve")),
    *(
        (f"{name} INVALID/{store}.tsds", message)
        for name in ("info", "stats", "preview", "warm")
        for store, message in (
            ("file-size--short", "expected"),
            ("manifest-json--cut", "zarr.json"),
            ("unknown-version--2.0", "2.0"),
        )
    ),
    ("preview TMP/s.tsds --rows 1,99", "train: expected rows in [0, 24), found 99.\n"),
    ("preview TMP/s.tsds --out TMP/no/p.png", "found: No such file or directory. Make its"),
    ("preview TMP/s.tsds --out TMP/x.jpg", "expected a name that ends in .png"),
    ("preview VALID/array-fields.tsds", ""),  # no images
    ("folds TMP/s.tsds -k 25", "-k: expected at most 24, the samples of s.tsds, train, found 25. Use fewer folds.\n"),
    ("folds TMP/s.tsds --stratify lable", "found 'lable'. Did you mean label?\n"),
    ("folds TMP/s.tsds --groups patient", "--groups: split train: expected one of the fields image, label, "),
    ("folds TMP/s.tsds --split val", "s.tsds: expected its only split train, found 'val'.\n"),
    ("folds TMP/s.tsds --out f.xls", "--out: expected a file name that ends with .csv or .json, found f.xls.\n"),
    ("view none.tsds", "expected a store, a training run or a folder of images, found nothing"),
    ("view TMP/s.tsds --run TMP/photos", "expected a folder of a training run, found no history.jsonl"),
    ("view TMP/s.tsds --findings TMP/none.json", "expected findings of a check, found"),
    ("view TMP/s.tsds --findings TMP/s.tsds/zarr.json", "found other text"),
    ("view TMP/photos/ant/0.png", "0.png"),
    ("view TMP/s.tsds --host 192.0.2.1", "expected to listen at 192.0.2.1"),
    ("card TMP/nothing", "there is no such store"),
    ("card TMP/s.tsds TMP/file/out", "expected to write it"),
    ("repack VALID/chunks.tsds TMP/taken --layout zarr", "taken: "),
    ("repack VALID/gray16.tsds TMP/o --encoding jpeg --workers 0", "is uint16 with 1 channels. Use --encoding raw"),
    ("serve TMP/s.tsds --token short", "--token: expected 16 to 128 letters, digits, - and _, found another text.\n"),
    ("pack TMP/s.tsds TMP/file", "expected a new path, found a file. Choose another path, or remove this one first.\n"),
    ("pack TMP/s.tsds TMP/y --sha256 " + "0" * 64, "expected the store 000"),
    ("info TMP/file", "file: this is not a store: it is a file, but no ZIP file of a store"),
    ("unpack TMP/s.tsds TMP/o", "s.tsds: expected a packed store, found a folder. It can be used as it is.\n"),
    ("convert TMP/nothing TMP/o", ""),
    ("convert TMP/photos TMP/photos/o", "lies inside the source"),
    ("convert TMP/photos TMP/taken", "taken"),
    *((f"convert TMP/{name} TMP/o", "pack it again") for name in ("a.zip", "a.tar.gz")),
    ("convert TMP/a.7z TMP/o", "unpack it"),
    ("convert TMP/a.png TMP/o", "one image"),
    ("convert TMP/s.tsds TMP/o", "a store"),
    ("convert TMP/photos TMP/o --images TMP/nowhere", "--images: expected a folder, found "),
    ("convert TMP/photos TMP/o --images TMP/\udcff", "--images: expected a folder, found "),
    *(
        (f"convert TMP/photos TMP/o --images TMP/photos/ant{more}", "found the format folders. Leave it out.\n")
        for more in ("", " --dry-run")
    ),
    ("predict TMP/run TMP/a.png", "expected a checkpoint, found a folder. Name /"),
    ("predict TMP/taken TMP/a.png", "expected a checkpoint, found a folder. Name the file best.pt of a run.\n"),
    ("doctor TMP/s.tsds --split no", "--split: expected one of train, found no.\n"),
    ("doctor TMP/s.tsds --device tpu", "found tpu"),
    ("filter TMP/s.tsds TMP/o --without TMP/rows.json", "s.tsds --out FILE\n"),
]  # fmt: skip

#: Words that are no command line, and what is said of them below the usage.
USAGE = [
    *((words, "") for words in ("nonsense", "info", "info a b", "info a --nonsense", "convert a b --fit wide")),
    *((f"warm s.tsds {words}", "Invalid value for") for words in ("--threads 0", "--budget much", "--budget 0")),
    *(
        (f"bench s.tsds {words}", "")
        for words in ("--batch-sizes 0", "--batch-sizes 10,x", "--ways file", "--seconds 0")
    ),
    *((f"doctor s.tsds --{name} 0", f"--{name}") for name in ("seconds", "batch-size", "threads", "cores", "memory")),
    ("doctor s.tsds --model huge", "--model"),
    ("folds s.tsds -k 1", "1 is not in the range x>=2"),
    ("preview s.tsds --rows 1;2", "--rows"),
    ("drop s.tsds", ""),
    ("convert o --task 0/2 --size 8", "--size is in the plan: leave it out, or plan again with it.\n"),
    ("convert o --task 0/2 --dry-run", "--dry-run has no effect with --task.\n"),
    *((f"compare photos s.tsds {flag}", f"Error: {flag.split()[0]} compares two") for flag in ("--quick", "--by row")),
    ("pull s.tsds s3://b/o", "Copy a store from it with tsds pull, or to it with tsds push.\n"),
    ("repack s.tsds o", "Error: Give --layout, --encoding or both.\n"),
    ("repack s.tsds o --encoding source", "--encoding"),
    *(
        (f"convert a b {flag} {value}", f"Invalid value for '{flag}'")
        for flag, values in (
            ("--size", "0 12x big"),
            ("--quality", "96"),
            ("--seed", "-1"),
            ("--shard-size", "0 4potatoes"),
            ("--split-into", "train train=0.5,train=0.5 train=much"),
            ("--workers", "-1"),
            ("--max-pixels", "0"),
        )
        for value in values.split()
    ),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refusals")
    tensorstore_ds.convert(class_folders(folder / "photos", "ant", "bee", count=12), folder / "s.tsds", workers=0)
    for name in ("taken", "run"):
        (folder / name).mkdir()
    for name in ("run/best.pt", "file", "a.zip", "a.tar.gz", "a.7z", "a.png"):
        (folder / name).write_text("x" * (name == "file"))
    (folder / "rows.json").write_text(json.dumps({"sha256": "0" * 64, "drop": {"train": [1]}}))  # of another store
    return folder


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_a_refusal_is_one_line(place: Path, words: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    before = files_of(place)
    given = words.replace("INVALID", str(INVALID)).replace("VALID", str(VALID)).replace("TMP", str(place))
    done = tsds(*given.split())
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("tsds: ") and message in done.stderr
    assert files_of(place) == before


@pytest.mark.parametrize(("words", "message"), USAGE)
def test_wrong_usage_has_status_2(place: Path, words: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    done = tsds(*words.split())
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Usage: tsds ") and message in done.stderr
