"""Train a torchvision model on photographs in class folders, in one process or in several, started by torchrun.

tsds convert imagenet imagenet.tsds
torchrun --nproc-per-node 8 examples/imagenet.py imagenet.tsds
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
import torchvision
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import tensorstore_ds as tsds


def train(options: argparse.Namespace, device: torch.device) -> tuple[int, torch.Tensor]:
    """Train on the split `train`; return the samples of `test` or `val`, and how many of this process are right."""
    store = tsds.open(options.store)
    dataset = tsds.StoreDataset(store, "train")
    normalize = tsds.Normalize.from_split(dataset.split)
    # No DistributedSampler, no set_epoch: the loader knows its rank and counts epochs.
    loader = tsds.DataLoader(
        dataset, options.batch_size, shuffle=True, drop_last=True, device=device,
        decode=tsds.RandomResizedCrop(options.size),  # only the crop is decoded
        batch_transform=tsds.Compose([tsds.RandomHorizontalFlip(), normalize]),  # on the device
    )  # fmt: skip
    model = torchvision.models.resnet18(num_classes=len(dataset.classes))
    model.to(device, memory_format=torch.channels_last)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(trained.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        for batch in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = cross_entropy(trained(batch["image"]), batch["label"], label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.3f}", flush=True)

    # Each sample is on exactly one rank. Some ranks have a batch more: DDP would wait there, so the model is called.
    test = tsds.StoreDataset(store, "test" if "test" in store else "val")
    plan = tsds.Compose([tsds.Resize(options.size * 8 // 7), tsds.CenterCrop(options.size)])
    batches = tsds.DataLoader(test, options.batch_size, even_batches=False, device=device, decode=plan)
    model.eval()
    with torch.inference_mode():
        right = [(model(normalize(batch["image"])).argmax(1) == batch["label"]).sum() for batch in batches]
    return len(test), sum(right, torch.zeros((), device=device))


def main() -> None:
    """Train, and print the accuracy of all processes together."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group(device_id=device if cuda else None)
    torch.manual_seed(0)
    count, right = train(options, device)
    dist.all_reduce(right)
    if dist.get_rank() == 0:
        print(f"accuracy {int(right) / count:.3f} of {count} after {options.epochs} epochs")
    gc.collect()  # DDP holds its group in a cycle, whose threads must end before the interpreter
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
