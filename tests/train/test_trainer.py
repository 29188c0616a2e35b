"""The trainer does what its arguments say: loss, order, readings, schedule, clipping, and an end at NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import tiny
from paribus.techniques import Accumulation, Full, Lora, Noise
from paribus.train.order import epoch_order
from paribus.train.reading import Reader
from paribus.train.session import without_dropout


def by_hand(model: Any, batch: list[Any]) -> torch.Tensor:
    """Sum the target losses of rows one by one, over their number."""
    total, count = torch.tensor(0.0), 0
    for row in batch:
        logits = model(input_ids=torch.tensor([row.input_ids])).logits[0, :-1]
        labels = torch.tensor(row.labels[1:])
        total = total + cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        count += int((labels != -100).sum())
    return total / count


@pytest.mark.parametrize("splits", [1, 4])
def test_a_step_is_one_of_plain_adamw_on_the_token_mean(splits: int) -> None:
    """Three steps written out by hand give the same curve and weights."""
    rows = tiny.rows()
    run = tiny.run(
        tiny.llama(), Full(), Accumulation(steps=splits), max_steps=3, warmup_steps=0, weight_decay=0.0
    )
    model = tiny.llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    order = epoch_order(0, 0, [row.example_id for row in rows])
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (3 - step) / 3
        loss = by_hand(model, [rows[index] for index in order[8 * step : 8 * step + 8]])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        row = run.trained.curve[step]
        assert row["loss"] == pytest.approx(loss.item(), rel=1e-5)
        assert row["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        assert row["learning_rate"] == pytest.approx(1e-3 * (3 - step) / 3)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(run.weights[name], parameter.detach(), rtol=1e-4, atol=1e-5)


def test_the_curve_counts_tokens_targets_and_epochs() -> None:
    rows = tiny.rows(20)
    trained = tiny.run(tiny.llama(), Full(), Accumulation(steps=2), examples=rows, epochs=2).trained
    assert [row["step"] for row in trained.curve] == [1, 2, 3, 4, 5, 6]
    assert [row["epoch"] for row in trained.curve] == pytest.approx([0.4, 0.8, 1, 1.4, 1.8, 2])
    tokens, targets = sum(len(row.input_ids) for row in rows), sum(row.targets for row in rows)
    assert trained.counts.model_dump() == {
        "examples": 40,
        "optimizer_steps": 6,
        "tokens": 2 * tokens,
        "target_tokens": 2 * targets,
        "truncated_examples": 2,
    }
    assert sum(row["target_tokens"] for row in trained.curve[:3]) == targets


@pytest.mark.parametrize(
    ("kind", "rates"),
    [
        ("linear", [0, 0.5, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("constant", [0, 0.5, 1, 1, 1, 1, 1, 1]),
        ("cosine", [0, 0.5, *((1 + math.cos(math.pi * k / 6)) / 2 for k in range(6))]),
    ],
)
@pytest.mark.parametrize("splits", [1, 4])
def test_the_schedule_counts_optimizer_steps(kind: str, rates: list[float], splits: int) -> None:
    run = tiny.run(tiny.llama(), Full(), Accumulation(steps=splits), lr_scheduler_type=kind)
    assert [row["learning_rate"] for row in run.trained.curve] == pytest.approx([1e-3 * r for r in rates])


def test_every_optimizer_setting_reaches_the_optimizer() -> None:
    """Each one alone changes the run."""
    base = tiny.run(tiny.llama(), Full()).losses
    for change in (
        {"adam_beta1": 0.5},
        {"adam_beta2": 0.5},
        {"adam_epsilon": 1e-2},
        {"weight_decay": 0.9},
        {"max_grad_norm": 0.01},
        {"learning_rate": 2e-3},
        {"warmup_steps": 0},
        {"optimizer": "sgd"},
    ):
        assert tiny.run(tiny.llama(), Full(), **change).losses != base, change


@pytest.mark.parametrize(
    ("every", "training", "steps"),
    [
        ("epoch", {"epochs": 2}, [0, 3, 6]),
        ("epoch", {"max_steps": 4}, [0, 3, 4]),
        (2, {"max_steps": 5}, [0, 2, 4, 5]),
        (3, {"epochs": 2}, [0, 3, 6]),
        (100, {"max_steps": 2}, [0, 2]),
    ],
)
def test_it_is_read_at_the_start_on_the_way_and_at_the_end(
    every: Any, training: Any, steps: list[int]
) -> None:
    seen: list[tuple[int, float]] = []
    tiny.run(tiny.llama(), Full(), readers=[Reader(every, lambda *at: seen.append(at))], **training)
    assert [step for step, _ in seen] == steps
    assert [epoch for _, epoch in seen] == pytest.approx([step / 3 for step in steps])


def test_reading_changes_nothing_and_its_time_does_not_count() -> None:
    model = tiny.llama()
    modes: list[tuple[bool, bool]] = []

    def read(step: int, epoch: float) -> None:
        modes.append((model.training, torch.is_grad_enabled()))
        model(input_ids=torch.arange(3, 11).unsqueeze(0))
        sleep(0.2)

    read_one = tiny.run(model, Full(), Noise(alpha=5), readers=[Reader(1, read), Reader("epoch", read)])
    unread = tiny.run(tiny.llama(), Full(), Noise(alpha=5))
    assert read_one.trained.curve == unread.trained.curve
    assert set(modes) == {(False, False)}
    assert len(modes) == 9 + 4
    assert read_one.trained.cost is not None
    assert read_one.trained.cost.train_seconds < 0.2 * len(modes)


def sleep(seconds: float) -> None:
    import time

    time.sleep(seconds)


@pytest.mark.parametrize(("value", "word"), [(math.nan, "nan"), (math.inf, "nan")])
def test_a_loss_that_is_not_finite_ends_the_run(value: float, word: str) -> None:
    """The weights are spoilt after the second step, so the third loss is the first that is not finite."""
    model = tiny.llama()
    seen: list[int] = []

    def spoil(step: int, epoch: float) -> None:
        seen.append(step)
        if step == 2:
            model.model.norm.weight.data.fill_(value)

    run = tiny.run(model, Full(), readers=[Reader(1, spoil)])
    diverged = run.trained.diverged
    assert diverged is not None
    assert (diverged.step, diverged.quantity, diverged.value) == (3, "loss", word)
    assert len(run.trained.curve) == 3
    assert seen == [0, 1, 2]


def test_a_gradient_that_is_not_finite_ends_the_run() -> None:
    model = tiny.llama()
    model.model.embed_tokens.weight.register_hook(lambda gradient: gradient * math.inf)
    diverged = tiny.run(model, Full()).trained.diverged
    assert diverged is not None
    assert (diverged.step, diverged.quantity) == (1, "grad_norm")


def test_the_models_own_dropout_is_off_and_said_to_be() -> None:
    """GPT-2 comes with dropout; its draws would depend on the split."""
    one, four = (tiny.run(tiny.gpt2(dropout=0.5), Full(), Accumulation(steps=k)) for k in (1, 4))
    assert one.losses == pytest.approx(four.losses, rel=1e-4)
    assert "dropout (0.5) was off" in one.trained.warnings[0]
    model = tiny.gpt2(dropout=0.5)
    with without_dropout(model) as rates:
        assert rates == [0.5]
        assert model.transformer.drop.p == 0
    assert model.transformer.drop.p == 0.5


def test_nothing_is_printed_and_what_was_used_is_resolved(capfd: pytest.CaptureFixture[str]) -> None:
    trained = tiny.run(tiny.llama(), Lora(r=4), Accumulation(steps=4)).trained
    assert capfd.readouterr() == ("", "")
    state = {name: found for name, found in trained.resolved.items() if name.startswith("optimizer_")}
    assert state["optimizer_class"].endswith("AdamW")
    assert state["optimizer_elements_in_8_bit"] == state["optimizer_bytes_paged"] == 0
    assert {name: found for name, found in trained.resolved.items() if name not in state} == {
        "device": "cpu",
        "optimizer": "adamw_torch_fused",
        "micro_batch": 2,
        "effective_batch_size": 8,
        "steps": 8,
        "mixed_precision": "no",
        "attention_kernel": "flash_attention_for_cpu",
        "threads": 1,
    }
    assert trained.warnings == ()
