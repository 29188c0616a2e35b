"""Recipes give each operand of each product its cast; what fixes its scaling refuses another one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

import tiny
from paribus.plan import levels
from paribus.techniques import Fp8, Full, Int4, Int8, Live, Lora, Mxfp4, Mxfp8, Nf4, NoEffect, Nvfp4, Tf32
from paribus.techniques.precision.emulate import emulated
from paribus.techniques.precision.formats import BF16, E4M3, E5M2, FORMATS, round_to
from paribus.techniques.precision.recipes import Cast, by_role, everywhere
from paribus.techniques.precision.scaling import scaled_round


class Holder(torch.nn.Module):
    """A model of one layer, with the head that emulation asks for."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def get_output_embeddings(self) -> None:
        return None


def three(level: Any) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return a layer's operands and its three products under a level."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 48, bias=False)
    x, gradient = torch.randn(80, 64, requires_grad=True), torch.randn(80, 48)
    with level.applied(Holder(layer), Live(seed=0)) as model:
        output = model(x)
        output.backward(gradient)
    weight = layer.weight
    assert x.grad is not None and weight.grad is not None
    operands = {"activations": x.detach(), "weights": weight.detach(), "gradients": gradient}
    return operands, {"forward": output.detach(), "input": x.grad, "weight": weight.grad}


def rows(values: torch.Tensor, form: Any, axis: int, power: bool = False) -> torch.Tensor:
    """Divide each vector along an axis by its largest magnitude over the format's, round, and scale back."""
    scale = values.abs().amax(axis, keepdim=True) / form.largest
    if power:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    return round_to(values / scale, form) * scale


def check(level: Any, forward: Any, input_gradient: Any, weight_gradient: Any) -> None:
    """Compare with products of operands that were rounded by hand; each is given x, w, g."""
    operands, got = three(level)
    xwg = [operands[role] for role in ("activations", "weights", "gradients")]
    left, right = forward(*xwg)
    torch.testing.assert_close(got["forward"], left @ right.t(), rtol=1e-5, atol=1e-5)
    left, right = input_gradient(*xwg)
    torch.testing.assert_close(got["input"], left @ right, rtol=1e-5, atol=1e-5)
    left, right = weight_gradient(*xwg)
    torch.testing.assert_close(got["weight"], left.t() @ right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("recipe", "power"), [("all_e4m3", False), ("rowwise", True)])
def test_rows_are_those_of_each_products_own_sum(recipe: str, power: bool) -> None:
    scaling: dict[str, Any] = {} if power else {"scaling": "row"}
    check(
        Fp8.model_validate({"recipe": recipe, "compute": "emulated", **scaling}),
        lambda x, w, g: (rows(x, E4M3, 1, power), rows(w, E4M3, 1, power)),
        lambda x, w, g: (rows(g, E4M3, 1, power), rows(w, E4M3, 0, power)),
        lambda x, w, g: (rows(g, E4M3, 0, power), rows(x, E4M3, 0, power)),
    )


def test_high_precision_weight_gradients_round_nothing_there() -> None:
    def tensor(values: torch.Tensor) -> torch.Tensor:
        return rows(values.flatten(), E4M3, 0, True).view(values.shape)

    check(
        Fp8(recipe="rowwise_with_gw_hp", compute="emulated"),
        lambda x, w, g: (rows(x, E4M3, 1, True), rows(w, E4M3, 1, True)),
        lambda x, w, g: (rows(g, E4M3, 1, True), tensor(w)),
        lambda x, w, g: (g, x),
    )


@pytest.mark.parametrize(
    ("recipe", "formats"),
    [("standard", (E4M3, E4M3, E5M2)), ("article", (E4M3, E5M2, E4M3)), ("all_e4m3", (E4M3, E4M3, E4M3))],
)
def test_formats_by_role(recipe: Any, formats: tuple[Any, Any, Any]) -> None:
    fx, fw, fg = formats

    def tensor(values: torch.Tensor, form: Any) -> torch.Tensor:
        return rows(values.flatten(), form, 0).view(values.shape)

    check(
        Fp8(recipe=recipe, compute="emulated"),
        lambda x, w, g: (tensor(x, fx), tensor(w, fw)),
        lambda x, w, g: (tensor(g, fg), tensor(w, fw)),
        lambda x, w, g: (tensor(g, fg), tensor(x, fx)),
    )


@pytest.mark.parametrize(
    ("level", "scaling", "block"),
    [
        (Mxfp8(compute="emulated"), "mx", (1, 128)),
        (Mxfp4(compute="emulated"), "mx", (1, 128)),
        (Nvfp4(compute="emulated"), "nv", (1, 128)),
        (Fp8(compute="emulated", recipe="all_e4m3", scaling="block"), "block", (1, 128)),
    ],
    ids=lambda value: getattr(value, "kind", None),
)
def test_blocks_lie_along_each_products_sum(level: Any, scaling: Any, block: tuple[int, int]) -> None:
    form = level.recipe_in_full().forward[0].form

    def tiles(values: torch.Tensor, axis: int, tile: tuple[int, int] = block) -> torch.Tensor:
        return scaled_round(values, form, scaling, axis=axis, block=tile).restored()

    square = (128, 128)
    check(
        level,
        lambda x, w, g: (tiles(x, 1), tiles(w, 1, square)),
        lambda x, w, g: (tiles(g, 1), tiles(w, 0, square)),
        lambda x, w, g: (tiles(g, 0), tiles(x, 0)),
    )


@pytest.mark.parametrize("level", [Int8(compute="emulated"), Int4(compute="emulated")], ids=lambda i: i.kind)
def test_integers_go_back_through_the_very_numbers_that_went_forward(level: Any) -> None:
    form = FORMATS[level.kind]

    def quantised(values: torch.Tensor) -> torch.Tensor:
        return rows(values, form, 1)

    check(
        level,
        lambda x, w, g: (quantised(x), quantised(w)),
        lambda x, w, g: (round_to(g, BF16), quantised(w)),
        lambda x, w, g: (round_to(g, BF16), quantised(x)),
    )


def test_weights_of_sixteen_codes_have_blocks_of_64() -> None:
    def codes(w: torch.Tensor) -> torch.Tensor:
        return rows(w, FORMATS["nf4"], 1)  # 64 inputs: a row is one block

    check(
        Nf4(compute="emulated"),
        lambda x, w, g: (round_to(x, BF16), codes(w)),
        lambda x, w, g: (round_to(g, BF16), codes(w)),
        lambda x, w, g: (round_to(g, BF16), round_to(x, BF16)),
    )


def test_any_role_takes_any_format_and_scaling() -> None:
    roles = {"weights": "e5m2", "gradients": {"format": "fp32"}, "activations": {"scaling": "row"}}
    level = Fp8.model_validate({"compute": "emulated", "roles": roles})
    assert level.label == "fp8 emulated activations:row weights:e5m2 gradients:fp32"
    check(
        level,
        lambda x, w, g: (rows(x, E4M3, 1), rows(w.flatten(), E5M2, 0).view(w.shape)),
        lambda x, w, g: (g, rows(w.flatten(), E5M2, 0).view(w.shape)),
        lambda x, w, g: (g, rows(x, E4M3, 0)),
    )


def test_a_recipe_that_fixes_its_scaling_refuses_another() -> None:
    with pytest.raises(ValidationError, match="recipe rowwise scales by row, not by tensor"):
        Fp8(recipe="rowwise", scaling="tensor")
    level = Fp8(recipe="rowwise", compute="emulated")
    assert (level.scaling, level.label) == ("row", "fp8 rowwise emulated")
    assert Fp8.model_validate(level.model_dump()) == level
    draft = {"precision": level}
    assert levels.changed(draft, "precision.recipe", "deepseek")["precision"].scaling == "block"


def test_the_identity_of_a_level_is_what_it_was() -> None:
    assert Fp8().canonical() == {
        "kind": "fp8", "recipe": "standard", "scaling": "tensor", "compute": "native"
    }  # fmt: skip
    assert Tf32(compute="emulated").canonical() == {"kind": "tf32", "compute": "emulated"}
    named = Fp8(keep_high=("lm_head",), outputs=True).canonical()
    assert (named["keep_high"], named["outputs"]) == (["lm_head"], True)


def test_equal_casts_of_a_tensor_are_rounded_once() -> None:
    """By tensor each operand is rounded once; by row activations, weights and gradients are rounded twice."""
    live = Live(seed=0)
    counts = {}
    for name, cast in {"tensor": Cast("e4m3", "tensor"), "row": Cast("e4m3", "row")}.items():
        layer, x = torch.nn.Linear(32, 16), torch.randn(4, 32, requires_grad=True)
        with emulated(name, Holder(layer), live, everywhere(cast)) as model:
            model(x).sum().backward()
        counts[name] = {role: int(lost[2]) for role, lost in live.observed["precision"].lost.items()}
    assert counts["tensor"] == {"activations": 4 * 32, "weights": 32 * 16, "gradients": 4 * 16}
    assert counts["row"] == {role: 2 * count for role, count in counts["tensor"].items()}


def test_modules_that_are_kept_high_are_named_by_where_they_are() -> None:
    level = Mxfp8(compute="emulated", keep_high=("layers.0", "*.down_proj"))
    proof = tiny.run(tiny.llama(), Full(), level, max_steps=2).proofs[1]
    assert proof["modules_converted"] == 6
    assert proof["modules_skipped"] == {"kept high": 8, "head": 1}
    under_lora = tiny.run(tiny.llama(), Lora(r=16), level, max_steps=2).proofs[1]
    assert under_lora["modules_converted"] == 6 * 3
    with pytest.raises(NoEffect, match=r"keep_high: layer\.0 is the name of no module"):
        tiny.run(tiny.llama(), Full(), Mxfp8(compute="emulated", keep_high=("layer.0",)), max_steps=2)


@pytest.mark.parametrize("recipe", [everywhere(Cast("fp32")), by_role(*[Cast("bf16")] * 3)])
def test_a_recipe_that_converts_nothing_is_no_silent_baseline(recipe: Any, monkeypatch: Any) -> None:
    """Planted: a recipe of fp32 casts, and a rounding that is the identity."""
    level = Int8(compute="emulated")
    monkeypatch.setattr(Int8, "base_recipe", lambda self: recipe)
    if recipe.forward[0].format != "fp32":
        from paribus.techniques.precision import scaling

        monkeypatch.setattr(scaling, "round_to", lambda values, form: values)
    with pytest.raises(NoEffect, match="int8: no product of the training run was rounded"):
        tiny.run(tiny.llama(), Full(), level, max_steps=2)
