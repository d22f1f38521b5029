"""A contact sheet of copies of images, by groups."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from PIL import Image

from tensorstore_ds.annex.checking.findings import CheckFindings, Copies
from tensorstore_ds.annex.pictures.contact_sheet import MEDIUM, Cell, magnified, picture_of, sheet_of
from tensorstore_ds.errors import OptionError
from tensorstore_ds.format.kinds import ImageField
from tensorstore_ds.format.kinds.base import of_kind
from tensorstore_ds.imaging.codecs import quiet_pillow
from tensorstore_ds.reading.store import Store

_MOST = 6  # samples of a group


def draw_copies(
    store: Store, findings: CheckFindings, *, others: Mapping[str, Store] = MappingProxyType({}), count: int = 24
) -> Image.Image:
    """Draw the images of groups of copies on a contact sheet: leaks first, then groups whose labels disagree.

    >>> image = np.zeros((32, 32, 3), np.uint8)
    >>> image[8:, 4:] = 200
    >>> _ = tsds.convert({"train": [(image, 0)], "val": [(image, 0)]}, "leak.tsds", classes=["a", "b"])
    >>> found = tsds.check_store("leak.tsds")
    >>> found.copies[0].is_leak
    True
    >>> tsds.checking.draw_copies(tsds.open("leak.tsds"), found).mode
    'RGB'

    Args:
        store: the open store that was checked.
        findings: result of `check_store` for this store.
        others: other stores that were checked with it, by their paths or URLs in `findings`, to draw their samples.
        count: maximum number of groups to draw.

    Returns:
        An RGB image. The number of its group stands below each sample. It shows at most 6 samples per group.

    Raises:
        OptionError: `findings` has no copies.
    """
    if not findings.copies:
        raise OptionError("expected findings with copies, found none. There is nothing to draw.")
    ordered = sorted(findings.copies, key=lambda each: (not each.is_leak, not each.labels_disagree))
    groups = ordered[:count]
    stores = {"": store, **others}
    images = {name: next(iter(of_kind(each.manifest.fields, ImageField))) for name, each in stores.items()}
    with quiet_pillow():
        cells = [
            Cell(
                magnified(picture_of(stores[each.store][each.split], each.row, images[each.store]), MEDIUM)[0],
                [_marks(number, group), each.label or "", _notes(group)],
                each.place,
            )
            for number, group in enumerate(groups, 1)
            for each in [each for each in group.samples if each.store in stores][:_MOST]
        ]
    return sheet_of(f"{len(groups):,} of {len(ordered):,} groups of copies", cells, ())


def _marks(number: int, group: Copies) -> str:
    return f"{number}: {'equal' if group.exact else 'changed'}{', leak' * group.is_leak}"


def _notes(group: Copies) -> str:
    more = len(group.samples) - _MOST
    return ", ".join(["labels disagree"] * group.labels_disagree + [f"{more:,} more"] * (more > 0))
