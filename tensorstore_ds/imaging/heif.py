"""AVIF and HEIC files: which of the two a file is, and the library that opens it.

Both consist of boxes of ISO/IEC 14496-12. The first one, `ftyp`, lists brands. Pillow decodes AVIF. The library
pillow-heif (the extra ``heic``) decodes HEIC. It is imported for the first HEIC file, and never registered with Pillow.

The boxes `irot` and `imir` rotate and mirror an image. The EXIF orientation of such a file is only information,
according to ISO/IEC 23008-12: pillow-heif returns upright pixels and resets it, and Pillow replaces it by that of the
boxes.
"""

from __future__ import annotations

from typing import BinaryIO, Literal

from PIL import ImageFile

from tensorstore_ds.errors import Problem, SourceError

#: Pillow's names of the two formats.
HEIF_FORMATS = frozenset(("AVIF", "HEIF"))
#: Number of bytes at the beginning of a file that determine its format: more brands than any file lists.
HEAD_NBYTES = 256
_AVIF = frozenset((b"avif", b"avis"))
_HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
_EITHER = frozenset((b"mif1", b"msf1"))


def heif_format(head: bytes) -> Literal["AVIF", "HEIC"] | None:
    """Return the format of a file that begins with these bytes, or None if it is neither.

    >>> heif_format(b"\\0\\0\\0\\x14ftypmif1\\0\\0\\0\\0heic"), heif_format(b"\\xff\\xd8\\xff")
    ('HEIC', None)
    """
    if head[4:8] != b"ftyp":
        return None
    end = min(int.from_bytes(head[:4], "big"), HEAD_NBYTES, len(head))
    brands = [head[8:12], *(head[at : at + 4] for at in range(16, end, 4))]
    coded = next((brand for brand in brands if brand in _AVIF | _HEIC), None)
    if coded is None:
        return None if _EITHER.isdisjoint(brands) else "HEIC"
    return "AVIF" if coded in _AVIF else "HEIC"


def open_heif(file: BinaryIO, key: str) -> ImageFile.ImageFile | None:
    """Read the header of an AVIF or HEIC file, or return None for other files and read nothing.

    Raises SourceError `missing-library`, naming `key`, or any exception of the library for a damaged header.
    """
    found = heif_format(file.read(HEAD_NBYTES))
    file.seek(0)
    if found == "AVIF":
        from PIL import AvifImagePlugin

        if not AvifImagePlugin.SUPPORTED:
            message = "this is an AVIF file, which the Pillow that is installed cannot decode."
            advice = "Install Pillow from one of its wheels, which can."
            raise SourceError(Problem(key, "missing-library", message), advice)
        return AvifImagePlugin.AvifImageFile(file)
    if found == "HEIC":
        try:
            from pillow_heif import HeifImageFile

            image: ImageFile.ImageFile = HeifImageFile(file)
            return image
        except ImportError as error:
            message = "this is a HEIC file, which is read with the library pillow-heif, which is missing."
            advice = "Install it with: pip install '.[heic]' in a clone of tensorstore-ds."
            raise SourceError(Problem(key, "missing-library", message), advice) from error
    return None
