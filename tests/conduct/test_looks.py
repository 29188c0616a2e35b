"""An adaptive study is run look by look, and a run that was stopped goes on with the same trials."""

from __future__ import annotations

import random
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic
from rich.console import Console

from paribus import screen
from paribus.compare.adaptive import replay
from paribus.conduct.adaptive import run, said
from paribus.plan.content import DataContent, ModelContent
from paribus.plan.design import Plan, expand
from paribus.plan.reading import study_from
from paribus.plan.trial import Heldout
from paribus.plan.yaml_lines import parse
from paribus.record.store import Store
from paribus.techniques import ModelFacts

STUDY = """\
paribus: 1
name: looks
model: {source: embedded}
data: {source: embedded}
training: {epochs: 2, max_length: 64}
vary: {neftune_noise_alpha: [0, 5, 20]}
repeat: {seeds: SEEDS}
compare: {metric: test.same_wording.loss, at: last, margin: 0.02}
"""
FACTS = ModelFacts(
    architecture="LlamaForCausalLM", model_type="llama", parameters=800_000, bias_parameters=0,
    hidden_size=128, layers=4, vocabulary=600, context_length=256,
)  # fmt: skip
EFFECTS = {0: (0.0, 0.001), 5: (0.005, 0.05), 20: (1.0, 0.002)}
"""Of each alpha: what it does to the loss, and how much that varies from seed to seed."""


class Contents:
    """Stands for files, of which these tests need none."""

    def model(self, block) -> ModelContent:
        return ModelContent("m", FACTS)

    def data(self, block) -> DataContent:
        return DataContent("d", {"validation": {}, "test": {}})

    def template(self, model, data) -> str:
        return "t"

    def heldout(self, data) -> Heldout:
        return Heldout(groups=("same_wording",))


class Stopped(Exception):
    """What ends a run in these tests."""


class Study:
    """A study in a folder, with trials that end with a loss that is written down beforehand."""

    def __init__(self, folder: Path, seeds: str = "3..5, until: decided") -> None:
        document = parse(STUDY.replace("SEEDS", seeds), folder / "study" / "study.yaml")
        self.plan: Plan = expand(study_from(document), Contents())
        self.store, self.folder = Store(folder / "results"), folder / "study"
        synthetic.lose(self.folder, {job.trial_id: self.loss(job) for job in self.plan.jobs})
        self.heard = []

    @staticmethod
    def loss(job) -> float:
        alpha, seed = int(job.trial.neftune_noise_alpha.alpha), job.trial.seed
        effect, spread = EFFECTS[alpha]
        return 2 + effect + spread * random.Random(f"{alpha} {seed}").gauss(0, 1)

    def run(self, until: int | None = None, **options):
        """Run it; with `until` stop as if killed once so many trials have ended."""
        self.heard = []

        def hear(event):
            self.heard.append(event)
            if until is not None and sum(one.kind == "finished" for one in self.heard) >= until:
                raise Stopped

        return run(self.plan, self.store, synthetic.MACHINE, synthetic.options(**options), hear)

    @property
    def looks(self) -> list[str]:
        return [event.message for event in self.heard if event.kind == "look"]

    @property
    def begun(self) -> int:
        return sum(line[0] == "begin" for line in synthetic.journal(self.folder))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Study:
    """Return a study that ran without a stop."""
    study = Study(tmp_path_factory.mktemp("whole"))
    study.summary = study.run()
    study.said, study.first = study.looks, study.heard
    return study


def order(study: Study) -> list[str]:
    """Return the trials in the order in which they were needed."""
    return [job.trial_id for job in replay(study.plan, study.store.recorded()).plan.jobs]


def test_every_look_runs_what_is_open_and_no_more(whole):
    found = replay(whole.plan, whole.store.recorded())
    assert [(stop.contrast.level, stop.why, stop.seeds) for stop in found.stops.values()] == [
        ("5", "limit", 5),
        ("20", "worse", 3),
    ]
    assert whole.begun == whole.summary.started == len(found.plan.jobs) == 3 * 3 + 2 * 2
    assert whole.summary.outcomes == {"finished": 13} and whole.summary.exit_code == 0
    assert set(whole.store.trial_ids()) == {job.trial_id for job in found.plan.jobs}


def test_the_listener_hears_of_each_look_and_of_what_was_saved(whole):
    assert whole.said == [
        "look at 3 of at most 5 seeds: 9 trials to run",
        "look at 4 of at most 5 seeds: 1 of 2 contrasts open, 2 trials to run",
        "look at 5 of at most 5 seeds: 1 of 2 contrasts open, 2 trials to run",
        "ended after 5 of at most 5 seeds: 13 of 15 trials were needed, 2 saved",
    ]
    assert [event.tally.planned for event in whole.first if event.kind == "look"] == [9, 11, 13, 13]


def test_a_second_run_starts_nothing(whole):
    before = whole.begun
    assert whole.run().started == 0 and whole.begun == before
    assert [look.split()[0] for look in whole.looks] == ["ended"]


@pytest.mark.parametrize("until", [2, 9, 10])
def test_a_run_that_was_stopped_goes_on_with_the_same_trials(whole, tmp_path, until):
    study = Study(tmp_path)
    with pytest.raises(Stopped):
        study.run(until, max_workers=1)
    assert not replay(study.plan, study.store.recorded()).ended
    assert study.run().exit_code == 0
    assert order(study) == order(whole)
    assert said(replay(study.plan, study.store.recorded())) == whole.said[-1]


def test_what_is_asked_to_run_again_does_so_once(tmp_path):
    study = Study(tmp_path)
    synthetic.behave(study.folder, 0, *6 * ["fail"])  # every trial of seed 0
    first = study.run().outcomes
    assert first == {"finished": 11, "crashed": 3}
    begun = study.begun
    assert study.run(retry=frozenset({"crashed"})).outcomes == first
    assert study.begun == begun + 3


def test_chosen_trials_alone_end_the_run_without_the_rest_of_their_look(tmp_path):
    study = Study(tmp_path)
    chosen = study.plan.jobs[0].trial_id
    assert study.run(only=(chosen,)).started == 1
    assert study.store.trial_ids() == [chosen]
    assert study.looks[-1].endswith("8 trials to run")


def test_the_plan_says_the_least_and_the_most(whole, tmp_path):
    document = whole.plan.to_json()
    assert (document["least_seeds"], document["least_trials"], len(document["trials"])) == (3, 9, 15)
    shown = Console(width=200, record=True, file=StringIO())
    screen.show_plan(whole.plan, Store(tmp_path / "none"), synthetic.MACHINE, shown)
    said = shown.export_text()
    assert "3 to 5 seeds, 9 to 15 trials; 0 recorded, at most 15 to go" in said
    assert "known once a trial is recorded" in said
    assert " 3..5 " in said


def test_what_the_least_and_the_most_cost_is_told_from_recorded_trials(whole):
    study = whole.plan.study
    resources = study.resources.model_copy(update={"price_per_hour": 3.0})
    plan = replace(whole.plan, study=study.model_copy(update={"resources": resources}))
    cost = SimpleNamespace(train_seconds=1200.0)
    results = {plan.jobs[0].trial_id: SimpleNamespace(cost=cost)}
    said = screen._cost_line(plan, results)
    assert said.startswith("3 to 5 device hours") and "9 to 15 at 3 an hour" in said


def test_fixed_seeds_are_run_whole(tmp_path):
    study = Study(tmp_path, seeds="[0, 1]")
    assert study.run().outcomes == {"finished": 6}
    assert study.looks == []
