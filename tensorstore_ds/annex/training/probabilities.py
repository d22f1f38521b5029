"""Probabilities of classes that a trained model predicts for the samples of a store."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorstore_ds.annex.sources.arrays.source import NPY_HEAD, read_npy_header
from tensorstore_ds.annex.training.checkpoint import unusable
from tensorstore_ds.annex.training.prediction import model_for
from tensorstore_ds.annex.training.row_predictions import outputs_of
from tensorstore_ds.annex.training.tasks import Classification
from tensorstore_ds.durable import write_file
from tensorstore_ds.errors import OptionError, TrainingError
from tensorstore_ds.options import user_path
from tensorstore_ds.reading.store import Split
from tensorstore_ds.reading.store_files import check_outside_stores
from tensorstore_ds.regular_files import open_file, os_errors


def predict_probabilities(
    checkpoint: str | os.PathLike[str],
    store: str | os.PathLike[str],
    *,
    split: str | None = None,
    fold: bool = False,
    device: str | None = None,
) -> NDArray[np.float32]:
    """Predict the probability of each class for the samples of a split, with a checkpoint of ``task="classification"``.

    >>> found = tsds.training.predict_probabilities("photos.run/best.pt", "photos.tsds", split="val", device="cpu")
    >>> found.shape, found.dtype, found.sum(axis=1).round(3).tolist()
    ((4, 2), dtype('float32'), [1.0, 1.0, 1.0, 1.0])

    Args:
        checkpoint: path of `best.pt` or `last.pt` of a run.
        store: path of the store.
        split: name of the split. None uses the first of val, valid, validation and test, else the first split.
        fold: predict only the rows that the training run held out with its own `fold`, which the model has not seen.
            `split` is then the one that the run was trained on.
        device: device to compute on, such as ``cuda`` or ``cpu``. None uses a GPU if there is one.

    Returns:
        Softmax of the outputs, (n, K) float32, with a row for each sample of the split and a column for each class of
        the model. Rows of other folds are NaN.

    Raises:
        TrainingError: the checkpoint is damaged, belongs to a different task, or, for `fold`, to a run without one; or
            its model returns NaN.
        OptionError: the store does not contain the split, has different channels or classes than the model, or is not
            the store of the run, for `fold`.
        FormatError: the store is damaged.
    """
    model, card, opened, chosen, held_out = model_for(checkpoint, store, split, device)
    if not isinstance(card.task, Classification):
        raise TrainingError(
            f"{os.fspath(checkpoint)}: expected a model for classification, found one for {card.task.name}. Use the "
            "checkpoint of another run."
        )
    rows = _checked(user_path(checkpoint), held_out, chosen) if fold else np.arange(len(chosen))
    made = np.full((len(chosen), len(card.task.classes)), np.nan, np.float32)
    seen = 0
    for outputs, _ in outputs_of(model, card, opened, chosen, os.fspath(checkpoint), rows):
        values = outputs.float().softmax(1).cpu().numpy()
        made[rows[seen : seen + len(values)]] = values
        seen += len(values)
    return made


def _checked(path: Path, held: Any, split: Split) -> NDArray[np.int64]:
    """The rows of a split that the run of a checkpoint was evaluated on, and not trained, from the checkpoint."""
    if held is None:
        raise TrainingError(f"{path}: expected the checkpoint of a run with `fold`, found another. Train with `fold`.")
    try:
        name, samples, rows = held["split"], held["samples"], held["rows"].numpy()
        if rows.dtype != np.int64 or rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < samples):
            raise ValueError("rows outside of the split")
        trained_on = f"{name} of {samples:,} samples"
    except Exception as error:  # whatever damaged values make NumPy and torch stumble over
        raise unusable(path, error, "Use another checkpoint.") from error
    if (name, samples) != (split.name, len(split)):
        raise OptionError(
            f"`split`: expected {trained_on}, whose fold the run held out, found {split.name} of {len(split):,}. Name "
            "the split and the store of the run."
        )
    return np.asarray(rows)


def write_probabilities(path: str | os.PathLike[str], probabilities: NDArray[np.float32]) -> int:
    """Write probabilities (n, K) to a ``.npy`` file, as float32. Rows that are NaN keep the values of an existing file.

    With several calls, you can combine the predictions of all folds in one file.

    >>> probabilities = np.full((4, 2), 0.5, np.float32)
    >>> probabilities[2:] = np.nan  # rows of other folds
    >>> tsds.training.write_probabilities("probabilities.npy", probabilities)
    2

    Returns:
        The number of rows in the file that are NaN.

    Raises:
        OptionError: the file would be inside a store, or contains an array of a different shape or type.
        SourceError: the existing file cannot be read.
        OutputError: the file cannot be written.
    """
    out = user_path(path)
    check_outside_stores(out)
    made: NDArray[np.float32] = probabilities
    absent = np.asarray(np.isnan(made).any(axis=1))
    if absent.any() and out.exists():
        with os_errors(str(out)), open_file(out, str(out)) as stream:
            header = read_npy_header(stream.read(NPY_HEAD), str(out), out)
        before = header.map()
        if before.shape != made.shape or before.dtype.kind != "f":
            raise OptionError(
                f"{out}: expected probabilities of shape {made.shape}, found {before.dtype} of shape {before.shape}. "
                "Choose another file."
            )
        made = np.where(absent[:, None], before, made)
    content = io.BytesIO()
    np.save(content, made.astype(np.float32), allow_pickle=False)
    write_file(out, content.getvalue())
    return int(np.isnan(made).any(axis=1).sum())
