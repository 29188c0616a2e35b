"""OFT and BOFT: rotations are rotations, more factors mix more inputs, layers that do not fit are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft.tuners.boft import layer as boft
from pydantic import ValidationError
from weight_space import Found, inputs_and_outputs, logits, split_difference

import tiny
from paribus.machine import Machine
from paribus.techniques import Boft, Live, NoEffect, Oft, Setting

CPU = Machine(name="a CPU", memory_bytes=1, cores=1)
WIDTHS = [inputs for inputs, _ in inputs_and_outputs("llama")]
OUTPUTS = sum(outputs for _, outputs in inputs_and_outputs("llama"))
SIZES: dict[str, tuple[Any, int]] = {
    "oft": (Oft(), sum(w // 16 * 16 * 15 // 2 for w in WIDTHS)),
    "oft exact": (Oft(oft_block_size=8, use_cayley_neumann=False), sum(w // 8 * 8 * 7 // 2 for w in WIDTHS)),
    "oft shared": (Oft(oft_block_size=8, block_share=True), len(WIDTHS) * 8 * 7 // 2),
    "boft 1": (Boft(boft_n_butterfly_factor=1), sum(w * 4 for w in WIDTHS) + OUTPUTS),
    "boft": (Boft(), sum(2 * w * 4 for w in WIDTHS) + OUTPUTS),
    "boft 3": (Boft(boft_n_butterfly_factor=3), sum(3 * w * 4 for w in WIDTHS) + OUTPUTS),
}


@pytest.mark.parametrize("case", SIZES)
def test_start_reload_merge_and_base(case: str, tmp_path: Path) -> None:
    tuning, size = SIZES[case]
    found = Found("llama", tuning, tmp_path, learning_rate=3e-3)
    found.check()
    assert found.proof["trainable_parameters"] == size
    assert found.proof["rotation_from_identity"] > 0.01
    assert found.proof["rotation_from_orthogonal"] < (1e-2 if case in ("oft", "oft shared") else 1e-4)


@pytest.mark.parametrize("case", ["oft", "oft exact", "boft"])
def test_a_split_of_the_batch_does_not_matter(case: str) -> None:
    assert split_difference("llama", SIZES[case][0]) < 1e-8


def test_fewer_terms_are_less_orthogonal() -> None:
    few, many = (
        tiny.run(tiny.llama(), Oft(num_cayley_neumann_terms=terms), learning_rate=1e-2).proofs[0]
        for terms in (2, 8)
    )
    assert few["rotation_from_orthogonal"] > 100 * many["rotation_from_orthogonal"]


def test_terms_of_an_exact_inverse_leave_the_identity() -> None:
    exact = Oft(use_cayley_neumann=False)
    assert exact.canonical() == Oft(use_cayley_neumann=False, num_cayley_neumann_terms=9).canonical()
    assert Oft().canonical() != Oft(num_cayley_neumann_terms=9).canonical()


@pytest.mark.parametrize("factors", [1, 2, 3])
def test_each_factor_doubles_the_inputs_that_are_mixed(factors: int) -> None:
    """Random blocks give an orthogonal rotation with 4 * 2^(factors - 1) entries in a row."""
    with Boft(boft_n_butterfly_factor=factors).applied(tiny.llama(), Live(seed=0)) as model:
        layer: Any = model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj")
        torch.nn.init.normal_(layer.boft_R["default"])
        rotation = layer.get_delta_weight("default")[0].detach()
    assert torch.allclose(rotation.T @ rotation, torch.eye(32), atol=1e-5)
    assert ((rotation.abs() > 1e-7).sum(dim=1) == 4 * 2 ** (factors - 1)).all()


def test_the_block_diagonal_product_and_its_gradient() -> None:
    with Boft().applied(tiny.llama(), Live(seed=0)):
        blocks = torch.rand(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
        whole = boft.FastBlockDiag.apply(blocks)
        for index in range(2):
            assert torch.equal(whole[index], torch.block_diag(*blocks[index]))
        assert torch.autograd.gradcheck(boft.FastBlockDiag.apply, blocks)


def test_peft_has_its_own_way_back_also_after_a_failure() -> None:
    before = boft._FBD_CUDA
    with pytest.raises(ZeroDivisionError), Boft().applied(tiny.llama(), Live(seed=0)):
        assert boft._FBD_CUDA is not before
        raise ZeroDivisionError
    assert boft._FBD_CUDA is before


def test_a_bias_is_rounded_at_the_start_of_boft_and_no_more() -> None:
    """peft takes the bias off and adds it again around the scale."""
    model = tiny.opt()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    base = logits(model)
    with Boft().applied(model, Live(seed=0)) as wrapped:
        assert (logits(wrapped) - base).abs().max() < 1e-5
    assert torch.equal(logits(model), base)


@pytest.mark.parametrize("tuning", [Oft(), Boft()], ids=["oft", "boft"])
def test_conv1d_and_widths_that_do_not_fit_are_obstacles(tuning: Any) -> None:
    found = tuning.obstacle(CPU, Setting(tiny.facts("gpt2")))
    assert found is not None
    assert "GPT2LMHeadModel has Conv1D" in found.reason
    with pytest.raises(NoEffect, match="Conv1D"), tuning.applied(tiny.gpt2(), Live(seed=0)):
        pass
    odd = tiny.facts("llama").model_copy(update={"hidden_size": 33})
    assert "33 is no multiple of" in tuning.obstacle(CPU, Setting(odd)).reason
    for name in tiny.MODELS.keys() - {"gpt2"}:
        assert tuning.obstacle(CPU, Setting(tiny.facts(name))) is None


def test_a_layer_that_blocks_cannot_fill_is_told() -> None:
    """Gemma's heads are wider than its width over their number: their output has 48 inputs."""
    with pytest.raises(NoEffect, match="o_proj has inputs whose number 48 is no multiple of 32"):
        Oft(oft_block_size=32).applied(tiny.gemma(), Live(seed=0)).__enter__()


def test_odd_blocks_have_no_butterfly() -> None:
    with pytest.raises(ValidationError, match="boft_block_size 3 must be even"):
        Boft(boft_block_size=3)
