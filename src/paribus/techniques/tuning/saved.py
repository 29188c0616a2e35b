"""An adapter in a folder, in peft's format: its config, its content, and putting its weights into a model."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from safetensors import SafetensorError, safe_open

from paribus.errors import ModelError, Place
from paribus.techniques.tuning import weights
from paribus.techniques.tuning.tuner import TRAINED

if TYPE_CHECKING:
    import torch
    from peft import PeftConfig

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
NAMES: Final = ("base_model_name_or_path", "revision", "peft_version", "auto_mapping", "inference_mode")
"""Entries of a config that say where it came from, and nothing of what the adapter computes."""
STARTS: Final = (None, True, False, "gaussian", "orthogonal")
"""Initial values of LoRA that leave the base's weights as they are."""


REMARKS: Final = (
    "`past_key_values` is deprecated",
    ".*is_gradient_checkpointing",
    "Unsupported layer type",
    "Detected that the base layer has no bias",
)
"""What peft 0.21 says of its own calls to transformers 5.24, and of layers that are not linear."""


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out remarks that no reader can act on."""
    with warnings.catch_warnings():
        for remark in REMARKS:
            warnings.filterwarnings("ignore", message=remark)
        yield


class Unfit(ValueError):
    """An adapter does not fit the model it is put into."""


def read_config(folder: Path) -> dict[str, Any]:
    """Read the config of a saved adapter; raises ModelError where the folder holds none that can be used."""
    if missing := [name for name in (CONFIG, WEIGHTS) if not (folder / name).is_file()]:
        raise ModelError(
            f"there is no adapter in {str(folder)!r}: {missing[0]} is missing",
            way_out="Name the folder to which peft, or a trial with keep: adapter, saved one as safetensors.",
        )
    try:
        with safe_open(folder / WEIGHTS, framework="numpy"):  # reads the header, and no weights
            pass
    except SafetensorError as error:
        raise ModelError(f"{WEIGHTS} is damaged: {error}", place=Place(folder / WEIGHTS)) from error
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except ValueError as error:
        raise ModelError(f"{CONFIG} is no JSON: {error}", place=Place(folder / CONFIG)) from error
    if not isinstance(config, dict) or not isinstance(config.get("peft_type"), str):
        raise ModelError(f"{CONFIG} does not say its peft_type", place=Place(folder / CONFIG))
    if config.get("init_lora_weights") not in STARTS:
        raise ModelError(
            f"this adapter stands on a base that was changed when it was made "
            f"(init_lora_weights: {config['init_lora_weights']}), and not on the model's own weights",
            way_out="Convert it with peft (path_initial_model_for_weight_conversion), or merge it.",
        )
    return config


def content_sha256(folder: Path) -> str:
    """Hash what an adapter computes: its config without names and versions, and its weights."""
    config = {name: value for name, value in read_config(folder).items() if name not in NAMES}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in (WEIGHTS, TRAINED):
        if (folder / name).is_file():
            digest.update(f"|{name}|".encode() + (folder / name).read_bytes())
    return digest.hexdigest()


def computed(config: dict[str, Any]) -> bool:
    """Say whether prompts come from an encoder, of which peft's format keeps the results alone."""
    return config["peft_type"] == "P_TUNING" or bool(config.get("prefix_projection"))


def peft_config(folder: Path, *, trainable: bool) -> PeftConfig:
    """Return an adapter's config, of no base in particular; raises Unfit where peft does not know it."""
    from peft import PeftConfig

    try:
        config = PeftConfig.from_pretrained(str(folder))
    except KeyError as error:
        raise Unfit(f"the installed peft has no method {error}") from error
    config.base_model_name_or_path = config.revision = None
    config.inference_mode = not trainable
    return config


def put(wrapped: Any, folder: Path, name: str) -> int:
    """Put an adapter's stored weights into the model that its config was applied to; returns their number.

    Raises Unfit where names or shapes differ from those in the folder.
    """
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    def held() -> dict[str, torch.Tensor]:
        return get_peft_model_state_dict(wrapped, adapter_name=name, save_embedding_layers=False)

    if computed(read_config(folder)) and not wrapped.peft_config[name].inference_mode:
        return _put_encoder(wrapped, folder)
    stored, ours = load_file(folder / WEIGHTS), held()
    for tensor in sorted(stored.keys() | ours.keys()):
        there, here = _shape(stored.get(tensor)), _shape(ours.get(tensor))
        if there != here:
            raise Unfit(f"{tensor} is {there} in the adapter and {here} in this model")
    set_peft_model_state_dict(wrapped, stored, adapter_name=name)
    for tensor, value in held().items():
        if not bool((value.cpu() == stored[tensor].to(value.dtype)).all()):
            raise RuntimeError(f"{tensor} is not what the adapter holds")
    return len(stored)


def _put_encoder(wrapped: Any, folder: Path) -> int:
    file = folder / TRAINED
    if not file.is_file():
        raise Unfit(f"it holds computed prompts without the encoder they come from ({TRAINED} is missing)")
    try:
        weights.load(wrapped, file)
    except ValueError as error:
        raise Unfit(str(error)) from error
    return len(weights.trainable(wrapped))


def put_heads(wrapped: Any, folder: Path) -> None:
    """Put back a head that was trained with the adapter, where the model has one and the folder too."""
    begin, file = weights.heads(wrapped), folder / TRAINED
    if not begin or not file.is_file():
        return
    try:
        weights.load(wrapped, file, begin)
    except ValueError as error:
        raise Unfit(str(error)) from error


def _shape(tensor: Any) -> str:
    return "absent" if tensor is None else "x".join(map(str, tensor.shape))
