"""The article's worked example: a linear classifier of three samples, its losses, gradients and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from paribus.compare.recompute import Computed, computed

if TYPE_CHECKING:
    import torch

SAMPLES = ((1.0, 2.0), (2.0, 1.0), (3.0, 3.0))
LABELS = (1, 0, 1)
WEIGHT = ((0.5, 0.3), (0.2, 0.4))
BIAS = (0.1, -0.1)
RATE = 0.1
PRINTED_LOGITS = ((1.2, 0.9), (1.3, 0.9), (2.9, 1.9))
PRINTED_WEIGHT_GRADIENT = ((0.0123, -0.0456), (-0.0123, 0.0456))
PRINTED_BIAS_GRADIENT = (0.0234, -0.0234)


class Step(NamedTuple):
    """What the listing prints, in its order."""

    logits: torch.Tensor
    losses: torch.Tensor
    weight_gradient: torch.Tensor
    bias_gradient: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor


def step(weight: Sequence[object] = WEIGHT, bias: Sequence[object] = BIAS, rows: slice = slice(None)) -> Step:
    """Take one step of gradient descent on some of the samples, in fp64."""
    import torch
    from torch.nn.functional import cross_entropy

    x, labels = torch.tensor(SAMPLES, dtype=torch.float64)[rows], torch.tensor(LABELS)[rows]
    w = torch.tensor(weight, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
    logits = x @ w.T + b
    losses = cross_entropy(logits, labels, reduction="none")
    of_w, of_b = torch.autograd.grad(losses.mean(), (w, b))
    return Step(
        logits.detach(), losses.detach(), of_w, of_b, (w - RATE * of_w).detach(), (b - RATE * of_b).detach()
    )


def entries(name: str, tensor: torch.Tensor) -> dict[str, float]:
    """Name the entries of a vector `name[0]`, of a matrix `name[0,1]`."""
    if tensor.dim() == 1:
        return {f"{name}[{i}]": float(one) for i, one in enumerate(tensor)}
    return {f"{name}[{i},{j}]": float(one) for i, row in enumerate(tensor) for j, one in enumerate(row)}


def a18() -> Computed:
    """Compute the logits of the three samples."""
    return computed(entries("logits", step().logits))


def a19() -> Computed:
    """Compute the losses, and those of the logits as they are printed."""
    import torch
    from torch.nn.functional import cross_entropy

    losses = step().losses
    of_printed = cross_entropy(
        torch.tensor(PRINTED_LOGITS, dtype=torch.float64), torch.tensor(LABELS), reduction="none"
    )
    return computed(
        entries("loss", losses)
        | {"mean_loss": float(losses.mean())}
        | entries("loss_of_printed_logits", of_printed)
    )


def a20() -> Computed:
    """Compute the gradients of weight and bias."""
    found = step()
    return computed(entries("dW", found.weight_gradient) | entries("db", found.bias_gradient))


def a21() -> Computed:
    """Compute the update, and what the printed gradients would make of it."""
    import torch

    found = step()

    def moved(start: Sequence[object], gradient: Sequence[object]) -> torch.Tensor:
        of_start, of_gradient = (torch.tensor(one, dtype=torch.float64) for one in (start, gradient))
        return of_start - RATE * of_gradient

    return computed(
        entries("W_new", found.weight)
        | entries("b_new", found.bias)
        | entries("W_new_by_printed_gradients", moved(WEIGHT, PRINTED_WEIGHT_GRADIENT))
        | entries("b_new_by_printed_gradients", moved(BIAS, PRINTED_BIAS_GRADIENT))
    )


def a22() -> Computed:
    """Compute the batch's loss, and set one update of the batch beside three, a sample each."""
    whole = step()
    last = step(rows=slice(0, 1))
    for index in (1, 2):
        last = step(last.weight.tolist(), last.bias.tolist(), slice(index, index + 1))
    apart = entries("W_new.one_update", whole.weight) | entries("W_new.three_updates", last.weight)
    return computed({"mean_loss": float(whole.losses.mean())} | apart)


ROWS = {"A18": a18, "A19": a19, "A20": a20, "A21": a21, "A22": a22}
