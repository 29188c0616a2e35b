"""What the methods of peft share: the wrapping, initial values drawn by name, saving, merging."""

from __future__ import annotations

import re
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from paribus.errors import nearest
from paribus.techniques import draws
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.tuner import TRAINED, Tuner

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

ADAPTER: Final = "default"
CONV1D_TYPES: Final = ("gpt2", "openai-gpt")
"""The `model_type` of causal language models whose linear layers are Conv1D."""

_NAMED: Final = ("target_modules", "feedforward_modules")
"""Settings that hold names of modules."""
_NAME_LAYERS: Final = "name linear layers, or set target_modules: all-linear"


class PeftTuner(Tuner):
    """A method of peft: its config, and how its initial values are drawn."""

    merges: ClassVar[bool] = True
    """Whether the update can go into the base's own weights."""

    def canonical(self) -> dict[str, Any]:
        """The order in which modules are named says nothing."""
        whole = super().canonical()
        lists = {name: whole[name] for name in _NAMED if isinstance(whole.get(name), list)}
        return whole | {name: sorted(set(modules)) for name, modules in lists.items()}

    @abstractmethod
    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Return the settings of peft that this technique stands for; nothing is left to peft's defaults."""

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
            weights.train_heads(wrapped)
            weights.remember(wrapped, live)
            yield wrapped

    def _wrapped(self, model: PreTrainedModel, live: Live) -> PeftModel:
        """Wrap a model; a setting that peft refuses is told as peft tells it."""
        import peft

        with warnings.catch_warnings():
            # peft 0.21 asks transformers 5.24 for an attribute under its old name
            warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing", category=FutureWarning)
            # a tied head is adapted alone, and `merged` knows
            warnings.filterwarnings("ignore", message="Model has `tie_word_embeddings=True`")
            try:
                return peft.get_peft_model(model, self.config(model, live), adapter_name=ADAPTER)  # type: ignore[return-value]
            except (ValueError, TypeError) as error:
                named = any(name in type(self).model_fields for name in _NAMED)
                way_out = _NAME_LAYERS if named else "set tuning: full"
                raise NoEffect(self.kind, _short(error), way_out) from error  # type: ignore[attr-defined]

    def proof(self, model: torch.nn.Module, live: Live) -> dict[str, Any]:
        """Return which layers carry an update, how many parameters train and how many moved."""
        paths = [path for path, _ in adapted(model)]
        named = {"layers_adapted": len(paths), "modules_adapted": weights.patterns(paths, most=8)}
        return (named if paths else {}) | super().proof(model, live)

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        """Write the adapter as peft does, without asking a hub whether its base had other embeddings."""
        model.save_pretrained(folder, save_embedding_layers=False)  # type: ignore[operator]
        if begin := weights.heads(model):
            weights.save(model, folder / TRAINED, begin)

    def load(self, model: torch.nn.Module, folder: Path) -> None:
        """Put back an adapter that `save` wrote."""
        from peft import load_peft_weights, set_peft_model_state_dict

        set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"), adapter_name=ADAPTER)  # type: ignore[arg-type]
        if begin := weights.heads(model):
            weights.load(model, folder / TRAINED, begin)

    def merged(self, model: torch.nn.Module) -> torch.nn.Module | None:
        """Merge the update into the base and return the base.

        None where a method cannot, or a layer shares its weight with the embedding, which has no update.
        """
        if not self.merges or _is_shared(model):
            return None
        return model.merge_and_unload()  # type: ignore[operator]


def _short(error: Exception) -> str:
    """Return what an error says, with the name alone of a module that it prints in full."""
    return re.sub(r"\(\n.*\n\)", "", str(error), flags=re.DOTALL)


def adapted(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield each layer of a wrapped model that carries an update, with its path in the base."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for path, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            yield path.removeprefix("base_model.model."), module


def _is_shared(model: torch.nn.Module) -> bool:
    """Say whether an adapted layer has the weight of the input embeddings."""
    embeddings = model.get_input_embeddings().weight  # type: ignore[operator]
    return any(getattr(layer.get_base_layer(), "weight", None) is embeddings for _, layer in adapted(model))


@dataclass
class Dropped:
    """How many inputs of a layer's adapter were zeroed, of how many."""

    dropped: Any = 0
    seen: int = 0


def drop_by_example(places: torch.nn.ModuleDict, live: Live, p: float, *keys: object) -> None:
    """Put a dropout whose draws belong to examples in the place of a layer's own, for this adapter.

    It counts what it dropped, and keeps out of the way in evaluation.
    """
    import torch

    counted = live.observed["dropout " + " ".join(map(str, keys))] = Dropped()

    class ByExample(torch.nn.Module):
        dropped = property(lambda _: counted.dropped)
        seen = property(lambda _: counted.seen)

        def forward(self, entering: torch.Tensor) -> torch.Tensor:
            if not self.training:
                return entering
            mask = draws.dropped(torch.ones_like(entering), live, p, *keys)
            counted.dropped = counted.dropped + (mask == 0).sum()
            counted.seen += sum(live.lengths) * entering.shape[-1]
            return entering * mask

    places[ADAPTER] = ByExample()


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


def transposed(setting: Setting, method: str) -> Obstacle | None:
    """Say that a method works on `nn.Linear` alone, where a model keeps its weights in Conv1D."""
    if setting.model.model_type not in CONV1D_TYPES:
        return None
    reason = f"{method} of peft takes nn.Linear layers, and {setting.model.architecture} has Conv1D instead"
    return Obstacle(reason, "set tuning: lora, ia3 or vera, or use a model with nn.Linear layers")


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
    """Put every submodule and parameter back in its place afterwards, also when wrapping stopped half-way."""
    places = [(parent, dict(parent._modules), dict(parent._parameters)) for parent in model.modules()]
    attributes = set(vars(model))
    try:
        yield
    finally:
        for parent, children, parameters in places:
            for name, parameter in parameters.items():
                _follow(parameter, parent._parameters.get(name))
            parent._modules.clear()
            parent._modules.update(children)
            parent._parameters.clear()
            parent._parameters.update(parameters)
        for name in set(vars(model)) - attributes:
            delattr(model, name)


def _follow(parameter: torch.nn.Parameter | None, stand_in: torch.nn.Parameter | None) -> None:
    """Move a parameter to where the one that stood in for it has been moved meanwhile."""
    if parameter is not None and stand_in is not None and parameter.device != stand_in.device:
        parameter.data = parameter.data.to(stand_in.device)
