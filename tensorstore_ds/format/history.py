"""The steps in ``provenance["history"]``: changes to a store after its conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def steps_of(provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps in chronological order; empty if a manifest has none, or something invalid."""
    history = provenance.get("history")
    return [step for step in history if isinstance(step, Mapping)] if isinstance(history, list) else []


def states_of(provenance: Mapping[str, Any]) -> set[str]:
    """The earlier digests of a store that was changed in place."""
    found = set[str]()
    for step in reversed(steps_of(provenance)):
        before = step.get("before")
        if not isinstance(before, list):  # this step made a store of others
            break
        found |= {each for each in before if isinstance(each, str)}
    return found


def states_before_erasure(provenance: Mapping[str, Any]) -> set[str]:
    """The earlier digests of a store whose samples were erased since."""
    steps = steps_of(provenance)
    last = max((i for i, step in enumerate(steps) if step.get("command") == "erase"), default=-1)
    return states_of({"history": steps[: last + 1]})
