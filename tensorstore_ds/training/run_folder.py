"""The folder of a run: its two checkpoints, and whether what is there is this run's."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorstore_ds.durable import partial_of
from tensorstore_ds.errors import OptionError, TrainingError
from tensorstore_ds.training import checkpoint
from tensorstore_ds.training.checkpoint import ModelCard
from tensorstore_ds.training.learner import Learner
from tensorstore_ds.training.options import FREE_TO_CHANGE, TrainOptions
from tensorstore_ds.training.records import EpochRecord, dump_record
from tensorstore_ds.training.tasks.base import Sums


class RunFolder:
    """Reads and writes a run's checkpoints.

    Args:
        path: of the folder.
        card: of the model that is trained.
        options: of the run.

    Attributes:
        last: all that the run goes on with: the state after the last step before it was written.
        best: the model of the best epoch.
    """

    def __init__(self, path: Path, card: ModelCard, options: TrainOptions) -> None:
        self.path, self.card, self.options = path, card, options
        self.last = path / "last.pt"
        self.best = path / "best.pt"

    def begin(self, *, resume: bool, ranks: int) -> dict[str, Any] | None:
        """The state to go on with; None for a new run.

        Raises:
            OptionError: there is a run already, and it was not asked to go on; or it was begun with other options.
            TrainingError: the checkpoint is damaged, or of another model.
        """
        if not self.last.exists():
            self._clean()
            return None
        if not resume:
            raise OptionError(
                f"{self.path}: expected a new folder, found a run. Go on with `resume`, or choose another `out`."
            )
        self._clean()
        card, state = checkpoint.load(self.last)
        _check_state(self.last, state)
        difference = _difference(card.as_data(), self.card.as_data()) or self._other_option(state)
        if difference:
            raise TrainingError(f"{self.last}: {difference}. Use the same store and options, or another `out`.")
        if state["batch"] and state["ranks"] != ranks:
            raise TrainingError(
                f"{self.last}: expected {state['ranks']} ranks to go on within an epoch, found {ranks}. "
                "Another number is possible between two epochs."
            )
        return state

    def _clean(self) -> None:
        """Remove what a run that was killed had half written."""
        for path in (self.last, self.best):
            partial_of(path).unlink(missing_ok=True)

    def _other_option(self, state: Mapping[str, Any]) -> str:
        now = self.options.as_data()
        return _difference(state["options"], {name: now[name] for name in now if name not in FREE_TO_CHANGE})

    def check_space(self, learner: Learner) -> None:
        """Raise a `TrainingError` if the disk has no room for the checkpoints of a run."""
        weights = sum(p.numel() * p.element_size() for p in learner.module.parameters())
        copies = 3 + (learner.average is not None)  # weights and two moments of each; and their average
        needed = weights * (2 * copies + 2)  # a new one is written before the old one goes; best.pt likewise
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise TrainingError(
                f"{self.path}: expected {needed / 1e6:,.0f} MB of free disk for checkpoints, found "
                f"{free / 1e6:,.0f} MB. Make room, or choose another `out`."
            )

    def save_last(self, learner: Learner, position: Mapping[str, Any]) -> None:
        """Write the state of a run."""
        weights = learner.best_weights.state_dict()
        options = _plain(self.options.as_data())
        content = {"weights": weights, "learner": learner.state_dict(), "options": options, **position}
        checkpoint.save(self.last, self.card, content)

    def save_best(self, learner: Learner, record: EpochRecord, sums: Sums) -> None:
        """Write the model of an epoch, with its metrics and what they were made of."""
        content = {"weights": learner.best_weights.state_dict(), "record": dump_record(record), "sums": sums}
        checkpoint.save(self.best, self.card, content)


#: What a checkpoint has of a run, beside the weights.
_STATE: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("learner", "options", "tally", "loader"), (dict,)),
    **dict.fromkeys(("epoch", "batch", "ranks"), (int,)),
    **dict.fromkeys(("seconds", "wait"), (int, float)),
}


def _check_state(path: Path, state: Mapping[str, Any]) -> None:
    """Raise a `TrainingError` unless a checkpoint has what a run goes on with."""
    wrong = [name for name, kinds in _STATE.items() if type(state.get(name)) not in kinds]
    if wrong or not all(_is_plain(value) for value in state["options"].values()):
        raise checkpoint.unusable(path, ValueError(f"no state of a run: {wrong[0] if wrong else 'options'}"))


def _is_plain(value: object) -> bool:
    """Whether an option is a number, a text, None, or a list of numbers."""
    members = value if isinstance(value, list) else [value]
    return all(member is None or type(member) in (bool, int, float, str) for member in members)


def _plain(value: Any) -> Any:
    """Tuples as lists, as a checkpoint holds them."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _difference(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> str:
    """What differs first between two trees of plain values, in words; empty where nothing does."""
    for name in now:
        a, b = _plain(before.get(name)), _plain(now[name])
        if isinstance(a, dict) and isinstance(b, dict):
            if inner := _difference(a, b, f"{where}{name}."):
                return inner
        elif a != b:
            return f"{where}{name}: expected {_brief(a)} as in the checkpoint, found {_brief(b)}"
    return ""


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
