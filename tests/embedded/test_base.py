"""The embedded base is what its promise says, and building it twice gives the same bits."""

import json
from hashlib import sha256

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paribus.embedded import BASE
from paribus.embedded.pretrain import encode, heldout_loss, rebuild
from paribus.embedded.world import examples

PROMISE = json.loads((BASE / "promise.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(BASE)


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(BASE)


def test_the_weights_are_the_promised_ones(model):
    assert sha256((BASE / "model.safetensors").read_bytes()).hexdigest() == PROMISE["weights_sha256"]
    assert sum(parameter.numel() for parameter in model.parameters()) == PROMISE["parameters"]
    assert model.dtype == torch.float32


def test_it_has_no_biases_and_ties_its_embeddings(model):
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


@pytest.mark.parametrize("group", ["same_wording", "new_wording"])
def test_its_heldout_loss_is_the_promised_one(model, tokenizer, group):
    items = examples("validation", group, PROMISE["heldout_examples"])
    assert heldout_loss(model, tokenizer, items) == pytest.approx(PROMISE["heldout_loss"][group], abs=1e-4)


def test_it_is_a_base_worth_tuning(model, tokenizer):
    """It writes the tuned form of text well and instructions badly: between chance and done."""
    chance = torch.log(torch.tensor(float(len(tokenizer)))).item()
    assert PROMISE["pretraining_loss"] < 2
    assert 2 < PROMISE["heldout_loss"]["same_wording"] < chance


def test_a_rebuild_is_the_same_bit_for_bit(tmp_path):
    losses = {name: [] for name in ("one", "two")}
    promises = [
        rebuild(tmp_path / name, steps=3, progress=lambda _step, _steps, loss, kept=kept: kept.append(loss))
        for name, kept in losses.items()
    ]
    assert promises[0] == promises[1]
    assert losses["one"] == losses["two"]
    assert len(losses["one"]) == 3
    for name in ("model.safetensors", "tokenizer.json", "promise.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_rebuild_makes_the_shipped_tokenizer(tmp_path):
    rebuild(tmp_path, steps=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (BASE / name).read_text(encoding="utf-8")


def test_a_rebuild_replaces_no_weights():
    with pytest.raises(FileExistsError, match="name a new folder"):
        rebuild(BASE, steps=1)


def test_a_rebuild_leaves_the_callers_random_state_alone(tmp_path):
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    rebuild(tmp_path, steps=1)
    assert torch.equal(torch.rand(1), expected)


CHAT = [{"role": "user", "content": "add 3 and 4"}, {"role": "assistant", "content": "7"}]
SYSTEM = {"role": "system", "content": "be brief"}


@pytest.mark.parametrize(
    ("messages", "generation", "rendered"),
    [
        (CHAT, False, "<bos><user> add 3 and 4<bot> 7<eos>"),
        (CHAT[:1], True, "<bos><user> add 3 and 4<bot>"),
        (CHAT + CHAT, False, "<bos><user> add 3 and 4<bot> 7<eos><user> add 3 and 4<bot> 7<eos>"),
        ([SYSTEM, *CHAT], False, "<bos> be brief<user> add 3 and 4<bot> 7<eos>"),
        ([{"role": "user", "content": "  add 3 and 4\n"}], True, "<bos><user> add 3 and 4<bot>"),
    ],
)
def test_the_chat_template_renders(tokenizer, messages, generation, rendered):
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=generation)
    assert text == rendered


def test_the_chat_template_refuses_an_unknown_role(tokenizer):
    with pytest.raises(Exception, match="roles are system, user and assistant, not tool"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "x"}], tokenize=False)


def test_a_prompt_is_the_beginning_of_its_whole(tokenizer):
    """Otherwise a loss on completions alone would start at the wrong token."""
    for item in examples("test", "new_wording", 128):
        prompt, whole = encode(tokenizer, item)
        assert whole[: len(prompt)] == prompt
        assert tokenizer.decode(whole[len(prompt) :]) == f" {item.completion}<eos>"


def test_any_text_goes_through_the_tokenizer_unchanged(tokenizer):
    text = " Zürich, 20 % — ¿qué?\n\ttabs"
    assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
