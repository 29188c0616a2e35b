"""A cell fails when it breaks a law, and when it does not break it the way its named exception says."""

from __future__ import annotations

from typing import Any

import exceptions
import pytest
from cases import Case, singles
from exceptions import Named
from page import failures, page
from verdicts import judge

import tiny
from laws import LAWS, Law, Silent
from paribus.techniques import Fp8, NoEffect, Noise

REASON = "a reason that is long enough to be one"


def named(**changes: Any) -> Named:
    return Named(
        **{"cases": "noise 5", "law": "made", "least": 1e-3, "most": 1.0, "reason": REASON} | changes
    )


def verdict(
    patch: pytest.MonkeyPatch, size: float | Exception, *found: Named, case: Case | None = None
) -> str:
    """Judge a made law of limit 1e-6 that measures a given size or raises."""

    def measure(*_: Any) -> float:
        if isinstance(size, Exception):
            raise size
        return size

    patch.setitem(LAWS, "made", Law(measure, 1e-6, "It is made up."))
    patch.setattr(exceptions, "EXCEPTIONS", found)
    return judge(case or Case("noise 5", {"neftune_noise_alpha": Noise(alpha=5)}), "made", "llama").kind


@pytest.mark.parametrize(
    ("size", "found", "kind"),
    [
        (1e-7, (), "passed"),
        (1e-5, (), "failed"),
        (float("nan"), (), "failed"),
        (0.5, (named(),), "exception"),
        (0.0, (named(),), "failed"),
        (2.0, (named(),), "failed"),
        (float("nan"), (named(),), "failed"),
        (0.5, (named(models=("opt",)),), "failed"),
        (0.5, (named(law="split"),), "failed"),
        (0.0, (named(chance=True),), "passed"),
        (1e-5, (named(chance=True),), "failed"),
        (Silent("says nothing"), (), "silent"),
        (NoEffect("noise", "none came", "add some"), (), "unsupported"),
        (ValueError("broken"), (named(),), "failed"),
    ],
)
def test_a_cell_is_judged_by_its_limit_or_by_both_bounds_of_its_exception(
    size: float | Exception, found: tuple[Named, ...], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verdict(monkeypatch, size, *found) == kind


def test_what_planning_refuses_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    native = Case("fp8", {"precision": Fp8()})
    assert verdict(monkeypatch, ValueError("measured"), case=native) == "unsupported"


def test_a_pair_may_keep_a_law_that_one_of_its_levels_breaks_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Case("pair", {"neftune_noise_alpha": Noise(alpha=5), "precision": Fp8(compute="emulated")})
    assert verdict(monkeypatch, 0.0, named(), case=pair) == "passed"
    assert verdict(monkeypatch, 0.5, named(), case=pair) == "exception"


def test_an_exception_that_is_met_nowhere_is_a_failure_of_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"case": case.name, "model": model, "source": "", "laws": {law: ["passed", 0.0, ""] for law in LAWS}}
        for case in singles()
        for model in tiny.MODELS
    ]
    monkeypatch.setattr("page.EXCEPTIONS", (named(law="split"),))
    assert failures(rows) == [
        ("noise 5", "llama, gpt2, qwen2, mistral, opt, gemma", "split", "its named exception was met nowhere")
    ]
    assert "met nowhere" in page(rows)
    met = next(row for row in rows if row["case"] == "noise 5")
    met["laws"]["split"] = ["exception", 0.5, REASON]
    assert failures(rows) == []
    assert "**Each level alone, " in page(rows)


def test_a_size_that_is_no_number_is_beyond_any_limit() -> None:
    assert tiny.largest([0.0, float("nan"), 1.0]) == float("inf")
    assert tiny.largest([float("nan"), 0.0]) == float("inf")
    assert tiny.largest([0.0, 2.0]) == 2.0
