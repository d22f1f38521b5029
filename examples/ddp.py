"""Train in several processes with torch's DistributedDataParallel.

tsds demo
torchrun --nproc-per-node 2 examples/ddp.py demo/digits.tsds
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tensorstore_ds as tsds


def main() -> None:
    """Train on the split `train`, and evaluate on `test`: every process reads its share of both."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, device_id=device if on_gpu else None)
    torch.manual_seed(0)

    dataset = tsds.StoreDataset(options.store, "train")
    # No DistributedSampler, no set_epoch: the loader knows its rank and counts epochs.
    loader = tsds.DataLoader(dataset, batch_size=32, shuffle=True, device=device)
    height, width, channels = dataset.split.fields["image"].spec.shape
    first = nn.Linear(height * width * channels, 64)
    layers = nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(layers.to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(options.epochs):
        seen = torch.zeros((), device=device)
        total = torch.zeros((), device=device)
        for batch in loader:
            loss = cross_entropy(model(batch["image"] / 255), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(batch["label"])
            total += loss.detach() * len(batch["label"])
    figures = torch.stack([seen, total])
    figures = torch.cat([figures, evaluate(model.module, options.store, device)])
    dist.all_reduce(figures)  # of the last epoch, and of the evaluation: all processes together
    seen, total, right, tested = figures.tolist()
    if dist.get_rank() == 0:
        where = f"{seen:.0f} samples on {dist.get_world_size()} ranks"
        print(
            f"loss {total / seen:.3f} in epoch {options.epochs}, {where}; accuracy {right / tested:.3f} of {tested:.0f}"
        )
    # Gloo's threads end with the last reference to their group, which DDP holds in a cycle. If they still run when the
    # interpreter ends, the process may abort.
    dist.barrier()
    del model, layers, optimizer, loss
    gc.collect()
    dist.destroy_process_group()


def evaluate(model: nn.Module, store: str, device: torch.device) -> torch.Tensor:
    """How many test samples of this process are classified correctly, and how many there are."""
    # Every sample is on exactly one rank, so a rank may have fewer batches. Therefore, the model is called without DDP,
    # which waits for all ranks.
    loader = tsds.DataLoader(tsds.StoreDataset(store, "test"), batch_size=32, even_batches=False, device=device)
    figures = torch.zeros(2, device=device)
    model.eval()
    with torch.no_grad():
        for batch in loader:
            figures[0] += (model(batch["image"] / 255).argmax(1) == batch["label"]).sum()
            figures[1] += len(batch["label"])
    return figures


if __name__ == "__main__":
    main()
