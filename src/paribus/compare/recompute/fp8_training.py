"""Claims on training with the article's FP8 layer: its gradients, conversion, calibration and trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.fp8_listings import failure, gaussian, layer
from paribus.compare.recompute.number_formats import bell
from paribus.techniques.precision.formats import E4M3

if TYPE_CHECKING:
    import torch


def converted(model: torch.nn.Module) -> int:
    """Replace each nn.Linear of a model by the listing's layer, as it does, and count them."""
    import torch

    count = 0
    for name, child in model.named_children():
        if isinstance(child, torch.nn.Linear):
            bias = None if child.bias is None else child.bias.data.clone()
            setattr(model, name, layer(child.weight.data.clone(), bias))
            count += 1
        else:
            count += converted(child)
    return count


def a65() -> Computed:
    """Send gradients of size 0.001 back through the casts of the listing."""
    import torch

    found = {}
    for name, dtype in (("E4M3", torch.float8_e4m3fn), ("E5M2", torch.float8_e5m2)):
        values = bell(4096).requires_grad_()
        upstream = 1e-3 * bell(4096)
        values.to(dtype).float().backward(upstream)
        assert values.grad is not None
        error = (values.grad.double() - upstream).norm() / upstream.double().norm()
        found[name] = ((values.grad == 0).double().mean().item(), values.grad.unique().numel(), error.item())
    zeros, values, error = found["E4M3"]
    return computed(
        {
            "share of gradients that become zero, E4M3": zeros,
            "values left of 4096, E4M3": values,
            "relative error, E4M3": error,
            "relative error, E5M2": found["E5M2"][2],
        },
        Statement(
            says="autograd brings gradients back through the casts",
            holds=error < 0.05,
            found=f"it casts them to the format of the cast without a scale: of gradients of size 0.001 "
            f"{zeros:.0%} become zero behind E4M3, {values} values are left",
        ),
    )


def a66() -> Computed:
    """Convert GPT-2, built without memory for its weights, and look at what was reached."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D

    with torch.device("meta"):
        model = GPT2LMHeadModel(GPT2Config())
        tied = model.lm_head.weight is model.transformer.wte.weight
        left = sum(isinstance(module, Conv1D) for module in model.modules())
        reached = converted(model)
    still = model.lm_head.weight is model.transformer.wte.weight
    return computed(
        {"layers replaced": reached, "linear layers": reached + left},
        Statement(
            says="every linear layer is replaced",
            holds=not left,
            found=f"{reached} of {reached + left}: GPT-2's others are Conv1D, not nn.Linear",
        ),
        Statement(
            says="the model's weights stay as they are",
            holds=tied == still,
            found="the head no longer shares the embedding's weight",
        ),
    )


def a72() -> Computed:
    """Take a step of Adam in half precision, then run a half-precision layer after its conversion."""
    import torch

    weight = torch.nn.Parameter(torch.full((4,), 0.1, dtype=torch.float16))
    weight.grad = torch.full_like(weight, 1e-4)
    torch.optim.AdamW([weight], lr=2e-5).step()
    finite = bool(weight.isfinite().all())
    model = torch.nn.Sequential(torch.nn.Linear(16, 16)).half()
    converted(model)
    found = failure(lambda: model(gaussian(2, 16, 0).half()))
    return computed(
        {},
        Statement(
            says="half-precision weights train stably in the first half",
            holds=finite,
            found="AdamW's first step on a gradient of 0.0001 leaves no finite weight: the squared gradient "
            "and epsilon are zero in FP16, and there are no FP32 weights",
        ),
        Statement(says="the second half runs", holds=not found, found=found),
        Statement(
            says="the main weights are in FP32",
            holds=all(p.dtype == torch.float32 for p in model.parameters()),
            found="the conversion copies what half() left",
        ),
    )


def calibrated(model: torch.nn.Module, batches: Iterable[torch.Tensor], steps: int) -> list[float]:
    """Collect the input scale of a layer over some batches in evaluation mode, as the listing does."""
    import torch

    scales = []
    model.eval()
    with torch.no_grad():
        for step, batch in enumerate(batches):
            if step >= steps:
                break
            model(batch)
            scales.append(float(model.input_scale))  # type: ignore[arg-type]
    return scales


def a73() -> Computed:
    """Collect scales as listed, and ask which batches the 99th percentile of the right ones is safe for."""
    import torch

    batches = [gaussian(4, 16, seed) for seed in range(120)]
    collected = calibrated(layer(gaussian(16, 16, 0)), batches, 100)
    right = torch.tensor([E4M3.largest / batch.abs().max().item() for batch in batches[:100]])
    chosen = right.quantile(0.99).item()
    overflow = sum(batch.abs().max().item() * chosen > E4M3.largest for batch in batches[:100])
    return computed(
        {"calibration_steps": len(collected), "quantile": (right <= chosen).double().mean().item(),
         "batches that overflow": overflow},
        Statement(
            says="it collects the scales of activations",
            holds=len(set(collected)) > 1,
            found=f"in eval() the layer takes the FP32 path, and all {len(collected)} are {collected[0]:g}",
        ),
        Statement(
            says="the 99th percentile of the scales is a stable scale",
            holds=overflow <= 1,
            found=f"a large scale belongs to a small maximum: {overflow} of 100 batches overflow under it",
        ),
    )  # fmt: skip


def a75() -> Computed:
    """Count the examples of a step of the combined trainer, and run its converted model once."""
    import torch

    steps, micro_batch, seen = 8, 4, []
    held = 0
    for index in range(2 * steps):
        held += micro_batch
        if (index + 1) % steps == 0:
            seen.append(held)
            held = 0
    model = torch.nn.Sequential(torch.nn.Linear(16, 16))
    converted(model)
    found = failure(lambda: model.train()(gaussian(2, 16, 0)))
    return computed(
        {"effective_batch": seen[0]},
        Statement(says="each optimizer step takes 32 examples", holds=set(seen) == {32}),
        Statement(says="the trainer runs with its FP8 layers", holds=not found, found=found),
    )


ROWS = {"A65": a65, "A66": a66, "A72": a72, "A73": a73, "A75": a75}
