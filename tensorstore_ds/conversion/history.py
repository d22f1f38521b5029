"""Changes to a store after its conversion: the steps in ``provenance["history"]``."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.history import steps_of
from tensorstore_ds.version import __version__


def now() -> datetime:
    """The time, or ``SOURCE_DATE_EPOCH``, with which the same command gives exactly the same bytes."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch:
        return datetime.now(UTC)
    if not re.fullmatch(r"[0-9]{1,11}", epoch):
        what = f"expected whole seconds since 1970, such as 1700000000, found {epoch[:40]!r}"
        raise OptionError(f"SOURCE_DATE_EPOCH: {what}. Correct this environment variable, or unset it.")
    return datetime.fromtimestamp(int(epoch), UTC)


def note_state(provenance: Mapping[str, Any], sha256: str) -> None:
    """Add an earlier digest of the store to the last step that changed it in place."""
    steps = steps_of(provenance)
    if steps and isinstance(steps[-1].get("before"), list):
        steps[-1]["before"].append(sha256)


def with_step(provenance: Mapping[str, Any], command: str, **details: object) -> dict[str, Any]:
    """A provenance with one more step: the command, the version, the time, and its arguments or results."""
    done = {"command": command, "tool_version": __version__, "created": now().isoformat(timespec="seconds"), **details}
    return {**provenance, "history": [*steps_of(provenance), done]}
