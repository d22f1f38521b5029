"""Encode each image once with a frozen network, store the latents with the images, and train a decoder on them.

tsds demo
python examples/latents.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import tensorstore_ds as tsds


def add_latents(store: str, encoder: nn.Module, device: str) -> None:
    """Add the field `latent` (4, H / 4, W / 4) to a store, as the bits of bfloat16, which NumPy has no type for."""
    latents = {}
    for name in tsds.open(store):
        loader = tsds.DataLoader(tsds.StoreDataset(store, name, fields=["image"]), 256, device=device)
        with torch.inference_mode():
            batches = [encoder(batch["image"] / 255).to(torch.bfloat16).cpu() for batch in loader]
        latents[name] = torch.cat(batches).view(torch.uint16)
    tsds.editing.add_fields(store, {"latent": latents}, replace=True)


def main() -> None:
    """Add latents unless they are there, and train on them alone: no image is encoded again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--again", action="store_true", help="encode all images again, after tsds append")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    split = tsds.open(options.store)["train"]
    channels = split.fields["image"].spec.shape[-1]
    # A small network stands for the encoder of a VAE.
    encoder = nn.Sequential(nn.Conv2d(channels, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 4, 3, 2, 1)).to(device)
    if options.again or "latent" not in split.fields:
        add_latents(options.store, encoder, device)

    dataset = tsds.StoreDataset(options.store, "train", fields=["image", "latent"])
    loader = tsds.DataLoader(dataset, batch_size=32, shuffle=True, device=device)
    decoder = nn.Sequential(nn.Conv2d(4, 64, 3, padding=1), nn.SiLU(), nn.ConvTranspose2d(64, channels, 4, 4))
    optimizer = torch.optim.AdamW(decoder.to(device).parameters(), 3e-3)
    errors = []
    for _ in range(options.epochs):
        losses = []
        for batch in loader:
            decoded = decoder(batch["latent"].view(torch.bfloat16).float())
            loss = nn.functional.mse_loss(decoded, batch["image"] / 255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        errors.append(float(torch.stack(losses).mean()))
    print(f"mean squared error {errors[0]:.4f} in the first epoch, {errors[-1]:.4f} in the last")


if __name__ == "__main__":
    main()
