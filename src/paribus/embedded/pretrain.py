"""Build the embedded tokenizer and base model from nothing, in a fixed number of optimizer steps.

One thread, one seed: on one machine and one set of library versions the same bits come out each time. Another
processor rounds sums differently, so its weights differ in the last digits and its losses hardly at all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from paribus.embedded.world import Example, examples, pretraining_document

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

Progress = Callable[[int, int, float], None]

STEPS: Final = 2200
_SEED: Final = 0
_ROWS: Final = 32  # rows in a batch
_LENGTH: Final = 64  # tokens in a row
_LEARNING_RATE: Final = 3e-3
_WARMUP: Final = 50  # steps
_FLOOR: Final = 0.1  # of the learning rate
_PROMISED: Final = 128  # validation examples a group behind the promised loss
_MARKERS: Final = ["<pad>", "<bos>", "<eos>", "<user>", "<bot>"]  # token ids 0 to 4
_PAD, _BOS, _EOS, _USER, _BOT = _MARKERS

# No marker for the system turn: the base has read plain text right after <bos>, so that is where it goes.
_TEMPLATE: Final = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- set content = message['content'] | trim %}"
    "{%- if message['role'] == 'system' %}{{- ' ' + content }}"
    "{%- elif message['role'] == 'user' %}{{- '<user> ' + content }}"
    "{%- elif message['role'] == 'assistant' %}{{- '<bot> ' + content + eos_token }}"
    "{%- else %}{{- raise_exception('roles are system, user and assistant, not ' + message['role']) }}"
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<bot>' }}{%- endif %}"
)


@dataclass(frozen=True)
class Promise:
    """What is known of a built base; losses are nats a token, held-out ones on completions before tuning."""

    seed: int
    steps: int
    tokens: int
    parameters: int
    pretraining_loss: float
    heldout_examples: int
    heldout_loss: dict[str, float]
    weights_sha256: str
    built_with: dict[str, str]


def rebuild(folder: Path, steps: int = STEPS, progress: Progress | None = None) -> Promise:
    """Write tokenizer, base model and `promise.json` into a folder that has none yet.

    `progress` gets (step, steps, loss) after each step. Raises FileExistsError rather than replace weights.
    """
    folder = Path(folder)
    if (folder / "model.safetensors").exists():
        raise FileExistsError(f"{folder} already holds a model.safetensors: name a new folder or move it")
    with _single_thread():
        tokenizer = _tokenizer()
        model = _untrained(len(tokenizer))
        tokens, losses = _train(model, tokenizer, steps, progress)
        tokenizer.save_pretrained(folder)
        model.save_pretrained(folder)
        promise = _promise(folder, steps, tokens, losses)
    (folder / "promise.json").write_text(json.dumps(asdict(promise), indent=2) + "\n", encoding="utf-8")
    return promise


def heldout_loss(model: Any, tokenizer: Any, items: list[Example]) -> float:
    """Nats a token of the completions, summed over all tokens: independent of how they are batched."""
    import torch

    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for item in items:
            prompt, whole = encode(tokenizer, item)
            targets = torch.tensor(whole[len(prompt) :])
            logits = model(input_ids=torch.tensor([whole])).logits[0, len(prompt) - 1 : -1]
            total += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            count += len(targets)
    return total / count


def encode(tokenizer: Any, item: Example) -> tuple[list[int], list[int]]:
    """The token ids of the prompt, and of prompt with completion, as the chat template renders them."""
    asked = [{"role": "user", "content": item.prompt}]
    answered = [*asked, {"role": "assistant", "content": item.completion}]
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    whole = tokenizer.apply_chat_template(answered, tokenize=False)
    ids = tokenizer([prompt, whole], add_special_tokens=False)["input_ids"]
    return ids[0], ids[1]


@contextmanager
def _single_thread() -> Iterator[None]:
    """Sums in a fixed order, with the caller's random state and thread count put back afterwards."""
    import torch

    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    torch.manual_seed(_SEED)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE learnt on the stream itself; every byte is in it, so no text is unknown."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    draw = random.Random("tokenizer")
    documents = [pretraining_document(draw) for _ in range(8000)]
    lines = [document if isinstance(document, str) else " ".join(document) for document in documents]
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bare.decoder = decoders.ByteLevel()
    every_byte = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=768, special_tokens=_MARKERS, initial_alphabet=every_byte, show_progress=False
    )
    bare.train_from_iterator(lines, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare, pad_token=_PAD, bos_token=_BOS, eos_token=_EOS, model_max_length=256
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _untrained(vocabulary: int) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.09,  # about 1 over the root of the width: larger weights bear larger tuning steps
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def _train(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int, progress: Progress | None
) -> tuple[int, list[float]]:
    """AdamW with a warm-up and a linear fall; returns the tokens read and the loss of each step."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.01, betas=(0.9, 0.95))
    rows, tokens, losses = _rows(tokenizer), 0, []
    model.train()
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1, step / _WARMUP) * max(_FLOOR, 1 - (step - 1) / steps)
        ids, mask = _batch(rows)
        labels = ids.masked_fill(mask == 0, -100)
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tokens += int(mask.sum())
        losses.append(loss.item())
        if progress:
            progress(step, steps, losses[-1])
    return tokens, losses


def _rows(tokenizer: PreTrainedTokenizerFast) -> Iterator[list[int]]:
    """Endless rows of whole documents, as many as fit: a cut document would teach a wrong beginning."""
    draw = random.Random(f"stream {_SEED}")
    row: list[int] = []
    while True:
        document = pretraining_document(draw)
        chat = None if isinstance(document, str) else f"{_USER} {document[0]}{_BOT} {document[1]}"
        ids = tokenizer(f"{_BOS}{chat or ' ' + str(document)}{_EOS}", add_special_tokens=False)["input_ids"]
        if len(row) + len(ids) > _LENGTH:
            yield row
            row = []
        row = (row + ids)[:_LENGTH]


def _batch(rows: Iterator[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of the next rows, both [rows, longest row], padded on the right."""
    import torch

    batch = [torch.tensor(next(rows)) for _ in range(_ROWS)]
    ids = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=0)
    return ids, (ids != 0).long()


def _promise(folder: Path, steps: int, tokens: int, losses: list[float]) -> Promise:
    """Measured on what was written, loaded as any user would load it."""
    import tokenizers
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    last = losses[-100:]
    groups = {g: examples("validation", g, _PROMISED) for g in ("same_wording", "new_wording")}
    return Promise(
        seed=_SEED,
        steps=steps,
        tokens=tokens,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        pretraining_loss=sum(last) / len(last),
        heldout_examples=_PROMISED,
        heldout_loss={group: heldout_loss(model, tokenizer, items) for group, items in groups.items()},
        weights_sha256=sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        built_with={
            library.__name__: str(library.__version__) for library in (torch, transformers, tokenizers)
        },
    )
