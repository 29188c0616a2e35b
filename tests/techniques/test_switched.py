"""One precision first and another later: the same run as each alone where each acts, and no new optimizer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

import tiny
from paribus.machine import Machine
from paribus.plan import levels
from paribus.techniques import Bf16, Fp8, Fp16, Fp32, Full, NoEffect, Setting, Switched
from paribus.train.trainer import AblationTrainer


def level(**given: Any) -> Switched:
    return Switched.model_validate({"first": "fp16", "then": "fp8", "compute": "emulated", **given})


def test_the_first_steps_are_those_of_the_first_level_and_the_next_are_not() -> None:
    whole, first, then = (
        tiny.run(tiny.llama(), Full(), one)
        for one in (level(), Fp16(compute="emulated"), Fp8(compute="emulated"))
    )
    assert whole.losses[:4] == first.losses[:4]
    assert whole.losses[4] != first.losses[4] != then.losses[4]
    assert whole.losses[3] != then.losses[3]
    assert whole.proofs[1]["steps"] == {"first": 4, "then": 4}


def test_from_the_switch_on_it_is_the_second_level_on_the_weights_of_the_first() -> None:
    """The gradient of the fifth step is that of fp8 at the weights that four steps of fp16 left."""
    kept: dict[str, torch.Tensor] = {}

    class Noting(AblationTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            if self.state.global_step == 4:
                kept.update({n: p.detach().clone() for n, p in self.trained.named_parameters()})
            return super().training_step(*given, **named)

    whole = tiny.run(tiny.llama(), Full(), level(), trainer_class=Noting)
    model = tiny.llama()
    model.load_state_dict(kept, strict=False)

    class Fifth(AblationTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            if self.state.global_step == 4:
                with torch.no_grad():
                    for name, parameter in self.trained.named_parameters():
                        parameter.copy_(kept[name])
            return super().training_step(*given, **named)

    second = tiny.run(model, Full(), Fp8(compute="emulated"), trainer_class=Fifth)
    assert second.losses[4] == whole.losses[4]


def test_the_optimizer_goes_on() -> None:
    """Adam's second moments after the switch hold what came before it: a new optimizer's would be smaller."""
    states: list[tuple[int, float]] = []

    class Noting(AblationTrainer):
        def training_step(self, *given: Any, **named: Any) -> Any:
            if self.state.global_step == 4:
                assert self.optimizer is not None
                state = next(iter(self.optimizer.state.values()))
                states.append((int(state["step"]), float(state["exp_avg_sq"].sum())))
            return super().training_step(*given, **named)

    tiny.run(tiny.llama(), Full(), level(), trainer_class=Noting)
    ((steps, moments),) = states
    assert steps == 4
    assert moments > 0


def test_the_proof_has_both_parts() -> None:
    proof = tiny.run(tiny.llama(), Full(), level(at=0.25)).proofs[1]
    assert proof["steps"] == {"first": 2, "then": 6}
    assert proof["first"]["formats"]["gradients"] == "fp16"
    assert proof["then"]["formats"]["gradients"] == "e5m2"
    assert proof["first"]["rounded_products"]["forward"] == 2 * 15
    assert proof["then"]["rounded_products"]["forward"] == 6 * 14


def test_a_part_that_never_runs_is_told() -> None:
    with pytest.raises(NoEffect, match=r"switched: then \(fp8 emulated\) had none of 8 optimizer steps"):
        tiny.run(tiny.llama(), Full(), level(at=0.99))


def test_from_fp32() -> None:
    run = tiny.run(tiny.llama(), Full(), level(first="fp32", then="bf16"))
    plain, low = (tiny.run(tiny.llama(), Full(), one) for one in (Fp32(), Bf16(compute="emulated")))
    assert run.losses[:4] == plain.losses[:4]
    assert run.losses[4:] != plain.losses[4:]
    assert run.losses[:4] != low.losses[:4]
    assert run.proofs[1]["first"] == {"parameter_dtypes": ["float32"]}


def test_words_are_computed_as_the_whole_is() -> None:
    given = {
        "kind": "switched",
        "first": "fp16",
        "then": {"kind": "fp8", "scaling": "row", "compute": "emulated"},
    }
    parsed = levels.parse("precision", given, ())
    assert parsed.compute == parsed.first.compute == "emulated"
    assert parsed.label == "switched emulated fp16 then fp8 row at 0.5"
    assert Switched.model_validate(parsed.model_dump()) == parsed
    with pytest.raises(ValidationError, match="first is native and the switch is emulated"):
        level(first={"kind": "fp16", "compute": "native"})
    with pytest.raises(ValidationError, match="nothing is switched"):
        level(then="fp16")


def test_hardware_does_not_switch() -> None:
    gpu = Machine(device="cuda", name="a GPU", memory_bytes=1, cores=1, compute_capability=(9, 0))
    found = Switched.model_validate({"first": "fp16", "then": "fp8"}).obstacle(
        gpu, Setting(tiny.facts("llama"))
    )
    assert found is not None
    assert "compute: emulated" in found.way_out
