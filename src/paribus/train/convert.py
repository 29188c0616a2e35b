"""A GGUF model as an ordinary model directory, converted once and kept in the cache."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock

from paribus.errors import ModelError, Place
from paribus.sources.cache import cache_folder
from paribus.sources.gguf_facts import require_gguf
from paribus.sources.models import ModelFiles


def model_folder(files: ModelFiles) -> Path:
    """Return a directory that transformers loads the model's weights from."""
    return files.path if files.gguf_file is None else _converted(files, "model", _convert_model)


def tokenizer_folder(files: ModelFiles) -> Path:
    """Return a directory that transformers loads the tokenizer from."""
    return files.path if files.gguf_file is None else _converted(files, "tokenizer", _convert_tokenizer)


def _converted(files: ModelFiles, part: str, convert: Callable[[ModelFiles, Path], None]) -> Path:
    """Convert under a lock into a temporary folder that gets its name when it is whole."""
    folder = cache_folder("gguf") / f"{files.sha256[:32]}-{part}"
    if folder.is_dir():
        return folder
    require_gguf()
    with FileLock(f"{folder}.lock"):
        if folder.is_dir():
            return folder
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            convert(files, unfinished)
            unfinished.rename(folder)
        except (ValueError, KeyError, NotImplementedError, RuntimeError) as fault:
            raise ModelError(
                f"transformers cannot convert the {part} in this file: {fault}",
                place=Place(files.path / str(files.gguf_file)),
                way_out="Use the model in its safetensors form.",
            ) from fault
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _convert_model(files: ModelFiles, target: Path) -> None:
    """Dequantise to fp32; what marks the model as quantised goes, as it forbids saving and training."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        files.path, gguf_file=files.gguf_file, dtype=torch.float32, local_files_only=True
    )
    model.hf_quantizer = None
    del model.config.quantization_config
    model.is_quantized = False
    model.save_pretrained(target)


def _convert_tokenizer(files: ModelFiles, target: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(files.path, gguf_file=files.gguf_file, local_files_only=True)
    tokenizer.save_pretrained(target)
