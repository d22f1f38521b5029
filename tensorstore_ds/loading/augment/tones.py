"""The arithmetic of colors: functions of images (n, C, H, W), with an amount for each.

Images are uint8, or floating-point in [0, 1]. Formulas and rounding are those of torchvision's `v2.functional`, which
has them from Pillow. Results are new memory of the same dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
#: Red, green and blue in the brightness that we see (ITU-R BT.601, as Pillow and torchvision round it).
LUMA = (0.2989, 0.587, 0.114)


def grays_of(values: Tensor) -> Tensor:
    """(n, 1, H, W) brightness of floating-point colors (n, 3, H, W)."""
    red, green, blue = values.unbind(1)
    return red.mul(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])[:, None]


def grayscale(images: Tensor) -> Tensor:
    """The same brightness in all channels; images of one channel as they are."""
    if images.shape[1] == 1:
        return images.clone()
    return grays_of(_floating(images)).to(images.dtype).expand(images.shape)


def blend(images: Tensor, order: Tensor, factors: Tensor, *, hues: bool = False) -> Tensor:
    """Change brightness, contrast, saturation and hue, in turn.

    The first three blend the image with something gray: ``factor * image + (1 - factor) * gray``, where gray is black,
    the mean of the image's grays, or the gray of each pixel.

    Args:
        order: (n, turns) int64: which of the four.
        factors: (n, turns) float64; of a hue, what is added to it, in turns of the color wheel.
        hues: whether there may be hues in `order`.
    """
    work = torch.float64 if images.dtype == torch.float64 else torch.float32
    which, amounts = order[..., None, None, None], factors.to(work)[..., None, None, None]
    shares = torch.where(which == HUE, 1, amounts)
    rests = torch.where(which == HUE, 0, (1 - factors).to(work)[..., None, None, None])
    layout = torch.contiguous_format if images.device.type == "cpu" else torch.preserve_format  # one color at a time
    values = images.to(work, copy=True, memory_format=layout)
    whole = images.dtype == torch.uint8
    for turn in range(order.shape[1]):
        grays = values
        if values.shape[1] == 3:
            grays = grays_of(values)
            grays = grays.floor_() if whole else grays
        mean = grays.mean((1, 2, 3), keepdim=True)
        grays = torch.where(which[:, turn] == CONTRAST, mean, grays)
        grays = torch.where(which[:, turn] == BRIGHTNESS, 0.0, grays)
        values.mul_(shares[:, turn]).add_(grays * rests[:, turn]).clamp_(0, 255 if whole else 1)
        if whole:
            values.floor_()
        if hues and values.shape[1] == 3:
            turned = _turned(values, amounts[:, turn, 0], whole)
            values = torch.where(which[:, turn] != HUE, values, turned)  # has the memory format of the first
    return values.to(images.dtype)


def _turned(values: Tensor, shift: Tensor, whole: bool) -> Tensor:
    """Colors (n, 3, H, W) in [0, 1], or [0, 255] if `whole`, with another hue: (n, 1, 1, 1) is added to it."""
    colors = values * (1 / 255) if whole else values
    hue, saturation, value = hsv_of(colors)
    turned = rgb_of((hue + shift) % 1, saturation, value)
    return (turned * (256 - 1e-3)).floor_() if whole else turned  # torchvision's way to whole numbers


def hsv_of(colors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue, saturation and value, (n, H, W) in [0, 1], of colors (n, 3, H, W) in [0, 1]."""
    red, green, blue = colors.unbind(1)
    most, least = colors.amax(1), colors.amin(1)
    is_gray, spread = most == least, most - least
    r, g, b = ((most - each) / torch.where(is_gray, 1, spread) for each in (red, green, blue))
    hue = torch.where(most == red, b - g, torch.where(most == green, 2 + r - b, 4 + g - r))
    return (hue / 6 + 1) % 1, spread / torch.where(is_gray, 1, most), most


def rgb_of(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The inverse of `hsv_of`."""
    places = [(n + hue * 6) % 6 for n in (5, 3, 1)]
    return torch.stack([value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1) for k in places], 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert what is at least `threshold` (n,), in the unit of the images."""
    least = threshold.to(torch.promote_types(images.dtype, torch.float32))[:, None, None, None]
    if images.dtype == torch.uint8:
        return torch.where(images >= least.ceil().to(torch.uint8), images.bitwise_not(), images)
    return torch.where(images >= least, 1 - images, images)


def posterize(images: Tensor, bits: Tensor) -> Tensor:
    """Keep the highest `bits` (n,) int64, in [0, 8], of each value."""
    levels = 2 ** bits[:, None, None, None]
    if images.dtype == torch.uint8:
        return images & (256 - 256 // levels).to(torch.uint8)
    levels = levels.to(images.dtype)
    return (images * levels).floor_().clamp_(min=0).minimum(levels - 1) / levels


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel over all levels; a channel of one value stays."""
    bound = 255 if images.dtype == torch.uint8 else 1
    values = _floating(images)
    least, most = values.amin((2, 3), keepdim=True), values.amax((2, 3), keepdim=True)
    is_flat = least == most
    scale = torch.where(is_flat, 1, (most - least) * (1 / bound))
    return ((values - torch.where(is_flat, 0, least)) / scale).clamp_(0, bound).to(images.dtype)


def equalize(images: Tensor) -> Tensor:
    """Make all levels of a channel about equally frequent: Pillow's `ImageOps.equalize`.

    Floating-point images have 256 levels after it.
    """
    levels = images if images.dtype == torch.uint8 else (_floating(images) * (256 - 1e-3)).to(torch.uint8)
    flat = levels.flatten(2).long()
    counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
    counts.scatter_add_(2, flat, counts.new_ones(1, 1, 1).expand_as(flat))
    step = (flat.shape[2] - counts.gather(2, flat.amax(2, keepdim=True))) // 255
    before = counts.cumsum(2) - counts  # how many pixels have a lower level
    table = ((before + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device)).to(torch.uint8)
    equalized = table.gather(2, flat).view(images.shape)
    return equalized if images.dtype == torch.uint8 else (equalized * (1 / 255)).to(images.dtype)


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with what a 3 x 3 filter smooths, by `factor` (n,): 0 is smooth, 1 the image. The edges stay."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images.clone()
    values = _floating(images)
    inside = values[:, :, 1:-1, 1:-1]
    smooth = inside * (4 / 13)
    for y in range(3):
        for x in range(3):
            smooth = smooth + values[:, :, y : height - 2 + y, x : width - 2 + x] * (1 / 13)
    whole = images.dtype == torch.uint8
    smooth = smooth.round() if whole else smooth
    sharp = inside + (smooth - inside) * (1 - factor.to(values.dtype))[:, None, None, None]
    added = functional.pad(sharp - inside, (1, 1, 1, 1))
    return (values + added).clamp_(0, 255 if whole else 1).to(images.dtype)


def _floating(images: Tensor) -> Tensor:
    """In the dtype that is computed with: float64, or float32 of any other."""
    return images if images.dtype == torch.float64 else images.to(torch.float32)
