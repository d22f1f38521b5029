"""The command group. A command's module is imported when it is called, and its libraries when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from tensorstore_ds.plugins import Plugins
from tsds_cli import text
from tsds_cli.messages import described, failure_of, interrupted, make_readable
from tsds_cli.options import help_all, shows_all
from tsds_cli.signals import end, terminable

#: The commands by group: the module and summary of each. None is imported for the help.
GROUPS = {
    "Start": {
        "convert": ("convert", "Convert a data set of images SRC into a new store OUT."),
        "demo": ("annex.demo", "Try everything on real digits: convert, check and train."),
    },
    "Look": {
        "info": ("info", "Show the splits, fields, classes and size of a STORE."),
        "stats": ("info", "Print statistics of the classes and pixels of a STORE."),
        "view": ("annex.look", "View a store, a training run or images in the browser."),
        "preview": ("annex.look", "Draw samples of a STORE as a contact sheet (PNG)."),
        "check": ("annex.check", "Find duplicates, leaks and label errors in a STORE."),
        "verify": ("info", "Verify the integrity of a STORE, byte by byte."),
        "compare": ("annex.look", "Compare the stores A and B, and list the differences."),
    },
    "Edit": {
        "append": ("annex.edit", "Append the samples of a data set SRC to a STORE."),
        "update": ("annex.edit", "Update a STORE with the changes in its data set SRC."),
        "filter": ("annex.edit", "Filter the samples of a STORE into a new store OUT."),
        "split": ("annex.edit", "Split a STORE into train, val and so on, as a store OUT."),
        "sample": ("annex.edit", "Sample N images of each class into a new store OUT."),
        "relabel": ("annex.edit", "Rename, merge or remove classes in a new store OUT."),
        "merge": ("annex.edit", "Merge several stores into a new store OUT."),
        "repack": ("annex.edit", "Change the encoding or layout of a store SRC, as OUT."),
        "add": ("annex.edit", "Add a field, such as losses or tags, to a STORE."),
        "drop": ("annex.edit", "Remove the fields NAME from a STORE, in place."),
        "erase": ("annex.edit", "Erase samples from a STORE permanently, in place."),
        "annotate": ("annex.edit", "Set license, citation and description of a STORE."),
    },
    "Training": {
        "train": ("annex.training", "Train a vision transformer or a detector on a STORE."),
        "predict": ("annex.training", "Predict classes or objects with a trained CHECKPOINT."),
        "folds": ("annex.training", "Show or write cross-validation folds of a STORE."),
        "bench": ("annex.measure", "Benchmark ways to load a STORE and its source files."),
        "doctor": ("annex.measure", "Find what slows training down, and how to speed it up."),
    },
    "Share": {
        "push": ("share", "Upload a STORE to a URL."),
        "pull": ("share", "Download a store, or parts of it, from a URL to OUT."),
        "copy": ("share", "Copy a store from SRC to DST, each a path or a URL."),
        "pack": ("share", "Pack a STORE into a single file OUT."),
        "unpack": ("share", "Unpack a PACKED store into a folder OUT."),
        "serve": ("annex.publish", "Serve a STORE over HTTP."),
        "card": ("annex.publish", "Write a dataset card for a STORE, with a preview."),
        "export": ("annex.publish", "Export a STORE to COCO, YOLO, VOC or another format."),
        "table": ("annex.publish", "Write the samples of a STORE as a table, without images."),
    },
    "Clusters": {
        "plan": ("annex.clusters", "Plan the conversion of SRC into OUT as parallel tasks."),
        "commit": ("annex.clusters", "Complete a planned store OUT once all tasks are done."),
    },
    "Caches": {
        "warm": ("memory", "Load a STORE into memory (the page cache)."),
        "evict": ("memory", "Remove a STORE from memory (the page cache)."),
        "cache": ("memory", "List or remove the copies of remote stores on this disk."),
    },
}
#: The commands that `tsds --help` describes. It shows only the names of the others.
FIRST = ("convert", "info", "view", "check", "train", "verify", "push", "pull", "doctor", "append")
#: The lines that end `tsds --help`.
LEARN_MORE = (
    ("tsds demo", "Begin here: a tour with real data, in about a minute."),
    ("tsds help GROUP", "Describe the commands of a group, such as edit."),
    ("tsds help COMMAND", "Show the options of a command, with examples."),
)
COMMANDS = Plugins(
    "tsds.commands",
    package="tsds_cli",
    own={name: (module, name, summary) for group in GROUPS.values() for name, (module, summary) in group.items()},
)


class Commands(click.Group):
    """Commands by the name of their module."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        return COMMANDS[cmd_name].load() if cmd_name in COMMANDS else None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands, followed by the options."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List documentation to read next."""
        with formatter.section("Learn more"):
            formatter.write_dl(LEARN_MORE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the first commands and the names of the others, or all."""
        groups: dict[str, Iterable[str]] = dict(GROUPS) if shows_all(ctx) else {"Commands": FIRST}
        groups["From other packages"] = [name for name, each in COMMANDS.items() if each.package]
        for title, names in groups.items():
            _describe(formatter, title, names)
        if not shows_all(ctx):
            room = formatter.width - 4 - max(map(len, GROUPS))
            others = {title: [name for name in names if name not in FIRST] for title, names in GROUPS.items()}
            with formatter.section("More commands, by group"):
                formatter.write_dl([(title.lower(), _fitting(names, room)) for title, names in others.items()])

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
        """Read the options before the command."""
        ctx.meta.update({text.WANTS_JSON: "--json" in args, text.ARGUMENTS: tuple(args)})
        if args[:1] == ["help"]:
            args = [*(args[1:] if args[1:] != ["help"] else []), "--help"]  # tsds help COMMAND
            title = args[0].title()
            if title in GROUPS and args[0] not in COMMANDS and not ctx.resilient_parsing:
                formatter = ctx.make_formatter()
                _describe(formatter, title, GROUPS[title])
                text.echo_lines(formatter.getvalue())
                ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the named command."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            from tensorstore_ds.options import meant

            if args[0].title() in GROUPS:
                ctx.fail(f"{args[0]} is a group of commands: tsds help {args[0]} lists them.")
            ctx.fail(f"No such command {args[0]!r}.{meant(args[0], [*COMMANDS, *map(str.lower, GROUPS)])}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors that a user can cause become one line, or JSON if requested, and an exit status."""
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


def _describe(formatter: click.HelpFormatter, title: str, names: Iterable[str]) -> None:
    """Write a section with the summaries of commands, if there are any."""
    if rows := [(name, COMMANDS[name].description) for name in names]:
        with formatter.section(title):
            formatter.write_dl(rows)


def _fitting(names: Sequence[str], room: int) -> str:
    """As many names as fit on one line.

    >>> _fitting(["pack", "unpack", "serve"], 20), _fitting(["pack", "unpack", "serve"], 18)
    ('pack, unpack, serve', 'pack, unpack, ...')
    """
    line = ", ".join(names)
    return line if len(line) <= room else f"{line[: room - 3].rpartition(', ')[0]}, ..."


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
        what = "expected --json after a command, or with --version, found it before the command"
        raise click.UsageError(f"{what}. Move it.")


@click.group(
    "tsds",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=True,
    params=[help_all("Describe all commands.")],
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

    Convert a folder of images and annotations once. Then train from memory in every epoch.
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
        end()


if __name__ == "__main__":
    main()
