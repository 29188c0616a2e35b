"""Identities: what a trial's id is made of, and what never changes it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import QUICKSTART, FixedContents

from paribus.plan.design import expand
from paribus.plan.reading import parse_study
from paribus.plan.study import Study
from paribus.plan.trial import Content, Trial, canonical_json, identity

GOLDEN = Path(__file__).parents[1] / "golden" / "trial_ids.json"
CONTENT = {"model_sha256": "1" * 64, "train_sha256": "2" * 64, "template_sha256": "3" * 64}


def trial(**settings_given: Any) -> Trial:
    """Return a trial with content of fixed hashes."""
    usual: dict[str, Any] = {
        "task": "instruction",
        "model": {"source": "embedded"},
        "data": {"source": "embedded", "train_examples": 128},
        "content": CONTENT,
        "training": {"epochs": 8, "learning_rate": 2e-3},
        "gradient_accumulation_steps": 1,
        "neftune_noise_alpha": 0,
        "precision": {"kind": "fp32"},
        "tuning": {"kind": "full"},
        "seed": 0,
    }
    return Trial.model_validate(usual | settings_given)


@pytest.mark.parametrize("entry", json.loads(GOLDEN.read_text()), ids=lambda entry: entry["trial_id"])
def test_a_trial_keeps_the_id_it_was_first_given(entry: dict[str, Any]) -> None:
    """Results on users' disks are found by these ids: a change here renames every trial ever recorded."""
    assert trial(**entry["settings"]).trial_id == entry["trial_id"]


def test_the_golden_ids_are_twenty_and_distinct() -> None:
    entries = json.loads(GOLDEN.read_text())
    assert len({entry["trial_id"] for entry in entries}) == 20


def test_a_plan_gives_the_ids_that_its_trials_compute() -> None:
    planned = expand(Study.read(QUICKSTART), FixedContents())
    for job in planned.jobs:
        assert (job.trial_id, job.group) == (job.trial.trial_id, job.trial.group)


ALPHA = st.one_of(st.integers(0, 20), st.floats(0, 20, allow_nan=False))
TUNING = st.one_of(
    st.just({"kind": "full"}),
    st.builds(lambda r, a: {"kind": "lora", "r": r, "lora_alpha": a}, st.integers(1, 64), st.integers(1, 64)),
)
PRECISION = st.sampled_from(
    [{"kind": "fp32"}, {"kind": "bf16", "compute": "emulated"}, {"kind": "fp8", "scaling": "none"}]
)
SETTINGS = st.fixed_dictionaries(
    {
        "neftune_noise_alpha": ALPHA,
        "tuning": TUNING,
        "precision": PRECISION,
        "training": st.fixed_dictionaries(
            {
                "epochs": st.integers(1, 9),
                "warmup_steps": st.integers(0, 9),
                "learning_rate": st.floats(1e-6, 2),
            }
        ),
        "seed": st.integers(0, 2**32 - 1),
    }
)


def shuffled(value: Any, draw: random.Random) -> Any:
    """Return the same settings with their keys in another order."""
    if not isinstance(value, dict):
        return value
    items = list(value.items())
    draw.shuffle(items)
    return {key: shuffled(item, draw) for key, item in items}


def as_floats(value: Any) -> Any:
    """Return the same settings with every whole number written with a point: 1.0 for 1."""
    if isinstance(value, dict):
        return {key: as_floats(item) for key, item in value.items()}
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@settings(max_examples=60, deadline=None)
@given(SETTINGS, st.randoms(use_true_random=False))
def test_the_order_of_keys_never_changes_an_id(given_settings: dict[str, Any], draw: random.Random) -> None:
    assert trial(**shuffled(given_settings, draw)).trial_id == trial(**given_settings).trial_id


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_1_and_1_point_0_never_change_an_id(given_settings: dict[str, Any]) -> None:
    assert trial(**as_floats(given_settings)).trial_id == trial(**given_settings).trial_id


@settings(max_examples=60, deadline=None)
@given(SETTINGS)
def test_an_id_survives_being_written_and_read(given_settings: dict[str, Any]) -> None:
    made = trial(**given_settings)
    assert Trial.model_validate_json(made.model_dump_json()).trial_id == made.trial_id


@settings(max_examples=60, deadline=None)
@given(SETTINGS, SETTINGS)
def test_different_settings_have_different_ids(one: dict[str, Any], other: dict[str, Any]) -> None:
    first, second = trial(**one), trial(**other)
    assert (first.trial_id == second.trial_id) == (first.canonical() == second.canonical())


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12))
def test_composed_and_decomposed_text_have_one_id(name: str) -> None:
    ids = {
        trial(tuning={"kind": "lora", "target_modules": [unicodedata.normalize(form, name)]}).trial_id
        for form in ("NFC", "NFD")
    }
    assert len(ids) == 1


def test_places_and_inert_settings_are_in_no_id() -> None:
    usual = trial().trial_id
    assert trial(model={"source": "path", "path": "/elsewhere"}).trial_id == usual
    assert trial(model={"source": "hub", "name": "n", "revision": "abc"}).trial_id == usual
    assert trial(data={"source": "files", "train": "b.jsonl", "validation_share": 0.2}).trial_id == usual
    assert trial(gradient_accumulation_steps={"steps": 1, "normalise": "tokens"}).trial_id == usual
    assert trial(neftune_noise_alpha={"alpha": 0, "scaling": "paper"}).trial_id == usual
    sgd = {"epochs": 8, "optimizer": "sgd"}
    inert = {"adam_beta1": 0.5, "adam_beta2": 0.5, "adam_epsilon": 1.0}
    assert trial(training=sgd | inert).trial_id == trial(training=sgd).trial_id


@pytest.mark.parametrize(
    "changed",
    [
        {"content": CONTENT | {"model_sha256": "9" * 64}},
        {"content": CONTENT | {"train_sha256": "9" * 64}},
        {"content": CONTENT | {"template_sha256": "9" * 64}},
        {"model": {"source": "embedded", "load_dtype": "bfloat16"}},
        {"data": {"source": "embedded", "loss_on": "all"}},
        {"seed": 1},
        {"task": "pretrain"},
        {"neftune_noise_alpha": 5},
        {"gradient_accumulation_steps": 4},
        {"precision": {"kind": "bf16"}},
        {"precision": {"kind": "bf16", "compute": "emulated"}},
        {"tuning": {"kind": "lora"}},
        {"training": {"epochs": 8, "learning_rate": 2e-3, "max_length": 64}},
    ],
    ids=lambda changed: canonical_json(changed)[:40],
)
def test_what_shapes_the_weights_is_in_the_id(changed: dict[str, Any]) -> None:
    assert trial(**changed).trial_id != trial().trial_id


def test_the_group_is_the_trial_without_its_seed() -> None:
    assert trial(seed=1).group == trial(seed=2).group != trial(seed=1, neftune_noise_alpha=5).group


def test_an_id_is_the_start_of_a_hash_of_canonical_json() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü", None]}) == '{"a":[1.5,"ü",null],"b":1}'
    assert identity({}) == "44136fa355b3678a"


def test_names_questions_and_paths_of_a_study_are_in_no_id() -> None:
    text = QUICKSTART.read_text(encoding="utf-8")
    other = text.replace("name: quickstart", "name: übung 2").replace("Which of", "Whether")
    one = expand(parse_study(text, Path("a")), FixedContents())
    two = expand(parse_study(other, Path("b c")), FixedContents())
    assert [job.trial_id for job in one.jobs] == [job.trial_id for job in two.jobs]
    assert Content.model_fields.keys() == {*CONTENT, "techniques"}


def test_planning_a_study_loads_no_torch() -> None:
    code = (
        "import sys; from paribus.plan.study import Study; from paribus.plan.design import expand; "
        "from paribus.plan.preflight import obstacles; from paribus.machine import host; "
        "p = expand(Study.read(sys.argv[1])); obstacles(p, host()); p.to_json(); "
        "heavy = {'torch', 'transformers', 'peft', 'scipy'} & set(sys.modules); "
        "print(len(p.jobs), sorted(heavy))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(QUICKSTART)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split(maxsplit=1) == ["33", "[]\n"]


def test_two_ways_of_saying_one_training_have_one_id() -> None:
    """A constant rate warms up under either name; the order of module names says nothing."""

    def scheduled(name: str) -> str:
        return trial(training={"epochs": 1, "warmup_steps": 3, "lr_scheduler_type": name}).trial_id

    def targeted(*names: str) -> str:
        return trial(tuning={"kind": "lora", "target_modules": list(names)}).trial_id

    assert scheduled("constant") == scheduled("constant_with_warmup") != scheduled("linear")
    assert targeted("q_proj", "v_proj") == targeted("v_proj", "q_proj") != targeted("q_proj")
