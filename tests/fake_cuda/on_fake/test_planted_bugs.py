"""What the fake GPU is for: with each bug planted, a schedule shows wrong values; without any, none does."""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from stores import store_of
from tensorstore_ds.loading.device import DevicePrefetcher

BATCHES, SHAPE = 16, (64, 3, 32, 32)
SCHEDULE = os.environ["FAKE_CUDA_SCHEDULE"]

#: The schedules in which a bug shows.
SHOWN = {
    "no wait": {"side-late"},
    "no record_stream": {"main-late"},
    "event before the copy": {"side-late"},
    "pinned memory reused by finalizers": {"side-late"},
}


class FinalizedPool:
    """Pinned memory that is used again as soon as its tensor is gone, whatever is copied out of it."""

    def __init__(self) -> None:
        self._free: deque[Any] = deque()

    def empty(self) -> torch.Tensor:
        size = torch.Size(SHAPE).numel()
        whole = self._free.popleft() if self._free else torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy()
        view = whole.view()
        weakref.finalize(view, self._free.append, whole)
        return torch.from_numpy(view).view(SHAPE)


def pinned() -> torch.Tensor:
    return torch.empty(SHAPE, dtype=torch.uint8, pin_memory=True)


def batches(empty: Callable[[], torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Each with a value of its own, in all of its pixels and labels."""
    for value in range(BATCHES):
        image = empty()
        image.numpy()[...] = value
        yield {"image": image, "label": torch.full((64,), value).pin_memory()}
        del image


def plant(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_event, record = torch.cuda.Stream.wait_event, torch.cuda.Event.record
    last: dict[int, torch.cuda.Event] = {}  # by stream
    before: dict[int, torch.cuda.Event | None] = {}  # by event
    if bug == "no wait":
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda stream, event: None)
        monkeypatch.setattr(torch.cuda.Stream, "wait_stream", lambda stream, other: None)
    if bug == "no record_stream":
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    if bug == "event before the copy":

        def remember(event: torch.cuda.Event, stream: torch.cuda.Stream | None = None) -> None:
            record(event, stream)
            on = torch.cuda.current_stream() if stream is None else stream
            before[id(event)] = last.get(on.cuda_stream)
            last[on.cuda_stream] = event

        def wait_too_early(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
            if (earlier := before[id(event)]) is not None:
                wait_event(stream, earlier)

        monkeypatch.setattr(torch.cuda.Event, "record", remember)
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", wait_too_early)


def wrong_batches(empty: Callable[[], torch.Tensor]) -> list[int]:
    """Those that a model would have seen with other values. It drops each batch before the GPU has computed on it."""
    seen = []
    for batch in DevicePrefetcher(batches(empty), "cuda:0"):
        seen.append({name: tensor.clone() for name, tensor in batch.items()})  # a copy on the model's stream
        del batch
    torch.cuda.synchronize()
    return [i for i, batch in enumerate(seen) if not all((tensor.cpu() == i).all() for tensor in batch.values())]


def test_the_library_is_right() -> None:
    assert wrong_batches(pinned) == []


@pytest.mark.parametrize("by", ["transform", "collate_fn"])
def test_what_a_function_of_the_user_wraps_anew_is_not_pinned(tmp_path: Path, by: str) -> None:
    """As in the last bug below: torch's allocator would not be told that it is being copied."""
    samples = [{"image": np.full((160, 160, 3), row, np.uint8), "label": 0} for row in range(8)]
    path, is_pinned = store_of(tmp_path / "s.tsds", samples, ["a"]).path, list[bool]()

    def through_numpy(sample: dict[str, Any]) -> Any:
        is_pinned.append(sample["image"].is_pinned())
        return {"image": torch.from_numpy(sample["image"].numpy())}

    transform = through_numpy if by == "transform" else None
    dataset = tsds.StoreDataset(path, fields=["image"], transform=transform)
    collate = list if transform else lambda samples: [*map(through_numpy, samples)]
    loader = tsds.DataLoader(dataset, 2, device="cuda", collate_fn=collate)
    images = [sample["image"] for batch in loader for sample in batch]
    assert [int(image[0, 0, 0]) for image in images] == list(range(8)) and is_pinned == [False] * 8


@pytest.mark.skipif(SCHEDULE not in {"side-late", "main-late"}, reason="the schedules that show them")
@pytest.mark.parametrize("bug", SHOWN)
def test_a_planted_bug_shows(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(bug, monkeypatch)
    reuses = bug == "pinned memory reused by finalizers"
    wrong = wrong_batches(FinalizedPool().empty if reuses else pinned)
    assert bool(wrong) == (SCHEDULE in SHOWN[bug])
