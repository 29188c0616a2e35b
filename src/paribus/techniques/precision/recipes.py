"""Which format and scaling each operand of a linear layer's three products has, and recipes by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from paribus.techniques.precision.formats import FORMATS, Format, Role
from paribus.techniques.precision.scaling import Scaling

Product = Literal["forward", "input_gradient", "weight_gradient"]
OPERANDS: Final[dict[Product, tuple[Role, Role]]] = {
    "forward": ("activations", "weights"),
    "input_gradient": ("gradients", "weights"),
    "weight_gradient": ("gradients", "activations"),
}
"""The roles of a product's operands. The products sum over inputs, over outputs, and over tokens."""

SUMS_OVER: Final[dict[tuple[Product, Role], int]] = {
    ("forward", "activations"): 1,
    ("forward", "weights"): 1,
    ("input_gradient", "gradients"): 1,
    ("input_gradient", "weights"): 0,
    ("weight_gradient", "gradients"): 0,
    ("weight_gradient", "activations"): 0,
}
"""The axis that is summed over: activations are [tokens, in], weights [out, in], gradients [tokens, out]."""


@dataclass(frozen=True)
class Cast:
    """How one operand is rounded: format, scaling, the tile of `block`, whether scales are powers of two.

    Scales that vary along an axis vary along the one the product sums over; `along: forward` keeps them as
    the forward product has them, so that the backward pass takes the very numbers that the forward pass took.
    """

    format: str
    scaling: Scaling = "none"
    block: tuple[int, int] = (1, 128)
    power_of_two: bool = False
    along: Literal["sum", "forward"] = "sum"

    @property
    def form(self) -> Format:
        return FORMATS[self.format]

    @property
    def exact(self) -> bool:
        """Say whether nothing is rounded."""
        return self.format == "fp32"

    def __str__(self) -> str:
        scaling = self.scaling
        if scaling == "block":
            scaling = f"block {self.block[0]}x{self.block[1]}"
        elif not isinstance(scaling, str):
            scaling = f"times {scaling:g}"
        words = [self.format, *([] if scaling == "none" else [scaling]), *["pow2"] * self.power_of_two]
        return " ".join(words)


@dataclass(frozen=True)
class Operand:
    """One cast in its place; two places with equal operands of one tensor share its rounded numbers.

    `axis` is the one that scales stay constant along, -1 where the cast has none.
    """

    role: Role
    cast: Cast
    axis: int


Casts = tuple[Cast, Cast]


@dataclass(frozen=True)
class Recipe:
    """Two casts, left and right, for each of the three products."""

    forward: Casts
    input_gradient: Casts
    weight_gradient: Casts

    def operands(self, product: Product) -> tuple[Operand, Operand]:
        """Return a product's operands with the axis that their scales stay constant along."""
        casts: Casts = getattr(self, product)
        left, right = (
            _placed(product, role, cast) for role, cast in zip(OPERANDS[product], casts, strict=True)
        )
        return left, right

    def of_role(self, role: Role) -> dict[Product, Cast]:
        """Return the casts of a role in the products it is in."""
        return {
            product: getattr(self, product)[roles.index(role)]
            for product, roles in OPERANDS.items()
            if role in roles
        }

    def with_role(self, role: Role, format: str | None, scaling: Scaling | None) -> Recipe:
        """Return this recipe with a role's format, scaling or both changed in every product."""

        def changed(product: Product, at: int, cast: Cast) -> Cast:
            if OPERANDS[product][at] != role:
                return cast
            other = replace(cast, format=format or cast.format)
            return other if scaling is None else replace(other, scaling=scaling)

        return Recipe(*(tuple(changed(p, i, c) for i, c in enumerate(getattr(self, p))) for p in OPERANDS))  # type: ignore[arg-type]

    def words(self) -> dict[str, str]:
        """Write each product: `activations e4m3 row x weights e4m3 row`."""
        return {
            product: " x ".join(
                f"{role} {cast}" for role, cast in zip(roles, getattr(self, product), strict=True)
            )
            for product, roles in OPERANDS.items()
        }


def _placed(product: Product, role: Role, cast: Cast) -> Operand:
    """Place a cast; scaling that has no axis, and square tiles, are the same in every product."""
    square = cast.scaling == "block" and cast.block[0] == cast.block[1]
    if cast.scaling not in ("row", "block", "mx", "nv") or square:
        return Operand(role, cast, -1)
    forward = cast.along == "forward" and role != "gradients"
    return Operand(role, cast, 1 if forward else SUMS_OVER[product, role])


def by_role(activations: Cast, weights: Cast, gradients: Cast) -> Recipe:
    """Return the recipe in which a role has one cast in every product."""
    return Recipe((activations, weights), (gradients, weights), (gradients, activations))


def everywhere(cast: Cast) -> Recipe:
    """Return the recipe in which all operands are cast alike."""
    return by_role(cast, cast, cast)


def _rowwise() -> Recipe:
    return everywhere(Cast("e4m3", "row", power_of_two=True))


def _with_exact_weight_gradients() -> Recipe:
    row, exact = Cast("e4m3", "row", power_of_two=True), Cast("fp32")
    return Recipe((row, row), (row, Cast("e4m3", "tensor", power_of_two=True)), (exact, exact))


def _deepseek() -> Recipe:
    tile, square = Cast("e4m3", "block", (1, 128)), Cast("e4m3", "block", (128, 128))
    return by_role(tile, square, tile)


FP8_FORMATS: Final[dict[str, tuple[str, str, str]]] = {
    "standard": ("e4m3", "e4m3", "e5m2"),
    "article": ("e4m3", "e5m2", "e4m3"),
    "all_e4m3": ("e4m3", "e4m3", "e4m3"),
}
"""Formats of activations, weights and gradients in the recipes that leave scaling open."""

FP8_FIXED: Final[dict[str, tuple[str, Recipe]]] = {
    "tensorwise": ("tensor", by_role(Cast("e4m3", "tensor"), Cast("e4m3", "tensor"), Cast("e5m2", "tensor"))),
    "rowwise": ("row", _rowwise()),
    "rowwise_with_gw_hp": ("row", _with_exact_weight_gradients()),
    "deepseek": ("block", _deepseek()),
}
"""Recipes that fix their scaling: three of torchao (`Float8LinearConfig.from_recipe_name`, 0.18), and tiles
of 1 x 128 with blocks of 128 x 128 for weights (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3)."""


def fp8(name: str, scaling: Scaling) -> Recipe:
    """Return an 8-bit recipe by its name; `scaling` is that of recipes that leave it open."""
    if name in FP8_FIXED:
        return FP8_FIXED[name][1]
    square = (128, 128)
    activations, weights, gradients = FP8_FORMATS[name]
    return by_role(
        Cast(activations, scaling), Cast(weights, scaling, square if scaling == "block" else (1, 128)),
        Cast(gradients, scaling),
    )  # fmt: skip
