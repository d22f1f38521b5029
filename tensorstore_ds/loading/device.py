"""Copy batches to a device on a separate stream, while the model works on earlier batches."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.collate import settle
from tensorstore_ds.loading.packing import PackedBatch, as_it_is, is_plain, tensors_of
from tensorstore_ds.options import meant, refusal


def checked_device(device: torch.device | str) -> torch.device:
    """Return a device of this machine. Raises `OptionError` if there is none of that name.

    It does not initialize CUDA, because worker processes may still be forked.
    """
    try:
        found = torch.device(device)
        if found.type == "cuda" and not (found.index or 0) < torch.cuda.device_count():
            raise RuntimeError(f"it has {torch.cuda.device_count()} GPUs for torch")
        if found.type != "cuda":
            torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].partition(": ")[0].rstrip(".")
        if reason.startswith("Expected one of"):  # followed by a list of devices that no machine here has
            reason = "torch has no device of this name"
        near = meant(str(device), ("cuda",) if torch.cuda.device_count() and not str(device).startswith("cuda") else ())
        raise OptionError(
            f'`device`: expected one that this machine has, found {device} ({reason}). Use `device="cpu"`.{near}'
        ) from None
    return found


def with_index(device: torch.device) -> torch.device:
    """Return the device with its number. ``cuda`` means this thread's current device, which differs between threads."""
    if device.index is not None:
        return device
    if device.type != "cuda":
        accelerator = torch.accelerator.current_accelerator()
        is_that = accelerator is not None and device.type == accelerator.type
        return torch.device(device.type, torch.accelerator.current_device_index()) if is_that else device
    # A process that has not used CUDA yet has the first one, and asking would prevent forking workers.
    return torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_initialized() else 0)


@functools.cache
def stream_for(work: Literal["copies", "decoding"], device: torch.device) -> torch.cuda.Stream:
    """Return the stream for some work on a device with a number. There is one per process.

    torch keeps freed memory for the stream that allocated it, so a stream per epoch would accumulate memory.
    """
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


class GpuTimer:
    """Measure the time between pairs of events on a GPU without waiting. A pair counts once it is done."""

    def __init__(self) -> None:
        self._done = 0.0
        self._pending: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def add(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        """Add two timing events of one stream."""
        self._pending.append((began, ended))
        self.seconds()  # limits the number of pending pairs

    def seconds(self) -> float:
        """Seconds of all finished pairs."""
        while self._pending and self._pending[0][1].query():  # type: ignore[no-untyped-call]
            began, ended = self._pending.popleft()
            self._done += began.elapsed_time(ended) / 1000
        return self._done


class IdleTime:
    """Measure how long a GPU was idle while a script waited for its next batch.

    The host may wait for a batch while the GPU still works on queued kernels. Therefore, the script's stream measures
    the time from the end of the work queued before the request until the batch is ready.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._timer = GpuTimer()

    def ask(self) -> torch.cuda.Event:
        """Record the time of a request for a batch."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def hand_over(self, asked: torch.cuda.Event) -> bool:
        """Record the hand-over of a batch, with the event from `ask`. True if the GPU has finished all earlier work."""
        is_drained: bool = asked.query()  # type: ignore[no-untyped-call]
        self._timer.add(asked, self.ask())
        return is_drained

    def seconds(self) -> float:
        """Idle seconds so far, as far as the GPU has progressed."""
        return self._timer.seconds()


def record_stream(batch: Any, stream: torch.cuda.Stream) -> None:
    """Tell torch's allocator that a stream also uses the tensors of a batch."""
    for tensor in tensors_of(batch):
        tensor.record_stream(stream)


class DevicePrefetcher:
    """Iterate over any loader, with its batches on a device.

    A batch of this library's `DataLoader` is copied in the few pieces in which it was packed. Other batches are copied
    tensor by tensor.

    On a GPU, copies are queued on a side stream, up to `depth` batches ahead. If the batches are pinned, the host does
    not wait for the copies. The stream of the model waits only for the copy of its own batch. Buffers are not reused
    before their copy is done, because pinned memory comes from torch's caching host allocator. On other devices, each
    batch is moved when you request it.

    >>> loader = tsds.DataLoader(tsds.StoreDataset("photos.tsds", "train"), batch_size=4)
    >>> for batch in tsds.loading.DevicePrefetcher(loader, "cpu"):  # or "cuda"
    ...     images = batch["image"]
    >>> images.shape
    torch.Size([4, 3, 32, 32])

    Args:
        loader: iterable of batches, which are tensors, or lists, tuples and dicts of them.
        device: device of the batches.
        depth: number of batches that are copied ahead.
        timer: timer that is told of every copy to a GPU.
    """

    def __init__(
        self, loader: Iterable[Any], device: torch.device | str, *, depth: int = 2, timer: GpuTimer | None = None
    ) -> None:
        if depth < 1:
            raise refusal("depth", "at least 1", depth)
        self.loader = loader
        self.device = with_index(torch.device(device))
        self.depth = depth
        self.timer = GpuTimer() if timer is None else timer

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        copies = Copies(self.device, depth=self.depth, timer=self.timer)
        batches, has_more = iter(self.loader), True
        queue: deque[OnDevice] = deque()
        failed: Exception | None = None
        try:
            while has_more or queue:
                while has_more and len(queue) <= copies.depth:
                    try:
                        queue.append(copies.begin(next(batches)))
                    except StopIteration:
                        has_more = False
                    except Exception as error:  # the error is in a later batch: return earlier ones first
                        failed, has_more = error, False
                if queue:
                    yield copies.hand_over(queue.popleft())
            if failed is not None:
                raise failed
        finally:
            del failed  # its traceback refers to this frame


class OnDevice(NamedTuple):
    """A batch that is copied, or being copied, to a device, and the memory of its tensors there."""

    batch: Any
    pieces: Sequence[torch.Tensor] = ()
    copied: torch.cuda.Event | None = None


class Copies:
    """Copies of batches to a device: to a GPU on a side stream, up to `depth` batches ahead, else when handed over."""

    def __init__(self, device: torch.device, *, depth: int = 2, timer: GpuTimer | None = None) -> None:
        self.device = device
        self._on_gpu = device.type == "cuda"
        self.depth = depth if self._on_gpu else 0
        self._timer = GpuTimer() if timer is None else timer
        self._side: torch.cuda.Stream | None = None  # from the first copy on: a worker may still be forked

    def begin(self, batch: Any) -> OnDevice:
        """Queue the copies of a batch."""
        packed = batch if isinstance(batch, PackedBatch) else as_it_is(batch)
        if not self._on_gpu:
            return OnDevice(packed)
        side = self._side = self._side or stream_for("copies", self.device)
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        # Also the device: restoring a stream of the current device creates a context there, of 500 MB. A script in
        # inference mode may train on the batches that it begins.
        with torch.inference_mode(False), torch.cuda.device(self.device), torch.cuda.stream(side):
            others = [None if is_plain(piece) else piece.to(self.device, non_blocking=True) for piece in packed.pieces]
            targets = [
                torch.empty_like(piece, device=self.device) if other is None else other
                for piece, other in zip(packed.pieces, others, strict=True)
            ]
            began.record(side)  # only copies run between the two events
            for target, piece, other in zip(targets, packed.pieces, others, strict=True):
                if other is None:
                    target.copy_(piece, non_blocking=True)
            ended.record(side)
        if None in others:
            self._timer.add(began, ended)
        return OnDevice(packed.over(targets), targets, ended)

    def hand_over(self, batch: OnDevice) -> Any:
        """Return a batch that the current stream may use."""
        if batch.copied is None:
            return move(batch.batch, self.device)
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(batch.copied)
        record_stream(batch.pieces, stream)
        return settle(batch.batch)


def move(batch: Any, device: torch.device) -> Any:
    """Move all tensors of a batch to `device`. Copies from pinned memory to CUDA do not wait.

    For other devices, torch does not guarantee that the source memory of such a copy stays alive.
    """
    packed = batch if isinstance(batch, PackedBatch) else as_it_is(batch)
    pieces = [piece.to(device, non_blocking=device.type == "cuda") for piece in packed.pieces]
    return settle(packed.over(pieces))
