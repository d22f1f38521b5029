"""Docstrings of the public names: an example that runs, and attributes that Sphinx shows as they are meant."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Iterator
from types import FunctionType

import pytest

import tensorstore_ds as tsds
from public_names import described, public_names

#: What functions return: their attributes are described, and the examples of the functions show them.
RESULTS = (
    "AbsentKeypoints", "CachedStore", "Card", "CheckFindings", "CheckedSample", "Comparison", "Copies", "Diagnosis",
    "SampleCount", "EpochRecord", "ErasureSummary", "Estimate", "Evaluation", "Eviction", "ExportSummary", "FewSamples",
    "FieldsSummary", "Fold", "FolderDifference", "Forecast", "GrowthSummary", "Installation", "LoaderDiagnosis",
    "OddBox", "OddImage", "Plan", "Prediction", "ReceiptCheck", "Residency", "SharedImages", "SlurmJobs",
    "SplitDifference", "StoreDetections",
    "StoreDifference", "Summary", "SuspectLabel", "SuspectObject", "TaskSummary", "TrainProgress", "TrainReport",
    "Transfer", "Verdict",
)  # fmt: skip
#: Errors that an example cannot cause in a moment. `TsdsError` shows how all of them are caught.
ERRORS = ("ConversionError", "OutputError", "RemoteError", "ResidencyError", "TrainingError", "TrainingStopped")
#: Other names without an example that runs, and why.
WITHOUT = {
    "EXPORT_FORMATS": "a mapping, which has no docstring",
    "__version__": "a text, which has no docstring",
    "convert_on": "needs a cluster of Dask or Ray",
    "predict_store": "needs a trained detector",
    "submit_slurm": "needs Slurm",
}
#: What is a type before the colon of a docstring, and no prose.
_TYPE = re.compile(r"\([^)]*\)( \w+)?")


def runs(docstring: str | None) -> bool:
    """Whether a docstring has an example that is not skipped."""
    examples = doctest.DocTestParser().get_examples(docstring or "")
    return any(doctest.SKIP not in example.options for example in examples)


def test_every_public_name_has_an_example_that_runs() -> None:
    without = {name for name, value in public_names().items() if not runs(vars_doc(value))}
    assert {name.rpartition(".")[2] for name in without} == {*RESULTS, *ERRORS, *WITHOUT}


def vars_doc(obj: object) -> str | None:
    """The docstring of a class or a function, without that of a base class or of the type of a value."""
    return obj.__doc__ if isinstance(obj, type) or inspect.isroutine(obj) else None


def test_results_and_errors_are_what_they_are_said_to_be() -> None:
    values = {name.rpartition(".")[2]: value for name, value in public_names().items()}
    assert all(isinstance(values[name], type) for name in RESULTS)
    assert all(issubclass(values[name], tsds.TsdsError) for name in ERRORS)


def test_words_before_a_colon_are_not_taken_for_a_type() -> None:
    """Napoleon takes what is before the first colon of an attribute's docstring, and of Returns, for a type."""
    pytest.importorskip("sphinx")
    wrong = [f"{where}: {found}" for where, found in types_found() if not _TYPE.fullmatch(found)]
    assert not wrong, "Begin the docstring with a sentence without a colon:\n" + "\n".join(wrong)


def types_found() -> Iterator[tuple[str, str]]:
    """What Sphinx shows as the type of an attribute, a property or a result, and where."""
    from sphinx.ext.napoleon import Config, GoogleDocstring
    from sphinx.pycode import ModuleAnalyzer

    config = Config(napoleon_use_rtype=False)
    for name, obj in ((name, obj) for name, obj in described().items() if callable(obj)):
        docs = []
        for cls in obj.__mro__ if isinstance(obj, type) else ():
            if cls.__module__.startswith("tensorstore_ds"):
                found = ModuleAnalyzer.for_module(cls.__module__).find_attr_docs()
                docs += [("attribute", attr, text) for (own, attr), text in found.items() if own == cls.__qualname__]
                members = {attr: value for attr, value in vars(cls).items() if not attr.startswith("_")}
                for attr, value in members.items():
                    routine = isinstance(value, FunctionType | classmethod | staticmethod)
                    if text := getattr(value, "__doc__", None):
                        docs.append(("method" if routine else "property", attr, inspect.cleandoc(text).splitlines()))
        if text := inspect.getdoc(obj):
            docs.append(("function", "", text.splitlines()))
        for what, attr, lines in docs:
            shown = "\n".join(GoogleDocstring(list(lines), config, what=what, name=f"{name}.{attr}").lines())
            pattern = r"^:type: (.+)" if what in ("attribute", "property") else r"^:returns?: \*(.+?)\* --"
            for found in re.findall(pattern, shown, re.MULTILINE):
                yield f"{name}.{attr}", found
