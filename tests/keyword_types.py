"""The types of options as keywords, for editors and type checkers: ``python tests/keyword_types.py`` writes them."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tensorstore_ds as tsds
from tensorstore_ds.annex import keywords
from tensorstore_ds.conversion import keywords as conversion
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.options import Option, declarations, flags

CLASSES = {
    Path(conversion.__file__): (tsds.ConvertOptions, tsds.conversion.RepackOptions),
    Path(keywords.__file__): (
        tsds.checking.CheckOptions,
        tsds.measuring.BenchOptions,
        tsds.measuring.DiagnoseOptions,
        tsds.training.TrainOptions,
    ),
}
HEAD = '''"""The options of functions as keywords: what editors complete and type checkers check.

``python tests/keyword_types.py`` writes this module from the declarations of the options.
"""

from __future__ import annotations

import os
from collections.abc import {}Sequence
from typing import Literal, TypedDict
'''
VALUES = """
from tensorstore_ds.conversion.encodings import Auto, Jpeg, Raw, SourceFiles
from tensorstore_ds.conversion.values import Fit, ImageTiles, ObjectCrops, Shrink
from tensorstore_ds.format.schema import Keypoints
"""


def module(page: Path) -> str:
    """The text of a module of keywords."""
    head = HEAD.format("Mapping, " if page.parent.name == "conversion" else "")
    return head + (VALUES if page.parent.name == "conversion" else "") + "".join(map(_typed_dict, CLASSES[page]))


def _typed_dict(cls: type[Any]) -> str:
    hints, known = get_type_hints(cls), {**flags(cls), **declarations(cls)}
    lines = [f"    {name}: {_value(each) if each.values else _hinted(each, hints)}" for name, each in known.items()]
    name = f"{cls.__name__.removesuffix('Options')}Keywords"
    return (
        f'\n\nclass {name}(TypedDict, total=False):\n    """`{cls.__name__}` as keywords."""\n\n'
        + "\n".join(lines)
        + "\n"
    )


def _hinted(option: Option, hints: dict[str, Any]) -> str:
    if option.name in hints:
        return _written(hints[option.name])
    written = _written(Literal[option.choices] if option.choices else option.type)
    return f"{written} | None" if option.default is None else written


def _value(option: Option) -> str:
    """An object of one of several classes, or the name of one."""
    names = [f"Literal[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in option.by_name)}]"] if option.by_name else []
    return " | ".join([*(value.__name__ for value in option.values), *names, *["None"][option.default is not None :]])


def _written(hint: Any) -> str:
    """A type as `Option.validated` takes it: a pair may be one number, a tuple any sequence, and a path any path."""
    origin, items = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_written, items))
    if origin is Literal:
        return "Literal[" + ", ".join(f"'{each}'".replace("'", chr(34)) for each in items) + "]"
    if origin is tuple and items[-1] is not Ellipsis:
        return f"{_written(items[0])} | tuple[{', '.join(map(_written, items))}]"
    if origin in (tuple, Sequence):
        return f"Sequence[{_written(items[0])}]"
    if origin is Mapping:
        return f"Mapping[{', '.join(map(_written, items))}]"
    if hint is type(None):
        return "None"
    if hint is Path:
        return "str | os.PathLike[str]"
    assert hint in (bool, int, float, str, Keypoints), hint
    return str(hint.__name__)


if __name__ == "__main__":
    for page in CLASSES:
        page.write_text(module(page), "utf-8")
