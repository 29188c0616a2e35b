"""Claims of the chapter on LoRA itself: its formula, its start, its state, its merge, and a 4-bit base."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.checkpointing import ALPHA, ATTENTION, RANK, operations
from paribus.compare.shapes import SIZES, linear_weights, on_meta, parameters, tiny_llama, with_lora

if TYPE_CHECKING:
    import torch

    from paribus.techniques import Lora

TRAINED_BYTES: Final = 16
"""An adapter's parameter in fp32, with its gradient and two moments."""


@cache
def trained(name: str, targets: tuple[str, ...] = ATTENTION, rank: int = RANK) -> int:
    """Count what LoRA trains in a model of published sizes: one layer as peft wraps it, times the layers."""
    wrapped = with_lora(on_meta(name, num_hidden_layers=1), targets, rank, ALPHA)
    return wrapped.get_nb_trainable_parameters()[0] * SIZES[name]["num_hidden_layers"]


def state_of_lora(name: str) -> int:
    """Return the bytes of a frozen base in 16 bits and of what LoRA trains beside it."""
    return 2 * parameters(name) + TRAINED_BYTES * trained(name)


def qlora_bytes(name: str) -> dict[str, float]:
    """Return the bytes of a 4-bit base, of what stays in 16 bits, and of what LoRA trains beside them."""
    from paribus.compare.recompute.four_bit import b34

    bits = next(one.value for one in b34().numbers if one.quantity == "double")
    linear = linear_weights(name)
    return {
        "four_bit": linear * bits / 8,
        "sixteen_bit": 2 * (parameters(name) - linear),
        "trained": TRAINED_BYTES * trained(name),
    }


def _ids() -> torch.Tensor:
    import torch

    return torch.arange(3, 19).unsqueeze(0)


def b25() -> Computed:
    """Count what a layer of a 7B model trains, and compare both ways of writing its forward pass."""
    import torch

    size = SIZES["llama_2_7b"]["hidden_size"]
    square = on_meta("llama_2_7b", num_hidden_layers=1).model.layers[0].self_attn.q_proj.weight.numel()
    one = trained("llama_2_7b", ("q_proj",)) / SIZES["llama_2_7b"]["num_hidden_layers"]
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (3, 64), "w": (64, 64), "b": (64, 4), "a": (4, 64)}
    x, w, b, a = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes.values())
    apart, together = x @ w.t() + (x @ a.t()) @ b.t(), x @ (w + b @ a).t()
    return computed(
        {"full / d^2": square / size**2, "trained / 2dr": one / (2 * size * RANK), "d^2": square, "2dr": one},
        Statement(
            says="h = W x + B A x is (W + B A) x",
            holds=torch.allclose(apart, together, rtol=1e-12, atol=1e-12),
            found=f"in fp64; the listing's alpha of {ALPHA} at rank {RANK} has peft scale B A by "
            f"{_scale():g}, which the formula leaves out",
        ),
    )


def _scale() -> float:
    """Read from peft's layer by what the listing's update is scaled."""
    wrapped = with_lora(on_meta("llama_2_7b", num_hidden_layers=1), ["q_proj"], RANK, ALPHA)
    return wrapped.get_submodule("base_model.model.model.layers.0.self_attn.q_proj").scaling["default"]


def b26() -> Computed:
    """Compare the logits at LoRA's start with those of the base, bit by bit."""
    import torch

    from paribus.techniques import Lora

    same = {
        str(dtype).removeprefix("torch."): _moved(Lora(r=4, lora_alpha=8), dtype) == 0
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    }
    return computed(
        {},
        Statement(
            says="with B at zero training starts at the base",
            holds=all(same.values()),
            found=f"bit for bit in {', '.join(same)}",
        ),
    )


def _moved(tuning: Lora, dtype: torch.dtype | None = None) -> float:
    """Return the largest change of a logit that an untrained adapter makes."""
    import torch

    from paribus.techniques import Live

    model = tiny_llama(dtype).eval()
    with torch.no_grad():
        base = model(input_ids=_ids()).logits
        with tuning.applied(model, Live(seed=0)) as wrapped:
            return float((wrapped.eval()(input_ids=_ids()).logits - base).abs().max())


def b53() -> Computed:
    """Answer the exercise: what becomes of the start and of the gradients with A and B both random."""
    from paribus.techniques import Lora

    random, usual = Lora(r=4, lora_alpha=8, init_lora_weights="both_random"), Lora(r=4, lora_alpha=8)
    return computed(
        {},
        Statement(
            says="with A and B random training does not start at the base",
            holds=_moved(random) > 1e-4 and _moved(usual) == 0,
            found="logits move, where with B at zero no bit does",
        ),
        Statement(
            says="B at zero still trains",
            holds=_with_gradient(usual) == {"lora_B"} and _with_gradient(random) == {"lora_A", "lora_B"},
            found="at first B alone has a gradient, with both random A has one too",
        ),
    )


def _with_gradient(tuning: Lora) -> set[str]:
    """Return which of an adapter's two matrices get a gradient other than zero at the start."""
    from paribus.techniques import Live

    with tuning.applied(tiny_llama(), Live(seed=0)) as wrapped:
        wrapped(input_ids=_ids(), labels=_ids()).loss.backward()
        moved = [name for name, p in wrapped.named_parameters() if p.grad is not None and p.grad.any()]
    return {part for part in ("lora_A", "lora_B") if any(part in name for name in moved)}


def b31() -> Computed:
    """Count the optimizer state and the operations of a step beside those of full tuning."""
    smaller = parameters("llama_2_7b") / trained("llama_2_7b")
    share = operations("lora") / operations("full")
    return computed(
        {"state.times_smaller": (smaller, "x"), "operations.share": (100 * share, "%")},
        Statement(
            says="its steps are faster",
            holds=share < 1,
            found=f"in operations, not in seconds: {100 * share:.0f} % of those of full tuning",
        ),
    )


def b39() -> Computed:
    """Count when the weights of a 4-bit layer are decoded."""
    import torch

    from paribus.techniques.tuning import quantised

    with torch.random.fork_rng():
        torch.manual_seed(0)
        layer: Any = quantised.stored(
            torch.nn.Linear(64, 64), quantised.Storage("nf4", 64, True, torch.float32)
        )
    calls: list[str] = []
    decode, phase = layer.decoded, ["forward"]

    def decoded() -> torch.Tensor:
        calls.append(phase[0])
        return decode()

    vars(layer)["decoded"] = decoded
    output = layer(torch.ones(2, 64, requires_grad=True))
    phase[0] = "backward"
    output.sum().backward()
    return computed(
        {"bits": 8 * layer.weight.numel() * layer.weight.element_size() / (64 * 64)},
        Statement(
            says="the base is decoded in the backward pass",
            holds="backward" in calls,
            found=f"and in the forward pass too: {' and '.join(calls)}",
        ),
    )


def b42() -> Computed:
    """Merge an adapter and compare model and outputs with those before."""
    import torch

    alike, far = _merged(torch.float64)
    rounded = ", ".join(
        f"within 1e{math.ceil(math.log10(3 * _merged(dtype)[1]))} in {str(dtype).removeprefix('torch.')}"
        for dtype in (torch.float32, torch.bfloat16)
    )
    return computed(
        {},
        Statement(
            says="merged, W + B A gives the same outputs",
            holds=far < 1e-12,
            found=f"not bit for bit: {rounded}",
        ),
        Statement(
            says="the merged model has the base's structure, so that it costs nothing more",
            holds=alike,
            found="same modules, parameters and shapes; a 4-bit base would have to be quantised again",
        ),
    )


def _merged(dtype: torch.dtype) -> tuple[bool, float]:
    """Say whether a merged model has the base's parameters, and how far its logits are from those before."""
    import torch

    from paribus.techniques import Live, Lora

    tuning, model = Lora(r=4, lora_alpha=8), tiny_llama(dtype).eval()
    shapes = {name: p.shape for name, p in model.named_parameters()}
    modules = {name: type(module) for name, module in model.named_modules()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad(), tuning.applied(model, Live(seed=0)) as wrapped:
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        apart = wrapped.eval()(input_ids=_ids()).logits.double()
        merged: Any = tuning.merged(wrapped)
        together = merged(input_ids=_ids()).logits.double()
        alike = shapes == {name: p.shape for name, p in merged.named_parameters()}
        alike &= modules == {name: type(module) for name, module in merged.named_modules()}
    return alike, float((apart - together).norm() / apart.norm())


ROWS = {"B25": b25, "B26": b26, "B31": b31, "B39": b39, "B42": b42, "B53": b53}
