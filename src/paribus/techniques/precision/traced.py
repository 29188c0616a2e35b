"""In which dtype matrix products really ran, counted while one optimizer step is computed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from paribus.techniques.base import OF_THIS_PROCESS, Live

PRODUCTS: Final = {
    "mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1,
    "_scaled_mm": 0, "_scaled_mm_v2": 0, "_scaled_grouped_mm": 0, "_scaled_grouped_mm_v2": 0,
}  # fmt: skip
"""Operations of torch that multiply matrices, and at which argument the two operands begin; a linear layer
ends in one of them on every device. What follows the operands of scaled ones are their scales."""
KERNELS: Final = re.compile(r"gemm|gemv|nvjet|cutlass|xmma|scaled_mm|^aten::(addmm|b?mm)$", re.IGNORECASE)
"""What the kernels of matrix products are called by cuBLAS, cuBLASLt and CUTLASS, and on a CPU by torch."""


@dataclass
class Ran:
    """How many matrix products ran, by the dtype of their operands, forward and backward.

    `steps` counts the optimizer steps that were watched and `tokens` their real tokens; `flops` are those of
    products and fused attention by torch's formulas (`torch.utils.flop_counter`), `flops_again` those of
    layers that checkpointing computed a second time, which are in no other figure but the counts. `kernels`
    are names, on a CUDA device. `low` has the modules that were converted to 8 bits, with how many 8-bit
    products their forward passes had. `scored` says that a model is scored as it trains.
    """

    dtypes: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    tokens: int = 0
    flops: int = 0
    flops_again: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    low: dict[str, int] = field(default_factory=dict)
    mode: Any = field(default=None, metadata=OF_THIS_PROCESS)
    profile: Any = field(default=None, metadata=OF_THIS_PROCESS)
    scored: bool = field(default=False, metadata=OF_THIS_PROCESS)

    def begin(self, activity: ProfilerActivity | None = None) -> None:
        """Count from now on, and note the kernels of an activity."""
        if self.mode is None and not self.steps:
            if activity is not None:
                self.profile = profile(activities=[activity])
                self.profile.start()
            self.mode = _Counting(self)
            self.mode.__enter__()

    def end(self) -> None:
        """Count no further."""
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.mode, self.steps = None, self.steps + 1
        if self.profile is not None:
            self.profile.stop()
            self.kernels.update(products_among({e.key: e.count for e in self.profile.key_averages()}))
            self.profile = None

    def eight_bit(self) -> int:
        """Return how many products had operands of 8 bits or fewer alone."""
        return sum(
            count
            for name, count in self.dtypes.items()
            if all(one.startswith(("float8", "float4")) for one in name.split(" x "))
        )


class _Counting(TorchDispatchMode):
    """Sees every operation under autograd, of the backward pass too."""

    def __init__(self, ran: Ran) -> None:
        super().__init__()
        self.ran = ran

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one not in (torch.Tensor, torch.nn.Parameter) for one in types):
            return NotImplemented  # a tensor of another kind says first what it is made of
        out, packet = func(*args, **(kwargs or {})), func.overloadpacket
        first = PRODUCTS.get(packet.__name__)
        if first is not None:
            self.ran.dtypes[_written(args[first : first + 2])] += 1
        flops = _flops(packet, args, kwargs or {}, out)
        if _again():
            self.ran.flops_again += flops
        else:
            self.ran.flops += flops
        return out


def _flops(packet: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Return an operation's FLOPs: torch's formula, and 2 n k m for scaled products that have none."""
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    if packet.__name__ == "_scaled_mm_v2":
        return 2 * args[0].shape[0] * args[0].shape[1] * args[1].shape[1]
    return 0


def _again() -> bool:
    """Say whether a backward pass computes anew what the forward pass had: only then it needs a graph."""
    return torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled()


def _written(operands: tuple[torch.Tensor, ...]) -> str:
    names = ["tf32" if reads_19_bits(one) else str(one.dtype).removeprefix("torch.") for one in operands]
    return " x ".join(dict.fromkeys(names))


def reads_19_bits(operand: torch.Tensor) -> bool:
    """Say whether matrix units take an operand in fp32 as tf32, by the setting that holds at this moment."""
    allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return operand.dtype == torch.float32 and operand.is_cuda and allowed


def products_among(names: dict[str, int]) -> dict[str, int]:
    """Return the kernels that multiply matrices, with how often each ran; names are cut to 64 characters."""
    return {name[:64]: count for name, count in names.items() if KERNELS.search(name)}


@contextmanager
def first_step(
    model: torch.nn.Module, ran: Ran, live: Live, activity: ProfilerActivity | None = None
) -> Iterator[None]:
    """Count from the first forward pass in training on; `Ran.end` ends it after the optimizer step."""

    def begin(module: torch.nn.Module, _: Any) -> None:
        if module.training:
            ran.begin(activity)
            ran.tokens += sum(live.lengths) if ran.mode is not None else 0

    handle = model.register_forward_pre_hook(begin)
    try:
        yield
    finally:
        handle.remove()
        ran.end()
