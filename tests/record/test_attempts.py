"""Attempts never overlap, and what each came to decides whether another follows."""

import os
import time

import pytest
import synthetic

from paribus.errors import RecordError
from paribus.record import lease
from paribus.record.attempt import (
    Attempt,
    End,
    fenced,
    open_attempt,
    publish_failure,
    read_end,
    reconcile,
    spent,
    write_end,
)  # fmt: skip
from paribus.record.result import Crashed, Finished, Killed, TrialResult, Unsupported
from paribus.record.rules import Rules
from paribus.record.store import Store

JOB = synthetic.jobs(1)[0]
RULES = Rules(machine_class="here", provenance="p", retries={"killed": 2, "crashed": 0})
CRASH = Crashed(error="RuntimeError: no", where="a.py:1 in b", log_tail="")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "résults of a study")


def opened(store, rules=RULES, watch=None) -> Attempt:
    attempt = open_attempt(store, JOB, rules, watch or lease.Watch())
    assert isinstance(attempt, Attempt), attempt
    return attempt


def failed(store, outcome, rules=RULES) -> Attempt:
    attempt = opened(store, rules)
    attempt.end(outcome)
    attempt.release()
    return attempt


def finished(store, attempt=1, machine_class="here", outcome=None) -> TrialResult:
    result = TrialResult(
        trial_id=JOB.trial_id, attempt=attempt, machine_class=machine_class, provenance="p",
        result=outcome or Finished(),
    )  # fmt: skip
    assert store.publish_result(result)
    return result


def score(store):
    performed = synthetic._finished(JOB)
    for one in performed.scores:
        assert store.publish_score(one, performed.items[one.score_id])


def test_an_attempt_stands_with_its_lease_and_its_job(store):
    attempt = opened(store)
    assert attempt.folder.name == "0001"
    held = lease.read(attempt.folder)
    assert (held.trial_id, held.attempt, held.machine_class) == (JOB.trial_id, 1, "here")
    assert held.supervisor_pid == os.getpid()
    assert (store.folder(JOB.trial_id) / "trial.json").exists()
    attempt.release()


def test_no_second_attempt_while_the_first_is_held(store):
    attempt = opened(store)
    assert open_attempt(store, JOB, RULES, lease.Watch()) == "busy"
    attempt.release()
    assert opened(store).number == 2


def test_a_share_in_the_lock_keeps_it_held(store):
    attempt = opened(store)
    share = os.dup(attempt.lock)  # as a worker has one
    attempt.release()
    assert open_attempt(store, JOB, RULES, lease.Watch()) == "busy"
    os.close(share)
    assert opened(store).number == 2


def test_an_attempt_without_an_end_is_lost_and_spends_no_retry(store):
    for number in range(1, 6):
        attempt = opened(store)
        assert attempt.number == number
        attempt.release()
    ends = [read_end(attempt.folder.with_name(f"{n:04d}")) for n in range(1, 5)]
    assert [end.outcome for end in ends if end] == [Killed(cause="lost")] * 4
    assert spent(store, JOB.trial_id, RULES) is None


def test_an_end_is_written_down_before_the_next_attempt_begins(store):
    opened(store).release()
    second = opened(store)
    first_end = read_end(second.folder.with_name("0001"))
    assert first_end is not None
    assert first_end.ended <= lease.read(second.folder).started


def test_a_later_attempt_fences_an_earlier_one(store):
    first = opened(store)
    first.release()
    assert not fenced(first.folder)
    second = opened(store)
    assert fenced(first.folder)
    assert not fenced(second.folder)


@pytest.mark.parametrize(
    ("outcomes", "further"),
    [
        ([Killed(signal=9)] * 2, True),
        ([Killed(signal=9)] * 3, False),
        ([Killed(cause="lost")] * 5, True),
        ([Killed(cause="preempted")] * 5, True),
        ([CRASH], False),
        ([Killed(signal=9), CRASH], False),
    ],
)
def test_what_is_retried(store, outcomes, further):
    for outcome in outcomes[:-1]:
        failed(store, outcome)
    attempt = opened(store)
    attempt.end(outcomes[-1])
    attempt.release()
    assert (spent(store, JOB.trial_id, RULES) is None) == further


def test_a_failure_whose_supervisor_died_is_published_by_the_next(store):
    failed(store, CRASH)
    assert open_attempt(store, JOB, RULES, lease.Watch()) == "settled"
    result = store.result(JOB.trial_id)
    assert (result.result, result.attempt) == (CRASH, 1)
    assert open_attempt(store, JOB, RULES, lease.Watch()) == "settled"


def test_retrying_moves_the_result_and_forgets_old_failures(store):
    failed(store, CRASH)
    assert open_attempt(store, JOB, RULES, lease.Watch()) == "settled"
    rules = Rules(machine_class="here", provenance="p", again={JOB.trial_id: 1})
    attempt = opened(store, rules)
    assert store.result(JOB.trial_id) is None
    assert store.superseded_attempt(JOB.trial_id) == 1
    finished(store, attempt=attempt.number)
    score(store)
    attempt.release()
    assert open_attempt(store, JOB, rules, lease.Watch()) == "settled"  # the new result is not run again


def test_a_result_of_another_machine_makes_room(store):
    other = Unsupported(technique="fp8", reason="no", way_out="emulate")
    finished(store, attempt=None, machine_class="elsewhere", outcome=other)
    attempt = opened(store)
    assert store.result(JOB.trial_id) is None
    mine = finished(store, attempt=attempt.number)
    assert not store.outrank(mine)
    attempt.release()


def test_a_result_outranks_one_that_came_meanwhile_from_another_machine(store):
    attempt = opened(store)
    other = Unsupported(technique="fp8", reason="no", way_out="emulate")
    finished(store, attempt=None, machine_class="elsewhere", outcome=other)
    mine = TrialResult(
        trial_id=JOB.trial_id, attempt=1, machine_class="here", provenance="p", result=Finished()
    )
    assert not store.publish_result(mine)
    assert store.outrank(mine)
    assert store.result(JOB.trial_id) == mine
    attempt.release()


def test_a_published_attempt_that_died_before_saying_so_counts_as_published(store):
    attempt = opened(store)
    score(store)
    finished(store)
    attempt.release()
    reconcile(store, JOB.trial_id, lease.Watch())
    end = read_end(attempt.folder)
    assert end is not None
    assert end.published
    assert end.outcome == Finished()


def test_scores_of_an_attempt_that_died_before_its_result_are_removed(store):
    attempt = opened(store)
    score(store)
    attempt.release()
    opened(store).release()
    assert list(store.folder(JOB.trial_id).glob("scores/*")) == []
    assert list(store.folder(JOB.trial_id).glob("items/*")) == []


def test_an_end_is_written_once(store):
    attempt = opened(store)
    attempt.end(CRASH)
    end = End(attempt=1, outcome=Finished(), published=True, ended=lease.now())
    assert not write_end(attempt.folder, end)
    assert read_end(attempt.folder).outcome == CRASH
    attempt.release()
    assert publish_failure(store, JOB, read_end(attempt.folder), RULES)
    assert not publish_failure(store, JOB, read_end(attempt.folder), RULES)


def test_another_hosts_attempt_is_dead_only_after_its_counter_stood_still(store):
    abroad = lease.Watch()
    abroad.host = "another kernel"
    attempt = opened(store, watch=abroad)
    attempt.release()  # a lock that does not reach here
    beat = attempt.folder / "heartbeat"
    watch = lease.Watch(still_seconds=0.2)
    beat.write_text("1")
    assert watch.running(attempt.folder)
    time.sleep(0.25)
    beat.write_text("2")
    assert watch.running(attempt.folder), "the counter moved"
    time.sleep(0.1)
    assert watch.running(attempt.folder), "not long enough"
    time.sleep(0.15)
    assert not watch.running(attempt.folder)


def test_another_hosts_attempt_with_an_end_is_over(store):
    abroad = lease.Watch()
    abroad.host = "another kernel"
    attempt = opened(store, watch=abroad)
    attempt.end(Killed(signal=9))
    attempt.release()
    assert not lease.Watch().running(attempt.folder)


def test_a_full_disk_at_the_lease_leaves_no_attempt(store, monkeypatch):
    monkeypatch.setenv("PARIBUS_FAULT", "ENOSPC:*:before_rename:*")
    with pytest.raises(RecordError):
        open_attempt(store, JOB, RULES, lease.Watch())
    assert list((store.folder(JOB.trial_id) / "attempts").iterdir()) == []
    monkeypatch.delenv("PARIBUS_FAULT")
    assert opened(store).number == 1


def test_what_a_killed_builder_left_is_removed(store):
    left = store.folder(JOB.trial_id) / "attempts" / ".new-1-abc"
    left.mkdir(parents=True)
    (left / "lease.json").write_text("{")
    opened(store).release()
    assert not left.exists()
