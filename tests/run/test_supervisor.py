"""A run settles every trial, whatever its workers do, and a second run repeats nothing."""

import json
import os
import sys

import pytest
import synthetic

from paribus.errors import RecordError, StudyError
from paribus.machine import Machine
from paribus.record import lease
from paribus.record.attempt import Attempt, open_attempt, read_end
from paribus.record.result import Crashed, Killed, OutOfMemory, Unsupported
from paribus.record.rules import Rules
from paribus.record.store import Store
from paribus.run import ending
from paribus.run.engine.local import WorkerError
from paribus.run.options import Options, selected
from paribus.run.supervisor import run_jobs


class Base:
    """A folder with odd characters, the record in it, and what a listener heard."""

    def __init__(self, folder):
        self.folder = folder / "a böse folder"
        self.folder.mkdir()
        self.store = Store(self.folder / "results" / "stüdy")
        self.heard = []

    def run(self, jobs, machine=synthetic.MACHINE, hindered=None, **options):
        self.heard = []
        return run_jobs(
            jobs, self.folder, self.store, machine, synthetic.options(**{"scratch": self.scratch} | options),
            listener=self.heard.append, hindered=hindered,
        )  # fmt: skip

    @property
    def scratch(self):
        return self.folder / "scratch"

    def kinds(self, kind):
        return [event for event in self.heard if event.kind == kind]

    def outcome(self, job):
        return self.store.result(job.trial_id).result

    def ends(self, job):
        attempts = self.store.folder(job.trial_id) / "attempts"
        return [read_end(lease.numbered(attempts, number)) for number in lease.numbers(attempts)]

    def begins(self):
        return sum(line[0] == "begin" for line in synthetic.journal(self.folder))


@pytest.fixture
def base(tmp_path):
    return Base(tmp_path)


def test_every_trial_is_run_once_and_a_second_run_starts_nothing(base):
    jobs = synthetic.jobs(3)
    first = base.run(jobs)
    assert (first.outcomes, first.started, first.exit_code) == ({"finished": 3}, 3, 0)
    assert len(base.store.recorded()) == 3
    assert [event.tally.done for event in base.kinds("finished")] == [1, 2, 3]
    assert all(event.seconds > 0 for event in base.kinds("finished"))
    assert base.kinds("started")[0].attempt == 1
    second = base.run(jobs)
    assert (second.outcomes, second.started, second.exit_code) == ({"finished": 3}, 0, 0)
    assert base.kinds("loading") == []
    assert base.begins() == 3


def test_a_killed_worker_is_tried_again_and_at_the_third_time_published(base):
    once, always = jobs = synthetic.jobs(2)
    synthetic.behave(base.folder, 0, "die")
    synthetic.behave(base.folder, 1, "die", "die", "die")
    summary = base.run(jobs)
    assert summary.outcomes == {"finished": 1, "killed": 1}
    assert summary.exit_code == 1
    assert base.store.result(once.trial_id).attempt == 2
    assert base.outcome(always) == Killed(signal=9)
    assert [end.outcome for end in base.ends(always)] == [Killed(signal=9)] * 3
    assert [end.published for end in base.ends(once)] == [False, True]
    assert len(base.kinds("retried")) == 3
    assert base.run(jobs).started == 0


def test_retry_runs_failures_again_and_keeps_what_they_were(base):
    jobs = synthetic.jobs(3)
    synthetic.behave(base.folder, 0, "die", "die", "die")
    synthetic.behave(base.folder, 1, "fail")
    assert base.run(jobs).outcomes == {"killed": 1, "crashed": 1, "finished": 1}
    again = base.run(jobs, retry=frozenset({"killed", "crashed"}))
    assert (again.outcomes, again.started, again.exit_code) == ({"finished": 3}, 2, 0)
    kept = base.store.folder(jobs[1].trial_id) / "superseded" / "0001" / "result.json"
    assert json.loads(kept.read_text())["result"]["error"] == "RuntimeError: the matrix is on fire"
    assert base.run(jobs, retry=frozenset({"killed", "crashed"})).started == 0


def test_an_error_of_the_code_is_recorded_with_its_place_and_not_repeated(base):
    (job,) = synthetic.jobs(1)
    synthetic.behave(base.folder, 0, "fail")
    assert base.run([job]).exit_code == 1
    crash = base.outcome(job)
    assert isinstance(crash, Crashed)
    assert crash.error == "RuntimeError: the matrix is on fire"
    assert crash.where.startswith("synthetic.py:")
    assert "about to fail" in crash.log_tail
    assert len(base.ends(job)) == 1
    assert (base.store.folder(job.trial_id) / "result.json").stat().st_size < 4096


def test_a_worker_that_ends_without_a_word_has_crashed(base):
    (job,) = synthetic.jobs(1)
    synthetic.behave(base.folder, 0, "exit")
    base.run([job])
    assert base.outcome(job).error == "the worker ended with exit code 9 before it could say why"


def test_memory_is_an_outcome_and_no_failure(base):
    jobs = synthetic.jobs(2)
    synthetic.behave(base.folder, 0, "does not fit")
    synthetic.behave(base.folder, 1, "memory")
    summary = base.run(jobs)
    assert (summary.outcomes, summary.exit_code, summary.started) == ({"out_of_memory": 2}, 0, 2)
    assert base.outcome(jobs[0]) == OutOfMemory(phase="training", requested_bytes=10, limit_bytes=5)
    assert base.outcome(jobs[1]) == OutOfMemory(phase="training")
    assert base.run(jobs).started == 0


def test_memory_outcomes_of_another_machine_are_run_again(base):
    (job,) = synthetic.jobs(1)
    synthetic.behave(base.folder, 0, "does not fit")
    base.run([job])
    larger = Machine(name="test machine", memory_bytes=2**40, cores=2)
    assert base.run([job], machine=larger).outcomes == {"finished": 1}


def test_what_cannot_run_here_is_recorded_without_a_process(base):
    jobs = synthetic.jobs(2)
    reason = Unsupported(technique="fp8", reason="needs 8.9", way_out="compute: emulated")
    summary = base.run(jobs, hindered={jobs[0].trial_id: reason})
    assert (summary.outcomes, summary.started, summary.exit_code) == ({"finished": 1, "unsupported": 1}, 1, 0)
    assert base.outcome(jobs[0]) == reason
    assert base.store.result(jobs[0].trial_id).attempt is None
    assert base.store.recorded()[jobs[0].trial_id].job == jobs[0]


def test_an_obstacle_elsewhere_gives_way_to_a_run_here(base):
    (job,) = synthetic.jobs(1)
    small = Machine(name="small", memory_bytes=2**33, cores=1)
    reason = Unsupported(technique="fp8", reason="needs 8.9", way_out="compute: emulated")
    assert base.run([job], machine=small, hindered={job.trial_id: reason}).started == 0
    assert base.run([job]).outcomes == {"finished": 1}
    assert base.run([job], machine=small, hindered={job.trial_id: reason}).outcomes == {"finished": 1}
    assert base.outcome(job).outcome == "finished"


def test_damaged_files_are_set_aside_and_run_again(base):
    jobs = synthetic.jobs(3)
    base.run(jobs)
    (base.store.folder(jobs[0].trial_id) / "result.json").write_text('{"paribus": 1, "tri')
    score = next(base.store.folder(jobs[1].trial_id).glob("scores/*.json"))
    score.write_bytes(score.read_bytes()[:40])
    summary = base.run(jobs)
    assert (summary.outcomes, summary.started) == ({"finished": 3}, 2)
    assert len(summary.problems) == 2
    assert {event.job.trial_id for event in base.kinds("problem")} == {job.trial_id for job in jobs[:2]}
    assert (base.store.folder(jobs[0].trial_id) / "set_aside" / "0001" / "result.json").exists()
    assert base.store.problems == []
    assert base.store.result(jobs[1].trial_id).attempt == 1, "its result was sound and stays"
    assert base.run(jobs).started == 0


def test_an_added_score_is_made_by_a_rerun_that_keeps_the_result(base):
    (job,), (more,) = synthetic.jobs(1), synthetic.jobs(1, train_sample=(64, 128))
    base.run([job])
    before = base.store.result(job.trial_id)
    summary = base.run([more])
    assert (summary.outcomes, summary.started) == ({"finished": 1}, 1)
    recorded = base.store.recorded()[job.trial_id]
    assert recorded.result == before
    assert len(recorded.scores) == 2
    assert recorded.job == more
    assert base.run([more]).started == 0


def test_a_score_that_cannot_be_made_ends_the_run_with_a_failure(base):
    (job,), (more,) = synthetic.jobs(1), synthetic.jobs(1, train_sample=(64, 128))
    base.run([job])
    synthetic.behave(base.folder, 0, "finish", "fail")
    summary = base.run([more])
    assert (summary.unsettled, summary.exit_code) == ((job.trial_id,), 1)
    assert base.run([more], retry=frozenset({"crashed"})).exit_code == 0


def test_a_full_disk_stops_the_run_and_loses_nothing(base, monkeypatch):
    jobs = synthetic.jobs(3)
    monkeypatch.setenv("PARIBUS_FAULT", "ENOSPC:worker:before_fsync:result.json")
    with pytest.raises(RecordError) as caught:
        base.run(jobs)
    assert "no space is left" in caught.value.message
    assert "Free some space" in caught.value.way_out
    ends = [end for job in jobs for end in base.ends(job)]
    assert any(isinstance(end.outcome, Crashed) and "no space is left" in end.outcome.error for end in ends)
    assert base.store.recorded() == {}
    assert list(base.folder.rglob("*.tmp-*")) == []
    monkeypatch.delenv("PARIBUS_FAULT")
    assert base.run(jobs).outcomes == {"finished": 3}


def test_a_full_disk_is_no_fault_of_the_trial(base):
    (job,) = synthetic.jobs(1)
    synthetic.behave(base.folder, 0, "full")
    with pytest.raises(RecordError) as caught:
        base.run([job])
    assert "No space left on device" in caught.value.message
    assert base.run([job]).outcomes == {"finished": 1}


def test_a_trial_in_other_hands_is_waited_for_and_not_run_twice(base):
    (job,) = synthetic.jobs(1)
    base.store.prepare()
    held = open_attempt(base.store, job, Rules(synthetic.MACHINE.machine_class, "p"), lease.Watch())
    assert isinstance(held, Attempt)

    def hear(event):
        base.heard.append(event)
        if event.kind == "waiting":
            os.close(held.lock)  # the other supervisor dies

    summary = run_jobs([job], base.folder, base.store, synthetic.MACHINE, synthetic.options(), listener=hear)
    assert (summary.outcomes, summary.started) == ({"finished": 1}, 1)
    assert base.ends(job)[0].outcome == Killed(cause="lost")
    assert len(base.kinds("waiting")) == 1


def test_kept_weights_stay_and_others_go(base):
    kept, gone = synthetic.jobs(2, keep="last")[0], synthetic.jobs(2)[1]
    base.run([kept, gone])
    assert (base.scratch / kept.trial_id / "weights").read_text() == "kept"
    assert not (base.scratch / gone.trial_id).exists()
    assert not any("weights" in path.name for path in base.store.root.rglob("*"))


def test_workers_that_cannot_load_are_refused_before_anything_starts(base):
    jobs = synthetic.jobs(1)
    options = Options(max_workers=1, body=synthetic.BODY, preload=("no_such_library",))
    with pytest.raises(WorkerError) as caught:
        run_jobs(jobs, base.folder, base.store, synthetic.MACHINE, options)
    assert "importing no_such_library failed" in caught.value.message
    assert base.ends(jobs[0]) == []


def test_what_a_library_said_before_it_ended_the_server_is_passed_on(base, monkeypatch, capfd):
    (base.folder / "fatal_library.py").write_text("print('so it ends'); raise RuntimeError('no driver')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(base.folder), *sys.path]))
    options = Options(max_workers=1, body=synthetic.BODY, preload=("fatal_library",))
    with pytest.raises(WorkerError) as caught:
        run_jobs(synthetic.jobs(1), base.folder, base.store, synthetic.MACHINE, options)
    assert "RuntimeError: no driver" in caught.value.message
    assert "so it ends" not in "".join(capfd.readouterr())


def test_only_takes_the_beginnings_of_ids():
    jobs = synthetic.jobs(4)
    assert selected(jobs, ()) == jobs
    assert selected(jobs, (jobs[2].trial_id[:5], jobs[0].trial_id)) == [jobs[0], jobs[2]]
    with pytest.raises(StudyError) as caught:
        selected(jobs, ("zzz",))
    assert "--only zzz" in caught.value.message


def test_words_of_the_command_line():
    options = Options.parse(max_workers=3, retry="killed, crashed", only="ab12,CD")
    assert (options.max_workers, options.retry, options.only) == (3, {"killed", "crashed"}, ("ab12", "cd"))
    with pytest.raises(StudyError) as caught:
        Options.parse(retry="kiled")
    assert "killed" in caught.value.way_out


def test_a_worker_that_the_kernel_ended_for_lack_of_memory_says_so(base, monkeypatch, tmp_path):
    (job,) = synthetic.jobs(1)
    counter = tmp_path / "vmstat"
    counter.write_text("nr_free_pages 7\noom_kill 3\n")
    monkeypatch.setattr(ending, "VMSTAT", counter)
    synthetic.behave(base.folder, 0, "die")

    def hear(event):
        if event.kind == "started":
            counter.write_text("nr_free_pages 7\noom_kill 4\n")

    run_jobs([job], base.folder, base.store, synthetic.MACHINE, synthetic.options(), listener=hear)
    first, second = base.ends(job)
    assert first.warnings == (ending.SHORT_OF_MEMORY,)
    assert second.warnings == ()
