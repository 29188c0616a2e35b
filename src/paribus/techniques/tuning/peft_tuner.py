"""What the methods of peft share: the wrapping, initial values drawn by name, saving, merging."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from paribus.errors import nearest
from paribus.techniques.base import Live, NoEffect
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.tuner import Tuner

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

ADAPTER: Final = "default"


class PeftTuner(Tuner):
    """A method of peft: its config, and how its initial values are drawn."""

    merges: ClassVar[bool] = True
    """Whether the update can go into the base's own weights."""

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Return the settings of peft that this technique stands for; nothing is left to peft's defaults."""
        raise NotImplementedError

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Draw the initial values again, each keyed by its layer's name alone.

        Wrapping has drawn them in the order of the layers, from a seed of the trial; a method that can draw
        by name overrides this, so that a layer starts the same whatever else is adapted.
        """

    @contextmanager
    def applied(self, model: PreTrainedModel, live: Live) -> Iterator[torch.nn.Module]:
        """Wrap the model; the global random state is left as it was."""
        import torch

        with weights.training_only(model, lambda name: False), rewired(model):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(live.draw_seed("init", self.kind))  # type: ignore[attr-defined]
                wrapped = self._wrapped(model, live)
                self.draw(wrapped, live)
            weights.remember(wrapped, live)
            yield wrapped

    def _wrapped(self, model: PreTrainedModel, live: Live) -> PeftModel:
        """Wrap a model; a setting that peft refuses is told as peft tells it."""
        import peft

        with warnings.catch_warnings():
            # peft 0.21 asks transformers 5.24 for an attribute under its old name
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            try:
                return peft.get_peft_model(model, self.config(model, live), adapter_name=ADAPTER)  # type: ignore[return-value]
            except ValueError as error:
                way_out = "name linear layers, or set target_modules: all-linear"
                raise NoEffect(self.kind, str(error), way_out) from error  # type: ignore[attr-defined]

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return how many layers carry an update, how many parameters train and how many moved."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        layers = sum(isinstance(module, BaseTunerLayer) for module in model.modules())
        return ({"layers_adapted": layers} if layers else {}) | super().proof(model, live)

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write the adapter as peft does, without asking a hub whether its base had other embeddings."""
        model.save_pretrained(folder, save_embedding_layers=False)  # type: ignore[operator]

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back an adapter that `save` wrote."""
        from peft import load_peft_weights, set_peft_model_state_dict

        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"), adapter_name=ADAPTER)  # type: ignore[arg-type]

    def merged(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """Merge the update into the base and return the base."""
        return model.merge_and_unload() if self.merges else None  # type: ignore[operator]


def targets(model: PreTrainedModel, chosen: str | tuple[str, ...]) -> str | list[str]:
    """Check that each name is that of a module, or the end of one; a name with no module is an error."""
    if isinstance(chosen, str):
        return chosen
    modules = dict(model.named_modules())
    for target in chosen:
        if not any(path == target or path.endswith(f".{target}") for path in modules):
            known = {path.rpartition(".")[2] for path, module in modules.items() if is_linear(module)}
            reason = f"no module of {type(model).__name__} is called {target!r}"
            raise NoEffect("target_modules", reason, nearest(target, known))
    return list(chosen)


def is_linear(module: torch.nn.Module) -> bool:
    """Say whether a module multiplies by a weight matrix; GPT-2 does it in a class of its own."""
    import torch
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, torch.nn.Linear | Conv1D)


def has_conv1d(model: torch.nn.Module) -> bool:
    """Say whether weights are stored transposed, as in GPT-2."""
    from transformers.pytorch_utils import Conv1D

    return any(isinstance(module, Conv1D) for module in model.modules())


@contextmanager
def rewired(model: torch.nn.Module) -> Iterator[None]:
    """Put every submodule back in its place afterwards, also when wrapping stopped half-way."""
    places = [(parent, dict(parent._modules)) for parent in model.modules()]
    attributes = set(vars(model))
    try:
        yield
    finally:
        for parent, children in places:
            parent._modules.clear()
            parent._modules.update(children)
        for name in set(vars(model)) - attributes:
            delattr(model, name)
