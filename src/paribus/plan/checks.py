"""What a study may not say at once although each part of it is allowed."""

from __future__ import annotations

from paribus.errors import nearest
from paribus.plan import levels
from paribus.plan.complaints import Problem
from paribus.plan.study import AS_TRAINED, COMPARED, QUANTITIES, Study
from paribus.plan.tasks import at_odds_with_task
from paribus.sources.blocks import EMBEDDED_GROUPS
from paribus.statistics import FEWEST_SEEDS


def contradictions(study: Study) -> list[Problem]:
    """Find what is both fixed and varied, crossed with itself, or compared by a metric that cannot be."""
    return [
        *_doubly_set(study),
        *_crossings(study),
        *_metric(study),
        *_estimand(study),
        *_kept_under_stress(study),
        *_tasks(study),
        *at_odds_with_task(study),
    ]


def _doubly_set(study: Study) -> list[Problem]:
    """Find base levels that are not varied, and fields set both in a level and on an axis of their own."""
    problems = []
    for name, axis in study.vary.items():
        block, _, field = name.partition(".")
        base = getattr(study, block)
        if not field and not any(levels.same(base, value) for value in axis.values):
            listed = ", ".join(map(levels.label, axis.values))
            message = (
                f"{name} is fixed to {levels.label(base)}, which is not among its varied values {listed}"
            )
            problems.append(Problem((name,), message, f"add it to vary.{name}, or take this line out"))
        rivals = study.vary[block].values if field and block in study.vary else ()
        for level in rivals:
            if field in level.model_fields_set:
                message = f"{name} is both varied and fixed in the level {levels.label(level)} of {block}"
                problems.append(Problem(("vary", name), message, "take one of them out"))
    return problems


def _crossings(study: Study) -> list[Problem]:
    """Find conditions of an axis on itself, and crossings where everything is crossed already."""
    problems = []
    for name, axis in study.vary.items():
        if axis.also and study.design != "one_factor_at_a_time":
            message = f"also crosses axes within one factor; the design {study.design} has none"
            way_out = f"take it out, or list the axis under vary beside {name}"
            problems.append(Problem(("vary", name, "also"), message, way_out))
        for key, condition in (("also", axis.also), ("when", axis.when)):
            if name in condition:
                message = f"the {key} of vary.{name} names {name} itself"
                problems.append(Problem(("vary", name, key, name), message, "name another setting"))
    return problems


def _metric(study: Study) -> list[Problem]:
    """Check the metric against the splits, groups and quantities there can be."""
    embedded = EMBEDDED_GROUPS[study.task] if study.data.source == "embedded" else ()
    groups = study.score.heldout.groups or embedded
    compare, route = study.compare, ("compare", "metric")
    parts = compare.metric.split(".")
    if parts[-1] in AS_TRAINED and study.score.heldout.evaluate_in == "fp32":
        message = f"{compare.metric} is not measured where scores are computed in fp32"
        way_out = "say score: {heldout: {evaluate_in: as_trained}}, or compare by loss or accuracy"
        return [Problem(route, message, way_out)]
    shaped = len(parts) >= 3 and parts[0] == COMPARED and parts[-1] in (*QUANTITIES, *AS_TRAINED)
    if shaped and (not groups or compare.group in groups):
        return []
    known = (*QUANTITIES, *AS_TRAINED) if study.score.heldout.evaluate_in == "as_trained" else QUANTITIES
    valid = [f"{COMPARED}.{group}.{quantity}" for group in groups or ("all",) for quantity in known]
    return [Problem(route, f"unknown metric {compare.metric!r}", nearest(compare.metric, valid))]


def _kept_under_stress(study: Study) -> list[Problem]:
    """Refuse to keep weights that read rescaled inputs: on the plain model they would be another function."""
    stressed = [study.stress, *(study.vary["stress"].values if "stress" in study.vary else ())]
    if study.keep == "none" or all(level.kind == "none" for level in stressed):
        return []
    message = f"keep: {study.keep} would keep weights of a model whose channels are rescaled by stress"
    return [Problem(("keep",), message, "set keep: none, or keep weights in a study without stress")]


def _tasks(study: Study) -> list[Problem]:
    """Find tasks that are one score under two names, that no classifier can do, that run code unasked."""
    problems, seen = [], {}
    for name, task in study.score.tasks.items():
        route = ("score", "tasks", name)
        said = (repr(task.canonical()), tuple(task.places()))
        if said in seen:
            message = f"the tasks {seen[said]} and {name} are the same score"
            problems.append(Problem(route, message, "take one of them out"))
        seen.setdefault(said, name)
        if study.task == "classification":
            message = f"the task {name} needs a language model, and task: classification trains a classifier"
            problems.append(Problem(route, message, "take it out"))
        if task.kind == "code" and not study.score.allow_code_execution:
            message = f"the task {name} runs programs that a model wrote, which this study does not allow"
            problems.append(
                Problem(route, message, "say score: {allow_code_execution: true}, or take it out")
            )
    return problems


def _estimand(study: Study) -> list[Problem]:
    """Refuse intervals for new items where no items are recorded, and where looks are counted in seeds."""
    compare, route = study.compare, ("compare", "estimand")
    if compare.estimand != "new_seeds_and_items":
        return []
    if compare.quantity in AS_TRAINED:
        message = f"single items are recorded in fp32, and {compare.quantity} is not of them"
        return [Problem(route, message, "compare by loss or accuracy, or say new_seeds_these_items")]
    if compare.at == "equal_train_loss":
        message = (
            "single items are recorded at the end and at the best validation loss, not at equal train loss"
        )
        return [Problem(route, message, "compare at best_validation or last, or say new_seeds_these_items")]
    if study.repeat.until:
        message = "a study that ends when all is decided counts seeds, and cannot speak of new items"
        return [Problem(route, message, "list the seeds, or say new_seeds_these_items")]
    if len(study.repeat.seeds) < FEWEST_SEEDS:
        message = (
            f"an interval for new seeds and items needs at least {FEWEST_SEEDS} seeds, "
            f"not {len(study.repeat.seeds)}: with fewer it is too narrow"
        )
        return [Problem(route, message, "add seeds under repeat, or say new_seeds_these_items")]
    return []
