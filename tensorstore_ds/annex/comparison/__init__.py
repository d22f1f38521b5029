"""Compare ways to load one data set on this machine: `tsds bench`, and the engine of ``benchmarks/``.

Its words: a **way** is one way to load a data set, and a **feed** the code that does it. A way has a **lane**, a
process of its own, in which a **runner** answers what the lane asks: an **answer** is one line of JSON. Lanes take
**turns**, so that what else the machine does falls on all of them. A **clock** times epochs; one that would take too
long is **reckoned** from a part. **Marks**, a number per sample, prove what was **delivered**. A **cell** is what the
answers of one way at one batch size come to, and a **comparison** all of it.
"""

from __future__ import annotations

from tensorstore_ds import public

__getattr__, __dir__, __all__ = public.attach(__name__)
