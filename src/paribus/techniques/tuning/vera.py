"""VeRA: one pair of random matrices for all layers, and two trained vectors for each."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.techniques.base import Live
from paribus.techniques.tuning.peft_tuner import (
    ADAPTER,
    PeftTuner,
    adapted,
    drop_by_example,
    has_conv1d,
    targets,
)

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

_OBSERVED: Final = "vera"


class Vera(PeftTuner):
    """Add diag(b) B diag(d) A to the chosen linear layers and train the vectors b and d alone.

    A [r, largest input] and B [largest output, r] are drawn once from the trial's seed, frozen, and shared: a
    smaller layer takes their first columns and rows. b starts at zero, so training starts at the base.
    - `r`: the rows of A and columns of B.
    - `d_initial`: where d starts.
    - `vera_dropout`: the share of what enters A that is zeroed while training; each example draws for itself.
    - `target_modules`: `all-linear` (every linear layer but the head) or a list of module names.
    Source: Kopiczko et al. 2023, arXiv:2310.11454, equation 2.
    """

    paper: ClassVar = "Kopiczko et al. 2023, arXiv:2310.11454"

    kind: Literal["vera"] = "vera"
    r: int = Field(256, ge=1)
    d_initial: float = Field(0.1, gt=0)
    vera_dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """The random matrices are saved with the adapter: another machine need not draw them again."""
        import peft

        return peft.VeraConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=self.r,
            d_initial=self.d_initial,
            vera_dropout=0.0,
            target_modules=targets(model, self.target_modules),
            projection_prng_key=live.draw_seed("init", "vera"),
            save_projection=True,
            bias="none",
            fan_in_fan_out=has_conv1d(model),
            init_weights=True,
        )

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Nothing but the shared matrices is drawn; they follow the dtype of the weights."""
        base: Any = wrapped.base_model
        for path, layer in adapted(wrapped):
            for shared in (base.vera_A, base.vera_B):
                shared[ADAPTER] = shared[ADAPTER].to(layer.vera_lambda_d[ADAPTER].dtype)
            if self.vera_dropout:
                drop_by_example(layer.vera_dropout, live, self.vera_dropout, "vera", path)
        live.observed[_OBSERVED] = _projections(wrapped)

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the shapes of the shared matrices, which did not move, and the size that b reached."""
        if _projections(model) != live.observed[_OBSERVED]:
            raise RuntimeError("the shared matrices of vera moved")
        base: Any = model.base_model
        scales = [layer.vera_lambda_b[ADAPTER].detach().abs().max() for _, layer in adapted(model)]
        return super().proof(model, live) | {
            "shared_matrices": [list(shared[ADAPTER].shape) for shared in (base.vera_A, base.vera_B)],
            "largest_b": float(max(scales)),
        }


def _projections(model: torch.nn.Module) -> str:
    """Hash the shared matrices."""
    base: Any = model.base_model
    parts = (
        shared[ADAPTER].detach().cpu().contiguous().numpy().tobytes() for shared in (base.vera_A, base.vera_B)
    )
    return hashlib.sha256(b"".join(parts)).hexdigest()
