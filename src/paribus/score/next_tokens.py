"""The logits behind rows of tokens of unequal lengths, each the same as if its row stood alone."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paribus.score.variants import decoder, last_logits, virtual_tokens

if TYPE_CHECKING:
    import torch


@contextmanager
def reading(model: Any) -> Iterator[None]:
    """Have a model in evaluation mode without gradients, and put back the mode of each of its modules."""
    import torch

    from paribus.techniques.tuning.saved import quiet

    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), quiet():
            yield
    finally:
        for module, training in before.items():
            module.training = training


def _parameters(model: Any) -> Any:
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    return inspect.signature(base.forward).parameters


def takes_padding(model: Any) -> bool:
    """Say whether rows can be told their positions: peft drops them, and moves virtual tokens by padding."""
    return not virtual_tokens(model) and "position_ids" in _parameters(model)


class Reader:
    """Gives the logits behind rows that grow by a token at a time, from a cache where the model has one."""

    def __init__(self, model: Any, prompts: Sequence[Sequence[int]]) -> None:
        import torch

        device, longest = next(model.parameters()).device, max(map(len, prompts))
        self.model, self.cache, self.padded = model, None, takes_padding(model)
        self.ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
        self.mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
        known = _parameters(model)
        self.masked = "attention_mask" in known
        self.name = "cache" if "cache" in known else "past_key_values"
        self.fixed = last_logits(model) | ({"use_cache": True} if "use_cache" in known else {})

    def logits(self) -> torch.Tensor:
        """Return the logits [rows, vocabulary] of the next token, in fp32."""
        given: dict[str, Any] = {"input_ids": self.ids if self.cache is None else self.ids[:, -1:]}
        if self.padded or (self.masked and self.cache is None):
            given["attention_mask"] = self.mask
        if self.padded:
            positions = (self.mask.cumsum(-1) - 1).clamp(min=0)
            given["position_ids"] = positions[:, -given["input_ids"].shape[1] :]
        if self.cache is not None:
            given[self.name] = self.cache
        output = (self.model if self.cache is None else decoder(self.model))(**given, **self.fixed)
        self.cache = getattr(output, self.name, None)
        return output.logits[:, -1].float()

    def add(self, tokens: Sequence[int]) -> None:
        """Put a token behind each row."""
        import torch

        column = torch.tensor(tokens, device=self.ids.device).unsqueeze(1)
        self.ids = torch.cat([self.ids, column], 1)
        self.mask = torch.cat([self.mask, torch.ones_like(column)], 1)
