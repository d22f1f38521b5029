"""Arithmetic of colors, as functions of images (n, C, H, W) with one amount for each image.

Images are uint8, uint16, or floating-point in [0, 1]. Formulas and rounding are as in torchvision's `v2.functional`,
which has them from Pillow. Results are new memory of the same dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tensorstore_ds.loading.augment.pixels import bits_of, in_one_operation, memory_format_of
from tensorstore_ds.loading.augment.values import BITS, as_dtype, floating, white_of

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
#: Channels with at least this many pixels are counted one by one on a CPU, which is faster than all at once.
LARGE_CHANNEL = 2**13
#: Weights of red, green and blue in perceived brightness (ITU-R BT.601, rounded as in Pillow and torchvision).
LUMA = (0.2989, 0.587, 0.114)


def grays_of(values: Tensor) -> Tensor:
    """Return the brightness (n, 1, H, W) of floating-point colors (n, 3, H, W)."""
    red, green, blue = values.unbind(1)
    return red.mul(LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])[:, None]


def grayscale(images: Tensor) -> Tensor:
    """Return the brightness in all channels. Images of one channel do not change."""
    if images.shape[1] == 1:
        return images.clone()
    return as_dtype(grays_of(floating(images)), images.dtype).expand(images.shape)


def blend(images: Tensor, order: Tensor, factors: Tensor, *, hues: bool = False) -> Tensor:
    """Change brightness, contrast, saturation and hue, in turn.

    The first three blend the image with a gray one: ``factor * image + (1 - factor) * gray``, where gray is black, the
    mean of the image's grays, or the gray of each pixel. `order` (n, turns) int64 selects the change, and `factors`
    (n, turns) float64 are its factors, or the shift of the hue in turns of the color wheel. `hues` says whether `order`
    may contain hues.
    """
    work = torch.float64 if images.dtype == torch.float64 else torch.float32
    which, amounts = order[..., None, None, None], factors.to(work)[..., None, None, None]
    shares = torch.where(which == HUE, 1, amounts)
    rests = torch.where(which == HUE, 0, (1 - factors).to(work)[..., None, None, None])
    layout = torch.contiguous_format if images.device.type == "cpu" else torch.preserve_format  # one color at a time
    values = images.to(work, copy=True, memory_format=layout)
    whole, batched, white = images.dtype in BITS, in_one_operation(images), white_of(images.dtype)
    for turn in range(order.shape[1]):
        kinds = {BRIGHTNESS, CONTRAST, SATURATION, HUE} if batched else set(order[:, turn].tolist())
        if kinds <= {BRIGHTNESS, HUE}:
            values.mul_(shares[:, turn])
        else:
            added = _grays_of_turn(values, which[:, turn], kinds, whole) * rests[:, turn]
            values.mul_(shares[:, turn]).add_(added)
        values.clamp_(0, white)
        if whole:
            values.floor_()
        if not hues or HUE not in kinds or values.shape[1] != 3:
            continue
        if batched:
            turned = _turned(values, amounts[:, turn, 0], white)
            values = torch.where(which[:, turn] != HUE, values, turned)  # keeps the memory format of the first
        else:
            rows = (order[:, turn] == HUE).nonzero()[:, 0]
            values[rows] = _turned(values[rows], amounts[rows, turn, 0], white)
    return as_dtype(values, images.dtype)


def _grays_of_turn(values: Tensor, which: Tensor, kinds: set[int], whole: bool) -> Tensor:
    """Return the image to blend with in a turn: black, the mean of the grays, or the grays. `kinds` are in `which`."""
    grays = values
    if values.shape[1] == 3:
        grays = grays_of(values)
        grays = grays.floor_() if whole else grays
    if CONTRAST in kinds:
        mean = grays.mean((1, 2, 3), keepdim=True)
        grays = torch.where(which == CONTRAST, mean, grays) if len(kinds) > 1 else mean
    return torch.where(which == BRIGHTNESS, 0.0, grays) if BRIGHTNESS in kinds else grays


def _turned(values: Tensor, shift: Tensor, white: int) -> Tensor:
    """Shift the hue of colors (n, 3, H, W) in [0, white] by (n, 1, 1, 1)."""
    colors = values * (1 / white) if white > 1 else values
    hue, saturation, value = hsv_of(colors)
    turned = rgb_of((hue + shift) % 1, saturation, value)
    if white == 1:
        return turned
    return (turned * (white + 1 - 1e-3)).floor_().clamp_(max=white)  # torchvision's rounding to integers


def hsv_of(colors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert colors (n, 3, H, W) in [0, 1] to hue, saturation and value, (n, H, W) in [0, 1]."""
    red, green, blue = colors.unbind(1)
    most, least = colors.amax(1), colors.amin(1)
    is_gray, spread = most == least, most - least
    r, g, b = ((most - each) / torch.where(is_gray, 1, spread) for each in (red, green, blue))
    hue = torch.where(most == red, b - g, torch.where(most == green, 2 + r - b, 4 + g - r))
    return (hue / 6 + 1) % 1, spread / torch.where(is_gray, 1, most), most


def rgb_of(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Compute the inverse of `hsv_of`."""
    places = [(n + hue * 6) % 6 for n in (5, 3, 1)]
    return torch.stack([value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1) for k in places], 1)


def solarize(images: Tensor, threshold: Tensor) -> Tensor:
    """Invert values of at least `threshold` (n,), in the unit of the images."""
    least = threshold.to(torch.promote_types(images.dtype, torch.float32))[:, None, None, None]
    if images.dtype == torch.uint8:
        first = least.ceil().to(torch.uint8)  # torch compares bytes one by one, but takes the minimum of many at once
        below, last = first - 1, first - (first > 0).to(torch.uint8)
        reached = torch.maximum(torch.minimum(images, first), last) - below  # 0 or 1; bytes that overflow wrap to 0
        return images ^ (reached * 255)
    values = images if images.is_floating_point() else images.to(torch.int32)
    return torch.where(values >= least, white_of(images.dtype) - values, values).to(images.dtype)


def posterize(images: Tensor, bits: Tensor, *, in_place: bool = False) -> Tensor:
    """Keep the highest `bits` (n,) int64, in [0, 8], of each value. `in_place` is for uint8 only."""
    bits = bits[:, None, None, None]
    if images.dtype == torch.uint8:
        kept = torch.bitwise_right_shift(0xFF00, bits).to(torch.uint8)  # its lowest byte
        return images.bitwise_and_(kept) if in_place else images & kept
    if not images.is_floating_point():
        return (images.to(torch.int32) & (torch.bitwise_right_shift(0xFFFF0000, bits) & 0xFFFF)).to(images.dtype)
    levels = (2**bits).to(images.dtype)
    return (images * levels).floor_().clamp_(min=0).minimum(levels - 1).mul_(1 / levels)


def autocontrast(images: Tensor) -> Tensor:
    """Stretch each channel over all levels. A constant channel does not change."""
    bound, values = white_of(images.dtype), floating(images)
    least, most = map(floating, _extremes(values if images.dtype == torch.uint16 else images))
    is_flat = least == most
    scale = torch.where(is_flat, 1, (most - least) * (1 / bound))
    values = values - _lines(torch.where(is_flat, 0, least), images)
    return as_dtype(values.div_(_lines(scale, images)).clamp_(0, bound), images.dtype)


def _extremes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest value of each channel, (n, C, 1, 1)."""
    if memory_format_of(images) == torch.contiguous_format:
        return images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    lines = images.permute(0, 2, 3, 1).flatten(2)  # whole lines at once, because 3 channels are too few
    least, most = (each.view(len(images), images.shape[3], -1) for each in (lines.amin(1), lines.amax(1)))
    return least.amin(1)[:, :, None, None], most.amax(1)[:, :, None, None]


def _lines(amounts: Tensor, images: Tensor) -> Tensor:
    """Expand (n, C, 1, 1) to (n, C, 1, W) in the images' layout, to compute with whole lines."""
    wide = amounts.expand(-1, -1, 1, images.shape[3])
    return wide.contiguous(memory_format=memory_format_of(images))


def equalize(images: Tensor) -> Tensor:
    """Equalize the levels of each channel, as Pillow's `ImageOps.equalize`. Floats then have 256 levels."""
    levels = images if images.dtype == torch.uint8 else (floating(images) * (256 - 1e-3)).to(torch.uint8)
    levels = _planar(levels)
    flat = levels.flatten(2).long()
    if in_one_operation(images) or flat.shape[2] < LARGE_CHANNEL:
        counts = torch.zeros((*flat.shape[:2], 256), dtype=torch.int64, device=images.device)
        counts.scatter_add_(2, flat, counts.new_ones(1, 1, 1).expand_as(flat))
    else:
        channels = levels.flatten(0, 1)
        counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in channels]).view(
            *flat.shape[:2], -1
        )
    step = (flat.shape[2] - counts.gather(2, flat.amax(2, keepdim=True))) // 255
    before = counts.cumsum(2) - counts  # number of pixels with a lower level
    table = ((before + step // 2) // step.clamp(min=1)).clamp_(0, 255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device)).to(torch.uint8)
    equalized = table.gather(2, flat).view(images.shape)
    return equalized if images.dtype == torch.uint8 else (equalized * (1 / 255)).to(images.dtype)


def _planar(images: Tensor) -> Tensor:
    """Copy images (n, C, H, W) to contiguous memory. On a CPU, NumPy copies by channel, which is faster than torch."""
    if in_one_operation(images) or images.is_contiguous():
        return images.contiguous()
    out = torch.empty(images.shape, dtype=images.dtype)
    source, target = bits_of(images), bits_of(out)
    for channel in range(images.shape[1]):
        target[:, channel] = source[:, channel]
    return out


def sharpen(images: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3 x 3 smoothing filter by `factor` (n,): 0 is smooth, 1 the image. The edges do not change."""
    height, width = images.shape[2:]
    if min(height, width) < 3:
        return images.clone()
    values = floating(images)
    inside = values[:, :, 1:-1, 1:-1]
    smooth = inside * (4 / 13)
    for y in range(3):
        for x in range(3):
            smooth += values[:, :, y : height - 2 + y, x : width - 2 + x] * (1 / 13)
    smooth = smooth.round_() if images.dtype in BITS else smooth
    added = smooth.sub_(inside).mul_((1 - factor.to(values.dtype))[:, None, None, None]).add_(inside).sub_(inside)
    sharp = values.clone()
    sharp[:, :, 1:-1, 1:-1] += added
    return as_dtype(sharp.clamp_(0, white_of(images.dtype)), images.dtype)
