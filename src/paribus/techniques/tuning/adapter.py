"""Bottleneck adapters: a small network of two layers behind, or beside, the blocks of each layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import Field, model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.last_layers import decoder_layers
from paribus.techniques.tuning.tuner import Tuner

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

ATTENTION: Final = ("self_attn", "attn", "attention", "self_attention")
FEED_FORWARD: Final = ("mlp", "feed_forward", "ffn")


class Block(NamedTuple):
    """A block of a layer: the module that its input enters and the one that its output leaves."""

    entry: str
    exit: str


class Adapter(Tuner):
    """Add scaling * (W_up f(W_down x + b_down) + b_up) to the output of blocks, and train these layers alone.

    `placement`: `houlsby` reads the output of each attention and feed-forward block, `pfeiffer` that of the
    feed-forward block alone; `parallel` reads the input of the feed-forward block and adds to its output. The
    bottleneck is hidden_size // `reduction_factor` wide, or `bottleneck` where that is given; f is
    `non_linearity`. `scaling` is 1 in the first two papers and 4 in the third. W_up starts at zero, so
    training starts at the base. With d the width, m the bottleneck and n the adapted blocks, n (2dm + m + d)
    parameters train. It cannot be merged: f stands between the two matrices.
    Source: Houlsby et al. 2019, arXiv:1902.00751, figure 2; Pfeiffer et al. 2020, arXiv:2005.00247;
    He et al. 2021, arXiv:2110.04366, table 1.
    """

    paper: ClassVar = (
        "Houlsby et al. 2019, arXiv:1902.00751; Pfeiffer et al. 2020, arXiv:2005.00247; "
        "He et al. 2021, arXiv:2110.04366"
    )

    kind: Literal["adapter"] = "adapter"
    placement: Literal["houlsby", "pfeiffer", "parallel"] = "houlsby"
    reduction_factor: int = Field(16, ge=1)
    bottleneck: int | None = Field(None, ge=1)
    non_linearity: Literal["relu", "gelu", "swish", "tanh"] = "relu"
    scaling: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _one_width(self) -> Adapter:
        if self.bottleneck is not None and self.reduction_factor != 16:
            raise ValueError("give either reduction_factor or bottleneck, and not both")
        return self

    def canonical(self) -> dict[str, Any]:
        """Where the bottleneck is given, the factor says nothing."""
        whole = super().canonical()
        unused = "bottleneck" if self.bottleneck is None else "reduction_factor"
        return {name: value for name, value in whole.items() if name != unused}

    def width(self, hidden_size: int) -> int:
        """Return the width of the bottleneck in a model of that width."""
        return hidden_size // self.reduction_factor if self.bottleneck is None else self.bottleneck

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        if self.width(setting.model.hidden_size):
            return None
        reason = f"a width of {setting.model.hidden_size} over {self.reduction_factor} leaves no bottleneck"
        return Obstacle(reason, "set a smaller tuning.reduction_factor, or tuning.bottleneck")

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Put an adapter at each block; each is drawn by the name of its block alone."""
        with weights.training_only(model, lambda name: False), ExitStack() as stack:
            path, layers = decoder_layers(model)
            for number, layer in enumerate(layers):
                for block in self._blocks(layer):
                    place = f"{path}.{number}.{block.exit}"
                    stack.enter_context(self._added(model, layer, block, live.draw_seed("init", place)))
            weights.remember(model, live)
            yield model

    def _blocks(self, layer: torch.nn.Module) -> list[Block]:
        """Find the blocks of a layer; raises NoEffect where their names are unknown."""
        children = dict(layer.named_children())
        attention = [Block(name, name) for name in ATTENTION if name in children]
        feed_forward = [Block(name, name) for name in FEED_FORWARD if name in children]
        if not feed_forward and {"fc1", "fc2"} <= children.keys():
            feed_forward = [Block("fc1", "fc2")]
        if not attention or not feed_forward:
            reason = f"{type(layer).__name__} has no blocks of known names: {', '.join(children)}"
            raise NoEffect(self.kind, reason, "set tuning: lora")
        return [*(attention[:1] if self.placement == "houlsby" else []), feed_forward[0]]

    @contextmanager
    def _added(
        self, model: PreTrainedModel, layer: torch.nn.Module, block: Block, seed: int
    ) -> Iterator[None]:
        """Add one adapter to a block; fp32, or the base's fp64."""
        import torch

        from paribus.techniques.tuning import bottleneck

        size = model.config.get_text_config().hidden_size
        non_linearity = bottleneck.NON_LINEARITIES[self.non_linearity]()
        adapter = bottleneck.Bottleneck(size, self.width(size), non_linearity, self.scaling, seed)
        adapter.to(model.device, torch.promote_types(model.dtype, torch.float32))
        leaves = layer.get_submodule(block.exit)
        parallel = self.placement == "parallel"
        entry = layer.get_submodule(block.entry)
        with bottleneck.beside(entry, leaves, adapter) if parallel else bottleneck.behind(leaves, adapter):
            yield

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the evidence of every tuning, and how many blocks carry an adapter of which width."""
        from paribus.techniques.tuning.bottleneck import adapters

        found = adapters(model)
        width = found[0].down.out_features
        return super().proof(model, live) | {"blocks_adapted": len(found), "bottleneck": width}

    def merged(self, model: torch.nn.Module) -> None:
        """Nothing merges: a non-linearity stands between the two matrices."""
        return None
