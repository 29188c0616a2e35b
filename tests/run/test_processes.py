"""Supervisors as processes: they share trials, stop within two seconds and leave a record that goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import synthetic

from paribus.record import lease
from paribus.record.attempt import read_end
from paribus.record.result import Killed
from paribus.record.store import Store
from paribus.run.supervisor import run_jobs

SUPERVISE = """
import sys
from pathlib import Path
import synthetic
from paribus.record.result import Killed
from paribus.record.store import Store
from paribus.run.supervisor import run_jobs
base, *preload = sys.argv[1:]
store, options = Store(Path(base) / "results"), synthetic.options(preload=tuple(preload))
sys.exit(run_jobs(synthetic.jobs(3), Path(base), store, synthetic.MACHINE, options).exit_code)
"""


def supervisor(base, *preload):
    folders = [str(base), str(Path(synthetic.__file__).parent), *sys.path]
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISE, str(base), *(preload or synthetic.PRELOAD)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        start_new_session=True, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def family(process):
    return psutil.Process(process.pid).children(recursive=True)


def await_end(processes):
    deadline = time.monotonic() + 10
    while any(map(works, processes)):
        assert time.monotonic() < deadline, "something is left running"
        time.sleep(0.01)


def works(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_server(process):
    deadline = time.monotonic() + 30
    while len(family(process)) < 2:  # the server and multiprocessing's tracker of resources
        assert time.monotonic() < deadline, "no server began"
        time.sleep(0.01)
    time.sleep(0.2)


def await_begin(base, count=1):
    deadline = time.monotonic() + 30
    while sum(line[0] == "begin" for line in synthetic.journal(base)) < count:
        assert time.monotonic() < deadline, "no trial began"
        time.sleep(0.01)


def server_of(process, base):
    """Return the process that forked the workers which have begun a trial."""
    workers = {line[2] for line in synthetic.journal(base)}
    servers = [one.parent() for one in family(process) if str(one.pid) in workers]
    assert servers and servers[0] is not None
    return servers[0]


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_ends_at_once_and_goes_on_later(tmp_path, sent):
    for seed in range(3):
        synthetic.behave(tmp_path, seed, seconds=60)
    process = supervisor(tmp_path)
    await_begin(tmp_path, 2)
    relatives = family(process)
    assert len(relatives) >= 3  # the server and two workers
    began = time.monotonic()
    os.killpg(process.pid, sent)  # as a terminal does: to the whole group
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130, errors
    await_end(relatives)
    assert time.monotonic() - began < 2
    assert "Traceback" not in errors
    _resumes(tmp_path)


def _resumes(base):
    store, jobs = Store(base / "results"), synthetic.jobs(3)
    for path in store.root.rglob("*.json"):
        json.loads(path.read_text())
    assert list(store.root.rglob(".tmp-*")) == []
    for job in jobs[:2]:
        end = read_end(lease.numbered(store.folder(job.trial_id) / "attempts", 1))
        assert end is not None
        assert end.outcome is not None
        assert end.outcome.model_dump()["cause"] == "preempted"
    for seed in range(3):
        synthetic.behave(base, seed)
    assert run_jobs(jobs, base, store, synthetic.MACHINE, synthetic.options()).outcomes == {"finished": 3}


def test_a_killed_server_takes_its_workers_along_and_the_run_goes_on(tmp_path):
    synthetic.behave(tmp_path, 0, "finish", seconds=3)
    process = supervisor(tmp_path)
    await_begin(tmp_path)
    server_of(process, tmp_path).kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "overlap" not in [line[0] for line in synthetic.journal(tmp_path)]
    store = Store(tmp_path / "results")
    ends = [read_end(lease.numbered(store.folder(job.trial_id) / "attempts", 1)) for job in synthetic.jobs(3)]
    assert Killed() in [end.outcome for end in ends if end]


def test_a_run_is_stopped_while_libraries_load(tmp_path):
    (tmp_path / "slow_library.py").write_text("import time; time.sleep(30)")
    process = supervisor(tmp_path, "slow_library")
    await_server(process)
    relatives = family(process)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 130, errors
    await_end(relatives)
    assert time.monotonic() - began < 2


def test_a_run_is_stopped_while_libraries_load_again(tmp_path):
    loads = f"import pathlib, time; first = pathlib.Path({str(tmp_path / 'loaded')!r})\n"
    (tmp_path / "slow_library.py").write_text(f"{loads}time.sleep(30 * first.exists()); first.touch()")
    synthetic.behave(tmp_path, 0, seconds=60)
    process = supervisor(tmp_path, *synthetic.PRELOAD, "slow_library")
    await_begin(tmp_path)
    server_of(process, tmp_path).kill()
    time.sleep(1)  # its end is noticed, and the libraries load again
    relatives = family(process)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=40)
    assert process.returncode == 130, errors
    await_end(relatives)
    assert time.monotonic() - began < 2


def test_two_supervisors_at_once_run_no_trial_twice_and_both_end(tmp_path):
    for seed in range(3):
        synthetic.behave(tmp_path, seed, seconds=0.3)
    both = [supervisor(tmp_path), supervisor(tmp_path)]
    for process in both:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    words = [line[:2] for line in synthetic.journal(tmp_path)]
    assert sorted(words) == sorted([word, str(seed)] for word in ("begin", "end") for seed in range(3))
