"""Whether a checkpoint is one that a run can go on with: whole, and of the same model and options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorstore_ds.errors import TrainingError
from tensorstore_ds.training import checkpoint
from tensorstore_ds.training.checkpoint import ModelCard
from tensorstore_ds.training.options import FREE_TO_CHANGE, TrainOptions
from tensorstore_ds.training.records import plain

#: What a checkpoint has of a run, beside the weights.
_STATE: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("learner", "options", "tally", "loader"), (dict,)),
    **dict.fromkeys(("epoch", "batch", "ranks"), (int,)),
    **dict.fromkeys(("seconds", "wait"), (int, float)),
}


def load_state(path: Path, card: ModelCard, options: TrainOptions, *, ranks: int) -> dict[str, Any]:
    """The state of a run in a checkpoint.

    Args:
        path: of the checkpoint.
        card, options, ranks: of the run that is to go on: its model, what it does, and its number of processes.

    Raises:
        TrainingError: the checkpoint is damaged, or of another run.
    """
    found_card, state = checkpoint.load(path)
    wrong = [name for name, kinds in _STATE.items() if type(state.get(name)) not in kinds]
    if wrong or not all(map(_is_plain, state["options"].values())):
        raise checkpoint.unusable(path, ValueError(f"no state of a run: {wrong[0] if wrong else 'options'}"))
    wanted = {name: value for name, value in options.as_data().items() if name not in FREE_TO_CHANGE}
    difference = _difference(found_card.as_data(), card.as_data()) or _difference(state["options"], wanted)
    if difference:
        raise TrainingError(f"{path}: {difference}. Use the same store and options, or another `out`.")
    if state["batch"] and state["ranks"] != ranks:
        raise TrainingError(
            f"{path}: expected {state['ranks']} ranks to go on within an epoch, found {ranks}. "
            "Another number is possible between two epochs."
        )
    return state


def _is_plain(value: object) -> bool:
    """Whether an option is a number, a text, None, or a list of numbers."""
    members = value if isinstance(value, list) else [value]
    return all(member is None or type(member) in (bool, int, float, str) for member in members)


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> str:
    """What differs first between two trees of plain values, in words; empty where nothing does."""
    for name in now:
        a, b = plain(before.get(name)), plain(now[name])
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := _difference(a, b, f"{where}{name}."):
                return inner
        elif a != b:
            return f"`{where}{name}`: expected {_brief(a)} as in the checkpoint, found {_brief(b)}"
    return ""


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
