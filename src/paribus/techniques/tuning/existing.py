"""Training goes on from an adapter that was trained before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.errors import ModelError
from paribus.techniques.base import Live, NoEffect
from paribus.techniques.tuning import saved, weights
from paribus.techniques.tuning.any_peft import NOT_MERGING, REFUSED
from paribus.techniques.tuning.peft_tuner import ADAPTER, PeftTuner
from paribus.techniques.tuning.tuner import TRAINED

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

_WAY_OUT: Final = "name an adapter that was trained on this model"
_HERE: Final = frozenset(
    ("CartridgeConfig", "PrefixTuningConfig", "PromptEncoderConfig", "PromptTuningConfig")
)
"""Methods that `tuning: peft` refuses and whose saved adapters can be trained further all the same."""


class Existing(PeftTuner):
    """Start from a saved adapter and train it further.

    `path` is its folder in peft's format (adapter_config.json, adapter_model.safetensors), as `keep: adapter`
    leaves it of every method of peft; a relative one starts at the study's folder. A trial's id holds the
    content of the adapter, not its path. Dropout that its config names is off.
    """

    paper: ClassVar = "that of the adapter's method"

    kind: Literal["existing"] = "existing"
    path: str = Field(min_length=1)

    def content_sha256(self, folder: Path) -> str:
        """Hash the adapter; raises ModelError where there is none, or its method cannot be trained here."""
        adapter = folder / self.path
        kind = saved.read_config(adapter)["peft_type"]
        for method, (reason, _) in REFUSED.items():
            if method not in _HERE and _squeezed(kind) == _squeezed(method.removesuffix("Config")):
                raise ModelError(
                    f"the adapter in {self.path!r} is of {method}, which {reason}",
                    way_out="name an adapter of another method, such as LoRA",
                )
        return saved.content_sha256(adapter)

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Wrap the model as the adapter's config says, and start from its weights."""
        with saved.quiet(), super().applied(model, live) as wrapped:
            yield wrapped

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Read the adapter's config."""
        saved.read_config(live.folder / self.path)
        return saved.peft_config(live.folder / self.path, trainable=True)

    def _wrapped(self, model: PreTrainedModel, live: Live) -> PeftModel:
        try:
            with saved.quiet():
                return super()._wrapped(model, live)
        except NoEffect as found:
            reason = f"the adapter in {self.path!r} does not fit {type(model).__name__}: {found.reason}"
            raise NoEffect(self.kind, reason, _WAY_OUT) from found

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Take the stored weights in the place of initial ones."""
        try:
            loaded = saved.put(wrapped, live.folder / self.path, ADAPTER)
            weights.train_heads(wrapped)
            saved.put_heads(wrapped, live.folder / self.path)
        except saved.Unfit as error:
            name = type(wrapped.get_base_model()).__name__
            reason = f"the adapter in {self.path!r} does not fit {name}: {error}"
            raise NoEffect(self.kind, reason, _WAY_OUT) from error
        live.observed["existing"] = {
            "started_from_sha256": self.content_sha256(live.folder),
            "tensors_loaded": loaded,
        }

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return the evidence of every tuning, the method, and the content that training started from."""
        method = model.peft_config[ADAPTER]  # type: ignore[union-attr, index]
        started = live.observed["existing"]
        return super().proof(model, live) | {"method": type(method).__name__} | started

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write the adapter as peft does, and what trains by name where peft keeps its results alone."""
        super().save(model, folder)
        if self._computed(model):
            weights.save(model, folder / TRAINED)

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back what `save` wrote."""
        if self._computed(model):
            weights.load(model, folder / TRAINED)
        else:
            super().load(model, folder)

    def merged(self, model: Any) -> torch.nn.Module | None:
        """Merge the update into the base; None for methods that add what the base has no place for."""
        config = model.peft_config[ADAPTER]
        if config.is_prompt_learning or type(config).__name__ in NOT_MERGING:
            return None
        return super().merged(model)

    @staticmethod
    def _computed(model: Any) -> bool:
        return saved.computed(vars(model.peft_config[ADAPTER]))


def _squeezed(name: str) -> str:
    return name.replace("_", "").upper()
