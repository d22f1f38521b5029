"""Measure loading and training: `tsds bench`, `tsds doctor`, and the engine of ``benchmarks/``.

`measure` is the one clock: it takes batches for some seconds. `tsds bench` compares **ways** to load a data set. A way
has a **lane**, a process of its own, in which a **runner** answers what the lane asks: an **answer** is one line of
JSON. A **feed** is the code of a way. Lanes take **turns**, so that other programs disturb all of them. **Marks**, a
number per sample, prove what was **delivered**. A **cell** is the result of one way at one batch size. `tsds doctor`
makes an **examination** of one store; **verdicts** follow from its numbers alone.
"""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
