"""What is rounded beside the products of linear layers, in training and where it is scored as trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import Bf16, Fp8, Fp16, Full, Int4, Live, Lora, NoEffect
from paribus.techniques.precision.formats import BF16, E4M3, E5M2, FORMATS, round_to
from paribus.techniques.precision.recipes import Cast, by_role

IDS = torch.arange(3, 15).view(1, 12)


def logits(model: Any) -> torch.Tensor:
    return model(input_ids=IDS).logits.detach()


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, form: Any) -> torch.Tensor:
    """Attend causally with both products on operands rounded without scaling."""
    scores = round_to(q, form) @ round_to(k, form).mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:]).triu(1).bool()
    shares = torch.softmax(scores.masked_fill(later, torch.finfo(scores.dtype).min), -1)
    return round_to(shares, form) @ round_to(v, form)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_attention_is_rounded_in_every_architecture(name: str) -> None:
    model = tiny.MODELS[name]().train()
    plain, rounded = (
        Fp8(compute="emulated", scaling="none", attention=attention) for attention in (False, True)
    )
    found = {}
    for level in (plain, rounded):
        live = Live(seed=0)
        with level.applied(model, live) as changed, torch.no_grad():
            torch.manual_seed(0)  # OPT drops
            found[level.attention] = logits(changed)
        assert live.observed["precision"].products["attention"] == (2 if level.attention else 0)
    assert not torch.equal(found[True], found[False])
    assert model.config._attn_implementation == "sdpa"


def test_its_two_products_are_those_of_rounded_operands() -> None:
    from paribus.techniques.precision.around import _attended
    from paribus.techniques.precision.tally import Tally

    torch.manual_seed(0)
    q, k, v, upstream = (torch.randn(2, 3, 5, 8) for _ in range(4))
    recipe = by_role(Cast("e4m3"), Cast("e4m3"), Cast("e5m2"))
    mine = [x.clone().requires_grad_() for x in (q, k, v)]
    output = _attended(recipe, Tally(), *mine, is_causal=True)
    torch.testing.assert_close(output.detach(), by_hand(q, k, v, E4M3), rtol=1e-5, atol=1e-6)
    output.backward(upstream)
    scores = round_to(q, E4M3) @ round_to(k, E4M3).mT / 8**0.5
    later = torch.ones(5, 5).triu(1).bool()
    shares = torch.softmax(scores.masked_fill(later, -torch.inf), -1)
    of_values = round_to(shares, E4M3).mT @ round_to(upstream, E5M2)
    torch.testing.assert_close(mine[2].grad, of_values, rtol=1e-5, atol=1e-6)
    of_shares = round_to(upstream, E5M2) @ round_to(v, E4M3).mT
    of_scores = shares * (of_shares - (of_shares * shares).sum(-1, keepdim=True)) / 8**0.5
    of_queries = round_to(of_scores, E5M2) @ round_to(k, E4M3)
    torch.testing.assert_close(mine[0].grad, of_queries, rtol=1e-5, atol=1e-6)
    of_keys = round_to(of_scores, E5M2).mT @ round_to(q, E4M3)
    torch.testing.assert_close(mine[1].grad, of_keys, rtol=1e-5, atol=1e-6)


def test_queries_share_keys_where_heads_are_grouped() -> None:
    from paribus.techniques.precision.around import _attended
    from paribus.techniques.precision.tally import Tally

    torch.manual_seed(0)
    q, k, v = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    exact = by_role(*[Cast("fp32")] * 3)
    mask = torch.ones(5, 5).tril().bool()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    found = _attended(exact, Tally(), q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found, expected)


def test_outputs_and_blocks_are_rounded_both_ways() -> None:
    """What a hook sees of outputs, blocks and their gradients is in the format already."""
    model, seen = tiny.llama(), {}
    level = Bf16(compute="emulated", outputs=True, residual=True)
    with level.applied(model, Live(seed=0)) as changed:
        for name in ("model.layers.0", "model.layers.0.mlp.up_proj"):
            module = changed.get_submodule(name)
            module.register_forward_hook(lambda m, i, out, name=name: seen.setdefault(name, out))
        output = changed.train()(input_ids=IDS, labels=IDS)
        output.loss.backward()
    for name, values in seen.items():
        assert torch.equal(round_to(values.detach(), BF16), values.detach()), name


def test_the_gradient_of_an_output_keeps_the_loss_scale() -> None:
    """1e-8 is no number of fp16; times 4096 it is one."""
    from paribus.techniques.precision.around import Ends, Through
    from paribus.techniques.precision.tally import Tally

    values = torch.ones(1, 2, requires_grad=True)
    upstream = torch.tensor([[1e-8, 3e-8]])
    for factor, survive in ((4096.0, True), ("none", False)):
        values.grad = None
        Through.apply(values, Ends("fp16", factor, Tally())).backward(upstream)
        assert bool((values.grad > 0).all()) is survive


def test_scored_as_trained_evaluation_is_rounded_and_counted_nowhere() -> None:
    model, live = tiny.llama(), Live(seed=0)
    level = Int4(compute="emulated", attention=True)
    with level.applied(model, live) as changed:
        training = logits(changed.train())
        products = dict(live.observed["precision"].products)
        exact = logits(changed.eval())
        with level.as_trained(changed, live):
            scored = logits(changed)
        assert torch.equal(logits(changed), exact)
        assert dict(live.observed["precision"].products) == products
    assert torch.equal(scored, training)
    assert not torch.equal(scored, exact)


def test_what_scoring_sees_is_remembered_nowhere() -> None:
    """Delayed scales look back on training alone: reading as trained changes no later step."""

    def run(read: bool) -> list[float]:
        level = Fp8(compute="emulated", scaling="delayed")

        def look(model: Any, live: Live) -> None:
            if read:
                with level.as_trained(model.eval(), live), torch.no_grad():
                    logits(model)
                model.train()

        return tiny.run(tiny.llama(), Full(), level, before=look).losses

    assert run(True) == run(False)


def test_what_is_rounded_and_what_is_not_is_said() -> None:
    level = Fp16(compute="emulated", outputs=True, keep_high=("lm_head",))
    proof = tiny.run(tiny.llama(), Lora(r=16), level, max_steps=3).proofs[1]
    assert proof["modules_skipped"] == {"kept high": 1}
    assert proof["not_rounded"] == ["attention", "residual"]
    assert proof["rounded_products"]["outputs"] > 0
    assert proof["formats"] == dict.fromkeys(("activations", "weights", "gradients"), "fp16")


def test_a_recipe_whose_products_differ_is_written_product_by_product() -> None:
    level = Fp8(recipe="rowwise_with_gw_hp", compute="emulated")
    proof = tiny.run(tiny.llama(), Full(), level, max_steps=2).proofs[1]
    assert proof["products"] == {
        "forward": "activations e4m3 row pow2 x weights e4m3 row pow2",
        "input_gradient": "gradients e4m3 row pow2 x weights e4m3 tensor pow2",
        "weight_gradient": "gradients fp32 x activations fp32",
    }
    assert proof["formats"]["gradients"] == "e4m3, fp32"


def test_errors_above_the_articles_bound_are_warned_of() -> None:
    """Four bits are beyond 5 %, sixteen are not; small numbers are flushed to zero, large ones saturate."""
    four, sixteen = (
        tiny.run(tiny.llama(), Full(), level, max_steps=3).proofs[1]
        for level in (Int4(compute="emulated"), Bf16(compute="emulated"))
    )
    assert any("activations" in warning and "5%" in warning for warning in four["warnings"])
    assert not sixteen["warnings"]
    assert four["share_flushed_to_zero"]["weights"] > 0.05
    assert sixteen.get("share_flushed_to_zero", {}).get("weights", 0) < 0.01


def test_errors_are_told_of_the_measured_steps() -> None:
    proof = tiny.run(tiny.llama(), Full(), Int4(compute="emulated"), max_steps=40).proofs[1]
    trail = proof["rounding_error_at_step"]
    assert list(trail) == ["0", "32"]
    for role, largest in proof["largest_rounding_error"].items():
        assert 0 < max(errors[role] for errors in trail.values()) <= largest * 1.01


def test_shares_of_saturated_and_flushed_numbers_are_those_of_the_operands() -> None:
    from paribus.techniques.precision.scaling import scaled_round
    from paribus.techniques.precision.tally import Tally

    values = torch.tensor([[1000.0, -500.0, 448.0, 1e-9, 0.0, 2.0, 3.0, 4.0]])
    tally, form = Tally(), FORMATS["e4m3"]
    tally.measure("activations", 0, form, values, scaled_round(values, form, "none"))
    assert tally.lost["activations"].tolist() == [2, 1, 8]


def test_asking_for_what_a_model_has_not_is_told() -> None:
    model = tiny.llama()
    model.config._attn_implementation = "eager"
    with (
        pytest.raises(NoEffect, match="attention: true rounds the products of torch's attention"),
        Bf16(compute="emulated", attention=True).applied(model, Live(seed=0)),
    ):
        pass
    assert "forward" not in vars(model.model.layers[0].self_attn.q_proj)
