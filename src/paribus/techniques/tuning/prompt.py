"""Prompt methods: the model stays as it is, and virtual tokens in front of each row train."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.memory import PREFIXED
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.peft_tuner import ADAPTER, PeftTuner
from paribus.techniques.tuning.saved import quiet
from paribus.techniques.tuning.tuner import TRAINED

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel


class PromptMethod(PeftTuner):
    """What prompt methods share: virtual tokens take the first positions and are masked for no row.

    Rows are padded on the right, so neither padding nor its mask moves a real token. Nothing can be merged:
    the update is an input, not a change of a weight.
    """

    merges: ClassVar[bool] = False
    num_virtual_tokens: int = Field(8, ge=1)

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Virtual tokens need positions of their own, within what the model reads."""
        limit, longest = setting.model.context_length, setting.max_length or 1
        if limit is None or self.num_virtual_tokens + longest <= limit:
            return None
        reason = (
            f"{self.num_virtual_tokens} virtual tokens and {longest} tokens of text are more than the "
            f"{limit} that {setting.model.architecture} reads"
        )
        room = limit - self.num_virtual_tokens
        way_out = (
            f"set training.max_length to {room} or less"
            if room > 1
            else "set tuning.num_virtual_tokens to fewer"
        )
        return Obstacle(reason, way_out)

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw each part of the encoder by torch's own rule, keyed by its name; fp32, or the base's fp64."""
        import torch

        encoder = wrapped.prompt_encoder[ADAPTER]
        for name, module in encoder.named_modules():
            if reset := getattr(module, "reset_parameters", None):
                torch.manual_seed(live.draw_seed("init", f"prompt_encoder.{name}"))
                reset()
        encoder.to(torch.promote_types(wrapped.dtype, torch.float32))

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the evidence of every tuning, and how many virtual tokens stand in front of a row."""
        count = model.peft_config[ADAPTER].num_virtual_tokens  # type: ignore[union-attr, index]
        return super().proof(model, live) | {"virtual_tokens": count}

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write what trains by name, and beside it the adapter as peft does.

        peft keeps the computed prompts alone, not the encoder they come from: enough to score, not to go on.
        """
        super().save(model, folder)
        weights.save(model, folder / TRAINED)

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back what `save` wrote by name, encoder and all."""
        weights.load(model, folder / TRAINED)

    def shape(self) -> dict[str, Any]:
        """Return the arguments that all prompt configs take; other sizes are read from the model by peft."""
        import peft

        return {
            "task_type": peft.TaskType.CAUSAL_LM,
            "num_virtual_tokens": self.num_virtual_tokens,
            "num_transformer_submodules": 1,
        }


class PromptTuning(PromptMethod):
    """Train `num_virtual_tokens` embeddings that stand in front of every row.

    `prompt_tuning_init` is `random` (standard normal) or `sample_vocab` (embeddings of tokens drawn from the
    whole vocabulary). Source: Lester et al. 2021, arXiv:2104.08691, section 2.
    """

    paper: ClassVar = "Lester et al. 2021, arXiv:2104.08691"

    kind: Literal["prompt"] = "prompt"
    prompt_tuning_init: Literal["random", "sample_vocab"] = "random"

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Initial values are drawn afterwards."""
        import peft

        return peft.PromptTuningConfig(**self.shape(), token_dim=_width(model), prompt_tuning_init="RANDOM")

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw embeddings, or the tokens whose embeddings they start from, keyed by their name."""
        import torch

        super().draw(wrapped, live)
        if self.prompt_tuning_init == "sample_vocab":
            encoder: Any = wrapped.prompt_encoder[ADAPTER]
            embeddings: Any = wrapped.word_embeddings
            prompt, words = encoder.embedding.weight, embeddings.weight
            generator = torch.Generator().manual_seed(live.draw_seed("init", "prompt_encoder.embedding"))
            chosen = torch.randint(words.shape[0], (prompt.shape[0],), generator=generator)
            with torch.no_grad():
                prompt.copy_(words[chosen.to(words.device)])


class PrefixTuning(PromptMethod):
    """Train `num_virtual_tokens` keys and values that stand in front of every layer's own.

    With `prefix_projection` they are computed from smaller embeddings by a network of one hidden layer (tanh)
    of `encoder_hidden_size` (left out: the model's width), which trains as well.
    Source: Li and Liang 2021, arXiv:2101.00190, sections 4.2 and 4.3.
    """

    paper: ClassVar = "Li and Liang 2021, arXiv:2101.00190"

    kind: Literal["prefix"] = "prefix"
    prefix_projection: bool = False
    encoder_hidden_size: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _used(self) -> PrefixTuning:
        if self.encoder_hidden_size is not None and not self.prefix_projection:
            raise ValueError("encoder_hidden_size is that of the projection; set prefix_projection: true")
        return self

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Layers that are computed again would meet a cache that already holds their keys."""
        checkpointing = setting.chosen.get("gradient_checkpointing")
        if checkpointing is not None and getattr(checkpointing, "kind", "none") != "none":
            return PREFIXED
        return super().obstacle(machine, setting)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Wrap the model; peft 0.21 hands the prefix over under a name that transformers 5.24 calls old."""
        with quiet(), super().applied(model, live) as wrapped:
            yield wrapped

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """The number of key heads and their width are read from the model by peft."""
        import peft

        return peft.PrefixTuningConfig(
            **self.shape(),
            init_weights=None,
            prefix_projection=self.prefix_projection,
            encoder_hidden_size=self.encoder_hidden_size or _width(model),
        )

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw as every prompt method does; the prefix must have the shape of the model's own keys.

        peft takes it from the config, which in some models says nothing of heads that share their keys.
        """
        super().draw(wrapped, live)
        made, own = _key_shapes(wrapped.get_prompt(1)), _own_key_shapes(wrapped)
        if made != own:
            name = type(wrapped.get_base_model()).__name__
            reason = f"peft makes keys of (heads, width) {made} for {name}, whose own are {own}"
            raise NoEffect(self.kind, reason, "set tuning: prompt")


class PTuning(PromptMethod):
    """Train `num_virtual_tokens` embeddings in front of every row, and the network that computes them.

    `encoder_reparameterization_type`: `MLP` of two hidden layers, or a bidirectional `LSTM` of
    `encoder_num_layers` layers with an MLP on top; both of `encoder_hidden_size` (left out: the model's
    width).
    Source: Liu et al. 2021, arXiv:2103.10385, section 3.2.
    """

    paper: ClassVar = "Liu et al. 2021, arXiv:2103.10385"

    kind: Literal["p_tuning"] = "p_tuning"
    encoder_reparameterization_type: Literal["MLP", "LSTM"] = "MLP"
    encoder_hidden_size: int | None = Field(None, ge=1)
    encoder_num_layers: int = Field(2, ge=1)

    @model_validator(mode="after")
    def _used(self) -> PTuning:
        if self.encoder_num_layers != 2 and self.encoder_reparameterization_type == "MLP":
            raise ValueError(
                "the MLP always has two hidden layers; leave out encoder_num_layers, or set "
                "encoder_reparameterization_type: LSTM"
            )
        return self

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Dropout between the layers of the LSTM is off: its draws would depend on the batch."""
        import peft

        return peft.PromptEncoderConfig(
            **self.shape(),
            token_dim=_width(model),
            encoder_reparameterization_type=self.encoder_reparameterization_type,
            encoder_hidden_size=self.encoder_hidden_size or _width(model),
            encoder_num_layers=self.encoder_num_layers,
            encoder_dropout=0.0,
        )


def _own_key_shapes(wrapped: PeftModel) -> list[tuple[int, int]]:
    """Return the heads and width of the keys that each layer of the base caches for one token."""
    import torch

    decoder: Any = wrapped.get_base_model().base_model
    token = torch.zeros(1, 1, dtype=torch.long, device=decoder.device)
    with torch.no_grad():
        return _key_shapes(decoder(input_ids=token, use_cache=True).past_key_values)


def _key_shapes(cache: Any) -> list[tuple[int, int]]:
    return [(layer.keys.shape[1], layer.keys.shape[3]) for layer in cache.layers]


def _width(model: PreTrainedModel) -> int:
    """Return the length of an input embedding, which in some models is not that of the hidden states."""
    embeddings: Any = model.get_input_embeddings()
    return embeddings.embedding_dim
