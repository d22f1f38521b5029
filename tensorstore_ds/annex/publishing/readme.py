"""The card: a README.md that people read, and whose head Hugging Face reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tensorstore_ds import words
from tensorstore_ds.annex.publishing.escaping import code_block, markdown, yaml
from tensorstore_ds.annex.publishing.facts import COUNTED, Facts, options_of, size_category
from tensorstore_ds.format.history import steps_of

#: Classes in the table; the most frequent ones if there are more.
_CLASSES = 50
#: Reasons in the table of faults; the format has fewer.
_REASONS = 100
#: Characters of the longest bar.
_BAR = 24
#: Characters of a value in a table.
_LONGEST = 300
#: Licenses that Hugging Face knows, by its names; most are those of SPDX in small letters.
_HUB_LICENSES = frozenset(
    re.findall(
        r"\S+",
        "afl-3.0 apache-2.0 artistic-2.0 bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 cc-by-2.0 cc-by-2.5 "
        "cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 "
        "cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0 "
        "cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 isc lppl-1.3c mit "
        "mpl-2.0 ms-pl ncsa ofl-1.1 osl-3.0 postgresql unlicense wtfpl zlib",
    )
)
_HUB_NAMES = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl"}


def readme(facts: Facts, *, previews: Sequence[str], papers: Collection[str]) -> str:
    """The text of the card. `previews` are the splits with a preview, `papers` the other files in its folder."""
    parts = [
        _front_matter(facts, previews),
        f"# {markdown(facts.title)}",
        facts.answers.get("description") or _paragraphs(facts.description) or "*No description was given.*",
        f"![Samples of {markdown(facts.filled[0])}](pictures/samples.jpg)" if "pictures/samples.jpg" in papers else "",
        _contents(facts),
        *(_classes(facts, field) for field in facts.classes),
        _load(facts, previews, papers),
        _origin(facts),
        _faults(facts),
        _duplicates(facts),
        _considerations(facts),
        _rights(facts),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _front_matter(facts: Facts, previews: Sequence[str]) -> str:
    lists = {
        "size_categories": [size_category(facts.rows)],
        "task_categories": facts.tasks,
        "tags": [*dict.fromkeys(("tsds", "zarr", *facts.answers.get("tags", ())))],
        "annotations_creators": facts.answers.get("annotations_creators", ()),
        "source_datasets": facts.answers.get("source_datasets", ()),
    }
    lines = ["---", *_hub_license(facts.store.manifest.license), f"pretty_name: {yaml(facts.title)}"]
    for name, values in lists.items():
        lines += [f"{name}:", *(f"- {yaml(value)}" for value in values)] if values else []
    if previews:  # named one by one, so that nothing else is taken for a table
        lines += ["configs:", "- config_name: preview", "  default: true", "  data_files:"]
        for name in previews:
            valid = re.sub(r"\W", "_", name)  # Hugging Face allows no dashes
            lines += [f"  - split: {yaml(valid)}", f"    path: {yaml(f'preview/{name}.parquet')}"]
    return "\n".join([*lines, "---"])


def _hub_license(license: str | None) -> list[str]:
    if not license:
        return []
    name = _HUB_NAMES.get(license.lower(), license.lower())
    if name in _HUB_LICENSES or name in _HUB_NAMES.values():
        return [f"license: {name}"]
    return ["license: other", f"license_name: {yaml(license)}"]


def _contents(facts: Facts) -> str:
    store = facts.store
    objects = facts.objects
    titles = [markdown(each) for each in objects] if len(objects) > 1 else ["objects"] * len(objects)
    names = ["split", "samples", *titles, "size"]
    rows = []
    for name in store:
        counted = [f"{found.get(name, 0):,}" for found in objects.values()]
        nbytes = sum(shard.nbytes for shard in store.manifest.splits[name].shards)
        rows.append([markdown(name), f"{len(store[name]):,}", *counted, words.size(nbytes)])
    splits = _table(names, rows, right=range(1, len(names)))
    fields = [
        [markdown(name), markdown(field.kind), _cell(field.describe())] for name, field in store.manifest.fields.items()
    ]
    return "\n\n".join(["## What is in it", splits, _table(["field", "kind", "content"], fields)])


def _classes(facts: Facts, field: str) -> str:
    kind, classes = facts.classes[field]
    totals, counts, what = facts.totals(field), facts.counts(field), COUNTED.get(kind, "values")
    head = f"## Classes of {markdown(field)}"
    if not totals:
        shown = ", ".join(markdown(name) for name in classes[:_CLASSES])
        more = f", and {len(classes) - _CLASSES:,} more" if len(classes) > _CLASSES else ""
        return f"{head}\n\n{_classes_in_words(len(classes))}, which were not counted: {shown}{more}."
    most = sorted(range(len(classes)), key=lambda i: -totals[classes[i]])
    splits = [name for name in counts if len(facts.store[name])] if len(counts) > 1 else []
    columns = [*splits, "all"] if splits else [what]
    names = ["#", "class", *map(markdown, columns), ""]
    largest = max(totals.values()) or 1
    rows = []
    for i in sorted(most[:_CLASSES]):
        name = classes[i]
        numbers = [f"{counts[split][name]:,}" for split in splits]
        bar = "█" * max(round(totals[name] / largest * _BAR), 1 if totals[name] else 0)
        rows.append([str(i), _cell(name), *numbers, f"{totals[name]:,}", bar])
    table = _table(names, rows, right=(0, *range(2, 2 + len(columns))))
    text = f"{_classes_in_words(len(classes))}; the numbers are {what}."
    if len(classes) > _CLASSES:
        rest = [totals[classes[i]] for i in most[_CLASSES:]]
        text += f" The table has the {_CLASSES} most frequent; the others have {rest[-1]:,} to {rest[0]:,} each."
    bare = {name: n for name in facts.store if (n := facts.store[name].unlabelled.get(field))}
    if bare:
        text += f" {sum(bare.values()):,} samples have no label."
    return f"{head}\n\n{text}\n\n{table}"


def _classes_in_words(n: int) -> str:
    return "1 class" if n == 1 else f"{n:,} classes"


def _load(facts: Facts, previews: Sequence[str], papers: Collection[str]) -> str:
    split = facts.filled[0] if facts.filled else "train"
    code = [
        "import tensorstore_ds as tsds",
        f'store = tsds.open("{facts.name}", sha256="{facts.store.content_sha256}")',
        f'sample = store["{split}"][0]  # a dict of {", ".join(facts.store.manifest.fields)}',
    ]
    text = [
        "## Load it",
        f"The data are the folder `{facts.name}`: a [Zarr v3](https://zarr-specs.readthedocs.io) store whose "
        "arrays are also memory maps. With the Python package tensorstore_ds:",
        code_block("\n".join(code), "python"),
        f"`tsds verify {facts.name}` checks every byte. The digest above is of the content: a license or a DOI that is "
        "added later does not change it. "
        "zarr-python and NumPy also read the arrays.",
    ]
    if previews:
        text.append(
            "The folder `preview` has some small samples of each split as Parquet, for viewers; it is not the data."
        )
    if beside := sorted(name for name in papers if "/" not in name):
        text.append(f"Beside this card: {', '.join(f'`{name}`' for name in beside)}.")
    return "\n\n".join(text)


def _origin(facts: Facts) -> str:
    origin, answers = facts.store.manifest.provenance, facts.answers
    names = {"source": "source", "source_format": "format", "created": "converted"}
    rows = [[shown, _cell(origin[name])] for name, shown in names.items() if isinstance(origin.get(name), str)]
    made = [value for name in ("tool", "tool_version") if isinstance(value := origin.get(name), str)]
    if made:
        rows.append(["by", _cell(" ".join(made))])
    rows += [[f"option `{_plain(name)}`", _cell(value)] for name, value in options_of(facts.store).items()]
    rows += [["afterwards", _cell(_step(step))] for step in steps_of(origin)]
    parts = ["## How it was made"]
    for name, head in (("collection", "Collection"), ("preprocessing", "Preprocessing"), ("annotation", "Annotation")):
        parts += [f"### {head}", answers[name]] if name in answers else []
    if rows:
        parts += ["### Conversion", _table(["", ""], rows)]
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _step(step: Mapping[str, Any]) -> str:
    """A step of the history in one line, such as ``2026-05-04 filter: where label == 'cat'``."""
    options = step.get("options")
    given = {**step, **(options if isinstance(options, Mapping) else {})}
    hidden = ("command", "tool_version", "created", "sha256", "options")
    details = [f"{name} {_short(value)}" for name, value in given.items() if name not in hidden and value is not None]
    what = f"{str(step.get('created', ''))[:10]} {step.get('command', '')}".strip()
    return ": ".join(filter(None, [what, ", ".join(details)]))


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {each}" for name, each in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _faults(facts: Facts) -> str:
    if not facts.faults:
        return "## Known faults\n\nNothing was left out by the conversion."
    listed = [*facts.faults.items()][:_REASONS]
    rows = [[_cell(reason), f"{count:,}", _cell(example)] for reason, (count, example) in listed]
    text = f"These samples, boxes or files are not in the store; `{facts.name}/skipped.jsonl` names each."
    return f"## Known faults\n\n{text}\n\n{_table(['reason', 'count', 'the first of them'], rows, right=(1,))}"


def _duplicates(facts: Facts) -> str:
    found = facts.duplicates
    if found is None:
        text = f"They were not looked for, because the store has {words.size(facts.store.nbytes)}."
    elif not found[0]:
        text = "No two images are the same, byte for byte. Similar images were not looked for."
    else:
        text = f"Images that are the same, byte for byte, as one before them: {found[0]:,}"
        text += f"; {found[1]:,} of them repeat an image of another split." if len(facts.store) > 1 else "."
        text += " Similar images were not looked for."
    return f"## Duplicates\n\n{text}"


def _considerations(facts: Facts) -> str:
    heads = {
        "use_cases": "Uses",
        "limitations": "Limitations",
        "biases": "Biases",
        "sensitive_information": "Personal and sensitive information",
        "social_impact": "Social impact",
        "maintenance": "Maintenance",
    }
    parts = [f"### {head}\n\n{facts.answers[name]}" for name, head in heads.items() if name in facts.answers]
    return "\n\n".join(["## Before you use it", *parts]) if parts else ""


def _rights(facts: Facts) -> str:
    manifest, answers = facts.store.manifest, facts.answers
    license = markdown(manifest.license) if manifest.license else "*No license was given: ask before you use the data.*"
    parts = ["## License and citation", f"License: {license}" if manifest.license else license]
    if facts.creators:
        parts.append(f"Creators: {'; '.join(map(markdown, facts.creators))}")
    if manifest.citation:
        language = "bibtex" if manifest.citation.lstrip().startswith("@") else ""
        parts.append(code_block(manifest.citation, language))
    facts_ = [f"{head}: {markdown(answers[name])}" for name, head in _IMPRINT.items() if name in answers]
    return "\n\n".join([*parts, *facts_])


_IMPRINT = {"doi": "DOI", "version": "Version", "url": "Home", "contact": "Contact"}


def _table(names: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    rule = ["--:" if i in right else "---" for i in range(len(names))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (names, rule, *rows))


def _paragraphs(text: str) -> str:
    """An untrusted text of several lines."""
    return "\n\n".join(markdown(" ".join(part.split())) for part in text.split("\n\n"))


def _cell(text: str) -> str:
    """An untrusted text in a table."""
    return markdown(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}...")


def _plain(name: str) -> str:
    """A name in backticks."""
    return re.sub(r"[^\w-]", "?", name)[:64]
