"""A small server that speaks the routes of the Hugging Face Hub that are used here, as its documentation has them."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from remote.servers import Handler, running

TOKEN = "hf_secretsecret"  # noqa: S105
NAME = "me/photos"
#: Files of more bytes are uploaded on their own, as LFS has it.
_LARGE = 3000


@dataclass
class Hub:
    """The data set `NAME`: its commits, by hash, each with all its files.

    Attributes:
        url: of the server.
        commits: the last is the main branch.
        requests: method, path and token of every request.
        elsewhere: where large files are read: `resolve` redirects there, as the Hub does.
    """

    url: str
    commits: dict[str, dict[str, bytes]]
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    large: dict[str, bytes] = field(default_factory=dict)
    elsewhere: str = ""

    @property
    def head(self) -> str:
        return list(self.commits)[-1]

    def commit(self, files: dict[str, bytes], deleted: Collection[str] = ()) -> str:
        oid = hashlib.sha1(repr((self.head, len(self.commits))).encode(), usedforsecurity=False).hexdigest()
        assert set(deleted) <= self.commits[self.head].keys()  # the Hub refuses others
        self.commits[oid] = {n: d for n, d in {**self.commits[self.head], **files}.items() if n not in deleted}
        return oid


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Run the server, and one on another port that large files are read from."""

    class Routes(Handler):
        def do_GET(self) -> None:  # noqa: N802
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((self.command, path, self.headers.get("authorization")))
            if path.startswith(f"/api/datasets/{NAME}/revision/") or path == f"/api/datasets/{NAME}":
                revision = path.partition("/revision/")[2] or "main"
                oid = hub.head if revision == "main" else revision
                known = oid in hub.commits
                self.answer({"id": NAME, "sha": oid} if known else {"error": "Invalid rev"}, 200 if known else 404)
            elif path.startswith(f"/datasets/{NAME}/resolve/"):
                oid, _, name = path.removeprefix(f"/datasets/{NAME}/resolve/").partition("/")
                data = hub.commits.get(oid, {}).get(name)
                if data is not None and len(data) > _LARGE and hub.elsewhere:
                    self.answer(b"", 302, location=f"{hub.elsewhere}/large/{hashlib.sha256(data).hexdigest()}?sig=x")
                else:
                    self.file(data)
            elif path.startswith("/large/"):
                found = {hashlib.sha256(d).hexdigest(): d for files in hub.commits.values() for d in files.values()}
                self.file(found.get(path.removeprefix("/large/")))
            else:
                self.answer({"error": "Repository not found"}, 404, x_error_code="RepoNotFound")

        do_HEAD = do_GET  # noqa: N815

        def do_POST(self) -> None:  # noqa: N802
            path, token = unquote(urlsplit(self.path).path), self.headers.get("authorization")
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            hub.requests.append((self.command, path, token))
            if token != f"Bearer {TOKEN}":
                self.answer({"error": "Invalid username or password."}, 401)
            elif "/preupload/" in path:
                modes = [
                    {"path": f["path"], "uploadMode": "lfs" if f["size"] > _LARGE else "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                self.answer({"files": modes})
            elif path.endswith("/info/lfs/objects/batch"):
                wanted = json.loads(body)["objects"]
                objects = [
                    {**o}
                    if o["oid"] in hub.large
                    else {**o, "actions": {"upload": {"href": f"{hub.url}/put/{o['oid']}"}}}
                    for o in wanted
                ]
                self.answer({"transfer": "basic", "objects": objects})
            elif "/commit/" in path:
                self.commit(body)
            else:
                self.answer({"error": "Repository not found"}, 404, x_error_code="RepoNotFound")

        def do_PUT(self) -> None:  # noqa: N802
            data = self.rfile.read(int(self.headers["content-length"]))
            hub.requests.append((self.command, self.path, self.headers.get("authorization")))
            hub.large[hashlib.sha256(data).hexdigest()] = data
            self.answer({})

        def commit(self, body: bytes) -> None:
            files: dict[str, bytes] = {}
            deleted: set[str] = set()
            for line in map(json.loads, body.splitlines()):
                value: dict[str, Any] = line["value"]
                if line["key"] == "header" and value.get("parentCommit", hub.head) != hub.head:
                    self.answer({"error": "A commit has happened since. Please refresh and try again."}, 412)
                    return
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                if line["key"] == "lfsFile":
                    files[value["path"]] = hub.large[value["oid"]]
                if line["key"] == "deletedFile":
                    deleted.add(value["path"])
            oid = hub.commit(files, deleted)
            url = f"{hub.url}/datasets/{NAME}/commit/{oid}"
            self.answer({"commitUrl": url, "commitOid": oid, "success": True, "hookOutput": ""})

        def file(self, data: bytes | None) -> None:
            if data is None:
                self.answer({"error": "Entry not found"}, 404, x_error_code="EntryNotFound")
                return
            wanted = self.headers.get("range")
            if wanted is None:
                self.answer(data)
                return
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            self.answer(data[first : last + 1], 206, content_range=f"bytes {first}-{last}/{len(data)}")

        def answer(self, value: Any, status: int = 200, **headers: str) -> None:
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            for name, text in headers.items():
                self.send_header(name.replace("_", "-"), text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

    with running(Routes) as url:
        hub = Hub(url, {"0" * 40: {"README.md": b"# Photos"}}, elsewhere=url.replace("127.0.0.1", "localhost"))
        yield hub
