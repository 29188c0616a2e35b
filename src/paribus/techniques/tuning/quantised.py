"""How a frozen base is stored in 4 or 8 bits: codes and constants in place of the weights of linear layers.

A layer keeps codes and, for each block of weights, the constant that scales them. Its products are computed
on the weights that codes and constants stand for, decoded in the forward pass and again in the backward pass
(QLoRA, equations 5 and 6), so no decoded weight outlives a product. Codes are made on the CPU from fp32.
bitsandbytes gives the codes and constants of nf4, fp4 and int8; the uniform 4-bit grid is ours.

This module imports torch, so `qlora` imports it only when a model is quantised.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from transformers.pytorch_utils import Conv1D

from paribus.techniques.tuning import weights
from paribus.techniques.tuning.peft_tuner import is_linear

Format = Literal["nf4", "fp4", "int8", "int4"]

NESTED_BLOCK: Final = 256
"""Constants that share a constant under double quantisation (QLoRA, section 3)."""
LARGEST: Final = 7
"""The uniform 4-bit grid is -7 to 7 in equal steps, so that it is symmetric and has a zero."""


class Storage(NamedTuple):
    """How weights are stored: format, weights a constant, quantised constants or not, dtype of products."""

    quantisation: Format
    block_size: int
    double_quantisation: bool
    compute_dtype: torch.dtype


class Shape(NamedTuple):
    """The shape [out, in] of the weights that a parameter of packed codes stands for."""

    shape: tuple[int, int]


class _Product(torch.autograd.Function):
    """x [..., in] times frozen weights [out, in] plus bias; weights are decoded again for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: Any, decode: Callable[[], torch.Tensor]) -> torch.Tensor:
        ctx.decode = decode
        return torch.nn.functional.linear(x, decode().to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *upstream: torch.Tensor) -> Any:
        (gradient,) = upstream
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return gradient @ ctx.decode().to(gradient.dtype), of_bias, None


class Int4Linear(torch.nn.Linear):
    """A linear layer on the uniform symmetric 4-bit grid, two codes in a byte, a constant for each block."""

    constants: torch.Tensor
    nested: torch.Tensor
    nested_map: torch.Tensor
    offset: torch.Tensor

    def __init__(self, weight: torch.Tensor, bias: torch.nn.Parameter | None, storage: Storage) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        self.storage, self.bias = storage, bias
        size = storage.block_size
        blocks = torch.nn.functional.pad(weight.flatten(), (0, -weight.numel() % size)).view(-1, size)
        largest = blocks.abs().amax(1)
        steps = torch.where(largest > 0, largest, torch.ones_like(largest)).unsqueeze(1) / LARGEST
        codes = (blocks / steps).round_().clamp_(-LARGEST, LARGEST).add_(LARGEST + 1).to(torch.uint8)
        codes = codes.flatten()[: weight.numel() + weight.numel() % 2]
        packed = codes[::2] << 4 | codes[1::2]
        self.weight = torch.nn.Parameter(packed.unsqueeze(1), requires_grad=False)
        self.weight.quant_state = Shape((weight.shape[0], weight.shape[1]))  # type: ignore[attr-defined]
        for name, value in _constants(largest, storage).items():
            self.register_buffer(name, value, persistent=False)

    def decoded(self) -> torch.Tensor:
        """Return the weights [out, in] that codes and constants stand for, in fp32."""
        constants = self.constants
        if self.storage.double_quantisation:
            constants = _nested(constants, self.nested, self.nested_map) + self.offset
        packed = self.weight.data.flatten()
        codes = torch.stack((packed >> 4, packed & 15), dim=1).flatten().float() - (LARGEST + 1)
        steps = (constants / LARGEST).repeat_interleave(self.storage.block_size)
        count = self.out_features * self.in_features
        return (codes[:count] * steps[:count]).view(self.out_features, self.in_features)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _compute(self, input)


def _constants(largest: torch.Tensor, storage: Storage) -> dict[str, torch.Tensor]:
    """Return the constants of the blocks, in 8 bits under double quantisation, as bitsandbytes does it."""
    if not storage.double_quantisation:
        return {"constants": largest}
    from bitsandbytes.functional import quantize_blockwise

    offset = largest.mean()
    codes, state = quantize_blockwise(largest - offset, blocksize=NESTED_BLOCK)
    assert state.code is not None
    return {"constants": codes, "nested": state.absmax, "nested_map": state.code, "offset": offset}


def _nested(codes: torch.Tensor, constants: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_blockwise

    return dequantize_blockwise(codes, absmax=constants, code=table, blocksize=NESTED_BLOCK)


def _compute(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Multiply in the chosen dtype; activations in fp64 stay so where that is float32."""
    dtype = layer.storage.compute_dtype
    if dtype == torch.float32:
        dtype = torch.promote_types(dtype, x.dtype)
    bias = None if layer.bias is None else layer.bias.to(dtype)
    output: Any = _Product.apply(x.to(dtype), bias, layer.decoded)
    return output.to(x.dtype)


@functools.cache
def _classes() -> tuple[type[Any], type[Any]]:
    """Return bitsandbytes' layers in 8 and 4 bits, with the weights decoded and the products computed here.

    Left to themselves, on a CPU the 8-bit layer of bitsandbytes 0.50 quantises activations when it scores and
    not when it trains; the 4-bit one decodes wrongly where the length of a row is no multiple of the block,
    turns its bias into bfloat16, and once it has scored on a CPU with bfloat16 gives no gradient any more.
    """
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn.modules import Linear4bit, Linear8bitLt

    class Int8Linear(Linear8bitLt):
        """A linear layer in 8 bits, a constant for each row."""

        row_constants: torch.Tensor
        storage: Storage

        def decoded(self) -> torch.Tensor:
            """Return the weights [out, in] that codes and constants stand for, in fp32."""
            return self.weight.data.float() * (self.row_constants / 127).unsqueeze(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _compute(self, x)

    class Float4Linear(Linear4bit):
        """A linear layer in nf4 or fp4, two codes in a byte, a constant for each block."""

        storage: Storage

        def decoded(self) -> torch.Tensor:
            """Return the weights [out, in] that codes and constants stand for, in fp32.

            A block is decoded as a row, which no kernel can get wrong.
            """
            weight: Any = self.weight
            size, count = self.storage.block_size, self.out_features * self.in_features
            state, blocks = copy.copy(weight.quant_state), -(-count // size)
            state.shape = torch.Size((blocks, size))
            codes = torch.nn.functional.pad(
                weight.data.flatten(), (0, blocks * size // 2 - weight.data.numel())
            )
            rows = dequantize_4bit(codes.unsqueeze(1), state)
            return rows.flatten()[:count].view(self.out_features, self.in_features)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _compute(self, x)

    return Int8Linear, Float4Linear


def _int8(weight: torch.Tensor, bias: torch.nn.Parameter | None, storage: Storage) -> torch.nn.Module:
    from bitsandbytes.nn.modules import Int8Params

    count_out, count_in = weight.shape
    layer: Any = _classes()[0](count_in, count_out, bias is not None, has_fp16_weights=False, device="meta")
    layer.storage, layer.bias = storage, bias
    codes: Any = Int8Params(weight, requires_grad=False)
    layer.weight = codes.to("cpu")
    layer.register_buffer("row_constants", layer.weight.SCB, persistent=False)
    layer.init_8bit_state()
    return layer


def _float4(weight: torch.Tensor, bias: torch.nn.Parameter | None, storage: Storage) -> torch.nn.Module:
    from bitsandbytes.nn.modules import Params4bit

    count_out, count_in = weight.shape
    chosen: dict[str, Any] = {
        "compress_statistics": storage.double_quantisation,
        "quant_type": storage.quantisation,
        "quant_storage": torch.uint8,
    }
    layer: Any = _classes()[1](
        count_in, count_out, bias is not None, compute_dtype=storage.compute_dtype, device="meta", **chosen
    )
    layer.storage, layer.bias = storage, bias
    make: Any = Params4bit
    codes = make(weight, requires_grad=False, blocksize=storage.block_size, module=layer, **chosen)
    layer.weight = codes.to("cpu")
    return layer


def stored(module: torch.nn.Module, storage: Storage) -> torch.nn.Module:
    """Return a linear layer as `storage` has it, with a bias of its own; GPT-2's weights are turned round."""
    transposed = isinstance(module, Conv1D)
    weight: torch.Tensor = module.weight.detach().float()  # type: ignore[union-attr,operator]
    weight = (weight.t() if transposed else weight).cpu().contiguous().clone()
    bias: Any = module.bias
    if bias is not None:
        bias = torch.nn.Parameter(bias.detach().float().clone(), requires_grad=False)
    make = {"int4": Int4Linear, "int8": _int8}.get(storage.quantisation, _float4)
    layer: Any = make(weight, bias, storage)
    layer.transposed = transposed
    return layer.train(module.training)


def is_stored(module: object) -> bool:
    """Say whether a module is a linear layer that `stored` made."""
    return isinstance(module, torch.nn.Linear) and isinstance(getattr(module, "storage", None), Storage)


def plain(layer: torch.nn.Module, weight: torch.Tensor) -> torch.nn.Module:
    """Return an ordinary layer of the class that a stored one replaced, with these weights [out, in]."""
    count_out, count_in = weight.shape
    transposed, bias = bool(layer.transposed), layer.bias
    made: Any
    if transposed:
        made = Conv1D(count_out, count_in)
    else:
        made = torch.nn.Linear(count_in, count_out, bias is not None, device="meta")
    made.weight = torch.nn.Parameter(weight.t().contiguous() if transposed else weight, requires_grad=False)
    made.bias = bias
    return made.train(layer.training)


@dataclass
class Base:
    """What was quantised: the error of each layer by its path, and the hash of all constants."""

    errors: dict[str, float] = field(default_factory=dict)
    constants: str = ""


@contextmanager
def quantised(model: torch.nn.Module, storage: Storage) -> Iterator[Base]:
    """Store every linear layer of a model but its head, and put each back as it was, however this ends.

    What stays unquantised (norms, embeddings, head) is in fp32 at least meanwhile, as peft's
    `prepare_model_for_kbit_training` has it. The weights that were replaced stay in the host's memory.
    """
    head = model.get_output_embeddings()  # type: ignore[operator]
    base, made = Base(), {}
    places = [
        (parent, name, module, f"{path}.{name}")
        for path, parent in model.named_modules()
        for name, module in parent._modules.items()
        if module is not None and module is not head and is_linear(module)
        if not f"{path}.{name}.".startswith(weights.heads(model))
        if not f"{path}.{name}.".startswith(weights.heads(model))
    ]
    try:
        for parent, name, module, path in places:
            if module not in made:
                made[module] = stored(module, storage)
                _note(base, path, module, made[module])
            parent._modules[name] = made[module]
        base.constants = _digest(model)
        with _in_fp32(model):
            yield base
    finally:
        for parent, name, module, _ in places:
            parent._modules[name] = module


def _note(base: Base, path: str, module: Any, layer: Any) -> None:
    weight = (module.weight.t() if isinstance(module, Conv1D) else module.weight).detach().float().cpu()
    size = torch.linalg.vector_norm(weight).clamp(min=torch.finfo(torch.float32).tiny)
    base.errors[path] = float(torch.linalg.vector_norm(layer.decoded().cpu() - weight) / size)


@contextmanager
def _in_fp32(model: torch.nn.Module) -> Iterator[None]:
    before = {p: p.data for p in model.parameters() if p.dtype in (torch.bfloat16, torch.float16)}
    try:
        for parameter in before:
            parameter.data = parameter.data.float()
        yield
    finally:
        for parameter, data in before.items():
            parameter.data = data


def layers(model: torch.nn.Module) -> dict[str, Any]:
    """Return the stored layers of a model by path."""
    return {path: module for path, module in model.named_modules() if is_stored(module)}


def parts(layer: Any) -> dict[str, list[torch.Tensor]]:
    """Return what is really stored for the weights of a layer: codes, constants, and tables of levels."""
    weight: Any = layer.weight
    if isinstance(layer, Int4Linear):
        buffers = dict(layer.named_buffers())
        tables = [buffers.pop("nested_map")] if "nested_map" in buffers else []
        return {"codes": [weight.data], "constants": list(buffers.values()), "tables": tables}
    if weight.dtype == torch.int8:
        return {"codes": [weight.data], "constants": [layer.row_constants], "tables": []}
    state = weight.quant_state
    found = {"codes": [weight.data], "constants": [state.absmax], "tables": [state.code]}
    if state.nested:
        found["constants"] += [state.state2.absmax, state.offset]
        found["tables"].append(state.state2.code)
    return found


def _digest(model: torch.nn.Module) -> str:
    """Hash the constants of all stored layers; their codes are parameters, and are watched as such."""
    found = hashlib.sha256()
    for layer in layers(model).values():
        for tensor in parts(layer)["constants"]:
            found.update(weights.content(tensor))
    return found.hexdigest()


def evidence(model: torch.nn.Module, base: Base) -> dict[str, Any]:
    """Return what the live model stores: classes, bytes, bits a weight (codes and constants) and errors.

    Constants that changed meanwhile are a fault of paribus: RuntimeError.
    """
    if _digest(model) != base.constants:
        raise RuntimeError("the constants of a quantised base moved in training")
    found = layers(model)
    sizes: Counter[str] = Counter()
    for layer in found.values():
        for part, tensors in parts(layer).items():
            sizes[part] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    counted = sum(math.prod(layer.decoded().shape) for layer in found.values())
    return {
        "layers_quantised": dict(Counter(type(layer).__name__ for layer in found.values())),
        "weights_quantised": counted,
        "bytes_in_fp32": 4 * counted,
        **{f"bytes_of_{part}": sizes[part] for part in ("codes", "constants", "tables")},
        "bits_per_weight": 8 * (sizes["codes"] + sizes["constants"]) / counted if counted else None,
        "mean_relative_error": sum(base.errors.values()) / len(base.errors) if base.errors else None,
    }
