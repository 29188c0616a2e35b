"""What documents say of a study's question, and the verdict of its numbers on each.

A verdict is supported, contradicted, inconclusive or not run, with the reason. It counts only where metric,
model and hardware fall inside the claim's scope; elsewhere the claim is not run, and our figure stands
beside it as small-scale evidence.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from paribus.compare import wording
from paribus.compare.contrast import Contrast
from paribus.compare.overfitting import shapes
from paribus.compare.readings import At, Metric
from paribus.plan.complaints import Problem, as_error, translate
from paribus.plan.yaml_lines import Document
from paribus.plan.yaml_lines import read as read_yaml
from paribus.statistics import Interval
from paribus.techniques.base import Settings

if TYPE_CHECKING:
    from paribus.compare.findings import Findings

Word = Literal["supported", "contradicted", "inconclusive", "not run"]
ANY = "any"
_SIDES = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


class Number(Settings):
    """A number as a document prints it, and what of ours stands beside it: an axis level or an epoch.

    The tolerance is half a unit of its last digit unless another is given.
    """

    quantity: str
    value: float
    unit: str = ""
    relation: Literal["=", "<", ">", "<=", ">="] = "="
    tolerance: float | None = Field(default=None, ge=0)
    axis: str | None = None
    level: str | int | float | None = None
    epoch: float | None = None

    def __str__(self) -> str:
        sign = "" if self.relation == "=" else self.relation
        space = "" if self.unit in ("%", "x") else " "
        return f"{sign}{self.value:g}{space}{self.unit}".strip()

    def holds(self, found: float) -> bool:
        """Say whether a computed value is what is printed, to its last digit, or on that side of it."""
        if self.relation == "=":
            return band(self.value, self.tolerance).contains(found)
        return _SIDES[self.relation](found, self.value)

    def to_json(self) -> dict[str, Any]:
        """Return quantity, value and unit, and the relation where it is not equality."""
        return self.model_dump(include={"quantity", "value", "unit"}) | (
            {} if self.relation == "=" else {"relation": self.relation}
        )


def band(number: float, tolerance: float | None) -> Interval:
    """Return what counts as a claimed number: half a unit of its last digit either way, or a tolerance."""
    exponent = Decimal(repr(number)).normalize().as_tuple().exponent
    last = 10.0 ** min(0, exponent) if isinstance(exponent, int) else 0.0
    width = last / 2 if tolerance is None else tolerance
    width += 1e-12 * max(abs(number), width)  # a value on the edge counts, however its binary digits fall
    return Interval(number - width, number + width)


class ShapeCheck(Settings):
    """A pattern that every baseline curve should show."""

    kind: Literal["shape"] = "shape"
    pattern: Literal["train_falls", "validation_u", "gap_grows"]


class DifferenceCheck(Settings):
    """A level less the baseline's in a metric: a side of zero, equality, or a number in the metric's unit.

    Without a metric and a reading those of the study are meant. The tolerance of a number is half a unit of
    its last digit unless another is given.
    """

    kind: Literal["difference"] = "difference"
    axis: str
    level: str | int | float
    expected: Literal["better", "worse", "equal"] | float
    tolerance: float | None = Field(default=None, ge=0)
    metric: str | None = None
    at: At | None = None

    @model_validator(mode="after")
    def _tolerance_of_a_number(self) -> DifferenceCheck:
        if self.tolerance is not None and isinstance(self.expected, str):
            raise ValueError(
                f"tolerance belongs to a number; {self.expected} is judged by the study's margin"
            )
        return self


class Scope(Settings):
    """Where a claim is made: a metric, a model and a hardware class, each `any` or one name."""

    metric: str = ANY
    model: str = ANY
    hardware: str = ANY


class Claim(Settings):
    """One row of a document, in our own words."""

    id: str
    document: str
    lines: str = ""
    says: str
    numbers: tuple[Number, ...] = ()
    checks: tuple[Annotated[ShapeCheck | DifferenceCheck, Field(discriminator="kind")], ...] = ()
    scope: Scope = Scope()
    not_run: str | None = None

    @model_validator(mode="after")
    def _checked_or_said_why_not(self) -> Claim:
        if not self.checks and not self.not_run:
            raise ValueError(f"claim {self.id} needs checks, or not_run with the reason")
        return self


class Claims(Settings):
    """The `claims.yaml` beside a study."""

    paribus: Literal[1] = 1
    claims: tuple[Claim, ...] = ()

    def numbers(self, quantity: str) -> list[tuple[Claim, Number]]:
        """Return every printed number of a quantity with the claim it stands in."""
        return [(c, n) for c in self.claims for n in c.numbers if n.quantity == quantity]


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, the reason for it and our figure."""

    claim: Claim
    verdict: Word
    reason: str
    ours: str = ""


def read_claims(folder: Path) -> Claims:
    """Read the claims beside a study, or none where there is no file; an error names file and line."""
    path = folder / "claims.yaml"
    if not path.exists():
        return Claims()
    document = read_yaml(path)
    try:
        found = Claims.model_validate(document.value)
    except ValidationError as error:
        raise as_error(document, translate(error, Claims, document.value)) from error
    return _unique(found, document)


def _unique(claims: Claims, document: Document) -> Claims:
    ids = [claim.id for claim in claims.claims]
    twice = [
        Problem(("claims", i, "id"), f"the claim {name!r} is listed twice", "Keep one.")
        for i, name in enumerate(ids)
        if name in ids[:i]
    ]
    if twice:
        raise as_error(document, twice)
    return claims


def judge(claims: Claims, findings: Findings) -> list[Judged]:
    """Give every claim its verdict, in the order of the file."""
    return [_judge(claim, findings) for claim in claims.claims]


def matching(contrasts: Iterable[Contrast], axis: str | None, level: Any) -> Contrast | None:
    """Find the contrast of a level, named by its label or its kind."""
    wanted = f"{level:g}" if isinstance(level, float) else str(level)
    own = [contrast for contrast in contrasts if contrast.axis == axis]
    exact = [contrast for contrast in own if contrast.level == wanted]
    return next(iter(exact or [c for c in own if wording.kind(c.level) == wanted]), None)


def _judge(claim: Claim, findings: Findings) -> Judged:
    if not claim.checks:
        return Judged(claim, "not run", claim.not_run or "")
    judged = [_check(check, findings) for check in claim.checks]
    ours = "; ".join(dict.fromkeys(figure for _, _, figure in judged if figure))
    outside = claim.not_run or _outside(claim, findings)
    if outside:
        return Judged(claim, "not run", outside, ours)
    words = [word for word, _, _ in judged]
    order: tuple[Word, ...] = ("contradicted", "not run", "inconclusive", "supported")
    verdict: Word = next(word for word in order if word in words)
    reasons = "; ".join(dict.fromkeys(reason for word, reason, _ in judged if word == verdict))
    return Judged(claim, verdict, reasons, ours)


def _outside(claim: Claim, findings: Findings) -> str | None:
    """Say in which respect a study does not meet a claim's scope."""
    model = findings.study.model
    name = next((str(v) for k in ("name", "package", "path") if (v := getattr(model, k, None))), model.source)
    metrics = {getattr(check, "metric", None) or str(findings.metric) for check in claim.checks}
    classes = {known.result.machine_class for known in findings.recorded.values()}
    reasons = []
    if claim.scope.metric != ANY and metrics != {claim.scope.metric}:
        reasons.append(f"it is about {claim.scope.metric}, this study measures {', '.join(sorted(metrics))}")
    if claim.scope.model not in (ANY, name):
        reasons.append(f"it is about {claim.scope.model}, this study trains {name}")
    if claim.scope.hardware != ANY and not all(claim.scope.hardware in found for found in classes):
        reasons.append(f"it is about {claim.scope.hardware}, this ran on {', '.join(sorted(classes))}")
    return "; ".join(reasons) or None


Verdict = tuple[Word, str, str]


def _check(check: ShapeCheck | DifferenceCheck, findings: Findings) -> Verdict:
    if isinstance(check, ShapeCheck):
        return _check_shape(check, findings)
    metric = Metric.parse(check.metric, findings.study.task) if check.metric else findings.metric
    contrast = matching(findings.contrasts(check.at, metric), check.axis, check.level)
    if contrast is None:
        return "not run", f"this study has no level {check.level} of {check.axis}", ""
    if contrast.difference is None:
        return "not run", f"no pair of {wording.level_name(contrast.level)} finished", ""
    figure = (
        f"{wording.axis_name(check.axis)} {wording.level_name(contrast.level)}: "
        f"{wording.difference(contrast.difference)} {metric.unit}, "
        f"n = {contrast.difference.n}{_conditional(contrast)}"
    )
    if contrast.flags:
        return "not run", f"not a fair comparison. {contrast.unfair}", figure
    return (*_expected(check, contrast, contrast.difference.interval, findings), figure)


def _conditional(contrast: Contrast) -> str:
    """Say how many trials of each side finished where not all did."""
    if not contrast.conditional:
        return ""
    arm, base = contrast.arm, contrast.against
    return (
        f", conditional: {arm.finished} of {arm.planned} finished "
        f"against {base.finished} of {base.planned} of the baseline"
    )


def _expected(
    check: DifferenceCheck, contrast: Contrast, found: Interval | None, findings: Findings
) -> tuple[Word, str]:
    if found is None:
        return "inconclusive", "one pair has no interval"
    if check.expected == "equal":
        return _equal(contrast, found, findings)
    if isinstance(check.expected, str):
        return _direction(check.expected, contrast, found)
    return _number(found, band(check.expected, check.tolerance))


def _check_shape(check: ShapeCheck, findings: Findings) -> Verdict:
    base = findings.baseline
    curves = [findings.curves[k] for k in base.trials.values() if k in findings.curves] if base else []
    found = dict(
        zip(("train_falls", "validation_u", "gap_grows"), shapes(curves, findings.metric.group), strict=True)
    )
    shape = found[check.pattern]
    if shape.holds is None:
        return "not run", "no baseline curve was recorded", ""
    word: Word = "supported" if shape.holds else "contradicted" if shape.k == 0 else "inconclusive"
    return (
        word,
        f"{'every' if shape.holds else 'no' if shape.k == 0 else 'not every'} seed shows it",
        str(shape),
    )


def _direction(expected: str, contrast: Contrast, found: Interval) -> tuple[Word, str]:
    """Judge a direction by the side of zero on which the whole interval lies."""
    if found.contains(0):
        return "inconclusive", "the interval contains zero"
    better = (found.high < 0) == contrast.metric.lower_is_better
    word: Word = "supported" if better == (expected == "better") else "contradicted"
    return word, f"the whole interval is on the {'better' if better else 'worse'} side of zero"


def _number(found: Interval, band: Interval) -> tuple[Word, str]:
    if found.inside(band):
        return "supported", "the interval lies inside the claimed range"
    if found.outside(band):
        return "contradicted", "the interval lies outside the claimed range"
    return "inconclusive", "the interval overlaps the claimed range"


def _equal(contrast: Contrast, found: Interval, findings: Findings) -> tuple[Word, str]:
    """Judge equality by equivalence alone, and only where a loss would have been seen."""
    margin = findings.rules.margin
    if margin is None:
        return "inconclusive", "the study declares no margin within which two arms count as equal"
    if contrast.metric != findings.metric:
        return "inconclusive", f"the study declares a margin for {findings.metric} alone"
    if found.outside(Interval(-margin, margin)):
        return "contradicted", f"the whole interval is further from zero than the margin ±{margin:g}"
    if not contrast.within_margin:
        return "inconclusive", f"equivalence within ±{margin:g} is not shown"
    blind = findings.blind_to_loss()
    return ("inconclusive", blind) if blind else ("supported", f"equivalent within ±{margin:g}")
