"""The version of this library; the format has its own, in `format.manifest.FORMAT_VERSION`."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass

__version__ = "0.1.0"


@dataclass(frozen=True, slots=True)
class Installation:
    """Result of `installation`, as `tsds --version --json` prints it."""

    version: str  #: of this library
    python: str  #: version of Python
    torch: str | None  #: version of torch; None if it is not installed
    kernels: str | None  #: instruction set of the compiled kernels in use, such as ``avx2``; None if none are
    why_not: str  #: why no compiled kernels are in use; empty if they are
    advice: str  #: what to do about it; empty if they are


def installation() -> Installation:
    """Versions, and whether the compiled kernels are in use. torch is not imported.

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
