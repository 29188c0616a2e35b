"""Which attention kernel ran is read from the operations themselves, and watching changes nothing."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import tiny
from paribus.train.kernels import NOT_FUSED, attention_seen

IDS = torch.arange(3, 13).reshape(2, 5)


def test_a_run_says_which_kernel_its_attention_ran_in() -> None:
    assert tiny.run(tiny.llama()).trained.resolved["attention_kernel"] == "flash_attention_for_cpu"
    eager = tiny.llama()
    eager.set_attn_implementation("eager")
    assert tiny.run(eager).trained.resolved["attention_kernel"] == NOT_FUSED


def test_what_torch_chooses_is_seen_and_not_what_was_asked_for() -> None:
    """The implementation is sdpa both times."""
    found = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        model = tiny.llama().train()
        with sdpa_kernel(backend), attention_seen(model) as seen:
            model(input_ids=IDS)
        found[backend] = str(seen)
    assert found == {SDPBackend.FLASH_ATTENTION: "flash_attention_for_cpu", SDPBackend.MATH: NOT_FUSED}


def test_scoring_before_training_is_not_taken_for_it() -> None:
    model = tiny.llama().eval()
    with attention_seen(model) as seen:
        model(input_ids=IDS)
        assert not seen.watched
        model.train()(input_ids=IDS)
    assert (seen.watched, str(seen)) == (True, "flash_attention_for_cpu")


def test_watching_ends_with_the_pass_also_where_it_fails() -> None:
    model = tiny.llama().train()
    with attention_seen(model), pytest.raises(IndexError):
        model(input_ids=IDS + tiny.VOCABULARY)
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not model._forward_hooks and not model._forward_pre_hooks
