"""What was done to a store after its conversion: the steps in ``provenance["history"]``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.manifest import Manifest
from tensorstore_ds.version import __version__


def now() -> datetime:
    """The time, or the time in ``SOURCE_DATE_EPOCH``: with it, the same command gives the same bytes, all of them.

    Raises:
        OptionError: ``SOURCE_DATE_EPOCH`` is no such number.
    """
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch:
        return datetime.now(UTC)
    if not re.fullmatch(r"[0-9]{1,11}", epoch):
        what = f"expected whole seconds since 1970, such as 1700000000, found {epoch[:40]!r}"
        raise OptionError(f"SOURCE_DATE_EPOCH: {what}. Correct this environment variable, or unset it.")
    return datetime.fromtimestamp(int(epoch), UTC)


def steps_of(provenance: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The steps in the order in which they were done; empty if a manifest has none, or something else there."""
    history = provenance.get("history")
    return [step for step in history if isinstance(step, Mapping)] if isinstance(history, list) else []


def is_earlier(before: Manifest, now: Manifest) -> bool:
    """Whether a store has become another one by steps that are noted behind the steps of before, as `update` does."""
    (one, first), (other, second) = (_origin(each.provenance) for each in (before, now))
    return one == other and len(first) < len(second) and first == second[: len(first)]


def _origin(provenance: Mapping[str, Any]) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Where a store comes from, and the steps that have changed it since."""
    return {**provenance, **dict.fromkeys(("history", "skipped", "left_out"))}, steps_of(provenance)


def with_step(provenance: Mapping[str, Any], command: str, **details: object) -> dict[str, Any]:
    """A provenance with one more step: the command, the version, the time, and what the command was given or did."""
    done = {"command": command, "tool_version": __version__, "created": now().isoformat(timespec="seconds"), **details}
    return {**provenance, "history": [*steps_of(provenance), done]}
