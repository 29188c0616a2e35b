"""How far our emulated 8-bit training is from torchao's: loss and all gradients of one step.

`python benchmarks/emulation/against_torchao.py` needs `pip install torchao`, which nothing else here does. It
computes one forward and backward pass of two models under three recipes with `Float8Linear` and
`emulate=True`, and with ours; it writes `torchao.json`: the figures of both models, and of the smaller one
torchao's own numbers, which the tests hold ours against.
"""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from paribus.techniques import Live
from paribus.techniques.precision.emulate import Options, emulated
from paribus.techniques.precision.recipes import by_role, fp8

HERE = Path(__file__).parent
POWERS = "tensorwise, scales powers of two"
"""No recipe of either: it tells a difference in a scale's last digit from one in what is rounded where."""
RECIPES = ("tensorwise", POWERS, "rowwise", "rowwise_with_gw_hp")
DIGITS = 7


class Small(torch.nn.Module):
    """Two linear layers with a gated middle: 64 rows of 16 in, a squared error out."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16, bias=False)
        draw = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw) / parameter.shape[-1] ** 0.5
        self.rows = torch.randn(64, 16, generator=draw) * torch.logspace(-2, 2, 64).unsqueeze(1)
        self.wanted = torch.randn(64, 16, generator=draw)

    def loss(self) -> torch.Tensor:
        return (self.down(torch.nn.functional.silu(self.up(self.rows))) - self.wanted).square().mean()

    def get_output_embeddings(self) -> None:
        """There is no head to leave alone."""


def llama() -> Any:
    """Two layers of width 128 with random weights; a loss over 4 x 32 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).train()
    ids = torch.randint(0, 256, (4, 32), generator=torch.Generator().manual_seed(1))
    model.loss = lambda: model(input_ids=ids, labels=ids).loss
    return model


def measured(model: Any) -> dict[str, torch.Tensor]:
    """Return the loss and the gradients of a model by name."""
    model.zero_grad(set_to_none=True)
    loss = model.loss()
    loss.backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach()} | found


def ours(model: Any, name: str) -> dict[str, torch.Tensor]:
    """Measure under one of our recipes."""
    recipe = fp8(name.partition(",")[0], "tensor")
    if name == POWERS:
        left, right, moving = (
            replace(c, power_of_two=True) for c in (*recipe.forward, recipe.input_gradient[0])
        )
        recipe = by_role(left, right, moving)
    with emulated(name, model, Live(seed=0), recipe, Options(hardware_shapes=True)) as changed:
        return measured(changed)


def theirs(model: Any, recipe: str) -> dict[str, torch.Tensor]:
    """Measure under torchao's recipe of the same name, emulated."""
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = replace(Float8LinearConfig.from_recipe_name(recipe.partition(",")[0]), emulate=True)
    if recipe == POWERS:
        config = replace(config, round_scales_to_power_of_2=True)
    head = model.get_output_embeddings()
    convert_to_float8_training(model, config=config, module_filter_fn=lambda module, _: module is not head)
    return measured(model)


def apart(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the relative difference of losses and the largest one of a gradient, by norms."""
    gradients = [float((one[n] - other[n]).norm() / other[n].norm()) for n in other if n != "loss"]
    return {"loss": abs(float(one["loss"] / other["loss"]) - 1), "gradients": max(gradients)}


def main() -> None:
    """Compare, print and write."""
    rows, reference = [], {}
    for name, make in {"two linear layers": Small, "llama of width 128": llama}.items():
        exact = measured(make())
        for recipe in RECIPES:
            mine, other = ours(make(), recipe), theirs(make(), recipe)
            rows.append(
                {"model": name, "recipe": recipe, **apart(mine, other), "rounding": apart(other, exact)}
            )
            print(rows[-1])
            if make is Small:
                reference[recipe] = {
                    key: [float(f"{x:.{DIGITS}g}") for x in value.flatten().tolist()]
                    for key, value in other.items()
                }
    content = {"torchao": version("torchao"), "torch": version("torch").partition("+")[0], "rows": rows}
    text = json.dumps(content | {"reference": reference}, separators=(",", ":"))
    (HERE / "torchao.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
