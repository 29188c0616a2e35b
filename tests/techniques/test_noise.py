"""Noise is keyed by epoch and example, scaled as in the paper, absent on padding and in evaluation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tiny
from paribus.techniques import Accumulation, Full, Live, Lora, NoEffect, Noise


def live(epoch: int = 0, seed: int = 0) -> Live:
    return Live(seed=seed, epoch=epoch, example_ids=("a", "b"), lengths=(3, 5))


def drawn(alpha: float = 5, *, at: Live | None = None, padded: int = 5) -> torch.Tensor:
    return Noise(alpha=alpha).draw(at or live(), torch.zeros(2, padded, 8))


def test_its_largest_magnitude_is_alpha_over_the_root_of_real_length_times_width() -> None:
    at = Live(seed=0, example_ids=("a",), lengths=(400,))
    noise = Noise(alpha=5).draw(at, torch.zeros(1, 512, 64))
    bound = 5 / math.sqrt(400 * 64)
    assert noise[:, 400:].abs().max() == 0
    assert 0.99 * bound < noise.abs().max() <= bound
    assert noise[:, :400].square().mean().sqrt().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert noise[:, :400].mean().item() == pytest.approx(0, abs=bound / 50)


def test_all_alphas_share_their_draws() -> None:
    assert torch.equal(drawn(10), drawn(5) * 2)


def test_a_draw_depends_on_example_epoch_and_seed_alone() -> None:
    assert torch.equal(drawn(padded=9)[:, :5], drawn())
    swapped = Live(seed=0, example_ids=("b", "a"), lengths=(5, 3))
    assert torch.equal(drawn(at=swapped)[[1, 0]], drawn())
    assert not torch.equal(drawn(at=live(epoch=1)), drawn())
    assert not torch.equal(drawn(at=live(seed=1)), drawn())


def test_a_batch_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(RuntimeError, match="draws for 2 examples met a batch of 3 rows"):
        Noise(alpha=5).draw(live(), torch.zeros(3, 5, 8))


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=["full", "lora"])
def test_it_is_added_in_training_and_not_in_evaluation(tuning: Full | Lora) -> None:
    seen: list[torch.Tensor] = []
    ids = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])
    with (
        tuning.applied(tiny.llama(), live()) as model,
        Noise(alpha=5).applied(model, live()) as changed,  # type: ignore[arg-type]
    ):
        exact = tiny.llama().get_input_embeddings()(ids)
        hook = model.get_input_embeddings().register_forward_hook(lambda _, __, out: seen.append(out))
        changed.train()(input_ids=ids)
        changed.eval()(input_ids=ids)
        hook.remove()
    noise = Noise(alpha=5).draw(live(), exact)
    torch.testing.assert_close(seen[0], exact + noise)
    assert torch.equal(seen[1], exact)


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=["full", "lora"])
def test_the_proof_is_what_was_really_added(tuning: Full | Lora) -> None:
    rows = tiny.rows(16)
    run = tiny.run(tiny.llama(), tuning, Noise(alpha=5), examples=rows, epochs=2)
    proof = run.proofs[1]
    elements = [len(row.input_ids) * 32 for row in rows]
    expected = math.sqrt(sum(n * (5 / math.sqrt(n)) ** 2 / 3 for n in elements) / sum(elements))
    assert proof["noise_rms"] == pytest.approx(expected, rel=0.03)
    assert proof["ratio"] == pytest.approx(proof["noise_rms"] / proof["embedding_rms"])
    assert proof["examples"] == 32


def test_noise_that_reaches_nothing_is_told() -> None:
    at = live()
    with Noise(alpha=5).applied(tiny.llama(), at) as model, pytest.raises(NoEffect, match="no noise reached"):
        Noise(alpha=5).proof(model, at)


def test_noise_moves_the_loss_and_more_of_it_moves_it_more() -> None:
    first = [
        tiny.run(tiny.llama(), Full(), Noise(alpha=alpha), max_steps=3).losses[0] for alpha in (0, 5, 50)
    ]
    assert 0 < abs(first[1] - first[0]) < abs(first[2] - first[0])


def frobenius(noise: Noise, length: int, width: int, count: int = 40) -> float:
    """Return the mean norm of the noise of some examples."""
    ids = tuple(map(str, range(count)))
    at = Live(seed=0, example_ids=ids, lengths=(length,) * count)
    return noise.draw(at, torch.zeros(count, length, width)).flatten(1).norm(dim=1).mean().item()


@pytest.mark.parametrize("distribution", ["uniform", "gaussian"])
@pytest.mark.parametrize(("length", "width"), [(8, 64), (64, 64), (16, 512)])
def test_an_example_gets_noise_of_norm_alpha_over_root_three_whatever_its_size(
    distribution: str, length: int, width: int
) -> None:
    paper = Noise(alpha=5, distribution=distribution)  # type: ignore[arg-type]
    assert frobenius(paper, length, width) == pytest.approx(5 / math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("width", [64, 256])
def test_the_scaling_of_the_article_is_louder_by_the_root_of_the_width(width: int) -> None:
    at, embedded = live(), torch.zeros(2, 5, width)
    paper, article = (Noise(alpha=5, scaling=name).draw(at, embedded) for name in ("paper", "article"))
    torch.testing.assert_close(article, paper * math.sqrt(width))


def test_gaussian_noise_has_the_variance_of_the_uniform_and_no_bound() -> None:
    at = Live(seed=0, example_ids=("a",), lengths=(400,))
    bound = 5 / math.sqrt(400 * 64)
    noise = Noise(alpha=5, distribution="gaussian").draw(at, torch.zeros(1, 400, 64))
    assert noise.square().mean().sqrt().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert noise.abs().max().item() > 1.5 * bound


def test_the_padded_length_makes_noise_quieter_where_there_is_padding() -> None:
    padded = Noise(alpha=5, length="padded").draw(live(), torch.zeros(2, 20, 8))
    exact = drawn(padded=20)
    torch.testing.assert_close(padded[0], exact[0] * math.sqrt(3 / 20))
    torch.testing.assert_close(padded[1], exact[1] * math.sqrt(5 / 20))
    assert padded[0, 3:].abs().max() == 0


def test_without_padding_an_example_is_a_segment_and_the_padded_length_that_of_the_row() -> None:
    row = torch.zeros(1, 8, 8)
    rows, packed = drawn(), Noise(alpha=5).draw(live(), row)
    assert torch.equal(packed[0, :3], rows[0, :3]) and torch.equal(packed[0, 3:], rows[1])
    whole = Noise(alpha=5, length="padded").draw(live(), row)
    torch.testing.assert_close(whole[0, :3], rows[0, :3] * math.sqrt(3 / 8))


SCHEDULES = {
    "constant": (5, 5, 5),
    "article": (5, 5 * 0.95**0.5, 5 * 0.95),
    "linear": (5, 2.5, 0),
    "cosine": (5, 2.5, 0),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_counts_the_optimizer_steps_done(schedule: Any) -> None:
    noise = Noise(alpha=5, schedule=schedule)
    found = [noise.alpha_at(Live(seed=0, steps=1000, step=step)) for step in (0, 500, 1000)]
    assert found == pytest.approx(SCHEDULES[schedule])


def test_the_proof_of_a_schedule_has_its_first_and_last_alpha() -> None:
    proof = tiny.run(tiny.llama(), Full(), Noise(alpha=5, schedule="linear"), max_steps=4).proofs[1]
    assert (proof["alpha_first"], proof["alpha_last"]) == (5, 1.25)
    loud = tiny.run(tiny.llama(), Full(), Noise(alpha=5), max_steps=4).proofs[1]
    assert proof["noise_rms"] < loud["noise_rms"] and "alpha_first" not in loud
    assert loud["noise_norm"] == pytest.approx(5 / math.sqrt(3), rel=0.03)


@pytest.mark.parametrize("shared", ["scaling", "length", "distribution", "schedule"])
def test_without_alpha_nothing_else_is_in_an_id(shared: str) -> None:
    other = {"scaling": "article", "length": "padded", "distribution": "gaussian", "schedule": "linear"}
    assert Noise(alpha=0, **{shared: other[shared]}).canonical() == {}  # type: ignore[arg-type]
    assert Noise(alpha=5, **{shared: other[shared]}).canonical() != Noise(alpha=5).canonical()  # type: ignore[arg-type]
    assert Noise(alpha=5).canonical() == {"alpha": 5, "scaling": "paper", "schedule": "constant"}


def test_all_alphas_share_their_draws_under_every_setting() -> None:
    settings = {"scaling": "article", "length": "padded", "distribution": "gaussian", "schedule": "cosine"}
    one, other = (Noise(alpha=alpha, **settings).draw(live(), torch.zeros(2, 5, 8)) for alpha in (5, 10))  # type: ignore[arg-type]
    assert torch.equal(other, one * 2)


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)], ids=["full", "lora"])
def test_tied_embeddings_leave_the_head_clean(tuning: Any) -> None:
    """The head multiplies by the embedding's own weights, which the noise must not touch."""
    base = tiny.llama()
    assert base.get_output_embeddings().weight is base.get_input_embeddings().weight
    before, states = base.get_input_embeddings().weight.clone(), torch.ones(1, 3, 32)
    clean = base.lm_head(states)
    with tuning.applied(base, live()) as model, Noise(alpha=50).applied(model, live()) as noised:
        noised.train()(input_ids=torch.ones(2, 5, dtype=torch.long))
        assert torch.equal(base.get_input_embeddings().weight, before)
        assert torch.equal(base.get_output_embeddings()(states), clean)


def test_the_padded_length_is_the_exception_to_the_law_of_splits() -> None:
    """Other rows share a micro-batch, so L and with it the noise change; real lengths do not."""
    padded, exact = (
        tiny.distance(
            *(
                tiny.run(
                    tiny.llama(dtype=torch.float64),
                    Full(),
                    Noise(alpha=5, length=length),
                    Accumulation(steps=steps),
                    max_steps=4,
                )
                for steps in (1, 2)
            )
        )
        for length in ("padded", "example")
    )
    assert exact < 1e-12 and padded > 1e-5


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_prompts_in_front_get_no_noise() -> None:
    import peft

    model, at = tiny.llama(), live()
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    wrapped = peft.get_peft_model(model, config)
    seen: list[torch.Tensor] = []
    with Noise(alpha=5).applied(wrapped, at) as noised:  # type: ignore[arg-type]
        ids = torch.ones(2, 5, dtype=torch.long)
        layer = model.model.layers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        mask = torch.ones_like(ids)
        noised.train()(input_ids=ids, attention_mask=mask)
        noised.eval()(input_ids=ids, attention_mask=mask)
        layer.remove()
    added = seen[0] - seen[1]
    assert added[:, :4].abs().max() == 0
    expected = Noise(alpha=5).draw(at, torch.zeros(2, 5, 32))
    torch.testing.assert_close(added[:, 4:], expected, atol=1e-6, rtol=1e-4)


def test_a_schedule_with_no_step_to_fall_in_is_no_silent_constant() -> None:
    with pytest.raises(NoEffect, match="alpha was 5 at every step under schedule: linear"):
        tiny.run(tiny.llama(), Full(), Noise(alpha=5, schedule="linear"), max_steps=1, warmup_steps=0)
