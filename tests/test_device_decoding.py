"""JPEG files that a device decodes: what is refused, and what becomes of a batch. A GPU is needed for the rest."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import tensorstore_ds as tsds
from jpeg_files import drawn, oriented
from stores import png_bytes, store_of
from tensorstore_ds.annex import device_decoding
from tensorstore_ds.annex.device_decoding import DeviceDecoder, JpegFiles, check_device_decoding
from tensorstore_ds.errors import OptionError, SourceError
from tensorstore_ds.loading.buffers import BufferPool
from training_stores import one_line

DECODERS = {"torchvision": device_decoding._by_torchvision, "torchcodec": device_decoding._by_torchcodec}
SIZES = [(40, 56), (64, 48), (33, 33)]
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def files(folder: Path, sizes: list[tuple[int, int]], orientations: tuple[int, ...] = (1,)) -> list[Path]:
    """JPEG files in class folders."""
    paths = []
    for row, size in enumerate(sizes):
        path = folder / "ab"[row % 2] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(oriented(drawn(*size, seed=row), orientations[row % len(orientations)]))
        paths.append(path)
    return paths


def converted(folder: Path, **options: Any) -> Path:
    tsds.convert(folder, folder.with_suffix(".tsds"), tsds.ConvertOptions(workers=0, **options))
    return folder.with_suffix(".tsds")


def upright(path: Path) -> torch.Tensor:
    """(C, H, W): what Pillow makes of a file."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(path.read_bytes())))
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def on(device: torch.device, loader: tsds.DataLoader[Any]) -> tsds.DataLoader[Any]:
    """A loader whose files are decoded on a device; on the CPU, torchvision's decoder is called in the same way."""
    assert isinstance(loader.dataset, tsds.StoreDataset)
    loader._decoder = DeviceDecoder(loader.dataset, device)
    return loader


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the packages that decode."""
    try:
        made = DECODERS[request.param]()
    except (ImportError, OSError, RuntimeError) as error:  # it is not there, or was built for another torch
        pytest.skip(f"{request.param}: {error}")
    monkeypatch.setattr(device_decoding, "_decoder", lambda: made)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("orientations", [(1,), (1, 2, 3, 4, 5, 6, 7, 8)])
@pytest.mark.parametrize("return_as", ["dict", "tuple"])
def test_images_are_those_of_pillow(tmp_path: Path, orientations: tuple[int, ...], return_as: Any) -> None:
    paths = files(tmp_path / "s", SIZES * 4, orientations)
    dataset = tsds.StoreDataset(converted(tmp_path / "s", encoding="source"), return_as=return_as)
    by_name = {path.name: path for path in paths}
    expected = [upright(by_name[Path(dataset.key(row)).name]) for row in range(len(dataset))]
    seen = 0
    for batch in on(CPU, tsds.DataLoader(dataset, 5)):
        images, labels = (batch["image"], batch["label"]) if return_as == "dict" else batch
        assert labels.tolist() == dataset.targets[seen : seen + len(images)]
        for image in images:
            difference = (image.int() - expected[seen].int()).abs().float()
            assert image.shape == expected[seen].shape and difference.mean() < 1  # decoders round differently
            seen += 1
    assert seen == len(expected)


def test_files_are_kept_until_the_next_batch_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder may read pinned memory after the call, which torch's allocator does not know."""
    monkeypatch.setattr(device_decoding, "_decode", lambda files, *_: [torch.zeros(3, 2, 2) for _ in files])
    files(tmp_path / "s", [(16, 24)] * 2)
    dataset = tsds.StoreDataset(converted(tmp_path / "s", encoding="source"))
    decoder = DeviceDecoder(dataset, CPU)
    kept = []
    for row in range(2):
        images = decoder.gather(np.array([row]), BufferPool(), (0, 0)).columns["image"]
        assert isinstance(images, JpegFiles)
        decoder.decode(images)
        kept.append(weakref.ref(images.files[0]))
        del images
        assert [each() is not None for each in kept] == [False] * row + [True]


def test_images_of_one_size_are_stacked_and_transformed(tmp_path: Path) -> None:
    files(tmp_path / "s", [(16, 24)] * 6)
    dataset = tsds.StoreDataset(converted(tmp_path / "s", encoding="jpeg"))
    rows: list[int] = []

    def transform(batch: Any, numbers: Any, epoch: int) -> Any:
        assert batch["image"].shape[1:] == (3, 16, 24) and batch["image"].dtype == torch.uint8
        rows.extend(numbers.tolist())
        return batch

    assert len(list(on(CPU, tsds.DataLoader(dataset, 4, batch_transform=transform)))) == 2
    assert rows == [0, 1, 2, 3, 4, 5]


def test_files_that_cannot_be_decoded_are_named(tmp_path: Path) -> None:
    paths = files(tmp_path / "s", [(16, 24)] * 4)
    paths[1].write_bytes(png_bytes(drawn(16, 24, seed=1)))
    dataset = tsds.StoreDataset(converted(tmp_path / "s", encoding="source"))
    with pytest.raises(SourceError) as error:
        list(on(CPU, tsds.DataLoader(dataset, 4)))
    expected = "1.jpg: expected a JPEG file of gray or RGB with 8 bits, found another. "
    assert expected + "Use a decode plan, which works on the CPU and reads all files." in one_line(error.value)


@pytest.mark.usefixtures("decoder")
def test_damage_that_the_decoder_finds_is_named(tmp_path: Path) -> None:
    paths = files(tmp_path / "s", [(16, 24)] * 4)
    data = paths[2].read_bytes()
    scan = data.index(b"\xff\xda")
    paths[2].write_bytes(data[: scan + 30])
    kept = tsds.ConvertOptions(workers=0, encoding=tsds.conversion.SourceFiles(check="headers"))
    tsds.convert(tmp_path / "s", tmp_path / "s.tsds", kept)
    with pytest.raises(SourceError, match=r"2\.jpg"):
        list(on(CPU, tsds.DataLoader(tsds.StoreDataset(tmp_path / "s.tsds"), 4)))


@pytest.mark.parametrize(
    ("version", "expected"), [("0.17.0+cu130", "torchcodec"), ("1.0", "torchcodec"), ("0.16.2", "torchvision")]
)
def test_torchcodec_decodes_where_it_is_new_enough(
    version: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", {"torchcodec": version}.__getitem__)
    for name in DECODERS:
        monkeypatch.setattr(device_decoding, f"_by_{name}", lambda name=name: name)
    assert device_decoding._decoder.__wrapped__() == expected

    def fail() -> None:
        raise OSError("libtorch_cuda.so: cannot open shared object file")

    monkeypatch.setattr(device_decoding, "_by_torchcodec", fail)
    assert device_decoding._decoder.__wrapped__() == "torchvision"


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception, *, fails: Callable[[torch.Tensor], bool]) -> None:
    """Let the device fail at some files; others are decoded as they are."""
    decode = device_decoding._by_torchvision()

    def decode_some(files: list[torch.Tensor], is_gray: bool, device: torch.device) -> list[torch.Tensor]:
        if any(map(fails, files)):
            raise error
        return decode(files, is_gray, device)

    monkeypatch.setattr(device_decoding, "_decoder", lambda: decode_some)


def test_a_decoder_that_fails_is_not_blamed_on_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path / "s", [(16, 24)] * 4)
    loader = on(CPU, tsds.DataLoader(tsds.StoreDataset(converted(tmp_path / "s", encoding="source")), 4))
    failing(monkeypatch, RuntimeError("Failed to initialize nvjpeg: 6\nmore"), fails=lambda file: True)
    text = refused(lambda: list(loader))
    expected = "a decoder of JPEG files on cpu, found one that fails (Failed to initialize nvjpeg: 6)"
    assert text == f"`decode=device`: expected {expected}: use a decode plan, which works on the CPU."
    failing(monkeypatch, torch.OutOfMemoryError("CUDA out of memory."), fails=lambda file: True)
    with pytest.raises(torch.OutOfMemoryError):
        list(loader)


def test_a_sound_file_that_the_device_cannot_decode_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files(tmp_path / "s", [(16, 24), (16, 24), (64, 96), (16, 24)])
    loader = on(CPU, tsds.DataLoader(tsds.StoreDataset(converted(tmp_path / "s", encoding="source")), 4))
    largest = max(len(path.read_bytes()) for path in (tmp_path / "s").rglob("*.jpg"))
    failing(monkeypatch, RuntimeError("nvjpegDecode failed: 4"), fails=lambda file: 2 * len(file) > largest)
    with pytest.raises(SourceError) as error:
        list(loader)
    text = one_line(error.value)
    assert "2.jpg: this image cannot be decoded on cpu (nvjpegDecode failed: 4). Use a decode plan" in text


def refused(call: Any) -> str:
    with pytest.raises(OptionError) as error:
        call()
    return one_line(error.value)


def test_what_is_refused(tmp_path: Path) -> None:
    files(tmp_path / "s", SIZES)
    dataset = tsds.StoreDataset(converted(tmp_path / "s", encoding="source"))
    text = refused(lambda: tsds.DataLoader(dataset, 2, decode="device"))
    assert text == '`decode=device`: expected an NVIDIA GPU, such as `device="cuda"`, found device None.'
    assert refused(lambda: tsds.DataLoader(dataset, 2, decode="device", device="cpu")).endswith("found device cpu.")
    pixels = store_of(tmp_path / "p.tsds", [{"image": drawn(8, 8, seed=0)}] * 2)
    text = refused(lambda: tsds.DataLoader(tsds.StoreDataset(pixels), 2, decode="device"))
    assert text == "`decode=device`: expected images of the encoding jpeg or source, found pixels."
    assert "found a list." in refused(lambda: tsds.DataLoader([1, 2], 2, decode="device"))  # type: ignore[arg-type]
    others = {
        "a transform": {"transform": lambda sample: sample},
        "as_pil": {"as_pil": True},
        "on_error=replace": {"on_error": "replace"},
        "a decode plan of the data set": {"decode": tsds.Resize(8)},
    }
    for found, arguments in others.items():
        other = tsds.StoreDataset(dataset.path, **arguments)  # type: ignore[arg-type]
        text = refused(lambda other=other: check_device_decoding(other, GPU, {}))
        assert text.startswith(
            f"`decode=device`: expected nothing that needs pixels on the CPU, found {found}: leave it"
        )
    text = refused(lambda: check_device_decoding(dataset, GPU, {"workers": 2, "collate_fn": None}))
    assert "found workers: leave it out, or use a decode plan, which works on the CPU" in text


def of_repeated_chroma(path: Path) -> float:
    """Mean difference that it makes to repeat chroma, as nvJPEG does, where Pillow interpolates it."""
    import simplejpeg

    data = path.read_bytes()
    smooth, repeated = (simplejpeg.decode_jpeg(data, fastupsample=fast).astype(int) for fast in (False, True))
    return float(np.abs(smooth - repeated).mean())


@pytest.mark.gpu("nvjpeg")
def test_a_gpu_decodes_as_pillow_does(tmp_path: Path) -> None:
    """But for the chroma of subsampled files, in small images of sharp edges up to 5.2 of 255 in the mean."""
    paths = files(tmp_path / "s", SIZES * 4, (1, 6, 3))
    dataset = tsds.StoreDataset(converted(tmp_path / "s", encoding="source"), fields=["image", "key"])
    by_name = {path.name: path for path in paths}
    seen = 0
    for batch in tsds.DataLoader(dataset, 5, device="cuda", decode="device"):
        for image, key in zip(batch["image"], batch["key"], strict=True):
            expected = upright(by_name[Path(key).name])
            assert image.device.type == "cuda" and image.shape == expected.shape
            most = 2 + of_repeated_chroma(by_name[Path(key).name])
            assert (image.cpu().int() - expected.int()).abs().float().mean() < most
            seen += 1
    assert seen == len(paths)
