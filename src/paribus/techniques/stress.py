"""Stress: a model whose function is the same and whose numbers are harder to round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting, Technique, sub_seed

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_NAME: Final = "stress"
_QKV: Final = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_LLAMA: Final = {"input_layernorm": _QKV, "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj")}
READERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "gemma": _LLAMA,
    "gpt2": {"ln_1": ("attn.c_attn",), "ln_2": ("mlp.c_fc",)},
    "gpt_neox": {
        "input_layernorm": ("attention.query_key_value",),
        "post_attention_layernorm": ("mlp.dense_h_to_4h",),
    },
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "opt": {"self_attn_layer_norm": _QKV, "final_layer_norm": ("fc1",)},
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}
"""By type of model: the norms of a layer and the linear layers that read what each gives."""
ONE_MORE: Final = ("gemma",)
"""Types of models whose norms multiply by 1 + weight."""


class NoStress(Technique):
    """Leave the model's channels at the size they have."""

    kind: Literal["none"] = "none"


class OutlierChannels(Technique):
    """Make a few channels of what linear layers read much larger, and their weights as much smaller.

    The gain of each norm is raised in `channels` channels by `factor`, and what reads them is divided by it:
    the function in fp32 stays, to the last bit where `factor` is a power of two. The channels are the same
    in every layer and for every seed, as the outliers of large models are (Dettmers et al. 2022,
    arXiv:2208.07339, section 3), so that seeds do not differ in how hard their model is to round. After
    training the weights are taken back.

    - `channels`: how many channels are raised.
    - `factor`: by how much; outliers of large models are 20 to 60 times the rest. At 64, 8-bit floats lose
      little and integers and 4 bits much: an exponent holds what a scale has to give up.
    """

    paper: ClassVar = "Dettmers et al. 2022, arXiv:2208.07339"

    kind: Literal["outlier_channels"] = "outlier_channels"
    channels: int = Field(4, ge=1)
    factor: float = Field(64.0, gt=1)

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Say so where it is not known which layers read a norm, or there are too few channels."""
        model = setting.model
        if model.model_type not in READERS:
            reason = f"it is not known which linear layers of a {model.model_type} read which norms"
            return Obstacle(reason, f"set stress: none, or take one of {', '.join(READERS)}")
        if 2 * self.channels >= model.hidden_size:
            reason = f"{self.channels} channels of {model.hidden_size} are no outliers"
            return Obstacle(reason, f"set stress.channels below {model.hidden_size // 2}")
        return None

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Rescale norms and readers, watch one forward pass, and scale back in the end."""
        pairs = _pairs(model)
        chosen = _channels(model, self.channels)
        seen = live.observed[_NAME] = _Seen(chosen.tolist())
        more = 1.0 if model.config.model_type in ONE_MORE else 0.0
        with ExitStack() as stack:
            for norm, readers in pairs:
                stack.callback(_rescale, norm, readers, chosen, 1 / self.factor, more)
                _rescale(norm, readers, chosen, self.factor, more)
            stack.callback(pairs[0][0].register_forward_hook(seen.watch).remove)
            yield model

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the channels and how far the largest stands out of the middle one, before and after.

        Of the root mean squares of channels that the first norm gave in the first micro-batch.
        """
        seen: _Seen = live.observed[_NAME]
        if not seen.amplitudes:
            raise NoEffect(_NAME, "the first norm of the model was never run", "set stress: none")
        plain = list(seen.amplitudes)
        for channel in seen.channels:
            plain[channel] /= self.factor
        after, before = _outstanding(seen.amplitudes), _outstanding(plain)
        if after < 2 * before:
            reason = f"the largest channel stands out {after:.3g} times, and did so {before:.3g} times before"
            raise NoEffect(_NAME, reason, "raise stress.factor")
        return {"channels": seen.channels, "largest_to_median": {"before": before, "after": after}}


@dataclass
class _Seen:
    """The channels that were raised and the root mean square of each channel in one forward pass."""

    channels: list[int]
    amplitudes: list[float] = field(default_factory=list)

    def watch(self, module: torch.nn.Module, _: Any, output: torch.Tensor) -> None:
        """Measure the first training forward pass."""
        if module.training and not self.amplitudes:
            flat = output.detach().float().flatten(0, -2)
            self.amplitudes = flat.square().mean(0).sqrt().tolist()


def _outstanding(amplitudes: Sequence[float]) -> float:
    """Return the largest over the median, to four digits."""
    middle = sorted(amplitudes)[len(amplitudes) // 2]
    return float(f"{max(amplitudes) / max(middle, 1e-30):.4g}")


def _pairs(model: Any) -> list[tuple[Any, list[Any]]]:
    """Return each norm with the linear layers that read it; raises NoEffect for an unknown architecture."""
    from paribus.techniques.memory import decoder_layers

    known = READERS.get(model.config.model_type)
    if known is None:
        reason = f"it is not known which layers of a {model.config.model_type} read which norms"
        raise NoEffect(_NAME, reason, "set stress: none")
    return [
        (layer.get_submodule(norm), [layer.get_submodule(path) for path in readers])
        for layer in decoder_layers(model)
        for norm, readers in known.items()
    ]


def _channels(model: Any, count: int) -> torch.Tensor:
    """Choose channels by the width of the model alone."""
    import torch

    width = model.config.hidden_size
    generator = torch.Generator().manual_seed(sub_seed(0, _NAME, width))
    return torch.randperm(width, generator=generator)[:count].sort().values


def _rescale(norm: Any, readers: Sequence[Any], channels: torch.Tensor, factor: float, more: float) -> None:
    """Multiply what a norm gives in some channels, and divide what reads them."""
    import torch
    from transformers.pytorch_utils import Conv1D

    with torch.no_grad():
        chosen = channels.to(norm.weight.device)
        norm.weight[chosen] = (norm.weight[chosen] + more) * factor - more
        if getattr(norm, "bias", None) is not None:
            norm.bias[chosen] *= factor
        for reader in readers:
            if isinstance(reader, Conv1D):
                reader.weight[chosen] /= factor
            else:
                reader.weight[:, chosen] /= factor
