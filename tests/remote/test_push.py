"""Stores that are pushed to S3: what is there at each moment, and what happens to others."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.conftest import set_credentials
from remote.fault_proxy import Fault, Proxy
from small_stores import tsds as command
from stores import files_of, store_of
from tensorstore_ds.remote import location
from tensorstore_ds.remote.location import Location
from tensorstore_ds.sharing import push as pushing
from tensorstore_ds.sharing.push import CLAIM


def test_all_files_are_there_and_come_back(store: tsds.Store, bucket: str, tmp_path: Path) -> None:
    done = tsds.push(store.path, f"{bucket}/a/s.tsds")
    assert (done.sha256, done.was_there, done.moved) == (store.sha256, False, done.nbytes)
    place, files = Location(f"{bucket}/a/s.tsds"), files_of(store.path)
    assert {name: place.read_all(name, 10**8)[0] for name in files} == files
    assert place.find(CLAIM) is None
    pulled = tsds.pull(f"{bucket}/a/s.tsds", tmp_path / "p.tsds", verify=True)
    assert (pulled.sha256, pulled.was_there) == (store.sha256, False)
    assert files_of(tmp_path / "p.tsds") == files


def test_the_root_comes_last_and_only_if_there_is_none(
    store: tsds.Store, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_credentials(monkeypatch, proxy.url)
    tsds.push(store.path, f"{bucket}/s.tsds")
    written = [(path.split("?")[0], headers) for method, path, headers in proxy.requests if method == "PUT"]
    files = [path for path, _ in written if not path.endswith(CLAIM)]
    assert files[-1].endswith("/s.tsds/zarr.json")
    assert dict(written)[files[-1]]["if-none-match"] == "*"
    shards = [i for i, path in enumerate(files) if path.endswith(("/00000/zarr.json", "/00001/zarr.json"))]
    assert min(shards) > max(i for i, path in enumerate(files) if "/c/" in path)


def test_a_second_push_transfers_nothing(store: tsds.Store, bucket: str, proxy: Proxy, monkeypatch: Any) -> None:
    set_credentials(monkeypatch, proxy.url)
    tsds.push(store.path, f"{bucket}/s.tsds")
    proxy.requests.clear()
    done = tsds.push(store.path, f"{bucket}/s.tsds")
    assert (done.was_there, done.moved) == (True, 0)
    assert [method for method, _, _ in proxy.requests] == ["GET"]


def test_an_interrupted_push_goes_on(store: tsds.Store, bucket: str, proxy: Proxy, monkeypatch: Any) -> None:
    set_credentials(monkeypatch, proxy.url)
    proxy.faults.append(Fault("status", "/s.tsds/train/zarr.json", status=403))
    with pytest.raises(tsds.RemoteError, match="access is refused"):
        tsds.push(store.path, f"{bucket}/s.tsds")
    assert Location(f"{bucket}/s.tsds").find("zarr.json") is None
    proxy.faults.clear()
    done = tsds.push(store.path, f"{bucket}/s.tsds")
    assert done.moved < store.nbytes / 100
    assert tsds.push(store.path, f"{bucket}/s.tsds").was_there


def test_what_an_interrupted_push_left_must_have_the_recorded_sha256(store: tsds.Store, bucket: str) -> None:
    name = "train/00000/image/c/0/0/0/0"
    wrong = b"x" * (store.path / name).stat().st_size
    Location(f"{bucket}/s.tsds").write(name, wrong)
    tsds.push(store.path, f"{bucket}/s.tsds")
    assert Location(f"{bucket}/s.tsds").read_all(name, len(wrong))[0] == (store.path / name).read_bytes()


def test_another_store_is_refused(store: tsds.Store, other: tsds.Store, bucket: str) -> None:
    tsds.push(store.path, f"{bucket}/s.tsds")
    with pytest.raises(tsds.errors.StoreExistsError, match=f"found the store {store.sha256[:12]}"):
        tsds.push(other.path, f"{bucket}/s.tsds")
    Location(f"{bucket}/junk").write("zarr.json", b"{}")
    with pytest.raises(tsds.errors.StoreExistsError, match=r"found another zarr\.json"):
        tsds.push(other.path, f"{bucket}/junk")


def test_another_store_while_one_is_pushed(store: tsds.Store, other: tsds.Store, bucket: str) -> None:
    Location(f"{bucket}/s.tsds").create(CLAIM, f"{other.sha256}\n".encode())
    with pytest.raises(tsds.errors.StoreExistsError, match=rf"{CLAIM}: another store \({other.sha256[:12]}"):
        tsds.push(store.path, f"{bucket}/s.tsds")
    assert tsds.push(other.path, f"{bucket}/s.tsds").sha256 == other.sha256  # its own claim lets it go on
    assert Location(f"{bucket}/s.tsds").find(CLAIM) is None


def test_a_store_that_appears_just_before_the_claim(
    store: tsds.Store, other: tsds.Store, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other push ended between our look at the root and our claim."""
    looked = pushing._Push._is_there

    def is_there(push: Any) -> bool:
        found = looked(push)
        monkeypatch.setattr(pushing._Push, "_is_there", looked)
        tsds.push(other.path, f"{bucket}/s.tsds")
        return found

    monkeypatch.setattr(pushing._Push, "_is_there", is_there)
    with pytest.raises(tsds.errors.StoreExistsError, match="found the store"):
        tsds.push(store.path, f"{bucket}/s.tsds")
    assert Location(f"{bucket}/s.tsds").find(CLAIM) is None


@pytest.mark.parametrize("same", [True, False])
def test_two_pushes_at_once(store: tsds.Store, other: tsds.Store, bucket: str, tmp_path: Path, same: bool) -> None:
    ended: list[Any] = []

    def push(path: Path) -> None:
        try:
            ended.append(tsds.push(path, f"{bucket}/s.tsds").sha256)
        except tsds.errors.StoreExistsError as error:
            ended.append(error)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(push, (store.path, store.path if same else other.path)))
    won = [each for each in ended if isinstance(each, str)]
    assert len(won) == (2 if same else 1)
    assert tsds.pull(f"{bucket}/s.tsds", tmp_path / "p.tsds", verify=True).sha256 == won[0]


def test_large_files_go_in_parts(
    store: tsds.Store, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (location, pushing):
        monkeypatch.setattr(module, "PART_NBYTES", 5 * 1024**2)
    store_of(tmp_path / "large.tsds", [np.full((1000, 1000, 1), i, np.uint8) for i in range(9)])
    set_credentials(monkeypatch, proxy.url)
    tsds.push(tmp_path / "large.tsds", f"{bucket}/large.tsds")
    assert any("partNumber=2" in path for method, path, _ in proxy.requests if method == "PUT")
    assert tsds.pull(f"{bucket}/large.tsds", tmp_path / "p.tsds").sha256 == tsds.open(tmp_path / "large.tsds").sha256
    assert tsds.push(tmp_path / "large.tsds", f"{bucket}/large.tsds").was_there


@pytest.mark.parametrize("part_nbytes", [None, 100_000])
def test_a_damaged_store_is_not_published(
    store: tsds.Store, bucket: str, tmp_path: Path, monkeypatch: Any, part_nbytes: int | None
) -> None:
    """Whether its files are sent whole or in parts."""
    if part_nbytes is not None:
        monkeypatch.setattr(location, "PART_NBYTES", part_nbytes)
        monkeypatch.setattr(pushing, "PART_NBYTES", part_nbytes)
    shutil.copytree(store.path, tmp_path / "d.tsds")
    name = "train/00000/image/c/0/0/0/0"
    file = tmp_path / "d.tsds" / name
    data = bytearray(file.read_bytes())
    data[7] ^= 1
    file.write_bytes(data)
    with pytest.raises(tsds.FormatError, match=r"train/00000/image.*nothing was published"):
        tsds.push(tmp_path / "d.tsds", f"{bucket}/s.tsds")
    with pytest.raises(tsds.errors.RemoteError, match=r"twice\. This store is damaged: make it again"):
        tsds.push(tmp_path / "d.tsds", (tmp_path / "copy.tsds").as_uri())
    place = Location(f"{bucket}/s.tsds")
    assert place.find("zarr.json") is None
    assert part_nbytes is None or place.find(name) is None
    file.write_bytes(data[:-1])
    with pytest.raises(tsds.FormatError, match=r"expected .* bytes, found"):
        tsds.push(tmp_path / "d.tsds", f"{bucket}/s.tsds")


def test_from_url_to_url(store: tsds.Store, bucket: str) -> None:
    tsds.push(store.path, f"{bucket}/s.tsds")
    assert tsds.copy(f"{bucket}/s.tsds", f"{bucket}/t.tsds").sha256 == store.sha256
    assert tsds.push(store.path, f"{bucket}/t.tsds").was_there


def test_no_bucket_no_rights_and_expired(
    store: tsds.Store, bucket: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    with pytest.raises(tsds.RemoteError, match="there is no such bucket"):
        tsds.push(store.path, "s3://no-such-bucket-here/s.tsds")
    set_credentials(monkeypatch, proxy.url)
    body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
    proxy.faults.append(Fault("status", "", times=1, status=400, body=body))
    with pytest.raises(tsds.RemoteError, match="the credentials have expired"):
        tsds.push(store.path, f"{bucket}/s.tsds")
    proxy.faults.append(Fault("status", "", status=403))
    with pytest.raises(tsds.RemoteError, match=r"access is refused. Check the credentials") as caught:
        tsds.push(store.path, f"{bucket}/s.tsds")
    assert "very-secret" not in str(caught.value) and "key-id" not in str(caught.value)


def test_urls_that_take_no_store(store: tsds.Store, tmp_path: Path) -> None:
    with pytest.raises(tsds.OptionError, match="a web server takes no store"):
        tsds.push(store.path, "https://user:secret@example.org/s.tsds?sig=secret")
    with pytest.raises(tsds.OptionError, match="expected a URL"):
        tsds.push(store.path, str(tmp_path / "x"))
    assert tsds.push(store.path, f"file://{tmp_path}/x.tsds").sha256 == store.sha256
    assert tsds.push(store.path, f"file://{tmp_path}/x.tsds").was_there


@pytest.mark.parametrize(("name", "written"), [("a#1.tsds", "a%231.tsds"), ("a?1.tsds", "a%3F1.tsds")])
def test_a_url_is_not_cut_where_its_path_seems_to_end(
    store: tsds.Store, bucket: str, tmp_path: Path, name: str, written: str
) -> None:
    for folder in (bucket, f"file://{tmp_path}"):
        for call in (lambda url: tsds.push(store.path, url), tsds.open, lambda url: tsds.pull(url, tmp_path / "o")):
            with pytest.raises(tsds.OptionError, match=rf"found \{name[1]}, which would end its path.* %23 for #"):
                call(f"{folder}/{name}")
        assert tsds.push(store.path, f"{folder}/{written}").sha256 == store.sha256
        assert tsds.pull(f"{folder}/{written}", tmp_path / folder[:2]).sha256 == store.sha256
    assert tsds.open(tmp_path / name).sha256 == store.sha256 and not (tmp_path / "a").exists()


def test_the_command(store: tsds.Store, bucket: str) -> None:
    done = command("push", store.path, f"{bucket}/s.tsds")
    assert done.exit_code == 0
    assert done.stdout.startswith(f"{bucket}/s.tsds  ") and f"sha256: {store.sha256}" in done.stdout
    assert "the same store is here already" in command("push", store.path, f"{bucket}/s.tsds").stdout
