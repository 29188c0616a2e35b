"""Models that documents speak of, in their published sizes and without weights: parameters to be counted."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

GB: Final = 1e9
SIZES: Final[dict[str, dict[str, Any]]] = {
    "llama_2_7b": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    },
    "llama_2_13b": {
        "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
        "num_attention_heads": 40, "num_key_value_heads": 40, "vocab_size": 32000,
    },
    "llama_33b": {
        "hidden_size": 6656, "intermediate_size": 17920, "num_hidden_layers": 60,
        "num_attention_heads": 52, "num_key_value_heads": 52, "vocab_size": 32000,
    },
    "llama_2_70b": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
    },
    "llama_3_8b": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    },
}  # fmt: skip
"""Touvron et al. 2023, arXiv:2302.13971, table 2, and arXiv:2307.09288; Llama-3: its config on the hub."""


def on_meta(name: str, **other: Any) -> Any:
    """Return a Llama of published sizes on the meta device: shapes alone, in no memory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device("meta"):
        return LlamaForCausalLM(LlamaConfig(**SIZES[name] | other, tie_word_embeddings=False))


@cache
def parameters(name: str) -> int:
    """Count a model's parameters."""
    return sum(parameter.numel() for parameter in on_meta(name).parameters())


def gigabytes(name: str, bytes_each: float) -> float:
    """Return what a model's parameters take at so many bytes each, in GB of 1e9 bytes."""
    return parameters(name) * bytes_each / GB


@cache
def linear_weights(name: str) -> int:
    """Count the weights of its decoder's linear layers, which LoRA adapts and QLoRA stores in 4 bits."""
    ends = 2 * SIZES[name]["vocab_size"] * SIZES[name]["hidden_size"]
    return sum(p.numel() for p in on_meta(name).parameters() if p.dim() == 2) - ends


def decoded(model: Any, hidden: Any) -> Any:
    """Run a Llama's layers, last norm and head on embeddings [rows, tokens, width], all tokens visible.

    The mask of a whole forward pass reads values, which the meta device has not.
    """
    import torch

    positions = torch.arange(hidden.shape[1], device=hidden.device).unsqueeze(0)
    rotary = model.model.rotary_emb(hidden, positions)
    for layer in model.model.layers:
        hidden = layer(hidden, attention_mask=None, position_embeddings=rotary)
    return model.lm_head(model.model.norm(hidden))


def kept_bytes(model: Any, hidden: Any) -> int:
    """Measure what autograd holds after that pass, weights left out; on the meta device too."""
    import torch

    seen: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        seen[storage._cdata] = storage  # held, so that no other takes its place
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = decoded(model, hidden)
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    del output
    return sum(storage.nbytes() for place, storage in seen.items() if place not in own)


def tiny_llama(dtype: Any = None) -> Any:
    """Return a Llama of two layers of width 16 with random weights, always the same."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "vocab_size": 32,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=2, tie_word_embeddings=False))
    return model.to(dtype or torch.float32)


def with_lora(model: Any, targets: Sequence[str], rank: int, alpha: float) -> Any:
    """Wrap a model's layers of some names as peft does; on the meta device too."""
    import peft

    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(targets))  # type: ignore[arg-type]
    with quiet():
        return peft.get_peft_model(model, config)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what libraries say of one another's old names off the screen."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield
