"""What a model's weights are, read from the headers of its safetensors files."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import ModelError, Place

INDEX = "model.safetensors.index.json"
BUFFERS = re.compile(r"(^|\.)((attn|attention)\.(masked_)?bias|rotary_emb\.inv_freq|position_ids)$")
"""Constants that some files store beside the parameters: causal masks, rotary frequencies, positions."""
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")


@dataclass(frozen=True)
class Weights:
    """The files that hold a model's weights, and the shape of each parameter in them."""

    files: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]

    def parameters(self, tied: bool) -> int:
        """Count elements; a head that is tied to the embeddings counts once even where it is stored twice."""
        return sum(math.prod(s) for name, s in self.shapes.items() if not (tied and name in HEADS))

    @property
    def bias_parameters(self) -> int:
        """Count the elements of all parameters named `*.bias`."""
        return sum(math.prod(shape) for name, shape in self.shapes.items() if name.endswith(".bias"))


def weights_of(folder: Path) -> Weights:
    """Read the headers of a model directory's safetensors files; raises ModelError where there are none."""
    names = ["model.safetensors"] if (folder / "model.safetensors").is_file() else _shards(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        if not (folder / name).is_file():
            raise ModelError(
                f"the index names {name!r}, which is not there.",
                place=Place(folder / INDEX),
                way_out="Copy or download the missing file; a download may have been cut short.",
            )
        shapes |= header_shapes(folder / name)
    files = (*names, INDEX) if (folder / INDEX).is_file() and len(names) > 1 else tuple(names)
    return Weights(files, {name: shape for name, shape in shapes.items() if not BUFFERS.search(name)})


def _shards(folder: Path) -> list[str]:
    if (folder / INDEX).is_file():
        try:
            return sorted(set(json.loads((folder / INDEX).read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as fault:
            raise ModelError("has no readable weight_map.", place=Place(folder / INDEX)) from fault
    pickles = ", ".join(sorted(file.name for file in folder.glob("*.bin")))
    hint = (
        f"{pickles} may hold code and is not read: load the model with transformers and save it again."
        if pickles
        else "Save the model there with model.save_pretrained(DIR)."
    )
    raise ModelError(f"the model directory {str(folder)!r} has no weights (model.safetensors).", way_out=hint)


def header_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor in a safetensors file; raises ModelError where it is cut short."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length < min(path.stat().st_size, 2**27):
                raise ValueError("its header is longer than the file")
            header: dict[str, Any] = json.loads(file.read(length))
        header.pop("__metadata__", None)
        end = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
        if end != path.stat().st_size:
            raise ValueError(f"it should have {end:,} bytes and has {path.stat().st_size:,}")
        return {name: tuple(entry["shape"]) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as fault:
        raise ModelError(
            f"not a whole safetensors file: {fault}.",
            place=Place(path),
            way_out="Copy or download it again; it may be a Git LFS pointer or cut short.",
        ) from fault
