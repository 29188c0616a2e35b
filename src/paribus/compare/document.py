"""What was found, as plain values for `paribus table --json`: cells, contrasts, effects, rates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paribus import statistics
from paribus.compare import factorial, rates
from paribus.compare.contrast import Arm, Contrast
from paribus.compare.findings import CellFindings, Findings
from paribus.compare.items import within_seeds
from paribus.compare.readings import At
from paribus.compare.seeing import seen

if TYPE_CHECKING:
    from paribus.statistics import Estimate


def found(findings: Findings) -> dict[str, Any]:
    """Return what a study found beside its rows; what could not be computed is absent, never null.

    `cells` with mean and tie letters; `contrasts` of every level at each reading; `main_effects` and
    `interactions` of a grid; `finish_rates` where something failed; `estimand`.
    """
    readings: list[At] = [findings.primary, *findings.other_readings]
    return {
        "estimand": findings.rules.estimand,
        "cells": [_cell(one, findings) for one in findings.cells],
        "contrasts": [_contrast(one, findings) for at in readings for one in findings.contrasts(at)],
        "main_effects": [one.to_json() for one in factorial.main_effects(findings)],
        "interactions": [one.to_json() for one in factorial.interactions(findings)],
        "finish_rates": [one.to_json() for one in rates.rates(findings)],
    }


def _cell(one: CellFindings, findings: Findings) -> dict[str, Any]:
    place = tuple(one.cell.coordinates.values())
    estimate = one.estimates.get(findings.primary)
    return _present(
        coordinates=one.cell.coordinates,
        baseline=one.cell.is_baseline,
        control=one.cell.is_control,
        planned=one.planned,
        finished=one.finished,
        mean=_estimate(estimate),
        ties=findings.ties.letters.get(place),
        verdict=one.contrast.verdict if one.contrast else None,
        trials=list(one.trials),
    )


def _contrast(one: Contrast, findings: Findings) -> dict[str, Any]:
    could, primary = seen(one, findings.rules), one.at == findings.primary
    return _present(
        axis=one.axis,
        level=one.level,
        baseline=one.baseline,
        metric=str(one.metric),
        at=one.at,
        control=one.is_control,
        conditional=one.conditional,
        arm=_arm(one.arm),
        against=_arm(one.against),
        pairs=one.pairs,
        contexts=one.contexts,
        difference=_estimate(one.difference),
        bca=_bca(one, findings),
        family=one.family,
        family_size=one.tested,
        p_holm=one.holm_p,
        p_tost=one.tost_p,
        verdict=one.verdict,
        smallest_difference=could.smallest if could else None,
        seeds_for_margin=could.seeds if could else None,
        variances=_variances(one),
        within_seeds=_within(one, findings) if primary else None,
    )


def _arm(arm: Arm) -> dict[str, int]:
    return {"planned": arm.planned, "finished": arm.finished}


def _estimate(found: Estimate | None) -> dict[str, Any] | None:
    if found is None:
        return None
    ends = found.interval
    return _present(
        n=found.n, mean=found.mean, low=ends.low if ends else None, high=ends.high if ends else None,
        p=found.p, error=found.error, freedom=found.freedom,
    )  # fmt: skip


def _bca(one: Contrast, findings: Findings) -> list[float] | None:
    """Return the resampled interval, which is offered from twelve pairs that vary."""
    values, rules = one.differences, findings.rules
    if len(values) < statistics.BCA_FROM or min(values) == max(values) or rules.looks:
        return None
    ends = statistics.bca_interval(values, rules.confidence)
    return [ends.low, ends.high]


def _variances(one: Contrast) -> dict[str, float] | None:
    parts = one.parts
    return {"seed": parts.seed, "item": parts.item, "residual": parts.residual} if parts else None


def _within(one: Contrast, findings: Findings) -> list[dict[str, Any]] | None:
    listed = [
        {"seed": w.seed, "items": w.items, "method": w.method, "difference": _estimate(w.estimate)}
        for w in within_seeds(findings, one)
    ]
    return listed or None


def _present(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
