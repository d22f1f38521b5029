"""Steps in 16 bits, scaled, in TF32, compiled: what they compute with, and that it is what 32 bits compute."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from torch import nn

from learners import batch, expected_loss, gradients, learner, weights_of
from tensorstore_ds.annex.training.learner import precision_of
from tensorstore_ds.annex.training.options import ViTOptions
from tensorstore_ds.annex.training.process import torch_settings
from tensorstore_ds.errors import OptionError
from training_stores import one_line

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_products_have_the_precision_and_weights_32_bits(precision: str, dtype: torch.dtype) -> None:
    found = learner(precision=precision, ema=0.9)
    seen = []
    for name, module in found.module.named_modules():
        if isinstance(module, nn.Linear | nn.Conv2d) and "self_attention" not in name:
            module.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    loss = found.train_batch(batch())
    assert len(seen) == 6 and set(seen) == {dtype}
    assert loss.dtype == torch.float32
    assert {value.dtype for value in found.module.state_dict().values()} == {torch.float32}
    reference = expected_loss(learner().module, batch()["image"], batch()["label"])
    torch.testing.assert_close(loss, reference, rtol=0 if dtype == torch.float32 else 0.05, atol=1e-6)
    with found.evaluating() as model:
        assert model(batch()["image"]).dtype == dtype


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_fp16_leaves_out_steps_that_overflow(clip: float) -> None:
    found = learner(precision="fp16", clip=clip)
    found.train_batch(batch())  # with a scale of 2^16 this fits
    assert found.scaler.get_scale() == 2.0**16
    scaled = {**found.scaler.state_dict(), "scale": 2.0**40}
    found.scaler.load_state_dict(scaled)
    before, state = weights_of(found.module), copy.deepcopy(found.optimizer.state_dict()["state"])
    found.train_batch(batch())
    torch.testing.assert_close(weights_of(found.module), before, rtol=0, atol=0)
    torch.testing.assert_close(found.optimizer.state_dict()["state"], state, rtol=0, atol=0)
    assert found.state_dict()["scaler"]["scale"] == 2.0**39
    found.scaler.load_state_dict({**scaled, "scale": 2.0**10})
    found.train_batch(batch())
    assert all((value != before[name]).any() for name, value in found.module.state_dict().items())


@pytest.mark.parametrize("clip", [0.0, 0.05])
def test_fp16_gradients_are_scaled_back(clip: float) -> None:
    found, exact = learner(precision="fp16", clip=clip), learner(clip=clip)
    norms = []
    for one in (found, exact):
        one.train_batch(batch())
        moments = [value["exp_avg"].norm() for value in one.optimizer.state_dict()["state"].values()]
        norms.append(torch.stack(moments).norm())
    torch.testing.assert_close(norms[0], norms[1], rtol=0.01, atol=0)


def test_which_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert precision_of("auto", cpu) == "fp32" and precision_of("bf16", cpu) == "bf16"
    with pytest.raises(OptionError) as error:
        learner(precision="tf32")
    assert one_line(error.value) == "`precision`: expected fp32, bf16 or fp16 on cpu, found tf32, which GPUs have."
    assert precision_of("tf32", torch.device("cuda")) == "tf32"


def test_products_in_tf32_for_the_time_being() -> None:
    before = torch.get_float32_matmul_precision()
    assert before == "highest"
    with pytest.raises(KeyError), torch_settings("tf32"):
        assert torch.get_float32_matmul_precision() == "high"
        raise KeyError
    assert torch.get_float32_matmul_precision() == before
    for precision in ("fp32", "bf16", "fp16"):
        with torch_settings(precision):  # type: ignore[arg-type]
            assert torch.get_float32_matmul_precision() == before


@pytest.mark.slow
@pytest.mark.timeout(600)  # half a minute of work, the first time, for a compiler that others may keep waiting
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled() -> None:
    from torch._dynamo.utils import counters

    vit = ViTOptions((8, 8), channels=1, patch_size=4, width=8, depth=1, heads=2, mlp_width=16)
    torch._dynamo.reset()
    counters.clear()
    found, eager = learner(vit=vit, compile=True, batch_size=7), learner(vit=vit)
    torch.testing.assert_close(found.backward(batch()), eager.backward(batch()))
    torch.testing.assert_close(gradients(found), gradients(eager), rtol=1e-3, atol=1e-5)
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert counters["inductor"]
    assert [*found.state_dict()["model"]] == [*eager.state_dict()["model"]]
