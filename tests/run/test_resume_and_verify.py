"""What is left to do is planned less recorded; a rerun must repeat every hash."""

import json
from types import SimpleNamespace

import pytest
import synthetic

from paribus.machine import Machine
from paribus.plan.study import Resources
from paribus.record.store import Store
from paribus.run.pending import pending, status
from paribus.run.supervisor import run_jobs
from paribus.run.verify import choose, verify

ELSEWHERE = Machine(name="elsewhere", memory_bytes=2**40, cores=1)


@pytest.fixture
def done(tmp_path):
    """A plan of five trials of which three are finished and one does not fit."""
    plan = SimpleNamespace(
        jobs=tuple(synthetic.jobs(5)),
        study=SimpleNamespace(folder=tmp_path, name="a study", resources=Resources()),
    )
    store = Store(tmp_path / "results")
    synthetic.behave(tmp_path, 1, "does not fit")
    run_jobs(plan.jobs[:4], tmp_path, store, synthetic.MACHINE, synthetic.options())
    return plan, store


def test_pending_is_planned_less_recorded(done):
    plan, store = done
    assert pending(plan, store, synthetic.MACHINE) == [plan.jobs[4]]
    assert pending(plan, store, ELSEWHERE) == [plan.jobs[1], plan.jobs[4]]


def test_status_counts_and_names_what_is_damaged(done):
    plan, store = done
    expected = {
        "study": "a study", "planned": 5, "done": 4, "outcomes": {"finished": 3, "out_of_memory": 1},
        "running": 0, "problems": [],
    }  # fmt: skip
    assert status(plan, store, synthetic.MACHINE) == expected
    damaged = store.folder(plan.jobs[0].trial_id) / "result.json"
    damaged.write_text("")
    after = status(plan, store, synthetic.MACHINE)
    assert (after["done"], after["outcomes"]) == (3, {"finished": 2, "out_of_memory": 1})
    assert len(after["problems"]) == 1
    assert str(damaged) in after["problems"][0]
    json.dumps(after)


def test_an_identical_rerun_is_said_to_be_identical_and_touches_nothing(done, tmp_path):
    plan, store = done
    before = {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()}
    comparisons = verify(plan, store, synthetic.MACHINE, 2, scratch=tmp_path, options=synthetic.options())
    assert len(comparisons) == 2
    assert all(one.identical for one in comparisons)
    assert set(comparisons[0].same) == {
        "order_sha256", "initial_weights_sha256", "final_weights_sha256", "loss_curve_sha256", "heldout_loss",
    }  # fmt: skip
    assert {path: path.read_bytes() for path in store.root.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.glob("verify-*")] == []


def test_what_differs_is_named(done, tmp_path):
    plan, store = done
    for job in plan.jobs[:4]:
        path = store.folder(job.trial_id) / "result.json"
        path.write_text(path.read_text().replace('"final_weights_sha256": "', '"final_weights_sha256": "0'))
        for score in store.folder(job.trial_id).glob("scores/*.json"):
            score.write_text(score.read_text().replace('"loss": 0.5', '"loss": 0.75'))
    (one,) = verify(plan, store, synthetic.MACHINE, 1, scratch=tmp_path, options=synthetic.options())
    assert not one.identical
    assert [name for name, same in one.same.items() if not same] == ["final_weights_sha256", "heldout_loss"]
    assert one.loss_difference == 0.25


def test_a_rerun_that_fails_is_not_identical(done, tmp_path):
    plan, store = done
    for seed in range(4):
        synthetic.behave(tmp_path, seed, *["fail"] * 3)
    (one,) = verify(plan, store, synthetic.MACHINE, 1, scratch=tmp_path, options=synthetic.options())
    assert (one.outcome, one.identical, one.loss_difference) == ("crashed", False, None)


def test_the_sample_is_spread_over_cells_and_always_the_same():
    jobs = [
        job.model_copy(update={"group": group, "trial_id": f"{group}{job.trial.seed}"})
        for group in ("a", "b", "c")
        for job in synthetic.jobs(4)
    ]
    assert {job.group for job in choose(jobs, 3)} == {"a", "b", "c"}
    assert choose(list(reversed(jobs)), 5) == list(reversed(choose(jobs, 5)))
    assert choose(jobs, 50) == jobs
