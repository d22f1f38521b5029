"""Copy JPEG files to a GPU, 1/10 of the bytes of their pixels, and decode them there with nvJPEG.

::

    rows -> files (bytes)         gathered by threads, and pinned        (threads)
    files -> images (C, H, W)     decoded in one call for a batch        (the script's thread, on the device)
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tensorstore_ds.errors import Problem, SourceError, one_line
from tensorstore_ds.imaging.codecs import TURNS
from tensorstore_ds.imaging.jpeg import DamagedJpegError, decode_jpeg, read_header
from tensorstore_ds.loading.buffers import BufferPool, pinned
from tensorstore_ds.loading.dataset import StoreDataset
from tensorstore_ds.loading.decoding import Images
from tensorstore_ds.loading.device import stream_for, with_index
from tensorstore_ds.loading.samples import Batch
from tensorstore_ds.options import refusal
from tensorstore_ds.reading.stored_images import orientation_of

_USE_A_PLAN = "Use a decode plan, which works on the CPU and reads all files."


class JpegFiles(NamedTuple):
    """The image files of a batch that are still to be decoded.

    `files` are (nbytes,) uint8 each. `shapes` (B, 3) int64 are height, width and channels as shown. `orientations` (B,)
    int64 are EXIF's numbers. `keys` are the names of the samples in their source.
    """

    files: list[torch.Tensor]
    shapes: torch.Tensor
    orientations: torch.Tensor
    keys: list[str]


def check_device_decoding(dataset: Any, device: torch.device | None, options: Mapping[str, object]) -> None:
    """Raise an `OptionError` unless a device can decode the images, and `options` for decoding on the CPU are false."""
    name = "decode=device"
    if not isinstance(dataset, StoreDataset) or "image" not in dataset.fields:
        found = ", ".join(dataset.fields) if isinstance(dataset, StoreDataset) else f"a {type(dataset).__name__}"
        raise refusal(name, "a StoreDataset with the field image", found)
    field = dataset.split.fields["image"]
    if field.encoding not in ("jpeg", "source"):
        found = "pixels" if field.encoding in ("", "raw") else field.encoding
        raise refusal(name, "images of the encoding jpeg or source", found)
    if device is None or device.type != "cuda":
        raise refusal(name, 'an NVIDIA GPU, such as `device="cuda"`', f"device {device}")
    of_dataset = {
        "a transform": dataset.transform is not None,
        "tiles": not dataset.whole_images,
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
        _decoder()
    except ImportError as error:
        raise refusal(name, "torchcodec or torchvision with nvJPEG", f"none ({error})") from error


def device_decoder(dataset: Any, device: torch.device | None, options: Mapping[str, object]) -> DeviceDecoder:
    """Return the decoder of a loader's images, with the errors of `check_device_decoding`."""
    check_device_decoding(dataset, device, options)
    return DeviceDecoder(dataset, cast(torch.device, device))


class DeviceDecoder:
    """Gather JPEG files that `check_device_decoding` allows, and decode them on a device, or on a CPU in tests."""

    def __init__(self, dataset: StoreDataset, device: torch.device) -> None:
        self._dataset = dataset
        self._device = device
        self._decoded: list[torch.Tensor] = []

    def gather(self, indices: NDArray[np.int64], pool: BufferPool, draw: tuple[int, int]) -> Batch:
        """Gather a batch of `JpegFiles`. Raises SourceError unless each is 8-bit gray or RGB with the store's shape."""
        dataset, split = self._dataset, self._dataset.split
        batch = dataset.gather(indices, pool, draw, fields=[name for name in dataset.fields if name != "image"])
        packed = split.table("image").take(batch.rows)
        shapes = split.image_shapes[batch.rows]
        keys = [split.key(row) for row in batch.rows.tolist()]
        places, orientations = [], []
        for i, (start, stop) in enumerate(zip(packed.offsets[:-1].tolist(), packed.offsets[1:].tolist(), strict=True)):
            file = packed["bytes"][start:stop]
            orientation, data = _checked(file.tobytes(), shapes[i].tolist(), keys[i])
            file[: len(data)] = np.frombuffer(data, np.uint8)
            places.append((start, start + len(data)))
            orientations.append(orientation)
        whole = torch.from_numpy(packed["bytes"])  # of all files, and pinned in one piece
        whole = pinned(whole) if pool.pinned else whole
        files = [whole[start:stop] for start, stop in places]
        images = JpegFiles(files, torch.from_numpy(shapes.astype(np.int64)), torch.tensor(orientations), keys)
        columns = {name: images if name == "image" else batch.columns[name] for name in dataset.fields}
        return batch.with_columns(columns)  # type: ignore[arg-type]  # they become images before anybody sees them

    def decode(self, batch: Any) -> Any:
        """Decode the `JpegFiles` of a collated batch: (B, C, H, W) if all have one size, else a list."""
        if isinstance(batch, JpegFiles):
            with _decoding_stream(self._device):
                self._decoded = batch.files  # may still be read, until the next batch begins
                return self._images(batch)
        if isinstance(batch, Mapping):
            return {name: self.decode(value) for name, value in batch.items()}
        return tuple(map(self.decode, batch)) if type(batch) is tuple else batch

    def _images(self, batch: JpegFiles) -> Images:
        is_gray = not len(batch.files) or int(batch.shapes[:, 2].max()) == 1
        try:
            decoded = _decode(batch.files, is_gray, self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if "nvJPEG" in str(error) and "compiled" in str(error):
                found = "one that was built without it"
                raise refusal("decode=device", "torchcodec or torchvision with nvJPEG", found) from error
            raise self._explained(batch, is_gray, error) from error
        images = []
        for image, orientation in zip(decoded, batch.orientations.tolist(), strict=True):
            transposed, upside_down, mirrored = TURNS[orientation]
            image = image.transpose(1, 2) if transposed else image
            axes = [axis for axis, flips in ((1, upside_down), (2, mirrored)) if flips]
            images.append(image.flip(axes) if axes else image)
        return torch.stack(images) if len({image.shape for image in images}) == 1 else images

    def _explained(self, batch: JpegFiles, is_gray: bool, error: RuntimeError) -> Exception:
        """Return the error with the file or the decoder that it is about, or unchanged if no single file fails."""
        for file, key in zip(batch.files, batch.keys, strict=True):
            failure = self._failure(file, is_gray)
            if failure is None:
                continue
            if (damage := _damage(file)) is not None:
                problem = Problem(key, "truncated-image", f"this image cannot be decoded ({damage}).")
                return SourceError(problem)
            if self._failure(_sound_file(), is_gray) is None:
                found = f"this image cannot be decoded on {self._device} ({failure})."
                return SourceError(Problem(key, "not-an-image", found), _USE_A_PLAN)
            found = f"one that fails ({failure}): use a decode plan, which works on the CPU"
            return refusal("decode=device", f"a decoder of JPEG files on {self._device}", found)
        return error

    def _failure(self, file: torch.Tensor, is_gray: bool) -> str | None:
        """Return why the device cannot decode a file, or None if it can."""
        try:
            _decode([file], is_gray, self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            return one_line(str(error).splitlines()[0][:120])
        return None


@contextlib.contextmanager
def _decoding_stream(device: torch.device) -> Iterator[None]:
    """Decode on a separate stream, which the stream of copies waits for, as images are handed over with the copies.

    nvJPEG's hardware engine writes images without regard to queued work of a stream, and torchvision decodes on a
    stream that waits for none. If the images' memory came from the model's stream, a kernel might still have to read
    it: the caching allocator reuses freed memory of one stream in the order of that stream, which the engine does not
    keep. Memory of this stream is reused only by work of this stream, which is done when the next batch begins, and
    after all work that was recorded on the images. Nothing waits for the model.
    """
    if device.type != "cuda":
        yield
        return
    own = stream_for("decoding", with_index(device))
    own.synchronize()
    with torch.inference_mode(False), torch.cuda.device(device), torch.cuda.stream(own):
        yield
    stream_for("copies", with_index(device)).wait_stream(own)  # the script's current stream may differ then


#: Function of (files, whether they are gray, device) that returns (C, H, W) uint8 for each file.
_Decode = Callable[[list[torch.Tensor], bool, torch.device], list[torch.Tensor]]


@functools.cache
def _decoder() -> _Decode:
    """Return torchcodec's decoder, or torchvision's deprecated one. Raises ImportError without both."""
    with contextlib.suppress(ImportError, OSError, RuntimeError):  # it may be built for a different torch
        major, minor = metadata.version("torchcodec").split(".")[:2]
        if (int(major), int(minor)) >= (0, 17):
            return _by_torchcodec()
    return _by_torchvision()


def _by_torchcodec() -> _Decode:
    decoders: Any = importlib.import_module("torchcodec.decoders")  # an extra, and slow to import

    def decode(files: list[torch.Tensor], is_gray: bool, device: torch.device) -> list[torch.Tensor]:
        images: list[torch.Tensor] = decoders.decode_jpeg(files, mode="GRAY" if is_gray else "RGB", device=device)
        return images

    return decode


def _by_torchvision() -> _Decode:
    from torchvision import io  # imported here, because it is an extra and slow

    def decode(files: list[torch.Tensor], is_gray: bool, device: torch.device) -> list[torch.Tensor]:
        mode = io.ImageReadMode.GRAY if is_gray else io.ImageReadMode.RGB
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            images: list[torch.Tensor] = io.decode_jpeg(files, mode, device=device)
        return images

    return decode


def _decode(files: list[torch.Tensor], is_gray: bool, device: torch.device) -> list[torch.Tensor]:
    """Decode each file to (C, H, W) uint8 on the device, before any orientation."""
    return _decoder()(files, is_gray, device)


def _damage(file: torch.Tensor) -> str | None:
    """Return the CPU decoder's error for a file, or None if it decodes it."""
    data = file.numpy().tobytes()
    header = read_header(data)
    if header is None:
        return "its header is damaged"
    try:
        decode_jpeg(data, header, channels=1 if header.components == 1 else 3)
    except DamagedJpegError as error:
        return one_line(str(error))
    return None


@functools.cache
def _sound_file() -> torch.Tensor:
    """Return a small JPEG file that every decoder reads, (nbytes,)."""
    buffer = io.BytesIO()
    Image.new("RGB", (64, 64)).save(buffer, "JPEG")
    return torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)


def _checked(data: bytes, shape: list[int], key: str) -> tuple[int, bytes]:
    """Return a JPEG file's orientation, and the file without metadata, in which decoders differ. Checks its size."""
    header = read_header(data)
    if header is None or header.components == 4:
        problem = Problem(key, "not-an-image", "expected a JPEG file of gray or RGB with 8 bits, found another.")
        raise SourceError(problem, _USE_A_PLAN)
    orientation = orientation_of(data, key) if header.has_metadata else 1
    size = [header.width, header.height] if TURNS[orientation][0] else [header.height, header.width]
    if size != shape[:2]:
        expected, found = ("x".join(map(str, each)) for each in (shape[:2], size))
        raise SourceError(Problem(key, "image-shape", f"expected {expected}, as the store says, found {found}."))
    return orientation, header.head + data[header.start :] if header.has_metadata else data
