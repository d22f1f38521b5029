"""Train with PyTorch-Ignite; the state of the loader is kept in its checkpoints.

tsds demo
python examples/clients/ignite_engine.py demo/digits.tsds
"""

from __future__ import annotations

import argparse

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy
from torch import nn

import tensorstore_ds as tsds  # tsds


def main() -> None:
    """Train on the split `train`, test on the split `test` after every epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)

    train = tsds.StoreDataset(options.store, "train", return_as="tuple")  # tsds
    test = tsds.StoreDataset(options.store, "test", return_as="tuple")  # tsds
    loader = tsds.DataLoader(train, batch_size=32, shuffle=True, device=device)  # tsds
    layers = (nn.Flatten(), nn.Linear(train[0][0].numel(), 64), nn.ReLU(), nn.Linear(64, len(train.classes)))
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def prepare(batch: tuple[torch.Tensor, torch.Tensor], **_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return batch[0] / 255, batch[1]

    arguments = {"device": device, "prepare_batch": prepare}
    trainer = create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), **arguments)
    evaluator = create_supervised_evaluator(model, {"accuracy": Accuracy()}, **arguments)
    test_loader = tsds.DataLoader(test, batch_size=256, device=device)  # tsds
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(test_loader))
    trainer.run(loader, max_epochs=options.epochs)
    print(f"accuracy {evaluator.state.metrics['accuracy']:.3f} after {options.epochs} epochs")


if __name__ == "__main__":
    main()
