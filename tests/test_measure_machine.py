"""What a diagnosis measures of the machine: cores."""

from __future__ import annotations

import os

from tensorstore_ds.annex.measuring import measure_machine as module
from tensorstore_ds.annex.measuring.measure_machine import measure_cores


def test_the_least_quota_is_the_limit(monkeypatch):
    monkeypatch.setattr(module, "core_limits", lambda: {"affinity": 4, "/outer/inner": 0.5, "/outer": 1.5})
    found = measure_cores(seconds=0.01)
    assert (found.allowed, found.limited_by) == (0.5, "/outer/inner")
    assert (found.measured, found.threads) == (1.0, 1)


def test_the_cores_of_this_process():
    found = measure_cores(seconds=0.05)
    assert 0 < found.allowed <= found.machine == os.cpu_count()
    assert found.measured > 0
