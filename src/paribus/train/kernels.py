"""Which kernel attention really ran in: torch chooses one by device, dtype, shapes and mask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NOT_FUSED = "not fused"
"""Said where products and softmax were computed one by one."""


class Seen(TorchDispatchMode):
    """Notes the fused attention kernels of the operations that pass while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = False
        self.kernels: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().partition("::")[2].partition(".")[0].lstrip("_")
        if "attention" in name or "flash_attn" in name:
            self.kernels.add(name.removeprefix("scaled_dot_product_"))
        return func(*args, **(kwargs or {}))

    def __str__(self) -> str:
        return ", ".join(sorted(self.kernels)) or NOT_FUSED


@contextmanager
def attention_seen(model: torch.nn.Module) -> Iterator[Seen]:
    """Watch the first forward pass of training; the `str` of what is yielded names its attention kernels."""
    seen = Seen()
    with ExitStack() as hooks, ExitStack() as entered:

        def start(module: torch.nn.Module, *_: Any) -> None:
            if module.training and not seen.watched:
                seen.watched = True
                entered.enter_context(seen)

        def stop(*_: Any) -> None:
            entered.close()

        hooks.callback(model.register_forward_pre_hook(start).remove)
        hooks.callback(model.register_forward_hook(stop, always_call=True).remove)
        yield seen
