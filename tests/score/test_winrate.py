"""Win rates: both orders of each pair, ties that are none of the judge's, and lengths held equal."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paribus.embedded import BASE, world
from paribus.errors import DataError, ParibusError
from paribus.plan.scoring import EndpointJudge, LikelihoodJudge, WinRate
from paribus.score import judges, tasks, winrate
from paribus.score.blocks import Blocks
from paribus.score.length_control import length_controlled
from paribus.score.subject import Subject

COUNT = 10
LOCAL = WinRate(
    name="wins", prompts="p.jsonl", judge=LikelihoodJudge(path=BASE), max_new_tokens=12, truncate=True
)
ASKED = LOCAL.model_copy(
    update={"judge": EndpointJudge(url="http://localhost:1", model="m"), "truncate": False}
)
Verdicts = Callable[[str, str, str], str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    examples = list(world.examples("test", "same_wording", COUNT))
    return written(tmp_path, [{"instruction": one.prompt, "output": one.completion} for one in examples])


def written(folder: Path, rows: list[dict[str, Any]]) -> Path:
    (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@cache
def loaded() -> tuple[Any, Any]:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(BASE).eval(), AutoTokenizer.from_pretrained(BASE)


def subject(folder: Path, **more: Any) -> Subject:
    model, tokenizer = loaded()
    return Subject(
        **{"model": model, "tokenizer": tokenizer, "base": folder, "step": 5, "blocks": Blocks()} | more
    )


class Planted:
    """A judge that is told what to say, and keeps what it was asked."""

    def __init__(self, says: Verdicts) -> None:
        self.says, self.questions = says, []

    def of(self, instruction: str, first: str, second: str) -> judges.Said:
        self.questions.append((instruction, first, second))
        said: Any = self.says(instruction, first, second)
        return judges.Said(said)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Verdicts], Planted]:
    def plant(says: Verdicts) -> Planted:
        judge = Planted(says)
        monkeypatch.setattr(judges, "opened", lambda *_: judge)
        return judge

    return plant


def figures(scored: Any) -> dict[str, Any]:
    return {figure.metric: figure for figure in scored.figures}


def references(folder: Path) -> set[str]:
    return {json.loads(line)["output"] for line in (folder / "p.jsonl").read_text().splitlines()}


def different(folder: Path) -> Path:
    """Give each reference words of its own, so that no answer is the reference."""
    rows = [json.loads(line) for line in (folder / "p.jsonl").read_text().splitlines()]
    return written(folder, [row | {"output": row["output"] + " zzz"} for row in rows])


def test_a_judge_that_prefers_references_gives_zero_and_one_that_prefers_answers_one(
    folder: Path, planted: Any
) -> None:
    folder = different(folder)
    judge = planted(lambda _, first, second: "first" if first.endswith("zzz") else "second")
    scored = tasks.score(ASKED, subject(folder))
    assert figures(scored)["win_rate"].value == 0
    assert {(item["first"], item["second"], item["verdict"]) for item in scored.items} == {("loss",) * 3}
    assert len(judge.questions) == 2 * COUNT
    for (asked, first, second), (again, other, one) in zip(
        judge.questions[::2], judge.questions[1::2], strict=True
    ):
        assert (asked, first, second) == (again, one, other)
        assert second in references(folder)
    planted(lambda _, first, second: "second" if first.endswith("zzz") else "first")
    found = figures(tasks.score(ASKED, subject(folder)))
    assert found["win_rate"].value == found["win_rate_without_ties"].value == 1
    assert found["length_controlled_win_rate"].value == 1
    assert (found["win_rate"].standard_error, found["win_rate"].chance, found["win_rate"].n) == (
        0,
        0.5,
        COUNT,
    )
    assert found["agreement_of_orders"].value == 1


def test_a_judge_that_goes_by_the_order_gives_ties_and_a_warning(folder: Path, planted: Any) -> None:
    planted(lambda *_: "first")
    scored = tasks.score(ASKED, subject(different(folder)))
    found = figures(scored)
    assert found["win_rate"].value == 0.5
    assert "win_rate_without_ties" not in found
    assert found["agreement_of_orders"].value == 0
    assert scored.counts["changed_with_order"] == COUNT
    assert "0% of 10 pairs" in scored.warnings[0]


def test_ties_and_replies_without_a_verdict_count_half(folder: Path, planted: Any) -> None:
    folder = different(folder)
    order: list[str] = []

    def says(asked: str, first: str, second: str) -> str:
        order.append(asked)
        win = "second" if first.endswith("zzz") else "first"
        return ["tie", "unclear", win][min((len(order) - 1) // 2, 2)]

    planted(says)
    scored = tasks.score(ASKED, subject(folder))
    assert [item["verdict"] for item in scored.items] == ["tie", "tie", *["win"] * (COUNT - 2)]
    worth = [0.5, 0.5, *[1.0] * (COUNT - 2)]
    assert figures(scored)["win_rate"].value == pytest.approx(statistics.mean(worth))
    assert figures(scored)["win_rate"].standard_error == pytest.approx(statistics.stdev(worth) / COUNT**0.5)
    assert figures(scored)["win_rate_without_ties"].n == COUNT - 2
    assert scored.counts["unclear_replies"] == 2


def test_an_answer_that_is_the_reference_is_a_tie_nobody_is_asked_about(folder: Path, planted: Any) -> None:
    planted(lambda *_: "first")
    tasks.score(ASKED, subject(folder, texts=folder / "texts"))
    lines = [json.loads(line) for line in (folder / "texts" / "wins-5.jsonl").read_text().splitlines()]
    spoken = [{"instruction": line["prompt"], "output": line["answer"]} for line in lines]
    judge = planted(lambda *_: pytest.fail("asked about one answer"))
    scored = tasks.score(ASKED, subject(written(folder, spoken)))
    assert judge.questions == []
    assert figures(scored)["win_rate"].value == 0.5
    assert scored.counts["same_as_reference"] == COUNT
    assert "agreement_of_orders" not in figures(scored)
    assert scored.warnings == ()


def test_items_hold_no_text(folder: Path, planted: Any) -> None:
    planted(lambda *_: "tie")
    items = tasks.score(ASKED, subject(different(folder))).items
    known = {"id", "first", "second", "verdict", "characters", "reference_characters", "tokens", "ties"}
    assert all(set(item) == known for item in items)
    assert {value for item in items for name in ("first", "second", "verdict") for value in [item[name]]} == {
        "tie"
    }
    assert not (folder / "texts").exists()


def test_input_joins_the_instruction(tmp_path: Path, planted: Any) -> None:
    judge = planted(lambda *_: "tie")
    row = {"instruction": "Name a colour of", "input": "the ball", "output": "not this"}
    tasks.score(ASKED, subject(written(tmp_path, [row])))
    assert judge.questions[0][0] == "Name a colour of\n\nthe ball"


def test_what_was_judged_is_kept_when_a_judge_fails(folder: Path, planted: Any) -> None:
    folder, kept = different(folder), Blocks(folder / "blocks")
    calls = 0

    def fails_late(*_: str) -> str:
        nonlocal calls
        calls += 1
        if calls > 2 * winrate.BLOCK:
            raise ParibusError("the judge is gone")
        return "first"

    planted(fails_late)
    with pytest.raises(ParibusError, match="gone"):
        tasks.score(ASKED, subject(folder, blocks=kept))
    judge = planted(lambda *_: "first")
    scored = tasks.score(ASKED, subject(folder, blocks=kept))
    assert len(judge.questions) == 2 * (COUNT - winrate.BLOCK)
    assert scored.counts["changed_with_order"] == COUNT


def test_a_pair_too_long_for_the_judge_is_a_tie_only_where_asked(folder: Path, planted: Any) -> None:
    planted(lambda *_: "too_long")
    folder = different(folder)
    with pytest.raises(ParibusError, match="truncate: true"):
        tasks.score(ASKED, subject(folder))
    scored = tasks.score(ASKED.model_copy(update={"truncate": True}), subject(folder))
    assert scored.counts["too_long_for_judge"] == 2 * COUNT
    assert figures(scored)["win_rate"].value == 0.5


def test_a_local_judge_adds_the_verdict_over_both_orders(folder: Path) -> None:
    folder = different(folder)
    scored = tasks.score(LOCAL, subject(folder))
    assert tasks.score(LOCAL, subject(folder)) == scored
    odds = [item["log_odds"] for item in scored.items]
    figure = figures(scored)["win_rate_over_both_orders"]
    assert figure.value == pytest.approx(statistics.mean((1 + math.copysign(1, one)) / 2 for one in odds))
    assert len(set(odds)) > 1


def test_log_odds_of_both_orders_cancel_what_an_order_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = winrate.Pair("id", "asked", "mine", "theirs")

    class Leaning:
        def of(self, instruction: str, first: str, second: str) -> judges.Said:
            odds = 7.0 + (0.25 if first == "mine" else -0.25)
            return judges.Said("first", odds)

    row = winrate._row(pair, False, Leaning)
    assert (row["first"], row["second"], row["verdict"]) == ("win", "loss", "tie")
    assert row["log_odds"] == 0.25


def test_a_tokenizer_without_a_template_is_told(folder: Path, planted: Any) -> None:
    planted(lambda *_: "tie")
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    tokenizer.chat_template = None
    scored = tasks.score(ASKED, subject(folder, tokenizer=tokenizer))
    assert "no chat template" in scored.warnings[0]


def test_the_hash_is_of_prompts_question_and_judge(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {tasks.check(LOCAL, folder), tasks.check(ASKED, folder)}
    whole.add(tasks.check(LOCAL.model_copy(update={"limit": 3}), folder))
    monkeypatch.setattr(judges, "QUESTION", "Which? {instruction} {first} {second}")
    whole.add(tasks.check(LOCAL, folder))
    assert len(whole) == 4
    with pytest.raises(DataError, match="has no 'output'"):
        tasks.check(LOCAL, written(folder, [{"instruction": "a", "answer": "b"}]))


def test_length_control_gives_back_what_made_the_preferences() -> None:
    """Of preferences drawn from known weights the rate is logistic(theta), and not their mean."""
    generator = np.random.default_rng(3)
    lengths = generator.normal(80, 60, 20_000)
    chance = 1 / (1 + np.exp(-(-1 + 2 * np.tanh(lengths / lengths.std(ddof=1)))))
    wins = (generator.random(20_000) < chance).astype(float)
    found = length_controlled(wins.tolist(), lengths.tolist())
    assert found is not None
    value, error = found
    assert wins.mean() > 0.5
    assert abs(value - 1 / (1 + math.e)) < 3 * error < 0.03


def test_length_control_is_that_of_a_likelihood_maximised_otherwise() -> None:
    from scipy.optimize import minimize

    wins, lengths = [1, 0.5, 0, 1, 0, 1, 0.5, 0], [30, -4, -20, 55, 12, 3, 0, -41]
    x = np.tanh(np.array(lengths) / np.std(lengths, ddof=1))

    def cost(weights: np.ndarray) -> float:
        logits = weights[0] + weights[1] * x
        likelihood = -np.sum(np.array(wins) * logits - np.logaddexp(0, logits))
        return float(likelihood + weights[1] ** 2 / (2 * 2.5**2))

    best = minimize(cost, np.zeros(2), tol=1e-12).x
    found = length_controlled(wins, lengths)
    assert found is not None
    assert found[0] == pytest.approx(1 / (1 + np.exp(-best[0])), abs=1e-6)


def test_length_control_at_its_edges() -> None:
    assert length_controlled([1, 0, 1], [5, 5, 5]) is None
    assert length_controlled([1], [5]) is None
    assert length_controlled([1, 1, 1], [5, 2, 9]) == (1, 0)
    apart = length_controlled([1, 1, 0, 0], [9, 8, -8, -9])  # length alone decides: no weight is too large
    assert apart is not None and apart[0] == pytest.approx(0.5)
    swapped = (
        length_controlled([0, 0.5, 1, 1], [3, -7, 20, -1]),
        length_controlled([1, 0.5, 0, 0], [-3, 7, -20, 1]),
    )
    assert swapped[0] is not None and swapped[1] is not None
    assert swapped[0][0] == pytest.approx(1 - swapped[1][0])
    assert swapped[0][1] == pytest.approx(swapped[1][1])
