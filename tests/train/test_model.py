"""Models load in training mode and the asked dtype; a GGUF file is converted once and trains."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from paribus.embedded import BASE
from paribus.errors import ModelError
from paribus.sources.blocks import EmbeddedModel, FilesData, PathModel
from paribus.sources.examples import Turn, numbered
from paribus.sources.models import ModelFiles, locate
from paribus.train import convert
from paribus.train.data import encode, end_ids, load_tokenizer
from paribus.train.model import load_model

WIDTH, LAYERS, HEADS, GROUPS, INNER, TOKENS = 32, 2, 4, 2, 48, 262


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARIBUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf"


def _vocabulary() -> list[str]:
    """Three special tokens, the 256 bytes as GPT-2 writes them, and what three merges make."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in seen] + [chr(256 + number) for number in range(256 - len(seen))]
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "Ġt", "he", "Ġthe"]


def _describe(writer: Any) -> None:
    writer.add_block_count(LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(GROUPS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(TOKENS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(_vocabulary())
    writer.add_token_types([3, 3, 3] + [1] * (TOKENS - 3))
    writer.add_token_merges(["Ġ t", "h e", "Ġt he"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}{{ m['content'] + '<|im_end|>' }}{% endfor %}")


@pytest.fixture
def gguf_model(tmp_path: Path) -> ModelFiles:
    """A llama of 24 thousand parameters with a GPT-2 tokenizer, in one GGUF file."""
    from gguf import GGUFWriter

    writer, draw = GGUFWriter(str(tmp_path / "tiny.gguf"), "llama"), np.random.default_rng(0)
    _describe(writer)
    narrow = WIDTH * GROUPS // HEADS
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (narrow, WIDTH), "attn_v": (narrow, WIDTH)}
    shapes |= {"attn_output": (WIDTH, WIDTH), "ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}
    shapes |= {"ffn_down": (WIDTH, INNER), "attn_norm": (WIDTH,), "ffn_norm": (WIDTH,)}
    named = {f"blk.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in shapes.items()}
    for name, shape in {
        "token_embd.weight": (TOKENS, WIDTH),
        **named,
        "output_norm.weight": (WIDTH,),
    }.items():
        values = np.ones(shape) if "norm" in name else draw.standard_normal(shape) * 0.05
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return locate(PathModel(path=tmp_path / "tiny.gguf"), Path())


def test_the_base_loads_for_training_in_the_asked_dtype() -> None:
    files = locate(EmbeddedModel(), Path())
    for dtype in ("float32", "bfloat16"):
        model = load_model(files, dtype)
        assert model.training
        assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
        assert sum(parameter.numel() for parameter in model.parameters()) == files.facts.parameters


def test_the_facts_of_a_gguf_file_are_those_of_the_model_made_of_it(gguf_model: ModelFiles) -> None:
    model: Any = load_model(gguf_model)
    facts, config = gguf_model.facts, model.config
    assert facts.architecture == type(model).__name__
    assert facts.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (facts.hidden_size, facts.layers, facts.vocabulary, facts.context_length) == (
        config.hidden_size,
        config.num_hidden_layers,
        config.vocab_size,
        config.max_position_embeddings,
    )
    assert facts.chat_template
    tokenizer = load_tokenizer(gguf_model)
    assert tokenizer.chat_template == gguf_model.template
    assert tokenizer.decode(tokenizer("say the word<|im_end|>")["input_ids"]) == "say the word<|im_end|>"
    assert end_ids(tokenizer) == {2}


def test_a_converted_model_trains_and_saves(gguf_model: ModelFiles, tmp_path: Path) -> None:
    model: Any = load_model(gguf_model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids = torch.tensor([[5, 6, 7, 8]])
    losses = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] > losses[1] > losses[2]
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "model.safetensors").is_file()


def test_a_gguf_file_is_converted_once_even_by_several_at_once(
    gguf_model: ModelFiles, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[Path] = []
    really = convert._convert_model

    def counted(files: ModelFiles, target: Path) -> None:
        converted.append(target)
        really(files, target)

    monkeypatch.setattr(convert, "_convert_model", counted)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(convert.model_folder, [gguf_model] * 4))
    assert len(converted) == 1
    assert folders == {cache / f"{gguf_model.sha256[:32]}-model"}
    assert [path for path in cache.iterdir() if path.is_dir()] == list(folders)
    first, second = (load_model(gguf_model).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(converted) == 1


def test_a_conversion_that_fails_leaves_nothing_and_can_be_tried_again(
    gguf_model: ModelFiles, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(files: ModelFiles, target: Path) -> None:
        (target / "half").write_text("")
        raise ValueError("unknown architecture")

    with monkeypatch.context() as patch:
        patch.setattr(convert, "_convert_model", fail)
        with pytest.raises(ModelError, match="cannot convert the model in this file: unknown architecture"):
            load_model(gguf_model)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    assert load_model(gguf_model).training


def test_a_model_that_transformers_does_not_know(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"llama"', '"lama"'))
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(locate(PathModel(path=folder), Path()))


def _without(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    del weights["model.norm.weight"]


def _wider(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    config["intermediate_size"] *= 2


def _not_numbers(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    weights["model.norm.weight"][0] = torch.nan


def _another_task(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    config["tie_word_embeddings"] = False


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (_without, r"LlamaForCausalLM: model\.norm\.weight is missing\."),
        (_wider, r"weight is \d+ x \d+ in its file and \d+ x \d+ by its config, and \d+ more"),
        (_not_numbers, r"model\.norm\.weight holds values that are not finite\."),
        (_another_task, r"lm_head\.weight is missing\."),
    ],
)
def test_no_weight_is_drawn_anew_in_silence(
    tmp_path: Path, damage: Callable[[dict[str, torch.Tensor], dict[str, Any]], None], fault: str
) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    damage(weights, config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=fault):
        load_model(locate(PathModel(path=folder), Path()))


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match=r"the tokenizer in .* cannot be loaded: "):
        load_tokenizer(locate(PathModel(path=folder), Path()))


def test_a_token_without_an_embedding_is_named(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    tokenizer = load_tokenizer(locate(PathModel(path=folder), Path()))
    highest = max(tokenizer("say", add_special_tokens=False)["input_ids"])
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": highest}))
    tokenizer = load_tokenizer(locate(PathModel(path=folder), Path()))
    examples = numbered([(Turn("text", "say"),)])
    with pytest.raises(ModelError, match=rf"the tokenizer gives token {highest} .* embeddings for {highest}"):
        encode(examples, tokenizer, FilesData(train="t", form="text"), 99)


def test_a_tokenizer_without_padding_pads_with_its_end(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(BASE, tmp_path / "model"))
    settings = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(settings.replace('"pad_token"', '"was_pad_token"'))
    tokenizer = load_tokenizer(locate(PathModel(path=folder), Path()))
    assert tokenizer.pad_token == tokenizer.eos_token == "<eos>"
