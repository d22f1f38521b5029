"""Read the values of a manifest one by one, and collect what is wrong with them. No input or output."""

from __future__ import annotations

from typing import Any

from tensorstore_ds.errors import Problem
from tensorstore_ds.format.schema import DTYPES, NAME, ArraySpec

#: Integers, and bytes of a row, stay below.
_LIMIT = 2**63
#: Dimensions of a row.
MOST_DIMENSIONS = 31


class ManifestValues:
    """Reads values, and collects what is wrong with them.

    Attributes:
        problems: everything that was wrong so far, each with its place in the manifest.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def wrong(self, where: str, message: str, reason: str = "manifest") -> None:
        self.problems.append(Problem(where, reason, message))

    def object_at(self, where: str, value: object) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        self.wrong(where, f"expected an object, found {brief(value)}.")
        return {}

    def list_at(self, where: str, value: object) -> list[Any]:
        if isinstance(value, list):
            return value
        self.wrong(where, f"expected a list, found {brief(value)}.")
        return []

    def integer(self, where: str, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LIMIT:
            return value
        self.wrong(where, f"expected an integer in [0, 2^63), found {brief(value)}.")
        return 0

    def text(self, where: str, value: object) -> str:
        if isinstance(value, str) and (value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)):
            return value
        self.wrong(where, f"expected a string of Unicode, found {brief(value)}.")
        return ""

    def choice(self, where: str, value: object, choices: tuple[str, ...]) -> str:
        if isinstance(value, str) and value in choices:
            return value
        self.wrong(where, f"expected one of {', '.join(choices)}, found {brief(value)}.")
        return choices[0]

    def names(self, where: str, value: object) -> tuple[str, ...]:
        names = tuple(self.text(f"{where}[{i}]", v) for i, v in enumerate(self.list_at(where, value)))
        if len(set(names)) != len(names):
            self.wrong(where, "expected names that differ, found one twice.")
        return names

    def is_name(self, where: str, value: str) -> bool:
        if NAME.fullmatch(value):
            return True
        self.wrong(where, f"expected a name of a-z, 0-9, _ and -, found {brief(value)}.", "unsafe-path")
        return False

    def spec(self, where: str, data: dict[str, Any]) -> ArraySpec:
        shape = tuple(
            self.integer(f"{where}.shape[{i}]", n)
            for i, n in enumerate(self.list_at(f"{where}.shape", data.get("shape")))
        )
        if 0 in shape or len(shape) > MOST_DIMENSIONS:
            expected = f"at most {MOST_DIMENSIONS} positive integers"
            self.wrong(f"{where}.shape", f"expected {expected}, found {list(shape)}.")
            shape = ()
        dtype = self.choice(f"{where}.dtype", data.get("dtype"), DTYPES)
        if ArraySpec(dtype, shape).row_nbytes >= _LIMIT:
            self.wrong(f"{where}.shape", f"expected rows of less than 2^63 bytes, found {list(shape)} of {dtype}.")
            shape = ()
        return ArraySpec(dtype, shape)

    def expect_spec(self, where: str, data: dict[str, Any], expected: ArraySpec, what: str) -> None:
        spec = self.spec(where, data)
        if spec != expected:
            wanted, found = (f"{each.dtype} and shape {list(each.shape)}" for each in (expected, spec))
            self.wrong(where, f"expected {wanted} of a {what}, found {found}.")

    def specs(self, where: str, value: object) -> dict[str, ArraySpec]:
        specs = {}
        for name, spec in self.object_at(where, value).items():
            place = f"{where}.{name}"
            if self.is_name(place, name):
                specs[name] = self.spec(place, self.object_at(place, spec))
        if "offsets" in specs:
            self.wrong(where.rpartition(".")[0], "expected values beside offsets, found a value named offsets.")
        if not specs:
            self.wrong(where.rpartition(".")[0], "expected at least one array of values, found none.")
        return specs


def brief(value: object) -> str:
    """A value as a message shows it: at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
