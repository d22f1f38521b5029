"""Lightning with this library's loader and data module: it gets the batches that a loop over the loader gets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tensorstore_ds as tsds
from small_stores import ROOT
from stores import store_of

pytest.importorskip("lightning")
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings(
        "ignore:.*LeafSpec.. is deprecated:FutureWarning",
        "ignore:The dirpath has changed from",
        "ignore:You defined a `validation_step` but have no `val_dataloader`",
        "ignore:.*does not have many workers",
        "ignore:You requested to overfit but enabled train dataloader shuffling",
    ),
]

ROWS = 23


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose images are filled with their row; a third of the rows is of the class b."""
    path = tmp_path_factory.mktemp("module") / "rows.tsds"
    samples = [{"image": np.full((4, 5, 3), row, np.uint8), "label": int(row % 3 == 0)} for row in range(ROWS)]
    store_of(path, samples, classes=["a", "b"])
    return path


@pytest.fixture(scope="module")
def parts(path: Path) -> Path:
    """The same rows in the splits train, val and test."""
    parts = path.with_name("parts.tsds")
    tsds.editing.split_store(path, parts, {"train": 0.6, "val": 0.2, "test": 0.2})
    return parts


def module_of(store: Any, *arguments: Any, **options: Any) -> Any:
    from tensorstore_ds.annex.adapters.lightning import StoreDataModule

    return StoreDataModule(store, *arguments, **options)


def rows(batch: dict[str, Any]) -> list[int]:
    return batch["image"][:, 0, 0, 0].tolist()


def looped(path: Path, split: str = "train", epochs: int = 1, **options: Any) -> list[list[int]]:
    """The rows of batches, by a loop over a loader."""
    loader = tsds.DataLoader(tsds.StoreDataset(path, split), 8, **options)
    return [rows(batch) for _ in range(epochs) for batch in loader]


def recorder() -> Any:
    """A LightningModule that notes the rows of its batches, by stage."""
    import lightning

    class Recorder(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: dict[str, list[list[int]]] = {"train": [], "val": [], "test": []}

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            self.seen["train"].append(rows(batch))
            return self.layer(batch["image"][:, 0, 0, :1] / 255).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            self.seen["val"].append(rows(batch))

        def test_step(self, batch: Any, index: int) -> None:
            self.seen["test"].append(rows(batch))

        def predict_step(self, batch: Any, index: int) -> list[int]:
            return rows(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    return Recorder()


def trainer(**options: Any) -> Any:
    import lightning

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return lightning.Trainer(**quiet, **{"enable_checkpointing": False, "num_sanity_val_steps": 0, **options})


# --- the loader ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 1])
def test_fit_sees_every_epoch_of_a_loader(path: Path, limit: int | None) -> None:
    model, loader = recorder(), tsds.DataLoader(tsds.StoreDataset(path), 8, shuffle=True)
    trainer(max_epochs=3, limit_train_batches=limit).fit(model, loader)
    assert model.seen["train"] == looped(path, epochs=3, shuffle=True)[:: 3 if limit else 1]


def test_overfitting_turns_shuffling_off(path: Path) -> None:
    model = recorder()
    loader = tsds.DataLoader(tsds.StoreDataset(path), 8, shuffle=True)
    trainer(max_epochs=2, overfit_batches=1).fit(model, loader)
    assert model.seen["train"] == [list(range(8))] * 2


@pytest.mark.parametrize("more", [0, 100])
def test_predict_makes_the_loader_again_and_keeps_its_settings(path: Path, more: int) -> None:
    def added(batch: Any, rows: Any, epoch: int) -> Any:
        return {**batch, "image": batch["image"] + more}

    options: dict[str, Any] = {"num_threads": 3, "collate": "padded", "seed": 5, "prefetch_factor": 4}
    given = tsds.DataLoader(tsds.StoreDataset(path), 8, batch_transform=added if more else None, **options)
    alone = trainer()
    assert alone.predict(recorder(), given) == [[row + more for row in batch] for batch in looped(path)]
    made = alone.predict_dataloaders
    assert type(made) is tsds.DataLoader and made is not given
    for name in (*options, "residency", "device", "batch_transform", *([] if more else ["collate_fn"])):
        assert getattr(made, name) == getattr(given, name), name


# --- the data module ----------------------------------------------------------------------------------------------


def test_every_stage_gets_the_batches_of_a_loop(parts: Path) -> None:
    model, data = recorder(), module_of(parts, 8, predict_split="test", seed=3)
    trainer(max_epochs=2).fit(model, data)
    assert model.seen["train"] == looped(parts, "train", 2, shuffle=True, seed=3)
    assert model.seen["val"] == looped(parts, "val") * 2
    trainer().test(model, data, verbose=False)
    assert model.seen["test"] == looped(parts, "test")
    assert trainer().predict(model, data) == looped(parts, "test")
    model.seen["val"].clear()
    trainer().validate(model, data, verbose=False)
    assert model.seen["val"] == looped(parts, "val")


def test_epochs_differ_where_loaders_are_made_again(path: Path) -> None:
    model = recorder()
    trainer(max_epochs=3, reload_dataloaders_every_n_epochs=1).fit(model, module_of(path, 8))
    assert model.seen == {
        "train": looped(path, epochs=3, shuffle=True),
        "val": [],
        "test": [],
    }  # there is no other split


def test_weights_draw_samples(path: Path) -> None:
    weights = tsds.class_balanced_weights(tsds.open(path)["train"])
    expected = looped(path, epochs=2, sampler=tsds.WeightedSampler(weights, seed=5))
    for given in (weights, tsds.class_balanced_weights):
        model = recorder()
        trainer(max_epochs=2).fit(model, module_of(path, 8, weights=given, seed=5))
        assert model.seen["train"] == expected
    assert expected != looped(path, epochs=2, shuffle=True, seed=5)


def test_training_and_evaluation_have_transforms_of_their_own(parts: Path) -> None:
    def add(number: int) -> Any:
        return lambda sample: {**sample, "image": sample["image"] + number}

    model = recorder()
    data = module_of(parts, 8, transform=add(100), val_transform=add(50), predict_split="val")
    trainer(max_epochs=1).fit(model, data)
    assert model.seen["train"] == [[row + 100 for row in batch] for batch in looped(parts, "train", shuffle=True)]
    assert model.seen["val"] == [[row + 50 for row in batch] for batch in looped(parts, "val")]
    assert trainer().predict(model, data) == model.seen["val"]


def test_plans_and_batch_transforms_have_the_results_of_a_loop(parts: Path) -> None:
    plan, steps = tsds.RandomCrop(3, seed=1), tsds.Compose([tsds.Normalize([0.5] * 3, [0.5] * 3)])
    data = module_of(parts, 4, decode=plan, batch_transform=steps, val_decode=tsds.CenterCrop(2), fields=["image"])
    dataset = tsds.StoreDataset(parts, fields=["image"], decode=plan)
    theirs = tsds.DataLoader(dataset, 4, shuffle=True, batch_transform=steps)
    for ours, expected in zip(data.train_dataloader(), theirs, strict=True):
        assert ours.keys() == expected.keys() == {"image"}
        assert torch.equal(ours["image"], expected["image"])
    batch = next(iter(data.val_dataloader()))
    assert batch["image"].shape[1:] == (3, 2, 2) and batch["image"].dtype == torch.uint8


@pytest.mark.parametrize(
    ("how", "step"),  # within an epoch, at its end, within the next one
    [*(("loader", step) for step in (2, 3, 4)), ("module", 3), ("module", 4), ("weighted module", 2)],
)
def test_goes_on_at_the_very_next_batch(path: Path, tmp_path: Path, step: int, how: str) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    weights = tsds.class_balanced_weights if how == "weighted module" else None

    def fitted(folder: str, saved: Path | None = None, **options: Any) -> list[list[int]]:
        checkpoint = ModelCheckpoint(tmp_path / folder, filename="{step}", save_top_k=-1, every_n_train_steps=1)
        loader = tsds.DataLoader(tsds.StoreDataset(path), 8, shuffle=True, **options)
        data = loader if how == "loader" else module_of(path, 8, weights=weights, **options)
        model, run = recorder(), trainer(max_epochs=3, enable_checkpointing=True, callbacks=[checkpoint])
        run.fit(model, data, ckpt_path=saved, weights_only=False)
        return model.seen["train"]  # type: ignore[no-any-return]

    whole = fitted("whole")
    assert len(whole) == 9 and fitted("rest", tmp_path / "whole" / f"step={step}.ckpt", num_threads=1) == whole[step:]


def test_hyperparameters_are_kept_in_checkpoints(path: Path, tmp_path: Path) -> None:
    from tensorstore_ds.annex.adapters.lightning import StoreDataModule

    run = trainer(max_epochs=1)
    data = module_of(path, 8, seed=4, transform=lambda sample: sample, weights=tsds.class_balanced_weights)
    run.fit(recorder(), data)
    run.save_checkpoint(tmp_path / "last.ckpt")
    expected = {"store": str(path), "batch_size": 8, "train_split": "train", "seed": 4}
    assert dict(data.hparams) == expected
    again = StoreDataModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert dict(again.hparams) == expected
    assert [rows(batch) for batch in again.train_dataloader()] == looped(path, shuffle=True, seed=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"val_split": "vall"}, "val_split: expected one of the splits train, val, test, found 'vall'. Did you mean"),
        ({"num_thread": 2}, "StoreDataModule: expected one of the options .*, found 'num_thread'. Did you mean num_t"),
    ],
)
def test_wrong_options_are_errors_at_once(parts: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(tsds.errors.UnknownNameError, match=message):
        module_of(parts, 8, **options)


def test_a_stage_without_a_split_is_an_error(parts: Path) -> None:
    with pytest.raises(tsds.OptionError, match="`predict_split`: expected one of train, val, test, found none"):
        trainer().predict(recorder(), module_of(parts, 8))
    # Lightning would leave its own constructor behind, and positional arguments would fail.
    assert trainer().predict(recorder(), tsds.DataLoader(tsds.StoreDataset(parts, "test"), 8)) == looped(parts, "test")


def test_a_loader_of_a_subclass_needs_no_split(parts: Path) -> None:
    from tensorstore_ds.annex.adapters.lightning import StoreDataModule

    class Own(StoreDataModule):
        def predict_dataloader(self) -> Any:
            return tsds.DataLoader(dataset=self.dataset("val"), batch_size=8)

    assert trainer().predict(recorder(), Own(parts, 8)) == looped(parts, "val")


@pytest.mark.slow
def test_the_library_loads_no_framework_and_one_that_is_missing_is_one_line() -> None:
    names = ("lightning", "timm", "transformers")
    code = (
        "import importlib, sys, tensorstore_ds, tensorstore_ds.annex.adapters; tensorstore_ds.DataLoader\n"
        "print(*{'lightning', 'timm', 'transformers', 'ultralytics', 'rfdetr', 'detectron2'} & sys.modules.keys())\n"
        f"for name in {names}:\n"
        "    sys.modules[name] = None\n"
        "    try:\n        importlib.import_module(f'tensorstore_ds.annex.adapters.{name}')\n"
        "    except ModuleNotFoundError as error:\n        print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    place = "tensorstore_ds.annex.adapters"
    assert run.stdout.splitlines() == ["", *(f"{place}.{n} needs {n}. Install it with: pip install {n}" for n in names)]


def test_a_module_that_a_framework_misses_itself_is_named() -> None:
    from tensorstore_ds.annex.adapters.framework import imported

    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"), imported("lightning"):
        import no_such_module  # noqa: F401


def test_the_version_is_one_that_was_tested() -> None:
    from importlib.metadata import version

    from packaging.specifiers import SpecifierSet

    from tensorstore_ds.annex.adapters.lightning import TESTED

    assert version("lightning") in SpecifierSet(TESTED)
