"""Noise is keyed by epoch and example, scaled as in the paper, absent on padding and in evaluation."""

from __future__ import annotations

import math

import pytest
import torch

import tiny
from paribus.techniques import Full, Live, Lora, NoEffect, Noise


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
