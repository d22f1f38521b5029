"""``tsds annotate``: license, citation and description are noted in a store."""

from __future__ import annotations

from pathlib import Path

import click

from tensorstore_ds import ConvertOptions
from tsds_cli import text
from tsds_cli.options import json_option, option, option_of, path_argument, text_or_file


@click.command()
@path_argument("store")
@option_of(
    ConvertOptions,
    "license",
    help="License of the data: an SPDX expression, such as CC-BY-4.0, or LicenseRef-NAME for a license that SPDX does "
    "not list. An empty text removes it.",
)
@option_of(
    ConvertOptions,
    "citation",
    help="Citation of the data: a text, or @FILE for the text in a file. An empty text removes it.",
)
@option(
    "--description",
    metavar="TEXT|@FILE",
    help="Description of the data in a few sentences. An empty text removes it.",
)
@json_option
def annotate(store: Path, license: str | None, citation: str | None, description: str | None, as_json: bool) -> None:
    """Set license, citation and description of a STORE.

    Only the manifest is rewritten, in one step. This changes the digest of the store, which identifies copies, so
    annotate before you share. Processes with the store open are not affected.

    \b
    Examples:
      tsds annotate photos.tsds --license CC-BY-4.0
      tsds annotate photos.tsds --citation @paper.bib --description @about.txt
    """
    import tensorstore_ds as tsds

    if license is None and citation is None and description is None:
        raise click.UsageError("Give --license, --citation or --description.")
    before = tsds.open(store).sha256
    texts = {"citation": citation, "description": description}
    read = {name: value if value is None else text_or_file(value) for name, value in texts.items()}
    opened = tsds.annotate(store, license=license, **read)
    if as_json:
        text.echo_json({"path": store, "before": before, "sha256": opened.sha256})
        return
    if before == opened.sha256:
        text.echo(f"{store}: nothing changed, all of this was noted already")
        return
    text.echo(text.Styled(str(store), bold=True), "  annotated; its digest has changed")
    text.echo_table([("before", before), ("now", opened.sha256)])
