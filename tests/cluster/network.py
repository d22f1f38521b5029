"""Network namespaces as nodes: each has a network of its own, and a link to a bridge that can be cut."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

_CALLS = itertools.count()


@dataclass(frozen=True)
class Node:
    """A namespace with an address."""

    name: str
    address: str

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` there."""
        return ["ip", "netns", "exec", self.name, *words]

    def cut(self) -> None:
        """Let no packet in or out any more; nobody is told."""
        _ip("link", "set", f"{self.name}-b", "down")


@contextlib.contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """Some nodes on one bridge; skips the test where there can be none."""
    if shutil.which("ip") is None:
        pytest.skip("ip is not here: apt-get install iproute2")
    mark = f"t{os.getpid() % 100000}{chr(97 + next(_CALLS))}"  # namespaces that were deleted stay for a while
    if subprocess.run(["ip", "netns", "add", mark], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces need rights that this process has not")
    names = [f"{mark}n{i}" for i in range(count)]
    made = [Node(name, f"10.213.{os.getpid() % 250}.{i + 1}") for i, name in enumerate(names)]
    try:
        _ip("link", "add", f"{mark}br", "type", "bridge")
        _ip("link", "set", f"{mark}br", "up")
        for node in made:
            _ip("netns", "add", node.name)
            _ip("link", "add", f"{node.name}-b", "type", "veth", "peer", "name", "eth0", "netns", node.name)
            _ip("link", "set", f"{node.name}-b", "master", f"{mark}br", "up")
            for words in (["addr", "add", f"{node.address}/24", "dev", "eth0"], ["link", "set", "eth0", "up"]):
                _ip("-n", node.name, *words)
            _ip("-n", node.name, "link", "set", "lo", "up")
        yield made
    finally:
        links = [f"{mark}br", *(f"{node.name}-b" for node in made)]
        for each in [["link", "del", name] for name in links] + [["netns", "del", n] for n in (mark, *names)]:
            subprocess.run(["ip", *each], capture_output=True, check=False)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"ip {' '.join(words)}: {done.stderr.strip()}")
