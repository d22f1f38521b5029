"""What the commands have in common that change a store by a data set."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import tensorstore_ds
from tensorstore_ds import ConvertOptions
from tsds_cli import text
from tsds_cli.annex.editing import made
from tsds_cli.options import READERS, F, option, option_of

if TYPE_CHECKING:
    from tensorstore_ds import GrowthSummary, SampleCount

_NAMED = 3  # keys, and skipped samples, that are printed

dry_run_option = option(
    "--dry-run",
    is_flag=True,
    help="Change nothing. Convert SRC, and print the changes.",
    group="Essential",
)


restore_erased_option = option(
    "--restore-erased",
    is_flag=True,
    help="Store samples that tsds erase has removed from the STORE before.",
    group="Essential",
)


def from_source(*names: str) -> Callable[[F], F]:
    """The options of a conversion that may differ from the options of the store."""

    def decorate(command: F) -> F:
        for name in reversed((*names, "on_error", "workers")):
            kept = {"show_default": "as in the STORE"} if name in ("size", "fit", "color") else {}
            command = option_of(ConvertOptions, name, **kept)(command)
        return command

    return decorate


def grown(
    ctx: click.Context, change: Callable[..., GrowthSummary], store: Path, source: Path, as_json: bool, given: Any
) -> None:
    """Change a store, and print what was done."""
    changes = {n: value for n, value in given.items() if ctx.get_parameter_source(n) is ParameterSource.COMMANDLINE}
    for name in READERS.keys() & changes.keys():
        changes[name] = getattr(tensorstore_ds, READERS[name])(changes[name])
    done: list[GrowthSummary] = []

    def run(**progress: Any) -> GrowthSummary:
        done.append(change(store, source, **changes, **progress))
        return done[-1]

    def told() -> None:
        _tell(done[-1], is_update=given.get("update", True))
        if given["dry_run"]:
            text.echo("dry run: nothing was changed")

    whole = shlex.join(each for each in ctx.meta[text.ARGUMENTS] if each != "--dry-run") if given["dry_run"] else ""
    made(store, as_json, run, again="the same command goes on, unless all was done", told=told, following=whole)


def _tell(summary: GrowthSummary, *, is_update: bool) -> None:
    if summary.added.count:
        text.echo(f"appended: {_named(summary.added)}")
    if summary.updated.count:
        fields = ", ".join(f"{name} of {count:,}" for name, count in summary.updated_fields.items())
        text.echo(f"updated: {_named(summary.updated)} ({fields})")
    if not summary.added.count and not summary.updated.count:
        text.echo("nothing changed" if summary.not_added.count else "nothing new")
    for what, some in (
        ("already there", summary.already_there),
        ("already there, not compared", summary.not_compared),
        ("not added", summary.not_added),
        ("not stored, because they were erased before (--restore-erased stores them)", summary.erased),
    ):
        if some.count:
            text.echo(f"{what}: {_named(some)}")
    if summary.only_in_store and is_update:
        keys = ", ".join(summary.kept[:_NAMED]) + (", ..." if summary.only_in_store > _NAMED else "")
        text.echo(f"kept: {text.count(summary.only_in_store, 'sample')} that SRC lacks: {keys}")
    if summary.not_added.count and not summary.updated.count and not summary.already_there.count:
        text.echo("The store has none of the keys of SRC: name the folder that the store was made of.")
    elif summary.not_added.count and summary.only_in_store:
        text.echo("A moved or renamed file has a new key: to drop its old sample, convert SRC again.")
    if summary.skipped:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in summary.skipped.items())
        text.echo(f"skipped: {sum(summary.skipped.values()):,} ({reasons})")
        problems = [problem for problem in summary.left_out if problem.reason in summary.skipped]
        for problem in problems[:_NAMED]:
            text.echo(f"  {problem}")
        if len(problems) > _NAMED:
            text.echo(f"  and {len(problems) - _NAMED:,} more; --json prints all")


def _named(some: SampleCount) -> str:
    keys = ", ".join(some.keys[:_NAMED]) + (", ..." if some.count > _NAMED else "")
    return f"{text.count(some.count, 'sample')}: {keys}"
