"""Where the time of a loader went."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class LoaderStats:
    """Where the time of a loader went, in seconds, summed up since it was made.

    >>> before = LoaderStats(batches=10, wait=0.5)
    >>> (LoaderStats(batches=30, wait=0.6) - before).batches
    20

    Attributes:
        batches: handed out.
        wait: the training script waited for a batch, and for copies that block the host; not for batch transforms.
        gather: threads gathered, transformed and collated; several of them may come to more than the time that passed.
        copy: copies to a GPU ran on their stream, beside the model; 0 on other devices.
        ready: tasks (batches, or groups of small ones) that were found done, summed over all requests.
        requests: how often a task was asked for.
    """

    batches: int = 0
    wait: float = 0.0
    gather: float = 0.0
    copy: float = 0.0
    ready: int = 0
    requests: int = 0

    @property
    def depth(self) -> float:
        """The mean depth of the queue: tasks that stood ready when one was asked for; below 1 the threads are late."""
        return self.ready / self.requests if self.requests else 0.0

    def __sub__(self, earlier: LoaderStats) -> LoaderStats:
        """What came since: of an epoch, or of a hundred steps."""
        return LoaderStats(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))
