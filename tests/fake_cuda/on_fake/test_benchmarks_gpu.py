"""The parts of `python -m benchmarks gpu` run to their end: in this process, since the fake GPU needs its kernels.

Not tried here: nvJPEG (a model of it is), NCCL, torch.compile with its graphs, and torch's CUDA sanitizer.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from benchmarks.gpu import correctness, data, photographs, run, speed, whole
from benchmarks.measure import Figure
from tensorstore_ds.annex import device_decoding
from tensorstore_ds.loading import device

RANK = "from fake_cuda import kernels; kernels.enable(); from benchmarks.gpu.rank import main; main()"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> data.Settings:
    return data.Settings(tmp_path_factory.mktemp("gpu"), small=True)


def measured(found: data.Found) -> tuple[list[dict[str, Any]], list[Figure]]:
    """Rows without errors, which JSON can hold, and figures."""
    rows, figures = [], []
    for one in found:
        if isinstance(one, Figure):
            figures.append(one)
        else:
            rows.append(json.loads(json.dumps(one)))
    assert rows and not [row for row in rows if "error" in row]
    return rows, figures


ROWS = ["facts", "copies", "photographs", "resnet", "recipe", "resident", "idle", "mnist", "doctor", "train"]


@pytest.mark.parametrize("part", ROWS)
def test_a_part_has_rows(part: str, settings: data.Settings) -> None:
    module, _, name = run.PARTS[part].function.partition(".")
    measure = getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name)
    rows, figures = measured(measure(settings))
    assert not figures and (shown := run.PARTS[part].shown) in {"", *(column for row in rows for column in row)}, shown


def test_photographs_of_the_user(settings: data.Settings, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    Image.new("RGB", (50, 40), "red").save(source / "one.JPG", "JPEG")
    given = dataclasses.replace(settings, scratch=tmp_path, photographs=source)
    assert set(photographs.stored(given, "source").image_sizes.tolist()[0]) == {50, 40}
    copies = {path.read_bytes() for path in run.jpegs_in(photographs.files(given))}
    assert copies == {(source / "one.JPG").read_bytes()}


@pytest.mark.parametrize("part", ["races", "memory"])
def test_what_is_proved_is_right(part: str, settings: data.Settings) -> None:
    _, figures = measured(getattr(correctness, part)(settings))
    assert figures and [figure for figure in figures if not figure.met] == []


def test_a_race_is_wrong(settings: data.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.environ["FAKE_CUDA_SCHEDULE"] != "side-late":
        pytest.skip("the schedule that shows it")
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda stream, event: None)
    _, figures = measured(correctness.races(settings))
    assert not figures[0].met


def test_what_is_kept_of_each_epoch_takes_ever_more_memory(
    settings: data.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.cuda.empty_cache()
    kept, hand_over = [], device.Copies.hand_over

    def keep(copies: device.Copies, batch: device.OnDevice) -> Any:
        kept.append(batch)
        return hand_over(copies, batch)

    monkeypatch.setattr(device.Copies, "hand_over", keep)
    _, figures = measured(correctness.memory(settings))
    assert not figures[0].met


def test_a_model_of_nvjpeg(settings: data.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, engine = device_decoding._by_torchvision(), torch.cuda.Stream("cuda:0")

    def decode_as_nvjpeg(files: list[torch.Tensor], is_gray: bool, where: torch.device) -> list[torch.Tensor]:
        decoded = [image.pin_memory() for image in decode(files, is_gray, torch.device("cpu"))]
        images = [torch.empty(image.shape, dtype=torch.uint8, device=where) for image in decoded]
        with torch.cuda.stream(engine):
            for image, pixels in zip(images, decoded, strict=True):
                image.copy_(pixels, non_blocking=True)
        engine.synchronize()
        return images

    monkeypatch.setattr(device_decoding, "_decoder", lambda: decode_as_nvjpeg)
    rows, figures = measured(correctness.nvjpeg_race(settings))
    assert len(rows) == 2 and figures[0].met
    rows, _ = measured(speed.nvjpeg(settings))
    assert {row["decoded by"] for row in rows} == {"GPU, whole", "CPU, whole", "CPU, crops"}


def graph_of_calls(step: correctness.LinearStep, batch: Any) -> Any:
    """In place of a graph, which the fake GPU has not: the step on the same tensors."""
    return lambda: step(batch)


def test_graphs_read_the_batches_that_came_into_their_tensors(
    settings: data.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correctness.LinearStep, "captured", graph_of_calls)
    rows, figures = measured(correctness.graphs(settings))
    assert [row["steps"] for row in rows] == [10, 10] and figures[0].met


def test_a_graph_that_reads_other_tensors_is_wrong(settings: data.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def elsewhere(step: correctness.LinearStep, batch: Any) -> Any:
        return graph_of_calls(step, {name: tensor.clone() for name, tensor in batch.items()})

    monkeypatch.setattr(correctness.LinearStep, "captured", elsewhere)
    _, figures = measured(correctness.graphs(settings))
    assert not figures[0].met


def test_without_nvjpeg_it_says_so(settings: data.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError("No module named 'torchvision'")

    monkeypatch.setattr(device_decoding, "_decoder", missing)
    with pytest.raises(data.NotHereError, match="nvJPEG"):
        list(correctness.nvjpeg_race(settings))


def test_precisions_without_torch_compile(settings: data.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {("bf16", "compile"), ("bf16", "cuda_graphs")} < set(speed.COMPILED)
    monkeypatch.setattr(speed, "COMPILED", [case for case in speed.COMPILED if not case[1]])
    rows, _ = measured(speed.compiled(settings))
    assert [row["precision"] for row in rows] == ["bf16", "fp32", "tf32", "fp16"]


def test_two_ranks_on_one_gpu(settings: data.Settings) -> None:
    path = str(data.told_apart(settings).path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "FAKE_CUDA_DEVICES": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    shared |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, path, "gloo"],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    (row,), figures = measured(whole.ranks_found(json.loads(printed[0][0])))
    assert row["samples"] == [100, 100] and all(figure.met for figure in figures)


def test_the_command(tmp_path: Path) -> None:
    """From its words to the result; the part has no kernels of the fake GPU."""
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-m", "benchmarks", "gpu", "--small", "--parts", "facts", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    assert result["machine"]["gpu"] == "Fake H100 (no GPU)" and [part["part"] for part in result["parts"]] == ["facts"]
    assert "Fake H100 (no GPU)" in done.stdout and "right" in done.stdout.splitlines()[-1]
