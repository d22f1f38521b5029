"""What is secret goes to its own host, and into no message; and no link leads from https to http."""

from __future__ import annotations

import ssl
import subprocess
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import tensorstore_ds as tsds
from remote.fault_proxy import Fault, Proxy, proxy_for
from remote.servers import Handler, running
from remote.servers_mirror import FaultyServer
from small_stores import tsds as command
from stores import files_of
from tensorstore_ds import words
from tensorstore_ds.remote.location import Location


def authorization(proxy: Proxy) -> list[str | None]:
    return [headers.get("authorization") for _, _, headers in proxy.requests]


def test_a_user_and_a_signature_are_sent_and_never_shown(server: FaultyServer, tmp_path: Path, impatient: None) -> None:
    with proxy_for(server.url) as proxy:
        url = proxy.url.replace("http://", "http://me:pass-word@") + "/s.tsds?sig=sig-nature"
        done = command("pull", url, tmp_path / "p.tsds")
        assert done.exit_code == 0
        assert set(authorization(proxy)) == {"Basic bWU6cGFzcy13b3Jk"}
        assert all(path.endswith("?sig=sig-nature") for _, path, _ in proxy.requests)
        written = b"".join(files_of(tmp_path / "p.tsds").values())
        assert written and b"pass-word" not in written and b"sig-nature" not in written
        for fault in (Fault("status", "", status=403), Fault("status", ""), Fault("cut", "", nbytes=0)):
            proxy.faults[:] = [fault]
            done = command("pull", url, tmp_path / "q.tsds")
            assert done.exit_code == 1
            for secret in ("pass-word", "sig-nature", "me:"):
                assert secret not in done.output + done.stderr
            with pytest.raises(tsds.RemoteError) as caught:
                tsds.pull(url, tmp_path / "q.tsds")
            assert "sig-nature" not in "".join(traceback.format_exception(caught.value))
    assert repr(Location(url)).find("pass-word") < 0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:SECRET@127.0.0.1:1/x?sig=SECRET#SECRET", "https://127.0.0.1:1/x"),
        ("http://user:pa/SECRET@127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("http://user:pa?SECRET@127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("http://user:pa#SECRET@127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("http://user:p@SECRET@127.0.0.1:1/x", "http://127.0.0.1:1/x"),
        ("http://me:SECRET@ex.invalid\u2100/", "http://ex.invalid\u2100"),
        ("http://me:SECRET@[::1/x", "http://[::1/x"),
        ("http://127.0.0.1:1/x?token=SECRET@SECRET", "http://127.0.0.1:1/x"),
        ("s3://me:SECRET@/x", "s3:///x"),
        ("https:/me:SECRET@127.0.0.1:1/x", "https:/127.0.0.1:1/x"),
        ("me:SECRET@127.0.0.1:1/x.tsds", "127.0.0.1:1/x.tsds"),
    ],
)
def test_what_looks_like_a_password_is_in_no_message(
    url: str, shown: str, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorstore_ds.remote.location.FIRST", {"max_retries": 0, "retry_timeout": timedelta()})
    monkeypatch.setenv("TSDS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for arguments in (["info", url], ["pull", url, tmp_path / "out.tsds"], ["copy", url, tmp_path / "out.tsds"]):
        done = command(*arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (1, 1), done.output
        assert "SECRET" not in done.output + done.stderr
        assert "Traceback" not in done.stderr
    assert shown in command("info", url).stderr
    with pytest.raises(tsds.TsdsError) as caught:
        tsds.open(url)
    assert "SECRET" not in "".join(str(error) for error in (caught.value, caught.value.__cause__))


@pytest.mark.parametrize(
    "place", ["hf://datasets/me/x@v1.0/p", "/data/a:b/c@d", "http://host/p@2x", "file:///a:b/c@d", "C:/x", "a@b.tsds"]
)
def test_what_is_no_password_is_shown(place: str) -> None:
    assert words.shown_path(place) == place


def test_a_redirect_takes_no_credentials_to_another_host(server: FaultyServer, tmp_path: Path) -> None:
    with proxy_for(server.url) as first, proxy_for(server.url) as second:
        elsewhere = second.url.replace("127.0.0.1", "localhost")
        path = "/s.tsds/train/00000/image/c/0/0/0/0"
        first.faults.append(Fault("redirect", "00000/image/c/", target=f"{elsewhere}{path}"))
        tsds.pull(first.url.replace("http://", "http://me:pass-word@") + "/s.tsds", tmp_path / "p.tsds")
        assert [path for _, path, _ in second.requests] == [path]
        assert authorization(second) == [None]
        assert None not in authorization(first)
        assert "pass-word" not in str(second.requests)


def test_a_redirect_to_http_is_refused(server: FaultyServer, tmp_path: Path, monkeypatch: Any) -> None:
    """A server with a certificate of its own, which only this test trusts."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    words += ["-keyout", str(key), "-out", str(certificate), "-addext", "subjectAltName=DNS:localhost"]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")

    class Redirecting(Handler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(302)
            self.send_header("Location", f"{server.url}{self.path}")
            self.end_headers()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    trust(monkeypatch)
    with running(Redirecting, context) as url, pytest.raises(tsds.RemoteError) as caught:
        tsds.pull(f"{url.replace('http://127.0.0.1', 'https://localhost')}/s.tsds", tmp_path / "p.tsds")
    assert "from https to http, which is refused. Use the URL to which it redirects" in str(caught.value)


def trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any certificate."""
    from obstore import store

    made = store.HTTPStore.from_url

    def from_url(url: str, *, client_options: dict[str, Any], **others: Any) -> Any:
        return made(url, client_options={**client_options, "allow_invalid_certificates": True}, **others)

    monkeypatch.setattr(store.HTTPStore, "from_url", from_url)
