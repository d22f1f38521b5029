"""Conversions on a Ray cluster of several nodes, each with processes of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import tensorstore_ds as tsds
from cluster.conftest import OPTIONS, converting, wait_for
from stores import contents

ray: Any = pytest.importorskip("ray", reason="Ray is not here: pip install '.[ray]'")
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on this machine."""
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


def test_three_nodes(cluster: Any, source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    tsds.clusters.convert_on("ray", source, tmp_path / "o.tsds", OPTIONS, scheduler=cluster.address)
    assert contents(tmp_path / "o.tsds") == expected


@pytest.mark.usefixtures("slow_disk")
def test_a_worker_that_is_killed(cluster: Any, source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    def working() -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [each for each in below if "".join(each.cmdline()[:1]).startswith("ray::") and "IDLE" not in each.name()]

    with converting("ray", source, tmp_path / "o.tsds", cluster.address):
        wait_for(lambda: bool(working()))
        working()[0].kill()
    assert contents(tmp_path / "o.tsds") == expected


@pytest.mark.usefixtures("slow_disk")
def test_a_node_that_dies(cluster: Any, source: Path, tmp_path: Path, expected: dict[str, bytes]) -> None:
    with converting("ray", source, tmp_path / "o.tsds", cluster.address):
        node = next(node for node in cluster.list_all_nodes() if node is not cluster.head_node)
        cluster.remove_node(node, allow_graceful=False)
    assert contents(tmp_path / "o.tsds") == expected


def test_a_bad_sample_ends_it(cluster: Any, source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(source, folder)
    (folder / "b" / "599.jpg").write_bytes(b"\xff\xd8\xff rubbish")
    with pytest.raises(tsds.SourceError, match=r"b/599\.jpg"):
        tsds.clusters.convert_on("ray", folder, tmp_path / "o.tsds", OPTIONS, scheduler=cluster.address)
    assert not ray.is_initialized()
