"""Bad input: each problem is one clear error with the line, the value, the rule and the way out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import FixedContents, line_of, quickstart, short

from paribus.errors import ModelError, StudyError
from paribus.plan.design import expand
from paribus.plan.reading import parse_study
from paribus.plan.study import Study

# what is replaced in the quickstart, by what, a part of the message, a part of the way out (or "")
BAD = {
    "unknown key": ("tuning: full\n", "tunning: full\n", "unknown key 'tunning'", "Did you mean 'tuning'"),
    "unknown key in a block": ("epochs: 8", "epochz: 8", "unknown key 'epochz' in training", "'epochs'"),
    "unknown key in a level": ("{kind: bf16, compute", "{kind: bf16, computer", "'computer'", "'compute'"),
    "unknown key of a source": (
        "train_examples",
        "train_example",
        "'train_example' in data",
        "train_examples",
    ),
    "unknown key in vary": ("[0, 5, 10]", "{values: [0], whn: {}}", "unknown key 'whn'", "'when'"),
    "unknown key deep": ("every: epoch", "evry: epoch", "'evry' in score.heldout", "Did you mean 'every'"),
    "field without its block": (
        "keep: none",
        "learning_rate: 1",
        "key 'learning_rate'",
        "'training.learning_rate'",
    ),
    "unknown technique": ("    - lora\n", "    - lorra\n", "unknown tuning 'lorra'", "Did you mean 'lora'"),
    "unknown kind": ("{kind: bf16", "{kind: bf17", "kind must be", "Did you mean 'bf16'"),
    "kind missing": ("{kind: bf16, ", "{", "does not say its kind", "bf16"),
    "unknown word": ("lr_scheduler_type: linear", "lr_scheduler_type: liner", "the word 'liner'", "'linear'"),
    "unknown setting": ("neftune_noise_alpha: [0", "neftune: [0", "'neftune'", "'neftune_noise_alpha'"),
    "unknown field": ("neftune_noise_alpha: [0", "training.epoch: [0", "'training.epoch'", "'epochs'"),
    "word for a number": ("epochs: 8", "epochs: eight", "a whole number, not the word 'eight'", ""),
    "text for a number": ("epochs: 8", "epochs: '8'", "a number, not the word '8'", "quotes"),
    "fraction": ("epochs: 8", "epochs: 8.5", "a whole number, not the number 8.5", ""),
    "yes/no": ("epochs: 8", "epochs: true", "a number, not the yes/no value true", ""),
    "list": ("epochs: 8", "epochs: [8, 9]", "a whole number, not a list", ""),
    "too small": ("epochs: 8", "epochs: 0", "at least 1, not the number 0", ""),
    "infinite": ("learning_rate: 2e-3", "learning_rate: .inf", "a finite number", ""),
    "number for a word": ("name: quickstart", "name: 12", "name must be a word, not the number 12", ""),
    "block missing": ("model: {source: embedded}", "model: embedded", "model must be a block", ""),
    "number for a technique": ("- {kind: bf16, compute: emulated}", "- 16", "precision must be a word", ""),
    "word for alpha": ("[0, 5, 10]", "[0, five]", "a number or a block, not the word 'five'", ""),
    "text for alpha": ("[0, 5, 10]", "[0, {alpha: '5'}]", "alpha must be a number, not the word '5'", ""),
    "nothing": ("neftune_noise_alpha: 0", "neftune_noise_alpha:", "not nothing", ""),
    "list outside vary": ("precision: fp32", "precision: [fp32, bf16]", "not a list", "vary.precision"),
    "name with a slash": ("name: quickstart", "name: a/b", "cannot name a folder", ""),
    "epochs and max_steps": (
        "  warmup_steps: 10",
        "  max_steps: 10",
        "epochs or max_steps, and not both",
        "",
    ),
    "fixed and varied": (
        "neftune_noise_alpha: [0, 5, 10]",
        "training.learning_rate: [1e-3]",
        "both fixed (line 10) and varied",
        "first varied value, 0.001",
    ),
    "fixed beside vary": ("[0, 5, 10]", "[5, 10]", "fixed to 0, which is not among", "add it to vary"),
    "set twice": ("keep: none", "training.learning_rate: 1e-3", "set twice", ""),
    "max_steps varied": (
        "neftune_noise_alpha: [0, 5, 10]",
        "training.max_steps: [4]",
        "epochs or max_steps",
        "",
    ),
    "empty axis": ("[0, 5, 10]", "[]", "vary.neftune_noise_alpha has no values", "at least one"),
    "axis without a list": ("[0, 5, 10]", "5", "must be a list of values, not the number 5", "[first"),
    "no values": ("[0, 5, 10]", "{when: {tuning: full}}", "must be a list of values, not nothing", ""),
    "empty seeds": ("[0, 1, 2]", "[]", "seeds is empty", "at least one"),
    "duplicate seeds": ("[0, 1, 2]", "[0, 1, 1]", "the seed 1 is listed twice", ""),
    "seed that is a fraction": ("[0, 1, 2]", "[0, 1.5]", "a whole number, not the number 1.5", ""),
    "seed that is a word": ("[0, 1, 2]", "[0, one]", "a whole number, not the word 'one'", ""),
    "seed that is yes": ("[0, 1, 2]", "[0, true]", "a number, not the yes/no value true", ""),
    "negative seed": ("[0, 1, 2]", "[0, -1]", "the seed -1 is outside", ""),
    "seeds without a list": ("[0, 1, 2]", "3", "seeds must be a list, not the number 3", ""),
    "varied seed": ("neftune_noise_alpha: [0", "seed: [0", "seeds are repeated, not varied", "repeat.seeds"),
    "batch that does not divide": ("[1, 4]", "[1, 3]", "batch of 16 (line 8)", "can be 1, 2, 4, 8, 16"),
    "schema version": ("paribus: 1", "paribus: 2", "must be 1, not the number 2", "paribus: 1"),
    "design": (
        "design: one_factor_at_a_time",
        "design: one_factor",
        "design must be",
        "one_factor_at_a_time",
    ),
    "metric": (
        "test.same_wording.loss",
        "test.same_wording.los",
        "unknown metric",
        "'test.same_wording.loss'",
    ),
    "metric's group": ("test.same_wording", "test.same_wordin", "unknown metric", "'test.same_wording.loss'"),
    "metric's split": ("test.same_wording", "train.same_wording", "unknown metric", "same_wording.loss"),
    "metric on validation": ("test.same", "validation.same", "unknown metric", "'test.same_wording.loss'"),
    "task that is not built": ("task: instruction", "task: pretraining", "task must be", ""),
    "varied task": (
        "neftune_noise_alpha: [0",
        "task: [instruction",
        "task of a study is fixed",
        "at the top",
    ),
    "estimand": ("new_seeds_these_items", "new_seeds_and_item", "estimand must be", "'new_seeds_and_items'"),
    "expected spread": ("margin: 0.02", "expected_sd: 0", "greater than 0, not the number 0", ""),
    "matched by": ("pair_by: seed", "matched_by: luck", "matched_by must be", "tuning_budget"),
    "reading": ("at: best_validation", "at: best_valid", "at must be", "'best_validation'"),
    "margin": ("margin: 0.02", "margin: -1", "greater than 0, not the number -1", ""),
    "confidence": ("confidence: 0.95", "confidence: 95", "less than 1, not the number 95", ""),
    "when on an unknown axis": (
        "[0, 5, 10]",
        "{values: [0, 5], when: {tunin: lora}}",
        "setting 'tunin'",
        "'tuning'",
    ),
    "when on an unknown word": (
        "[0, 5, 10]",
        "{values: [0, 5], when: {tuning: lor}}",
        "tuning 'lor'",
        "'lora'",
    ),
    "when that the base fails": (
        "[0, 5, 10]",
        "{values: [0], when: {tuning: lora}}",
        "would ever run",
        "also",
    ),
    "exclude without a reason": ("keep: none", "exclude: [{tuning: lora}]", "without a reason", "add reason"),
    "exclude on an unknown axis": (
        "keep: none",
        'exclude: [{tunin: lora, reason: "x"}]',
        "'tunin'",
        "'tuning'",
    ),
    "exclude of everything": ("keep: none", 'exclude: [{reason: "x"}]', "excludes every cell", "name the"),
    "exclude that is no list": ("keep: none", "exclude: {tuning: lora}", "exclude must be a list", ""),
    "baseline excluded": (
        "keep: none",
        'exclude: [{tuning: full, reason: "x"}]',
        "it is excluded (x)",
        "another",
    ),
    "baseline not planned": (
        "family: axis",
        "baseline: {tuning: lora, neftune_noise_alpha: 5}",
        "no cell",
        "under include",
    ),
    "unknown control": (
        "alpha: 40",
        "alphas: 40",
        "unknown setting 'neftune_noise_alphas'",
        "'neftune_noise_alpha'",
    ),
    "include of an unknown axis": ("keep: none", "include: [{tunin: lora}]", "'tunin'", "'tuning'"),
    "a name that is taken": ("name: quickstart", "name: reference", "'reference' is taken", ""),
    "included seeds that the study has not": (
        "keep: none",
        "include: [{tuning: lora, seeds: [7]}]",
        "some of the study's seeds",
        "choose from",
    ),
    "field that a technique has not": (
        "keep: none",
        "include: [{tuning.r: 4}]",
        "tuning is full, which has no r",
        "lora",
    ),
    "several devices": ("devices_per_trial: 1", "devices_per_trial: 2", "must be 1, not the number 2", ""),
    "checkpoints at no step": (
        "devices_per_trial: 1",
        "devices_per_trial: 1, checkpoint_every: 0",
        "checkpoint_every",
        "",
    ),
    "a tab": ("  epochs: 8", "\tepochs: 8", "a tab stands where", "spaces"),
    "a bracket left open": ("[0, 5, 10]", "[0, 5, 10", "not valid YAML", ""),
    "duplicate key": (
        "  epochs: 8\n",
        "  epochs: 8\n  epochs: 8\n",
        "written twice, first in line 9",
        "keep one",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named_with_its_line_and_the_way_out(name: str) -> None:
    old, new, message, way_out = BAD[name]
    text = quickstart()
    assert old in text
    with pytest.raises(StudyError) as caught:
        expand(parse_study(text.replace(old, new, 1)), FixedContents())
    error = caught.value
    assert message in error.message
    assert way_out in (error.way_out or "")
    assert error.place is not None
    assert error.place.line == line_of(text, old) + LINES_ON.get(name, 0)


LINES_ON = {"duplicate key": 1, "a bracket left open": 1, "fixed beside vary": -6}
"""Where the line is not that of the change: the second key, the line after the bracket, the fixed value."""


def test_a_key_written_as_it_is_without_it_is_no_error() -> None:
    """What a study says by leaving a key out may be written."""
    lines = ("task: instruction", "compare: {matched_by: null, estimand: new_seeds_these_items}")
    assert parse_study(short(*lines)) == parse_study(short())


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("compare: {estimand: new_seeds_and_items, at: equal_train_loss}",), "not at equal train loss"),
        (
            (
                "repeat: {until: decided, seeds: 3..9}",
                "compare: {metric: test.same_wording.loss, margin: 0.02, estimand: new_seeds_and_items}",
            ),
            "counts seeds",
        ),
        (
            (
                "repeat: {seeds: [0, 1, 2, 3]}",
                "compare: {metric: test.same_wording.loss, margin: 0.02, estimand: new_seeds_and_items}",
            ),
            "needs at least 5 seeds, not 4",
        ),
    ],
)
def test_new_items_need_recorded_items_and_a_number_of_seeds(lines: tuple[str, ...], reason: str) -> None:
    text = short(*lines) if len(lines) == 1 else re.sub(r"^repeat: .*\n", "", short(*lines[1:]), flags=re.M)
    text = text if len(lines) == 1 else f"{text}{lines[0]}\n"
    with pytest.raises(StudyError, match=reason) as caught:
        parse_study(text)
    assert caught.value.place is not None and caught.value.place.line
    assert "new_seeds_these_items" in str(caught.value)


@pytest.mark.parametrize(
    ("score", "compare", "reason"),
    [
        (
            "fp32",
            "{metric: test.same_wording.loss_as_trained}",
            "not measured where scores are computed in fp32",
        ),
        ("as_trained", "{metric: test.same_wording.los_as_trained}", "unknown metric"),
        (
            "as_trained",
            "{metric: test.same_wording.loss_as_trained, estimand: new_seeds_and_items}",
            "recorded in fp32",
        ),
    ],
)
def test_a_loss_as_trained_must_be_measured(score: str, compare: str, reason: str) -> None:
    text = short(f"score: {{heldout: {{evaluate_in: {score}}}}}", f"compare: {compare}")
    with pytest.raises(StudyError, match=reason) as caught:
        parse_study(text)
    assert caught.value.place is not None and caught.value.place.line


@pytest.mark.parametrize("where", ["stress: outlier_channels", "vary: {stress: [none, outlier_channels]}"])
def test_weights_under_stress_are_not_kept(where: str) -> None:
    with pytest.raises(StudyError, match="whose channels are rescaled by stress"):
        parse_study(short("keep: last", where))


def test_an_axis_cannot_be_crossed_with_itself() -> None:
    text = short("design: one_factor_at_a_time", "vary:", "  tuning: {values: [full], also: {tuning: lora}}")
    with pytest.raises(StudyError, match="names tuning itself") as caught:
        parse_study(text)
    assert caught.value.place is not None and caught.value.place.line == 9


def test_only_factors_are_crossed() -> None:
    text = short("vary:", "  tuning: {values: [full, lora], also: {neftune_noise_alpha: [0, 5]}}")
    with pytest.raises(StudyError, match="the design grid has none"):
        parse_study(text)


@pytest.mark.parametrize("key", ["name", "model", "data", "training", "repeat"])
def test_a_missing_key_is_named(key: str) -> None:
    text = re.sub(rf"^{key}: .*\n", "", short(), flags=re.M)
    with pytest.raises(StudyError, match=f"the key '{key}' is missing"):
        parse_study(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("# nothing here\n", "the file is empty"),
        ("- a\n- b\n", "the file holds a list"),
        ("quickstart\n", "the file holds a single value"),
        ("paribus: 1\n---\nparibus: 1\n", "a second document"),
        ("a: &x [*x]\n", "nested too deeply"),
        ("paribus: !!python/name:os.system x\n", "the tag"),
        ("<<: {a: 1}\n", "merge keys"),
        ("1: a\n", "a key must be a word"),
        ("name: x\n", "`paribus` is missing"),
        ("a: \x00\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_study_is_named(text: str, message: str) -> None:
    with pytest.raises(StudyError) as caught:
        parse_study(text)
    assert message in caught.value.message
    assert caught.value.place is not None and caught.value.place.line is not None


def test_every_problem_is_listed_at_once_in_the_order_of_its_line() -> None:
    text = quickstart().replace("epochs: 8", "epochs: eight").replace("- lora\n", "- lorra\n")
    text = text.replace("seeds: [0, 1, 2]", "seeds: [0, 0]")
    with pytest.raises(StudyError) as caught:
        parse_study(text)
    lines = re.findall(r"study\.yaml:(\d+): ", str(caught.value))
    assert lines == [str(line_of(text, part)) for part in ("eight", "lorra", "seeds: [0, 0]")]


def test_pydantic_is_never_heard() -> None:
    for old, new, *_ in BAD.values():
        with pytest.raises(StudyError) as caught:
            expand(parse_study(quickstart().replace(old, new, 1)), FixedContents())
        assert not re.search(r"pydantic|validation error|type=|Input should", str(caught.value))


def test_a_study_that_is_not_there_names_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "quick start ü").mkdir()
    (tmp_path / "quick start ü" / "study.yaml").write_text(short(), encoding="utf-8")
    with pytest.raises(StudyError) as caught:
        Study.read(tmp_path / "quick start")
    assert "Did you mean 'quick start ü'" in str(caught.value)
    assert Study.read(tmp_path / "quick start ü").name == "short"


def test_a_file_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_bytes(short("question: wärmer?").encode("latin-1"))
    with pytest.raises(StudyError, match="is not UTF-8"):
        Study.read(tmp_path)


def test_an_error_of_the_sources_gets_the_line_of_its_block() -> None:
    text = short().replace("model: {source: embedded}", "model: {source: path, path: nowhere at all}")
    with pytest.raises(ModelError) as caught:
        expand(parse_study(text))
    assert caught.value.place is not None and caught.value.place.line == 3


def test_a_grid_too_large_to_plan_is_an_error_before_it_is_walked() -> None:
    axes = ", ".join(map(str, range(1, 1001)))
    text = short(
        "vary:", f"  neftune_noise_alpha: [{axes}]", f"  training.warmup_steps: [{axes}]", "design: grid"
    )
    with pytest.raises(StudyError, match="the grid has 1000000 cells"):
        expand(parse_study(text), FixedContents())


TOKEN = re.compile(r"[A-Za-z0-9_.\-]+|[\[\]{}:,]")
SLIPS = [
    "",
    "null",
    "[]",
    "{}",
    "[1]",
    "true",
    "-1",
    "1.5",
    "x",
    "'8'",
    ".nan",
    "lora",
    "fp8",
    "tuning.r",
    "*a",
]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0), st.sampled_from(SLIPS)), min_size=1, max_size=3))
def test_no_slip_of_the_pen_is_more_than_an_error_with_a_line(slips: list[tuple[int, str]]) -> None:
    text = quickstart()
    for position, slip in slips:
        spans = [match.span() for match in TOKEN.finditer(text)]
        start, end = spans[position % len(spans)]
        text = text[:start] + slip + text[end:]
    try:
        expand(parse_study(text), FixedContents())
    except StudyError as error:
        assert error.place is not None and error.place.line is not None
