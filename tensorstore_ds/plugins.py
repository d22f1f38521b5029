"""Formats and commands of other packages, added by entry points."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tensorstore_ds.errors import OptionError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True, slots=True)
class Plugin:
    """A class or a command that is imported on first use.

    Attributes:
        module: name of the module.
        attribute: name of the class or command in the module.
        description: short description.
        package: distribution that adds it, with its version. It is empty if it is built in.
    """

    module: str
    attribute: str
    description: str
    package: str = ""

    @classmethod
    def of(cls, point: EntryPoint) -> Plugin:
        """Return the plugin of an entry point."""
        package = point.module if point.dist is None else f"{point.dist.name} {point.dist.version}"
        return cls(point.module, point.attr, f"from {package}", package)

    def load(self) -> Any:
        """Import and return the class or command.

        Raises:
            OptionError: it belongs to a different package and cannot be imported.
        """
        try:
            return getattr(importlib.import_module(self.module), self.attribute)
        except Exception as error:
            if not self.package:
                raise
            what = f"{self.module}:{self.attribute} cannot be imported ({type(error).__name__}: {error})"
            raise OptionError(f"{self.package}: {what}. Update or uninstall this package.") from error


class Plugins(Mapping[str, Plugin]):
    """Built-in classes or commands by name, followed by additions of installed packages in alphabetical order.

    A built-in name cannot be replaced. Entry points are read on first use.

    Args:
        group: group of the entry points, such as ``tsds.sources``.
        package: package that contains the built-in modules.
        own: module, attribute and description of each built-in class or command.
    """

    def __init__(self, group: str, package: str, own: Mapping[str, tuple[str, str, str]]) -> None:
        self._group = group
        self._own = {name: Plugin(f"{package}.{module}", *others) for name, (module, *others) in own.items()}

    @cached_property
    def _all(self) -> dict[str, Plugin]:
        from importlib.metadata import entry_points  # here, because it takes a while

        points = sorted(entry_points(group=self._group), key=lambda point: point.name)
        return {**self._own, **{point.name: Plugin.of(point) for point in points if point.name not in self._own}}

    def __getitem__(self, name: str) -> Plugin:
        return self._own[name] if name in self._own else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)
