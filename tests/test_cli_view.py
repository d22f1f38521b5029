"""``tsds view``: what it prints, what it refuses, and the folder that it exports. tests/browser looks at the page."""

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import tensorstore_ds as tsds
from small_stores import tsds as command
from stores import class_folders
from tensorstore_ds.annex.viewing.pages import ViewerPages, are_tags, page_files


@pytest.fixture
def store(tmp_path: Path) -> Path:
    tsds.convert(class_folders(tmp_path / "photos"), tmp_path / "photos.tsds", workers=0)
    return tmp_path / "photos.tsds"


def test_serves_the_page_and_the_store_until_it_is_interrupted(store: Path) -> None:
    words = [sys.executable, "-m", "tsds_cli", "view", str(store), "--no-open", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = json.loads("".join(process.stdout.readline() for _ in range(4)))["url"]
            for name, data in page_files().items():
                with urllib.request.urlopen(url + name) as answer:  # noqa: S310
                    assert answer.read() == data
                    assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            with urllib.request.urlopen(f"{url}store/zarr.json") as answer:  # noqa: S310
                assert answer.read() == (store / "zarr.json").read_bytes()
                assert "Access-Control-Allow-Origin" not in answer.headers
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.parametrize("is_packed", [False, True])
def test_exports_a_folder(store: Path, tmp_path: Path, is_packed: bool) -> None:
    target = tsds.pack(store, tmp_path / "s.tsds.zip").path if is_packed else store
    done = command("view", target, "--export", tmp_path / "site")
    assert done.exit_code == 0, done.stderr
    assert tsds.open(tmp_path / "site" / "store").sha256 == tsds.open(store).sha256
    settings = json.loads((tmp_path / "site" / "view.json").read_text())
    assert settings["store"] == "store/" and str(tmp_path) not in json.dumps(settings)
    again = command("view", store, "--export", tmp_path / "site")
    assert again.exit_code == 1 and "expected no such folder or an empty one" in again.stderr
    inside = command("view", store, "--export", store / "site")
    assert inside.exit_code == 1 and not (store / "site").exists()


def test_tags_lie_beside_the_store_a_link_leads_to(store: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.tsds").symlink_to(store)
    content = json.dumps({"sha256": "", "tags": {"wrong": {"train": [1]}}}).encode()
    with tsds.view(tmp_path / "links" / "a.tsds") as url:
        request = urllib.request.Request(f"{url}tags.json", content, {"Content-Type": "application/json"}, method="PUT")  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            assert answer.status == 200
    assert (tmp_path / "photos.tsds.tags.json").read_bytes() == content


@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_that_is_not_shown_as_tags_is_not_replaced(tmp_path: Path, is_link: bool) -> None:
    tags, kept = tmp_path / "s.tsds.tags.json", tmp_path / ("other.json" if is_link else "s.tsds.tags.json")
    text = '{"sha256": "x", "tags": {"wrong": {"train": [1]}}}'
    kept.write_text(text if is_link else text.replace("}}}", ',}}}  # "by hand"'))
    if is_link:
        tags.symlink_to(kept)
    before = kept.read_bytes()
    pages = ViewerPages({}, {}, tags)
    page = pages.find("tags.json")
    assert page is not None and page.data == b"{}"
    assert not pages.put("tags.json", text.encode())
    assert kept.read_bytes() == before and tags.is_symlink() == is_link
    tags.unlink()
    assert pages.put("tags.json", text.encode()) and pages.put("tags.json", text.replace("1", "2").encode())


def test_tags_that_are_none() -> None:
    of_train = '{"sha256": "x", "tags": {"a": {"train": %s}}}'
    assert are_tags(b'{"sha256": "x", "tags": {"a": {"train": [1, 2]}, "b": {}}}')
    for content in (
        *(of_train % rows for rows in ("[[1]]", "{}", "[true]", "[NaN]", "[-1]")),
        '{"sha256": "x", "tags": {"a": {"train": [1]}, "a": {}}}',
        '{"sha256": "x", "tags": {"\\udc00": {"train": [1]}}}',
        *('{"sha256": "x", "tags": []}', '{"sha256": 3, "tags": {}}', "[" * 100_000),
    ):
        assert not are_tags(content.encode())
    assert not are_tags('{"sha256": "x", "tags": {}}'.encode("utf-16"))


@pytest.mark.parametrize(
    ("length", "status"),
    [
        *(("Content-Length: " + "9" * 5000, 400), ("Content-Length: \u00b3", 400)),
        *(("Transfer-Encoding: chunked", 411), ("Content-Length: 99999999999999", 413)),
    ],
)
def test_the_length_of_tags_is_a_number(length: str, status: int, store: Path) -> None:
    with (
        tsds.view(store) as url,
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), timeout=30) as s,
    ):
        path = urlsplit(url).path + "tags.json"
        head = [f"PUT {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", length]
        s.sendall(("\r\n".join(head) + "\r\n\r\n").encode("latin-1"))
        assert s.makefile("rb").readline().split()[1] == str(status).encode()


def test_the_page_is_part_of_the_package() -> None:
    assert {"index.html", "viewer/main.js", "viewer/store.js", "viewer/style.css"} <= page_files().keys()
    assert b"Content-Security-Policy" in page_files()["index.html"]
    # The page's policy has no inline code, and nothing of it comes from elsewhere.
    assert not any(b"http://" in data.replace(b"http://www.w3.org/2000/svg", b"") for data in page_files().values())
