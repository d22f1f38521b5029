"""The report of a run, as a file."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tensorstore_ds.annex.training.options import TrainOptions
from tensorstore_ds.annex.training.report import write_report
from training_stores import strict_json as strict


def test_a_report_is_indented_json_in_the_order_of_its_data(tmp_path: Path) -> None:
    name = os.fsdecode(b"photo-\xff.png")  # a file's name may be any bytes
    data = {
        "store": Path("digits.tsds"),
        "best": {"epoch": np.int64(3), "accuracy": np.float32(0.5), "nme": math.nan},
        "confusion": torch.tensor([[5, 1], [0, 4]]),
        "errors": np.array([0.5, math.inf]),
        "classes": ("Käfer", name),
        "options": TrainOptions(),
        "whole": True,
    }
    write_report(tmp_path, {"epoch": 1})
    path = write_report(tmp_path, data)
    text = path.read_text("utf-8")
    found = strict(text)
    assert path == tmp_path / "report.json" and list(found) == list(data)
    assert text.startswith('{\n  "store": "digits.tsds",\n  "best": {\n    "epoch": 3,') and text.endswith("}\n")
    assert '"Käfer"' in text and found["classes"] == ["Käfer", name]
    assert found["best"] == {"epoch": 3, "accuracy": 0.5, "nme": None}
    assert found["confusion"] == [[5, 1], [0, 4]] and found["errors"] == [0.5, None]
    assert found["options"] == TrainOptions().as_data() and found["whole"] is True
    with pytest.raises(TypeError, match="expected what JSON can hold, found function"):
        write_report(tmp_path, {"epoch": write_report})
    assert path.read_text("utf-8") == text and [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
