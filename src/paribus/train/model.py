"""Load a causal language model, ready for training."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from paribus.errors import ModelError
from paribus.sources.blocks import Dtype
from paribus.sources.models import ModelFiles
from paribus.train.convert import model_folder


def load_model(files: ModelFiles, load_dtype: Dtype = "float32") -> PreTrainedModel:
    """Load a model in training mode on the CPU, its weights in `load_dtype` whatever the file holds.

    A GGUF file is dequantised once and loaded from the cache afterwards. Raises ModelError.
    """
    folder = model_folder(files)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, load_dtype), local_files_only=True
        )
    except (ValueError, OSError, RuntimeError, KeyError) as fault:
        raise ModelError(
            f"the model in {str(folder)!r} cannot be loaded: {str(fault).splitlines()[0]}",
            way_out="It must be a causal language model that this version of transformers knows.",
        ) from fault
    return model.train()
