"""Any other method of peft, by the name of its config class."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from paribus.errors import SettingError, nearest
from paribus.machine import Machine
from paribus.techniques.base import Live, NoEffect, Obstacle, Setting
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.peft_signatures import signatures
from paribus.techniques.tuning.peft_tuner import CONV1D_TYPES, PeftTuner, has_conv1d, targets
from paribus.techniques.tuning.saved import STARTS, quiet

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel
    from transformers import PreTrainedModel

REFUSED: Final[dict[str, tuple[str, str]]] = {
    "AdaLoraConfig": ("must be told of every optimizer step", "set tuning: adalora"),
    "AdamssConfig": ("clusters weights with scikit-learn, which paribus does not bring", "choose another"),
    "BOFTConfig": ("falls back to one factor where its CUDA extension cannot be built", "set tuning: boft"),
    "CPTConfig": ("has a loss of its own over the tokens of a prompt", "set tuning: prompt"),
    "CartridgeConfig": ("starts from the cache of a text that it must be given", "set tuning: prefix"),
    "LilyConfig": (
        "mixes its matrices by averages over a micro-batch, so a row's loss depends on who shares it",
        "choose another",
    ),
    "MultitaskPromptTuningConfig": ("needs the number of a task with every row", "set tuning: prompt"),
    "PolyConfig": ("needs the number of a task with every row", "set tuning: lora"),
    "PrefixTuningConfig": ("is saved without its encoder by peft", "set tuning: prefix"),
    "PromptEncoderConfig": ("is saved without its encoder by peft", "set tuning: p_tuning"),
    "PromptTuningConfig": ("has a kind of its own", "set tuning: prompt"),
    "PveraConfig": (
        "draws noise in every forward pass, from the batch and not from its rows",
        "set tuning: vera",
    ),
    "ShadowConfig": ("hands layers a value that those of transformers 5.24 cannot read", "choose another"),
    "XLoraConfig": ("mixes adapters that were trained before", "choose another"),
}
"""Methods that this cannot train, each with the reason and a way out."""
DECIDED: Final = frozenset(
    [
        *("task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
        *("inference_mode", "megatron_config", "megatron_core", "runtime_config", "progressbar"),
    ]
)
"""Settings that no study can choose."""
SPECIAL: Final[dict[str, str]] = {
    "corda_config": "it needs activations of a data set",
    "eva_config": "it needs activations of a data set",
    "lora_ga_config": "it needs gradients of a data set",
    "arrow_config": "it mixes adapters that were trained before",
    "monteclora_config": "it draws noise in every forward pass, from the batch and not from its rows",
    "loftq_config": "it starts from a quantised base",
    "alora_invocation_tokens": "it needs the places of these tokens with every batch",
    "layer_replication": "it changes the base",
}
"""Settings that need more than a config, and why."""
NOT_LINEAR: Final = frozenset(
    ("AdaptionPromptConfig", "BeftConfig", "IA3Config", "LNTuningConfig", "TrainableTokensConfig")
)
"""Methods whose targets are not all linear layers: theirs are left to peft's table of architectures."""
TRANSPOSED: Final = NOT_LINEAR | {
    *("DeftConfig", "FourierFTConfig", "FrodConfig", "GraloraConfig", "HiraConfig", "LoraConfig"),
    *("RandLoraConfig", "TinyLoraConfig", "UniLoraConfig", "VBLoRAConfig", "VeraConfig", "WaveFTConfig"),
}
"""Methods that also adapt Conv1D, which holds the weights of GPT-2 (tried with peft 0.21)."""
ADAPTION: Final = ("llama", "mistral", "gpt2")
"""Types of model whose attention AdaptionPromptConfig knows."""
NOT_MERGING: Final = frozenset(("AdaptionPromptConfig", "BeftConfig"))
UNMATCHED: Final = (
    "You have passed exclude_modules",
    "target_(modules|parameters)=.* were set but no",
    "The following (rank|alpha)_pattern keys did not match",
)
"""What peft 0.21 only warns of: settings that name what a model has not, and so change nothing."""
SEEDS: Final = ("projection_prng_key", "projection_seed", "proj_seed", "random_seed", "random_loc_seed")
"""Settings that seed a draw of their own; left out, they come from the trial's seed."""


class AnyPeft(PeftTuner):
    """Train with any method of the installed peft, by its config class.

    `method` is the name of the class (LoHaConfig, LoKrConfig, LNTuningConfig, FourierFTConfig, HRAConfig,
    ...), `settings` what it is given; both are checked against its signature before anything runs. Where they
    are left out, `target_modules` is all-linear (norms, embeddings or attention for methods that are about
    these), a seed of the method's own comes from the trial's seed, `fan_in_fan_out` follows the model; any
    other setting has peft's default, and the proof holds the config in full. Dropout is an axis of its own.
    """

    paper: ClassVar = "that of the method; see the documentation of peft"

    kind: Literal["peft"] = "peft"
    method: str
    settings: dict[str, Any] = Field(default_factory=dict)

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        possible = signatures()
        if method not in possible:
            raise SettingError(
                f"peft has no config class {method!r}", nearest(method, possible.keys() - REFUSED.keys())
            )
        if method in REFUSED:
            reason, way_out = REFUSED[method]
            raise SettingError(f"{method} {reason}", way_out)
        return method

    @model_validator(mode="after")
    def _fitting(self) -> AnyPeft:
        found = [
            InitErrorDetails(type="value_error", loc=("settings", name), input=value, ctx={"error": error})
            for name, value in self.settings.items()
            if (error := self._fault(name, value))
        ]
        if found:
            raise ValidationError.from_exception_data(type(self).__name__, found)
        return self

    def _fault(self, name: str, value: Any) -> SettingError | None:
        """Say what is wrong with one setting, or None."""
        known = signatures()[self.method].settings
        if name not in known:
            possible = known.keys() - DECIDED - SPECIAL.keys()
            return SettingError(f"{self.method} has no setting {name!r}", nearest(name, possible))
        reason, way_out = _forbidden(name, value)
        if reason:
            return SettingError(reason, way_out)
        try:
            TypeAdapter(known[name]).validate_python(value, strict=True)
        except ValidationError as error:
            wanted = "; ".join(dict.fromkeys(one["msg"].lower() for one in error.errors()))
            return SettingError(f"{name} of {self.method} cannot be {value!r}: {wanted}")
        return None

    @property
    def label(self) -> str:
        """Name the method and what it was given."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in sorted(self.settings.items()))])

    def obstacle(self, machine: Machine, setting: Setting) -> Obstacle | None:
        kind = setting.model.model_type
        if kind in CONV1D_TYPES and self.method not in TRANSPOSED:
            reason = f"{self.method} adapts nn.Linear layers and {setting.model.architecture} has Conv1D"
            return Obstacle(reason, "set tuning: lora, or use a model with nn.Linear layers")
        if self.method == "AdaptionPromptConfig" and kind not in ADAPTION:
            return Obstacle(f"{self.method} does not know the attention of {kind}", "set tuning: prompt")
        return None

    def config(self, model: PreTrainedModel, live: Live) -> PeftConfig:
        """Return the config, with what is left out filled in where peft's default would not do."""
        import peft

        known = signatures()[self.method].settings
        filled: dict[str, Any] = {"task_type": peft.TaskType.CAUSAL_LM}
        if "target_modules" in known and self.method not in NOT_LINEAR:
            filled["target_modules"] = "all-linear"
        if "fan_in_fan_out" in known:
            filled["fan_in_fan_out"] = has_conv1d(model)
        if "progressbar" in known:
            filled["progressbar"] = False
        seed = live.draw_seed("init", self.method) % 2**31
        filled |= {name: seed for name in SEEDS if name in known}
        chosen = self.settings.get("target_modules")
        named = {"target_modules": targets(model, tuple(chosen))} if isinstance(chosen, list) else {}
        return getattr(peft, self.method)(**filled | self.settings | named)

    def _wrapped(self, model: PreTrainedModel, live: Live) -> PeftModel:
        """Wrap a model; what the method cannot do with it is told as peft tells it."""
        try:
            with quiet():
                for remark in UNMATCHED:
                    warnings.filterwarnings("error", message=remark)
                return super()._wrapped(model, live)
        except NoEffect as found:
            if found.technique != self.kind:
                raise
            raise NoEffect(self.method, found.reason, "change tuning.settings") from found
        except Warning as remark:
            raise NoEffect(self.method, str(remark), "change tuning.settings") from remark
        except (ImportError, NotImplementedError, LookupError, AssertionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise NoEffect(self.method, reason, "change tuning.settings, or set tuning: lora") from error

    def draw(self, wrapped: PeftModel, live: Live) -> None:
        """Initial values stay as peft drew them from the trial's seed; there must be some."""
        names = weights.trainable(wrapped)
        if not names:
            raise NoEffect(self.method, "it found nothing to train in this model", "change tuning.settings")
        bias = self.settings.get("bias", "none")
        if bias != "none" and not any(name.endswith(".bias") for name in names):
            raise NoEffect(self.method, f"bias: {bias} found no biases to train", "take bias out")

    def proof(self, model: Any, live: Live) -> dict[str, Any]:
        """Return the evidence of every tuning, and the method's whole config, peft's defaults included."""
        config = dict(_plain(next(iter(model.peft_config.values())).to_dict()))
        return super().proof(model, live) | {"config": config}

    def merged(self, model: Any) -> Any:
        """Merge the update into the base; None for methods that add what the base has no place for."""
        return None if self.method in NOT_MERGING else super().merged(model)


def _plain(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what JSON can hold of a config and says something."""
    for name, value in sorted(config.items()):
        if name in DECIDED or value is None:
            continue
        yield name, sorted(value) if isinstance(value, set) else value


def _forbidden(name: str, value: Any) -> tuple[str, str]:
    """Say why no method may be given a setting, and the way out; an empty reason: it may."""
    if name in DECIDED:
        return f"{name} is not for a study to choose", "take it out"
    if name in SPECIAL and value is not None:
        return f"{name} cannot be used: {SPECIAL[name]}", "take it out"
    if "dropout" in name and value:
        reason = f"{name} draws from the batch and not from its rows, and is off in training"
        return reason, "take it out, or set the axis dropout"
    if name == "init_lora_weights" and value not in STARTS:
        return f"init_lora_weights {value!r} changes the base, or needs data", "set tuning: lora"
    return "", ""
