"""Claims of the chapter on weights in four bits: NF4's levels, their constants, and NF4 beside INT4."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from paribus.compare.recompute import Computed, Statement, computed
from paribus.techniques.precision.formats import NF4_CODES

if TYPE_CHECKING:
    import torch

    from paribus.techniques.tuning.quantised import Format as Levels

Kind = Literal["gaussian", "uniform"]


def _weights(kind: Kind, size: int) -> torch.Tensor:
    import torch

    generator = torch.Generator().manual_seed(0)
    if kind == "gaussian":
        return torch.randn(size, size, generator=generator)
    return torch.rand(size, size, generator=generator) * 2 - 1


def _stored(weight: torch.Tensor, levels: Levels, *, double: bool = False) -> Any:
    """Store a weight matrix as QLoRA does, in blocks of 64."""
    import torch

    from paribus.techniques.tuning import quantised

    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = torch.nn.Parameter(weight)
    return quantised.stored(layer, quantised.Storage(levels, 64, double, torch.float32))


def b33() -> Computed:
    """Compare NF4's levels with quantiles of the normal distribution, in equal steps of probability."""
    import torch

    ramp = torch.linspace(-1, 1, 64 * 64).view(64, 64).t().contiguous()
    ramp[:, 0] = 1  # the largest of every block
    found = sorted(set(_stored(ramp, "nf4").decoded().flatten().tolist()))
    offset, quantile = 0.9677083, NormalDist().inv_cdf  # the outermost step's probability, in bitsandbytes
    above = [quantile(0.5 + (offset - 0.5) * step / 8) for step in range(9)]
    below = [-quantile(0.5 + (offset - 0.5) * step / 7) for step in range(1, 8)]
    wanted = sorted(value / above[-1] for value in (*above, *below))
    far = max(
        abs(one - other) for codes in (found, NF4_CODES) for one, other in zip(codes, wanted, strict=True)
    )
    errors = _errors("gaussian")
    return computed(
        {"bits": math.log2(len(found))},
        Statement(
            says="its levels stand at quantiles of the normal distribution",
            holds=far < 1e-6,
            found="8 above zero and 7 below, each at equal steps of probability, to 1e-6",
        ),
        Statement(
            says="they suit Gaussian weights better than equal steps",
            holds=errors["nf4"] < errors["int4"],
            found=_told(errors),
        ),
    )


def _errors(kind: Kind) -> dict[str, float]:
    weight = _weights(kind, 256)
    names: tuple[Levels, ...] = ("nf4", "int4")
    return {name: float((_stored(weight, name).decoded() - weight).norm() / weight.norm()) for name in names}


def _told(errors: Mapping[str, float]) -> str:
    return f"error {errors['nf4']:.3f} in NF4, {errors['int4']:.3f} in INT4"


def b34() -> Computed:
    """Count the bits a weight really takes with its constants plain and quantised."""
    from paribus.techniques.tuning import quantised

    weight, bits = _weights("gaussian", 512), []
    for double in (False, True):
        parts = quantised.parts(_stored(weight, "nf4", double=double))
        stored = sum(t.numel() * t.element_size() for name in ("codes", "constants") for t in parts[name])
        bits.append(8 * stored / weight.numel())
    return computed({"saved": (bits[0] - bits[1], "bits a weight"), "plain": bits[0], "double": bits[1]})


def b54() -> Computed:
    """Answer the exercise: NF4 and INT4 on weights that are normal, and on weights that are not."""
    normal, uniform = _errors("gaussian"), _errors("uniform")
    return computed(
        {},
        Statement(
            says="NF4 is nearer to Gaussian weights than INT4",
            holds=normal["nf4"] < normal["int4"],
            found=_told(normal),
        ),
        Statement(
            says="it is their distribution that decides",
            holds=uniform["int4"] < uniform["nf4"],
            found=f"on uniform weights {_told(uniform)}",
        ),
    )


ROWS = {"B33": b33, "B34": b34, "B54": b54}
