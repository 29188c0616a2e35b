"""NEFTune: noise on the input embeddings while training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.techniques.base import Live, NoEffect, Technique, added_later
from paribus.techniques.draws import places

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

_NAMED: Final = {
    "scaling": {"article": "article scaling"},
    "length": {"padded": "padded length"},
    "distribution": {"gaussian": "gaussian"},
    "schedule": {name: f"{name} schedule" for name in ("article", "linear", "cosine")},
}
"""How a table names each word that is not the default."""


class Noise(Technique):
    """Add noise of magnitude alpha / sqrt(L * d) to the embeddings of each training example.

    d is the width of the embeddings. Under the defaults the expected norm of an example's noise is
    alpha / sqrt(3), whatever its length and the model's width. Source: Jain et al. 2023, "NEFTune: Noisy
    Embeddings Improve Instruction Finetuning", arXiv:2310.05914, algorithm 1.

    - `scaling`: `paper` divides by sqrt(L * d), `article` by sqrt(L) alone, which is sqrt(d) times louder.
    - `length`: L is that of the `example` in real tokens, or the `padded` length of its micro-batch, as
      transformers has it; then noise depends on how a batch is split. Without padding (`padding_free`) the
      padded length is that of the whole row.
    - `distribution`: `uniform` between minus and plus the magnitude, or `gaussian` of the same variance.
    - `schedule` of alpha over the optimizer steps done: `constant`; `article`, alpha * 0.95^(step / 1000);
      `linear` and `cosine` fall from alpha to zero at the end of training.

    Tokens that a prompt method puts in front, and padding, get no noise.
    """

    shorthand: ClassVar = "alpha"
    paper: ClassVar = "Jain et al. 2023, arXiv:2310.05914"

    alpha: float = Field(0.0, ge=0)
    scaling: Literal["paper", "article"] = "paper"
    schedule: Literal["constant", "article", "linear", "cosine"] = "constant"
    length: Literal["example", "padded"] = added_later("example", as_if_absent="example")
    distribution: Literal["uniform", "gaussian"] = added_later("uniform", as_if_absent="uniform")

    @property
    def label(self) -> str:
        words = [names[word] for field, names in _NAMED.items() if (word := getattr(self, field)) in names]
        return " ".join([*(words if self.alpha else []), f"{self.alpha:g}"])

    def canonical(self) -> dict[str, Any]:
        """Without noise its scaling and schedule say nothing, so nothing is left."""
        return super().canonical() if self.alpha else {}

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Hook the input embedding; without alpha nothing is hooked, so 0 is the baseline bit for bit."""
        if not self.alpha:
            yield model
            return
        observed = live.observed["noise"] = _Observed()

        def add(module: torch.nn.Module, _: Any, embedded: torch.Tensor) -> torch.Tensor | None:
            if not module.training:
                return None
            noised = embedded + self.draw(live, embedded)
            observed.see(embedded, noised, live, self.alpha_at(live))
            return noised

        handle = model.get_input_embeddings().register_forward_hook(add)
        try:
            yield model
        finally:
            handle.remove()

    def draw(self, live: Live, embedded: torch.Tensor) -> torch.Tensor:
        """Draw the noise of the current micro-batch, shaped like `embedded` [rows, padded length, d].

        Each example has its own generator, keyed by epoch and example id and drawn on the CPU in fp32, so a
        draw depends on neither batch, padding, device nor alpha. Padding, on the right, gets none.
        """
        import torch

        padded, width = embedded.shape[1:]
        noise, alpha = torch.zeros(embedded.shape, dtype=embedded.dtype), self.alpha_at(live)
        for example_id, place, real in places(live, embedded):
            generator = torch.Generator().manual_seed(live.draw_seed("noise", live.epoch, example_id))
            length = real if self.length == "example" else padded
            size = length * width if self.scaling == "paper" else length
            noise[place] = self._unit(real, width, generator) * (alpha / math.sqrt(size))
        return noise.to(embedded.device)

    def _unit(self, length: int, width: int, generator: torch.Generator) -> torch.Tensor:
        """Draw noise of magnitude 1: uniform in [-1, 1], or Gaussian of that variance, 1/3."""
        import torch

        if self.distribution == "gaussian":
            return torch.randn(length, width, generator=generator).div_(math.sqrt(3))
        return torch.rand(length, width, generator=generator).mul_(2).sub_(1)

    def alpha_at(self, live: Live) -> float:
        """Return alpha as the schedule has it after the optimizer steps done so far."""
        done = live.step / live.steps
        factors = {
            "constant": 1.0,
            "article": 0.95 ** (live.step / 1000),
            "linear": 1 - done,
            "cosine": (1 + math.cos(math.pi * done)) / 2,
        }
        return self.alpha * factors[self.schedule]

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the root mean square of the noise really added, beside that of the embeddings it met.

        `noise_norm` is the root mean square over examples of the norm of an example's noise.
        """
        if not self.alpha:
            return {"alpha": 0}
        observed: _Observed = live.observed["noise"]
        found = observed.summary()
        if not found.get("noise_rms"):
            raise NoEffect("noise", "no noise reached the embeddings", "set neftune_noise_alpha: 0")
        if self.schedule != "constant" and observed.alphas[0] == observed.alphas[1]:
            reason = f"alpha was {observed.alphas[0]:g} at every step under schedule: {self.schedule}"
            raise NoEffect("noise", reason, "train for more steps, or set schedule: constant")
        ends = {"alpha_first": observed.alphas[0], "alpha_last": observed.alphas[1]}
        return {"alpha": self.alpha, **({} if self.schedule == "constant" else ends), **found}


@dataclass
class _Observed:
    """Sums over real tokens, kept on the device so that a step waits for nothing."""

    added: Any = 0.0
    embedded: Any = 0.0
    elements: int = 0
    examples: int = 0
    alphas: tuple[float, float] = (0.0, 0.0)
    """The first and the last that were drawn with."""

    def see(self, embedded: torch.Tensor, noised: torch.Tensor, live: Live, alpha: float) -> None:
        """Add one micro-batch; `noised - embedded` is what rounding left of the noise."""
        import torch

        real = torch.zeros(embedded.shape[:2])
        for _, place, length in places(live, embedded):
            real[place] = 1
            self.elements += length * embedded.shape[2]
            self.examples += 1
        with torch.no_grad():
            added = (noised.detach() - embedded.detach()).float().square_().sum(-1)
            self.added = self.added + added.sum()
            met = embedded.detach().float().square_().sum(-1) * real.to(embedded.device)
            self.embedded = self.embedded + met.sum()
        self.alphas = (self.alphas[0] or alpha, alpha)

    def summary(self) -> dict[str, Any]:
        if not self.elements:
            return {}
        noise, embedding = (math.sqrt(float(total) / self.elements) for total in (self.added, self.embedded))
        return {
            "noise_rms": noise,
            "embedding_rms": embedding,
            "ratio": noise / embedding if embedding else None,
            "noise_norm": math.sqrt(float(self.added) / self.examples),
            "examples": self.examples,
        }
