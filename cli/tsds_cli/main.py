"""The command group. A command's module is imported when it is called, and its libraries when it runs."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import click

from tsds_cli import text
from tsds_cli.messages import described, failure_of, interrupted, make_readable
from tsds_cli.signals import terminable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: The commands by what they are for, and what each does, for `tsds --help`, which imports none of them.
GROUPS = {
    "Make a store": {
        "convert": "Convert the data set SRC, or several, into a new store OUT.",
        "plan": "Plan the conversion of SRC into OUT by several processes.",
        "commit": "Let the planned store OUT appear, once all of its tasks are done.",
        "demo": "Convert, verify, draw and train on real handwritten digits.",
    },
    "Inspect a store": {
        "info": "Show what a STORE holds.",
        "stats": "Print the statistics of a STORE, for each split.",
        "folds": "Show the folds of a STORE for cross validation, or write them.",
        "view": "Show a store, a training run or a folder of images in the browser.",
        "preview": "Draw samples of a STORE as a contact sheet (PNG).",
        "check": "Say what is wrong with the content of a STORE.",
        "verify": "Check every byte of a STORE.",
        "compare": "Say what differs between the stores A and B.",
    },
    "Change a store": {
        "append": "Convert the data set SRC, and append its samples to a STORE.",
        "update": "Take what has changed in the data set SRC into a STORE.",
        "erase": "Erase samples from a STORE in place, and every byte of them.",
        "add": "Add a field to a STORE, such as losses or tags, from a FILE.",
        "drop": "Drop the fields NAME from a STORE in place, and remove their files.",
        "annotate": "Note license, citation or description in a STORE.",
        "filter": "Write the samples of a STORE that meet a condition as the store OUT.",
        "split": "Divide the samples of a STORE anew, as the store OUT.",
        "sample": "Write some samples of each class of a STORE as the store OUT.",
        "relabel": "Write a STORE with other class names as the store OUT.",
        "merge": "Write the samples of several stores as one store OUT.",
        "repack": "Write the store SRC again as OUT, in another layout or encoding.",
    },
    "Share a store": {
        "card": "Write the papers of a STORE: card, preview, citation.",
        "pack": "Pack a STORE into one file OUT, to be published or sent.",
        "unpack": "Make the folder OUT of a PACKED store again.",
        "serve": "Serve a STORE over HTTP, to be read by range.",
        "push": "Copy a STORE to a URL.",
        "pull": "Copy the store at a URL, or a part of it, to OUT.",
        "copy": "Copy a store from SRC to DST, each a path or a URL.",
        "cache": "Show the stores by URL that are kept on this disk.",
        "export": "Write the samples of a STORE as files in the new folder OUT.",
    },
    "Train and measure": {
        "train": "Train a vision transformer or a detector on a STORE.",
        "predict": "Print what the model of a CHECKPOINT predicts for IMAGES.",
        "bench": "Compare ways to load a STORE, and the files that it was made of.",
        "doctor": "Measure what holds training back, and say what to change.",
        "warm": "Read a STORE into the page cache.",
        "evict": "Drop a STORE from the page cache.",
    },
}
COMMANDS = {name: summary for group in GROUPS.values() for name, summary in group.items()}


class Commands(click.Group):
    """Commands by the name of their module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return [*COMMANDS, *_added()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            if cmd_name not in _added():
                return None
            from tensorstore_ds.plugins import Plugin

            return cast(click.Command, Plugin.of(_added()[cmd_name]).load())
        command: click.Command = getattr(importlib.import_module(f"tsds_cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands."""
        added = {name: f"from {each.dist and each.dist.name}" for name, each in _added().items()}
        for title, group in {**GROUPS, "From other packages": added}.items():
            if group:
                with formatter.section(title):
                    formatter.write_dl(list(group.items()))

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **extra: Any) -> click.Context:
        """Read the command line."""
        given = tuple(args)
        try:
            return super().make_context(info_name, args, *others, **extra)
        except click.ClickException as error:
            if given:  # without anything, the message is the help
                make_readable(error)
            raise
        except KeyboardInterrupt:  # click would say Aborted!
            raise interrupted() from None

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options that stand before the command."""
        ctx.meta.update({text.WANTS_JSON: "--json" in args, text.ARGUMENTS: tuple(args)})
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is named."""
        if args[0] not in COMMANDS and not args[0].startswith("-") and args[0] not in _added():
            from tensorstore_ds.options import meant

            ctx.fail(f"No such command {args[0]!r}.{meant(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what a user can cause becomes one line and an exit status, and JSON where that is wanted."""
        try:
            return self._invoke(ctx)
        except click.ClickException as error:
            if ctx.meta.get(text.WANTS_JSON):
                text.echo_json(described(error))
            raise

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            make_readable(error)
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except (Exception, KeyboardInterrupt) as error:
            name = ctx.invoked_subcommand
            failure = failure_of(error, self.get_command(ctx, name) if name else None)
            if failure is None:
                raise
            raise failure from error


@functools.cache
def _added() -> Mapping[str, EntryPoint]:
    """The commands of other packages: their entry points ``tsds.commands``."""
    from importlib.metadata import entry_points  # here, because most commands need it never

    points = sorted(entry_points(group="tsds.commands"), key=lambda point: point.name)
    return {point.name: point for point in points if point.name not in COMMANDS}


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        import tensorstore_ds as tsds

        if ctx.meta[text.WANTS_JSON]:
            text.echo_json(tsds.installation())
        else:
            text.echo(f"tsds {tsds.__version__}")
        ctx.exit()


def _with_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and "--version" not in ctx.meta[text.ARGUMENTS]:
        raise click.UsageError(
            "expected --json after a command, or with --version, found it before the command. Move it."
        )


@click.group(
    "tsds",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    epilog="Begin with: tsds demo. For the options of a command: tsds COMMAND --help.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Print the version."
)
@click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_with_version,
    help="With --version: print JSON, also the versions of Python and torch, and which compiled kernels are in use.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Image data sets as memory-mapped Zarr stores.

    Convert a folder of images and annotations once; then read it at the speed of memory in every epoch.
    """
    if "NO_COLOR" in os.environ:
        ctx.color = False


def main() -> None:
    """The command line of ``tsds``, which `tsds_cli.program` runs."""
    try:
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:  # a closed stream is None
                reconfigure(errors="backslashreplace")  # a terminal without Unicode gets escapes, not a traceback
        with terminable():
            cli(prog_name="tsds")
    except KeyboardInterrupt:  # before a command has begun, or after it has ended
        failure = interrupted()
        failure.show()
        sys.exit(failure.exit_code)


if __name__ == "__main__":
    main()
