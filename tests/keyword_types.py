"""The types of options as keywords, for editors and type checkers: ``python tests/keyword_types.py`` writes them."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import tensorstore_ds as tsds
from tensorstore_ds import keywords
from tensorstore_ds.format.schema import Keypoints
from tensorstore_ds.options import declarations

CLASSES = (
    tsds.ConvertOptions,
    tsds.conversion.RepackOptions,
    tsds.checking.CheckOptions,
    tsds.measuring.BenchOptions,
    tsds.measuring.DiagnoseOptions,
    tsds.training.TrainOptions,
)
PAGE = Path(keywords.__file__)
HEAD = '''"""The options of functions as keywords: what editors complete and type checkers check.

``python tests/keyword_types.py`` writes this module from the declarations of the options.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from tensorstore_ds.format.schema import Keypoints
'''


def module() -> str:
    """The text of `tensorstore_ds.keywords`."""
    return HEAD + "".join(map(_typed_dict, CLASSES))


def _typed_dict(cls: type[Any]) -> str:
    hints = get_type_hints(cls)
    lines = [f"    {name}: {_written(hints[name])}" for name in declarations(cls)]
    name = f"{cls.__name__.removesuffix('Options')}Keywords"
    return (
        f'\n\nclass {name}(TypedDict, total=False):\n    """`{cls.__name__}` as keywords."""\n\n'
        + "\n".join(lines)
        + "\n"
    )


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
    PAGE.write_text(module(), "utf-8")
