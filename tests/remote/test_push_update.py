"""Stores that were changed after they were pushed: their earlier state at the URL becomes the new one, in one step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.conftest import ROWS, SECRET, set_credentials, write_images
from remote.fault_proxy import Proxy
from remote.servers import Handler, running
from small_stores import tsds as command, voc
from stores import files_of
from tensorstore_ds.format.manifest import shard_path
from tensorstore_ds.format.root import change_root
from tensorstore_ds.remote.location import Location
from tensorstore_ds.sharing import push as pushing
from tensorstore_ds.sharing.push import CLAIM


def add_field(path: Path, name: str = "loss") -> None:
    tsds.editing.add_fields(path, {name: {"train": np.arange(len(tsds.open(path)["train"]), dtype=np.float32)}})


def append(path: Path) -> None:
    write_images(path.with_name("images"), ROWS, 5)
    tsds.append(path, path.with_name("images"))


def erase(path: Path) -> None:
    (row,) = [row for row, image in enumerate(tsds.open(path)["train"]["image"][:]) if (image == SECRET).all()]
    tsds.erase(path, rows={"train": [row]})


def remote_bytes(url: str) -> dict[str, bytes]:
    """The files at a URL of all names that a store has or had."""
    import obstore

    place = Location(url)
    found = [each["path"] for page in obstore.list(place._store) for each in page]
    return {name: place.read_all(name, 10**8)[0] for name in found}


@pytest.mark.parametrize("change", [add_field, append, erase])
def test_the_earlier_state_becomes_the_new_one(
    grown: tuple[Path, str], change: Callable[[Path], None], tmp_path: Path
) -> None:
    path, url = grown
    before = tsds.open(path)
    change(path)
    after = tsds.open(path)
    with pytest.raises(tsds.errors.StoreExistsError, match=rf"found it as it was before, {before.sha256[:12]}"):
        tsds.push(path, url)
    assert tsds.open(url).sha256 == before.sha256
    done = tsds.push(path, url, update=True)
    assert (done.sha256, done.was_there) == (after.sha256, False)
    files = remote_bytes(url)
    assert {name: data for name, data in files.items() if name in files_of(path)} == files_of(path)
    assert CLAIM not in files
    again = tsds.push(path, url, update=True)
    assert (again.was_there, again.moved) == (True, 0)
    assert tsds.pull(url, tmp_path / "p.tsds", verify=True).sha256 == after.sha256


def test_only_new_values_are_sent(grown: tuple[Path, str], proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    path, url = grown
    add_field(path)
    set_credentials(monkeypatch, proxy.url)
    done = tsds.push(path, url, update=True)
    puts = [(name.split("?")[0], headers) for method, name, headers in proxy.requests if method == "PUT"]
    sent = [name for name, headers in puts if "x-amz-copy-source" not in headers]
    assert sent and not any("/image/" in name or "/label/" in name for name in sent)
    assert any("/loss/" in name for name in sent)
    assert sent[-1].endswith("/s.tsds/zarr.json") and dict(puts)[sent[-1]]["if-match"]
    assert done.moved < 40_000 < done.nbytes


def test_readers_go_on(grown: tuple[Path, str], cache: Path) -> None:
    path, url = grown
    reader = tsds.open(url)
    add_field(path)
    tsds.push(path, url, update=True)
    images = reader["train"]["image"][:]
    assert [image.tolist() for image in images] == [image.tolist() for image in tsds.open(path)["train"]["image"][:]]
    assert "loss" not in reader.manifest.fields
    assert tsds.open(url)["train"]["loss"][:].tolist() == list(range(ROWS))


def test_nothing_of_erased_samples_stays(grown: tuple[Path, str]) -> None:
    path, url = grown
    add_field(path)
    tsds.push(path, url, update=True)
    erase(path)
    tsds.push(path, url, update=True)
    files = remote_bytes(url)
    assert files.keys() == files_of(path).keys()
    pixels = bytes([SECRET]) * 24 * 3
    remote = tsds.open(url)
    assert len(remote["train"]) == ROWS - 1
    assert not any(pixels in np.asarray(image).tobytes() for image in remote["train"]["image"][:])


def test_what_was_interrupted_goes_on(grown: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, url = grown
    before = tsds.open(path)
    erase(path)

    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Location, "replace", stop)
        tsds.push(path, url, update=True)
    assert tsds.open(url).sha256 == before.sha256
    removed: list[str] = []
    remove = Location.remove

    def once(place: Location, name: str) -> None:
        if "/" in name and removed:
            raise Stopped
        removed.append(name)
        remove(place, name)

    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(Location, "remove", once)
        tsds.push(path, url, update=True)
    assert tsds.open(url).sha256 == tsds.open(path).sha256
    assert tsds.push(path, url, update=True).was_there
    assert remote_bytes(url).keys() == files_of(path).keys()


def test_root_files_and_signatures_that_are_gone(grown: tuple[Path, str]) -> None:
    """Also if the push that left them was interrupted after its root: its claim names what may be left."""
    path, url = grown
    place = Location(url)
    (path / "zarr.json.sig").write_bytes(b"of the first state")
    tsds.push(path, f"{url}2")
    assert Location(f"{url}2").find("zarr.json.sig") is not None
    add_field(path)
    (path / "zarr.json.sig").unlink(missing_ok=True)
    tsds.push(path, f"{url}2", update=True)
    assert remote_bytes(f"{url}2").keys() == files_of(path).keys()
    tsds.push(path, url, update=True)
    left = ["zarr.json.sig", "skipped.jsonl", "skipped-rest"]  # what names samples that were erased
    for name in [*left, "notes.txt"]:
        place.write(name, b"{}")
    unsafe = ["zarr.json", "train/zarr.json", "../other", "train/00000/zarr.json", "/etc"]
    place.create(CLAIM, "\n".join([tsds.open(path).sha256, *left, *unsafe]).encode())
    assert tsds.push(path, url, update=True).was_there
    assert remote_bytes(url).keys() == {*files_of(path), "notes.txt"}


def test_another_push_that_is_quicker(grown: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes of one earlier state: the second root is refused, and the first one stays."""
    path, url = grown
    other = shutil.copytree(path, path.with_name("other.tsds"))
    add_field(path)
    add_field(other, "score")
    commit = pushing._Push._commit

    def later(push: Any) -> None:
        monkeypatch.setattr(pushing._Push, "_commit", commit)
        Location(url).remove(CLAIM)
        tsds.push(other, url, update=True)
        commit(push)

    monkeypatch.setattr(pushing._Push, "_commit", later)
    with pytest.raises(tsds.errors.StoreExistsError, match="found the store"):
        tsds.push(path, url, update=True)
    assert tsds.open(url).sha256 == tsds.open(other).sha256
    assert not tsds.verify(url)


def test_the_root_is_replaced_by_version(grown: tuple[Path, str]) -> None:
    place = Location(grown[1])
    data, etag = place.read_all("zarr.json", 10**7)
    place.replace("zarr.json", data + b"\n", etag)
    with pytest.raises(tsds.errors.StoreExistsError, match=r"zarr\.json was changed meanwhile"):
        place.replace("zarr.json", data, etag)
    assert place.read_all("zarr.json", 10**7)[0] == data + b"\n"


def test_google_replaces_a_root_by_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, tuple[bytes, int]] = {}

    class Google(Handler):
        def do_PUT(self) -> None:  # noqa: N802
            data, generation = self.rfile.read(int(self.headers["Content-Length"])), kept.get(self.path, (b"", 0))[1]
            is_asked = self.headers.get("x-goog-if-generation-match") == str(generation)
            if is_asked:
                kept[self.path] = data, generation + 1
            self.answer(200 if is_asked else 412, generation=generation + 1)

        def do_GET(self) -> None:  # noqa: N802
            self.answer(200, *kept[self.path])

        do_HEAD = do_GET  # noqa: N815

        def answer(self, status: int, data: bytes = b"", generation: int = 0) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("ETag", f'"{generation}"')
            self.send_header("x-goog-generation", str(generation))
            self.end_headers()
            self.wfile.write(data if self.command != "HEAD" else b"")

    with running(Google) as url:
        account = {
            "gcs_base_url": url,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        place = Location("gs://bucket")
        place.create("zarr.json", b"first")
        _, etag = place.read_all("zarr.json", 99)
        place.replace("zarr.json", b"second", etag)
        assert place.read_all("zarr.json", 99)[0] == b"second"
        with pytest.raises(tsds.errors.StoreExistsError, match="was changed meanwhile"):
            place.replace("zarr.json", b"third", etag)


def test_what_is_refused(grown: tuple[Path, str], other: tsds.Store, tmp_path: Path) -> None:
    path, url = grown
    early = shutil.copytree(path, tmp_path / "early.tsds")
    with pytest.raises(tsds.errors.StoreExistsError, match="expected nothing, or the same store, found the store"):
        tsds.push(other.path, url, update=True)
    add_field(path)
    tsds.push(path, url, update=True)
    with pytest.raises(tsds.errors.StoreExistsError, match=r"found a later state of it, \w+\.\.\.\. Pull that one\."):
        tsds.push(early, url, update=True)
    tsds.editing.filter_store(path, tmp_path / "filtered.tsds", where="label == 'a'")
    with pytest.raises(tsds.errors.StoreExistsError, match="found the store"):
        tsds.push(tmp_path / "filtered.tsds", url, update=True)
    tsds.pack(path, tmp_path / "s.tsds.zip")
    with pytest.raises(tsds.OptionError, match="`update`: expected a store that is a folder; unpack it first"):
        tsds.push(tmp_path / "s.tsds.zip", url, update=True)
    with pytest.raises(tsds.OptionError, match="`update`: expected a store at a path; pull it first"):
        tsds.push(url, f"{url}2", update=True)
    with pytest.raises(tsds.OptionError, match=r"`update`: expected a URL of a server, .* with tsds pull and `update"):
        tsds.push(path, f"file://{tmp_path}/copy.tsds", update=True)


def test_by_command(grown: tuple[Path, str]) -> None:
    path, url = grown
    add_field(path)
    refused = command("push", path, url)
    assert refused.exit_code == 1 and "Replace it with tsds push and --update" in refused.stderr
    done = command("push", path, url, "--update")
    assert done.exit_code == 0 and tsds.open(url).sha256 == tsds.open(path).sha256


def erase_first(path: Path) -> None:
    tsds.erase(path, rows={"train": [0]})


@pytest.mark.parametrize(
    "changes",
    [
        [erase_first, erase_first],
        [erase_first, add_field],
        [add_field, append, erase, erase_first],
        [lambda path: tsds.annotate(path, description="cats"), erase],
        [lambda path: tsds.annotate(path, license="CC0-1.0"), append],
    ],
)
def test_several_changes_without_a_push_between(
    grown: tuple[Path, str], changes: list[Callable[[Path], None]], tmp_path: Path
) -> None:
    path, url = grown
    for change in changes:
        change(path)
    assert tsds.push(path, url, update=True).sha256 == tsds.open(path).sha256
    replaced = tuple(f"{shard_path('train', n)}/" for n in tsds.open(path).manifest.splits["train"].replaced)
    found, local = remote_bytes(url).keys(), files_of(path).keys()
    assert found <= local and all(name.startswith(replaced) for name in local - found)
    assert tsds.pull(url, tmp_path / "p.tsds", verify=True).sha256 == tsds.open(path).sha256


def test_skipped_lines_that_move_between_two_pushes(bucket: str, tmp_path: Path) -> None:
    """What waits in a file of its own becomes `skipped.jsonl` before the next change: one more state of the store."""
    root = voc(tmp_path / "voc", *"abcdef", boxes=(("cat", 1, 2, 8, 9), ("cat", 3, 3, 3, 5)))
    path, url = tmp_path / "s.tsds", f"{bucket}/s.tsds"
    tsds.convert(root, path, workers=0, on_error="skip", size=(8, 8))
    tsds.push(path, url)
    for name in "ca":
        tsds.erase(path, keys=[f"JPEGImages/{name}.png"])
        assert path.joinpath("skipped.jsonl").read_text("utf-8").count("box-empty") < 6
        tsds.push(path, url, update=True)
        assert tsds.pull(url, tmp_path / f"{name}.tsds", verify=True).sha256 == tsds.open(path).sha256
        assert remote_bytes(url).keys() == files_of(path).keys()


def test_an_equal_name_and_time_make_no_earlier_state(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    url, paths = f"{bucket}/s.tsds", [tmp_path / name / "s.tsds" for name in "xy"]
    for i, path in enumerate(paths):
        write_images(path.with_name("images"), 20 * i, 4)
        monkeypatch.chdir(path.parent)
        tsds.convert("images", path, workers=0)
    tsds.push(paths[0], url)
    erase_first(paths[1])
    with pytest.raises(tsds.errors.StoreExistsError, match="found the store"):
        tsds.push(paths[1], url, update=True)
    assert tsds.open(url).sha256 == tsds.open(paths[0]).sha256


def test_a_push_of_the_same_state_leaves_files_of_another_push_alone(
    grown: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = grown
    other = shutil.copytree(path, tmp_path / "other.tsds")
    (path.with_name("images") / "a/bad.png").write_bytes(b"bad")
    write_images(path.with_name("images"), ROWS, 3)
    tsds.append(path, path.with_name("images"), on_error="skip")
    commit = pushing._Push._commit

    def beside(push: Any) -> None:
        monkeypatch.setattr(pushing._Push, "_commit", commit)
        assert tsds.push(other, url, update=True).was_there  # all files of the new state are there, its root is not
        commit(push)

    monkeypatch.setattr(pushing._Push, "_commit", beside)
    tsds.push(path, url, update=True)
    assert tsds.verify(url) == []
    assert remote_bytes(url).keys() == files_of(path).keys()


def test_nothing_stays_of_a_first_push_that_was_interrupted(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards that were sent have no list yet, and are erased before the next push."""
    write_images(tmp_path / "images", 0, 12)
    path, url = tmp_path / "s.tsds", f"{bucket}/s.tsds"
    tsds.convert(tmp_path / "images", path, encoding="raw", workers=0)
    write = Location.write

    def stopped(place: Location, name: str, *others: Any, **options: Any) -> None:
        if name == "train/00000/zarr.json":
            raise KeyboardInterrupt
        write(place, name, *others, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Location, "write", stopped)
        tsds.push(path, url)
    assert any("/00000/image/" in name for name in remote_bytes(url))
    erase(path)
    Location(url).remove(CLAIM)
    tsds.push(path, url, update=True)
    assert remote_bytes(url).keys() == files_of(path).keys()


def test_a_claim_that_is_left_by_a_push_that_had_ended(grown: tuple[Path, str]) -> None:
    path, url = grown
    Location(url).create(CLAIM, f"{tsds.open(url).sha256}\n".encode())
    add_field(path)
    tsds.push(path, url, update=True)
    assert remote_bytes(url).keys() == files_of(path).keys()


def test_a_claim_that_somebody_removes(grown: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    path, url = grown
    add_field(path)
    commit = pushing._Push._commit

    def removed(push: Any) -> None:
        Location(url).remove(CLAIM)
        commit(push)

    with (
        monkeypatch.context() as patch,
        pytest.raises(tsds.errors.StoreExistsError, match="Run the same command again"),
    ):
        patch.setattr(pushing._Push, "_commit", removed)
        tsds.push(path, url, update=True)
    assert tsds.push(path, url, update=True).sha256 == tsds.open(url).sha256


@pytest.mark.parametrize("update", [False, True])
def test_a_signature_that_is_made_after_the_push(grown: tuple[Path, str], *, update: bool) -> None:
    path, url = grown
    (path / "zarr.json.sig").write_bytes(b"a signature")
    assert tsds.push(path, url, update=update).was_there
    assert Location(url).read_all("zarr.json.sig", 1000)[0] == b"a signature"
    (path / "zarr.json.sig").unlink()
    assert tsds.push(path, url, update=update).was_there  # the signature of this state stays
    assert Location(url).find("zarr.json.sig") is not None
    assert Location(url).find(CLAIM) is None


def test_a_number_without_end_takes_no_time(grown: tuple[Path, str]) -> None:
    path, url = grown
    add_field(path)
    root = (path / "zarr.json").read_bytes()

    def change(data: dict[str, Any]) -> None:
        data["splits"]["train"]["replaced"].append(2**52)

    (path / "zarr.json").write_bytes(change_root(root, change))
    tsds.push(path, url, update=True)
    assert tsds.open(url).sha256 == tsds.open(path).sha256
