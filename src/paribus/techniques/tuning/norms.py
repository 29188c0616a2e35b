"""Only the normalisation layers train."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.last_layers import decoder_layers
from paribus.techniques.tuning.tuner import OwnWeights

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_NORM: Final = re.compile(r"norm(1p|[123]d|gated)?$", re.IGNORECASE)
_WITHOUT_WEIGHTS: Final = ("olmo", "nanochat", "hrm_text", "dory")
"""The `model_type` of causal language models whose norms have no weights."""
_WAY_OUT: Final = "set tuning: lora, or use a model whose norms have weights (Llama, GPT-2, OLMo 2)"


class Norms(OwnWeights):
    """Train only the weights and biases of the normalisation layers.

    `where` is all, or layers: only norms inside the decoder layers, as in the article, so neither the one
    behind the last layer nor one on the embeddings. A norm is a module whose class has a name that ends so
    (LayerNorm, LlamaRMSNorm, NemotronLayerNorm1P); norms of queries and keys are inside. Sources: Zhao et al.
    2023, arXiv:2312.11420; from random weights, Frankle et al. 2021, arXiv:2003.00152.
    """

    paper: ClassVar = "Zhao et al. 2023, arXiv:2312.11420"

    trains_base: ClassVar = True

    kind: Literal["norms"] = "norms"
    where: Literal["all", "layers"] = "all"

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if setting.model.model_type not in _WITHOUT_WEIGHTS:
            return None
        return Obstacle(f"the norms of {setting.model.architecture} have no weights to train", _WAY_OUT)

    def chosen(self, model: PreTrainedModel) -> set[str]:
        """Name the weights and biases of the norms."""
        begin = f"{decoder_layers(model)[0]}." if self.where == "layers" else ""
        norms = [(path, own) for path, module, own in _owners(model) if _NORM.search(type(module).__name__)]
        found = {f"{path}.{name}" for path, own in norms if path.startswith(begin) for name in own}
        if not found:
            reason = f"the norms of {type(model).__name__} have no weights to train"
            raise NoEffect(self.kind, reason, _WAY_OUT)
        return found

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the evidence of every tuning, and of which classes the modules are that trained and did not.

        Both are read from the live model: a module that is no norm would stand among those that trained.
        """
        kinds: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
        for _, module, own in _owners(model):
            kinds[any(p.requires_grad for p in own.values())][type(module).__name__] += 1
        still = sum(count for name, count in kinds[False].items() if _NORM.search(name))
        return super().proof(model, live) | {"modules_trained": dict(kinds[True]), "norms_frozen": still}


def _owners(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, dict[str, torch.nn.Parameter]]]:
    """Yield each module outside of heads that has parameters of its own, with its path and with them."""
    for path, module in model.named_modules():
        own = dict(module.named_parameters(recurse=False))
        if own and not path.startswith(weights.heads(model)):
            yield path, module, own
