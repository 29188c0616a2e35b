"""An adaptive study adds seeds where they can tell, and says the same whoever asks and whenever."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from made_results import plan_of, record

from paribus.compare import adaptive, tables
from paribus.compare.adaptive import replay
from paribus.compare.findings import Findings
from paribus.compare.replication import replication
from paribus.plan.design import Plan
from paribus.plan.trial import Job
from paribus.record.result import Crashed, Finished, Outcome, Reading
from paribus.record.store import Store
from paribus.statistics import mean_interval
from paribus.statistics.sequential import Looks

ALPHAS = "{neftune_noise_alpha: [0, 5, 10, 20]}"
EFFECTS = {0: 0.0, 5: 0.0, 10: 0.01, 20: 1.0}
SPREADS = {0: 0.002, 5: 0.004, 10: 0.04, 20: 0.01}
"""In units of the loss: 5 is equal within 0.02, 20 far off, and 10 varies too much to tell."""

CRASHED = Crashed(error="x", where="y", log_tail="")


def gauss(*key: object) -> float:
    return random.Random(" ".join(map(str, key))).gauss(0, 1)


def usual(job: Job) -> float:
    alpha, seed = int(job.trial.neftune_noise_alpha.alpha), job.trial.seed
    return 1 + gauss("seed", seed) / 5 + EFFECTS[alpha] + SPREADS[alpha] * gauss(seed, alpha)


@dataclass
class Study:
    """A study in a folder; trials get their loss from a formula when they are run."""

    plan: Plan
    store: Store
    loss: Callable[[Job], float] = usual
    outcome: Callable[[Job], Outcome] = lambda job: Finished()
    ran: list[str] = field(default_factory=list)

    def run(self, jobs) -> None:
        for job in jobs:
            record(self.store, job, self.outcome(job), self.readings)
            self.ran.append(job.trial_id)

    def readings(self, job: Job) -> Iterator[Reading]:
        for step, lift in ((0, 3.0), (8, 0.0)):
            for split in ("train_sample", "validation", "test"):
                yield Reading(
                    step=step, epoch=step / 8, split=split, group="same_wording", loss=self.loss(job) + lift,
                    accuracy=0.5, targets=400, examples=64,
                )  # fmt: skip

    def conducted(self, looks: int = 100) -> adaptive.Replay:
        """Run what each look needs, at most so many looks, and return where the study stands."""
        for _ in range(looks):
            found = replay(self.plan, self.store.recorded())
            if not found.waiting:
                break
            self.run(self.plan.job(trial_id) for trial_id in found.waiting)
        return replay(self.plan, self.store.recorded())

    @property
    def findings(self) -> Findings:
        return Findings(self.plan, self.store)


@pytest.fixture
def study(tmp_path):
    def make(seeds="3..8", vary=ALPHAS, **given) -> Study:
        kept = {key: given.pop(key) for key in ("loss", "outcome") if key in given}
        plan = plan_of(tmp_path / "study", vary, seeds=f"{seeds}, until: decided", **given)
        return Study(plan, Store(tmp_path / "results"), **kept)

    return make


def stops(found: adaptive.Replay) -> dict[str, tuple[str | None, int]]:
    return {stop.contrast.level: (stop.why, stop.seeds) for stop in found.stops.values()}


def test_what_is_clear_stops_early_and_what_is_not_goes_on_to_the_limit(study):
    made = study()
    found = made.conducted()
    assert found.ended
    ended = stops(found)
    assert ended["20"] == ("worse", 3)
    assert ended["5"][0] == "equivalent" and 3 < ended["5"][1] < 8
    assert ended["10"] == ("limit", 8)


def test_only_what_is_needed_is_run_and_the_baseline_goes_along(study):
    made = study()
    found = made.conducted()
    seeds = {cell.coordinates["neftune_noise_alpha"]: len(cell.trials) for cell in found.plan.cells}
    ended = {level: count for level, (_, count) in stops(found).items()}
    assert seeds == ended | {"0": max(ended.values())}
    assert sorted(made.ran) == sorted(job.trial_id for job in found.plan.jobs)
    assert found.saved == 4 * 8 - sum(seeds.values()) > 0


def test_the_first_seeds_come_first_and_then_one_a_look(study):
    made = study()
    for look, count in enumerate((3, 4, 5)):
        found = made.conducted(min(look, 1))
        assert found.seeds == count
        seeds = {made.plan.job(trial_id).trial.seed for trial_id in found.waiting}
        assert seeds == ({0, 1, 2} if look == 0 else {count - 1})


def test_a_stopped_run_goes_on_as_if_it_had_not_been(study, tmp_path):
    whole = study().conducted()
    broken = study()
    broken.store = Store(tmp_path / "broken")
    broken.run(broken.plan.jobs[:5])  # killed in the first look
    assert replay(broken.plan, broken.store.recorded()).seeds == 3
    again = broken.conducted()
    assert stops(again) == stops(whole) and again.plan.jobs == whole.plan.jobs


def test_trials_recorded_before_count_only_from_the_look_that_needs_them(study):
    made = study()
    made.run(made.plan.jobs)  # an earlier study ran every seed
    known = replay(made.plan, made.store.recorded())
    assert known.ended and known.saved > 0 and known.waiting == ()
    assert stops(known)["20"] == ("worse", 3)
    assert all(len(contrast.differences) <= 8 for contrast in made.findings.primary_contrasts)
    assert {c.level: len(c.differences) for c in made.findings.primary_contrasts} == {
        level: count for level, (_, count) in stops(known).items()
    }


def test_a_finished_trial_without_its_score_is_waited_for(study):
    made = study()
    made.run(made.plan.jobs)
    lost = next(job for job in made.plan.jobs if job.trial.seed == 3)
    for path in made.store.folder(lost.trial_id).glob("scores/*"):
        path.unlink()
    found = replay(made.plan, made.store.recorded())
    assert found.waiting == (lost.trial_id,) and found.seeds == 4


def test_intervals_are_the_repeated_ones_everywhere(study):
    made = study()
    made.conducted()
    findings, looks = made.findings, Looks(3, 8)
    for contrast in findings.primary_contrasts:
        assert contrast.difference == looks.difference(contrast.differences)
        fixed = mean_interval(contrast.differences)
        assert contrast.difference.half_width > 1.05 * fixed.half_width
    for cell in findings.cells:
        values = [findings.values("best_validation")[trial] for trial in cell.trials]
        assert cell.estimates["best_validation"] == looks.mean(values)
    for at in ("last", "best_validation"):
        assert all(
            c.difference.interval == looks.mean(c.differences).interval for c in findings.contrasts(at)
        )


def test_a_cell_and_its_level_say_the_same(study):
    made = study()
    made.conducted()
    by_level = {c.level: (c.verdict, c.difference, c.holm_p) for c in made.findings.primary_contrasts}
    by_cell = {
        c.cell.coordinates["neftune_noise_alpha"]: (
            c.contrast.verdict, c.contrast.difference, c.contrast.holm_p)
        for c in made.findings.cells if c.contrast
    }  # fmt: skip
    assert by_cell == by_level


def test_equality_is_adjusted_over_the_family_too(study):
    """Alone a p of equality below 0.05 is enough; among three it has to be below a third of that."""
    made = study("3..20", loss=lambda job: usual(job) if job.trial.neftune_noise_alpha.alpha != 10 else 9.0)
    for looks in range(1, 20):
        found = made.conducted(looks)
        five = next((stop for stop in found.stops.values() if stop.contrast.level == "5"), None)
        if five and five.why:
            break
        assert five is None or five.contrast.tost_p >= 0.05 / 3
    assert five.why == "equivalent" and five.contrast.tost_p < 0.05


def test_in_a_grid_a_contrast_stays_as_it_was_decided_though_its_cells_get_more_seeds(study):
    grid = "{neftune_noise_alpha: [0, 20], gradient_accumulation_steps: [1, 4]}"
    made = study(
        vary=grid, design="grid",
        loss=lambda job: usual(job) + 0.02 * gauss("steps", job.trial_id),
    )  # fmt: skip
    found = made.conducted()
    ended = {stop.contrast.axis: (stop.why, stop.seeds) for stop in found.stops.values()}
    assert ended["neftune_noise_alpha"] == ("worse", 3) and ended["gradient_accumulation_steps"][1] > 3
    assert {len(cell.trials) for cell in found.plan.cells} == {ended["gradient_accumulation_steps"][1]}
    shown = {contrast.axis: contrast for contrast in made.findings.primary_contrasts}
    assert len(shown["neftune_noise_alpha"].differences) == 3
    assert [stop.contrast for stop in found.stops.values()] == [shown[axis] for axis in shown]


def test_where_levels_leave_out_a_cell_the_cells_are_what_is_decided(study):
    made = study(
        vary="{neftune_noise_alpha: [0, 20], gradient_accumulation_steps: [1, 4], dropout: [0, 0.1]}",
        design="leave_one_out",
    )
    found = made.conducted()
    assert len(found.stops) == len(made.plan.cells) - 1
    assert {stop.contrast.family for stop in found.stops.values()} == {"cells"}


def test_an_arm_that_never_finishes_gets_no_further_seeds(study):
    def outcome(job: Job) -> Outcome:
        return (
            Crashed(error="x", where="y", log_tail="")
            if job.trial.neftune_noise_alpha.alpha == 5
            else Finished()
        )

    found = study(outcome=outcome).conducted()
    assert stops(found)["5"] == ("no pair", 3)


def test_equal_where_it_finished_is_never_equivalent_and_costs_no_more_seeds(study):
    def outcome(job: Job) -> Outcome:
        alpha, seed = job.trial.neftune_noise_alpha.alpha, job.trial.seed
        return CRASHED if (alpha, seed) == (5, 0) else Finished()

    found = study(outcome=outcome).conducted()
    why, count = stops(found)["5"]
    assert why == "conditional" and count < 8
    stop = next(stop for stop in found.stops.values() if stop.contrast.level == "5")
    assert stop.contrast.verdict == "undecided" and len(stop.contrast.differences) == count - 1


def test_an_included_cell_with_few_seeds_ends_with_them(study):
    made = study(vary="{neftune_noise_alpha: [0, 5]}\ninclude: [{neftune_noise_alpha: 20, seeds: [0]}]")
    found = made.conducted()
    assert stops(found)["20"] == ("limit", 3)
    assert found.ended


def test_fixed_seeds_have_no_looks(quickstart):
    plan, store = quickstart
    with pytest.raises(ValueError, match="fixed"):
        replay(plan, store.recorded())
    assert adaptive.needed(plan, store) is plan
    assert replication(Findings(plan, store)) is None


def test_the_table_says_where_each_contrast_stopped_and_what_was_saved(study):
    made = study()
    found = made.conducted()
    sheet = replication(made.findings)
    assert [(row["level"], row["seeds"]) for row in sheet.rows] == [
        (level, count) for level, (_, count) in stops(found).items()
    ]
    assert sheet.rows[-1]["why"] == "worse"
    assert f"{len(found.plan.jobs)} of at most 32 trials needed, {found.saved} saved" in sheet.note
    assert "repeated" in sheet.note


def test_an_unfinished_study_claims_no_savings(study):
    made = study()
    made.conducted(1)
    note = replication(made.findings).note
    assert "saved" not in note and "without an outcome" in note
    assert made.findings.missing, "the trials of the next look are what is missing"


def test_tables_hold_the_trials_that_were_needed(study):
    made = study()
    found = made.conducted()
    made.run(job for job in made.plan.jobs if job.trial_id not in set(made.ran))
    document = tables.rows(made.plan, made.store)
    assert {row["trial"] for row in document["rows"]} == {job.trial_id for job in found.plan.jobs}
