"""A decoder with a head that names the class of a text, read at its last token."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from paribus.sources.blocks import Norm
from paribus.techniques import NoEffect, sub_seed
from paribus.techniques.tuning import weights

GROUPS: Final = 8
EPSILON: Final = 1e-5
MOMENTUM: Final = 0.1
"""How far a batch moves the running mean and variance that evaluation uses."""


class BatchNorm(nn.BatchNorm1d):
    """Normalise each feature over the rows of a micro-batch, so a row's output depends on who shares it.

    In evaluation the running mean and variance of training take the place of the batch's. Source: Ioffe and
    Szegedy 2015, arXiv:1502.03167, algorithm 1.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if self.training and len(input) < 2:
            raise NoEffect(
                "classifier_norm",
                "batch normalisation met a micro-batch of one row, whose variance is zero",
                "choose sizes that leave two rows for the last one, or set model.classifier_norm: layer",
            )
        return super().forward(input)


class Head(nn.Module):
    """Hidden state [rows, d] -> norm -> linear layer -> logits [rows, classes]; in fp32 at least.

    `layer` normalises the features of a row, `group` those of each of its 8 groups (as many as divide both 8
    and d), `batch` each feature over the rows. The weights are normal with the deviation of the model's
    config, keyed by their name, so that all arms of a seed share them; the bias is zero.
    """

    always_trains = True

    def __init__(self, width: int, classes: int, norm: Norm, deviation: float, seed: int) -> None:
        super().__init__()
        self.norm = _norm(norm, width)
        self.linear = nn.Linear(width, classes)
        generator = torch.Generator().manual_seed(sub_seed(seed, "init", "head.linear.weight"))
        with torch.no_grad():
            self.linear.weight.normal_(0, deviation, generator=generator)
            self.linear.bias.zero_()

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(hidden.to(self.linear.weight.dtype)))


def _norm(kind: Norm, width: int) -> nn.Module:
    match kind:
        case "none":
            return nn.Identity()
        case "layer":
            return nn.LayerNorm(width, eps=EPSILON)
        case "group":
            return nn.GroupNorm(math.gcd(GROUPS, width), width, eps=EPSILON)
        case "batch":
            return BatchNorm(width, eps=EPSILON, momentum=MOMENTUM)


class Classifier(PreTrainedModel):
    """A causal language model whose head for tokens has been replaced by one for classes.

    The decoder is what a way of tuning is about; the head trains under each of them.
    """

    base_model_prefix = "decoder"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    supports_gradient_checkpointing = True

    def __init__(self, model: PreTrainedModel, classes: int, norm: Norm, seed: int) -> None:
        super().__init__(model.config)
        config: Any = model.config.get_text_config()
        self.decoder = model.base_model
        words: Any = model.get_output_embeddings()  # some decoders give another width than their layers have
        width = words.weight.shape[1]
        self.head = Head(width, classes, norm, getattr(config, "initializer_range", 0.02), seed)
        self.classes, self.norm = classes, norm
        self.prepare_inputs_for_generation = _no_text  # peft asks for it, and nobody calls it
        self.train(model.training)

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        """Leave the experts of a mixture to the decoder, as with its attention."""
        return True

    @property
    def architecture(self) -> str:
        """Say what this is in a result."""
        return f"{type(self.decoder).__name__} with a head of {self.classes} classes, norm {self.norm}"

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the decoder."""
        return self.decoder.get_input_embeddings()  # type: ignore[operator]

    def get_output_embeddings(self) -> nn.Module:
        """Return the layer that gives the logits."""
        return self.head.linear

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **others: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits [rows, classes] of texts that are padded on the right."""
        given = {name: value for name, value in others.items() if value is not None}
        output = self.decoder(input_ids=input_ids, attention_mask=attention_mask, **given)
        hidden = output.last_hidden_state
        return SequenceClassifierOutput(
            logits=self.head(hidden[torch.arange(len(hidden)), _last(hidden, attention_mask)])
        )


def _no_text(*_: Any, **__: Any) -> dict[str, Any]:
    raise NotImplementedError("a classifier generates no text")


def _last(hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the place of each row's last real token in `hidden` [rows, tokens, d].

    The mask may be longer by virtual tokens in front, which a prompt method adds.
    """
    if mask is None:
        return torch.full((len(hidden),), hidden.shape[1] - 1, device=hidden.device)
    places = torch.arange(mask.shape[1], device=mask.device)
    last = (places * (mask != 0)).amax(1) - (mask.shape[1] - hidden.shape[1])
    return last.to(hidden.device)


def evidence(model: nn.Module, observed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head of a trained classifier and how much of it moved; digests are taken from `observed`."""
    before, after = observed["initial_weights"], observed.get("final_weights") or weights.digests(model)
    names = [name for name in after if name.startswith(weights.heads(model))]
    head = next(module for module in model.modules() if isinstance(module, Head))
    batches = getattr(head.norm, "num_batches_tracked", None)
    return {
        "norm": type(head.norm).__name__,
        "classes": head.linear.out_features,
        "head_parameters": sum(parameter.numel() for parameter in head.parameters()),
        "head_tensors_moved": sum(after[name] != before[name] for name in names),
        "head_tensors": len(names),
    } | ({} if batches is None else {"batches_in_running_statistics": int(batches)})
