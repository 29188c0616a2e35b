"""What inference costs: all variants in turns, the base without its adapter, and the model left as it was."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from paribus.errors import ParibusError
from paribus.plan.scoring import InferenceCost
from paribus.score import inference, tasks, variants
from paribus.score.blocks import Blocks
from paribus.score.subject import Subject
from paribus.techniques import (
    Adapter,
    AnyPeft,
    BitFit,
    Full,
    Ia3,
    Live,
    Lora,
    PrefixTuning,
    PromptTuning,
    PTuning,
    QLora,
)
from paribus.techniques.tuning.saved import quiet
from paribus.train.classifier import Classifier

SETTING = InferenceCost(batch_size=2, prompt_tokens=6, new_tokens=4, repeats=3)
ADDED = {
    "lora": Lora(r=4),
    "dora": Lora(r=2, use_dora=True),
    "head": Lora(r=2, target_modules=("q_proj", "lm_head")),
    "qlora": QLora(r=2),
    "ia3": Ia3(),
    "loha": AnyPeft(method="LoHaConfig"),
    "norms": AnyPeft(method="LNTuningConfig"),
    "adaption": AnyPeft(method="AdaptionPromptConfig", settings={"adapter_len": 3, "adapter_layers": 2}),
    "houlsby": Adapter(bottleneck=4),
    "parallel": Adapter(placement="parallel", bottleneck=4),
    "prompt": PromptTuning(num_virtual_tokens=5),
    "prefix": PrefixTuning(num_virtual_tokens=5),
    "p_tuning": PTuning(num_virtual_tokens=5),
}
NOT_MERGING = ("head", "adaption", "houlsby", "parallel", "prompt", "prefix", "p_tuning")
VIRTUAL = ("prompt", "prefix", "p_tuning")
IDS = torch.arange(3, 23).view(2, 10)


def subject(model: Any, step: int = 8, **more: Any) -> Subject:
    return Subject(model.eval(), tokenizer=None, base=Path(), step=step, blocks=Blocks(), **more)


def moved(model: Any) -> Any:
    """Move what trains, so that an adapter does something."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=torch.ones_like(IDS)).logits[:, -10:]


def figure(scored: Any, variant: str, metric: str) -> Any:
    (one,) = [f for f in scored.figures if (f.task, f.metric) == (variant, metric)]
    return one


@pytest.mark.parametrize("name", ADDED)
def test_base_and_model_take_turns_and_the_model_is_left_as_it_was(name: str) -> None:
    method, base = ADDED[name], tiny.llama().eval()
    with method.applied(base, Live(seed=0)) as model:
        before = logits(moved(model))
        scored = tasks.score(SETTING, subject(model))
        assert torch.equal(logits(model), before)
    assert list(dict.fromkeys(f.task for f in scored.figures)) == ["base", "unmerged"]
    order = [(row["repeat"], row["variant"]) for row in scored.items]
    assert order == [(0, "base"), (0, "unmerged"), (1, "unmerged"), (1, "base"), (2, "base"), (2, "unmerged")]
    assert figure(scored, "unmerged", "virtual_tokens").value == 5 * (name in VIRTUAL)


@pytest.mark.parametrize("name", ADDED)
def test_the_base_alone_is_the_base(name: str) -> None:
    """Its logits are those from before, bit for bit, and it holds no byte of the adapter."""
    method, plain = ADDED[name], tiny.llama().eval()
    with method.applied(tiny.llama(), Live(seed=0)) as model:
        tuned = logits(moved(model))
        wanted = logits(plain) if name != "qlora" else None
        with variants.base_alone(model) as base:
            assert wanted is None or torch.equal(logits(base), wanted)
            assert not [m for m in base.modules() if hasattr(m, "base_layer")]
            names = [path for path, _ in base.named_parameters()]
        assert not any("lora" in path or "bottleneck" in path for path in names)
        assert torch.equal(logits(model), tuned)
        assert wanted is None or not torch.equal(tuned, wanted)


@pytest.mark.parametrize("name", ADDED)
def test_the_merged_model_takes_its_turns_where_it_can_be(name: str) -> None:
    method = ADDED[name]
    calls = []

    def merged() -> Any:
        calls.append(1)
        return method.merged(model)

    with method.applied(tiny.llama(), Live(seed=0)) as model:
        scored = tasks.score(SETTING, subject(moved(model), merged=merged))
    assert calls == [1]
    turns = [row["variant"] for row in scored.items]
    if name in NOT_MERGING:
        assert set(turns) == {"base", "unmerged"}
        assert scored.warnings == ("the update cannot be merged: there are no figures of the merged model",)
    else:
        assert turns[:6] == ["base", "unmerged", "merged", "unmerged", "merged", "base"]
        assert scored.warnings == ()


def test_without_room_for_a_copy_the_merged_model_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_free", lambda device: 0)
    method = Lora(r=4)
    with method.applied(tiny.llama(), Live(seed=0)) as model:
        scored = tasks.score(SETTING, subject(moved(model), merged=lambda: method.merged(model)))
    assert [row["variant"] for row in scored.items][-3:] == ["merged"] * 3
    assert "merged was timed after the others" in scored.warnings[0]
    assert figure(scored, "merged", "prefill_ratio_to_base").n == 3


def test_figures_are_medians_of_the_items_and_ratios_are_taken_in_a_round() -> None:
    with Lora(r=4).applied(tiny.llama(), Live(seed=0)) as model:
        scored = tasks.score(SETTING, subject(model))
    times: dict[str, Any] = {
        name: [row["decode_ms_per_token"] for row in scored.items if row["variant"] == name]
        for name in ("base", "unmerged")
    }
    decode = figure(scored, "unmerged", "decode_ms_per_token")
    assert decode.value == pytest.approx(statistics.median(times["unmerged"]))
    assert (decode.n, decode.unit, decode.higher_is_better, decode.step) == (3, "ms", False, 8)
    rate = figure(scored, "unmerged", "decode_tokens_per_second")
    assert rate.value == pytest.approx(2 * 1000 / decode.value)
    assert rate.higher_is_better
    ratios = [mine / base for mine, base in zip(times["unmerged"], times["base"], strict=True)]
    assert figure(scored, "unmerged", "decode_ratio_to_base").value == pytest.approx(
        statistics.median(ratios)
    )
    assert figure(scored, "base", "decode_ratio_to_base").value == 1
    assert figure(scored, "base", "decode_ratio_to_base").standard_error == 0


def test_a_slower_adapter_shows_in_the_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is replaced by one that counts calls of linear layers, so the ratio is exact."""
    ticks = 0
    with Lora(r=4, target_modules=("q_proj",)).applied(tiny.llama(), Live(seed=0)) as model:

        def tick(*_: Any) -> None:
            nonlocal ticks
            ticks += 1

        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(tick)
        monkeypatch.setattr(inference.time, "perf_counter", lambda: float(ticks))
        scored = tasks.score(SETTING, subject(model))
    layers = 2 * 7 + 1
    assert figure(scored, "base", "prefill_ms").value == 1e3 * layers
    assert figure(scored, "unmerged", "decode_ratio_to_base").value == pytest.approx((layers + 4) / layers)


@pytest.mark.parametrize("name", ["lora", *VIRTUAL])
def test_the_cache_serves_decoding_behind_virtual_tokens_too(name: str) -> None:
    """Prefill reads the prompt, each step after it one token; virtual tokens are read once."""
    read: list[tuple[int, int]] = []
    base = tiny.llama()
    with ADDED[name].applied(base, Live(seed=0)) as model:

        def note(_: Any, args: Any, kwargs: Any) -> None:
            cache = kwargs.get("cache", kwargs.get("past_key_values"))
            read.append((args[0].shape[1], cache.get_seq_length()))

        hook = base.model.layers[0].register_forward_pre_hook(note, with_kwargs=True)
        with quiet():
            inference._measured(model.eval(), IDS[:, :6], 4, 0)
        hook.remove()
    before = 5 if name == "prefix" else 0
    first = 6 + 5 * (name in ("prompt", "p_tuning"))
    start = before + first
    assert read == [(first, before), *((1, start + step) for step in range(4))]


@pytest.mark.parametrize("name", ADDED)
def test_what_is_decoded_through_the_cache_is_what_the_model_says(name: str) -> None:
    """Greedy tokens are those of a pass over the whole text without a cache."""
    whole = IDS[:, :6]
    with ADDED[name].applied(tiny.llama(), Live(seed=0)) as model, quiet(), torch.no_grad():
        reader, cache, token = moved(model), None, whole
        for _ in range(4):
            token, cache = inference._step(reader, token, cache)
            wanted = model(input_ids=whole, attention_mask=torch.ones_like(whole)).logits[:, -1:].argmax(-1)
            assert torch.equal(token, wanted)
            reader, whole = variants.decoder(model), torch.cat([whole, wanted], 1)


def test_bytes_are_those_of_base_and_adapter() -> None:
    with Lora(r=4, target_modules=("q_proj",)).applied(tiny.llama(), Live(seed=0)) as model:
        scored = tasks.score(SETTING, subject(model))
    base, ours = (figure(scored, variant, "held_bytes").value for variant in ("base", "unmerged"))
    assert ours - base == 2 * 4 * 4 * (32 + 32)  # two layers, rank 4, A and B in fp32


@pytest.mark.parametrize("method", [Full(), BitFit()])
def test_own_weights_cost_what_the_base_costs(method: Any) -> None:
    make = tiny.llama if isinstance(method, Full) else tiny.gpt2
    with method.applied(make(), Live(seed=0)) as model:
        scored = tasks.score(SETTING, subject(model))
    assert {f.task for f in scored.figures} == {"unmerged"}
    assert figure(scored, "unmerged", "prefill_ratio_to_base").value == 1
    assert "by construction" in scored.warnings[0]


def test_before_training_there_is_the_base_alone() -> None:
    scored = tasks.score(SETTING, subject(tiny.llama(), step=0))
    assert {f.task for f in scored.figures} == {"base"}
    assert {f.step for f in scored.figures} == {0}
    assert tasks.check(SETTING, Path()) == ""


def test_prompts_follow_the_seed_alone() -> None:
    one, same, other = (
        inference._prompts(SETTING, subject(tiny.llama(model), seed=seed))
        for model, seed in ((0, 1), (1, 1), (0, 2))
    )
    assert one.shape == (2, 6)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_what_the_context_cannot_hold_is_an_error() -> None:
    with PromptTuning(num_virtual_tokens=5).applied(tiny.llama(), Live(seed=0)) as model:
        setting = InferenceCost(prompt_tokens=40, new_tokens=20)
        with pytest.raises(ParibusError, match="more than the 64 tokens") as caught:
            tasks.score(setting, subject(model))
    assert "59 together" in str(caught.value)


def test_a_classifier_writes_no_text() -> None:
    model = Classifier(tiny.llama(), 3, "none", 0)
    with pytest.raises(ParibusError, match="decoding cannot be timed"):
        tasks.score(SETTING, subject(model))
