"""The sections of a report, each from findings to HTML; a section with nothing to say is empty."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from paribus.compare import (
    answer,
    beside,
    choices,
    factorial,
    fairness,
    markup,
    rates,
    sheets,
    tables,
    wording,
)
from paribus.compare.claim import Claims
from paribus.compare.findings import Findings
from paribus.compare.markup import text
from paribus.compare.memorisation import memorisation
from paribus.compare.replication import replication, seeds_of

LONG_TABLE = 14
"""Rows from which the table of cells gets a choice of levels above it."""


ESTIMANDS = {
    "new_seeds_these_items": "new seeds on these test items",
    "new_seeds_and_items": "new seeds and new test items, crossed",
}


def section(name: str, title: str, *parts: str) -> str:
    """Wrap what a section says; nothing where there is nothing."""
    body = "".join(parts)
    return f'<section id="{name}"><h2>{text(title)}</h2>{body}</section>' if body else ""


def masthead(findings: Findings, links: Iterable[tuple[str, str]]) -> str:
    """Open the page with the question, what was counted and the way to each section."""
    study, plan = findings.study, findings.plan
    facts = [f"<b>{len(plan.jobs)}</b> trials planned", f"<b>{len(findings.finished)}</b> finished"]
    others = {name: count for name, count in findings.outcomes.items() if name != "finished"}
    facts += [f"<b>{count}</b> {text(name.replace('_', ' '))}" for name, count in others.items()]
    facts += [f"<b>{len(findings.missing)}</b> without an outcome"] if findings.missing else []
    facts += [f"<b>{len(plan.cells)}</b> cells", _seeds(findings)]
    nav = "".join(f'<a href="#{name}">{text(title)}</a>' for name, title in links)
    question = study.question or f"What does {study.name} show?"
    return (
        f'<header class="masthead"><div><p class="kicker">Ablation report · <b>{text(study.name)}</b></p>'
        f'<h1>{text(question)}</h1><ul class="facts">{"".join(f"<li>{fact}</li>" for fact in facts)}</ul>'
        f'<nav aria-label="Sections">{nav}</nav></div></header>'
    )


def _seeds(findings: Findings) -> str:
    """Say how many seeds each cell has: a number, or the fewest and the most."""
    counts = sorted({found.planned for found in findings.cells})
    return f"<b>{' to '.join(map(str, counts[:: max(1, len(counts) - 1)]))}</b> seeds each"


def short_answer(findings: Findings) -> str:
    """Say what was found, in sentences."""
    flags = _rate_flag(findings) + _emulated_flag(findings) + _package_flag(findings)
    return section("answer", "The short answer", points(findings), flags)


def points(findings: Findings) -> str:
    """List what was found, a point each kind of finding."""
    items = []
    for point in answer.short_answer(findings):
        tone = "note-tone" if point.tone == "note" else point.tone
        sign = markup.GLYPHS.get(point.tone, "·")
        head = f'<span class="head {tone}"><i aria-hidden="true">{sign}</i>{text(point.head)}</span>'
        lines = "".join(f"<li>{text(item)}</li>" for item in point.items)
        body = (f"<p>{text(point.text)}</p>" if point.text else "") + (f"<ul>{lines}</ul>" if lines else "")
        items.append(f"<li>{head}<div>{body}</div></li>")
    return f'<ul class="answer">{"".join(items)}</ul>'


def design(findings: Findings) -> str:
    """Say what is held fixed, what varies, what repeats, what is scored and how it is compared."""
    study, compare = findings.study, findings.study.compare
    score = study.score.heldout
    every = "every epoch" if score.every == "epoch" else f"every {score.every} steps"
    margin = f"±{compare.margin:g} {findings.metric.unit}" if compare.margin else "none declared"
    held = "".join(f"<li>{text(k.replace('_', ' '))} {text(_plain(v))}</li>" for k, v in _fixed(findings))
    blocks = {
        "model": ("Model", f"{_source(study.model)}, loaded as {text(study.model.load_dtype)}"),
        "data": ("Data", _source(study.data)),
    }
    items = [
        ("Held fixed", f'<ul class="levels">{held}</ul>'),
        *(shown for block, shown in blocks.items() if block not in findings.axes),
        *((f"Varied: {wording.axis_name(axis)}", _levels(findings, axis)) for axis in findings.axes),
        ("Layout", text(study.design.replace("_", " "))),
        ("Repeated", text(seeds_of(study))),
        ("Scored", f"held-out loss {every}, groups {text(_groups(findings))}; "
                   f"a sample of {score.train_sample} training examples with noise off"),
        ("Compared by", f"{markup.code(findings.metric)} at {text(wording.READING_NAMES[findings.primary])}: "
                        f"{text(wording.READING_MEANINGS[findings.primary])}"),
        ("Counts as equal", text(margin)),
        ("Corrected", f"Holm over {_family(findings)}; "
                      f"pairs by {text(compare.pair_by)}; inference to {ESTIMANDS[compare.estimand]}"),
        *_cost(findings),
    ]  # fmt: skip
    excluded = "".join(f"<li>{text(one)}</li>" for one in findings.plan.excluded)
    items += [("Left out", f'<ul class="levels">{excluded}</ul>')] if excluded else []
    return section("design", "Design", markup.pairs(items))


def cells(findings: Findings) -> str:
    """Show every cell, with choices above a long table."""
    sheet = sheets.comparison(findings)
    marks = {
        index: {f"at{i}": level for i, level in enumerate(found.cell.coordinates.values())}
        for index, found in enumerate(findings.cells)
    }
    long = len(sheet.rows) > LONG_TABLE
    above = choices.filters(findings) if long else ""
    signs = tables.signs(sheet)
    note = f'<p class="note">{text(signs)}</p>' if signs else ""
    return section("cells", "Every cell", above, markup.table(sheet, marks=marks, caption=False), note)


def replicated(findings: Findings) -> str:
    """Show where each contrast of an adaptive study stopped, and what that saved."""
    sheet = replication(findings)
    return section(
        "replication", "Where seeds were added", markup.table(sheet, caption=False) if sheet else ""
    )


def effects(findings: Findings, drawn: bool) -> str:
    """Show each level's difference, drawn and at the three readings."""
    sheet = sheets.readings(findings)
    if not sheet.rows:
        return ""
    keys = "".join(
        f'<span class="key {word.replace(" ", "-")}">{word}</span>'
        for word in ("better", "worse", "equivalent", "undecided")
    )
    band = f"; the blue band is the margin ±{findings.rules.margin:g}" if findings.rules.margin else ""
    figure = (
        f'<figure><div class="canvas"><div id="forest" aria-busy="true"></div></div><figcaption>{keys}<br>'
        f"Dot: mean paired difference, line: its interval{band}. A diamond is a number that a document "
        "claims in this metric. * some trials did not finish. † not a fair comparison. "
        "Controls are in the table only.</figcaption></figure>"
    )
    meanings = "".join(
        f"<li>{text(wording.READING_NAMES[at])}: {text(m)}</li>" for at, m in wording.READING_MEANINGS.items()
    )
    return section(
        "effects", "Each level against the baseline", figure if drawn else "",
        f'<h3>At the three readings</h3><ul class="note">{meanings}</ul>', markup.table(sheet, caption=False),
    )  # fmt: skip


def fair(findings: Findings) -> str:
    """Say of everything that the sides of a comparison must share whether they do."""
    sheet = fairness.sheet(findings)
    if not sheet.rows:
        return ""
    lead = f"<p>{text(fairness.answer(findings))}</p>"
    return section("fair", sheet.title, lead, markup.table(sheet, caption=False))


def together(findings: Findings) -> str:
    """Show main effects and two-way interactions of a grid."""
    sheet = factorial.sheet(findings)
    return section("together", "Alone and together", markup.table(sheet, caption=False)) if sheet else ""


def overfit(findings: Findings, claims: Claims, drawn: bool) -> str:
    """Show losses by epoch beside printed ones, the verdicts on their shape, and the curves."""
    sheet = sheets.losses(findings, claims)
    if not sheet.rows:
        return ""
    first, *others = [
        replace(sheet, name=f"losses-{i}", title=group, rows=_ungrouped(sheet, group))
        for i, group in enumerate(sheet.groups)
    ]
    printed = dict.fromkeys(claim.id for claim, _ in claims.numbers("validation_loss"))
    lead = (
        f"<p>The last columns are what a document prints ({text(', '.join(printed))}), not of this model and "
        "data: the shape of its numbers can be tested here and their size cannot.</p>"
        if printed else ""
    )  # fmt: skip
    folded = [
        markup.details(f"Losses by epoch: {one.title}", markup.table(one, caption=False)) for one in others
    ]
    return section(
        "overfitting", "Overfitting", lead, markup.table(memorisation(findings), caption=False),
        _shapes(findings),
        f"<h3>Losses by epoch: {text(first.title)}</h3>", markup.table(first, caption=False), *folded,
        _curves_figure(findings) if drawn else "",
    )  # fmt: skip


def _shapes(findings: Findings) -> str:
    sheet = sheets.shapes(findings)
    return markup.table(sheet, caption=False) if sheet.rows else ""


def _ungrouped(sheet: sheets.Sheet, group: str) -> tuple[Mapping[str, Any], ...]:
    """Return one block of rows on its own, without the title that it stood under."""
    own = [row for row in sheet.rows if row["group"] == group]
    return tuple({key: value for key, value in row.items() if key != "group"} for row in own)


def _curves_figure(findings: Findings) -> str:
    keys = "".join(
        f'<span class="key {name}">{text(title)}</span>'
        for name, title in (("train", "training sample"), ("validation", "validation"), ("test", "test"))
    )
    return (
        f"<h3>Curves</h3>{choices.curve_controls(findings)}"
        '<figure><div class="canvas"><div id="curves" aria-busy="true"></div></div>'
        f"<figcaption>{keys}<br>Mean over seeds, band from least to greatest. Grey: the gap between test and "
        "the training sample, both with noise off. Circle: test at the least mean validation loss. "
        "One scale for all panels; a slow first epoch may leave it at the top."
        "</figcaption></figure>"
    )


def documents(findings: Findings, claims: Claims) -> str:
    """Put precision, NEFTune and every claim beside what documents say."""
    found = (
        beside.precision(findings, claims),
        beside.noise(findings, claims),
        beside.verdicts(findings, claims),
    )
    tables = [markup.table(sheet) for sheet in found if sheet is not None and sheet.rows]
    return section("documents", "Beside the documents", *tables)


def failed(findings: Findings) -> str:
    """Show what did not finish, with reasons and trials."""
    sheet = sheets.failures(findings)
    if sheet is None:
        return ""
    trials = "".join(f"<li>{text(row['cell'])}: {markup.code(row['trials'])}</li>" for row in sheet.rows)
    shares = rates.sheet(findings)
    return section(
        "failed", "What did not finish", markup.table(sheet, caption=False),
        markup.details("Trials", f"<ul>{trials}</ul>"),
        f"<h3>{text(shares.title)}</h3>{markup.table(shares, caption=False)}" if shares else "",
    )  # fmt: skip


def _levels(findings: Findings, axis: str) -> str:
    home = findings.baseline.coordinates[axis] if findings.baseline else ""
    labels = dict.fromkeys(cell.coordinates[axis] for cell in findings.plan.cells)
    items = [
        f'<li class="home" title="the baseline">{text(wording.level_name(label))}</li>'
        if label == home
        else f"<li>{text(wording.level_name(label))}</li>"
        for label in labels
    ]
    return f'<ul class="levels">{"".join(items)}</ul>'


def _emulated_flag(findings: Findings) -> str:
    labels = [cell.coordinates.get("precision", "") for cell in findings.plan.cells]
    if not any(wording.is_emulated(label) for label in labels):
        return ""
    return (
        f'<p class="flag">Low precision here is {wording.EMULATED}. Operands and gradients are rounded to '
        "the format and multiplied in fp32, so accumulation error, speed and memory of real hardware are not "
        "in these numbers.</p>"
    )


def _package_flag(findings: Findings) -> str:
    models = (job.trial.model for job in findings.plan.jobs)
    files = dict.fromkeys(name for model in models if (name := _gguf_file(model)))
    if not files:
        return ""
    return (
        f'<p class="flag">The weights come from {wording.listed(list(map(markup.code, files)))}, a GGUF file '
        "that was dequantised to fp32: no reference for questions of precision.</p>"
    )


def _gguf_file(model: Any) -> str | None:
    path = getattr(model, "path", None)
    return getattr(model, "gguf_file", None) or (path.name if path and path.suffix == ".gguf" else None)


def _fixed(findings: Findings) -> Iterator[tuple[str, Any]]:
    """Yield the settings of training, and how many examples there are, that no cell changes."""
    study, axes = findings.study, findings.axes
    counts = study.data.model_dump(include={f"{split}_examples" for split in ("train", "validation", "test")})
    for block, settings in (("training", study.training.model_dump()), ("data", counts)):
        for name, value in settings.items():
            if value is not None and not {block, f"{block}.{name}"} & set(axes):
                yield name, value


def _family(findings: Findings) -> str:
    if findings.rules.family == "study":
        return "the study"
    return "each axis" if findings.one_at_a_time else "each axis, and over all cells together"


def _cost(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield how long training took, and what that costs where the study gives a price."""
    costs = [known.result.cost for known in findings.recorded.values() if known.result.cost is not None]
    if not costs:
        return
    hours = sum(cost.train_seconds for cost in costs) / 3600
    price = findings.study.resources.price_per_hour
    priced = f"; at {price:g} an hour: {price * hours:.3g}" if price is not None else ""
    yield "Training took", text(f"{hours:.3g} device hours in {len(costs)} trials, scoring left out{priced}")


def _rate_flag(findings: Findings) -> str:
    """Say that ways of tuning were compared at one learning rate, where they were."""
    rate = findings.guard.one_rate()
    if rate is None:
        return ""
    return (
        f'<p class="flag">One learning rate, {rate:g}, serves every arm and was not searched for each: a '
        "difference between ways of tuning is one at this rate.</p>"
    )


def _source(block: Any) -> str:
    """Name where a model or data set comes from."""
    keys = ("name", "package", "path", "train")
    named = next((str(getattr(block, key)) for key in keys if getattr(block, key, None)), "")
    return text(f"{block.source} {named}".strip() if named else f"{block.source}, shipped with paribus")


def _groups(findings: Findings) -> str:
    groups = (group for job in findings.plan.jobs for score in job.scores for group in score.groups)
    return wording.listed(list(dict.fromkeys(groups)))


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace("_", " ")
