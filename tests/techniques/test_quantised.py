"""Formats of a quantised base: their levels, bits, errors, and products that keep no decoded weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tiny
from paribus.techniques.tuning import quantised
from paribus.techniques.tuning.quantised import Format
from storing import error, gaussian, layer_of, storage

FORMATS: tuple[Format, ...] = ("nf4", "fp4", "int8", "int4")


def test_errors_on_gaussian_weights() -> None:
    weight = gaussian(256, 256)
    errors = {name: error(weight, storage(name)) for name in FORMATS}
    assert errors["nf4"] == pytest.approx(0.091, abs=0.002)
    assert errors["int4"] == pytest.approx(0.107, abs=0.002)
    assert errors["fp4"] == pytest.approx(0.122, abs=0.002)
    assert errors["int8"] == pytest.approx(0.0065, abs=0.001)


@pytest.mark.parametrize("shape", [(64, 32), (64, 96), (128, 48), (30, 20), (7, 9)])
@pytest.mark.parametrize("quantisation", FORMATS)
def test_rows_of_any_length_decode_rightly(quantisation: Format, shape: tuple[int, int]) -> None:
    """bitsandbytes 0.50 on a CPU takes other blocks' constants where 64 does not divide a row's length."""
    assert error(gaussian(*shape), storage(quantisation)) < 0.14
    assert error(gaussian(*shape), storage(quantisation, double=quantisation != "int8")) < 0.14


def test_a_block_of_zeros_stays_zero() -> None:
    for quantisation in FORMATS:
        assert torch.equal(layer_of(torch.zeros(8, 64), storage(quantisation)).decoded(), torch.zeros(8, 64))


@pytest.mark.parametrize("quantisation", FORMATS)
def test_weights_are_decoded_forward_and_backward_and_kept_by_neither(quantisation: Format) -> None:
    layer = layer_of(gaussian(64, 32), storage(quantisation), bias=True)
    saved: list[torch.Size] = []
    x = torch.randn(3, 5, 32, requires_grad=True)
    decoded, count = layer.decoded, []
    layer.decoded = lambda: (count.append(1), decoded())[1]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.shape), t)[1], lambda t: t):
        output = layer(x)
    assert (saved, len(count)) == ([], 1)
    upstream = torch.randn_like(output)
    output.backward(upstream)
    assert len(count) == 2
    assert torch.equal(output, torch.nn.functional.linear(x, decoded(), layer.bias))
    assert torch.equal(x.grad, upstream @ decoded())


@pytest.mark.parametrize("quantisation", FORMATS)
def test_bfloat16_rounds_the_products_and_not_what_is_stored(quantisation: Format) -> None:
    weight, x = gaussian(64, 32), gaussian(4, 32)
    wide, narrow = (
        layer_of(weight, storage(quantisation, dtype=d), bias=True) for d in (torch.float32, torch.bfloat16)
    )
    narrow.bias.data.copy_(wide.bias.data)
    assert torch.equal(wide.decoded(), narrow.decoded())
    difference = (wide(x) - narrow(x)).norm() / wide(x).norm()
    assert 1e-4 < difference < 1e-2
    assert narrow(x).dtype == narrow.bias.dtype == torch.float32


@pytest.mark.parametrize("quantisation", FORMATS)
def test_quantising_is_deterministic_and_the_products_too(quantisation: Format) -> None:
    torch.set_num_threads(1)
    how = storage(quantisation, double=quantisation != "int8")
    one, other = (layer_of(gaussian(64, 96), how) for _ in range(2))
    assert torch.equal(one.weight.data, other.weight.data)
    x = gaussian(17, 96)
    assert torch.equal(one(x), other(x))
    assert torch.equal(one(x)[:5], one(x[:5]).detach()) or (one(x)[:5] - one(x[:5])).abs().max() < 1e-5


@pytest.mark.parametrize("name", tiny.MODELS)
@pytest.mark.parametrize("quantisation", ["nf4", "int8", "int4"])
def test_the_decoder_is_replaced_and_put_back_bit_for_bit(name: str, quantisation: Format) -> None:
    model = tiny.MODELS[name]()
    modules = dict(model.named_modules())
    before = {path: p.detach().clone() for path, p in model.named_parameters()}
    linear = [path for path, one in modules.items() if quantised.is_linear(one) and "head" not in path]
    with pytest.raises(ZeroDivisionError), quantised.quantised(model, storage(quantisation)) as base:
        assert sorted(quantised.layers(model)) == sorted(base.errors) == sorted(linear)
        assert model.get_output_embeddings() is modules["lm_head"]
        ids = torch.arange(3, 27).reshape(2, 12)
        assert torch.isfinite(model(input_ids=ids).logits).all()
        raise ZeroDivisionError
    assert dict(model.named_modules()) == modules
    assert all(torch.equal(p, before[path]) for path, p in model.named_parameters())


def test_a_transposed_layer_of_gpt2_gives_what_its_weights_give() -> None:
    model = tiny.gpt2()
    module = model.transformer.h[0].mlp.c_fc
    layer: Any = quantised.stored(module, storage("int8"))
    x = gaussian(3, 32)
    assert (layer(x) - module(x)).norm() < 0.01 * module(x).norm()
    again = quantised.plain(layer, layer.decoded())
    assert type(again) is type(module)
    assert (again(x) - layer(x)).abs().max() < 1e-6


def test_a_base_in_half_precision_is_widened_and_narrowed_again() -> None:
    model = tiny.llama(dtype=torch.bfloat16)
    before = {path: (p, p.detach().clone()) for path, p in model.named_parameters()}
    with quantised.quantised(model, storage("nf4", double=True)):
        assert {p.dtype for p in model.parameters()} == {torch.float32, torch.uint8}
    assert all(
        p is before[path][0] and torch.equal(p, before[path][1]) for path, p in model.named_parameters()
    )


def test_evidence_is_of_the_live_model() -> None:
    model = tiny.llama()
    with quantised.quantised(model, storage("int4")) as base:
        found = quantised.evidence(model, base)
        assert found["layers_quantised"] == {"Int4Linear": 14}
        assert found["bytes_of_codes"] * 8 == found["bytes_in_fp32"]
        assert found["bits_per_weight"] == 4.5
        quantised.layers(model)["model.layers.0.mlp.up_proj"].constants.mul_(2)
        with pytest.raises(RuntimeError, match="constants of a quantised base moved"):
            quantised.evidence(model, base)
