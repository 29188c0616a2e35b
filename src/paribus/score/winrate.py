"""How often a judge prefers the model's answer to a reference answer.

The idea is AlpacaEval's (Dubois et al. 2024, arXiv:2404.04475). Each pair is judged in both orders, and a
verdict that changes with the order is a tie (Zheng et al. 2023, arXiv:2306.05685, section 3.4).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from paribus.errors import ParibusError
from paribus.plan.scoring import WinRate
from paribus.record.result import Figure
from paribus.score import judges
from paribus.score.answers import answered, answers, asked, mean_figure, wanted, write_texts
from paribus.score.length_control import length_controlled
from paribus.score.subject import Scored, Subject
from paribus.sources.examples import Example, content_sha256

BLOCK: Final = 4
"""Pairs that are kept together: a judge may be slow, and may cost money."""
WORTH: Final = {"win": 1.0, "tie": 0.5, "loss": 0.0}
FIRST: Final = {"first": "win", "second": "loss"}
"""What a verdict means where the model's answer stands first; what is in neither table stays a tie."""
SECOND: Final = {"first": "loss", "second": "win"}
CHANCE: Final = 0.5


class Pair(NamedTuple):
    """An instruction with the model's answer and the reference."""

    id: str
    instruction: str
    answer: str
    reference: str


def check(setting: WinRate, base: Path) -> str:
    """Raise ParibusError where prompts or judge cannot be used; return the hash of what they are."""
    parts = content_sha256(_examples(setting, base)), judges.check(setting.judge, base)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()


def _examples(setting: WinRate, base: Path) -> tuple[Example, ...]:
    columns = {"instruction": "instruction", "output": "output"}
    return answered("prompts", setting.prompts, base, "alpaca", columns, setting.limit)


def score(setting: WinRate, subject: Subject) -> Scored:
    """Judge the model's greedy answers; an answer that is the reference is a tie that nobody is asked about.

    Prompts are rendered by the tokenizer's chat template; without one they are given as they are.
    """
    examples = _examples(setting, subject.base)
    template = "chat" if subject.tokenizer.chat_template else "plain"
    rows, counts = answers(setting, subject, examples, template)
    write_texts(setting, subject, examples, [row["text"] for row in rows])
    pairs = [
        Pair(example.id, asked(example), row["text"], wanted(example))
        for example, row in zip(examples, rows, strict=True)
    ]
    verdicts = _judged(setting, subject, pairs)
    items = [
        verdict | {"tokens": row["tokens"], "ties": row["ties"]}
        for verdict, row in zip(verdicts, rows, strict=True)
    ]
    notes = [] if template == "chat" else ["no chat template: prompts were given to the model as they are"]
    figures = _figures(setting, subject, verdicts)
    return Scored(figures, items, counts | _counts(verdicts), (*notes, *_doubts(figures)))


def _judged(setting: WinRate, subject: Subject, pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """Return a row a pair; the judge is opened when it is first asked.

    Where the judge gives log-odds, a pair that it was not asked about, or could not read, has 0.
    """

    @cache
    def judge() -> judges.Judge:
        return judges.opened(setting.judge, subject.base, subject.model.device)

    def block(part: Sequence[Pair]) -> list[dict[str, Any]]:
        return [_row(pair, setting.truncate, judge) for pair in part]

    rows = subject.blocks.rows("verdicts", pairs, BLOCK, block, subject.tell)
    return [{"log_odds": 0.0} | row for row in rows] if any("log_odds" in row for row in rows) else rows


def _row(pair: Pair, truncate: bool, judge: Any) -> dict[str, Any]:
    """Judge a pair in both orders, as the model's answer sees it; lengths are in characters."""
    lengths = {"characters": len(pair.answer), "reference_characters": len(pair.reference)}
    if pair.answer == pair.reference:
        return {"id": pair.id, "first": "same", "second": "same", "verdict": "tie"} | lengths
    there = judge().of(pair.instruction, pair.answer, pair.reference)
    back = judge().of(pair.instruction, pair.reference, pair.answer)
    if "too_long" in (there.verdict, back.verdict) and not truncate:
        raise ParibusError(
            f"item {pair.id}: instruction and both answers are more than the judge has room for.",
            way_out="Set truncate: true to count such pairs as ties, or max_new_tokens to fewer.",
        )
    first, second = FIRST.get(there.verdict, there.verdict), SECOND.get(back.verdict, back.verdict)
    verdict = first if first == second and first in WORTH else "tie"
    odds = {} if there.log_odds is None or back.log_odds is None else {"log_odds": _mean(there, back)}
    return {"id": pair.id, "first": first, "second": second, "verdict": verdict} | lengths | odds


def _mean(there: judges.Said, back: judges.Said) -> float:
    """Return the mean of both orders: what the judge adds for the place of an answer cancels out."""
    return (float(there.log_odds or 0) - float(back.log_odds or 0)) / 2


def _counts(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count what became ties, and why."""
    words = Counter(row[order] for row in rows for order in ("first", "second"))
    return {
        "same_as_reference": words["same"] // 2,
        "changed_with_order": sum({row["first"], row["second"]} == {"win", "loss"} for row in rows),
        "unclear_replies": words["unclear"],
        "too_long_for_judge": words["too_long"],
    }


def _figures(setting: WinRate, subject: Subject, rows: Sequence[dict[str, Any]]) -> tuple[Figure, ...]:
    """Return win rates and how far the judge agrees with itself; a figure that has no items is left out."""
    make = partial(mean_figure, setting, subject)
    worth = [WORTH[row["verdict"]] for row in rows]
    figures = [make("win_rate", worth, chance=CHANCE)]
    if decided := [value for value in worth if value != WORTH["tie"]]:
        figures.append(make("win_rate_without_ties", decided, chance=CHANCE))
    lengths = [row["characters"] - row["reference_characters"] for row in rows]
    if (controlled := length_controlled(worth, lengths)) is not None:
        value, error = controlled
        changed = {"metric": "length_controlled_win_rate", "value": value, "standard_error": error}
        figures.append(figures[0].model_copy(update=changed))
    judged = [row for row in rows if row["first"] != "same"]
    if judged:
        agreed = [float(row["first"] == row["second"]) for row in judged]
        figures.append(make("agreement_of_orders", agreed, "share of judged pairs"))
    if "log_odds" in rows[0]:
        both = [(1 + float(np.sign(row["log_odds"]))) / 2 for row in rows]
        figures.append(make("win_rate_over_both_orders", both, chance=CHANCE))
    return tuple(figures)


def _doubts(figures: Sequence[Figure]) -> list[str]:
    """Say where a judge follows the order of the answers more than the answers."""
    found = [figure for figure in figures if figure.metric == "agreement_of_orders" and figure.value < CHANCE]
    return [
        f"the judge says the same in both orders of {figure.value:.0%} of {figure.n} pairs alone: most ties "
        "are its own, and win_rate leans to one half"
        for figure in found
    ]
