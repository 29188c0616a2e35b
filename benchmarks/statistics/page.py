"""The page of the validation, written from its numbers."""

from __future__ import annotations

from typing import Any

HEAD = """\
# Do the statistics keep their word?

Written by `python benchmarks/statistics/validate.py` from {studies:,} simulated studies a scenario (more or
fewer where a row says so; the numbers are in [results.json](results.json)). Random seeds were set before the
first run, and every scenario that ran is here, also where a method fails. Studies are judged by
`paribus.compare`, the code that judges real ones; single contrasts, items and tie groups by
`paribus.statistics`.

± is two standard errors of simulation. **holds** means: an error rate at most (or, where the test is exact,
about) its nominal rate, a coverage within 95 ± 1 %, power as predicted, all within 3.5 standard errors.
"shown" promises nothing: t intervals rest on differences that are nearly normal, and what becomes of them
otherwise is to be seen here. {verdict}
"""
NOTES = {
    "Differences that are not normal": """\
Only the arm varies and its baseline does not, which is the worst case: where both vary alike, their
difference is symmetric. No correction is made for it. Heavy tails make the test careful; skew makes the
interval miss on one side, at every number of seeds that training allows.""",
    "The resampled interval": """\
From 12 pairs on it may stand beside a t interval; here is how often each holds.""",
    "Items": """\
With 3 seeds the variance between seeds is guessed from two degrees of freedom, and where the guess is too
small so is the interval for new seeds and items: it needs 5 seeds.""",
    "Seeds added until all is decided: effects of 0, 1 and 4 spreads": """\
The arm of 4 is decided at early looks, that of 0 once it is shown to be equal; an effect as large as the
margin may be called different, never equal. A fixed interval read where a study stopped holds less often than
the repeated one. The mean after an early stop is off, away from zero.""",
    "Seeds added until all is decided: single contrasts, not normal": """\
An early look at three skewed differences errs more often than it says, and looking often adds to that.""",
    "A real null: the same training, another order": """\
Trainings of [`experiments/real_null`](../../experiments/real_null), which differ in the order of their
examples alone, are paired at random, again and again. The draws share their trainings, so these rates say
less than as many studies would.""",
}
SPENDING = """\
## Why the error is spent as it is

Looks at every number from 3 to 20 seeds; {of:,} single contrasts a row. A shape of -4 is close to O'Brien and
Fleming's, 1 to Pocock's. -2 is used: at -4 an effect of five spreads takes {late:.1f} seeds instead of
{used:.1f}, and at 1 an effect of half a spread is found in {early_found} of studies, not {used_found}.

| shape | t at 3 | at 4 | at 6 | at 20 seeds |{effects}
|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""
EFFECTS = ("0.5", "1", "2", "5")


def page(document: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    rows = document["rows"]
    promised = [row for row in rows if row["holds"] is not None]
    broken = [row for row in promised if not row["holds"]]
    said = "; ".join(f"{row['scenario']}: {row['measure']}" for row in broken)
    verdict = f"Of {len(promised)} rows that promise something {len(broken)} did not hold"
    verdict += f" ({said})." if said else "."
    parts = [HEAD.format(studies=document["studies"], verdict=verdict)]
    for topic in dict.fromkeys(row["topic"] for row in rows):
        parts.append(_topic(topic, [row for row in rows if row["topic"] == topic]))
    return "\n".join([*parts, _spending(document)])


def _topic(topic: str, rows: list[dict[str, Any]]) -> str:
    note = f"{NOTES[topic]}\n\n" if topic in NOTES else ""
    head = "| scenario | what | nominal | observed | ± | of | |\n|---|---|---|---|---|---|---|\n"
    return f"## {topic}\n\n{note}{head}" + "".join(map(_line, rows))


def _line(row: dict[str, Any]) -> str:
    seen, unit = row["observed"], row["unit"]
    cells = (
        row["scenario"],
        row["measure"],
        "" if row["nominal"] is None else _percent(row["nominal"]),
        f"{seen:.2f} {unit}" if unit else _percent(seen),
        "" if unit else _percent(2 * (seen * (1 - seen) / row["of"]) ** 0.5),
        f"{row['of']:,}",
        {True: "holds", False: "**does not hold**", None: "shown"}[row["holds"]],
    )
    return f"| {' | '.join(cells)} |\n"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _spending(document: dict[str, Any]) -> str:
    shapes = {row["gamma"]: row for row in document["spending"]}
    used, late, early = shapes[-2.0], shapes[-4.0], shapes[1.0]
    head = SPENDING.format(
        of=10 * document["studies"],
        late=late["seeds_5"],
        used=used["seeds_5"],
        early_found=_percent(early["found_0.5"]),
        used_found=_percent(used["found_0.5"]),
        effects="".join(f" effect {effect}: found | seeds |" for effect in EFFECTS),
    )
    return head + "".join(map(_shape, document["spending"]))


def _shape(row: dict[str, float]) -> str:
    cells = [f"{row['gamma']:g}", *(f"{row[f't_at_{n}']:.2f}" for n in (3, 4, 6, 20))]
    for effect in EFFECTS:
        cells += [_percent(row[f"found_{effect}"]), f"{row[f'seeds_{effect}']:.1f}"]
    return f"| {' | '.join(cells)} |\n"
