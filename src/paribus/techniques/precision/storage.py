"""In which format weights are kept between optimizer steps, and the optimizer's moments beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from paribus.techniques.base import OF_THIS_PROCESS, Live, NoEffect, Technique
from paribus.techniques.precision.formats import FORMATS, Format, round_to, stochastic_round
from paribus.techniques.tuning import weights

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_OBSERVED: Final = "master_weights"
_WAY_OUT: Final = "set master_weights: fp32"
_OTHER: Final = "set training.optimizer: adamw, or optimizer_states: fp32"


class Fp32Master(Technique):
    """Keep weights as they are loaded, in fp32 unless `model.load_dtype` says otherwise."""

    kind: Literal["fp32"] = "fp32"


class NoMaster(Technique):
    """Keep no fp32 master weights: all weights hold values of a low-precision format alone.

    They are rounded to the nearest value before training, frozen ones too, as a model is that was loaded in
    the format; what trains is rounded again after every optimizer step. An update of less than half the step
    between two values then vanishes: in bf16, where that is 2^-9 of a weight, most of those of a small
    learning rate.

    - `format`: of the weights. Numbers beyond its largest become infinite in bf16 and fp16 and the largest
      one in 8 bits, which have no scale here.
    - `rounding`: `nearest`, ties to even; or `stochastic`, up or down with the odds of how near each
      neighbour is, so that small updates survive on average (Gupta et al. 2015, arXiv:1502.02551). A draw is
      keyed by step and parameter.
    - `optimizer_states`: `same` rounds the optimizer's moments after every step too, in the same way. In bf16
      the nearest second moment of AdamW cannot fall by its 0.1 % a step.

    This is emulated: tensors keep their dtype and their size in memory. `model.load_dtype: bfloat16` really
    stores weights, gradients, moments and activations in bf16 and computes in it. From the same gradients
    torch's fused AdamW, which rounds once a step, then makes the same weights to the last bit as `format:
    bf16, optimizer_states: same` does here; whole trainings differ by their products, which `precision`
    rounds, and by sums of gradients (`gradient_accumulation_steps.gradient_dtype`). Adapters that peft adds
    to a model in bf16 stay fp32; here they are rounded like all else.
    """

    paper: ClassVar = "Zamirai et al. 2020, arXiv:2010.06192"

    kind: Literal["none"] = "none"
    format: Literal["bf16", "fp16", "e4m3", "e5m2"] = "bf16"
    rounding: Literal["nearest", "stochastic"] = "nearest"
    optimizer_states: Literal["fp32", "same"] = "fp32"

    @property
    def form(self) -> Format:
        """Return the format by its bits."""
        return FORMATS[self.format]

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Round all weights once; frozen ones get their own values back at the end."""
        import torch

        stored = live.observed[_OBSERVED] = Stored()
        frozen = [(p, p.detach().clone()) for p in _floating(model) if not p.requires_grad]
        try:
            with torch.no_grad():
                for parameter in _floating(model):
                    rounded = round_to(parameter, self.form)
                    stored.at_start += int((rounded != parameter).sum())
                    parameter.copy_(rounded)
            if "initial_weights" in live.observed:
                weights.remember(model, live)
            yield model
        finally:
            with torch.no_grad():
                for parameter, own in frozen:
                    parameter.copy_(own)

    def before_step(self, model: torch.nn.Module, live: Live) -> bool:
        """Keep the weights that the step starts from."""
        live.observed[_OBSERVED].before = [p.detach().clone() for _, p in _training(model)]
        return True

    def after_step(self, model: torch.nn.Module, live: Live) -> None:
        """Round what trains, and the moments, and count updates that left a weight as it was."""
        import torch

        stored: Stored = live.observed[_OBSERVED]
        counts = []
        with torch.no_grad():
            for (name, parameter), before in zip(_training(model), stored.before, strict=True):
                rounded = self._rounded(parameter, live, name)
                updated = parameter != before
                vanished = updated & (rounded == before)
                counts.append(torch.stack([c.sum() for c in (updated, vanished, rounded != parameter)]))
                parameter.copy_(torch.where(vanished, before, rounded))  # which keeps the sign of a zero
                if self.optimizer_states == "same":
                    for key, moment in _moments(live, parameter).items():
                        moment.copy_(self._rounded(moment, live, name, key))
        stored.before, stored.last = [], torch.stack(counts).sum(0).tolist()
        stored.counts = [sum(both) for both in zip(stored.counts, stored.last, strict=True)]

    def _rounded(self, values: torch.Tensor, live: Live, *place: str) -> torch.Tensor:
        import torch

        if self.rounding == "nearest":
            return round_to(values, self.form)
        generator = torch.Generator().manual_seed(live.draw_seed("rounding", live.step, *place))
        draws = torch.rand(values.shape, generator=generator).to(values.device)
        return stochastic_round(values, self.form, draws)

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many updates vanished, and that the model holds values of the format alone.

        An update is a weight that the optimizer changed in a step. Raises NoEffect where rounding changed
        nothing, and where a weight or moment is off the format's values.
        """
        stored: Stored = live.observed[_OBSERVED]
        found = self._on_format(model, live)
        updates, vanished, rounded = stored.counts
        if not rounded + stored.at_start:
            dtypes = {str(p.dtype).removeprefix("torch.") for _, p in _training(model)}
            reason = (
                f"no weight was changed by rounding to {self.format}: they are stored in {', '.join(dtypes)}"
            )
            raise NoEffect(_OBSERVED, reason, f"{_WAY_OUT}, or model.load_dtype: float32")
        return {
            "stored_as": self.format,
            "rounded_at_start": stored.at_start,
            "updates": updates,
            "share_vanished": vanished / max(updates, 1),
            "share_vanished_in_last_step": stored.last[1] / max(stored.last[0], 1),
            **found,
        }

    def _on_format(self, model: torch.nn.Module, live: Live) -> dict[str, int]:
        """Count weights, and moments that are rounded, that are no values of the format; none may be."""
        kept: dict[str, list[torch.Tensor]] = {"weights": [*_floating(model)]}
        if self.optimizer_states == "same":
            kept["moments"] = [m for _, p in _training(model) for m in _moments(live, p).values()]
            if not kept["moments"]:
                raise NoEffect(_OBSERVED, f"{type(live.optimizer).__name__} keeps no moments", _OTHER)
        found = {f"{name}_off_format": sum(map(self._off, tensors)) for name, tensors in kept.items()}
        for name, count in found.items():
            if count:
                reason = f"{count:,} {name.replace('_', ' ')} {self.format}: something changed them later"
                raise NoEffect(_OBSERVED, reason, _WAY_OUT)
        return found

    def _off(self, values: torch.Tensor) -> int:
        return int(((round_to(values.detach(), self.form) != values) & ~values.isnan()).sum())


@dataclass
class Stored:
    """What rounding did: weights changed before training; updates, vanished ones and weights changed since.

    `last` are the counts of the last step, and `before` the weights it starts from.
    """

    at_start: int = 0
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    last: list[int] = field(default_factory=lambda: [0, 0, 0])
    before: list[torch.Tensor] = field(default_factory=list, metadata=OF_THIS_PROCESS)


def _floating(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    """Yield the parameters that are numbers and no codes."""
    return (parameter for parameter in model.parameters() if parameter.is_floating_point())


def _training(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _moments(live: Live, parameter: torch.nn.Parameter) -> dict[str, torch.Tensor]:
    """Return what the optimizer keeps of a parameter's gradients; raises NoEffect where that is in 8 bits."""
    state: Mapping[str, Any] = live.optimizer.state.get(parameter, {}) if live.optimizer else {}
    kept = {key: one for key, one in state.items() if hasattr(one, "dim") and one.dim() and key != "step"}
    if not all(moment.is_floating_point() for moment in kept.values()):
        raise NoEffect(_OBSERVED, f"{type(live.optimizer).__name__} keeps its moments in 8 bits", _OTHER)
    return kept
