"""A Slurm with two nodes on this machine, all of its state in one folder; run as root, without systemd."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

NODES = ("n0", "n1")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")
#: In the environment of a node's processes, by which they are found.
_MARK = "TSDS_TESTS_NODE"
_CONFIG = """ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SchedulerTimeSlice=5
SlurmdTimeout=5
SlurmctldTimeout=10
InactiveLimit=0
KillWait=1
MinJobAge=600
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}-{ports[2]}] \\
  CPUs=4 CoresPerSocket=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Slurm:
    """A cluster that runs."""

    folder: Path
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def scratch(self) -> Path:
        """What its nodes have as a disk of their own."""
        return self.folder / "scratch"

    def run(self, *words: str, **options: object) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, **options)  # type: ignore[call-overload]
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def states(self, job: int) -> dict[str, tuple[str, str]]:
        """State and node of each task of a job."""
        lines = self.run("squeue", "--noheader", "--array", "--states=all", f"--jobs={job}", "--format=%i %T %N")
        rows = [line.split(" ") for line in lines.splitlines()]
        return {name.partition("_")[2]: (state, node) for name, state, node in rows}

    def wait(self, condition: Callable[[], bool], seconds: float = 90) -> None:
        """Until something is true; fails with the logs."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-2000:] for path in sorted(self.folder.glob("*.log")))
                raise AssertionError(f"{self.run('squeue', '--states=all')}\n{self.run('sinfo')}\n{logs}")
            time.sleep(0.1)

    def start_node(self, name: str) -> None:
        command = [_found("slurmd"), "-D", "-N", name, "-f", str(self.folder / "slurm.conf")]
        self.daemons[name] = subprocess.Popen(
            command, env={**self.environment, _MARK: name}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill_node(self, name: str) -> None:
        """Kill a node and everything that runs on it, as if its power had gone."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(signal.SIGSTOP)  # so that it tells nobody that its jobs have ended
        marks = (f"{_MARK}={name}\0".encode(), f"SLURMD_NODENAME={name}\0".encode())
        for _ in range(3):  # what was started meanwhile, too
            for process in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    if any(mark in process.read_bytes() for mark in marks):
                        os.kill(int(process.parent.name), signal.SIGKILL)
        daemon.kill()
        daemon.wait()


@contextlib.contextmanager
def slurm_cluster(folder: Path) -> Iterator[Slurm]:
    """Start munge, slurmctld and two nodes; skips the test where that cannot be."""
    missing = [name for name in _PROGRAMS if _found(name) == ""]
    if missing:
        pytest.skip(f"Slurm is not here ({', '.join(missing)}): apt-get install munge slurmctld slurmd slurm-client")
    if os.geteuid() != 0:
        pytest.skip("a Slurm of our own needs root")
    folder.chmod(0o755)
    (folder / "state").mkdir()
    for node in NODES:
        (folder / f"spool-{node}").mkdir()
    config = folder / "slurm.conf"
    config.write_text(_CONFIG.format(host=socket.gethostname(), folder=folder, ports=_free_ports(3)))
    (folder / "scratch").mkdir()
    cluster = Slurm(folder, {**os.environ, "SLURM_CONF": str(config), "TMPDIR": str(folder / "scratch")})
    try:
        _start_munge(cluster)
        command = [_found("slurmctld"), "-D", "-f", str(config)]
        cluster.daemons["slurmctld"] = subprocess.Popen(
            command, env=cluster.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for node in NODES:
            cluster.start_node(node)

        def is_up() -> bool:
            done = subprocess.run(
                ["sinfo", "--noheader", "--format=%T %D"], env=cluster.environment, capture_output=True, text=True
            )
            return done.stdout.strip() == "idle 2"

        cluster.wait(is_up)
        yield cluster
    finally:
        for node in NODES:
            if node in cluster.daemons:
                cluster.kill_node(node)
        for daemon in cluster.daemons.values():
            daemon.kill()
            daemon.wait()


def _start_munge(cluster: Slurm) -> None:
    key = cluster.folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    options = [f"--key-file={key}", f"--socket={cluster.folder}/munge.socket"]
    options += [f"--{name}-file={cluster.folder}/munge.{name}" for name in ("pid", "log", "seed")]
    cluster.daemons["munged"] = subprocess.Popen(
        [_found("munged"), "--foreground", "--force", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + 20
    while not (cluster.folder / "munge.socket").exists():
        assert time.monotonic() < end, "munged does not start"
        time.sleep(0.05)


def _found(name: str) -> str:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""


def _free_ports(count: int) -> list[int]:
    """Ports that nobody uses, one after the other."""
    for first in range(17820, 30000, count):
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    each = stack.enter_context(socket.socket())
                    each.bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(range(first, first + count))
    raise AssertionError("no free ports")
