"""HTML of a store, a split and a data set for notebooks: facts, and a contact sheet of some samples."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

import tensorstore_ds  # the package's face: pictures are drawn some floors above
from tensorstore_ds.errors import TsdsError, one_line
from tensorstore_ds.format.kinds.base import Field

#: Samples of a sheet, and classes that are counted one by one.
_SAMPLES, _CLASSES = 12, 10


class ShownSplit(Protocol):
    """What the HTML needs of a split."""

    name: str
    fields: Mapping[str, Field]

    @property
    def class_counts(self) -> Mapping[str, Mapping[str, int]]: ...  # noqa: D102  # as of `Split`
    @property
    def unlabelled(self) -> Mapping[str, int]: ...  # noqa: D102  # as of `Split`


def as_html(title: str, facts: Mapping[str, str], split: ShownSplit | None, rows: Sequence[int] | None = None) -> str:
    """A table of facts, and a contact sheet of the samples in `rows`, or of some of all."""
    lines = "".join(f"<tr>{_cell(name)}{_cell(value)}</tr>" for name, value in facts.items())
    return f"<b>{html.escape(one_line(title))}</b><table>{lines}</table>{'' if split is None else _sheet(split, rows)}"


def facts_of(split: ShownSplit, fields: Iterable[str]) -> dict[str, str]:
    """Description of each field, by name, and the frequency of each class."""
    facts = {name: split.fields[name].describe() for name in fields}
    for name in fields:
        if counts := split.class_counts.get(name):
            most = sorted(counts.items(), key=lambda item: -item[1])
            rest = f" and {len(most) - _CLASSES:,} more" if len(most) > _CLASSES else ""
            unlabelled = split.unlabelled.get(name)
            rest += f"; {unlabelled:,} unlabelled" if unlabelled else ""
            facts[f"classes of {name}"] = ", ".join(f"{c} {n:,}" for c, n in most[:_CLASSES]) + rest
    return facts


def _sheet(split: ShownSplit, rows: Sequence[int] | None) -> str:
    try:
        picture = tensorstore_ds.preview(cast(Any, split), rows, count=_SAMPLES)
    except TsdsError as error:  # nothing to draw, or a damaged image: the facts are worth showing
        return f"<p>{html.escape(str(error))}</p>"
    png = io.BytesIO()
    picture.save(png, "PNG")
    data = base64.b64encode(png.getvalue()).decode()
    return f'<img alt="samples of {html.escape(split.name)}" src="data:image/png;base64,{data}">'


def _cell(text: str) -> str:
    return f'<td style="text-align: left">{html.escape(one_line(text))}</td>'
