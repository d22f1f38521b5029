"""Run parts, each in a process of its own with a time limit, and show what they found."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import ROOT, Figure, as_result, command_of, say, table, write_result

#: Seconds for which a part is worth a start: it imports torch, and begins with the GPU.
_LEAST = 20.0


@dataclass(frozen=True, slots=True)
class Part:
    """What can be measured on a GPU."""

    function: str  #: That measures it: a module of this package, and its name.
    limit: float  #: Seconds that it may take.
    what: str  #: It measures.
    expected: str  #: On an H100 with PCIe 5 and 16 cores; estimates, not measured.
    conclude: str  #: What to do with the result.
    shown: str = ""  #: The column of its table that the page of figures has.


PARTS: Mapping[str, Part] = {
    "facts": Part(
        "whole.facts",
        20,
        "GPU, driver, PCIe link",
        "no other program on the GPU",
        "If much of the GPU's memory is not free, stop the other programs and begin again.",
    ),
    "races": Part(
        "correctness.races",
        50,
        "every image and label of shuffled epochs, while the model's stream is 3 ms late per batch",
        "0 wrong epochs; the sanitizer ends with status 0",
        "If WRONG: do not use `device=`, and report it.",
    ),
    "nvjpeg_race": Part(
        "correctness.nvjpeg_race",
        40,
        "images decoded by nvJPEG while the model's stream is 20 ms late per batch",
        "0 wrong batches as the library decodes; some on the model's stream",
        "If WRONG: do not use `decode=device`, and report it.",
    ),
    "graphs": Part(
        "correctness.graphs",
        20,
        "a small model's steps as a CUDA graph over the tensors of `into`, and without a graph",
        "0 losses that differ; a step of the graph 3x faster or more",
        "If WRONG: do not use `into=` with CUDA graphs, and report it.",
        "step, ms",
    ),
    "copies": Part(
        "speed.copies",
        50,
        "copies to the GPU, and the loader by its threads, 224x224",
        "pinned 45 to 55 GB/s, pageable 5 to 12; the loader 15 or more with 8 threads",
        "If the loader is slower than pinned copies and faster with more threads, gathering is its limit.",
        "GB/s",
    ),
    "memory": Part(
        "correctness.memory",
        30,
        "memory of the GPU and pinned memory over 40 epochs",
        "the same after 40 epochs as after 10",
        "If WRONG: memory leaks; report it.",
        "GPU memory, MiB",
    ),
    "idle": Part(
        "speed.idle",
        65,
        "ViTs that train on 224x224: the GPU's idle time and the wait of the script",
        "the script waits, the GPU is idle for less than 5% of the time with the default number of threads",
        "`GPU idle` is what better loading can gain at most. With 1 thread it shows what threads are for.",
        "GPU idle",
    ),
    "photographs": Part(
        "photographs.loading",
        60,
        "random crops of photographs: the loader alone by its threads, and ImageFolder",
        "16 threads of 16 cores 8x to 13x one thread; ImageFolder 0.2x to 0.3x of them",
        "If more threads are not faster, virtual cores share real ones, or the memory is the limit.",
        "images/s",
    ),
    "resnet": Part(
        "photographs.training",
        90,
        "ResNet-18 and ResNet-50 on photographs, in epochs of 30 batches, beside one batch that stays on the GPU",
        "from `jpeg`, ResNet-18 at least 0.97 and ResNet-50 0.99 of one kept batch",
        "`GPU idle` is what better loading can gain at most.",
        "GPU idle",
    ),
    "recipe": Part(
        "photographs.augmenting",
        60,
        "crop, flip, RandAugment, Mixup and Normalize: on the GPU after the crop, and by torchvision in its workers",
        "no estimate: it was never measured",
        "If `GPU idle` is higher than in `resnet`, the recipe takes the time of the script's thread.",
        "images/s",
    ),
    "mnist": Part(
        "speed.mnist",
        50,
        "epochs of 60,000 images of 28x28 from a TensorDataset and from a store, in turns",
        "residency=device and page cache faster than TensorDataset",
        "If `training` is the same for all, the model takes the time.",
        "images/s, training",
    ),
    "resident": Part(
        "speed.resident",
        30,
        "loading from GPU memory, residency=device",
        "28x28: over 2 million images/s; 224x224: over 500 GB/s",
        "Compare `GB/s` with `copies`: the difference is what the memory buys.",
        "images/s",
    ),
    "nvjpeg": Part(
        "speed.nvjpeg",
        50,
        "JPEG files of 500x375: decoded by nvJPEG, by the CPU whole, by the CPU in crops of 224",
        "GPU 2,000 to 9,000 images/s; CPU crops 8,000 to 16,000 with 16 cores",
        "Use the fastest way: `decode=device` only if it is the GPU.",
        "images/s",
    ),
    "ddp": Part(
        "whole.ddp",
        35,
        "an epoch of 2 ranks: their samples, and their weights after it",
        "every sample once, equal weights",
        "If WRONG: report it, with the backend.",
    ),
    "compile": Part(
        "speed.compiled",
        65,
        "a step of ViT tiny by precision, with torch.compile, with its CUDA graphs, and without",
        "torch.compile 1.2x to 2x faster; no error with `cuda_graphs`; losses within 0.1; short batches not compiled",
        "If a case fails, do not use its option, and report it.",
        "images/s",
    ),
    "doctor": Part(
        "whole.doctor",
        40,
        "`tsds doctor` with ViT tiny",
        "a verdict",
        "It should agree with `idle` and `copies`.",
    ),
    "train": Part(
        "whole.train",
        55,
        "`tsds train` for 2 epochs: defaults, page cache, compiled, with CUDA graphs",
        "all four run to their end",
        "If one fails, report it with its error.",
        "images/s",
    ),
}


@dataclass(slots=True)
class Outcome:
    """What became of a part."""

    name: str
    seconds: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    reason: str = ""  #: Why it has not run to its end; empty if it has.
    failed: bool = False  #: It ended with an error; it may also lack something, or time.

    @property
    def wrong(self) -> bool:
        """Whether the library is not known to be right here: a figure is missed, or a part that has some failed."""
        is_proof = PARTS[self.name].function.startswith("correctness.") or self.name == "ddp"
        return any(figure.met is False for figure in self.figures) or (is_proof and self.failed)

    def lines(self) -> list[str]:
        """Its table for the terminal, the verdicts, and what they mean."""
        part = PARTS[self.name]
        verdicts = [
            f"{'right' if one.met else 'WRONG'}: {one.what}: {one.row[2].partition(',')[0]}" for one in self.figures
        ]
        ended = [f"not measured to the end: {self.reason}"] if self.reason else []
        head = [f"{self.name}: {part.what} ({self.seconds:.0f} s)"]
        return [*head, *_columns(self.rows), *verdicts, *ended, f"expected: {part.expected}", part.conclude, ""]

    def as_data(self) -> dict[str, Any]:
        """For the result."""
        part = PARTS[self.name]
        ended = {"seconds": round(self.seconds, 1), "reason": self.reason, "failed": self.failed}
        verdict = "WRONG" if self.wrong else "right" if self.figures else ""
        return {"part": self.name, "verdict": verdict, **ended, "expected": part.expected, "rows": self.rows}


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table whose columns are wide enough; rows may have different ones."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[str(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(line[place]) for line in (names, *cells)) for place in range(len(names))]
    if not rows:
        return []
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in (names, *cells)]
    return [line for place, line in enumerate(table(padded[0], padded[1:])) if place != 1]


def run_part(
    name: str, scratch: Path, seconds: float, *, small: bool = False, photographs: Path | None = None
) -> Outcome:
    """A part in a process of its own, which is ended after some seconds with all that it started."""
    outcome, file, log = Outcome(name), scratch / f"{name}.jsonl", scratch / f"{name}.log"
    command = command_of(write_part, name, scratch, file, small, photographs)
    began = time.monotonic()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(seconds)
            if status:
                outcome.failed, outcome.reason = True, f"status {status}: {_last_line(log)}"
        except subprocess.TimeoutExpired:
            outcome.reason = f"it took more than {seconds:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    outcome.seconds = time.monotonic() - began
    for line in file.read_text().splitlines() if file.exists() else []:
        found = json.loads(line) if line.endswith("}") else {}  # it may have been ended within a line
        outcome.rows += [found["row"]] if "row" in found else []
        outcome.figures += [Figure(**found["figure"])] if "figure" in found else []
        outcome.reason = found.get("not here", outcome.reason)
    return outcome


def write_part(name: str, scratch: Path, file: Path, small: bool, photographs: Path | None) -> None:
    """Write a line of JSON for each row and figure as soon as it is there, so that a part that is ended has those."""
    from benchmarks.gpu.data import NotHereError, Settings  # and torch

    module, _, function = PARTS[name].function.partition(".")
    measure = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), function)
    with file.open("w", buffering=1) as lines:
        try:
            for found in measure(Settings(scratch, small, photographs)):
                line = {"figure": asdict(found)} if isinstance(found, Figure) else {"row": found}
                print(json.dumps(line), file=lines)
        except NotHereError as error:
            print(json.dumps({"not here": str(error)}), file=lines)


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it has printed nothing"


def run(names: Sequence[str], scratch: Path, seconds: float, **options: Any) -> Iterator[Outcome]:
    """Run parts, one after the other. Each gets a share of `seconds`."""
    began, limits = time.monotonic(), [PARTS[name].limit for name in names]
    for i, name in enumerate(names):
        left = seconds - (time.monotonic() - began)
        if left < _LEAST:
            yield Outcome(name, reason=f"{max(0, left):.0f} s were left. Run it with --parts {name}.")
        else:
            yield run_part(name, scratch, share_of(left, limits[i:]), **options)


def share_of(left: float, limits: Sequence[float]) -> float:
    """Seconds of those `left` that the first of some parts may take, if all of them may take their limits."""
    return min(limits[0], max(_LEAST, left * limits[0] / sum(limits)))


def result_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """For JSON: the machine with its GPU, and all parts."""
    figures = [figure for outcome in outcomes for figure in outcome.figures]
    result = as_result(figures, parts=[outcome.as_data() for outcome in outcomes])
    for outcome in outcomes:
        if outcome.name == "facts":
            result["machine"] = {**result["machine"], **(outcome.rows[0] if outcome.rows else {})}
    return result


def shown(result: Mapping[str, Any], name: str) -> str:
    """What the page of figures has of a part: the verdict, a range, and why there is no more."""
    found = next((part for part in result.get("parts", ()) if part["part"] == name), None)
    if found is None:
        return "not measured"
    column = PARTS[name].shown
    values = [row[column] for row in found["rows"] if column in row]
    measured = f"{column}: {min(values):,g} to {max(values):,g}" if values else ""
    ended = f"not measured to the end: {found['reason']}" if found["reason"] else ""
    return "; ".join(filter(None, [found["verdict"], measured, ended])) or "done"


def jpegs_in(folder: Path) -> Iterator[Path]:
    """The JPEG files in a folder."""
    return (path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))


def has_gpu() -> bool:
    """Whether torch can use one."""
    import torch  # after the arguments are known to be right

    return torch.cuda.is_available()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on a GPU; 1 if there is none, or if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu", description="Measure on your GPU, in 8 minutes.")
    parser.add_argument("--parts", default=",".join(PARTS), metavar="A,B", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=480, help="for all parts together (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result as JSON")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="a folder on a disk with 2 GB free")
    parser.add_argument("--photographs", type=Path, metavar="DIR", help="JPEG files; without them, synthetic images")
    parser.add_argument("--small", action="store_true", help="tiny sizes: try the scripts, measure nothing")
    parser.add_argument("--list", action="store_true", help="list the parts, and what is expected of them")
    options = parser.parse_args(arguments)
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"--parts: expected some of {', '.join(PARTS)}, found {unknown[0]!r}")
    if options.out is not None and not options.out.absolute().parent.is_dir():
        parser.error(f"--out: expected a file in a folder that exists, found {options.out}")
    if options.photographs is not None and not any(jpegs_in(options.photographs)):
        parser.error(f"--photographs: expected a folder with JPEG files, found none in {options.photographs}")
    if options.list:
        print(
            "\n".join(
                f"{name} ({part.limit:.0f} s): {part.what}. Expected: {part.expected}." for name, part in PARTS.items()
            )
        )
        return 0
    if not has_gpu():
        say("device: expected a GPU that torch can use, found none. Install its driver and a torch with CUDA.")
        return 1
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        chosen = list(dict.fromkeys(["facts", *names]))  # the machine is part of every result
        photographs = options.photographs and options.photographs.absolute()
        given = {"small": options.small, "photographs": photographs}
        for outcome in run(chosen, Path(folder), options.seconds, **given):
            outcomes.append(outcome)
            print("\n".join(outcome.lines()), flush=True)
            if options.out is not None:
                write_result(options.out, result_of(outcomes))  # after each part: you may end it
    if missing := [outcome.name for outcome in outcomes if outcome.reason]:
        print(f"not measured to the end: {', '.join(missing)}")
    wrong = [outcome.name for outcome in outcomes if outcome.wrong]
    print(f"WRONG: {', '.join(wrong)}" if wrong else "right: nothing is wrong in what was measured")
    return 1 if wrong else 0
