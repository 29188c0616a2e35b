"""The report's two figures as Vega-Lite specifications, with colours that colour-blind readers tell apart."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from paribus.compare import answer, wording
from paribus.compare.claim import Claims, DifferenceCheck, matching
from paribus.compare.findings import Findings
from paribus.compare.readings import Curve

# Okabe and Ito 2008, "Color Universal Design".
BLUE, VERMILLION, GREEN, PURPLE, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#8a8a8a"
SPLIT_COLOURS = {"train sample": BLUE, "validation": GREEN, "test": VERMILLION}
VERDICT_COLOURS = {
    "better": GREEN, "worse": VERMILLION, "equivalent": BLUE, "negligible": BLUE, "undecided": GREY,
    "one pair": PURPLE,
}  # fmt: skip
CURVES = "curves"
TICK = "datum.value == 0 ? '0' : format(datum.value, '+.3~g')"


def forest(findings: Findings, claims: Claims) -> dict[str, Any] | None:
    """Draw every level's difference with its interval, the equivalence band and a claim's number.

    Controls are left out: a harm planted on purpose would set the scale for everything else.
    """
    import altair as alt

    shown = [c for c in findings.primary_contrasts if c.difference and not c.is_control]
    rows = [_forest_row(contrast) for contrast in shown]
    if not rows:
        return None
    claimed = _claimed(findings, claims)
    low, high = _extent(rows, claimed, findings.rules.margin or 0.0)
    scale = alt.Scale(domain=[low, high + 0.55 * (high - low)], nice=False, zero=False)
    order = alt.Y("level:N", title=None, sort=[row["level"] for row in rows], axis=alt.Axis(labelLimit=230))
    better = "lower" if findings.metric.lower_is_better else "higher"
    title = f"Difference in {findings.metric}, {findings.metric.unit} ({better} is better)"
    ticks = alt.Axis(values=_ticks(low, high), labelExpr=TICK, titleAnchor="start")
    place = alt.X("mean:Q", title=title, scale=scale, axis=ticks)
    base = alt.Chart(alt.Data(values=rows)).encode(y=order)
    colour = alt.Color(
        "verdict:N", legend=None,
        scale=alt.Scale(domain=list(VERDICT_COLOURS), range=list(VERDICT_COLOURS.values())),
    )  # fmt: skip
    layers = [
        *_band(findings.rules.margin, scale),
        alt.Chart(alt.Data(values=[{"zero": 0}]))
        .mark_rule(color=GREY)
        .encode(x=alt.X("zero:Q", scale=scale)),
        base.mark_rule(strokeWidth=3, strokeCap="round").encode(x=alt.X("low:Q"), x2="high:Q", color=colour),
        base.mark_point(filled=True, size=90, opacity=1).encode(x=place, color=colour, tooltip=_tooltip()),
        base.mark_text(align="right", fontSize=12).encode(x=alt.value("width"), text="text:N"),
    ]
    if claimed:
        diamonds = alt.Chart(alt.Data(values=claimed)).mark_point(shape="diamond", size=90, strokeWidth=2)
        layers.append(diamonds.encode(y=order, x="claimed:Q", color=alt.value(PURPLE), tooltip="claim:N"))
    return _spec(alt.layer(*layers).properties(width="container", height=30 * len(rows)))


def curves(findings: Findings) -> dict[str, Any] | None:
    """Draw train-sample, validation and test loss by epoch, a panel a cell, the gap shaded and named.

    The data set is filled in by the page, which chooses the cells; see `curve_panels`.
    """
    import altair as alt

    rows = [row for panel in curve_panels(findings) for row in panel["rows"]]
    if not rows:
        return None
    low, top = _loss_range(rows)
    y = alt.Y(
        "mean:Q", title=f"loss, {findings.metric.loss_unit}", scale=alt.Scale(domain=[low, top], nice=False)
    )
    x = alt.X("epoch:Q", title="epoch", axis=alt.Axis(tickMinStep=1, grid=False))
    names = list(SPLIT_COLOURS)
    colour = alt.Color(
        "split:N", title=None, scale=alt.Scale(domain=names, range=list(SPLIT_COLOURS.values())),
        legend=None,
    )  # fmt: skip
    dash = alt.StrokeDash(
        "split:N", scale=alt.Scale(domain=names, range=[[1, 0], [4, 3], [1, 0]]), legend=None
    )
    base = alt.Chart()
    lines = base.transform_filter("datum.kind == 'line'")
    ends = base.transform_filter("datum.kind == 'end'")
    best = base.transform_filter("datum.kind == 'best'")
    gap = base.transform_filter("datum.kind == 'gap'")
    tooltip = ["split:N", alt.Tooltip("epoch:Q"), alt.Tooltip("mean:Q", format=".3f"), "seeds:Q"]
    layered = alt.layer(
        gap.mark_area(opacity=0.09, color=GREY, clip=True).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        lines.mark_area(opacity=0.22, clip=True).encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour),
        lines.mark_line(strokeWidth=2, clip=True).encode(
            x=x, y=y, color=colour, strokeDash=dash, tooltip=tooltip
        ),
        best.mark_point(clip=True, size=70, filled=False, strokeWidth=2, color=VERMILLION).encode(x=x, y=y),
        ends.mark_rule(strokeWidth=1.5, color=GREY).encode(x=x, y=alt.Y("low:Q"), y2="high:Q"),
        ends.mark_text(align="right", dy=-10, fontSize=11.5).encode(x=x, y="mean:Q", text="text:N"),
        data=alt.NamedData(CURVES),
    ).properties(width=220, height=170)
    panels = layered.facet(
        facet=alt.Facet("cell:N", title=None, sort=alt.EncodingSortField("order", op="min")), columns=4
    ).properties(spacing=22)
    return _spec(panels)


def curve_panels(findings: Findings) -> list[dict[str, Any]]:
    """Return what the curves are drawn from, a panel a cell and group: means over seeds with their range.

    A panel has `cell` (its name), `order`, `at` (its level on each axis), `group` and `rows`. A row's `kind`
    is line (a split's loss), gap (between train sample and test), best (test at the least mean validation
    loss) or end (the gap at the last epoch). The untrained model, far above the rest, is left to the tables
    where there are three epochs or more.
    """
    base, panels = findings.baseline, []
    ordered = sorted(findings.plan.cells, key=lambda cell: not cell.is_baseline)
    for order, cell in enumerate(ordered):
        known = [findings.curves[k] for k in cell.trials.values() if k in findings.curves]
        for group in known[0].groups("test") if known else []:
            head = {"cell": wording.cell_name(cell, base), "order": order, "group": group}
            at = list(cell.coordinates.values())
            panels.append(head | {"at": at, "rows": _cell_rows(known, group)})
    return panels


def _loss_range(rows: list[dict[str, Any]]) -> tuple[float, float]:
    """Choose one scale for all panels: from the second epoch on all fits, a slow start may leave it."""
    lines = [row for row in rows if row["kind"] == "line"]
    epochs = sorted({row["epoch"] for row in lines})
    settled = [row for row in lines if len(epochs) < 3 or row["epoch"] >= epochs[1]]
    return min(0.0, *(row["low"] for row in lines)), 1.08 * max(row["high"] for row in settled)


def _cell_rows(known: list[Curve], group: str) -> list[dict[str, Any]]:
    lines: dict[str, dict[float, list[float]]] = {}
    start = 1 if min(len(curve.epochs()) for curve in known) > 3 else 0
    for curve in known:
        for split, name in (("train_sample", "train sample"), ("validation", "validation"), ("test", "test")):
            for reading in curve.series(split, None if split == "train_sample" else group):
                if reading.step >= start:
                    lines.setdefault(name, {}).setdefault(round(reading.epoch, 4), []).append(reading.loss)
    rows = [
        {"kind": "line", "split": name, "epoch": epoch, "seeds": len(losses)} | _range(losses)
        for name, by_epoch in lines.items()
        for epoch, losses in sorted(by_epoch.items())
    ]
    return rows + _gap_rows(
        {row["epoch"]: row["mean"] for row in rows if row["split"] == "train sample"}, rows
    )


def _gap_rows(train: dict[float, float], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    test = {row["epoch"]: row["mean"] for row in rows if row["split"] == "test"}
    validation = {row["epoch"]: row["mean"] for row in rows if row["split"] == "validation"}
    made: list[dict[str, Any]] = [
        {"kind": "gap", "epoch": epoch, "low": train[epoch], "high": loss}
        for epoch, loss in test.items()
        if epoch in train
    ]
    if made:
        end = made[-1]
        text = f"gap {wording.signed(end['high'] - end['low'], 2)}"
        made.append(end | {"kind": "end", "mean": max(end["low"], end["high"]), "text": text})
    best = min(validation, key=lambda epoch: validation[epoch], default=None)
    if best in test:
        made.append({"kind": "best", "epoch": best, "mean": test[best], "split": "test"})
    return made


def _range(losses: list[float]) -> dict[str, float]:
    return {"mean": round(fmean(losses), 4), "low": round(min(losses), 4), "high": round(max(losses), 4)}


def _forest_row(contrast: Any) -> dict[str, Any]:
    found, ends = contrast.difference, contrast.difference.interval
    return {
        "level": answer.marked(contrast),
        "mean": found.mean,
        "low": ends.low if ends else found.mean,
        "high": ends.high if ends else found.mean,
        "verdict": contrast.verdict,
        "text": wording.difference(found),
        "p": wording.p_value(contrast.holm_p) if contrast.holm_p is not None else "",
        "n": found.n,
    }


def _claimed(findings: Findings, claims: Claims) -> list[dict[str, Any]]:
    """Return claimed numbers that are in the study's own metric and unit."""
    found = []
    for claim in claims.claims:
        for check in claim.checks:
            if isinstance(check, DifferenceCheck) and isinstance(check.expected, float | int):
                contrast = matching(findings.primary_contrasts, check.axis, check.level)
                if contrast and contrast.difference and check.metric in (None, str(findings.metric)):
                    row = {"level": answer.marked(contrast)}
                    found.append(row | {"claimed": float(check.expected), "claim": claim.id})
    return found


def _extent(rows: list[dict[str, Any]], claimed: list[dict[str, Any]], margin: float) -> tuple[float, float]:
    values = [row[key] for row in rows for key in ("low", "high")] + [c["claimed"] for c in claimed]
    low, high = min([*values, -margin, 0.0]), max([*values, margin, 0.0])
    pad = 0.06 * (high - low or 1.0)
    return low - pad, high + pad


def _ticks(low: float, high: float) -> list[float]:
    """Choose round tick values inside the measured part of the axis."""
    from math import floor, log10

    step = 10 ** floor(log10(high - low))
    step = next(s for s in (step / 5, step / 2, step, 2 * step) if (high - low) / s <= 7)
    first = -floor(-low / step)
    return [round(i * step, 10) for i in range(first, floor(high / step) + 1)]


def _band(margin: float | None, scale: Any) -> list[Any]:
    import altair as alt

    if not margin:
        return []
    ends = alt.Chart(alt.Data(values=[{"from": -margin, "to": margin}]))
    return [ends.mark_rect(color=BLUE, opacity=0.1).encode(x=alt.X("from:Q", scale=scale), x2="to:Q")]


def _tooltip() -> list[Any]:
    import altair as alt

    titles = {"level": "level", "text": "difference", "p": "p (Holm)", "n": "pairs", "verdict": "verdict"}
    return [alt.Tooltip(f"{key}:N", title=title) for key, title in titles.items()]


def _spec(chart: Any) -> dict[str, Any]:
    made: dict[str, Any] = chart.to_dict(validate=False)
    made.pop("config", None)
    return made
