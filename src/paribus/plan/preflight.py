"""Before any device time: what stands in the way of each planned trial on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paribus.machine import Machine
from paribus.plan.trial import Trial, Unsupported
from paribus.techniques import ModelFacts, Obstacle, Setting
from paribus.techniques.tuning.prompt import PromptMethod

if TYPE_CHECKING:
    from paribus.plan.design import Plan

SEEING_EACH_OTHER = {
    "bloom": "BLOOM takes no positions, so it cannot be told where an example starts",
    "opt": "OPT does not give its positions to the attention mask",
}
"""Types of model that cannot train without padding, and why (transformers 5.24)."""
_RANDOM = (
    "pretraining starts from random weights, and this tuning would leave every one of them as it was drawn"
)
_ALONE = "batch normalisation takes its statistics over a micro-batch, and here one has a single row"
_SPLIT_LESS = (
    "set fewer gradient_accumulation_steps, a larger effective batch, or model.classifier_norm: layer"
)


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
    setting = Setting(facts, trial.techniques, trial.task, trial.training.max_length)
    for axis, technique in trial.techniques.items():
        found = technique.obstacle(machine, setting)
        if found:
            return _unsupported(getattr(technique, "kind", axis), found)
    found = trial.training.obstacle()
    if found:
        return _unsupported(trial.training.optimizer, found)
    if trial.task == "pretrain" and not trial.tuning.trains_base:
        return _unsupported(trial.tuning.kind, Obstacle(_RANDOM, "set tuning: full, or task: instruction"))
    if _alone(trial):
        return _unsupported("classifier_norm", Obstacle(_ALONE, _SPLIT_LESS))
    found = _too_long(trial, facts)
    if found:
        return _unsupported("max_length", found)
    found = _not_apart(trial, facts) if trial.training.padding_free else None
    return _unsupported("padding_free", found) if found else None


def _alone(trial: Trial) -> bool:
    """Say whether batch statistics would be those of one row."""
    size = trial.training.effective_batch_size
    return trial.model.classifier_norm == "batch" and size <= trial.gradient_accumulation_steps.steps


def _too_long(trial: Trial, facts: ModelFacts) -> Obstacle | None:
    limit = facts.context_length
    if limit is None or trial.training.max_length <= limit:
        return None
    reason = f"training.max_length is {trial.training.max_length} tokens and the model reads at most {limit}"
    return Obstacle(reason, f"set training.max_length to {limit} or less")


def _not_apart(trial: Trial, facts: ModelFacts) -> Obstacle | None:
    """Say where examples in one row are known to mix; what is not known is tried before training."""
    way_out = "set training.padding_free: false"
    if trial.task == "classification":
        return Obstacle(
            "a classifier reads one class for each row, and without padding there is one", way_out
        )
    if isinstance(trial.tuning, PromptMethod):
        reason = "virtual tokens stand in front of a row, and without padding a row holds several examples"
        return Obstacle(reason, way_out)
    if reason := SEEING_EACH_OTHER.get(facts.model_type):
        return Obstacle(f"examples laid end to end would see each other: {reason}", way_out)
    return None


def _unsupported(technique: str, found: Obstacle) -> Unsupported:
    return Unsupported(technique=technique, reason=found.reason, way_out=found.way_out)
