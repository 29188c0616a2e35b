"""What a study may not say under its task: data of another form, a loss that is fixed, a norm of no head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paribus.plan import levels
from paribus.plan.complaints import Problem
from paribus.plan.study import Study
from paribus.plan.yaml_lines import Route
from paribus.sources.blocks import Form, Task

FORMS: dict[Task, tuple[Form, ...]] = {
    "instruction": ("prompt_completion", "messages", "alpaca", "sharegpt", "text"),
    "classification": ("classification",),
    "pretrain": ("text",),
}
"""The forms of a user's data that each task can learn from; the embedded data has one for each task."""


def at_odds_with_task(study: Study) -> list[Problem]:
    """Find data, losses and norms that the study's task has no use for, wherever a cell states them."""
    return [
        problem
        for route, name, level in _stated(study)
        for block, field, value in _fields(study, name, level)
        if (
            problem := _problem(
                study.task, (*route, field) if "." not in name else route, block, field, value
            )
        )
    ]


def _stated(study: Study) -> Iterator[tuple[Route, str, Any]]:
    """Yield every level of model and data that some cell has, by name, with where it stands."""
    yield ("data",), "data", study.data
    yield ("model",), "model", study.model
    for name, axis in study.vary.items():
        yield from ((("vary", name, n), name, level) for n, level in enumerate(axis.values))
        for other, values in axis.also.items():
            yield from ((("vary", name, "also", other), other, level) for level in values)
    for n, included in enumerate(study.include):
        yield from ((("include", n, name), name, level) for name, level in included.levels.items())
    for n, control in enumerate(study.compare.controls):
        yield from ((("compare", "controls", n, name), name, level) for name, level in control.items())
    for name, level in study.compare.baseline.items():
        yield ("compare", "baseline", name), name, level


def _fields(study: Study, name: str, level: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield (block, field, value) of what a level says; of the form also where it is the default."""
    block, _, field = name.partition(".")
    if block not in ("data", "model"):
        return
    if field:
        yield block, field, level
        return
    for field in type(level).model_fields:
        if field in level.model_fields_set or field == "form":
            yield block, field, getattr(level, field)


def _problem(task: Task, route: Route, block: str, field: str, value: Any) -> Problem | None:
    match block, field:
        case "data", "form":
            return _form(task, route, value)
        case "data", "loss_on":
            return _loss(task, route, value)
        case "data", "template" if task == "classification":
            message = "data.template has no effect under task: classification, which reads the text alone"
            return Problem(route, message, "take it out")
        case "model", "classifier_norm" if task != "classification":
            message = f"model.classifier_norm has no effect under task: {task}, which has no classifier"
            return Problem(route, message, "take it out, or set task: classification")
    return None


def _form(task: Task, route: Route, form: Form) -> Problem | None:
    if form in FORMS[task]:
        return None
    fitting = next(other for other, forms in FORMS.items() if form in forms)
    message = f"task: {task} does not read data of the form {form}"
    wanted = f"set data.form: {FORMS[task][0]}" if task != "instruction" else "set another data.form"
    return Problem(route, message, f"{wanted}, or task: {fitting}")


def _loss(task: Task, route: Route, loss_on: str) -> Problem | None:
    if task == "instruction" or (task, loss_on) == ("pretrain", "all"):
        return None
    learnt = {"classification": "the label", "pretrain": "every token"}[task]
    message = f"data.loss_on: {levels.label(loss_on)} has no effect under task: {task}, which learns {learnt}"
    return Problem(route, message, "take it out, or set task: instruction")
