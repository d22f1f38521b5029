"""Nodes that share nothing but a directory, each in a network of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.conftest import FLAGS, busy_with_a_shard, end, wait_for
from cluster.network import Node, nodes
from stores import contents

pytest.importorskip("distributed", reason="Dask is not here: pip install '.[dask]'")
pytestmark = pytest.mark.timeout(240)


@pytest.mark.usefixtures("slow_disk")
def test_a_node_that_is_cut_off(source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    """Its worker goes on writing its shard, which another one converts, too: both give the same bytes."""
    out, started = tmp_path / "o.tsds", list[subprocess.Popen[str]]()
    # A worker that says nothing is given up after so long, and not after Dask's five minutes.
    environment = {**os.environ, "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "8s"}

    def start(node: Node, *words: str) -> subprocess.Popen[str]:
        command = node.command([sys.executable, "-m", *words])
        with (tmp_path / f"{node.name}-{len(started)}.log").open("w") as log:
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True))
        return started[-1]

    with nodes(3) as (head, *others), contextlib.ExitStack() as stack:
        stack.callback(end, started)
        words = ("--host", head.address, "--port", "8786", "--dashboard-address", ":0")
        start(head, "distributed.cli.dask_scheduler", *words)
        address = f"tcp://{head.address}:8786"
        for i, node in enumerate(others):
            words = ("--host", node.address, "--nthreads", "1", "--local-directory", str(tmp_path / f"local{i}"))
            start(node, "distributed.cli.dask_worker", address, *words)
        converting = start(
            head, "tsds_cli", "convert", str(source), str(out), *FLAGS, "--engine", "dask", "--scheduler", address
        )
        wait_for(lambda: busy_with_a_shard(out) or converting.poll() is not None)
        assert converting.poll() is None, [path.read_text()[-500:] for path in tmp_path.glob("*.log")]
        others[1].cut()
        assert converting.wait(150) == 0, [path.read_text()[-500:] for path in tmp_path.glob("*.log")]
    assert contents(out) == expected


def test_a_cut_is_a_cut() -> None:
    with nodes(2) as (one, other):
        ping = one.command([sys.executable, "-c", _TALK, other.address])
        listen = subprocess.Popen(other.command([sys.executable, "-c", _LISTEN]), stdout=subprocess.PIPE)
        try:
            assert listen.stdout is not None and listen.stdout.readline() == b"ready\n"
            assert subprocess.run(ping, capture_output=True, check=False).returncode == 0
            other.cut()
            assert subprocess.run(ping, capture_output=True, check=False).returncode != 0
        finally:
            listen.kill()
            listen.communicate()


_TALK = "import socket, sys; socket.create_connection((sys.argv[1], 7000), 3)"
_LISTEN = "import socket; s = socket.create_server(('', 7000)); print('ready', flush=True)\nwhile True: s.accept()"
