"""A model in memory as lm-eval asks for it: log-likelihoods and greedy answers, whatever the batches.

Texts become tokens as in lm-eval's own `HFLM`. Logits are compared in fp32 and summed in fp64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import jinja2
import torch
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.defaults import DEFAULT_MAX_GEN_TOKS
from lm_eval.models.utils import (
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)

from paribus.errors import ModelError, ParibusError
from paribus.score.heldout import LOGITS, TOKENS

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

ROWS: Final = 64
"""Rows in a batch at most."""


class _UnusableError(Exception):
    """A request cannot be answered; which one is its place in what was asked."""

    def __init__(self, index: int, reason: str, way_out: str) -> None:
        super().__init__(reason)
        self.index, self.reason, self.way_out = index, reason, way_out

    def of(self, request: Instance) -> ParibusError:
        where = f"{request.task_name}, document {request.doc_id}"
        return ParibusError(f"{where}: {self.reason}", way_out=self.way_out)


class InMemoryLM(TemplateLM):
    """Answers lm-eval's requests by a model in evaluation mode.

    After each call `notes` has, by request, whether its prompt was `truncated`, and of a generated answer its
    `tokens` and `ties`. A prompt beyond the context is an error unless `truncate`, which cuts it on the
    left as lm-eval does. `max_gen_toks` has the last word over the task's own.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        truncate: bool = False,
        max_gen_toks: int | None = None,
        batch_rows: int = ROWS,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        self.truncate, self.max_gen_toks, self.batch_rows = truncate, max_gen_toks, batch_rows
        self.notes: list[dict[str, int]] = []

    @property
    def eot_token_id(self) -> int:
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """Return what stands before a text without context: the tokenizer's first token, else its last."""
        first = self.tokenizer.bos_token_id
        return self.eot_token_id if first is None else first

    @property
    def max_length(self) -> int:
        """Count the tokens that the model reads, those of virtual tokens in front of each row left out."""
        virtual = getattr(getattr(self.model, "active_peft_config", None), "num_virtual_tokens", None) or 0
        return resolve_max_length(self.model.config, self.tokenizer) - virtual

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Encode with the tokenizer's special tokens, unless the text begins with the first one already."""
        if add_special_tokens is None and has_bos_prefix(string, self.tokenizer.decode(self.prefix_token_id)):
            add_special_tokens = False
        return self.tokenizer.encode(
            string, **({} if add_special_tokens is None else {"add_special_tokens": add_special_tokens})
        )

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation; a template that refuses the system's turn gets it without, as in lm-eval."""
        if not self.tokenizer.chat_template:
            raise ModelError(
                "apply_chat_template is set, and the model's tokenizer has no chat template.",
                way_out="Take it out, or use a model with a template.",
            )
        spoken = [turn for turn in chat_history if turn["role"] != "system"]
        for turns in (chat_history, spoken):
            try:
                return self.tokenizer.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=not add_generation_prompt,
                )
            except jinja2.exceptions.TemplateError as fault:
                reason = str(fault)
        raise ModelError(
            f"the chat template refuses the prompt: {reason}.", way_out="Set apply_chat_template: false."
        )

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        """Return each continuation's log-likelihood, and whether it is the greedy one."""
        try:
            return super().loglikelihood(requests, disable_tqdm=True)
        except _UnusableError as fault:
            raise fault.of(requests[fault.index]) from fault

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Return the log-likelihood of whole texts, each token predicted once, long ones in windows."""
        found = []
        for request in requests:
            windows = utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            pairs: Any = [(("", ""), *utils.make_disjoint_window(window)) for window in windows]
            try:
                found.append(sum(value for value, _ in self._loglikelihood_tokens(pairs)))
            except _UnusableError as fault:
                raise fault.of(request) from fault
        self.notes = [{"truncated": 0} for _ in requests]
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Return greedy answers, each up to the first of its stop sequences."""
        self.notes = [{"truncated": 0} for _ in requests]
        texts = []
        for index, request in enumerate(requests):
            context, wanted = request.args
            stops, most = self._stops(wanted)
            prompt, room = self.tok_encode(context), self.max_length - most
            try:
                if len(prompt) > room:
                    self._cut(index, len(prompt), room, possible=room > 0)
                text, tokens, ties = self._greedy(index, prompt[-room:], stops, most)
            except _UnusableError as fault:
                raise fault.of(request) from fault
            self.notes[index] |= {"tokens": tokens, "ties": ties}
            texts.append(text)
        return texts

    def _stops(self, wanted: dict[str, Any]) -> tuple[list[str], int]:
        """Return the stop sequences of an answer and how many tokens it may have."""
        known = normalize_gen_kwargs(wanted, DEFAULT_MAX_GEN_TOKS)
        stops = handle_stop_sequences(list(known["until"]), eos=self.tokenizer.decode(self.eot_token_id))
        return [stop for stop in stops if stop], self.max_gen_toks or known["max_gen_toks"]

    def _greedy(self, index: int, prompt: list[int], stops: list[str], most: int) -> tuple[str, int, int]:
        """Decode one answer: its text, how many tokens it has, and at how many of them others were as likely."""
        import transformers

        def stopped(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            text = self.tokenizer.decode(ids[0, len(prompt) :])
            return torch.tensor([any(stop in text for stop in stops)], device=ids.device)

        ids = torch.tensor([prompt], device=next(self.model.parameters()).device)
        made: Any = self.model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=most,
            do_sample=False,
            stopping_criteria=transformers.StoppingCriteriaList([stopped]),
            pad_token_id=self.eot_token_id,
            output_logits=True,
            return_dict_in_generate=True,
        )
        if not all(logits.max().isfinite() for logits in made.logits):
            raise _not_finite(index)
        ties = sum(int((logits == logits.max()).sum() > 1) for logits in made.logits)
        new = made.sequences[0, len(prompt) :].tolist()
        text = postprocess_generated_text(self.tokenizer.decode(new, skip_special_tokens=True), stops, None)
        return text, len(new), ties

    def check_room(self, request: Instance) -> None:
        """Raise ParibusError where a request's prompt is too long, before hours go into others."""
        if request.request_type == "loglikelihood" and not self.truncate:
            tokens = self.tok_encode("".join(request.args))
            try:
                self.notes = [{}]
                self._input(0, tokens, [0])
            except _UnusableError as fault:
                raise fault.of(request) from fault

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """Score continuations; requests that differ in the last token alone share one pass of the model."""
        self.notes = [{"truncated": 0} for _ in requests]
        sharing: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, (_, context, continuation) in enumerate(requests):
            sharing[self._input(index, context, continuation)].append(index)
        found: list[tuple[float, bool]] = [(0.0, False)] * len(requests)
        for batch in self._batches(sharing):
            for ids, logits in zip(batch, self._logits(batch), strict=True):
                for index in sharing[ids]:
                    continuation = requests[index][2]
                    found[index] = _scored(
                        index, logits[len(ids) - len(continuation) : len(ids)], continuation
                    )
        return found

    def _input(self, index: int, context: list[int], continuation: list[int]) -> tuple[int, ...]:
        """Return what the model reads to predict a continuation: all but its last token."""
        whole, room = context + continuation, self.max_length
        if not continuation:
            raise _UnusableError(
                index, "an answer has no token of its own.", "Take another task or tokenizer."
            )
        if len(whole) > room + 1:
            self._cut(index, len(whole) - 1, room, possible=len(continuation) <= room)
        return tuple(whole[-(room + 1) :][:-1])

    def _cut(self, index: int, tokens: int, room: int, possible: bool = True) -> None:
        """Note that a prompt is truncated; raises where that is not allowed or would leave nothing of it."""
        if not self.truncate or not possible:
            raise _UnusableError(
                index,
                f"its {tokens} tokens are more than the {room} that the model has room for.",
                "Set truncate: true to cut prompts on the left, or fewer few-shot examples (num_fewshot)."
                if possible
                else "Take a model with a longer context, or set max_gen_toks to fewer.",
            )
        self.notes[index]["truncated"] = 1

    def _batches(self, inputs: Iterable[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Cut inputs, longest first, into batches of bounded size."""
        order = sorted(inputs, key=lambda ids: -len(ids))
        budget = max(1, min(TOKENS, LOGITS // self.model.config.get_text_config().vocab_size))
        while order:
            count = max(1, min(self.batch_rows, budget // len(order[0])))
            yield order[:count]
            order = order[count:]

    def _logits(self, batch: Sequence[tuple[int, ...]]) -> torch.Tensor:
        """Return logits (row, token, vocabulary) of rows padded on the right, virtual tokens left out."""
        device = next(self.model.parameters()).device
        longest = max(map(len, batch))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch], device=device)
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in batch], device=device)
        with torch.no_grad():
            return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, -longest:]


def _scored(index: int, logits: torch.Tensor, continuation: list[int]) -> tuple[float, bool]:
    """Score a continuation by the logits (token, vocabulary) that predict it."""
    targets = torch.tensor(continuation, device=logits.device)
    chances = logits.float().log_softmax(-1)
    value = chances.gather(1, targets.unsqueeze(1)).double().sum().item()
    if not abs(value) < float("inf"):
        raise _not_finite(index)
    return value, bool((chances.argmax(-1) == targets).all())


def _not_finite(index: int) -> _UnusableError:
    return _UnusableError(
        index, "the model's logits are not finite numbers.", "Its weights diverged or its dtype overflows."
    )
