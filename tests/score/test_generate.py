"""Text behind prompts: what the model says token by token, whatever the batch, the padding and the tuning."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import tiny
from paribus.errors import ModelError, ParibusError
from paribus.score.blocks import Blocks
from paribus.score.generate import Decoding, generate
from paribus.score.subject import Subject
from paribus.techniques import AnyPeft, Ia3, Live, Lora, PrefixTuning, PromptTuning, PTuning, Vera
from paribus.techniques.tuning.adapter import Adapter
from paribus.techniques.tuning.saved import quiet

LETTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789.,:;=()"
SPECIAL = ("<pad>", "<bos>", "<eos>")
TUNINGS = {
    "lora": Lora(r=4),
    "ia3": Ia3(),
    "vera": Vera(),
    "loha": AnyPeft(method="LoHaConfig"),
    "norms": AnyPeft(method="LNTuningConfig"),
    "adaption": AnyPeft(method="AdaptionPromptConfig", settings={"adapter_len": 3, "adapter_layers": 1}),
    "prompt": PromptTuning(num_virtual_tokens=3),
    "prefix": PrefixTuning(num_virtual_tokens=3, prefix_projection=True),
    "p": PTuning(num_virtual_tokens=3),
    "bottleneck": Adapter(),
}
PROMPTS = [list(row.input_ids) for row in tiny.rows(9)]
GREEDY = Decoding(max_new_tokens=12)
DRAWN = replace(GREEDY, temperature=1.0, top_p=0.9, seed=3)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return a tokenizer of one character a token, as many as tiny models know."""
    words = (*SPECIAL, *LETTERS)
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )


def moved(parameters: Any, seed: int, scale: float) -> None:
    """Move parameters by a fixed draw."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))


def lively(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return a tiny model whose next tokens differ from prompt to prompt."""
    model = tiny.MODELS[name](dtype=dtype)
    moved((parameter for parameter in model.parameters() if parameter.dim() > 1), 5, 0.4)
    return model.eval()


def subject(model: Any, tokenizer: Any, **more: Any) -> Subject:
    return Subject(model, tokenizer, Path(), 0, **{"blocks": Blocks()} | more)


def said(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """Decode greedily with no cache and no batch: the reference."""
    ids = torch.tensor([prompt])
    for _ in range(tokens):
        with torch.no_grad(), quiet():
            token = model(input_ids=ids, use_cache=False).logits[0, -1].argmax()
        ids = torch.cat([ids, token.view(1, 1)], 1)
        if token == 2:
            break
    return ids[0, len(prompt) :].tolist()


def texts(rows: list[dict[str, Any]]) -> list[str]:
    return [row["text"] for row in rows]


def check(model: Any, tokenizer: Any) -> None:
    """Assert that a model writes what it says by itself, at any size of batch, greedily and by draws."""
    whole = generate(subject(model, tokenizer), PROMPTS, GREEDY, batch_size=8)
    for row, prompt in zip(whole, PROMPTS, strict=True):
        wanted = said(model, prompt, GREEDY.max_new_tokens)
        assert row["tokens"] == len(wanted)
        assert row["text"] == tokenizer.decode(wanted, skip_special_tokens=True)
        assert row["stopped"] == ("eos" if wanted[-1] == 2 else "length")
    assert len(set(texts(whole))) > 4
    assert all(row["ties"] == 0 for row in whole)
    drawn = generate(subject(model, tokenizer), PROMPTS, DRAWN, batch_size=8)
    for size in (1, 3):
        assert generate(subject(model, tokenizer), PROMPTS, GREEDY, batch_size=size) == whole
        assert generate(subject(model, tokenizer), PROMPTS, DRAWN, batch_size=size) == drawn
    assert texts(drawn) != texts(whole)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_model_writes_the_same_in_any_batch(name: str, tokenizer: Any) -> None:
    check(lively(name), tokenizer)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_in_single_precision_only_a_tie_can_move_a_text(name: str, tokenizer: Any) -> None:
    model, prompts = lively(name, torch.float32), [list(row.input_ids) for row in tiny.rows(40)]
    for decoding in (GREEDY, DRAWN):
        alone, *others = (
            generate(subject(model, tokenizer), prompts, decoding, batch_size=size) for size in (1, 3, 8)
        )
        assert sum(row["ties"] == 0 for row in alone) > 30
        for one, other in zip(others[0] + others[1], alone * 2, strict=True):
            assert one["text"] == other["text"] or one["ties"] * other["ties"] > 0


@pytest.mark.parametrize("name", TUNINGS)
def test_a_tuned_model_writes_the_same_in_any_batch(name: str, tokenizer: Any) -> None:
    base = lively("llama")
    untuned = texts(generate(subject(base, tokenizer), PROMPTS, GREEDY))
    with TUNINGS[name].applied(base, Live(seed=0)) as model:
        moved((parameter for parameter in model.parameters() if parameter.requires_grad), 1, 0.3)
        check(model, tokenizer)
        assert texts(generate(subject(model, tokenizer), PROMPTS, GREEDY)) != untuned


@pytest.mark.parametrize("name", ["gpt2", "mistral", "opt"])
@pytest.mark.parametrize("method", ["prompt", "prefix", "p"])
def test_virtual_tokens_stand_beside_the_prompt(name: str, method: str, tokenizer: Any) -> None:
    with TUNINGS[method].applied(lively(name), Live(seed=0)) as model:
        check(model, tokenizer)


class Plain(torch.nn.Module):
    """A model that keeps no cache; `seen` has the shape of what it read."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner, self.config = model, model.config
        self.seen: list[tuple[int, ...]] = []

    def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any) -> Any:
        self.seen.append(tuple(input_ids.shape))
        given = {"attention_mask": attention_mask, "position_ids": position_ids, "use_cache": False}
        return SimpleNamespace(logits=self.inner(input_ids=input_ids, **given).logits)


class Unplaced(Plain):
    """A model that takes neither mask nor positions, and so no padding."""

    def forward(self, input_ids: Any) -> Any:
        return super().forward(input_ids, None, None)


@pytest.mark.parametrize("kind", [Plain, Unplaced])
def test_a_model_without_a_cache_writes_the_same(kind: type[Plain], tokenizer: Any) -> None:
    model, wanted = kind(lively("llama")), generate(subject(lively("llama"), tokenizer), PROMPTS, GREEDY)
    for size in (1, 8):
        assert generate(subject(model, tokenizer), PROMPTS, GREEDY, batch_size=size) == wanted
    largest = Counter(map(len, PROMPTS)).most_common(1)[0][1] if kind is Unplaced else 8
    assert max(rows for rows, _ in model.seen) == largest


def test_padding_that_a_model_is_not_told_of_is_felt(tokenizer: Any) -> None:
    """The planted fault: a model that hides padding from no one writes something else."""

    class Deaf(Plain):
        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any) -> Any:
            return super().forward(input_ids, None, None)

    written = generate(subject(Deaf(lively("llama")), tokenizer), PROMPTS, GREEDY, batch_size=8)
    assert texts(written) != texts(generate(subject(lively("llama"), tokenizer), PROMPTS, GREEDY))


class Script(torch.nn.Module):
    """A model that says one text whatever it reads, then ends; `gap` is how far behind the next letter is."""

    def __init__(self, tokenizer: Any, text: str, gap: float = 5.0, worst: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = tiny.llama().config
        self.plan, self.gap, self.worst = [*tokenizer.encode(text), 2], gap, worst
        self.prompts: list[int] = []

    def forward(self, input_ids: Any) -> Any:
        logits = torch.full((*input_ids.shape, tiny.VOCABULARY), -9.0)
        self.prompts = self.prompts if self.prompts else [input_ids.shape[1]]
        step = min(input_ids.shape[1] - self.prompts[0], len(self.plan) - 1)
        logits[:, -1, self.plan[step]] = 0
        logits[:, -1, 9 + step] = -self.gap if self.plan[step] != 9 + step else 0
        logits[:, -1, 3] += self.worst
        return SimpleNamespace(logits=logits)


def spoken(tokenizer: Any, text: str, **decoding: Any) -> dict[str, Any]:
    chosen = Decoding(**{"max_new_tokens": 30} | decoding)
    (row,) = generate(subject(Script(tokenizer, text), tokenizer), [[4, 5]], chosen)
    return row


def test_a_text_ends_before_the_first_stop_string(tokenizer: Any) -> None:
    code = "    return 1\n\ndef other"
    assert spoken(tokenizer, code) == {
        "text": code,
        "tokens": len(code) + 1,
        "ties": 0,
        "truncated": False,
        "stopped": "eos",
    }
    stopped = spoken(tokenizer, code, stop=("\nclass", "\ndef", "f other"))
    assert (stopped["text"], stopped["stopped"]) == ("    return 1\n", "stop")
    assert stopped["tokens"] == len("    return 1\n\ndef")
    short = spoken(tokenizer, code, stop=("\ndef",), max_new_tokens=6)
    assert (short["text"], short["tokens"], short["stopped"]) == ("    re", 6, "length")
    at_last = spoken(tokenizer, "ab;", stop=(";",), max_new_tokens=3)
    assert (at_last["text"], at_last["stopped"]) == ("ab", "stop")
    assert spoken(tokenizer, "", stop=("x",))["text"] == ""


def test_the_end_of_a_text_is_what_the_generation_settings_say_too(tokenizer: Any) -> None:
    model = Script(tokenizer, "go on:no")
    model.generation_config = SimpleNamespace(eos_token_id=[2, tokenizer.encode(":")[0]])
    (row,) = generate(subject(model, tokenizer), [[4]], GREEDY)
    assert (row["text"], row["stopped"], row["tokens"]) == ("go on", "eos", 6)


def test_a_space_in_front_of_a_text_stays(tokenizer: Any) -> None:
    """Tokenizers of sentencepiece drop the space of the first token they decode."""

    class Stripping:
        eos_token_id = 2

        def decode(self, ids: list[int], **_: Any) -> str:
            return tokenizer.decode(ids, skip_special_tokens=True).removeprefix(" ")

    for prompt in ([9, 10], [4]):  # [4] is a space itself
        model = Script(tokenizer, "    indented")
        (row,) = generate(subject(model, Stripping()), [prompt], Decoding(max_new_tokens=20))
        assert row["text"] == "    indented"


def test_ties_are_counted_up_to_the_end_of_a_text(tokenizer: Any) -> None:
    for gap, ties in ((9e-5, 4), (2e-4, 0)):
        model = Script(tokenizer, "wxyz", gap=gap)
        (row,) = generate(subject(model, tokenizer), [[4]], Decoding(max_new_tokens=4))
        assert row["ties"] == ties
    two = generate(subject(Script(tokenizer, "wxyz", gap=0), tokenizer), [[4], [5]], Decoding(2))
    assert [row["ties"] for row in two] == [2, 2]


def test_a_prompt_beyond_the_context_is_cut_on_the_left_or_refused(tokenizer: Any) -> None:
    model = lively("llama")  # reads 64 tokens
    long, short = [3 + number % 40 for number in range(70)], [5, 6]
    with pytest.raises(ParibusError, match=r"item 1: its 70 tokens are more than the 54") as caught:
        generate(subject(model, tokenizer), [short, long], Decoding(10))
    assert "truncate: true" in str(caught.value)
    both = generate(subject(model, tokenizer), [short, long], Decoding(10, truncate=True))
    assert [row["truncated"] for row in both] == [False, True]
    assert texts(both) == texts(generate(subject(model, tokenizer), [short, long[-54:]], Decoding(10)))
    assert generate(subject(model, tokenizer), [long[-54:]], Decoding(10))[0]["truncated"] is False
    with pytest.raises(ParibusError, match="leave a prompt no room"):
        generate(subject(model, tokenizer), [short], Decoding(64, truncate=True))
    with pytest.raises(ParibusError, match="item seven: the prompt has no token"):
        generate(subject(model, tokenizer), [short, []], GREEDY, keys=["six", "seven"])
    with TUNINGS["prompt"].applied(model, Live(seed=0)) as tuned:
        with pytest.raises(ParibusError, match="more than the 51"):
            generate(subject(tuned, tokenizer), [long[:52]], Decoding(10))
        assert len(generate(subject(tuned, tokenizer), [long[:51]], Decoding(10))) == 1


def test_draws_depend_on_the_seed_and_the_item_alone(tokenizer: Any) -> None:
    model = lively("llama")
    state = torch.get_rng_state()
    whole = texts(generate(subject(model, tokenizer), PROMPTS, DRAWN))
    assert texts(generate(subject(model, tokenizer), PROMPTS[:2], DRAWN)) == whole[:2]
    keyed = generate(subject(model, tokenizer), PROMPTS[3:5], DRAWN, keys=(3, 4))
    assert texts(keyed) == whole[3:5]
    assert torch.equal(torch.get_rng_state(), state)
    assert texts(generate(subject(model, tokenizer), PROMPTS, replace(DRAWN, seed=4))) != whole
    repeated = texts(generate(subject(model, tokenizer), [PROMPTS[0]] * 6, DRAWN))
    assert len(set(repeated)) > 4
    narrow = texts(generate(subject(model, tokenizer), PROMPTS, replace(DRAWN, top_p=1e-6)))
    assert narrow == texts(generate(subject(model, tokenizer), PROMPTS, GREEDY))


def test_draws_follow_the_shares_of_probability(tokenizer: Any) -> None:
    """Four letters of 0.4, 0.3, 0.2 and 0.1: top_p 0.6 leaves the first two, at 4 to 3."""

    class Four(torch.nn.Module):
        config = tiny.llama().config

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, input_ids: Any) -> Any:
            logits = torch.full((*input_ids.shape, tiny.VOCABULARY), -math.inf)
            logits[..., 10:14] = torch.tensor([0.2, 0.4, 0.1, 0.3]).log()
            return SimpleNamespace(logits=logits)

    def shares(**decoding: Any) -> list[float]:
        chosen = Decoding(50, temperature=1.0, **decoding)
        written = "".join(texts(generate(subject(Four(), tokenizer), [[4]] * 40, chosen)))
        return [written.count(LETTERS[letter - 3]) / len(written) for letter in (11, 13, 10, 12)]

    assert shares() == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=0.04)
    assert shares(top_p=0.6) == pytest.approx([4 / 7, 3 / 7, 0, 0], abs=0.04)
    assert shares(top_p=0.71) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0], abs=0.04)


def test_logits_that_are_no_numbers_name_the_item(tokenizer: Any) -> None:
    with pytest.raises(ModelError, match=r"item b: the model's logits are not finite numbers at token 1"):
        model = Script(tokenizer, "abc", worst=math.nan)
        generate(subject(model, tokenizer), [[4, 5]], GREEDY, keys="b")
    with pytest.raises(ModelError, match="not finite"):
        generate(subject(Script(tokenizer, "abc", worst=math.inf), tokenizer), [[4]], DRAWN)


def test_the_model_is_left_as_it_was(tokenizer: Any) -> None:
    model = lively("opt").train()
    model.model.decoder.layers[0].eval()
    model.config.use_cache = False
    before = {name: module.training for name, module in model.named_modules()}
    one = texts(generate(subject(model, tokenizer), PROMPTS, GREEDY))
    assert {name: module.training for name, module in model.named_modules()} == before
    assert model.config.use_cache is False
    assert one == texts(generate(subject(lively("opt"), tokenizer), PROMPTS, GREEDY))
    with pytest.raises(ParibusError), ExitStack() as stack:
        handle = model.register_forward_hook(lambda *_: (_ for _ in ()).throw(ParibusError("stop")))
        stack.callback(handle.remove)
        generate(subject(model, tokenizer), PROMPTS, GREEDY)
    assert {name: module.training for name, module in model.named_modules()} == before
    model(input_ids=torch.tensor([[4, 5]]), labels=torch.tensor([[4, 5]])).loss.backward()


def test_an_interrupted_generation_goes_on_where_it_stopped(tmp_path: Path, tokenizer: Any) -> None:
    model, prompts = lively("llama"), [[3 + number % 40, 4 + number // 40] for number in range(70)]
    whole, told = generate(subject(model, tokenizer), prompts, DRAWN), []

    def stop(done: int, of: int) -> None:
        told.append((done, of))
        if done == 64 and len(told) == 2:
            raise KeyboardInterrupt

    kept = subject(model, tokenizer, blocks=Blocks(tmp_path), tell=stop)
    with pytest.raises(KeyboardInterrupt):
        generate(kept, prompts, DRAWN)
    rows: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    assert generate(kept, prompts, DRAWN) == whole
    assert max(rows) == 6  # of 70, without the two blocks of 32 that were kept
    assert told == [(32, 70), (64, 70), (32, 70), (64, 70), (70, 70)]
    rows.clear()
    assert generate(kept, prompts, DRAWN) == whole
    assert rows == []
    handle.remove()
