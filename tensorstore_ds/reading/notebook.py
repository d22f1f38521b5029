"""HTML of a store, a split and a data set for notebooks: facts, and a contact sheet of some samples."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

import tensorstore_ds  # the package's face: pictures are drawn some floors above
from tensorstore_ds.errors import TsdsError, one_line

#: Samples of a sheet.
_SAMPLES = 12


def as_html(title: str, facts: Mapping[str, str], split: Any, rows: Sequence[int] | None = None) -> str:
    """A table of facts, and a contact sheet of the samples of a `Split`, if there is one, in `rows`, or some of all."""
    lines = "".join(f"<tr>{_cell(name)}{_cell(value)}</tr>" for name, value in facts.items())
    return f"<b>{html.escape(one_line(title))}</b><table>{lines}</table>{'' if split is None else _sheet(split, rows)}"


def _sheet(split: Any, rows: Sequence[int] | None) -> str:
    try:
        picture = tensorstore_ds.preview(split, rows, count=_SAMPLES)
    except TsdsError as error:  # nothing to draw, or a damaged image: the facts are worth showing
        return f"<p>{html.escape(str(error))}</p>"
    png = io.BytesIO()
    picture.save(png, "PNG")
    data = base64.b64encode(png.getvalue()).decode()
    return f'<img alt="samples of {html.escape(split.name)}" src="data:image/png;base64,{data}">'


def _cell(text: str) -> str:
    return f'<td style="text-align: left">{html.escape(one_line(text))}</td>'
