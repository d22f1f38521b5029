"""A model that learns: one training step, with its precision, schedule and moving average."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tensorstore_ds.annex.augment.mixing import CutMix, Mixing, Mixup
from tensorstore_ds.annex.training.models import build
from tensorstore_ds.annex.training.options import ModelOptions, Optimizer, Precision, TrainOptions
from tensorstore_ds.annex.training.recipe import completed
from tensorstore_ds.annex.training.tasks import Batch, Classification, MultiLabel, Sums, Task, mean_loss
from tensorstore_ds.annex.training.weights import load_weights
from tensorstore_ds.errors import OptionError
from tensorstore_ds.loading.collate import map_tensors

#: State of an optimizer for each weight.
MOMENTS: Mapping[Optimizer, tuple[str, ...]] = {"adamw": ("exp_avg", "exp_avg_sq"), "sgd": ("momentum_buffer",)}
#: Strength of the blends: of torchvision's reference training for mixup and cutmix.
MIX_ALPHA = {"mixup": 0.2, "cutmix": 1.0}


class Learner:
    """A model with its optimizer and schedule, for your own training loop.

    >>> split = tsds.open("photos.tsds")["train"]
    >>> vit = tsds.training.ViTOptions((32, 32), channels=3, patch_size=8, width=32, depth=1, heads=2, mlp_width=64)
    >>> task, options = tsds.training.task_of(split), tsds.training.TrainOptions()
    >>> learner = tsds.training.Learner(vit, task, options, device="cpu", steps=10)
    >>> sum(weights.numel() for weights in learner.module.parameters()) > 0
    True

    A step consists of one or more calls of `backward`, whose gradients are added, and one call of `update`.

    Args:
        vit: shape of the model.
        task: task to learn.
        options: options of the run. Options without a value get the values for one rank.
        device: device of the model.
        steps: number of steps of the whole run, for the schedule of the learning rate.
        distributed: whether to average gradients over the ranks of `torch.distributed`.
        resumes: whether you call `load_state_dict` next. The file of `weights` is then not read.
    """

    def __init__(
        self,
        vit: ModelOptions,
        task: Task,
        options: TrainOptions,
        *,
        device: torch.device | str,
        steps: int,
        distributed: bool = False,
        resumes: bool = False,
    ) -> None:
        self.task, self.steps = task, steps
        self.options = options = completed(options, vit)
        self.device = torch.device(device)
        if options.cuda_graphs:
            check_cuda_graphs(options, self.device, distributed=distributed)
        self.precision = precision_of(options.precision, self.device)
        torch.manual_seed(options.seed)
        #: The model itself.
        module = build(vit, task.outputs, grad_checkpointing=options.grad_checkpointing)
        #: A line about weights that are missing in the file of `weights`, or an empty text.
        self.note = load_weights(module, options.weights, task) if options.weights is not None and not resumes else ""
        self.module = module.to(self.device).train()
        self.optimizer = optimizer_of(self.module, options)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.precision == "fp16")
        #: The moving average of the weights, or None.
        self.average: nn.Module | None = copy.deepcopy(self.module) if options.ema else None
        self.step = 0  #: Number of updates of the weights.
        self._learned: Tensor | None = None  # by several batches or ranks of a step: shares of targets and of samples
        self._mix: Mixing | None = None
        if options.mix != "none":
            if not isinstance(task, Classification | MultiLabel):
                raise OptionError(
                    f"`mix`: expected none for {task.name}, found {options.mix}, which blends the labels of images."
                )
            blend = Mixup if options.mix == "mixup" else CutMix
            self._blendable = task.blendable
            self._mix = blend(alpha=MIX_ALPHA[options.mix], num_classes=task.outputs)
        self._parallel = DistributedDataParallel(self.module) if distributed else None
        model = self._parallel or self.module
        self._model: nn.Module = model
        if options.cuda_graphs:
            # Gradients are memory of the graphs, which the next step overwrites: `update` drops them before.
            self._model = torch.compile(model, mode="reduce-overhead")  # type: ignore[assignment]
        elif options.compile:
            self._model = torch.compile(model)  # type: ignore[assignment]

    def train_batch(self, batch: Batch) -> Tensor:
        """Train one step on a batch, and return the loss, a scalar on the device. It does not wait for the device."""
        loss, _ = self.backward(batch)
        self.update()
        return loss

    def backward(self, batch: Batch, *, share: float = 1.0, last: bool = True) -> tuple[Tensor, Sums]:
        """Compute the gradients of a batch, and add them to the existing gradients.

        Args:
            batch: batch on the device, after `train_transform`.
            share: fraction of the samples of the step that are in this batch. Within a step, images without a target
                count for nothing, as in one large batch, except in classification+keypoints.
            last: whether `update` is called next. If False, gradients are not averaged over the ranks.

        Returns:
            The loss, and the sums of the task with the terms of the loss, detached. This does not wait for the device.
        """
        images, targets = batch["image"], self.task.targets(batch)
        terms, outputs, targets = self._gradients(images, targets, share=share, last=last)
        with torch.no_grad():
            return mean_loss(terms), terms | self.task.sums(map_tensors(outputs, Tensor.detach), targets)

    def rehearse(self, batch: Batch, share: float) -> None:
        """Compute the gradients of a fraction of a batch, and discard all gradients, including earlier ones.

        Args:
            batch: batch on the device, after `train_transform`.
            share: fraction of the samples to use, in (0, 1].
        """
        samples = max(1, round(share * len(batch["image"])))
        targets = self.task.first(self.task.targets(batch), samples)
        statistics = [buffer.clone() for buffer in self.module.buffers()]  # of batch norm, which a pass changes
        self._gradients(batch["image"][:samples], targets, share=1.0, last=True)
        self.optimizer.zero_grad()
        for buffer, before in zip(self.module.buffers(), statistics, strict=True):
            buffer.copy_(before)

    def _gradients(self, images: Tensor, targets: Any, *, share: float, last: bool) -> tuple[Sums, Any, Any]:
        """Add to the gradients; returns the terms of the loss, detached, the outputs, and the blended targets."""
        if self._mix is not None:
            # Drawn by torch's generator on the CPU, which each step of a run seeds.
            images, targets = self._mix((images, self._blendable(targets)))
        with contextlib.nullcontext() if last or self._parallel is None else self._parallel.no_sync():
            with self.autocast():
                outputs = self.task.run(self._model_for(len(images)), images, targets)
            terms = self.task.terms(outputs, targets, label_smoothing=self.options.label_smoothing)
            weight: Tensor | float = share
            if (share < 1 or self._parallel is not None) and len(terms["learned"]) == 1:
                weight = terms["learned"][0] / len(images) * share
                shares = torch.stack([weight, torch.full_like(weight, share)])
                self._learned = shares if self._learned is None else self._learned + shares
            torch.autograd.backward(self.scaler.scale(mean_loss(terms) * weight))
        return {name: value.detach() for name, value in terms.items()}, outputs, targets

    def _model_for(self, samples: int) -> nn.Module:
        """The model for a batch of this size: a short last batch is not worth compiling for, which takes minutes."""
        return self._model if samples == self.options.batch_size else self._parallel or self.module

    def update(self) -> None:
        """Change the weights by the gradients, and discard the gradients."""
        options = self.options
        for group in self.optimizer.param_groups:
            group["lr"] = options.learning_rate * schedule(self.step, self.steps, warmup=options.warmup)
        if self._learned is not None:
            if self._parallel is not None:
                dist.all_reduce(self._learned)
            (learned, whole), self._learned = self._learned, None
            grads = [weights.grad for weights in self.module.parameters() if weights.grad is not None]
            torch._foreach_mul_(grads, (whole / learned).where(learned > 0, 0.0))
        if options.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.module.parameters(), options.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.average is not None:
            move_average(self.average, self.module, decay=options.ema, step=self.step)
        self.step += 1

    @property
    def best_weights(self) -> nn.Module:
        """The model to evaluate and to save, which is the moving average if there is one, else `module`."""
        return self.module if self.average is None else self.average

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """Context manager that returns `best_weights` in evaluation mode, without gradients."""
        model = self.best_weights
        model.eval()
        try:
            with torch.inference_mode(), self.autocast():
                yield model
        finally:
            model.train()

    def autocast(self) -> torch.autocast:
        """Return the context manager for mixed precision. It has no effect in full precision."""
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.precision)
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume training from."""
        return {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "step": self.step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`.

        If the state does not fit this model, a `ValueError` or an exception of torch is raised.
        """
        own = [{n: v for n, v in group.items() if n not in ("params", "lr")} for group in self.optimizer.param_groups]
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for group, kept in zip(self.optimizer.param_groups, own, strict=True):
            group.update(kept, lr=float(group["lr"]))  # all but the rate follows from the options
        for weights, moments in self.optimizer.state.items():
            if any(moments[name].shape != weights.shape for name in MOMENTS[self.options.optimizer]):
                raise ValueError("the optimizer is of another model")
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.step = int(state["step"])


def schedule(step: int, steps: int, *, warmup: float) -> float:
    """Factor of the learning rate: rises linearly, then falls along half a cosine to 0.

    >>> [round(schedule(step, 10, warmup=0.2), 2) for step in range(10)]
    [0.5, 1.0, 1.0, 0.96, 0.85, 0.69, 0.5, 0.31, 0.15, 0.04]
    """
    rising = round(steps * warmup)
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def precision_of(asked: Precision, device: torch.device) -> Precision:
    """The precision of a run on a device; raises `OptionError` if the device does not support it."""
    cuda = device.type == "cuda"
    if asked == "auto":
        return "bf16" if cuda and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if asked == "tf32" and not cuda:
        raise OptionError(f"`precision`: expected fp32, bf16 or fp16 on {device.type}, found tf32, which GPUs have.")
    return asked


def check_cuda_graphs(options: TrainOptions, device: torch.device, *, distributed: bool) -> None:
    """Raise `OptionError` if steps cannot be CUDA graphs."""
    if device.type != "cuda":
        raise OptionError(f"`cuda_graphs`: expected a GPU with CUDA, found {device.type}. Use `compile` instead.")
    if options.accumulate > 1:  # a graph writes gradients where those of the batch before are
        found = f"`accumulate={options.accumulate}`. Use a larger `batch_size`, or `compile`"
        raise OptionError(f"`cuda_graphs`: expected steps of one batch, found {found} instead.")
    if distributed:
        raise OptionError("`cuda_graphs`: expected one rank, found several. Use `compile` instead.")


def image_dtype(options: TrainOptions, device: torch.device) -> torch.dtype:
    """The dtype of normalized images, to which the first layer would convert them.

    Images that are blended stay float32, since bfloat16 would round twice.
    """
    has_bf16 = precision_of(options.precision, device) == "bf16" and options.mix == "none"
    return torch.bfloat16 if has_bf16 else torch.float32


def move_average(average: nn.Module, model: nn.Module, *, decay: float, step: int) -> None:
    """Update a moving average of weights. torch's `AveragedModel` would wait for the GPU in every step."""
    # A young average follows quickly: it would keep the first, random weights for 1 / (1 - decay) steps.
    decay = min(decay, (1 + step) / (10 + step)) if step else 0.0
    with torch.no_grad():
        torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - decay)
        for kept, current in zip(average.buffers(), model.buffers(), strict=True):  # the statistics of batch norm
            kept.copy_(current)


def optimizer_of(model: nn.Module, options: TrainOptions) -> torch.optim.Optimizer:
    """The optimizer, with weight decay for matrices only: not for biases, norms, class token and positions."""
    groups: list[dict[str, Any]] = [{"params": [], "weight_decay": decay} for decay in (options.weight_decay, 0.0)]
    for name, weights in model.named_parameters():
        undecayed = weights.ndim < 2 or name in ("class_token", "encoder.pos_embedding")
        groups[undecayed]["params"].append(weights)
    fused = next(model.parameters()).device.type in ("cuda", "cpu", "mps")
    if options.optimizer == "sgd":
        return torch.optim.SGD(groups, options.learning_rate, momentum=0.9, fused=fused)
    return torch.optim.AdamW(groups, options.learning_rate, betas=(0.9, 0.95), fused=fused)
