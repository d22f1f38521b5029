"""``tsds card``: the papers that go with a shared store."""

from __future__ import annotations

from pathlib import Path

import click

from tsds_cli import text
from tsds_cli.options import json_option, option, path as path_type, path_argument


@click.command()
@path_argument("store")
@click.argument("out", type=path_type, metavar="[OUT_DIR]", required=False)
@option(
    "--from",
    "answers",
    type=path_type,
    metavar="FILE",
    help="Answers to the questions of the card, as YAML or TOML.",
    show_default="card.yaml in OUT_DIR, which the first call creates",
)
@option("--croissant", is_flag=True, help="Also write croissant.json, and small samples as Parquet in preview/.")
@option("--strict", is_flag=True, help="Fail if answers are missing, and list them.")
@json_option
def card(store: Path, out: Path | None, answers: Path | None, croissant: bool, strict: bool, as_json: bool) -> None:
    """Write a dataset card for a STORE, with a preview.

    OUT_DIR is by default the folder NAME-card next to the store. README.md describes the data, how it was made and its
    known problems. CITATION.cff and datacite.json contain the citation. The command writes questions that only you can
    answer to card.yaml. Answer them, and run the command again.

    \b
    Examples:
      tsds card photos.tsds
      tsds card photos.tsds photos-card --croissant --strict
      tsds card photos.tsds hub --from card.yaml --croissant
    """
    import tensorstore_ds as tsds

    written = tsds.card(store, out, answers=answers, croissant=croissant, strict=strict)
    if as_json:
        text.echo_json(written)
        return
    text.echo(text.Styled(str(written.path), bold=True), f"  {', '.join(written.files)}")
    if written.missing:
        shown = ", ".join(written.missing)
        text.echo(text.Styled(f"missing: {shown}", fg="yellow"))
        text.echo(f"next: fill in {written.questions}, and run this again")
