"""A child answers with files only, and stops with its supervisor."""

import os
import signal
import sys
import time

import psutil
import pytest
import synthetic

from paribus.record import lease
from paribus.record.attempt import open_attempt, read_end
from paribus.record.result import Crashed, Finished, Identity, Killed, TrialResult
from paribus.record.rules import Rules
from paribus.record.store import Store
from paribus.run.engine.local import Local
from paribus.worker import child

JOB = synthetic.jobs(1)[0]
RULES = Rules(synthetic.MACHINE.machine_class, "p")


@pytest.fixture
def engine():
    engine = Local(synthetic.PRELOAD, {"OMP_NUM_THREADS": "1"})
    read_end_, write_end_ = os.pipe()
    assert engine.warm_up(read_end_)
    os.close(read_end_)
    os.close(write_end_)
    return engine


@pytest.fixture
def attempt(tmp_path):
    attempt = open_attempt(Store(tmp_path / "rés ults"), JOB, RULES, lease.Watch())
    yield attempt
    attempt.release()


def order(attempt, tmp_path, body=synthetic.BODY, **environment):
    return child.Order(
        job=attempt.store.folder(JOB.trial_id) / "trial.json",
        attempt=attempt.folder,
        environment={**os.environ, "PARIBUS_ROLE": "worker", **environment},
        base=tmp_path,
        scratch=tmp_path,
        body=body,
        preload=synthetic.PRELOAD,
    )


def wait(worker):
    code = worker.exit_code()
    assert code is not None
    return code


def test_exit_code_zero_means_published(engine, attempt, tmp_path):
    assert wait(engine.start(order(attempt, tmp_path), attempt.lock)) == child.PUBLISHED
    assert attempt.store.result(JOB.trial_id).attempt == 1
    assert read_end(attempt.folder).published
    names = {path.name for path in attempt.folder.iterdir()}
    assert names == {"lease.json", "progress.jsonl", "log.txt", "outcome.json"}


def test_a_job_s_environment_reaches_the_child(engine, attempt, tmp_path):
    told = order(attempt, tmp_path, "environment_body:perform", CUDA_VISIBLE_DEVICES="3", MARK="ünicode")
    (tmp_path / "environment_body.py").write_text(
        "import os, sys, signal\n"
        "def perform(job, base, scratch, progress):\n"
        "    print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['MARK'])\n"
        "    print(signal.getsignal(signal.SIGINT), os.getsid(0) == os.getpid())\n"
        "    print('to stderr', file=sys.stderr)\n"
        "    raise ValueError(sys.prefix + '/lib')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        assert wait(engine.start(told, attempt.lock)) == child.CRASHED
    finally:
        sys.path.remove(str(tmp_path))
    log = (attempt.folder / "log.txt").read_text()
    for said in ("3 ünicode", "1 True", "to stderr", "Traceback"):
        assert said in log
    end = read_end(attempt.folder).outcome
    assert isinstance(end, Crashed)
    assert end.error == "ValueError: lib"
    assert end.where == "environment_body.py:6 in perform"
    assert str(tmp_path) not in end.log_tail


def test_a_child_ends_when_its_supervisor_does(engine, attempt, tmp_path):
    synthetic.behave(tmp_path, 0, seconds=60)
    worker = engine.start(order(attempt, tmp_path), attempt.lock)
    alive = psutil.Process(worker.process.pid)
    while not synthetic.journal(tmp_path):
        time.sleep(0.01)
    worker.process.close = None  # the supervisor is gone: its end of the pipe closes and it says nothing more
    worker.process._popen.finalizer()
    gone, _ = psutil.wait_procs([alive], timeout=5)
    assert gone == [alive]


def test_the_lease_stays_held_while_the_child_lives(engine, attempt, tmp_path):
    synthetic.behave(tmp_path, 0, seconds=60)
    share = os.dup(attempt.lock)
    worker = engine.start(order(attempt, tmp_path), share)
    while not synthetic.journal(tmp_path):
        time.sleep(0.01)
    os.close(share)
    own, attempt.lock = attempt.lock, os.open(os.devnull, os.O_RDONLY)
    os.close(own)
    assert lease.Watch().running(attempt.folder)
    os.kill(worker.process.pid, signal.SIGKILL)
    assert wait(worker) == -signal.SIGKILL
    assert not lease.Watch().running(attempt.folder)


def test_a_fenced_child_publishes_nothing(engine, attempt, tmp_path):
    (attempt.folder.parent / "0002").mkdir()
    assert wait(engine.start(order(attempt, tmp_path), attempt.lock)) == child.FENCED
    assert attempt.store.result(JOB.trial_id) is None
    assert synthetic.journal(tmp_path) == []


def test_a_child_fenced_while_it_worked_keeps_only_its_outcome(engine, attempt, tmp_path):
    synthetic.behave(tmp_path, 0, seconds=1)
    worker = engine.start(order(attempt, tmp_path), attempt.lock)
    while not synthetic.journal(tmp_path):
        time.sleep(0.01)
    (attempt.folder.parent / "0002").mkdir()
    assert wait(worker) == child.FENCED
    assert attempt.store.result(JOB.trial_id) is None
    assert list(attempt.store.folder(JOB.trial_id).glob("scores/*")) == []
    end = read_end(attempt.folder)
    assert (end.published, end.outcome.outcome) == (False, "finished")


def test_scores_of_other_weights_are_not_given_to_a_recorded_trial(engine, attempt, tmp_path):
    hashes = dict.fromkeys(Identity.model_fields, "0" * 64)
    attempt.store.publish_result(
        TrialResult(
            trial_id=JOB.trial_id,
            attempt=0,
            machine_class=synthetic.MACHINE.machine_class,
            provenance="p",
            result=Finished(),
            identity=Identity(**hashes),
        )
    )
    assert wait(engine.start(order(attempt, tmp_path), attempt.lock)) == child.CRASHED
    end = read_end(attempt.folder)
    assert "ended at weights" in end.outcome.error
    assert list(attempt.store.folder(JOB.trial_id).glob("scores/*")) == []
    assert attempt.store.result(JOB.trial_id).identity.final_weights_sha256 == "0" * 64


def test_a_module_that_was_not_preloaded_is_an_error(engine, attempt, tmp_path):
    told = order(attempt, tmp_path)
    told = child.Order(**{**vars(told), "preload": ("wave",)})
    assert wait(engine.start(told, attempt.lock)) == child.CRASHED
    assert "wave was not loaded before the worker started" in read_end(attempt.folder).outcome.error


def test_stopping_ends_a_child_that_ignores_sigterm(engine, attempt, tmp_path):
    (tmp_path / "deaf_body.py").write_text(
        "import signal, time, pathlib\n"
        "def perform(job, base, scratch, progress):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "    (base / 'deaf').write_text('')\n"
        "    time.sleep(60)\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        worker = engine.start(order(attempt, tmp_path, "deaf_body:perform"), attempt.lock)
    finally:
        sys.path.remove(str(tmp_path))
    while not (tmp_path / "deaf").exists():
        time.sleep(0.01)
    began = time.monotonic()
    engine.stop([worker])
    assert time.monotonic() - began < 1.8
    assert wait(worker) == -signal.SIGKILL
    attempt.end(Killed(cause="preempted"))
    assert read_end(attempt.folder).outcome == Killed(cause="preempted")


def test_progress_is_thinned_but_phases_and_the_last_step_are_kept(tmp_path):
    log = child.ProgressLog(tmp_path / "progress.jsonl")
    for step in range(1, 1001):
        log(synthetic.Progress("training", step, 1000, float("nan")))
    log(synthetic.Progress("scoring", 1000, 1000, 0.5))
    lines = (tmp_path / "progress.jsonl").read_text().splitlines()
    assert len(lines) < 30
    assert '"step": 1000, "steps": 1000, "loss": null' in lines[-2]
    assert '"phase": "scoring"' in lines[-1]
    assert log.phase == "scoring"
