"""LoRA: its start, size, scale and learning rates, dropout by example, DoRA's norms, PiSSA's split."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from weight_space import Found, inputs_and_outputs, logits, split_difference, start_of

import tiny
from paribus.techniques import Live, Lora, NoEffect, Technique
from paribus.techniques.tuning import peft_tuner, pissa
from paribus.techniques.tuning.weights import digests
from paribus.train.trainer import AblationTrainer

VARIANTS = {
    "dropout": Lora(r=4, lora_dropout=0.2),
    "rslora": Lora(r=4, use_rslora=True),
    "dora": Lora(r=4, use_dora=True, lora_dropout=0.1),
    "pissa": Lora(r=4, init_lora_weights="pissa"),
    "pissa dora": Lora(r=4, init_lora_weights="pissa", use_dora=True),
    "both_random": Lora(r=4, init_lora_weights="both_random"),
    "loraplus": Lora(r=4, loraplus_lr_ratio=8),
}


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        *((variant, "llama") for variant in VARIANTS),
        ("dora", "gpt2"),
        ("pissa", "gpt2"),
        ("both_random", "gpt2"),
    ],
)
def test_start_reload_merge_and_base(variant: str, name: str, tmp_path: Path) -> None:
    found = Found(name, lora := VARIANTS[variant], tmp_path)
    found.check(exact_start=lora.init_lora_weights == "default")
    norms = sum(out for _, out in inputs_and_outputs(name)) if lora.use_dora else 0
    assert found.proof["trainable_parameters"] == 4 * sum(map(sum, inputs_and_outputs(name))) + norms
    assert found.proof["layers_adapted"] == len(inputs_and_outputs(name))


@pytest.mark.parametrize("variant", ["dora", "pissa", "loraplus"])
def test_a_split_of_the_batch_does_not_matter(variant: str) -> None:
    assert split_difference("llama", VARIANTS[variant]) < 1e-8


def test_feed_forward_layers_without_rows_drop_by_example_too() -> None:
    """OPT flattens rows and tokens before its feed-forward layers."""
    assert split_difference("opt", Lora(r=4, lora_dropout=0.2, target_modules=("fc1", "fc2"))) < 1e-8


class ByBatch(Lora):
    """A planted fault: dropout is torch's own, drawn for the whole batch."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with super().applied(model, live) as wrapped:
            for _, layer in peft_tuner.adapted(wrapped):
                layer.lora_dropout["default"].forward = lambda x: torch.nn.functional.dropout(x, 0.2)
            yield wrapped

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        return {}


def test_the_law_catches_a_dropout_that_is_drawn_by_batch() -> None:
    assert split_difference("llama", ByBatch(r=4, lora_dropout=0.2), steps=2) > 1e-6


def test_dropout_has_its_rate_and_is_absent_in_evaluation() -> None:
    def evaluates_alike(model: Any, live: Live) -> None:
        assert torch.equal(logits(model), logits(model))

    run = tiny.run(tiny.llama(), Lora(r=4, lora_dropout=0.3), after=evaluates_alike)
    assert run.proofs[0]["inputs_dropped"] == pytest.approx(0.3, abs=0.02)
    assert run.losses != tiny.run(tiny.llama(), Lora(r=4)).losses


def test_the_scale_is_read_from_the_layers() -> None:
    rooted = Lora(r=8, use_rslora=True)
    assert tiny.run(tiny.llama(), Lora(r=4), max_steps=2).proofs[0]["scaling"] == 16 / 4
    assert tiny.run(tiny.llama(), rooted, max_steps=2).proofs[0]["scaling"] == 16 / math.sqrt(8)


def test_settings_without_effect_leave_the_identity() -> None:
    plain = Lora().canonical()
    assert plain == {"kind": "lora", "r": 8, "lora_alpha": 16, "target_modules": "all-linear"}
    assert Lora(lora_dropout=0, loraplus_lr_ratio=1, use_dora=False).canonical() == plain
    assert Lora(r=1, use_rslora=True).canonical() == Lora(r=1).canonical()
    assert Lora(use_rslora=True).canonical() == {**plain, "use_rslora": True}


class Rates(AblationTrainer):
    """Keeps the learning rate of every parameter after each step."""

    seen: list[dict[str, float]]

    def log(self, *args: Any, **kwargs: Any) -> None:
        names = {parameter: name for name, parameter in self.model.named_parameters()}  # type: ignore[union-attr]
        groups = self.optimizer.param_groups  # type: ignore[union-attr]
        self.seen.append({names[p]: group["lr"] for group in groups for p in group["params"]})
        super().log(*args, **kwargs)


def test_the_rate_of_b_is_a_multiple_of_that_of_a_at_every_step() -> None:
    Rates.seen = []
    run = tiny.run(tiny.llama(), Lora(r=4, loraplus_lr_ratio=8), trainer_class=Rates)
    assert run.proofs[0]["learning_rate_ratio"] == {"8.0": 14}
    for rates in Rates.seen[1:]:
        assert len(rates) == 28
        for name in rates:
            other = name.replace("lora_B", "lora_A")
            assert rates[name] == pytest.approx(rates[other] * (8 if "lora_B" in name else 1))


def test_dora_trains_a_norm_for_each_output() -> None:
    run = tiny.run(tiny.llama(), Lora(r=4, use_dora=True))
    assert run.proofs[0]["dora_norms"] == 14
    assert run.proofs[0]["dora_norms_moved"] > 1e-4
    start = start_of(Lora(r=4, use_dora=True), tiny.llama())
    name = "base_model.model.model.layers.0.mlp.up_proj.lora_magnitude_vector.default.weight"
    weight = tiny.llama().model.layers[0].mlp.up_proj.weight
    assert torch.allclose(start[name], weight.norm(dim=1))


class Fixed(Lora):
    """A planted fault: DoRA's norms are frozen."""

    @contextmanager
    def applied(self, model: Any, live: Live) -> Iterator[Any]:
        with super().applied(model, live) as wrapped:
            for name, parameter in wrapped.named_parameters():
                parameter.requires_grad_(parameter.requires_grad and "magnitude" not in name)
            yield wrapped


def test_norms_that_do_not_move_are_told() -> None:
    with pytest.raises(NoEffect, match="no norm moved"):
        tiny.run(tiny.llama(), Fixed(r=4, use_dora=True), max_steps=2)


def test_pissa_takes_the_largest_singular_values_out_of_the_base() -> None:
    whole = torch.linalg.svdvals(tiny.llama().model.layers[0].mlp.up_proj.weight.detach())
    with Lora(r=4, init_lora_weights="pissa").applied(tiny.llama(), Live(seed=0)) as model:
        layer = model.get_submodule("base_model.model.model.layers.0.mlp.up_proj")
        rest = torch.linalg.svdvals(layer.get_base_layer().weight)
        taken = torch.linalg.svdvals(layer.get_delta_weight("default").detach())
    assert torch.allclose(taken[:4], whole[:4], atol=1e-5)
    assert torch.allclose(rest[: len(whole) - 4], whole[4:], atol=1e-5)


def test_pissa_starts_at_the_base_but_for_rounding() -> None:
    proof = tiny.run(tiny.llama(), Lora(init_lora_weights="pissa"), max_steps=2).proofs[0]
    assert proof["start_error_over_weight"] < 1e-6
    assert 0.5 < proof["start_update_over_weight"] < 1


def test_pissa_leaves_a_tied_embedding_whole() -> None:
    model = tiny.llama()
    before = digests(model)
    with Lora(r=4, init_lora_weights="pissa", target_modules=("lm_head",)).applied(
        model, Live(seed=0)
    ) as wrapped:
        head = wrapped.get_submodule("base_model.model.lm_head")
        assert head.get_base_layer().weight is not model.get_input_embeddings().weight
        assert digests(model)["model.embed_tokens.weight"] == before["model.embed_tokens.weight"]
    assert digests(model) == before
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_a_tied_head_is_not_merged_into_the_embedding() -> None:
    with Lora(r=4, target_modules=("lm_head",)).applied(tiny.llama(), Live(seed=0)) as wrapped:
        assert Lora().merged(wrapped) is None


def test_pissa_needs_r_singular_values() -> None:
    model = tiny.llama()
    before = digests(model)
    lora = Lora(r=17, init_lora_weights="pissa")  # keys and values have 16 outputs
    with pytest.raises(NoEffect, match="k_proj is a 16x32 matrix"), lora.applied(model, Live(seed=0)):
        pass
    assert digests(model) == before


def test_the_law_catches_a_base_that_is_not_put_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A planted fault: the rest is written over the base's own weight, as peft does."""

    def over(layer: Any) -> None:
        start = layer.scaling["default"] * layer.pissa["b"] @ layer.pissa["a"]
        layer.get_base_layer().weight.data -= start

    monkeypatch.setattr(pissa, "_take_out", over)
    with pytest.raises(AssertionError):
        Found("llama", Lora(r=4, init_lora_weights="pissa"), tmp_path).check(exact_start=False)


def test_both_random_starts_elsewhere_and_says_how_far() -> None:
    proof = tiny.run(tiny.llama(), Lora(init_lora_weights="both_random"), max_steps=2).proofs[0]
    assert proof["start_update_over_weight"] > 1
    one, other = (start_of(Lora(r=4, init_lora_weights=w), tiny.llama()) for w in ("default", "both_random"))  # type: ignore[arg-type]
    for name, value in other.items():
        assert torch.equal(value, one[name]) == ("lora_A" in name)
        assert value.abs().max() > 0


@pytest.mark.parametrize("tuning", VARIANTS.values(), ids=VARIANTS)
def test_a_start_depends_on_layer_names_and_seed_alone(tuning: Technique) -> None:
    every = start_of(tuning, tiny.llama())
    some = start_of(tuning.model_copy(update={"target_modules": ("v_proj", "down_proj")}), tiny.llama())
    assert all(torch.equal(every[name], value) for name, value in some.items())
    assert len(some) < len(every)
