"""Dropout: the usual rival of noisy embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.machine import Machine
from paribus.techniques import draws
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting, Technique

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

BLOCKS: Final = {
    "gemma": ("self_attn", "mlp"),
    "gemma2": ("post_attention_layernorm", "post_feedforward_layernorm"),
    "gpt2": ("attn", "mlp"),
    "gpt_neox": ("attention", "mlp"),
    "llama": ("self_attn", "mlp"),
    "mistral": ("self_attn", "mlp"),
    "opt": ("self_attn", "fc2"),
    "qwen2": ("self_attn", "mlp"),
    "qwen3": ("self_attn", "mlp"),
}
"""By type of model: the modules of a layer whose outputs are added to the residual stream."""
_WAY_OUT: Final = "set where: embedding"


class Dropout(Technique):
    """Zero each activation with probability `p` while training and scale the rest by 1 / (1 - p).

    Every example draws for itself at every place, so the split of a batch cannot matter. The model's own
    dropout, whose draws would depend on it, is off in every arm. Source: Srivastava et al. 2014, "Dropout: A
    Simple Way to Prevent Neural Networks from Overfitting", JMLR 15, section 4.

    - `p`: the probability of being zeroed.
    - `where`: `embedding` is the output of the input embedding, after NEFTune's noise if there is any;
      `hidden` the output of each attention and feed-forward block before it is added to the residual stream
      (the residual dropout of Vaswani et al. 2017, section 5.4).
    """

    shorthand: ClassVar = "p"
    paper: ClassVar = "Srivastava et al. 2014, JMLR 15"

    p: float = Field(default=0.0, ge=0, lt=1)
    where: Literal["embedding", "hidden"] = "embedding"

    @property
    def label(self) -> str:
        return f"{self.where} {self.p:g}" if self.p else "0"

    def canonical(self) -> dict[str, Any]:
        """Without a probability its place says nothing, so nothing is left."""
        return super().canonical() if self.p else {}

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say so where it is not known which modules of a model feed its residual stream."""
        if not self.p or self.where == "embedding" or setting.model.model_type in BLOCKS:
            return None
        return Obstacle(_unknown(setting.model.model_type), _WAY_OUT)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Hook the chosen places; without a probability nothing is hooked."""
        if not self.p:
            yield model
            return
        observed = live.observed["dropout"] = _Observed()
        embedding = model.get_input_embeddings()
        hidden = self._hidden(model) if self.where == "hidden" else {}
        with ExitStack() as stack:
            if hidden:
                stack.callback(embedding.register_forward_hook(observed.measure).remove)
            for path, module in (hidden or {"embedding": embedding}).items():
                hook = self._hook(path, live, observed)
                stack.callback(module.register_forward_hook(hook).remove)
                observed.places += 1
            yield model

    def _hidden(self, model: PreTrainedModel) -> dict[str, torch.nn.Module]:
        """Return each block that feeds the residual stream, by its path in the model without adapters."""
        base = getattr(model, "get_base_model", lambda: model)()
        kind = base.config.model_type
        names = BLOCKS.get(kind)
        if names is None:
            raise NoEffect("dropout", _unknown(kind), _WAY_OUT)
        found = {
            f"{path}.{name}": module._modules[name]
            for path, module in base.named_modules()
            if path and all(name in module._modules for name in names)
            for name in names
        }
        if not found:
            raise NoEffect(
                "dropout", f"no layer of {type(base).__name__} has {' and '.join(names)}", _WAY_OUT
            )
        return found  # type: ignore[return-value]

    def _hook(self, path: str, live: Live, observed: _Observed) -> Callable[..., Any]:
        def drop(module: torch.nn.Module, _: Any, output: Any) -> Any:
            if not module.training:
                return None
            first = output[0] if isinstance(output, tuple) else output
            virtual = observed.virtual(first, live)
            dropped = draws.dropped(first, live, self.p, path, virtual=virtual)
            observed.see(first, dropped, live, virtual)
            return (dropped, *output[1:]) if isinstance(output, tuple) else dropped

        return drop

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many places were hooked and which share of their activations was really zeroed."""
        if not self.p:
            return {"p": 0}
        observed: _Observed = live.observed["dropout"]
        if not observed.elements or not float(observed.zeroed):
            raise NoEffect("dropout", "no activation was zeroed", "raise p, train longer or set dropout: 0")
        share = float(observed.zeroed) / observed.elements
        return {"p": self.p, "where": self.where, "places": observed.places, "share_zeroed": share}


def _unknown(kind: str) -> str:
    return (
        f"it is not known which modules of a {kind} feed its residual stream; known are {', '.join(BLOCKS)}"
    )


@dataclass
class _Observed:
    """What was dropped, summed on the device; `places` counts the hooks."""

    places: int = 0
    zeroed: Any = 0.0
    elements: int = 0
    tokens: int = 0
    """The tokens of the current micro-batch as embedded: rows x padded length."""

    def measure(self, module: torch.nn.Module, _: Any, embedded: torch.Tensor) -> None:
        self.tokens = embedded.shape[0] * embedded.shape[1]

    def virtual(self, activations: torch.Tensor, live: Live) -> int:
        """Count the tokens that a prompt method has put in front of each row since the embedding."""
        more = activations.numel() // activations.shape[-1] - self.tokens
        return more // len(live.lengths) if self.tokens else 0

    def see(self, before: torch.Tensor, after: torch.Tensor, live: Live, virtual: int) -> None:
        """Count what was zeroed; padding is never dropped, so it is left out of both counts."""
        self.zeroed = self.zeroed + ((after == 0) & (before != 0)).sum()
        self.elements += (sum(live.lengths) + virtual * len(live.lengths)) * before.shape[-1]
