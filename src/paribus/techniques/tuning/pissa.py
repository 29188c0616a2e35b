"""PiSSA: A and B start as the r largest singular triplets of a weight, and the base keeps the rest.

Source: Meng et al. 2024, arXiv:2404.02948, equations 2 to 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from paribus.techniques.base import NoEffect
from paribus.techniques.tuning.peft_tuner import ADAPTER

if TYPE_CHECKING:
    import torch

FILE: Final = "pissa_start.safetensors"
"""Where A and B of each layer started: trained ones stand on a base without that product."""


def split(path: str, layer: Any) -> None:
    """Set A and B of a layer from its weight [out, in], and put the rest in the weight's place.

    The weight itself is left untouched, so that `applied` can put it back bit for bit; a matrix tied to it
    stays whole. Computed in fp32, or fp64 where the weight is. Raises NoEffect where a weight has fewer than
    r singular values, or is no matrix of floats.
    """
    import torch

    whole, r, scaling = layer.get_base_layer().weight, layer.r[ADAPTER], layer.scaling[ADAPTER]
    if not whole.dtype.is_floating_point or r > min(whole.shape):
        reason = (
            f"{path} is a {'x'.join(map(str, whole.shape))} matrix of {whole.dtype}: no {r} singular values"
        )
        raise NoEffect(
            "pissa",
            reason,
            "use a smaller r, a base that is not quantised, or set init_lora_weights: default",
        )
    left, values, right = torch.linalg.svd(_out_by_in(layer, _wide(whole)), full_matrices=False)
    root = (values[:r] / scaling).sqrt()
    a, b = layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight
    a.data.copy_(root.unsqueeze(1) * right[:r])
    b.data.copy_(left[:, :r] * root)
    layer.pissa = {"whole": whole, "a": a.detach().clone(), "b": b.detach().clone()}
    _take_out(layer)


def _take_out(layer: Any) -> None:
    """Put the whole weight less the start of the update in the place of the weight."""
    import torch

    whole = layer.pissa["whole"]
    device = layer.lora_A[ADAPTER].weight.device
    a, b = (_wide(layer.pissa[name]) for name in ("a", "b"))
    rest = _out_by_in(layer, _wide(whole)) - layer.scaling[ADAPTER] * (b @ a).to(whole.device)
    stored = _out_by_in(layer, rest).to(device, whole.dtype).contiguous()
    layer.get_base_layer().weight = torch.nn.Parameter(stored, requires_grad=False)


def whole(layer: Any) -> torch.Tensor:
    """Return the weight of a layer as it was before anything was taken out of it."""
    return layer.pissa["whole"] if hasattr(layer, "pissa") else layer.get_base_layer().weight


def start_error(layer: Any) -> float:
    """Return the norm of what rounding took from the weight when it was split, over that of the weight."""
    whole = layer.pissa["whole"].double()
    start = layer.scaling[ADAPTER] * (layer.pissa["b"].double() @ layer.pissa["a"].double())
    rest = layer.get_base_layer().weight.detach().double().to(whole.device)
    return float((rest + _out_by_in(layer, start.to(whole.device)) - whole).norm() / whole.norm())


def save(layers: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Write where A and B of each layer started."""
    from safetensors.torch import save_file

    tensors = {f"{path}.{name}": layer.pissa[name].cpu() for path, layer in layers for name in ("a", "b")}
    save_file(tensors, folder / FILE)


def load(layers: Iterable[tuple[str, Any]], folder: Path) -> None:
    """Take out of the base what `save` says was taken out; raises ValueError where the layers differ."""
    from safetensors.torch import load_file

    stored, known = load_file(folder / FILE), dict(layers)
    if {name.rpartition(".")[0] for name in stored} != known.keys():
        raise ValueError(f"{folder / FILE} does not fit the layers that are adapted")
    for path, layer in known.items():
        layer.pissa |= {name: stored[f"{path}.{name}"].to(layer.pissa[name].device) for name in ("a", "b")}
        _take_out(layer)


def _out_by_in(layer: Any, weight: torch.Tensor) -> torch.Tensor:
    """Turn a weight as the layer stores it into [out, in], and back: GPT-2 stores the transpose."""
    return weight.T if layer.fan_in_fan_out else weight


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
