"""Commands that derive a store from others, or change one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

import tensorstore_ds as tsds
from tensorstore_ds import ConvertOptions, words
from tensorstore_ds.conversion import RepackOptions
from tensorstore_ds.errors import OptionError
from tsds_cli import text
from tsds_cli.annex.options import seed_option
from tsds_cli.messages import interrupted
from tsds_cli.options import (
    READERS,
    Command,
    F,
    fractions,
    json_option,
    option,
    option_of,
    options_of,
    path,
    path_argument,
    sha256_option,
    splits_option,
    store_argument,
    store_place,
    text_or_file,
)
from tsds_cli.progress import working

if TYPE_CHECKING:
    from tensorstore_ds.annex.editing import ErasureSummary, FieldsSummary, GrowthSummary, SampleCount

_LIMIT = 1 << 28  # bytes of a file that lists samples
_NAMED = 3  # keys, and skipped samples, that are printed; --json prints all


def made(
    out: Path,
    as_json: bool,
    run: Callable[..., Any],
    *,
    again: str = "",
    told: Callable[[Any], None] = lambda _: None,
    following: str = "",
) -> None:
    """Run a function of the library with a progress bar, and print its summary.

    `again` is the message after an interruption, by default that `out` was not made. `told` prints more of the summary.
    `following` is the command to run next, by default `tsds info`.
    """
    with working(f"interrupted; {again}" if again else out, resumable=True) as bar:
        summary = run(progress=bar.update)
    if as_json:
        text.echo_json(summary)
        return
    samples = text.count(sum(summary.rows.values()), "sample")
    text.title(out, f"{samples}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}")
    width = max(map(len, summary.rows))
    for name, rows in summary.rows.items():
        text.echo(f"  {name:<{width}}  {rows:,}")
    told(summary)
    text.echo(f"next: {text.program()} {following}" if following else f"next: {text.call('info', out)}")


def tell_added(summary: FieldsSummary) -> None:
    """Print which fields were added to a store."""
    for name, what in summary.fields.items():
        text.echo(f"added: {name} ({what})")


def _this_command() -> str:
    """The current command line, without ``--dry-run``."""
    return shlex.join(each for each in click.get_current_context().meta[text.ARGUMENTS] if each != "--dry-run")


# --- a store changed by a data set --------------------------------------------------------------------------------

dry_run_option = option(
    "--dry-run", is_flag=True, help="Change nothing. Convert SRC, and print the changes.", group="Essential"
)
restore_erased_option = option(
    "--restore-erased",
    is_flag=True,
    help="Store samples that tsds erase has removed from the STORE before.",
    group="Essential",
)


def _from_source(*names: str) -> Callable[[F], F]:
    """The options of a conversion that may differ from the options of the store."""

    def decorate(command: F) -> F:
        for name in reversed((*names, "on_error", "workers")):
            kept = {"show_default": "as in the STORE"} if name in ("size", "fit", "color") else {}
            command = option_of(ConvertOptions, name, **kept)(command)
        return command

    return decorate


@click.command(cls=Command)
@path_argument("store")
@path_argument("source", "SRC")
@_from_source(
    "format", "images", "classes", "keypoints", "key_prefix", "size", "fit", "color", "split_into", "class_map"
)
@option(
    "--update",
    is_flag=True,
    help="Replace samples of the STORE with different samples of SRC that have the same keys.",
    group="Essential",
)
@option(
    "--compare/--no-compare",
    default=True,
    show_default=True,
    help="Compare samples with the same keys in SRC and the STORE. Without it, they are skipped unread, which is "
    "faster.",
    group="Essential",
)
@restore_erased_option
@dry_run_option
@json_option
@click.pass_context
def append(ctx: click.Context, /, store: Path, source: Path, as_json: bool, **given: Any) -> None:
    """Append the samples of a data set SRC to a STORE.

    Samples that are already in the store are skipped, so SRC can be the folder that the store was made from, with new
    files. If a key is used by a different sample, the command fails, unless you pass --update or --key-prefix. Fields,
    flags, keypoints and classes that only one side has are added. Images are stored in the same form as in the store.

    The manifest is replaced last, in one step. Processes with the store open keep the old view.

    \b
    Examples:
      tsds append photos.tsds photos
      tsds append photos.tsds more/photos --on-error skip
      tsds append photos.tsds june --key-prefix june/
    """
    _grown(ctx, tsds.append, store, source, as_json, given)


@click.command(cls=Command)
@path_argument("store")
@path_argument("source", "SRC")
@_from_source("format", "images", "classes", "keypoints", "key_prefix", "size", "fit", "color", "class_map")
@restore_erased_option
@dry_run_option
@json_option
@click.pass_context
def update(ctx: click.Context, /, store: Path, source: Path, as_json: bool, **given: Any) -> None:
    """Update a STORE with the changes in its data set SRC.

    Labels, boxes, keypoints, captions, masks and images of samples with the same keys are replaced if they differ.
    Samples, fields and values that are not in SRC are kept. Samples that are not in the store are counted, but not
    added: use tsds append --update for that.

    The manifest is replaced last, in one step. Processes with the store open keep the old view.

    \b
    Examples:
      tsds update voc.tsds voc
      tsds update voc.tsds corrected/voc --dry-run
    """
    _grown(ctx, tsds.update, store, source, as_json, given)


def _grown(
    ctx: click.Context, change: Callable[..., GrowthSummary], store: Path, source: Path, as_json: bool, given: Any
) -> None:
    changes = {n: value for n, value in given.items() if ctx.get_parameter_source(n) is ParameterSource.COMMANDLINE}
    for name in READERS.keys() & changes.keys():
        changes[name] = getattr(tsds.conversion, READERS[name])(changes[name])

    def told(summary: GrowthSummary) -> None:
        _tell_grown(summary, is_update=given.get("update", True))
        if given["dry_run"]:
            text.echo("dry run: nothing was changed")

    again, following = "the same command goes on, unless all was done", _this_command() if given["dry_run"] else ""
    made(store, as_json, partial(change, store, source, **changes), again=again, told=told, following=following)


def _tell_grown(summary: GrowthSummary, *, is_update: bool) -> None:
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
        keys = text.some(summary.kept, _NAMED, summary.only_in_store)
        text.echo(f"kept: {text.count(summary.only_in_store, 'sample')} that SRC lacks: {keys}")
    if summary.not_added.count and not summary.updated.count and not summary.already_there.count:
        text.echo("The store has none of the keys of SRC: name the folder that the store was made of.")
    elif summary.not_added.count and summary.only_in_store:
        text.echo("A moved or renamed file has a new key: to drop its old sample, convert SRC again.")
    if summary.skipped:
        text.echo(f"skipped: {sum(summary.skipped.values()):,} ({text.counts(summary.skipped)})")
        problems = [problem for problem in summary.left_out if problem.reason in summary.skipped]
        for problem in problems[:_NAMED]:
            text.echo(f"  {problem}")
        if len(problems) > _NAMED:
            text.echo(f"  and {len(problems) - _NAMED:,} more; --json prints all")


def _named(some: SampleCount) -> str:
    return f"{text.count(some.count, 'sample')}: {text.some(some.keys, _NAMED, some.count)}"


# --- new stores ---------------------------------------------------------------------------------------------------


@click.command()
@store_argument()
@path_argument("out")
@option("--where", metavar="CONDITION", help="Keep samples that meet this condition. See the examples.")
@option(
    "--keys",
    type=path,
    metavar="FILE",
    help="Keep samples whose keys a file lists: a table with a column key (.csv, .tsv, .parquet), or a text with a key "
    "on each line.",
)
@splits_option
@option(
    "--without",
    type=path,
    metavar="FILE",
    help='Remove rows that a JSON file lists, such as the output of tsds check --out: {"drop": {"train": [3, 17]}}.',
)
@json_option
def filter(
    store: str | Path,
    out: Path,
    where: str | None,
    keys: Path | None,
    splits: tuple[str, ...],
    without: Path | None,
    as_json: bool,
) -> None:
    """Filter the samples of a STORE into a new store OUT.

    A condition is written as in Python. It can use key, label, width, height, objects (their number), classes (of the
    objects), and each field with one number per sample. No image is decoded.

    \b
    Examples:
      tsds filter photos.tsds cats.tsds --where "label == 'cat' and width > 200"
      tsds filter voc.tsds dogs.tsds --where "'dog' in classes or objects > 5"
      tsds filter photos.tsds train.tsds --split train
      tsds filter photos.tsds hard.tsds --keys hard.parquet
    """
    if where is None and keys is None and not splits and without is None:
        raise click.UsageError("Give --where, --keys, --split, --without, or several of them.")
    drop, sha256 = (None, None) if without is None else listed_rows(without)
    if sha256 is not None and sha256.lower() not in ((opened := tsds.open(store)).sha256, opened.content_sha256):
        found = "rows of a different store, or of an earlier state of it"
        again = f"Check this store again: {text.call('check', store)} --out FILE"
        raise OptionError(f"{without}: expected rows of {words.shown_path(store)}, found {found}. {again}")
    rows = None if keys is None else tsds.editing.find_keys(store, keys)
    chosen: dict[str, Any] = {"splits": splits or None, "rows": rows, "drop": drop, "sha256": sha256}
    made(out, as_json, partial(tsds.editing.filter_store, store, out, where, **chosen))


class _Split(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse the option of ``tsds convert``, and name the one of this command."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name not in ("--split", "--split-into"):
                raise
            example = "tsds split STORE OUT train=0.8,val=0.2"
            raise click.UsageError(f"SHARES is an argument here, without {error.option_name}: {example}", ctx) from None


@click.command(cls=_Split)
@store_argument()
@path_argument("out")
@click.argument("shares", type=fractions, metavar="SHARES")
@seed_option("the division")
@option(
    "--group-by",
    metavar="GROUP",
    help="Keep related samples in one split: folder, images of one folder; duplicates, equal images; the name of a "
    "field with one number per sample; or a regular expression, samples in whose keys it finds the same text, in "
    "its first group if it has one.",
    show_default="each sample is assigned on its own",
)
@json_option
def split(store: str | Path, out: Path, shares: dict[str, float], as_json: bool, **given: Any) -> None:
    """Split a STORE into train, val and so on, as a store OUT.

    SHARES are names and fractions of the new splits. Each class is divided in these proportions, by a hash of the keys:
    the same samples always get the same split. No image is decoded.

    With --group-by, all samples of a group get the same split, whatever their classes.

    \b
    Examples:
      tsds split photos.tsds divided.tsds train=0.8,val=0.1,test=0.1
      tsds split photos.tsds again.tsds train=0.9,val=0.1 --seed 1
      tsds split scans.tsds apart.tsds train=0.9,val=0.1 --group-by 'patient([0-9]+)'
    """
    made(out, as_json, partial(tsds.editing.split_store, store, out, shares, **given))


@click.command()
@store_argument()
@path_argument("out")
@option("--per-class", required=True, type=click.IntRange(1), help="Number of samples per class.")
@seed_option("the sample")
@splits_option
@json_option
def sample(store: str | Path, out: Path, per_class: int, seed: int, splits: tuple[str, ...], as_json: bool) -> None:
    """Sample N images of each class into a new store OUT.

    Samples are chosen at random in each split, and keep their order. Without labels, N samples of each split are
    chosen. No image is decoded.

    \b
    Examples:
      tsds sample photos.tsds small.tsds --per-class 100
      tsds sample photos.tsds small.tsds --per-class 100 --seed 1 --split train
    """
    made(out, as_json, partial(tsds.editing.sample_store, store, out, per_class, seed=seed, splits=splits or None))


@click.command()
@store_argument()
@path_argument("out")
@option(
    "--class-map",
    required=True,
    type=path,
    metavar="FILE",
    help="Text file with a line OLD = NEW for each class. An empty NEW removes the class.",
)
@json_option
def relabel(store: str | Path, out: Path, class_map: Path, as_json: bool) -> None:
    """Rename, merge or remove classes in a new store OUT.

    Classes with the same new name are merged. If a class is removed, its objects are removed, and its samples have no
    label. Classes that are not in the file keep their names. No image is decoded.

    \b
    Examples:
      tsds relabel voc.tsds animals.tsds --class-map names.txt
      tsds relabel photos.tsds named.tsds --class-map names.txt --json
    """
    made(out, as_json, partial(tsds.editing.relabel_store, store, out, tsds.conversion.read_class_map(class_map)))


@click.command()
@click.argument("stores", nargs=-1, required=True, type=store_place, metavar="STORE STORE ...")
@path_argument("out")
@option("--restore-erased", is_flag=True, help="Keep samples that tsds erase has removed from another of the stores.")
@json_option
def merge(stores: tuple[str | Path, ...], out: Path, restore_erased: bool, as_json: bool) -> None:
    """Merge several stores into a new store OUT.

    Splits with the same name are joined, and classes are matched by name. All stores need the same fields, and images
    of the same shape or encoding. No image is decoded.

    \b
    Examples:
      tsds merge monday.tsds tuesday.tsds week.tsds
      tsds merge a.tsds b.tsds c.tsds all.tsds --json
    """
    made(out, as_json, partial(tsds.editing.merge_stores, stores, out, restore_erased=restore_erased))


@click.command(cls=Command)
@store_argument("source", "SRC")
@path_argument("out")
@options_of(RepackOptions)
@json_option
def repack(source: str | Path, out: Path, options: RepackOptions, as_json: bool) -> None:
    """Change the encoding or layout of a store SRC, as OUT.

    A new layout keeps every value, bit for bit. A new encoding changes the images. If they are resized, boxes,
    keypoints and masks are resized with them. SRC is not changed.

    \b
    Examples:
      tsds repack photos.tsds photos-small.tsds --layout zarr
      tsds repack downloaded.tsds photos.tsds --layout memmap
      tsds repack photos.tsds small.tsds --encoding jpeg --max-side 512
      tsds repack small.tsds pixels.tsds --encoding raw --size 224 --fit crop
    """
    if options.layout is None and options.encoding is None:
        raise click.UsageError("Give --layout, --encoding or both.")
    with working(out, resumable=options.encoding is not None) as bar:
        summary = tsds.repack(source, out, options, progress=bar.update)
    if as_json:
        text.echo_json(summary)
        return
    kinds = [each for each in (options.layout, options.encoding and options.encoding.name) if each]
    text.title(out, f"{', '.join(kinds)}, {words.size(summary.nbytes)}, {words.duration(summary.seconds)}")
    if summary.resumed:
        text.echo(f"used again: {text.count(summary.resumed, 'shard')} that an earlier run had finished")
    if summary.skipped:
        named = f"each named in {out / 'skipped.jsonl'}"
        text.echo(text.Styled(f"skipped: {text.counts(summary.skipped)}, {named}", fg="yellow"))
    text.echo(f"next: {text.call('verify', out)}")


# --- a store changed in place -------------------------------------------------------------------------------------


@click.command()
@path_argument("store")
@path_argument("file")
@option("--name", help="Name of the field.", show_default="the name of FILE, or of its column", metavar="NAME")
@option(
    "--split", metavar="NAME", help="Split that the values belong to. Other splits keep their values, or have none."
)
@option("--key", metavar="COLUMN", help="Column of a table with the keys of samples.", show_default="key")
@option(
    "--column",
    "columns",
    metavar="COLUMN",
    multiple=True,
    help="Use only this column of a table. Repeat the option for several columns.",
)
@option(
    "--missing", metavar="VALUE", help="Value for samples without a row in the table: a number, such as nan, or a text."
)
@option(
    "--classes",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Store the values as labels of the classes in this file.",
)
@option("--replace", is_flag=True, help="Replace the values of an existing field.")
@json_option
def add(store: Path, file: Path, columns: tuple[str, ...], classes: Path | None, as_json: bool, **given: Any) -> None:
    """Add a field, such as losses or tags, to a STORE.

    FILE is an array (.npy) with a row for each sample, in the order of the store, or a table (.csv, .tsv or .parquet)
    with a column of keys. Images are neither read nor written. The manifest is replaced last, in one step. Processes
    with the store open keep the old view.

    \b
    Examples:
      tsds add photos.tsds losses.npy --name loss --split train
      tsds add photos.tsds tags.csv --missing ""
      tsds add photos.tsds scores.parquet --key file_name --column score --replace
    """
    names = None if classes is None else tsds.conversion.read_classes(classes)
    run = partial(tsds.editing.add_file, store, file, columns=columns or None, classes=names, **given)
    made(store, as_json, run, again="nothing was added", told=tell_added)


@click.command()
@path_argument("store")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@json_option
def drop(store: Path, names: tuple[str, ...], as_json: bool) -> None:
    """Remove the fields NAME from a STORE, in place.

    Other fields are neither read nor written. The manifest is replaced in one step. Then the old files are removed.
    Processes with the store open can still read what they have mapped, and must open the store again for anything else.

    \b
    Examples:
      tsds drop photos.tsds loss
      tsds drop photos.tsds embedding score
    """

    def told(summary: FieldsSummary) -> None:
        text.echo(f"{'completed' if summary.completed else 'dropped'}: {', '.join(summary.fields)}")
        text.echo(f"removed: {text.count(summary.removed_shards, 'shard')}, {words.size(summary.removed_nbytes)}")
        for note in summary.notes:
            text.note(note)

    again = "the same command completes it, unless nothing was dropped"
    made(store, as_json, partial(tsds.editing.drop_fields, store, names), again=again, told=told)


@click.command()
@store_argument()
@option("--where", metavar="CONDITION", help="Erase samples that meet this condition, as in tsds filter.")
@option("--keys", type=path, metavar="FILE", help="Erase samples whose keys a file lists, as in tsds filter --keys.")
@option(
    "--rows",
    type=path,
    metavar="FILE",
    help='Erase rows that a JSON file lists, as in tsds filter --without: {"drop": {"train": [3, 17]}}.',
)
@splits_option
@sha256_option
@option(
    "--tombstones/--no-tombstones",
    default=True,
    show_default=True,
    help="Keep hashes of the samples, so that tsds append, update and merge do not store them again.",
)
@option("--receipt", type=path, metavar="FILE", help="Write what was erased, without names, to a new JSON file.")
@option("--dry-run", is_flag=True, help="Change nothing. Print the samples to erase.")
@json_option
def erase(
    store: str | Path,
    where: str | None,
    keys: Path | None,
    rows: Path | None,
    splits: tuple[str, ...],
    sha256: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Erase samples from a STORE permanently, in place.

    Only the shards with these samples are rewritten. The manifest is replaced in one step. Then the old shards are
    removed. Rows after an erased sample move up, keys stay, and the digest of the store changes. The source, copies of
    the store, packed files, stores at URLs and backups still contain the samples.

    \b
    Examples:
      tsds erase photos.tsds --keys keys.txt --dry-run
      tsds erase photos.tsds --where "key == 'anna/001.jpg'"
      tsds erase photos.tsds --rows findings.json
      tsds erase photos.tsds --keys keys.txt --receipt receipt.json
    """
    if sum(each is not None for each in (where, keys, rows)) != 1:
        raise click.UsageError("Give one of --where, --keys and --rows.")
    if rows is not None and splits:
        raise click.UsageError("--rows names the splits itself: leave out --split.")
    listed, of_store = (None, None) if rows is None else listed_rows(rows)
    chosen: dict[str, Any] = {
        "where": where,
        "keys": keys,
        "rows": listed,
        "splits": splits or None,
        "sha256": sha256 or of_store,
    }
    before = _digest(store)

    def run(**progress: Any) -> ErasureSummary:
        try:
            return tsds.erase(store, **chosen, **given, **progress)
        except KeyboardInterrupt:
            erased = "the samples are erased, and the same command removes what is left of them"
            done = "nothing was erased" if _digest(store) == before else erased
            raise interrupted(f"interrupted; {done}") from None

    told = partial(_tell_erased, given["receipt"], given["dry_run"])
    made(Path(store), as_json, run, told=told, following=_this_command() if given["dry_run"] else "")


def _digest(store: str | Path) -> str:
    """Digest of the store as it is now; empty if none can be opened."""
    try:
        return tsds.open(store).sha256 if Path(store).is_dir() else ""
    except tsds.TsdsError:
        return ""


def _tell_erased(receipt: Path | None, dry_run: bool, summary: ErasureSummary) -> None:
    count = sum(summary.erased.values())
    if summary.completed:
        text.echo("completed: an erasure that was interrupted")
    if count:
        splits = ", ".join(f"{rows:,} of {name}" for name, rows in summary.erased.items())
        some = text.some(summary.keys, _NAMED, count)
        text.echo(f"{'would erase' if dry_run else 'erased'}: {text.count(count, 'sample')} ({splits}): {some}")
    if dry_run:
        text.echo("dry run: nothing was changed")
        return
    if summary.removed_shards:
        text.echo(f"removed: {text.count(summary.removed_shards, 'shard')}, {words.size(summary.removed_nbytes)}")
    if count:
        text.echo("Rows behind the erased ones have moved up. Keys are the same. The digest of the store has changed.")
        first, *others = summary.receipt["not_reached"]
        text.echo(f"{first[0].upper()}{first[1:]}, {', '.join(others[:-1])} and {others[-1]} keep the samples.")
        if summary.receipt["samples"]:
            text.echo("Tombstones remain: tsds append, update and merge do not store the samples again.")
    if receipt is not None and summary.receipt:
        text.echo(f"receipt: {receipt}")


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
    "--description", metavar="TEXT|@FILE", help="Description of the data in a few sentences. An empty text removes it."
)
@json_option
def annotate(store: Path, license: str | None, as_json: bool, **given: str | None) -> None:
    """Set license, citation and description of a STORE.

    Only the manifest is rewritten, in one step. This changes the digest of the store, which identifies copies, so
    annotate before you share. Processes with the store open are not affected.

    \b
    Examples:
      tsds annotate photos.tsds --license CC-BY-4.0
      tsds annotate photos.tsds --citation @paper.bib --description @about.txt
    """
    if all(value is None for value in (license, *given.values())):
        raise click.UsageError("Give --license, --citation or --description.")
    before = tsds.open(store).sha256
    texts = {name: value if value is None else text_or_file(value) for name, value in given.items()}
    opened = tsds.annotate(store, license=license, **texts)
    if as_json:
        text.echo_json({"path": store, "before": before, "sha256": opened.sha256})
    elif before == opened.sha256:
        text.echo(f"{store}: nothing changed, all of this was noted already")
    else:
        text.title(store, "annotated; its digest has changed")
        text.echo_table([("before", before), ("now", opened.sha256)])


# --- files that list samples --------------------------------------------------------------------------------------


def listed_rows(file: Path) -> tuple[dict[str, list[int]], str | None]:
    """The rows of each split in a JSON file, and the digest of their store if the file contains it."""
    expected = f'{file}: expected {{"drop": {{"train": [3, 17]}}}}'
    try:
        if file.stat().st_size > _LIMIT:
            raise OptionError(f"{expected}, found a file of more than {_LIMIT:,} bytes.")
        data = file.read_bytes()
    except OSError as error:
        raise OptionError(f"{expected}, found no file that can be read: {error.strerror}.") from error
    try:
        document = json.loads(data)
        listed = {str(split): list(rows) for split, rows in document["drop"].items()}
        sha256 = document.get("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = f"no member {error}" if isinstance(error, KeyError) else "no JSON, or other values"
        raise OptionError(f"{expected}, found {found}.") from error
    if any(type(row) is not int for rows in listed.values() for row in rows):
        raise OptionError(f"{expected}, found rows that are no whole numbers.")
    return listed, sha256 if isinstance(sha256, str) and sha256 else None
