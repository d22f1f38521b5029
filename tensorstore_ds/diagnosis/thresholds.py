"""From where on a number means something; and whether training waits for its loader at all."""

from __future__ import annotations

from tensorstore_ds.diagnosis.findings import Measured

#: The loader holds a model back where training is slower than the model alone by more than this...
SLOWER = 0.9
#: ... and this share of the time, at least, is spent waiting for batches.
WAITING = 0.05
#: What is less than this many times quicker is not told from chance.
QUICKER = 1.2
#: A loader of the store as it was found is held back by storage if it is slower than from memory by this.
COLD = 0.7
#: ... and less than this share of it was in memory.
THERE = 0.99
#: Threads that come to less than this many times one thread's work hold each other up...
NO_SPEED_UP = 1.3
#: ... if as many others came to this at the same time.
SPEED_UP = 1.6
#: Share of the cores that may be used from which on they are busy.
BUSY = 0.75
#: Share of a step that a copy may take beside it.
COPYING = 0.8
#: Share of the cores that loading may take from a model on the same ones.
SHARED = 0.2
#: Fewer threads of torch's are better if they are so many times as quick, measured once.
FEWER_QUICKER = 1.5


def starved(m: Measured) -> bool:
    """Whether training waits for the loader; where no model trains, loading is all there is to look at."""
    if m.model is None or m.together is None:
        return True
    return m.together.rate < SLOWER * m.model.rate and m.together.wait > WAITING
