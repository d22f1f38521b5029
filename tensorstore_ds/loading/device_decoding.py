"""JPEG files to a GPU as they are, a tenth of the bytes of their pixels, and decoded there by nvJPEG.

::

    rows -> files (bytes)         gathered by threads, and pinned        (threads)
    files -> images (C, H, W)     decoded in one call for a batch        (the script's thread, on the device)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tensorstore_ds.errors import Problem, SourceError
from tensorstore_ds.format.kinds import EncodedImageField
from tensorstore_ds.imaging.jpeg import read_header
from tensorstore_ds.loading.buffers import BufferPool, pinned
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Images
from tensorstore_ds.loading.samples import Batch
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.stored_images import TURNS, orientation_of


class JpegFiles(NamedTuple):
    """The image files of a batch, on their way to be decoded.

    Attributes:
        files: of each its bytes, (nbytes,) uint8.
        shapes: (B, 3) int64: height, width and channels that they are shown in.
        orientations: (B,) int64: EXIF's numbers of how they are to be turned.
        keys: what the samples are called in their source.
    """

    files: list[torch.Tensor]
    shapes: torch.Tensor
    orientations: torch.Tensor
    keys: list[str]


def check_device_decoding(dataset: Any, device: torch.device | None, options: Mapping[str, object]) -> None:
    """Raise an `OptionError` unless a device can decode the images of a data set.

    Args:
        options: of the loader, which must all be false: they are for images that are decoded on the CPU.
    """
    name = "decode=device"
    if not isinstance(dataset, StoreDataset) or "image" not in dataset.fields:
        found = ", ".join(dataset.fields) if isinstance(dataset, StoreDataset) else f"a {type(dataset).__name__}"
        raise refusal(name, "a StoreDataset with the field image", found)
    field = dataset.split.fields["image"]
    if not isinstance(field, EncodedImageField) or field.encoding not in ("jpeg", "source"):
        found = field.encoding if isinstance(field, EncodedImageField) else "pixels"
        raise refusal(name, "images of the encoding jpeg or source", found)
    if device is None or device.type != "cuda":
        raise refusal(name, 'an NVIDIA GPU, such as `device="cuda"`', f"device {device}")
    of_dataset = {
        "a transform": dataset.transform is not None,
        "a decode plan of the data set": dataset.decode is not None,
        "as_pil": dataset.as_pil,
        "return_as=torchvision": dataset.return_as == "torchvision",
        "on_error=replace": dataset.on_error == "replace",
    }
    given = next((option for option, value in {**of_dataset, **options}.items() if value), None)
    if given is not None:
        found = f"{given}: leave it out, or use a decode plan, which works on the CPU"
        raise refusal(name, "nothing that needs pixels on the CPU", found)
    try:
        from torchvision.io import decode_jpeg  # noqa: F401  # here, because it takes long, and is an extra
    except ImportError as error:
        raise refusal(name, "torchvision with nvJPEG", f"none ({error})") from error


class DeviceDecoder:
    """Gathers the JPEG files of a data set, and decodes them on a device.

    Args:
        dataset: whose images `check_device_decoding` has allowed.
        device: of the images. torchvision decodes on a CPU, too, which tests do.
    """

    def __init__(self, dataset: StoreDataset, device: torch.device) -> None:
        self._dataset = dataset
        self._device = device

    def gather(self, indices: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        """A batch with `JpegFiles` as its images.

        Raises:
            SourceError: a file is no JPEG file of gray or RGB with 8 bits, or is not of the shape that the store says.
        """
        dataset, split = self._dataset, self._dataset.split
        batch = dataset.gather(indices, pool, draw, fields=[name for name in dataset.fields if name != "image"])
        packed = split.table("image").take(batch.rows)
        shapes = split.image_shapes[batch.rows]
        keys = [split.key(row) for row in batch.rows.tolist()]
        whole = torch.from_numpy(packed["bytes"])  # of all files, and pinned in one piece
        files = list(torch.split(pinned(whole) if pool.pinned else whole, np.diff(packed.offsets).tolist()))
        orientations = []
        for i, (start, stop) in enumerate(zip(packed.offsets[:-1].tolist(), packed.offsets[1:].tolist(), strict=True)):
            data = packed["bytes"][start:stop]
            orientations.append(_checked_orientation(data.tobytes(), shapes[i].tolist(), keys[i]))
        images = JpegFiles(files, torch.from_numpy(shapes.astype(np.int64)), torch.tensor(orientations), keys)
        columns = {name: images if name == "image" else batch.columns[name] for name in dataset.fields}
        return batch.with_columns(columns)  # type: ignore[arg-type]  # they become images before anybody sees them

    def decode(self, batch: Any) -> Any:
        """A collated batch with its `JpegFiles` decoded: (B, C, H, W) if all have one size, else a list."""
        if isinstance(batch, JpegFiles):
            return self._images(batch)
        if isinstance(batch, Mapping):
            return {name: self.decode(value) for name, value in batch.items()}
        return tuple(map(self.decode, batch)) if type(batch) is tuple else batch

    def _images(self, batch: JpegFiles) -> Images:
        is_gray = not len(batch.files) or int(batch.shapes[:, 2].max()) == 1
        try:
            decoded = _decode(batch.files, is_gray, self._device)
        except RuntimeError as error:
            if "nvJPEG" in str(error) and "compiled" in str(error):
                found = "one that was built without it"
                raise refusal("decode=device", "a torchvision with nvJPEG", found) from error
            raise self._damaged(batch, is_gray, error) from error
        images = []
        for image, orientation in zip(decoded, batch.orientations.tolist(), strict=True):
            transposed, upside_down, mirrored = TURNS[orientation]
            image = image.transpose(1, 2) if transposed else image
            image = image.flip([axis for axis, flips in ((1, upside_down), (2, mirrored)) if flips])
            images.append(image)
        return torch.stack(images) if len({image.shape for image in images}) == 1 else images

    def _damaged(self, batch: JpegFiles, is_gray: bool, error: RuntimeError) -> Exception:
        """The error with the name of the file that it is about; as it is, where none fails alone."""
        for file, key in zip(batch.files, batch.keys, strict=True):
            try:
                _decode([file], is_gray, self._device)
            except RuntimeError as found:
                reason = str(found).splitlines()[0][:120]
                return SourceError(Problem(key, "truncated-image", f"this image cannot be decoded ({reason})."))
        return error


def _decode(files: list[torch.Tensor], is_gray: bool, device: torch.device) -> list[torch.Tensor]:
    """(C, H, W) uint8 of each file on the device, as it is stored, before any orientation."""
    from torchvision.io import ImageReadMode, decode_jpeg

    mode = ImageReadMode.GRAY if is_gray else ImageReadMode.RGB
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        # torchvision 0.29 wants to leave it to TorchCodec in a later version.
        images: list[torch.Tensor] = decode_jpeg(files, mode, device=device)
    return images


def _checked_orientation(data: bytes, shape: list[int], key: str) -> int:
    """EXIF's orientation of a JPEG file that a GPU may decode; its size is believed only if the store says the same."""
    header = read_header(data)
    if header is None or header.components == 4:
        problem = Problem(key, "not-an-image", "expected a JPEG file of gray or RGB with 8 bits, found another.")
        raise SourceError(problem, "Use a decode plan, which works on the CPU and reads all files.")
    orientation = orientation_of(data, key) if header.has_metadata else 1
    size = [header.width, header.height] if TURNS[orientation][0] else [header.height, header.width]
    if size != shape[:2]:
        expected, found = ("x".join(map(str, each)) for each in (shape[:2], size))
        raise SourceError(Problem(key, "image-shape", f"expected {expected}, as the store says, found {found}."))
    return orientation
