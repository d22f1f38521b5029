"""A Compose whose pixels torch.compile takes whole: the same as one that is not compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import tensorstore_ds as tsds
from image_batches import images, objects

pytestmark = pytest.mark.slow

LAST = tsds.Normalize([0.4, 0.5, 0.6], [0.2, 0.25, 0.3], dtype=torch.bfloat16)
GROUPS: dict[str, list[nn.Module]] = {
    "crops": [
        tsds.RandomCrop(18, 2, padding_mode="reflect"),
        tsds.RandomResizedCrop(16),
        tsds.RandomHorizontalFlip(0.5, ()),
    ],
    "fits": [tsds.Resize(15), tsds.CenterCrop(14), tsds.transforms.Pad(2), tsds.transforms.Letterbox((20, 12))],
    "colors": [
        tsds.transforms.ColorJitter(0.3, 0.3, 0.3, 0.2),
        tsds.transforms.RandomGrayscale(0.5),
        tsds.transforms.Solarize(100),
        tsds.transforms.Posterize(3),
    ],
    "tones": [tsds.transforms.Equalize(), tsds.transforms.AutoContrast(), tsds.transforms.GaussianBlur(5)],
    "warps": [
        tsds.transforms.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 5, "bilinear"),
        tsds.transforms.RandomPerspective(),
    ],
    "erasing": [tsds.transforms.RandomErasing(value=(1, 2, 3)), tsds.transforms.RandomErasing(value="random")],
    "policies": [tsds.transforms.RandAugment(), tsds.transforms.TrivialAugment()],
    "mosaic": [tsds.transforms.Mosaic((18, 19), num_classes=3)],
    "mixup": [tsds.transforms.Mixup(num_classes=3)],
    "cutmix": [tsds.transforms.CutMix(num_classes=3)],
}


#: One in the ordinary run; each takes torch a second to trace.
DRAWN = pytest.mark.drawn(5)


@pytest.mark.parametrize(
    ("group", "dtype"),
    [
        ("crops", torch.uint8),
        *(pytest.param(group, torch.uint8, marks=DRAWN) for group in GROUPS if group != "crops"),
        *(pytest.param(group, torch.float32, marks=DRAWN) for group in ("colors", "tones", "warps", "mixup")),
    ],
)
def test_one_graph_gives_the_same(group: str, dtype: torch.dtype) -> None:
    steps = [*GROUPS[group], LAST]
    if dtype == torch.float32:
        steps = [
            tsds.transforms.Solarize(0.4) if isinstance(each, tsds.transforms.Solarize) else each for each in steps
        ]
    batch: dict[str, Any] = {"image": images(0, (22, 20), dtype), "label": torch.arange(4) % 3, "key": list("abcd")}
    if group not in ("mixup", "cutmix"):
        batch["objects"] = objects(0, (22, 20), (3, 0, 1, 5))
    if group != "mixup":
        batch["mask"] = torch.arange(4 * 22 * 20).reshape(4, 22, 20) % 7
    torch.compiler.reset()
    plain, compiled = (tsds.Compose(steps, seed=3, compile=compile) for compile in (False, "aot_eager"))
    for epoch in (0, 1):
        expected, found = plain(batch, torch.arange(4), epoch), compiled(batch, torch.arange(4), epoch)
        assert list(found) == list(expected) and found["image"].dtype == torch.bfloat16
        torch.testing.assert_close(found["label"], expected["label"])
        for got, want in zip(found.get("objects", []), expected.get("objects", []), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True)
        # A level that rounds otherwise, and places between two pixels.
        near = (found["image"].float() - expected["image"].float()).abs() <= 0.05
        assert near.float().mean() > 0.995
        if "mask" in batch:
            assert (found["mask"] == expected["mask"]).float().mean() > 0.995


def test_a_compose_in_a_compose_and_padded_images() -> None:
    inside = torch.zeros(4, 22, 20, dtype=torch.bool)
    inside[:, :15, :12] = True
    padded = {"image_mask": inside, "image_size": torch.tensor([[15, 12]] * 4)}
    batch = {"image": images(0, (22, 20)) * inside[:, None], **padded}
    inner = tsds.Compose([tsds.RandomHorizontalFlip(), tsds.transforms.RandomAffine(30)], seed=1)
    plain, compiled = (tsds.Compose([inner, LAST], seed=3, compile=compile) for compile in (False, "aot_eager"))
    expected, found = plain(batch, torch.arange(4), 2), compiled(batch, torch.arange(4), 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02)
    assert (found["image"] == 0).any()


def test_it_is_one_graph_for_all_epochs_and_one_more_for_another_shape() -> None:
    torch.compiler.reset()
    graphs = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compose = tsds.Compose([tsds.RandomCrop(16), tsds.transforms.ColorJitter(0.3), LAST], seed=3)
    step = torch.compile(compose._change_pixels, fullgraph=True, dynamic=False, backend=backend)
    batch = {"image": images(0, (20, 20))}
    for epoch, count in ((0, 4), (1, 4), (2, 4), (0, 3), (1, 3)):
        part = {"image": batch["image"][:count]}
        _, drawn, size = compose.draw(part, torch.arange(count), epoch, (20, 20))
        assert step(part, drawn)["image"].shape == (count, 3, *size) == (count, 3, 16, 16)
    assert len(graphs) == 2


def test_transforms_of_others_cannot_be_compiled() -> None:
    with pytest.raises(tsds.OptionError, match=r"`compile`: expected transforms of tensorstore_ds.* found Identity"):
        tsds.Compose([nn.Identity()], compile=True)
    assert not tsds.Compose([LAST], compile=True)._has_no_state
