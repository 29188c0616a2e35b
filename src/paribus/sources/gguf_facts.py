"""What a GGUF file says of its model, read by the `gguf` package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paribus.errors import ModelError, Place
from paribus.sources.cache import remembered
from paribus.techniques.base import ModelFacts

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}


def gguf_description(path: Path, sha256: str) -> tuple[ModelFacts, str | None]:
    """Return the facts of a GGUF file and its chat template; reading takes seconds, so it is remembered."""
    found = remembered("gguf-facts", sha256[:32], lambda: _read(path))
    return ModelFacts.model_validate(found["facts"]), found["template"]


def require_gguf() -> Any:
    """Import the `gguf` package, which the extra of the same name installs; raises ModelError without it."""
    try:
        import gguf
    except ImportError as fault:
        raise ModelError(
            "reading a GGUF file needs the package gguf, which is not installed.",
            way_out="pip install 'paribus[gguf]'",
        ) from fault
    return gguf


def _read(path: Path) -> dict[str, Any]:
    try:
        reader = require_gguf().GGUFReader(path)
    except (ValueError, OSError, IndexError) as fault:
        raise ModelError(f"not a whole GGUF file: {fault}", place=Place(path)) from fault
    fields = reader.fields

    def value(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    kind = str(value("general.architecture"))
    tensors = [tensor for tensor in reader.tensors if not tensor.name.startswith("rope_")]
    embedding = next((tensor for tensor in tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None or not value(f"{kind}.block_count"):
        raise ModelError("does not hold a causal language model.", place=Place(path))
    template = value("tokenizer.chat_template")
    facts = ModelFacts(
        architecture=ARCHITECTURES.get(kind, kind),
        model_type=kind,
        parameters=sum(int(tensor.n_elements) for tensor in tensors),
        bias_parameters=sum(int(t.n_elements) for t in tensors if t.name.endswith(".bias")),
        hidden_size=int(value(f"{kind}.embedding_length")),
        layers=int(value(f"{kind}.block_count")),
        vocabulary=int(embedding.shape[1]),
        context_length=value(f"{kind}.context_length"),
        chat_template=bool(template),
    )
    return {"facts": facts.model_dump(), "template": template}
