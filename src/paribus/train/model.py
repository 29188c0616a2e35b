"""Load a causal language model, ready for training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from paribus.errors import ModelError
from paribus.sources.blocks import Dtype
from paribus.sources.models import ModelFiles
from paribus.train.convert import model_folder


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
