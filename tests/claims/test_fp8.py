"""Claims of the article on its FP8 listings; the id of each is in the name."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch

from judging import failed, judged, numbers
from paribus.compare.recompute.fp8_listings import failure, gaussian, layer
from paribus.compare.recompute.fp8_training import converted


def test_a_rebuilt_listing_that_ran_would_be_seen_to_run() -> None:
    """In evaluation the layer is plain, and so nothing is in its way."""
    rebuilt, x = layer(gaussian(16, 16, 1)), gaussian(2, 16, 0)
    assert failure(lambda: rebuilt.eval()(x)) == ""
    assert torch.allclose(rebuilt.eval()(x), x @ rebuilt.weight.T)


def test_a61_the_articles_roles_lose_more_than_the_standard_ones() -> None:
    """Against torch's own casts of other matrices."""
    generator = torch.Generator().manual_seed(3)
    x, w = (torch.randn(256, 256, generator=generator) for _ in range(2))

    def cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        scale = torch.finfo(dtype).max / values.abs().max()
        return (values * scale).to(dtype).float() / scale

    def error(weights: torch.dtype) -> float:
        found = cast(x, torch.float8_e4m3fn) @ cast(w, weights)
        return ((found - x @ w).norm() / (x @ w).norm()).item()

    found = numbers("A61")
    assert found["error of products, article's roles"] == pytest.approx(error(torch.float8_e5m2), rel=0.05)
    assert found["error of products, standard roles"] == pytest.approx(error(torch.float8_e4m3fn), rel=0.05)
    assert judged("A61").verdict == "contradicted"


def test_a62_448_is_the_maximum_of_the_other_format_and_the_product_does_not_run() -> None:
    assert numbers("A62") == {"maximum of E5M2": 57344, "maximum of E4M3": 448}
    assert failed("A62") == ["the listing runs"]
    assert "maximum of E5M2 is 57344, claimed 448" in judged("A62").reason


def test_a63_the_printed_numbers_are_rounded_to_integers_and_not_to_fp8() -> None:
    """448 / 2.5 is 179.2; above 256, 128 and 32 the steps of E5M2 are 64, 32 and 8."""
    found = numbers("A63")
    assert found["scale"] == pytest.approx(179.2, rel=1e-6)
    assert [found[f"quantised[{i}]"] for i in range(4)] == [-448, 56, 320, -160]
    assert [found[f"in E4M3[{i}]"] for i in range(4)] == [-448, 52, 320, -160]
    assert judged("A63").verdict == "contradicted"
    assert "54, 322, -161 are in neither" in judged("A63").reason


def test_a64_the_layer_lacks_a_name_and_then_a_product() -> None:
    reason = judged("A64").reason
    assert "NameError" in reason
    assert "RuntimeError" in reason


def test_a65_autograd_rounds_gradients_without_a_scale() -> None:
    """Zero is what lies below half of the least value, 2^-10; then 2^-9 and 2^-8 are left, with signs."""
    below = 2 * NormalDist(0, 1e-3).cdf(2**-10) - 1
    found = numbers("A65")
    assert found["share of gradients that become zero, E4M3"] == pytest.approx(below, abs=1e-3)
    assert found["values left of 4096, E4M3"] == 5
    assert judged("A65").verdict == "contradicted"


def test_a66_of_gpt_2_only_the_head_is_reached_and_untied() -> None:
    """Twelve blocks of four Conv1D each, and the head."""
    assert numbers("A66") == {"layers replaced": 1, "linear layers": 12 * 4 + 1}
    assert failed("A66") == ["every linear layer is replaced", "the model's weights stay as they are"]


def test_a66_a_model_of_linear_layers_is_converted_whole_and_once() -> None:
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    model = torch.nn.Sequential(inner, torch.nn.Linear(4, 4))
    weight = inner[0].weight.detach().clone()  # type: ignore[union-attr, operator]
    assert converted(model) == 2
    assert torch.equal(inner[0].weight, weight)  # type: ignore[arg-type]
    assert converted(model) == 0


def test_a72_half_precision_has_no_main_weights_and_adam_ends_them() -> None:
    assert len(failed("A72")) == 3
    assert judged("A72").verdict == "contradicted"


def test_a73_evaluation_collects_ones_and_the_percentile_overflows() -> None:
    found = numbers("A73")
    assert found["calibration_steps"] == 100
    assert found["quantile"] == 0.99
    assert found["batches that overflow"] == 99
    assert "all 100 are 1" in judged("A73").reason


def test_a75_the_arithmetic_is_right_and_the_trainer_does_not_run() -> None:
    assert numbers("A75") == {"effective_batch": 32}
    assert failed("A75") == ["the trainer runs with its FP8 layers"]
    assert judged("A75").verdict == "contradicted"
