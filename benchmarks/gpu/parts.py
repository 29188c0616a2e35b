"""What is measured, and the parts that need more than a plain step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

STEPS = 50


class NotRun(Exception):
    """A part needs what is not here."""


@dataclass(frozen=True)
class Part:
    """One line of the results; `rows` are the examples of an optimizer step."""

    name: str
    precision: str = "bf16"
    tuning: str = "lora"
    checkpointing: bool = True
    accumulation: int = 1
    neftune_noise_alpha: float = 0.0
    rows: int = 1
    what: str = "steps"


def parts(rows: int) -> Iterator[Part]:
    """List the parts, those that most depends on first; accumulation shares one batch of `rows`."""
    for tuning in ("lora", "full"):
        for precision in ("fp32", "tf32", "bf16", "fp16", "fp8"):
            for checkpointing in (True, False):
                words = f"{precision} {tuning}{' checkpointed' if checkpointing else ''}"
                yield Part(words, precision, tuning, checkpointing)
    for precision in ("bf16", "fp8"):
        yield Part(f"native against emulated {precision}", precision, what="native against emulated")
    yield Part("bf16 stored, full checkpointed", "bf16 stored", "full")
    for checkpointing in (True, False):
        yield Part(
            f"bf16 qlora{' checkpointed' if checkpointing else ''}",
            tuning="qlora",
            checkpointing=checkpointing,
        )
    for steps in (1, 4, 8):
        yield Part(f"{rows} rows in {steps} micro-batches", accumulation=steps, rows=rows)
    for alpha in (0.0, 5.0):
        yield Part(f"neftune alpha {alpha:g}", neftune_noise_alpha=alpha)
    yield Part("out of memory", what="out of memory")


def lora(model: Any) -> Any:
    """Put LoRA of rank 16 on every linear layer but the head."""
    from peft import LoraConfig, get_peft_model

    model.enable_input_require_grads()
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))


def qlora(model: Any, device: str) -> Any:
    """Store every linear layer but the head in NF4."""
    if find_spec("bitsandbytes") is None:
        raise NotRun("bitsandbytes is not installed")
    import bitsandbytes

    for path, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and path != "lm_head":
            parent, _, name = path.rpartition(".")
            stored = bitsandbytes.nn.Linear4bit(
                module.in_features,
                module.out_features,
                bias=False,
                compute_dtype=torch.bfloat16,
                quant_type="nf4",
            )
            stored.weight = bitsandbytes.nn.Params4bit(
                module.weight.detach().cpu(), requires_grad=False, quant_type="nf4"
            )
            setattr(model.get_submodule(parent), name, stored.to(device))
    return model


class Products(TorchDispatchMode):
    """Counts matrix products by the dtype of their operands: no format is measured under another's name."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(one not in (torch.Tensor, torch.nn.Parameter) for one in types):
            return NotImplemented
        first = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1, "_scaled_mm": 0}.get(
            func.overloadpacket.__name__
        )
        if first is not None:
            operands = args[first : first + 2]
            self.dtypes[" x ".join(dict.fromkeys(str(one.dtype)[6:] for one in operands))] += 1
        return func(*args, **(kwargs or {}))


def natively_against_emulated(precision: str, device: str) -> dict[str, Any]:
    """Train a small model for 50 steps in a format by the hardware and emulated; return both last losses."""
    if find_spec("pydantic") is None or find_spec("paribus") is None:
        raise NotRun("paribus or pydantic is not installed")
    if precision == "fp8" and find_spec("torchao") is None:
        raise NotRun("torchao is not installed")
    from paribus.techniques import Bf16, Fp8, Live

    level = {"bf16": Bf16, "fp8": Fp8}[precision]
    losses = {}
    for compute in ("native", "emulated"):
        model, technique = _small(device), level(compute=compute)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        ids = torch.randint(3, 128, (8, 32), generator=torch.Generator().manual_seed(0)).to(device)
        live = Live(seed=0, steps=STEPS)
        with technique.applied(model, live):
            for live.step in range(STEPS):
                with torch.autocast(device, torch.bfloat16, enabled=compute == "native"):
                    loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                technique.after_step(model, live)
            technique.proof(model, live)
        losses[f"loss_{compute}"] = float(loss.detach())
    return losses | {"loss_difference": losses["loss_native"] - losses["loss_emulated"]}


def _small(device: str) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    return (
        LlamaForCausalLM(LlamaConfig(vocab_size=128, max_position_embeddings=64, **sizes)).to(device).train()
    )


def out_of_memory(device: str) -> dict[str, Any]:
    """Ask for more than the device has; the caller catches it."""
    if device == "cpu":
        raise NotRun("no device whose memory could be exhausted safely")
    total = torch.cuda.get_device_properties(0).total_memory
    torch.empty(total + 1, dtype=torch.uint8, device=device)
    return {}
