"""What divides a loss, what becomes of leftovers, in what gradients are summed, and what the proof says."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy
from transformers import TrainerCallback

import tiny
from paribus.plan.trial import Training
from paribus.techniques import Accumulation, Full, Live, NoEffect
from paribus.train.data import Encoded
from paribus.train.order import epoch_order
from paribus.train.session import optimizer_steps
from paribus.train.trainer import AblationTrainer


class Watched(AblationTrainer):
    """Keeps the whole gradient of each optimizer step of the last run."""

    gradients: list[torch.Tensor]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        Watched.gradients = []
        self.add_callback(_Keep())


class _Keep(TrainerCallback):
    def on_pre_optimizer_step(self, *_: Any, model: torch.nn.Module, **__: Any) -> None:
        parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        Watched.gradients.append(torch.cat(parts).clone())


STILL = {"optimizer": "sgd", "learning_rate": 1e-30, "max_grad_norm": 0}
"""A learning rate that changes no weight, so that every gradient is of the same weights."""


def gradients(accumulation: Accumulation, model: Any = None, **training: Any) -> list[torch.Tensor]:
    """Return the gradient of each optimizer step, all from the first weights."""
    tiny.run(model or tiny.llama(), Full(), accumulation, trainer_class=Watched, **{**STILL, **training})
    return Watched.gradients


def by_hand(batches: list[list[Encoded]], divisor: int) -> torch.Tensor:
    """Return the gradient of the sum of the micro-batches' mean losses over a divisor."""
    model = tiny.llama()
    total = torch.tensor(0.0)
    for batch in batches:
        summed, count = torch.tensor(0.0), 0
        for row in batch:
            logits = model(input_ids=torch.tensor([row.input_ids])).logits[0, :-1]
            labels = torch.tensor(row.labels[1:])
            summed = summed + cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
            count += row.targets
        total = total + summed / count / divisor
    total.backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def micro_batches(rows: list[Encoded], size: int) -> list[list[Encoded]]:
    """Split the first epoch of seed 0."""
    order = epoch_order(0, 0, [row.example_id for row in rows])
    return [[rows[i] for i in order[start : start + size]] for start in range(0, len(rows), size)]


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return ((one - other).norm() / other.norm()).item()


@pytest.mark.parametrize("leftover", ["exact", "unscaled"])
def test_the_mean_of_means_is_that_of_the_listing(leftover: Any) -> None:
    """Twenty rows by twos, four a window: the third has two micro-batches, divided by two or by four."""
    rows = tiny.rows(20)
    chosen = Accumulation(steps=4, normalise="micro_batches", leftover=leftover)
    first, second, last = gradients(chosen, examples=rows, max_steps=3)
    split = micro_batches(rows, 2)
    assert relative(first, by_hand(split[:4], 4)) < 1e-5
    assert relative(second, by_hand(split[4:8], 4)) < 1e-5
    assert relative(last, by_hand(split[8:], 2 if leftover == "exact" else 4)) < 1e-5


def test_an_unscaled_leftover_is_too_small_by_the_share_that_is_missing() -> None:
    rows = tiny.rows(20)
    exact, unscaled = (
        gradients(
            Accumulation(steps=4, normalise="micro_batches", leftover=leftover), examples=rows, max_steps=3
        )
        for leftover in ("exact", "unscaled")
    )
    assert torch.equal(exact[0], unscaled[0])
    assert torch.equal(exact[2], 2 * unscaled[2])


def test_the_mean_of_means_is_far_from_the_token_mean_and_depends_on_the_split() -> None:
    """On these lengths by 9, 19 and 85 % of the gradient, for halves, quarters and eighths."""
    whole = gradients(Accumulation())[0]
    errors = [
        relative(gradients(Accumulation(steps=k, normalise="micro_batches"))[0], whole) for k in (2, 4, 8)
    ]
    assert errors == pytest.approx([0.094, 0.186, 0.852], rel=0.05)


def test_a_micro_batch_without_targets_divides_by_no_zero() -> None:
    live = Live(seed=0, targets=0, step_targets=6, window=4, observed={})
    accumulation = Accumulation(steps=4, normalise="micro_batches")
    with accumulation.applied(tiny.llama(), live):
        assert accumulation.divisor(live) == 4
        live.targets = 3
        assert accumulation.divisor(live) == 12
        live.window = 2
        assert accumulation.divisor(live) == 6
        unscaled = Accumulation(steps=4, normalise="micro_batches", leftover="unscaled")
        assert unscaled.divisor(live) == 12
        assert Accumulation(steps=4).divisor(live) is None


def test_an_epoch_has_as_many_optimizer_steps_as_windows_whole_or_not() -> None:
    """Schedule and count agree on ceil(20 / 8) steps an epoch, under either treatment of the last window."""
    rows, training = tiny.rows(20), Training(effective_batch_size=8, epochs=2, warmup_steps=0)
    assert optimizer_steps(training, len(rows)) == 6
    for chosen in (
        Accumulation(steps=4),
        Accumulation(steps=4, normalise="micro_batches"),
        Accumulation(steps=4, normalise="micro_batches", leftover="unscaled"),
    ):
        run = tiny.run(tiny.llama(), Full(), chosen, examples=rows, epochs=2, warmup_steps=0)
        rates = [row["learning_rate"] for row in run.trained.curve]
        assert rates == pytest.approx([1e-3 * (6 - step) / 6 for step in range(6)])
        assert run.trained.counts.optimizer_steps == run.trained.resolved["steps"] == run.live.steps == 6


def bf16_error(steps: int) -> float:
    """Return the relative error of eight gradients summed in bfloat16, against float32."""
    single, half = (
        torch.cat(gradients(Accumulation(steps=steps, gradient_dtype=dtype), effective_batch_size=16))
        for dtype in ("float32", "bfloat16")
    )
    return relative(half, single)


def test_sums_in_bfloat16_err_by_so_much_and_by_more_with_more_micro_batches() -> None:
    """Each rounding errs by up to 2^-9 of a value, and a running sum is rounded once a micro-batch."""
    one, four, sixteen = (bf16_error(steps) for steps in (1, 4, 16))
    assert 1.4e-3 < one < 2e-3
    assert 2.2e-3 < four < 3.3e-3
    assert 3.5e-3 < sixteen < 5.5e-3


def test_what_is_summed_in_bfloat16_is_a_number_of_bfloat16_and_of_the_same_sum() -> None:
    """It equals sums of parameters that are stored in bfloat16, added up by hand."""
    model, chosen = tiny.llama(), Accumulation(steps=3, gradient_dtype="bfloat16")
    live = Live(seed=0)
    parameter = model.model.norm.weight
    parts = [torch.randn(32) for _ in range(3)]
    with chosen.applied(model, live):
        for part in parts:
            (parameter * part).sum().backward()
        summed = parameter.grad
    by_itself = torch.zeros(32, dtype=torch.bfloat16)
    for part in parts:
        by_itself += part.to(torch.bfloat16)
    assert torch.equal(summed, by_itself.float())
    parameter.grad = None
    (parameter * parts[0]).sum().backward()
    assert torch.equal(parameter.grad, parts[0])  # the hooks are gone


def test_hooks_go_after_an_exception_and_frozen_parameters_get_none() -> None:
    model = tiny.llama()
    model.model.norm.weight.requires_grad_(False)
    with (
        pytest.raises(ValueError, match="stop"),
        Accumulation(gradient_dtype="bfloat16").applied(model, Live(seed=0)),
    ):
        assert not model.model.norm.weight._backward_hooks
        assert model.model.embed_tokens.weight._backward_hooks
        raise ValueError("stop")
    assert not any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters())


@pytest.mark.parametrize(
    ("stored", "read"),
    [(torch.float32, "float32"), (torch.bfloat16, "bfloat16"), (torch.float64, "float64")],
)
def test_the_dtype_is_read_from_the_gradients_and_not_from_the_setting(stored: Any, read: str) -> None:
    run = tiny.run(tiny.llama(dtype=stored), Full(), Accumulation(steps=2), max_steps=2)
    assert run.proofs[1]["gradients_summed_in"] == [read]


def test_the_proof_tells_of_windows_weights_and_roundings() -> None:
    """Twenty rows by micro-batches of two, four a step: two steps of four and one of two in an epoch."""
    chosen = {"steps": 4, "examples": tiny.rows(20), "epochs": 2}

    def proof(**settings: Any) -> dict[str, Any]:
        accumulation = Accumulation(steps=4, **settings)
        return tiny.run(tiny.llama(), Full(), accumulation, examples=chosen["examples"], epochs=2).proofs[1]

    plain = proof()
    assert plain == {
        "optimizer_steps_by_micro_batches": {"2": 2, "4": 4},
        "normalised_by": "tokens",
        "incomplete_windows": 2,
        "gradients_summed_in": ["float32"],
    }
    means = proof(normalise="micro_batches", leftover="unscaled")
    assert (means["leftover"], means["incomplete_windows"]) == ("unscaled", 2)
    least, greatest = means["target_weights"]
    assert 0.1 < least < 1 < greatest < 5
    half = proof(gradient_dtype="bfloat16")
    assert (half["gradients_summed_in"], half["gradients_stored_as"]) == (["bfloat16"], ["float32"])
    assert 2**-11 < half["rounding_error"] < 2**-8


def equal_rows(count: int) -> list[Encoded]:
    ids = (5, 6, 7, 8)
    return [Encoded(f"equal{n}", ids, (-100, -100, 7, 8), False, False) for n in range(count)]


@pytest.mark.parametrize(
    ("settings", "training", "reason"),
    [
        ({"steps": 4}, {"examples": tiny.rows(2), "effective_batch_size": 4}, "was made of 4 micro-batches"),
        (
            {"steps": 4, "normalise": "micro_batches", "leftover": "unscaled"},
            {"examples": tiny.rows(24)},
            "every window was complete",
        ),
        (
            {"steps": 4, "normalise": "micro_batches"},
            {"examples": equal_rows(24)},
            "equally many targets",
        ),
        ({"steps": 4, "gradient_dtype": "bfloat16"}, {"dtype": torch.bfloat16}, "stored as bfloat16"),
    ],
)
def test_what_changed_nothing_is_told(
    settings: dict[str, Any], training: dict[str, Any], reason: str
) -> None:
    model = tiny.llama(dtype=training.pop("dtype", torch.float32))
    with pytest.raises(NoEffect, match=reason) as caught:
        tiny.run(model, Full(), Accumulation(**settings), **{"max_steps": 3, **training})
    assert caught.value.way_out


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"steps": 4, "leftover": "unscaled"}, "set normalise: micro_batches, or take leftover out"),
        ({"steps": 4, "micro_batch": "auto"}, "take out steps or micro_batch"),
        ({"normalise": "micro_batches", "micro_batch": "auto"}, "give steps instead"),
        ({"gradient_dtype": "bfloat16", "micro_batch": "auto"}, "give steps instead"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        Accumulation(**settings)


@pytest.mark.parametrize(
    ("settings", "label", "canonical"),
    [
        ({}, "1", {"steps": 1}),
        ({"steps": 4}, "4", {"steps": 4, "normalise": "tokens"}),
        ({"steps": 1, "normalise": "micro_batches", "leftover": "unscaled"}, "1", {"steps": 1}),
        ({"gradient_dtype": "bfloat16"}, "1 bfloat16", {"steps": 1, "gradient_dtype": "bfloat16"}),
        (
            {"steps": 4, "normalise": "micro_batches", "leftover": "unscaled"},
            "4 micro_batches unscaled",
            {"steps": 4, "normalise": "micro_batches", "leftover": "unscaled"},
        ),
        ({"micro_batch": "auto"}, "auto", {"micro_batch": "auto"}),
    ],
)
def test_labels_and_identities_hold_what_has_an_effect(
    settings: dict[str, Any], label: str, canonical: dict[str, Any]
) -> None:
    assert Accumulation(**settings).label == label
    assert Accumulation(**settings).canonical() == canonical


def test_a_checkpoint_keeps_what_the_proof_is_made_of() -> None:
    chosen = Accumulation(steps=2, normalise="micro_batches", gradient_dtype="bfloat16")
    run = tiny.run(tiny.llama(), Full(), chosen, max_steps=2)
    kept = chosen.state(tiny.llama(), run.live)
    assert all(isinstance(value, list) or math.isfinite(value) for value in kept.values())
    fresh, model = Live(seed=0, micro_batches=run.live.micro_batches), tiny.llama()
    with chosen.applied(model, fresh):
        chosen.restore(model, fresh, kept)
        assert chosen.proof(model, fresh) == run.proofs[1]
