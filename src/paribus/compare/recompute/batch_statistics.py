"""Claims on layers that normalise over a batch, and on those that should stand in for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.batches import refused

if TYPE_CHECKING:
    import torch

Norm = Literal["batch", "layer", "group"]
WIDTH = 64
GROUPS = 32


def _layer(norm: Norm) -> torch.nn.Module:
    import torch

    if norm == "batch":
        return torch.nn.BatchNorm1d(WIDTH).double()
    return (torch.nn.LayerNorm(WIDTH) if norm == "layer" else torch.nn.GroupNorm(GROUPS, WIDTH)).double()


def _rows(count: int, seed: int = 0) -> torch.Tensor:
    import torch

    return torch.randn(count, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def apart_by_norm(norm: Norm) -> float:
    """Return how far the outputs of four parts of 8 rows are from those of all 32, relative."""
    import torch

    rows, layer = _rows(32), _layer(norm)
    whole, parts = layer(rows), torch.cat([layer(part) for part in rows.split(8)])
    return float(((parts - whole).norm() / whole.norm()).detach())


def a40() -> Computed:
    """Count the rows that a batch norm sees, and measure how its mean varies from batch to batch."""
    import torch

    seen: list[int] = []
    layer = _layer("batch")
    layer.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])))
    for rows in (_rows(32), *_rows(32).split(8)):
        layer(rows)
    many = _rows(32 * 400, seed=1)
    spread = [torch.stack([part.mean(0) for part in many.split(size)]).var().item() for size in (32, 8)]
    apart = apart_by_norm("batch")
    return computed(
        {
            "rows.whole": seen[0],
            "rows.accumulated": max(seen[1:]),
            "variance_of_mean.ratio": spread[1] / spread[0],
        },
        Statement(
            says="accumulation is then not the whole batch",
            holds=apart > 1e-12,
            found=f"the outputs are {apart:.0%} apart",
        ),
        Statement(
            says="statistics of 8 rows are less stable than those of 32",
            holds=spread[1] > spread[0],
            found=f"over 400 batches their mean varies {spread[1] / spread[0]:.1f} times as much",
        ),
    )


def a41() -> Computed:
    """Compare split and whole batches under both ways out, which must take what the batch norm takes."""
    import torch

    accepted = refused(lambda: torch.nn.GroupNorm(GROUPS, WIDTH)(torch.zeros(8, WIDTH)))
    apart = {norm: apart_by_norm(norm) for norm in ("layer", "group")}
    return computed(
        {"groups": GROUPS},
        *(
            Statement(
                says=f"{norm} norm does not depend on the split", holds=off < 1e-12, found="up to rounding"
            )
            for norm, off in apart.items()
        ),
        Statement(
            says="a group norm of 32 groups takes the rows of a batch norm",
            holds="it runs" in accepted,
            found=f"where 32 divides the width; at 48 {refused(lambda: torch.nn.GroupNorm(GROUPS, 48))}",
        ),
    )


ROWS = {"A40": a40, "A41": a41}
