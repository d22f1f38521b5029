"""``torchrun -m benchmarks.gpu.rank STORE BACKEND``: an epoch of one rank; the first prints what all have seen."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed, nn

import tensorstore_ds as tsds
from benchmarks.gpu.data import rows_seen, rows_stored


def main(arguments: Sequence[str] | None = None) -> None:
    """Train a linear model."""
    path, backend = sys.argv[1:] if arguments is None else arguments
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    distributed.init_process_group(backend)
    dataset = tsds.StoreDataset(path)
    torch.manual_seed(0)
    linear = nn.Linear(dataset[0]["image"].numel(), 10).to(device)
    model = nn.parallel.DistributedDataParallel(linear)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    values, labels = [], []
    for batch in tsds.DataLoader(dataset, 50, shuffle=True, device=device):
        loss = nn.functional.cross_entropy(model(batch["image"].flatten(1).float() / 255), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(batch["image"][:, 0, 0, 0].cpu())
        labels.append(batch["label"].cpu())
    weights = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
    every: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(every, (rows_seen(values, labels), weights))
    if distributed.get_rank() == 0:
        seen, stored = Counter(row for rows, _ in every for row in rows), Counter(rows_stored(len(dataset)))
        wrong = ((seen - stored) + (stored - seen)).total()
        other = sum(each != every[0][1] for _, each in every)
        row = {"ranks": len(every), "backend": backend, "samples": [len(rows) for rows, _ in every]}
        print(json.dumps({**row, "missing or twice": wrong, "other weights": other}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
