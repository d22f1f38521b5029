"""The kinds of fields. Each class contains everything that is specific to it. `loading.fields` has what torch needs."""

from __future__ import annotations

from collections.abc import Mapping

from tensorstore_ds.format.kinds.base import ArrayField, Field, UnknownField
from tensorstore_ds.format.kinds.image import EncodedImageField, ImageField, RaggedImageField, RawImageField, SizeField
from tensorstore_ds.format.kinds.key import KeyField
from tensorstore_ds.format.kinds.label import LabelField
from tensorstore_ds.format.kinds.labels import LabelsField
from tensorstore_ds.format.kinds.mask import MaskField
from tensorstore_ds.format.kinds.objects import OBJECT_VALUES, ObjectsField
from tensorstore_ds.format.kinds.ragged import RaggedField
from tensorstore_ds.format.kinds.text import TextField

__all__ = [
    "KINDS",
    "OBJECT_VALUES",
    "EncodedImageField",
    "ImageField",
    "KeyField",
    "LabelField",
    "LabelsField",
    "MaskField",
    "ObjectsField",
    "RaggedField",
    "RaggedImageField",
    "RawImageField",
    "SizeField",
    "TextField",
    "UnknownField",
]

#: By name in the manifest.
KINDS: Mapping[str, type[Field]] = {
    kind.kind: kind
    for kind in (
        ImageField,
        LabelField,
        LabelsField,
        ObjectsField,
        SizeField,
        KeyField,
        MaskField,
        TextField,
        RaggedField,
        ArrayField,
    )
}
