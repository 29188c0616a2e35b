"""A study says nothing that its task has no use for."""

from __future__ import annotations

import pytest
from studies import line_of, plan, short

from paribus.errors import StudyError
from paribus.plan.reading import parse_study
from paribus.plan.trial import Trial

FILES = "{source: files, train: a.jsonl%s}"


def study(task: str, data: str = "{source: embedded}", *lines: str) -> str:
    return short(f"task: {task}", *lines).replace("{source: embedded}\ntraining", f"{data}\ntraining")


WRONG = {
    "form of another task": (study("classification", FILES % ""), "form prompt_completion", "classification"),
    "running text for an instruction's task": (
        study("pretrain", FILES % ", form: alpaca"),
        "does not read data of the form alpaca",
        "set data.form: text, or task: instruction",
    ),
    "labels for answers": (
        study("instruction", FILES % ", form: classification"),
        "classification",
        "or task: class",
    ),
    "loss of a label": (
        study("classification", "{source: embedded, loss_on: all}"),
        "learns the label",
        "take it out",
    ),
    "loss of running text": (
        study("pretrain", "{source: embedded, loss_on: completion}"),
        "learns every token",
        "take it out",
    ),
    "template of a label": (
        study("classification", FILES % ", form: classification, template: plain"),
        "data.template has no effect",
        "take it out",
    ),
    "norm without a head": (
        short("task: instruction", "vary:", "  model.classifier_norm: [none, batch]"),
        "model.classifier_norm has no effect under task: instruction",
        "set task: classification",
    ),
    "norm in a control": (
        short("task: pretrain", "compare: {controls: [{model.classifier_norm: batch}]}"),
        "has no effect under task: pretrain",
        "",
    ),
    "metric of another task": (
        short("task: pretrain", "compare: {metric: test.same_wording.loss}"),
        "unknown metric",
        "test.all.loss",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_at_odds_with_the_task_is_named_with_its_line(name: str) -> None:
    text, message, way_out = WRONG[name]
    with pytest.raises(StudyError) as caught:
        parse_study(text)
    assert message in caught.value.message
    assert way_out in (caught.value.way_out or "")
    assert caught.value.place is not None
    blamed = {
        "norm without a head": "  model.class",
        "norm in a control": "compare",
        "metric of another task": "compare",
    }
    assert caught.value.place.line == line_of(text, blamed.get(name, "data:"))


def trial(text: str) -> Trial:
    return plan(text).jobs[0].trial


def test_what_is_right_is_read_and_compared_by_its_own_group() -> None:
    texts = study("classification", FILES % ", form: classification")
    assert parse_study(texts).compare.metric == "test.all.loss"
    assert parse_study(short("task: classification")).compare.metric == "test.same_wording.loss"
    assert parse_study(short("task: pretrain")).compare.metric == "test.all.loss"
    assert (
        len(plan(short("task: classification", "vary: {model.classifier_norm: [layer, batch]}")).cells) == 2
    )


def test_one_training_has_one_id() -> None:
    """Running text is learnt whole, so saying so changes nothing; no head has a norm unless it is said."""
    one, other = (
        trial(study("pretrain", data)) for data in ("{source: embedded}", "{source: embedded, loss_on: all}")
    )
    assert one.canonical()["data"]["loss_on"] == other.canonical()["data"]["loss_on"] == "all"
    labels = trial(short("task: classification")).canonical()
    assert labels["data"]["loss_on"] == "label"
    assert "classifier_norm" not in labels["model"]
    normed = trial(short("task: classification", "model.classifier_norm: batch")).canonical()
    assert normed["model"]["classifier_norm"] == "batch"
