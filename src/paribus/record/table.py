"""The tidy table: a row a measurement, read from a study's recorded results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from paribus.plan.design import Plan
    from paribus.record.result import HeldoutScore, TaskScore, TrialResult
    from paribus.record.store import Recorded, Store

MEASURED = ("step", "epoch", "split", "group_name", "reading", "metric", "value", "unit")
HELDOUT_UNITS = {"loss": "nats per token", "accuracy": "share of tokens"}
COST_UNITS = {
    "train_seconds": "seconds",
    "step_seconds_median": "seconds",
    "tokens_per_second": "tokens per second",
    "peak_memory_bytes": "bytes",
    "trainable_parameters": "parameters",
    "total_parameters": "parameters",
}


def tidy(plan: Plan, store: Store) -> pd.DataFrame:
    """Return every measurement of a study's planned trials, one a row, in the order of the plan.

    Columns: `trial_id`, `group` (the trial without its seed), `seed`, `outcome`, one for each varied axis
    (its level's label), then the measurement: `step`, `epoch`, `split`, `group_name` (the split's
    group), `reading` (`base` at step 0, `last` at the end, `along` between), `metric`, `value`, `unit`. Costs
    have a metric and no split. A trial with an outcome and no measurement, such as an unsupported one, keeps
    one row whose measurement is absent; a trial with no outcome has no row.
    """
    import pandas as pd

    recorded, places = store.recorded(), coordinates(plan)
    known = [recorded[job.trial_id] for job in plan.jobs if job.trial_id in recorded]
    rows = [row for found in known for row in _rows(found, places.get(found.job.trial_id, {}))]
    columns = ["trial_id", "group", "seed", "outcome", *plan.axes, *MEASURED]
    return pd.DataFrame(rows, columns=pd.Index(columns))


def coordinates(plan: Plan) -> dict[str, dict[str, str]]:
    """Place every trial on the axes that vary: trial -> axis -> level; shared ones in their first cell."""
    found: dict[str, dict[str, str]] = {}
    for cell in plan.cells:
        for trial_id in cell.trials.values():
            found.setdefault(trial_id, cell.coordinates)
    return found


def _rows(recorded: Recorded, place: dict[str, str]) -> list[dict[str, Any]]:
    head = {
        "trial_id": recorded.job.trial_id,
        "group": recorded.job.group,
        "seed": recorded.job.trial.seed,
        "outcome": recorded.result.result.outcome,
        **place,
    }
    measured = [
        *_costs(recorded.result),
        *(row for score in recorded.scores for row in _scored(score)),
        *(row for score in recorded.tasks for row in _figures(score)),
    ]
    return [head | row for row in measured] or [head]


def _costs(result: TrialResult) -> Iterator[dict[str, Any]]:
    for metric, unit in COST_UNITS.items():
        value = getattr(result.cost, metric, None)
        if value is not None:
            yield {"metric": metric, "value": float(value), "unit": unit}


def _figures(score: TaskScore) -> Iterator[dict[str, Any]]:
    """Yield the figures of a task: its name stands as the group of the split `tasks`."""
    for figure in score.figures:
        metric = figure.metric if figure.task == score.name else f"{figure.task}:{figure.metric}"
        yield {
            "step": figure.step, "split": "tasks", "group_name": score.name, "metric": metric,
            "reading": "last" if figure.step else "base", "value": figure.value, "unit": figure.unit,
        }  # fmt: skip


def _scored(score: HeldoutScore) -> Iterator[dict[str, Any]]:
    last = max((reading.step for reading in score.curve), default=0)
    for reading in score.curve:
        place = "base" if reading.step == 0 else "last" if reading.step == last else "along"
        where = {"step": reading.step, "epoch": reading.epoch, "split": reading.split}
        for metric, unit in HELDOUT_UNITS.items():
            value = getattr(reading, metric)
            yield where | {
                "group_name": reading.group, "reading": place, "metric": metric, "value": value, "unit": unit,
            }  # fmt: skip
