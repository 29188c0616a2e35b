"""Before any device time: what stands in the way of each planned trial on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paribus.machine import Machine
from paribus.plan.trial import Trial, Unsupported
from paribus.techniques import ModelFacts, Obstacle, Setting

if TYPE_CHECKING:
    from paribus.plan.design import Plan


def obstacles(plan: Plan, machine: Machine) -> dict[str, Unsupported]:
    """Say for each trial that cannot run here why, by trial id; repeats of a cell share the answer."""
    answers: dict[str, Unsupported | None] = {}
    for job in plan.jobs:
        if job.group not in answers:
            answers[job.group] = obstacle(job.trial, plan.facts[job.trial_id], machine)
    found = {job.trial_id: answers[job.group] for job in plan.jobs}
    return {trial_id: answer for trial_id, answer in found.items() if answer}


def obstacle(trial: Trial, facts: ModelFacts, machine: Machine) -> Unsupported | None:
    """Return the first thing that keeps a trial from running on a machine, or None."""
    setting = Setting(facts, trial.techniques, trial.task)
    for axis, technique in trial.techniques.items():
        found = technique.obstacle(machine, setting)
        if found:
            return _unsupported(getattr(technique, "kind", axis), found)
    found = _too_long(trial, facts)
    return _unsupported("max_length", found) if found else None


def _too_long(trial: Trial, facts: ModelFacts) -> Obstacle | None:
    limit = facts.context_length
    if limit is None or trial.training.max_length <= limit:
        return None
    reason = f"training.max_length is {trial.training.max_length} tokens and the model reads at most {limit}"
    return Obstacle(reason, f"set training.max_length to {limit} or less")


def _unsupported(technique: str, found: Obstacle) -> Unsupported:
    return Unsupported(technique=technique, reason=found.reason, way_out=found.way_out)
