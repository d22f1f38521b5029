"""The kinds of fields: each a class that says all that is particular to it. `loading.fields` has what torch needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensorstore_ds.format.kinds.base import ArrayField, Field
from tensorstore_ds.format.kinds.image import EncodedImageField, ImageField, RawImageField, SizeField
from tensorstore_ds.format.kinds.key import KeyField
from tensorstore_ds.format.kinds.label import LabelField
from tensorstore_ds.format.kinds.mask import MaskField
from tensorstore_ds.format.kinds.objects import OBJECT_VALUES, ObjectsField
from tensorstore_ds.format.manifest_values import ManifestValues

__all__ = [
    "KINDS",
    "OBJECT_VALUES",
    "EncodedImageField",
    "ImageField",
    "KeyField",
    "LabelField",
    "MaskField",
    "ObjectsField",
    "RawImageField",
    "SizeField",
    "parse_field",
]

#: By name in the manifest.
KINDS: Mapping[str, type[Field]] = {
    kind.kind: kind for kind in (ImageField, LabelField, ObjectsField, SizeField, KeyField, MaskField, ArrayField)
}


def parse_field(values: ManifestValues, where: str, data: dict[str, Any]) -> Field:
    """The field at a place of the manifest; what is wrong is noted in `values`."""
    return KINDS[values.choice(f"{where}.kind", data.get("kind"), tuple(KINDS))].parse(values, where, data)
