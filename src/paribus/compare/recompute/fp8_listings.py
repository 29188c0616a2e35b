"""Claims on the article's FP8 listings: its roles of formats, its scales and its layer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.number_formats import bell, rounding_error
from paribus.techniques.precision import bits
from paribus.techniques.precision.formats import E4M3, E5M2, Format, round_to
from paribus.techniques.precision.scaling import scaled_round

if TYPE_CHECKING:
    import torch


def gaussian(rows: int, columns: int, seed: int) -> torch.Tensor:
    """Draw a Gaussian matrix that is the same on every machine."""
    import torch

    draw = random.Random(seed)
    return torch.tensor([[draw.gauss(0, 1) for _ in range(columns)] for _ in range(rows)])


def failure(action: Callable[[], object]) -> str:
    """Run something and return its error in a line, or nothing where it runs."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def layer(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    """Build the listing's layer: FP32 weights and a bias always, rounded in training, plain in evaluation."""
    import torch
    from torch.nn.functional import linear

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight)
            self.bias = torch.nn.Parameter(torch.zeros(len(weight)) if bias is None else bias)
            self.register_buffer("input_scale", torch.tensor(1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                return linear(x, self.weight, self.bias)
            self.input_scale = E4M3.largest / x.abs().max()
            scale = E5M2.largest / self.weight.abs().max()
            inputs, weights = x * self.input_scale, self.weight * scale
            product = linear(inputs.to(torch.float8_e4m3fn), weights.to(torch.float8_e5m2))
            return product.float() / (self.input_scale * scale) + self.bias

    return Layer()


def product_error(inputs: Format, weights: Format) -> float:
    """Return how far a product of rounded Gaussian matrices is from the exact one, relative."""
    x, w = gaussian(48, 64, 0), gaussian(64, 48, 1)
    rounded = [scaled_round(t, form, "tensor").restored().double() for t, form in ((x, inputs), (w, weights))]
    exact = x.double() @ w.double()
    return ((rounded[0] @ rounded[1] - exact).norm() / exact.norm()).item()


def roles() -> tuple[dict[str, float], tuple[Statement, ...]]:
    """Hold the article's roles against the standard ones, E4M3 on both operands of a forward product."""
    precise, wide = (rounding_error(bell(4096), form) for form in (E4M3, E5M2))
    article, standard = product_error(E4M3, E5M2), product_error(E4M3, E4M3)
    numbers = {
        "error of weights in E4M3": precise,
        "error of weights in E5M2": wide,
        "error of products, article's roles": article,
        "error of products, standard roles": standard,
    }
    return numbers, (
        Statement(
            says="weights are better held in E5M2 than in E4M3",
            holds=wide < precise,
            found=f"scaled, Gaussian weights are {wide:.3f} off against {precise:.3f}",
        ),
        Statement(
            says="E4M3 activations times E5M2 weights are as near as E4M3 on both",
            holds=article <= standard,
            found=f"products are {article:.3f} off against {standard:.3f}",
        ),
    )


def a61() -> Computed:
    """Judge the article's roles of the two formats."""
    numbers, statements = roles()
    return computed(numbers, *statements)


def a62() -> Computed:
    """Compare the maxima that the scales assume, and multiply the listing's two formats."""
    import torch

    ones = torch.ones(2, 2)
    found = failure(lambda: torch.matmul(ones.to(torch.float8_e4m3fn), ones.to(torch.float8_e5m2)))
    return computed(
        {"maximum of E5M2": E5M2.largest, "maximum of E4M3": E4M3.largest},
        Statement(says="the listing runs", holds=not found, found=found),
    )


def a63() -> Computed:
    """Scale and round the article's four weights as its listing does, into E5M2."""
    import torch

    weights = torch.tensor([-2.5, 0.3, 1.8, -0.9])
    scale = E4M3.largest / weights.abs().max()
    rounded = {form.name: round_to(weights * scale, form).tolist() for form in (E5M2, E4M3)}
    printed = (-448.0, 54.0, 322.0, -161.0)
    held = {value for form in (E4M3, E5M2) for value in bits.values(form)}
    foreign = [f"{value:g}" for value in printed if value not in held]
    return computed(
        {"scale": scale.item()} | {f"quantised[{i}]": value for i, value in enumerate(rounded["e5m2"])}
        | {f"in E4M3[{i}]": value for i, value in enumerate(rounded["e4m3"])},
        Statement(
            says="each quantised value is one of FP8",
            holds=not foreign,
            found=f"{', '.join(foreign)} are in neither format: there is a step of 16 or more between "
            "neighbours above 128, of 4 or more above 32",
        ),
    )  # fmt: skip


def a64() -> Computed:
    """Call the layer where only what it imports is there, then with the missing name."""
    import torch

    x, weight = gaussian(2, 16, 0), gaussian(16, 16, 1)
    listed = {"torch": torch, "nn": torch.nn, "x": x, "w": weight}
    missing = failure(lambda: eval("F.linear(x, w)", listed))
    still = failure(lambda: layer(weight)(x))
    return computed(
        {"maximum of E4M3": E4M3.largest, "maximum of E5M2": E5M2.largest},
        Statement(
            says="the layer runs in training",
            holds=not (missing or still),
            found=f"{missing}; with F imported, {still}",
        ),
    )


ROWS = {"A61": a61, "A62": a62, "A63": a63, "A64": a64}
