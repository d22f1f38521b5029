"""Read the values of a manifest one by one, and collect their problems. No input or output."""

from __future__ import annotations

from typing import Any, cast

from tensorstore_ds.errors import Problem
from tensorstore_ds.format.schema import DTYPES, LAYOUTS, LIMIT, NAME, ArraySpec, Layout

#: Largest number of dimensions of a row.
MOST_DIMENSIONS = 31


class ManifestValues:
    """Reads values, and collects `problems`, each with its position in the manifest."""

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
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LIMIT:
            return value
        self.wrong(where, f"expected an integer in [0, 2^53), found {brief(value)}.")
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

    def image(self, where: str, data: dict[str, Any]) -> str | None:
        """Return the field of images that a field names. Its existence is checked when all fields are known."""
        return self.text(f"{where}.image", data["image"]) if "image" in data else None

    def is_name(self, where: str, value: str) -> bool:
        if NAME.fullmatch(value):
            return True
        self.wrong(
            where, f"expected a name of a-z, 0-9, _ and -, and of no device, found {brief(value)}.", "unsafe-path"
        )
        return False

    def spec(self, where: str, data: dict[str, Any], *, may_be_ragged: bool = False) -> ArraySpec:
        shape = tuple(
            self.integer(f"{where}.shape[{i}]", n)
            for i, n in enumerate(self.list_at(f"{where}.shape", data.get("shape")))
        )
        if 0 in shape or len(shape) > MOST_DIMENSIONS:
            expected = f"at most {MOST_DIMENSIONS} positive integers"
            self.wrong(f"{where}.shape", f"expected {expected}, found {list(shape)}.")
            shape = ()
        dtype = self.choice(f"{where}.dtype", data.get("dtype"), DTYPES)
        if ArraySpec(dtype, shape).row_nbytes >= LIMIT:
            self.wrong(f"{where}.shape", f"expected rows of less than 2^53 bytes, found {list(shape)} of {dtype}.")
            shape = ()
        layout = self.choice(f"{where}.layout", data["layout"], LAYOUTS) if "layout" in data else None
        ragged = data.get("ragged", False) if may_be_ragged else False
        if not isinstance(ragged, bool):
            self.wrong(f"{where}.ragged", f"expected true or false, found {brief(ragged)}.")
        return ArraySpec(dtype, shape, cast(Layout | None, layout), ragged is True)

    def expect_spec(self, where: str, data: dict[str, Any], expected: ArraySpec, what: str) -> ArraySpec:
        spec = self.spec(where, data)
        if (spec.dtype, spec.shape) != (expected.dtype, expected.shape):
            wanted, found = (f"{each.dtype} and shape {list(each.shape)}" for each in (expected, spec))
            self.wrong(where, f"expected {wanted} of a {what}, found {found}.")
        return spec

    def table(self, where: str, data: dict[str, Any]) -> tuple[dict[str, ArraySpec], dict[str, ArraySpec]]:
        """Return the arrays of a table, ``values`` and ``per_row``."""
        values, per_row = (
            self._specs(f"{where}.{member}", data.get(member, {} if member == "per_row" else None))
            for member in ("values", "per_row")
        )
        if "offsets" in values or "offsets" in per_row:
            self.wrong(where, "expected values beside offsets, found a value named offsets.")
        if not values:
            self.wrong(where, "expected at least one array of values, found none.")
        for name in sorted(values.keys() & per_row.keys()):
            self.wrong(where, f"expected names that differ in values and per_row, found {name} in both.")
        return values, per_row

    def _specs(self, where: str, value: object) -> dict[str, ArraySpec]:
        specs = {}
        for name, spec in self.object_at(where, value).items():
            place = f"{where}.{name}"
            if self.is_name(place, name):
                specs[name] = self.spec(place, self.object_at(place, spec), may_be_ragged=True)
        return specs


def brief(value: object) -> str:
    """Return a value for messages, at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
