"""A URL with a signature is read from the host that it names, and no other host learns the signature."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorstore_ds as tsds
from remote.fault_proxy import Fault, Proxy, proxy_for
from remote.servers_mirror import FaultyServer
from stores import contents

pytestmark = pytest.mark.usefixtures("cache", "in_chunks")

SIGNATURE = "X-Amz-Signature=very-secret"


@pytest.fixture
def two(server: FaultyServer) -> Iterator[tuple[Proxy, Proxy]]:
    """Two servers of the same stores, by different names."""
    with proxy_for(server.url) as first, proxy_for(server.url) as second:
        yield first, second


def elsewhere(first: Proxy, second: Proxy, store: tsds.Store) -> None:
    """Let the first server redirect every file to the second, by another name."""
    host = second.url.replace("127.0.0.1", "localhost")
    for path in contents(store.path):
        first.faults.append(Fault("redirect", f"/s.tsds/{path}?", target=f"{host}/s.tsds/{path}"))


@pytest.mark.parametrize("user", ["", "me:pass-word@"])
@pytest.mark.parametrize("how", ["open", "pull", "copy"])
def test_a_redirect_tells_no_other_host(
    two: tuple[Proxy, Proxy], store: tsds.Store, tmp_path: Path, how: str, user: str
) -> None:
    first, second = two
    url = first.url.replace("http://", f"http://{user}") + f"/s.tsds?{SIGNATURE}"
    elsewhere(first, second, store)
    out = tmp_path / "out.tsds"
    if how == "open":
        found = tsds.open(url)["train"].column("image").take(range(9))
        assert np.array_equal(found, store["train"].column("image").take(range(9)))
    else:
        getattr(tsds, how)(url, out)
        assert contents(out) == contents(store.path)
    assert second.requests
    for secret in ("very-secret", "pass-word", "bWU6", "referer"):
        assert secret not in str(second.requests).lower().replace("bwu6", "bWU6")
    assert all(path.endswith(f"?{SIGNATURE}") for _, path, _ in first.requests)
    if user:
        assert {headers.get("authorization") for _, _, headers in first.requests} == {"Basic bWU6cGFzcy13b3Jk"}


def test_a_redirect_on_the_same_host_takes_all_along(
    two: tuple[Proxy, Proxy], store: tsds.Store, tmp_path: Path
) -> None:
    first, _ = two
    target = f"{first.url}/s.tsds/zarr.json?{SIGNATURE}&again=1"
    first.faults.append(Fault("redirect", "/s.tsds/zarr.json?", target=target, times=1))
    tsds.pull(first.url.replace("http://", "http://me:pass-word@") + f"/s.tsds?{SIGNATURE}", tmp_path / "out.tsds")
    assert [path for _, path, _ in first.requests[:2]] == [f"/s.tsds/zarr.json?{SIGNATURE}", target[len(first.url) :]]
    assert {headers.get("authorization") for _, _, headers in first.requests} == {"Basic bWU6cGFzcy13b3Jk"}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault("status", "", status=403), "access is refused"),
        (Fault("status", "", status=404), "not a store"),
        (Fault("status", "", status=500), "the server answers 500"),
        (Fault("cut", "", nbytes=5), "the server cannot be reached"),
        (Fault("stall", "", nbytes=5), "the server cannot be reached"),
        (Fault("redirect", "", target="ftp://localhost/x"), "redirect"),
        (Fault("redirect", "", target="file:///etc/passwd"), "cannot be reached"),
        (Fault("redirect", "", target="/s.tsds/zarr.json?loop"), "cannot be reached"),
    ],
)
def test_what_fails_is_one_line(two: tuple[Proxy, Proxy], fault: Fault, says: str, impatient: None) -> None:
    first, _ = two
    first.faults.append(fault)
    with pytest.raises((tsds.RemoteError, tsds.FormatError), match=says) as caught:
        tsds.open(f"{first.url}/s.tsds?{SIGNATURE}")
    assert "very-secret" not in str(caught.value)
    assert "\n" not in str(caught.value)
