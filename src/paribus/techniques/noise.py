"""NEFTune: uniform noise on the input embeddings while training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from paribus.techniques.base import Live, NoEffect, Technique

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


class Noise(Technique):
    """Add uniform noise of magnitude alpha / sqrt(L * d) to the embeddings of each training example.

    L is the example's number of real tokens, d the hidden size (`scaling: paper`). Source: Jain et al. 2023,
    "NEFTune: Noisy Embeddings Improve Instruction Finetuning", arXiv:2310.05914, algorithm 1.
    """

    shorthand: ClassVar = "alpha"
    paper: ClassVar = "Jain et al. 2023, arXiv:2310.05914"

    alpha: float = Field(0.0, ge=0)
    scaling: Literal["paper"] = "paper"
    schedule: Literal["constant"] = "constant"

    @property
    def label(self) -> str:
        return f"{self.alpha:g}"

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
            observed.see(embedded, noised, live.lengths)
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

        rows, _, width = embedded.shape
        if rows != len(live.example_ids):
            raise RuntimeError(f"noise for {len(live.example_ids)} examples met a batch of {rows} rows")
        noise = torch.zeros(embedded.shape, dtype=embedded.dtype)
        for row, (example_id, length) in enumerate(zip(live.example_ids, live.lengths, strict=True)):
            generator = torch.Generator().manual_seed(live.draw_seed("noise", live.epoch, example_id))
            unit = torch.rand(length, width, generator=generator).mul_(2).sub_(1)
            noise[row, :length] = unit * (self.alpha / math.sqrt(length * width))
        return noise.to(embedded.device)

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the root mean square of the noise really added, beside that of the embeddings it met."""
        if not self.alpha:
            return {"alpha": 0}
        found = live.observed["noise"].summary()
        if not found.get("noise_rms"):
            raise NoEffect("noise", "no noise reached the embeddings", "set neftune_noise_alpha: 0")
        return {"alpha": self.alpha, **found}


@dataclass
class _Observed:
    """Sums over real tokens, kept on the device so that a step waits for nothing."""

    added: Any = 0.0
    embedded: Any = 0.0
    elements: int = 0
    examples: int = 0

    def see(self, embedded: torch.Tensor, noised: torch.Tensor, lengths: tuple[int, ...]) -> None:
        """Add one micro-batch; `noised - embedded` is what rounding left of the noise."""
        import torch

        with torch.no_grad():
            real = torch.arange(embedded.shape[1], device=embedded.device) < torch.tensor(
                lengths, device=embedded.device
            ).unsqueeze(1)
            added = (noised.detach() - embedded.detach()).float().square_().sum(-1)
            self.added = self.added + added.sum()
            self.embedded = self.embedded + (embedded.detach().float().square_().sum(-1) * real).sum()
        self.elements += sum(lengths) * embedded.shape[2]
        self.examples += len(lengths)

    def summary(self) -> dict[str, Any]:
        if not self.elements:
            return {}
        noise, embedding = (math.sqrt(float(total) / self.elements) for total in (self.added, self.embedded))
        return {
            "noise_rms": noise,
            "embedding_rms": embedding,
            "ratio": noise / embedding if embedding else None,
            "examples": self.examples,
        }
