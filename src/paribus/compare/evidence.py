"""Where the numbers come from: proofs of each technique, trials by cell, versions and machines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.compare import fairness, markup, wording
from paribus.compare.findings import CellFindings, Findings
from paribus.compare.markup import text
from paribus.compare.sections import section


def evidence(findings: Findings) -> str:
    """Show, for each level, what was read back from the live model as proof that it took effect."""
    rows = []
    for found in findings.cells:
        cell = found.cell
        axes = [found.contrast.axis] if found.contrast and found.contrast.axis else []
        trial = next((k for k in found.trials if k in findings.finished), None)
        if trial is None or not (axes or cell.is_baseline):
            continue
        proof = findings.recorded[trial].result.proof
        for axis in axes or list(proof):
            if proof.get(axis):
                name = wording.cell_name(cell, findings.baseline)
                shown = f"{wording.axis_name(axis)}" if cell.is_baseline else ""
                rows.append(
                    f"<tr><td>{text(name)} {text(shown)}</td><td>{_facts(proof[axis])}</td>"
                    f"<td>{markup.code(trial)}</td></tr>"
                )
    if not rows:
        return ""
    head = "<tr><th>Level</th><th>Read back while training</th><th>Trial</th></tr>"
    return section(
        "evidence", "Evidence that each technique took effect",
        "<p>Taken from the first finished seed of a cell; every trial's own proof stands in its "
        "<code>result.json</code>.</p>",
        '<div class="scroll" tabindex="0" role="region" aria-label="Evidence"><table class="ids">'
        f"<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table></div>",
    )  # fmt: skip


def provenance(findings: Findings) -> str:
    """List every trial by cell and what made the results."""
    listed = "".join(_trial_row(found, findings) for found in findings.cells)
    seeds = "".join(f"<th>seed {seed}</th>" for seed in _seeds(findings))
    trials = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Trials"><table class="ids"><thead>'
        f"<tr><th>Cell</th>{seeds}</tr></thead><tbody>{listed}</tbody></table></div>"
    )
    names = sorted({known.result.provenance for known in findings.recorded.values()})
    return section(
        "provenance", "Where every number comes from",
        "<p>A number is the mean, or the difference, over the trials of its row. Each trial is a folder of "
        "that name among the study's results, with its settings (<code>trial.json</code>), outcome "
        "(<code>result.json</code>) and scores.</p>",
        markup.details("Trials by cell and seed", trials),
        _not_compared(findings),
        *(_made_by(name, findings) for name in names),
    )  # fmt: skip


def _seeds(findings: Findings) -> list[int]:
    """Return the seeds that any cell was given, in the order of the study."""
    given = {seed for found in findings.cells for seed in found.cell.trials}
    return [seed for seed in findings.study.repeat.seeds if seed in given]


def _trial_row(found: CellFindings, findings: Findings) -> str:
    cells = []
    for seed in _seeds(findings):
        trial = found.cell.trials.get(seed)
        known = findings.recorded.get(trial or "")
        state = "" if trial in findings.finished else (known.result.result.outcome if known else "no outcome")
        mark = f' <span class="failed">{text(state.replace("_", " "))}</span>' if state else ""
        cells.append(f"<td>{markup.code(trial)}{mark}</td>" if trial else "<td></td>")
    return f"<tr><td>{text(wording.cell_name(found.cell, findings.baseline))}</td>{''.join(cells)}</tr>"


def _not_compared(findings: Findings) -> str:
    """Name what no result says, so that the sides of a contrast could not be compared in it."""
    missing = "; ".join(fairness.unrecorded(findings))
    return f'<p class="note">Not recorded, and so not compared: {text(missing)}.</p>' if missing else ""


def _made_by(name: str, findings: Findings) -> str:
    record = findings.provenance(name) or {"record": "missing or unreadable"}
    count = sum(known.result.provenance == name for known in findings.recorded.values())
    classes = {
        known.result.machine_class for known in findings.recorded.values() if known.result.provenance == name
    }
    flat = [(key, value) for key, value in _flattened(record) if value not in (None, "", {})]
    items = [("results", text(count)), ("machine class", text(", ".join(sorted(classes))))]
    items += [(key, markup.code(value)) for key, value in flat]
    return markup.details(f"Made by {name}: {count} results", markup.pairs(items))


def _flattened(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in record.items():
        if isinstance(value, dict):
            flat += _flattened(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def _facts(proof: Mapping[str, Any]) -> str:
    known = [(key, value) for key, value in _flattened(proof) if value not in (None, "", [])]
    return " · ".join(f"{text(_words(key))} <b>{text(_short(value))}</b>" for key, value in known)


def _words(key: str) -> str:
    return key.replace("_", " ").replace(".", ", ")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
