"""Features of Hugging Face's `datasets`, as the schema of a Parquet file has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

IMAGE_FEATURE = {"_type": "Image"}


def value_feature(dtype: str) -> dict[str, Any]:
    """Feature of a number or a text."""
    return {"dtype": dtype, "_type": "Value"}


def sequence_feature(feature: dict[str, Any]) -> dict[str, Any]:
    """Feature of a list."""
    return {"feature": feature, "_type": "Sequence"}


def class_feature(classes: tuple[str, ...]) -> dict[str, Any]:
    """Feature of a class number; a plain number if classes have no names."""
    return {"names": list(classes), "_type": "ClassLabel"} if classes else value_feature("int64")


def arrow_schema(features: Mapping[str, Any], metadata: Mapping[str, str]) -> Any:
    """Arrow schema of columns with these features, with metadata from which `datasets` reads them."""
    import pyarrow as pa

    own = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema([(name, _arrow(pa, each)) for name, each in features.items()], metadata={**own, **metadata})


def _arrow(pa: Any, feature: Mapping[str, Any]) -> Any:
    """Arrow type of a feature; a struct for features by name."""
    match feature.get("_type"):
        case "Image":
            return pa.struct({"bytes": pa.binary(), "path": pa.string()})
        case "Sequence":
            return pa.list_(_arrow(pa, feature["feature"]))
        case "ClassLabel":
            return pa.int64()
        case "Value":
            return getattr(pa, feature["dtype"])()
    return pa.struct([(name, _arrow(pa, each)) for name, each in feature.items()])
