"""The machine, and whole programs on its GPU: ranks, a diagnosis, training."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import torch

import tensorstore_ds as tsds
from benchmarks.gpu.data import Found, Settings, photographs, told_apart
from benchmarks.measure import ROOT, Figure

_QUERY = ("driver_version", "pcie.link.gen.current", "pcie.link.width.current", "power.limit")


def facts(settings: Settings) -> Found:
    """Words that all other numbers depend on: they are part of the machine's description."""
    free, total = torch.cuda.mem_get_info()
    driver, generation, width, power = _asked()
    yield {
        "gpu": torch.cuda.get_device_name(),
        "gpus": f"{torch.cuda.device_count()} GPUs",
        "gpu memory": f"{total / 2**30:.0f} GiB of GPU memory, {free / 2**30:.0f} GiB free",
        "driver": f"driver {driver}",
        "cuda": f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}",
        "link": f"PCIe {generation} x{width}",
        "power": f"power limit {power}",
    }


def _asked() -> list[str]:
    """What nvidia-smi tells of the first GPU."""
    unknown = ["unknown"] * len(_QUERY)
    if shutil.which("nvidia-smi") is None:
        return unknown
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [word.strip() for word in done.stdout.strip().split(",")]
    return found if done.returncode == 0 and len(found) == len(_QUERY) else unknown


def ddp(settings: Settings) -> Found:
    """An epoch of two ranks: over nccl on two GPUs, over gloo if they share one."""
    path = str(told_apart(settings).path)
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "benchmarks.gpu.rank", path, backend]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"two ranks over {backend}: status {done.returncode}\n{done.stderr[-2000:]}")
    yield from ranks_found(json.loads(done.stdout.strip().splitlines()[-1]))


def ranks_found(found: dict[str, Any]) -> Found:
    """The row and the figures of what the first rank has printed."""
    yield found
    yield Figure("samples that ranks have not or twice", found["missing or twice"], 0, decimals=0)
    yield Figure("ranks whose weights differ from the first's", found["other weights"], 0, decimals=0)


def doctor(settings: Settings) -> Found:
    """What `tsds doctor` says on this machine."""
    model, batch_size = settings.pick(("tiny", 256), ("seed", 16))
    found = tsds.diagnose(
        photographs(settings).path, model=model, batch_size=batch_size, seconds=settings.pick(20.0, 2.0), device="cuda"
    )
    for verdict in found.verdicts:
        yield {"verdict": verdict.code, "line": verdict.line, "gain": f"{found.gain:.2f}x"}
    for line in found.not_measured:
        yield {"verdict": "not measured", "line": line, "gain": ""}


def train(settings: Settings) -> Found:
    """`tsds train` with its defaults, and with others; two epochs each, after a run that starts the process."""
    path = told_apart(settings).path
    changes: list[dict[str, Any]] = [{}, {"residency": "page-cache"}]
    changes += settings.pick([{"residency": "page-cache", each: True} for each in ("compile", "cuda_graphs")], [])
    for number, options in enumerate([{}, *changes]):
        small: dict[str, Any] = settings.pick({}, {"model": "seed", "patch_size": 16, "depth": 2, "batch_size": 50})
        out = settings.scratch / f"run{number}"
        shutil.rmtree(out, ignore_errors=True)
        report = tsds.train(path, out=out, epochs=2, device="cuda", **small, **options)
        assert report is not None  # it was not interrupted
        if number == 0:
            continue
        words = ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"
        yield {
            "options": words,
            "images/s": round(report.samples_per_second),
            "idle": round(report.wait_share, 3),
            "loss": round(report.last["loss"], 4),
            "device": report.facts["device"],
        }
