"""Listings of the article on batches and accumulation, rebuilt at their smallest and run as they stand."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.batches import refused, shape

if TYPE_CHECKING:
    import torch


def _stages(ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Send token ids through the article's classifier, its embedding built as PyTorch names the argument."""
    import torch

    embedded = torch.nn.Embedding(10000, 128)(ids)
    pooled = embedded.mean(1)
    hidden = torch.nn.Linear(128, 64)(pooled)
    logits = torch.nn.Linear(64, 2)(torch.relu(hidden))
    names = ("input", "embeddings", "pooled", "hidden", "logits", "output")
    return dict(zip(names, (ids, embedded, pooled, hidden, logits, logits), strict=True))


def a12() -> Computed:
    """Build the model as listed, then with the right argument, and note the shape of each stage."""
    import torch

    wrong: dict[str, Any] = {"vocab_size": 10000, "embedding_dim": 128}
    error = refused(lambda: torch.nn.Embedding(**wrong))
    with torch.device("meta"):
        stages = _stages(torch.zeros(4, 10, dtype=torch.long))
    shapes = {name: value for stage, one in stages.items() for name, value in shape(stage, one.shape).items()}
    return computed(
        shapes, Statement(says="the listing runs as printed", holds="it runs" in error, found=error)
    )


def a15() -> Computed:
    """Divide the printed times, and make the steps of the listing that timed them, on the CPU."""
    import torch
    from torch.nn.functional import cross_entropy

    floats = refused(lambda: _stages(torch.randn(1, 128)))
    logits, labels = torch.zeros(32, 2, requires_grad=True), torch.zeros(1000, dtype=torch.long)
    each = refused(lambda: cross_entropy(logits, labels[:32], reduction="none").backward())
    last = refused(lambda: cross_entropy(logits, labels[992 : 992 + 32]).backward())
    return computed(
        {"ratio": (8.52 / 0.45, "x")},
        Statement(
            says="the listing runs as printed",
            holds=all("it runs" in one for one in (floats, each, last)),
            found=f"the model of token ids on random numbers: {floats}; the losses of 32 rows, not averaged: "
            f"{each}; 32 rows with the last 8 labels of 1,000: {last}",
        ),
    )


def a35() -> Computed:
    """Accumulate with a gradient scaler as listed, on the CPU, and compare its step to the whole batch's."""
    import torch

    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(8, 4, dtype=torch.float64, generator=draw)
    one, other = (torch.ones(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD([one], lr=0.1)
    for index, part in enumerate(rows.split(2)):
        scaler.scale((part @ one).square().mean() / 4).backward()
        if (index + 1) % 4 == 0:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_([one], 1.0)
            scaler.step(optimizer)
            scaler.update()
    (rows @ other).square().mean().backward()
    torch.nn.utils.clip_grad_norm_([other], 1.0)
    torch.optim.SGD([other], lr=0.1).step()
    apart = float((one - other).detach().abs().max())
    return computed(
        {},
        Statement(
            says="unscaled, clipped and stepped once in four it makes the step of the whole batch",
            holds=apart < 1e-12,
            found=f"up to rounding in fp64; {_deprecation()}",
        ),
    )


def _deprecation() -> str:
    """Say what PyTorch warns of where the listing imports autocast and its scaler from."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.amp.GradScaler()
        with torch.cuda.amp.autocast():
            pass
    said = [str(one.message) for one in caught if issubclass(one.category, FutureWarning)]
    return f"PyTorch warns: {' '.join(said)}" if said else "PyTorch does not warn of its imports"


def a38() -> Computed:
    """Run the probe's parts on a tiny model of token ids: its input, what it holds, its halving."""
    import torch

    steps = [32 // (8 * 2**tries) for tries in range(4)]
    probed, trained = _kept(grad=False), _kept(grad=True)
    floats = refused(lambda: _stages(torch.randn(16, 10)))
    modulo = refused(lambda: 1 % steps[-1])
    return computed(
        {"kept.under_no_grad": (probed, "bytes"), "kept.in_training": (trained, "bytes")},
        Statement(
            says="the probe holds what a training step of its batch holds",
            holds=probed == trained,
            found=f"{probed} and {trained:,} bytes for the backward pass of a tiny model",
        ),
        Statement(
            says="its random numbers are an input of a language model",
            holds="it runs" in floats,
            found=f"{floats}, which the listing takes in silence, as any error that is not of memory",
        ),
        Statement(
            says="any number of successes leaves a loop that steps",
            holds=steps[-1] > 0,
            found=f"32 // 64 steps after three: {modulo}",
        ),
    )


def _kept(*, grad: bool) -> int:
    """Count the bytes that autograd keeps of a forward pass of 16 rows of 10 tokens."""
    import torch

    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with (
        torch.set_grad_enabled(grad),
        torch.device("meta"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        held = _stages(torch.zeros(16, 10, dtype=torch.long))
    del held
    return sum(kept.values())


ROWS = {"A12": a12, "A15": a15, "A35": a35, "A38": a38}
