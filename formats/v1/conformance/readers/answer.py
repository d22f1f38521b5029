"""How a reader in Python answers `check_reader.py`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def accepted(arrays: Mapping[str, NDArray[Any]]) -> None:
    """Print every array of a store that was read, by its path."""
    print(json.dumps({"arrays": {path: described(np.asarray(array)) for path, array in arrays.items()}}))


def described(array: NDArray[Any]) -> dict[str, Any]:
    """Data type, shape, and the digest of the bytes: little-endian, in C order."""
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "sha256": hashlib.sha256(data).hexdigest()}
