"""A covering sample of the matrix: every technique, every law on every architecture, every pair of levels.

`python tests/laws/matrix.py` asks every law of every technique on every architecture.
"""

from __future__ import annotations

from itertools import combinations, cycle

import pytest
from cases import Case, of_class, one_of_each, pairs, singles
from exceptions import EVERY, EXCEPTIONS
from verdicts import judge

import tiny
from laws import LAWS
from paribus.techniques import AXES

MODELS = list(tiny.MODELS)
LAWS_EACH = 3
"""How many laws are asked of each case in the sample."""


def sample() -> list[tuple[Case, str, str]]:
    """Choose for each case the architecture that was asked least, and the laws it was asked least."""
    asked = {model: dict.fromkeys(LAWS, 0) for model in MODELS}
    chosen = []
    for case in singles():
        able = [model for model in MODELS if case.obstacle(model) is None]
        if not able:
            continue
        model = min(able, key=lambda name: sum(asked[name].values()))
        for law in sorted(LAWS, key=lambda name: asked[model][name])[:LAWS_EACH]:
            asked[model][law] += 1
            chosen.append((case, law, model))
    return chosen


def together() -> list[tuple[Case, str, str]]:
    """Give each case of the covering design of pairs one law in turn."""
    laws = cycle(["split", "gradient", "rerun", "resume", "trace", "evaluation", "draws", "padding"])
    return [(case, next(laws), "llama") for case in pairs("llama")]


def named(found: list[tuple[Case, str, str]]) -> list[object]:
    return [pytest.param(*one, id=f"{one[0].name}-{one[1]}-{one[2]}") for one in found]


@pytest.mark.parametrize(("case", "law", "model"), named(sample()))
def test_a_law_holds(case: Case, law: str, model: str) -> None:
    verdict = judge(case, law, model)
    assert verdict.kind != "failed", f"{verdict.size} {verdict.note}"


@pytest.mark.parametrize(("case", "law", "model"), named(together()))
def test_a_law_holds_for_pairs_of_levels(case: Case, law: str, model: str) -> None:
    verdict = judge(case, law, model)
    assert verdict.kind != "failed", f"{verdict.size} {verdict.note}"


def test_the_sample_covers_every_technique_and_every_law_on_every_architecture() -> None:
    chosen = sample()
    assert {(law, model) for _, law, model in chosen} == {(law, model) for law in LAWS for model in MODELS}
    asked = {type(level) for case, _, _ in chosen for level in case.chosen.values()}
    members = {member for found in AXES.values() for member in found}
    assert {member.__name__ for member in members - asked} <= {"Bf16", "Fp16"} | _nowhere()


def _nowhere() -> set[str]:
    """Name the classes none of whose levels can run on any of the models here."""
    return {
        member.__name__
        for found in AXES.values()
        for member in found
        if all(case.obstacle(model) for case in of_class(member) for model in MODELS)
    }


def test_pairs_are_covered_where_they_can_run() -> None:
    covered = {frozenset(pair) for case in pairs("llama") for pair in combinations(case.parts, 2)}
    levels = [
        Case("", {axis: level}).parts[0]
        for axis, found in one_of_each().items()
        for level in found
        if Case("", {axis: level}).obstacle("llama") is None
    ]
    everywhere = Case("", {"dropout": one_of_each()["dropout"][0]}).parts[0]
    partners = {next(iter(pair - {everywhere})) for pair in covered if everywhere in pair}
    assert len(partners) >= len(levels) - 2


def test_named_exceptions_are_of_laws_models_and_cases_that_exist() -> None:
    asked = [*singles(), *pairs("llama"), *pairs("gpt2")]
    for one in EXCEPTIONS:
        assert one.law in LAWS
        assert set(one.models) <= set(EVERY) == set(MODELS)
        assert 0 < one.least <= one.most
        assert len(one.reason) > 40
        assert any(one.covers(case.name, one.law, one.models[0]) for case in asked), one.cases
