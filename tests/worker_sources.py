"""Data sets that worker processes import."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np


class Gray:
    """So many gray images of 6 x 5 pixels, each of its number's value. A worker converts 512 at a time."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return np.full((6, 5), index % 256, np.uint8)


class Slow(Gray):
    """One of the images takes its time."""

    def __init__(self, count: int, slow: int, seconds: float) -> None:
        super().__init__(count)
        self.slow, self.seconds = slow, seconds

    def __getitem__(self, index: int) -> Any:
        if index == self.slow:
            time.sleep(self.seconds)
        return super().__getitem__(index)


class Unloadable(Gray):
    """It can be sent to another process, but not be made again there."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RuntimeError("this is only to be used where it was made")


class TorchThreads(Gray):
    """Each pixel is the number of threads that torch would use here."""

    def __getitem__(self, index: int) -> Any:
        import torch

        return np.full((2, 2), torch.get_num_threads(), np.uint8)


class ByProcess(Gray):
    """Each pixel is the number of the process that it was made in."""

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 2), os.getpid(), np.uint32).view(np.uint8)


class ByParent(Gray):
    """Each pixel is the number of the process that started the one that it was made in."""

    def __getitem__(self, index: int) -> Any:
        return np.full((2, 2), os.getppid(), np.uint32).view(np.uint8)


class WithThread(ByParent):
    """Where it is made again, a thread starts, which a forked process would not have."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class Leaving(Gray):
    """At one of the images its process ends, by a signal if the status is below 0."""

    def __init__(self, count: int, last: int, status: int) -> None:
        super().__init__(count)
        self.last, self.status, self.home = last, status, os.getpid()

    def __getitem__(self, index: int) -> Any:
        if index == self.last and os.getpid() != self.home:
            if self.status < 0:
                os.kill(os.getpid(), -self.status)
            os._exit(self.status)
        return super().__getitem__(index)


class Stopping(Gray):
    """At one of the images the process stops, with all its threads."""

    def __init__(self, count: int, stop: int) -> None:
        super().__init__(count)
        self.stop = stop

    def __getitem__(self, index: int) -> Any:
        if index == self.stop:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().__getitem__(index)
