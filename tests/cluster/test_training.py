"""Training over two nodes that share a network and a folder of checkpoints; the store comes by URL."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest
import torch

import tensorstore_ds as tsds
from cluster.conftest import end, wait_for
from cluster.network import Node, nodes
from training_stores import labelled, load_history

pytest.importorskip("obstore", reason="obstore is not here: pip install '.[cloud]'")
pytestmark = pytest.mark.timeout(300)

EPOCHS = 60
FLAGS = [
    *("--model", "seed", "--image-size", "12", "--patch-size", "4", "--width", "16", "--depth", "2", "--heads", "2"),
    *("--mlp-width", "32", "--device", "cpu", "--threads", "1", "--epochs", str(EPOCHS), "--batch-size", "2"),
    *("--augment", "none", "--resume"),
]


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The elastic agents begin again with all ranks, which go on from the last checkpoint."""
    store = tsds.open(labelled(tmp_path / "made", train=64, test=21))
    out, started = tmp_path / "run", list[subprocess.Popen[bytes]]()

    def start(node: Node, *words: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "TSDS_CACHE_DIR": str(tmp_path / node.name), "GLOO_SOCKET_IFNAME": "eth0"}
        environment |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        with (tmp_path / f"{node.name}.log").open("ab") as log:
            command = node.command([sys.executable, "-m", *words])
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        return started[-1]

    def logs() -> str:
        return "\n".join(path.read_text() for path in sorted(tmp_path.glob("*.log")))

    with nodes(3) as (server, *trainers), contextlib.ExitStack() as stack:
        stack.callback(end, started)
        token = uuid.uuid4().hex
        start(
            server, "tsds_cli", "serve", str(store.path), "--host", server.address, "--port", "9000", "--token", token
        )
        url = f"http://{server.address}:9000/{token}"
        wait_for(lambda: "serving" in (tmp_path / f"{server.name}.log").read_text())
        agents = []
        for i, node in enumerate(trainers):
            words = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "20", "--monitor-interval", "0.2"]
            words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{trainers[0].address}:29400", "--rdzv-id", "tests"]
            words += ["--rdzv-conf", f"is_host={1 - i}", "--local-addr", node.address]
            words += ["-m", "tsds_cli", "train", url, "--out", str(out), *FLAGS]
            agents.append(start(node, "torch.distributed.run", *words))
        wait_for(lambda: (out / "last.pt").exists() or any(a.poll() is not None for a in agents), 90)
        assert [agent.poll() for agent in agents] == [None, None], logs()
        ranks = psutil.Process(agents[1].pid).children(recursive=True)
        assert ranks
        ranks[0].send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            agents[0].wait(200), agents[1].wait(10)
        assert [agent.poll() for agent in agents] == [0, 0], logs()
    assert [record.epoch for record in load_history(out)] == list(range(1, EPOCHS + 1))
    ended = torch.load(out / "last.pt", weights_only=True)
    assert (ended["epoch"], int(ended["tally"]["samples"])) == (EPOCHS - 1, 64)
    assert "goes on in epoch" in logs() and "the connection to another rank is lost" in logs()
    assert "Traceback" not in logs()
    for node in trainers:
        (kept,) = tsds.reading.cached_stores(tmp_path / node.name)
        assert kept.url == url and kept.nbytes_there > 0
