"""Rows B15, B16, B33, B34, B54 and B56: what checkpointing keeps and costs, and the formats of QLoRA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM

import tiny
from paribus.techniques import (
    Full,
    LayerCheckpointing,
    Live,
    Lora,
    NoCheckpointing,
    SequentialCheckpointing,
    Technique,
)
from paribus.techniques.tuning import quantised
from paribus.techniques.tuning.quantised import Format
from storing import error, gaussian, layer_of, storage

IDS = torch.arange(3, 27).reshape(2, 12)


@contextmanager
def applied(layers: int, scheme: Technique, tuning: Technique) -> Iterator[Any]:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**tiny.SHARED, **{**tiny.SHAPE, "num_hidden_layers": layers}))
    live = Live(seed=0)
    with tuning.applied(model, live) as wrapped, scheme.applied(wrapped, live) as changed:  # type: ignore[arg-type]
        yield changed.train()


def bytes_kept(layers: int, scheme: Technique) -> int:
    """Measure what autograd holds after a forward pass, weights left out."""
    seen: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with applied(layers, scheme, Full()) as model:
        own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            held = model(input_ids=IDS, use_cache=False)
        del held
    return sum(size for place, size in seen.items() if place not in own)


def test_b15_what_is_kept_grows_with_the_layers_and_in_segments_with_their_root() -> None:
    """By layer it is their inputs alone; the root belongs to segments, which keep more on a shallow model."""
    whole, layers = (
        [bytes_kept(count, one) for count in (4, 16, 64)] for one in (NoCheckpointing(), LayerCheckpointing())
    )
    roots = [
        bytes_kept(count, SequentialCheckpointing(segments=root))
        for count, root in ((4, 2), (16, 4), (64, 8))
    ]
    boundary = IDS.numel() * 32 * 4
    assert layers[1] - layers[0] == 12 * boundary
    assert layers[2] - layers[1] == 48 * boundary
    assert whole[2] - whole[1] == pytest.approx(4 * (whole[1] - whole[0]), rel=0.01)
    assert roots[2] / roots[1] == pytest.approx(2, rel=0.05)
    assert whole[2] > 7 * roots[2] > 14 * layers[2]


@pytest.mark.parametrize(
    ("tuning", "scheme", "more"),
    [
        (Full(), LayerCheckpointing(use_reentrant=True), 0.33),
        (Full(), LayerCheckpointing(), 0.25),  # the second pass stops once it has what is missing
        (Lora(r=2), LayerCheckpointing(use_reentrant=True), 0.49),
        (Lora(r=2), LayerCheckpointing(), 0.47),
    ],
)
def test_b16_b56_a_second_forward_is_a_third_more_work_under_full_tuning_and_half_under_lora(
    tuning: Technique, scheme: Technique, more: float
) -> None:
    """In operations: a forward pass beside one for activations, and under full tuning one for weights."""
    work = []
    for one in (NoCheckpointing(), scheme):
        with applied(8, one, tuning) as model, FlopCounterMode(display=False) as counter:
            model(input_ids=IDS, use_cache=False).logits.sum().backward()
        work.append(counter.get_total_flops())
    assert work[1] / work[0] - 1 == pytest.approx(more, abs=0.01)


def uniform(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0)) * 2 - 1


def levels(quantisation: Format) -> list[float]:
    """Return every value that a format can give a weight in a block whose largest is 1."""
    weight = torch.linspace(-1, 1, 64 * 64).view(64, 64)[torch.randperm(64)]
    weight[:, 0] = 1
    return sorted(set(layer_of(weight, storage(quantisation)).decoded().flatten().tolist()))


def test_b33_nf4_has_its_levels_at_quantiles_of_the_normal_distribution() -> None:
    """Eight levels up and eight down from a shared 0, at equal steps of probability; over the largest."""
    offset, quantile = 0.9677083, NormalDist().inv_cdf
    above = [quantile(0.5 + (offset - 0.5) * step / 8) for step in range(9)]
    below = [-quantile(0.5 + (offset - 0.5) * step / 7) for step in range(8)]
    expected = sorted({round(value / above[-1], 12) for value in (*above, *below)})
    assert len(expected) == 16
    assert levels("nf4") == pytest.approx(expected, abs=1e-6)


def test_int4_has_equal_steps_and_fp4_has_not() -> None:
    assert levels("int4") == pytest.approx([step / 7 for step in range(-7, 8)])
    steps = torch.tensor(levels("fp4")).diff()
    assert steps.max() > 10 * steps.min()


@pytest.mark.parametrize("quantisation", ["nf4", "fp4", "int4"])
def test_b34_double_quantisation_saves_0_373_bits_a_weight(quantisation: Format) -> None:
    """A constant of 32 bits for 64 weights, or of 8 for 64 and of 32 for 256 x 64 and one mean."""
    weight = gaussian(256, 128)
    bits = []
    for double in (False, True):
        parts = quantised.parts(layer_of(weight, storage(quantisation, double=double)))
        stored = sum(t.numel() * t.element_size() for name in ("codes", "constants") for t in parts[name])
        bits.append(8 * stored / weight.numel())
    assert bits[0] == 4 + 32 / 64
    assert bits[1] == 4 + 8 / 64 + 32 / (64 * 256) + 32 / weight.numel()
    assert bits[0] - bits[1] == pytest.approx(0.373, abs=0.002)
    close = error(weight, storage(quantisation, double=True)) / error(weight, storage(quantisation))
    assert close == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("block", [32, 64, 256])
def test_b54_nf4_is_nearer_on_gaussian_weights_and_int4_on_uniform_ones(block: int) -> None:
    weights = {"gaussian": gaussian(256, 256), "uniform": uniform(256, 256)}
    errors = {
        (name, of): error(weight, storage(name, block))
        for of, weight in weights.items()
        for name in ("nf4", "int4")
    }
    assert errors["nf4", "gaussian"] < 0.95 * errors["int4", "gaussian"]
    assert errors["int4", "uniform"] < 0.95 * errors["nf4", "uniform"]
