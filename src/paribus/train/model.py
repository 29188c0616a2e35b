"""The model that a trial starts from: loaded, drawn anew, or given a head for classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from paribus.errors import ModelError
from paribus.plan.trial import Trial
from paribus.sources.blocks import Dtype
from paribus.sources.models import ModelFiles
from paribus.techniques import sub_seed
from paribus.train.classifier import Classifier
from paribus.train.convert import model_folder


def starting_model(trial: Trial, files: ModelFiles, classes: int) -> PreTrainedModel:
    """Return what a trial trains, the same for every arm of a seed; `classes` counts those of its data."""
    block = trial.model
    if trial.task == "pretrain":
        return drawn_model(files, trial.seed, block.load_dtype)
    model = load_model(files, block.load_dtype)
    if trial.task == "classification":
        return Classifier(model, classes, block.classifier_norm, trial.seed)
    return model


def drawn_model(files: ModelFiles, seed: int, load_dtype: Dtype = "float32") -> PreTrainedModel:
    """Make a model of the files' config with random weights, drawn in fp32 by the library's own rule for it.

    The rule is mostly normal with the config's `initializer_range`. Each module draws by its path, so that a
    weight depends on the seed and its name alone; the global random state is left as it was.
    """
    config = AutoConfig.from_pretrained(model_folder(files), local_files_only=True)
    with torch.random.fork_rng(devices=[]):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        paths = [path for path, _ in model.named_modules()]
        with torch.no_grad():
            for path in sorted(
                paths, key=lambda path: -path.count(".") - bool(path)
            ):  # a parent has the last word
                torch.manual_seed(sub_seed(seed, "init", path))
                model._init_weights(model.get_submodule(path))
    model.tie_weights()
    return model.to(getattr(torch, load_dtype)).train()


def load_model(files: ModelFiles, load_dtype: Dtype = "float32") -> PreTrainedModel:
    """Load a model in training mode on the CPU, its weights in `load_dtype` whatever the file holds.

    A GGUF file is dequantised once and loaded from the cache afterwards. Raises ModelError, also where a
    weight is missing, has another shape than the config says or is not finite: transformers would draw the
    first two anew, and every arm would start from a model that nobody has.
    """
    folder = model_folder(files)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, load_dtype),
            local_files_only=True,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (ValueError, OSError, RuntimeError, KeyError) as fault:
        raise ModelError(
            f"the model in {str(folder)!r} cannot be loaded: {str(fault).splitlines()[0]}",
            way_out="It must be a causal language model that this version of transformers knows.",
        ) from fault
    model, found = loaded
    _check_whole(model, found, folder)
    return model.train()


def _check_whole(model: Any, found: dict[str, Any], folder: Path) -> None:
    """Raise ModelError unless every weight of the model came from its files and is a number."""
    reshaped = {
        name: f"{name} is {_shape(stored)} in its file and {_shape(wanted)} by its config"
        for name, stored, wanted in found["mismatched_keys"]
    }
    missing = [f"{name} is missing" for name in sorted(set(found["missing_keys"]) - set(reshaped))]
    broken = [
        f"{name} holds values that are not finite"
        for name, weight in model.named_parameters()
        if not weight.isfinite().all()
    ]
    faults = [*sorted(reshaped.values()), *missing] or broken
    if faults:
        more = f", and {len(faults) - 1} more of its weights are amiss" if len(faults) > 1 else ""
        raise ModelError(
            f"the weights in {str(folder)!r} are no whole {type(model).__name__}: {faults[0]}{more}.",
            way_out="Copy or download config.json and weights again, or save a causal language model there.",
        )


def _shape(size: Any) -> str:
    return " x ".join(map(str, size))
