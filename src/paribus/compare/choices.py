"""The choices above a table or figure; the page's script acts on their data attributes."""

from __future__ import annotations

from paribus.compare import wording
from paribus.compare.findings import Findings
from paribus.compare.markup import text


def filters(findings: Findings) -> str:
    """Let a reader choose, for each axis, the level whose cells stay in the table."""
    selects = []
    for index, axis in enumerate(findings.axes):
        labels = dict.fromkeys(cell.coordinates[axis] for cell in findings.plan.cells)
        options = "".join(_option(v, wording.level_name(v)) for v in labels)
        name = text(wording.axis_name(axis))
        selects.append(
            f'<label>{name} <select data-filter="{index}">{_option("", "all")}{options}</select></label>'
        )
    return f'<div class="controls">{"".join(selects)}<span id="filtered" role="status"></span></div>'


def curve_controls(findings: Findings) -> str:
    """Let a reader choose the axis laid out side by side, the level of each other axis, and the group."""
    base = findings.baseline.coordinates if findings.baseline else {}
    whole = '<option value="-1">every level</option>' if findings.one_at_a_time else ""
    most = _richest(findings) if not whole else -1
    names = [wording.axis_name(axis) for axis in findings.axes]
    across = whole + "".join(_option(str(i), name, i == most) for i, name in enumerate(names))
    parts = [f'<label>Side by side <select data-curves="axis">{across}</select></label>']
    for index, axis in enumerate(findings.axes):
        labels = dict.fromkeys(cell.coordinates[axis] for cell in findings.plan.cells)
        options = "".join(_option(v, wording.level_name(v), v == base.get(axis)) for v in labels)
        chosen = f'<select data-curves="at-{index}">{options}</select>'
        parts.append(
            f'<label data-curves-box="at-{index}" hidden>{text(wording.axis_name(axis))} {chosen}</label>'
        )
    groups = sorted({group for curve in findings.curves.values() for group in curve.groups("test")})
    groups.sort(key=lambda group: group != findings.metric.group)
    options = "".join(f"<option>{text(group)}</option>" for group in groups)
    parts.append(f'<label>Held-out group <select data-curves="group">{options}</select></label>')
    return f'<div class="controls">{"".join(parts)}</div>'


def _richest(findings: Findings) -> int:
    """Return the axis with the most levels, the last of them where several have as many."""
    counts = [len({cell.coordinates[axis] for cell in findings.plan.cells}) for axis in findings.axes]
    return max(range(len(counts)), key=lambda i: (counts[i], i), default=0)


def _option(value: str, shown: str, selected: bool = False) -> str:
    return f'<option value="{text(value)}"{" selected" if selected else ""}>{text(shown)}</option>'
