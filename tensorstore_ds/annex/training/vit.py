"""A vision transformer: torchvision's, for images of any size, shape and number of channels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.models.vision_transformer import VisionTransformer

from tensorstore_ds.annex.training.options import ViTOptions
from tensorstore_ds.errors import OptionError


class ViT(VisionTransformer):  # type: ignore[misc]  # torchvision has no types
    """Vision transformer for images of any size and number of channels. The grid of patches need not be square.

    It derives from torchvision's `VisionTransformer` (Dosovitskiy et al., ICLR 2021). If the patch size does not divide
    the image size, the image is padded at the right and the bottom with 0, which is the mean after normalization. The
    names of the weights are the names in torchvision, and for square RGB images also their shapes.

    >>> sizes = {"width": 64, "depth": 2, "heads": 4, "mlp_width": 128}
    >>> options = tsds.training.ViTOptions((28, 28), channels=1, patch_size=7, **sizes)
    >>> tsds.training.ViT(options, outputs=10)(torch.zeros(2, 1, 28, 28)).shape  # (B, outputs)
    torch.Size([2, 10])

    Args:
        options: shape of the model.
        outputs: number of outputs per image.
        grad_checkpointing: keep only the inputs of each block, and compute the rest again in the backward pass (Chen et
            al., Training Deep Nets with Sublinear Memory Cost, 2016). It needs less memory and one more forward pass,
            with the same gradients.
    """

    def __init__(self, options: ViTOptions, outputs: int, *, grad_checkpointing: bool = False) -> None:
        side = options.patch_size
        super().__init__(
            image_size=side,  # one patch: what follows from the size is set below
            patch_size=side,
            num_layers=options.depth,
            num_heads=options.heads,
            hidden_dim=options.width,
            mlp_dim=options.mlp_width,
            dropout=options.dropout,
            num_classes=outputs,
        )
        self.options = options
        self.grad_checkpointing = grad_checkpointing
        self.conv_proj = nn.Conv2d(options.channels, options.width, side, side)
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (options.channels * side**2)))
        nn.init.zeros_(self.conv_proj.bias)  # type: ignore[arg-type]  # there is one
        self.seq_length = math.prod(options.grid) + 1
        # About as large as the patches, whose deviation is 1: with torchvision's 0.02, it takes many steps to learn
        # where a patch is. MNIST, 120 steps of 500: accuracy 0.94 instead of 0.83.
        self.encoder.pos_embedding = nn.Parameter(torch.empty(1, self.seq_length, options.width).normal_(std=0.5))

    def forward(self, images: Tensor) -> Tensor:
        """Compute the outputs (B, outputs) of floating-point images (B, C, H, W) of size `options.image_size`.

        Raises:
            OptionError: the images have a different size or number of channels.
        """
        expected = (self.options.channels, *self.options.image_size)
        if images.shape[1:] != expected:
            found = tuple(images.shape)
            raise OptionError(f"images: expected (B, C, H, W) with {expected}, found {found}. Resize them.")
        height, width = (cells * self.patch_size for cells in self.options.grid)
        missing = (0, width - images.shape[-1], 0, height - images.shape[-2])
        if any(missing):
            images = nn.functional.pad(images, missing)
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)  # (B, patches, width)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], 1)
        encoder = self.encoder
        tokens = encoder.dropout(tokens + encoder.pos_embedding)
        for block in encoder.layers:
            if self.grad_checkpointing and self.training:
                tokens = checkpoint(block, tokens, use_reentrant=False)
            else:
                tokens = block(tokens)
        return self.heads(encoder.ln(tokens)[:, 0])  # type: ignore[no-any-return]
