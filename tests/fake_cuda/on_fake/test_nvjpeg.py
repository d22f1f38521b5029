"""Images that a GPU decodes: models of torchvision's decoder, which writes on a stream that waits for no other, and of
torchcodec's, which works on the stream of now.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
import torch

import tensorstore_ds as tsds
from jpeg_files import drawn, jpeg
from tensorstore_ds.annex import device_decoding
from tensorstore_ds.loading.feed import Run

BATCHES, BATCH = 12, 8
CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """JPEG files of two sizes: a batch of them is a list, so that no kernel waits for the stream of the model."""
    for row in range(BATCHES * BATCH):
        path = tmp_path / "s" / "ab"[row % 2] / f"{row:03}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(drawn(64, 64 + row % 2, seed=row)))
    tsds.convert(tmp_path / "s", tmp_path / "s.tsds", tsds.ConvertOptions(workers=0, encoding="source"))
    return tmp_path / "s.tsds"


def test_a_batch_has_its_own_images(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode, engine = device_decoding._by_torchvision(), torch.cuda.Stream("cuda:0")

    def decode_as_nvjpeg(files: list[torch.Tensor], is_gray: bool, device: torch.device) -> list[torch.Tensor]:
        decoded = [image.pin_memory() for image in decode(files, is_gray, CPU)]
        images = [torch.empty(image.shape, dtype=torch.uint8, device=device) for image in decoded]
        engine.synchronize()
        with torch.cuda.stream(engine):
            for image, pixels in zip(images, decoded, strict=True):
                image.copy_(pixels, non_blocking=True)
        engine.synchronize()
        return images

    monkeypatch.setattr(device_decoding, "_decoder", lambda: decode_as_nvjpeg)
    dataset = tsds.StoreDataset(store, fields=["image", "key"])
    seen, keys = [], []
    for batch in tsds.DataLoader(dataset, BATCH, shuffle=True, device="cuda", decode="device"):
        seen += [image.clone() for image in batch["image"]]  # the model, whose turn comes later
        keys += batch["key"]
        del batch
    torch.cuda.synchronize()
    paths = {path.name: path for path in store.with_suffix("").rglob("*.jpg")}
    wrong = []
    for image, key in zip(seen, keys, strict=True):
        name = os.fspath(key).rpartition("/")[2]
        file = torch.frombuffer(bytearray(paths[name].read_bytes()), dtype=torch.uint8)
        if not torch.equal(image.cpu(), decode([file], False, CPU)[0]):
            wrong.append(name)
    assert len(seen) == len(paths) and wrong == []


def test_the_script_may_take_each_batch_on_another_stream(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are decoded before they are asked for, when the script was on the stream of an earlier one."""

    numbers = itertools.count()

    def decode_on_the_stream_of_now(files: list[torch.Tensor], *_: object) -> list[torch.Tensor]:
        images = [torch.empty(3, 2, 2, dtype=torch.uint8, device="cuda") for _ in files]
        for image in images:
            pixels = torch.full((3, 2, 2), next(numbers), dtype=torch.uint8).pin_memory()
            image.copy_(pixels, non_blocking=True)
        return images

    monkeypatch.setattr(device_decoding, "_decoder", lambda: decode_on_the_stream_of_now)
    monkeypatch.setattr(Run, "is_ready", True)  # as many are decoded before as may be
    monkeypatch.setattr(torch, "stack", lambda images: images)  # a kernel, which here would wait for its operands
    dataset = tsds.StoreDataset(store, fields=["image"])
    loader = tsds.DataLoader(dataset, BATCH, device="cuda", decode="device")
    streams, seen = [torch.cuda.Stream("cuda:0") for _ in range(3)], []
    batches = iter(loader)
    for number in range(BATCHES):
        with torch.cuda.stream(streams[number % 3]):
            seen += [image.clone() for image in next(batches)["image"]]
    for stream in reversed(streams):  # the one that waits for the fewest batches of others comes first
        stream.synchronize()
    assert [int(image.cpu()[0, 0, 0]) for image in seen] == list(range(BATCHES * BATCH))
