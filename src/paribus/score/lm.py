"""A model in memory as lm-eval asks for it: log-likelihoods and greedy answers, whatever the batches.

Texts become tokens as in lm-eval's own `HFLM`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.defaults import DEFAULT_MAX_GEN_TOKS
from lm_eval.models.utils import has_bos_prefix, normalize_gen_kwargs, resolve_max_length

from paribus.errors import ModelError, ParibusError
from paribus.score.blocks import Blocks
from paribus.score.generate import Decoding, generate
from paribus.score.likelihoods import ROWS, likelihoods
from paribus.score.subject import Subject
from paribus.score.variants import virtual_tokens

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class _UnusableError(Exception):
    """A request cannot be answered; which one is its place in what was asked."""

    def __init__(self, index: int, reason: str, way_out: str) -> None:
        super().__init__(reason)
        self.index, self.reason, self.way_out = index, reason, way_out

    def of(self, request: Instance) -> ParibusError:
        return ParibusError(f"{_where(request)}: {self.reason}", way_out=self.way_out)


def _where(request: Instance) -> str:
    return f"{request.task_name}, document {request.doc_id}"


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
        return resolve_max_length(self.model.config, self.tokenizer) - virtual_tokens(self.model)

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
                token_list=self.tok_encode(request.arguments[0]),
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
        alike: dict[tuple[tuple[str, ...], int], dict[int, list[int]]] = defaultdict(dict)
        for index, request in enumerate(requests):
            context, wanted = request.arguments
            stops, most = self._ends(wanted)
            try:
                alike[stops, most][index] = self._prompt(index, context, self.max_length - most)
            except _UnusableError as fault:
                raise fault.of(request) from fault
        texts, alone = [""] * len(requests), Subject(self.model, self.tokenizer, Path(), 0, Blocks())
        for (stops, most), prompts in alike.items():
            named = [_where(requests[index]) for index in prompts]
            rows = generate(alone, list(prompts.values()), Decoding(most, stops), keys=named)
            for index, row in zip(prompts, rows, strict=True):
                texts[index] = row["text"].removeprefix(" ") if self._strips else row["text"]
                self.notes[index] |= {"tokens": row["tokens"], "ties": row["ties"]}
        return texts

    def _ends(self, wanted: dict[str, Any]) -> tuple[tuple[str, ...], int]:
        """Return the stop sequences of an answer, and how many tokens it may have."""
        known: Any = normalize_gen_kwargs(wanted, DEFAULT_MAX_GEN_TOKS)
        return tuple(stop for stop in known["until"] if stop), self.max_gen_toks or known["max_gen_toks"]

    def _prompt(self, index: int, context: str, room: int) -> list[int]:
        prompt = self.tok_encode(context) or [self.prefix_token_id]
        if len(prompt) > room:
            self._cut(index, len(prompt), room, possible=room > 0)
        return prompt[-room:]

    @cached_property
    def _strips(self) -> bool:
        """Say whether decoding strips the space before a first word; lm-eval decodes answers alone."""
        first, both = (self.tokenizer.encode(text, add_special_tokens=False) for text in ("a", "a b"))
        return self.tokenizer.decode(both[len(first) :]) == "b"

    def check_room(self, request: Instance) -> None:
        """Raise ParibusError where a request's prompt is too long, before hours go into others."""
        if self.truncate or request.request_type == "loglikelihood_rolling":
            return
        self.notes = [{}]
        try:
            if request.request_type == "generate_until":
                self._prompt(0, request.arguments[0], self.max_length - self._ends(request.arguments[1])[1])
            else:
                self._input(0, self.tok_encode("".join(request.arguments)), [0])
        except _UnusableError as fault:
            raise fault.of(request) from fault

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **ignored: Any
    ) -> list[tuple[float, bool]]:
        self.notes = [{"truncated": 0} for _ in requests]
        read = [
            (self._input(index, context, continuation), continuation)
            for index, (_, context, continuation) in enumerate(requests)
        ]
        found = likelihoods(self.model, read, self.batch_rows)
        for index, answer in enumerate(found):
            if not math.isfinite(answer[0]):
                way_out = "Its weights diverged or its dtype overflows."
                raise _UnusableError(index, "the model's logits are not finite numbers.", way_out)
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
