"""Kernels for the fake GPU: operations on its tensors are computed by torch's kernels for the CPU.

The GPU's memory is memory of this process: an operation gets tensors of the CPU that are views of it. It is computed
when it is called, after all that its stream has to do before; what other streams have not done yet, it does not see.
Views, new memory, copies and `record_stream` are left to torch's own code for CUDA, and so to the fake runtime: a copy,
and a `clone`, is done when its turn comes.

`enable()` switches this on for the thread that calls it, and for autograd's threads that work for it.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from fake_cuda import runtime

aten = torch.ops.aten

#: Operations that are the host's, on a GPU as well: torch's own code does them.
HOST = {
    *("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "set_", "resize_"),
    *("record_stream", "is_pinned", "_pin_memory", "pin_memory", "lift_fresh", "_local_scalar_dense"),
}
#: Operations whose results have a size that only the GPU knows: the host waits for it.
SIZED_BY_VALUES = {
    *("nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "equal"),
    *("repeat_interleave", "_nested_tensor_from_mask"),
}
#: Operations with indices, which may be on the CPU; those that are masks are looked up by the host.
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}


class Kernels(TorchDispatchMode):
    """The mode in which operations on CUDA tensors are computed.

    Attributes:
        waits: how often the host waited for the GPU, by the operation: of those that a real GPU would be waited for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self._process = os.getpid()
        self._generators: dict[int, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if os.getpid() != self._process:  # a worker of a data loader, which has no GPU
            return func(*args, **kwargs)
        if any(hasattr(each, "__tensor_flatten__") for each in types):  # of other tensors, such as nested ones
            return NotImplemented
        name = func._schema.name.partition("::")[2]
        tensors = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        devices = {each.device for each in tensors if each.is_cuda}
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            devices.add(_with_index(torch.device(kwargs["device"])))
        if not devices:
            return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:  # in inference mode, operations that are made of others are not taken apart before this
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name == "_local_scalar_dense" or name == "copy_":
            self._note_copy(name, args, kwargs)
        if name in HOST or func.is_view:
            return func(*args, **kwargs)
        if name == "copy_":
            return self._copy(args[0], args[1], bool(args[2] if len(args) > 2 else kwargs.get("non_blocking")))
        if name == "_to_copy":
            return self._moved(args[0], **kwargs)
        if name == "clone" and is_dense(args[0]) and _keeps_layout(args[0], kwargs.get("memory_format")):
            return func(*args, **kwargs)  # a copy
        self._check(name, tensors, devices)
        self._note_sizes(name, args, kwargs)
        return self._computed(func, args, kwargs, devices.pop())

    def _check(self, name: str, tensors: list[torch.Tensor], devices: set[torch.device]) -> None:
        """Refuse operands on several devices, as kernels do: only numbers and indices may be on the CPU."""
        found = devices | {each.device for each in tensors if each.dim() > 0 and name not in INDEXING}
        if len(found) > 1:
            listed = ", ".join(sorted(map(str, found)))
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, found {listed}")

    def _computed(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        _reach(device)
        given: dict[int, torch.Tensor] = {}

        def there(value: Any) -> Any:
            if isinstance(value, torch.Generator) and value.device.type == "cuda":
                return self._generators.setdefault(id(value), torch.Generator().manual_seed(value.initial_seed()))
            if isinstance(value, torch.device):
                return torch.device("cpu")
            if not isinstance(value, torch.Tensor) or not value.is_cuda:
                return value
            seen = memory_of(value)
            given[id(seen)] = value
            return seen

        def back(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            original = given.get(id(value))
            if original is None:
                return _uploaded(value, device)
            if original.shape != value.shape:  # an `out` that the operation has made larger
                original.resize_(value.shape)
                memory_of(original).copy_(value)
            return original

        views, options = tree_map(there, (args, kwargs))
        kept = views, options  # as long as they live, no result has the id of one
        result = tree_map(back, func(*views, **options))
        del kept
        return result

    # --- copies between devices, and of other types and layouts: what torch makes of them before and after the copy

    def _copy(self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        alike = target.dtype == source.dtype and target.shape == source.shape and target.stride() == source.stride()
        if alike and is_dense(target):
            return aten.copy_(target, source, non_blocking)
        if target.device == source.device:
            return self._computed(aten.copy_.default, (target, source), {}, target.device)
        strides = target.stride() if is_dense(target) else None
        there = _empty(target.shape, strides, target.dtype, source.device)
        self._assign(there, source)
        if strides is not None:
            return aten.copy_(target, there, non_blocking)
        here = _empty(target.shape, None, target.dtype, target.device)
        aten.copy_(here, there, non_blocking)
        return self._assign(target, here)

    def _assign(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """Copy on one device, from any type and layout to any other."""
        if target.is_cuda:
            return self._computed(aten.copy_.default, (target, source), {}, target.device)
        return target.copy_(source)

    def _moved(self, source: torch.Tensor, **options: Any) -> torch.Tensor:
        """What `Tensor.to` comes to."""
        non_blocking, device = bool(options.pop("non_blocking", False)), options.get("device")
        to_host = source.is_cuda and device is not None and torch.device(device).type == "cpu"
        if to_host and non_blocking:
            options["pin_memory"] = True
        target = torch.empty_like(source, **options)
        self._note_copy("copy_", (target, source, non_blocking), {})
        return self._copy(target, source, non_blocking)

    # --- waits

    def _note_copy(self, name: str, args: Sequence[Any], kwargs: Any) -> None:
        if name == "_local_scalar_dense":
            self.waits["item"] += 1
            return
        target, source, *rest = args
        host = source if target.is_cuda else target
        blocking = not (rest[0] if rest else kwargs.get("non_blocking"))
        if target.device != source.device and (blocking or (not host.is_cuda and not host.is_pinned())):
            self.waits["copy to the GPU" if target.is_cuda else "copy to the host"] += 1

    def _note_sizes(self, name: str, args: Any, kwargs: Any) -> None:
        masks = name in INDEXING and any(
            each is not None and each.dtype in (torch.bool, torch.uint8) and each.is_cuda for each in args[1]
        )
        if masks or (name in SIZED_BY_VALUES and kwargs.get("output_size") is None):
            self.waits[name] += 1
            if torch.cuda.get_sync_debug_mode() == 2:
                raise RuntimeError(f"called a synchronizing CUDA operation: {name}")


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the CPU in the memory of one of the fake GPU."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    raw = (ctypes.c_byte * storage.nbytes()).from_address(storage.data_ptr())
    held = torch.frombuffer(raw, dtype=torch.uint8).untyped_storage()
    view = torch.empty(0, dtype=tensor.dtype)
    return view.set_(held, tensor.storage_offset(), tensor.shape, tensor.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether elements fill a piece of memory without gaps and overlaps, in any order of the axes."""
    expected = 1
    for stride, size in sorted((st, size) for st, size in zip(tensor.stride(), tensor.shape, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _keeps_layout(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> bool:
    if memory_format in (None, torch.preserve_format):
        return True
    return tensor.is_contiguous(memory_format=memory_format)


def _empty(
    shape: torch.Size, strides: tuple[int, ...] | None, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    if strides is None:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def _uploaded(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A result of the CPU, in memory of the GPU that is the stream's now."""
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    memory_of(made).copy_(value)
    return made


def _with_index(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())


def _reach(device: torch.device) -> None:
    runtime.reach(device.index, torch.cuda.current_stream(device).cuda_stream)


_mode: Kernels | None = None


def enable() -> Kernels:
    """Compute operations from now on, in this thread; the mode, which counts waits."""
    global _mode
    if _mode is None:
        if not runtime.is_fake():
            raise RuntimeError("expected the fake CUDA runtime. Start this program by tests/fake_cuda/build.py.")
        torch.cuda.init()
        # Kernels that the CPU has not: torch takes others.
        torch.backends.cudnn.enabled = False
        switches: tuple[Callable[[bool], None], ...] = (
            torch.backends.cuda.enable_flash_sdp,
            torch.backends.cuda.enable_mem_efficient_sdp,
            torch.backends.cuda.enable_cudnn_sdp,
        )
        for switch in switches:
            switch(False)
        # To print a tensor, torch leaves all modes.
        printed = torch._tensor_str._str
        torch._tensor_str._str = lambda tensor, **options: printed(
            tensor.cpu() if tensor.is_cuda else tensor, **options
        )
        _mode = Kernels()
        _mode.__enter__()
    return _mode
