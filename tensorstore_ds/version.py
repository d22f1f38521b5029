"""The version of this library. The version of the format is separate, in `format.manifest.FORMAT_VERSION`."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

__version__ = "0.1.0"


@dataclass(frozen=True, slots=True)
class Installation:
    """Result of `installation`, as `tsds --version --json` prints it."""

    version: str  #: version of this library
    python: str  #: version of Python
    torch: str | None  #: version of torch, or None if torch is not installed
    kernels: str | None  #: instruction set of the compiled kernels in use, such as ``avx2``, or None
    why_not: str  #: reason why no compiled kernels are in use, or empty
    advice: str  #: how to get the compiled kernels, or empty if they are in use


def installation() -> Installation:
    """Report the installed versions, and whether the compiled kernels are in use. torch is not imported.

    >>> import tensorstore_ds as tsds
    >>> found = tsds.installation()
    >>> (found.kernels is None) == bool(found.why_not)
    True
    """
    from tensorstore_ds import native

    try:
        torch = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        torch = None
    kernels = None if native.core is None else native.core.variant()
    return Installation(__version__, platform.python_version(), torch, kernels, native.why_not, native.advice)
