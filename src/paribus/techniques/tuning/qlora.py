"""QLoRA: LoRA beside a frozen base that is stored in 4 or 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import model_validator

from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning.lora import Lora
from paribus.techniques.tuning.peft_tuner import ADAPTER, adapted

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

    from paribus.techniques.tuning.quantised import Storage


class QLora(Lora):
    """Train LoRA beside a base whose linear layers, all but the head, are stored in 4 or 8 bits.

    - `quantisation`: `nf4` has its 16 levels at quantiles of the normal distribution, `fp4` those of a 4-bit
      float, `int4` 15 equal steps from -1 to 1 (ours, for comparison), each times the largest magnitude of a
      block; `int8` has 255 equal steps and a constant for each row (Dettmers et al. 2022, arXiv:2208.07339).
      nf4, fp4 and int8 are those of bitsandbytes.
    - `block_size`: weights that share a constant. `int8` has none, so it takes the default alone.
    - `double_quantisation`: the constants of 256 blocks are stored in 8 bits, less their mean, with a
      constant of their own (section 3). `int8` takes the default alone.
    - `compute_dtype`: what weights are decoded to and multiplied in, forward and backward.

    - `r`, `lora_alpha`, `target_modules`, `lora_dropout`, `use_rslora`, `use_dora`, `init_lora_weights` and
      `loraplus_lr_ratio` are those of `lora`; DoRA and PiSSA, which need the base's weights, are refused.

    Fixed: LoRA, norms, embeddings and head are in fp32 at least, as peft's
    `prepare_model_for_kbit_training` has it; activations are not quantised, also under `int8`, in training
    and in scoring alike; gradient checkpointing is an axis of its own.
    Source: Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv:2305.14314.
    """

    paper: ClassVar = "Dettmers et al. 2023, arXiv:2305.14314"

    kind: Literal["qlora"] = "qlora"  # type: ignore[assignment]
    quantisation: Literal["nf4", "fp4", "int8", "int4"] = "nf4"
    double_quantisation: bool = True
    block_size: Literal[32, 64, 128, 256, 512, 1024] = 64
    compute_dtype: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _possible(self) -> QLora:
        if self.init_lora_weights == "pissa":
            raise ValueError("pissa splits the base's weights, and here they are codes: choose tuning: lora")
        if self.use_dora:
            raise ValueError(
                "use_dora takes norms of the base's weights, and peft decodes 4-bit ones wrongly on a CPU "
                "where rows are no multiple of a block: choose tuning: lora"
            )
        if self.quantisation == "int8" and not (self.double_quantisation and self.block_size == 64):
            raise ValueError(
                "int8 has a constant for each row and none for a block: leave out block_size and "
                "double_quantisation, or choose nf4, fp4 or int4"
            )
        return self

    def canonical(self) -> dict[str, Any]:
        """Under int8 blocks and their constants say nothing."""
        inert = {"block_size", "double_quantisation"} if self.quantisation == "int8" else set()
        return {name: value for name, value in super().canonical().items() if name not in inert}

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        """Name what is not installed, and the precisions that quantised weights cannot be combined with."""
        needed = self.quantisation != "int4" or self.double_quantisation
        if needed and find_spec("bitsandbytes") is None:
            return Obstacle(
                f"{self.quantisation} needs bitsandbytes, which is not installed",
                "pip install bitsandbytes, or set quantisation: int4 and double_quantisation: false",
            )
        return self._at(setting.chosen.get("precision")) or super().obstacle(machine, setting)

    def _at(self, precision: Any) -> Obstacle | None:
        kind, compute = getattr(precision, "kind", "fp32"), getattr(precision, "compute", None)
        if kind == "fp32" or (kind, compute, self.compute_dtype) == ("bf16", "native", "bfloat16"):
            return None
        if compute == "emulated":
            reason = f"emulated {kind} rounds the weights of a layer, and a quantised layer holds codes"
        elif kind == "bf16":
            reason = "bf16 would compute in bfloat16 what compute_dtype: float32 asks to be computed in fp32"
        else:
            reason = f"quantised layers compute in float32 or bfloat16, not in {kind}"
        return Obstacle(reason, "set precision: fp32; compute_dtype: bfloat16 is what rounds the products")

    def _storage(self) -> Storage:
        import torch

        from paribus.techniques.tuning.quantised import Storage

        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[self.compute_dtype]
        return Storage(self.quantisation, self.block_size, self.double_quantisation, dtype)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Quantise, then wrap; afterwards the layers that were replaced are back, bit for bit."""
        from paribus.techniques.tuning import quantised

        with quantised.quantised(model, self._storage()) as base:
            live.observed["quantised"] = base
            with super().applied(model, live) as wrapped:
                yield wrapped

    def _wrapped(self, model: PreTrainedModel, live: Live) -> PeftModel:
        """Tell peft that the base is quantised, for as long as it chooses the classes of its layers."""
        marks = {"int8": ("is_loaded_in_8bit",), "int4": ()}.get(self.quantisation, ("is_loaded_in_4bit",))
        try:
            for mark in marks:
                setattr(model, mark, True)
            wrapped = super()._wrapped(model, live)
        finally:
            for mark in marks:
                delattr(model, mark)
        for _, layer in adapted(wrapped):
            # peft cannot ask codes for a dtype; a base in fp64 has its adapter in fp64 under LoRA too
            layer.lora_A.to(model.get_input_embeddings().weight.dtype)
            layer.lora_B.to(model.get_input_embeddings().weight.dtype)
        return wrapped

    def _weight(self, layer: Any) -> torch.Tensor:
        """Return what the codes stand for."""
        return layer.get_base_layer().decoded()

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return what is really stored for the base, how far it is from its weights, and what LoRA did."""
        from paribus.techniques.tuning import quantised

        found = quantised.evidence(model, live.observed["quantised"])
        if not found["weights_quantised"]:
            raise NoEffect("qlora", "no linear layer was quantised", "set tuning: lora")
        return found | super().proof(model, live)

    def merged(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """Return the base with decoded weights plus update in ordinary layers; nothing is quantised again."""
        from paribus.techniques.tuning import quantised

        base = model.get_base_model()  # type: ignore[operator]
        for parent in list(base.modules()):
            for name, module in list(parent._modules.items()):
                layer: Any = getattr(module, "base_layer", module)
                if quantised.is_stored(layer):
                    weight = layer.decoded()
                    parent._modules[name] = quantised.plain(layer, _updated(module, weight))
        return super().merged(model)


def _updated(module: Any, weight: torch.Tensor) -> torch.Tensor:
    """Add a layer's update to its weights [out, in]; a layer without an adapter has none."""
    if not hasattr(module, "get_delta_weight"):
        return weight
    return weight + module.get_delta_weight(ADAPTER).detach().to(weight.dtype)
