"""OFT and BOFT: each weight matrix is rotated, by blocks or by a product of sparse rotations."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning.peft_tuner import (
    ADAPTER,
    PeftTuner,
    adapted,
    targets,
    transposed,
)

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel


class _Rotation(PeftTuner):
    """What both share: where they work, and how a block that does not fit is told."""

    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"

    @property
    @abstractmethod
    def unit(self) -> int:
        """The number that the inputs of every rotated layer must be a multiple of."""

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        kind = self.kind  # type: ignore[attr-defined]
        if found := transposed(setting, kind.upper()):
            return found
        if setting.model.hidden_size % self.unit == 0:
            return None
        return Obstacle(self._unfit("the model's width", setting.model.hidden_size), self._way_out())

    def _unfit(self, what: str, width: int) -> str:
        return f"{what} {width} is no multiple of {self.unit}, so its blocks do not fill it"

    def _way_out(self) -> str:
        return "choose a block size that divides the inputs of every layer, or name layers in target_modules"

    def _wrapped(self, model: PreTrainedModel, live: Live) -> PeftModel:
        with warnings.catch_warnings():
            # peft takes another block size; `applied` refuses it
            warnings.filterwarnings("ignore", message="Invalid `oft_block_size`")
            return super()._wrapped(model, live)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Wrap the model; a layer that blocks cannot fill is told, where peft would change the block size."""
        with super().applied(model, live) as wrapped:
            for path, layer in adapted(wrapped):
                if layer.in_features % self.unit:
                    kind = self.kind  # type: ignore[attr-defined]
                    raise NoEffect(
                        kind,
                        self._unfit(f"{path} has inputs whose number", layer.in_features),
                        self._way_out(),
                    )
            yield wrapped


class Oft(_Rotation):
    """Rotate what enters the chosen linear layers by blocks, and train the rotations.

    Each block is the Cayley transform of a skew-symmetric matrix that starts at zero.
    - `oft_block_size`: inputs that are rotated together; it must divide the inputs of every chosen layer.
    - `block_share`: all blocks of a layer have one rotation.
    - `use_cayley_neumann`: the transform's inverse comes from the first `num_cayley_neumann_terms` terms of a
      power series: faster, and orthogonal only nearly.
    - `target_modules`: `all-linear` (every linear layer but the head) or a list of module names.
    Source: Qiu et al. 2023, arXiv:2306.07280.
    """

    paper: ClassVar = "Qiu et al. 2023, arXiv:2306.07280"

    kind: Literal["oft"] = "oft"
    oft_block_size: int = Field(16, ge=2)
    block_share: bool = False
    use_cayley_neumann: bool = True
    num_cayley_neumann_terms: int = Field(5, ge=2)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"

    @property
    def unit(self) -> int:
        return self.oft_block_size

    def canonical(self) -> dict[str, Any]:
        """An exact inverse has no terms."""
        whole = super().canonical()
        if not self.use_cayley_neumann:
            del whole["num_cayley_neumann_terms"]
        return whole

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Every rotation starts at the identity: nothing is drawn and training starts at the base."""
        import peft

        return peft.OFTConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            r=0,
            oft_block_size=self.oft_block_size,
            module_dropout=0.0,
            target_modules=targets(model, self.target_modules),
            fan_in_fan_out=False,
            bias="none",
            init_weights=True,
            coft=False,
            block_share=self.block_share,
            use_cayley_neumann=self.use_cayley_neumann,
            num_cayley_neumann_terms=self.num_cayley_neumann_terms,
        )

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how far the rotations went from the identity, and from being orthogonal."""
        rotations = [layer.get_delta_weight(ADAPTER).detach() for _, layer in adapted(model)]
        sizes = sorted({layer.oft_block_size[ADAPTER] for _, layer in adapted(model)})
        return super().proof(model, live) | {"block_sizes": sizes} | _distances(rotations)


class Boft(_Rotation):
    """Rotate what enters the chosen linear layers by a product of sparse rotations, and train it.

    A trained vector also scales what each layer gives.
    - `boft_block_size`: inputs that are rotated together; a block is the Cayley transform of a skew-symmetric
      matrix that starts at zero.
    - `boft_n_butterfly_factor`: how many such rotations follow each other; inputs are shuffled in between as
      in a fast Fourier transform, so that more factors mix more inputs. Times 2 for each factor but the
      first, the block size must divide the inputs of every chosen layer.
    - `target_modules`: `all-linear` (every linear layer but the head) or a list of module names.

    Runs everywhere: peft compiles a CUDA extension for more than one factor and without it silently uses one;
    here torch does the same sums.
    Source: Liu et al. 2023, arXiv:2311.06243.
    """

    paper: ClassVar = "Liu et al. 2023, arXiv:2311.06243"

    kind: Literal["boft"] = "boft"
    boft_block_size: int = Field(4, ge=2)
    boft_n_butterfly_factor: int = Field(2, ge=1)
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"

    @model_validator(mode="after")
    def _even(self) -> Self:
        if self.boft_n_butterfly_factor > 1 and self.boft_block_size % 2:
            raise ValueError(f"boft_block_size {self.boft_block_size} must be even with more than one factor")
        return self

    @property
    def unit(self) -> int:
        return self.boft_block_size * 2 ** (self.boft_n_butterfly_factor - 1)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Wrap the model, with the block-diagonal product in torch; peft's own way is put back afterwards."""
        from peft.tuners.boft import layer as boft

        before, boft._FBD_CUDA = boft._FBD_CUDA, _BlockDiagonal
        try:
            with super().applied(model, live) as wrapped:
                yield wrapped
        finally:
            boft._FBD_CUDA = before

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Every rotation starts at the identity and every scale at one: training starts at the base."""
        import peft

        return peft.BOFTConfig(
            task_type=peft.TaskType.CAUSAL_LM,
            boft_block_size=self.boft_block_size,
            boft_block_num=0,
            boft_n_butterfly_factor=self.boft_n_butterfly_factor,
            target_modules=targets(model, self.target_modules),
            boft_dropout=0.0,
            fan_in_fan_out=False,
            bias="none",
            init_weights=True,
        )

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the factors really in place, how far the rotations went, and how far the scales did."""
        layers = [layer for _, layer in adapted(model)]
        factors = {layer.boft_R[ADAPTER].shape[0] for layer in layers}
        if factors != {self.boft_n_butterfly_factor}:
            raise NoEffect(self.kind, f"the layers have {factors} factors", "set boft_n_butterfly_factor: 1")
        rotations = [layer.get_delta_weight(ADAPTER)[0].detach() for layer in layers]
        scales = max(float((layer.boft_s[ADAPTER].detach() - 1).abs().max()) for layer in layers)
        found = {"butterfly_factors": self.boft_n_butterfly_factor, "largest_change_of_a_scale": scales}
        return super().proof(model, live) | found | _distances(rotations)


def _distances(rotations: list[torch.Tensor]) -> dict[str, float]:
    """Return the largest norms of R - I and of R'R - I over all layers."""
    import torch

    one = [torch.eye(len(rotation)).to(rotation) for rotation in rotations]
    moved = max(float((r - unit).norm()) for r, unit in zip(rotations, one, strict=True))
    bent = max(
        float((rotation.T @ rotation - unit).norm()) for rotation, unit in zip(rotations, one, strict=True)
    )
    return {"rotation_from_identity": moved, "rotation_from_orthogonal": bent}


class _BlockDiagonal:
    """Blocks [n, d, h, h] as block-diagonal matrices [n, d * h, d * h], and the gradient of that."""

    @staticmethod
    def forward(blocks: torch.Tensor) -> tuple[torch.Tensor]:
        n, d, h, _ = blocks.shape
        whole = blocks.new_zeros(n, d, h, d, h)
        index = range(d)
        whole[:, index, :, index, :] = blocks.transpose(0, 1)
        return (whole.view(n, d * h, d * h),)

    @staticmethod
    def backward(gradient: torch.Tensor, blocks: torch.Tensor) -> tuple[torch.Tensor]:
        n, d, h, _ = blocks.shape
        index = range(d)
        return (gradient.reshape(n, d, h, d, h)[:, index, :, index, :].transpose(0, 1).contiguous(),)
