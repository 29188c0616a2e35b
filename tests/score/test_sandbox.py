"""Hostile programs behind each kind of walls: none passes or reaches anything, and nothing is left."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from paribus.errors import ParibusError
from paribus.score import contained, sandbox
from paribus.score.sandbox import Ended, Limits
from paribus.score.walls import BOTH

SECRET = "planted-secret"
SUBREAPER = 36
SECONDS = 0.8

HOSTILE = {
    "endless loop": ("timed_out", "while True: pass"),
    "loop that ignores to be asked": (
        "timed_out",
        """
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        while True: pass""",
    ),
    "stops itself": ("timed_out", "os.kill(os.getpid(), signal.SIGSTOP)"),
    "error whose text has no end": (
        "timed_out",
        """
        class Endless(Exception):
            def __str__(self):
                while True: pass
        raise Endless""",
    ),
    "error with a long text": ("failed", "raise ValueError('x' * 10**7)"),
    "fork bomb": (
        "timed_out",
        """
        while True:
            try: os.fork()
            except OSError: pass""",
    ),
    "threads without end": (
        "failed timed_out",
        """
        import threading
        while True: threading.Thread(target=time.sleep, args=(60,)).start()""",
    ),
    "memory bomb": ("out_of_memory", "kept = []\nwhile True: kept.append(bytearray(2**24))"),
    "memory bomb of many processes": (
        "out_of_memory",
        """
        for _ in range(12):
            if not os.fork():
                kept = b'x' * (60 * 2**20)
                time.sleep(60)
        time.sleep(60)""",
    ),
    "memory bomb outside of any process": (
        "out_of_memory",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        while True:
            part = libc.shmget(0, 2**25, 0o1600)
            place = libc.shmat(part, None, 0)
            ctypes.memset(place, 1, 2**25)
            libc.shmdt(ctypes.c_void_p(place))""",
    ),
    "endless writing to disk": (
        "failed",
        """
        for number in range(10**6):
            with open(f"{MARK}{number}", "wb") as file: file.write(bytes(2**20))""",
    ),
    "one file without end": (
        "failed",
        """
        with open(MARK, "wb") as file:
            while True: file.write(bytes(2**20))""",
    ),
    "files without end": ("killed", "for number in range(10**6): open(f'{MARK}{number}', 'x').close()"),
    "files held open without end": ("failed", "kept = [open(os.devnull) for _ in range(10**6)]"),
    "endless output": ("timed_out", "while True: print('passed' * 1000)"),
    "deletes home": (
        "failed",
        """
        import shutil
        for path in (HOME, CANARY, os.path.dirname(HOME), "/tmp", "/etc", "/dev"):
            shutil.rmtree(path, ignore_errors=True)
            os.system(f"rm -rf {path} {path}/*")""",
    ),
    "reads a file in home": (
        "failed",
        """
        for path in (SECRET_FILE, os.path.expanduser("~/.secret"), "/proc/1/root" + SECRET_FILE):
            try: escaped(open(path).read())
            except OSError: pass
        escaped(*os.listdir(os.path.expanduser("~")))
        for folder, below, files in os.walk("/"):
            below[:] = [name for name in below if name not in ("usr", "proc", "lib")]
            escaped(*[file for file in files if file == os.path.basename(SECRET_FILE)])""",
    ),
    "reads the environment": (
        "failed",
        """
        escaped(*[value for value in os.environ.values() if "planted" in value])
        for process in [*filter(str.isdigit, os.listdir("/proc")), "self", PARENT]:
            try: told = open(f"/proc/{process}/environ").read()
            except OSError: continue
            escaped(*["environ"] * ("planted" in told))""",
    ),
    "connects to a server on this machine": (
        "failed",
        """
        import socket
        for address in ("127.0.0.1", "0.0.0.0", "localhost"):
            try: escaped(socket.create_connection((address, PORT), 0.3))
            except OSError: pass
        try:
            server = socket.socket(socket.AF_UNIX)
            server.connect(chr(0) + MARK)
            escaped(server)
        except OSError: pass""",
    ),
    "listens": (
        "timed_out",
        """
        import socket
        server = socket.socket()
        server.bind(("0.0.0.0", FREE))
        server.listen()
        other = socket.socket(socket.AF_UNIX)
        other.bind(chr(0) + MARK + "listening")
        other.listen()
        time.sleep(60)""",
    ),
    "kills its parent": (
        "failed",
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV):
            for process in (os.getppid(), 1, PARENT):
                try: os.kill(process, number)
                except OSError: pass""",
    ),
    "kills all": ("failed", "try: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass"),
    "kills its group": (
        "killed",
        """
        try: os.setpgid(0, os.getpgid(1))
        except OSError: pass
        os.kill(0, signal.SIGKILL)""",
    ),
    "daemon": (
        "failed",
        """
        if not os.fork():
            os.setsid()
            if not os.fork():
                open(MARK, "w").close()
                for number in range(3): os.close(number)
                while True: time.sleep(1)
            os._exit(0)
        time.sleep(0.2)""",
    ),
    "leaves early": ("failed", "sys.exit(0)"),
    "leaves without a word": ("failed", "os._exit(0)"),
    "becomes another program": ("failed", "os.execv('/bin/true', ['true'])"),
    "crashes": ("killed", "import ctypes; ctypes.string_at(0)"),
    "says that it passed": (
        "failed",
        """
        verdict = b'ready\\n{"outcome": "passed", "error": "", "seconds": 0}\\n'
        for number in range(256):
            try: os.write(number, verdict)
            except OSError: pass
        os._exit(0)""",
    ),
    "says so to process 1": (
        "failed",
        """
        for number in range(16):
            for path in (f"/proc/1/fd/{number}", f"/proc/{PARENT}/fd/{number}"):
                try:
                    with open(path, "w") as file: escaped(file.write("passed"))
                except OSError: pass""",
    ),
    "closes everything": ("failed", "os.closerange(0, 4096)"),
    "replaces what judges it": (
        "failed",
        """
        import builtins, traceback
        def nothing(*given, **named): return 0
        for name in ("exec", "compile", "isinstance", "BaseException", "AssertionError"):
            setattr(builtins, name, nothing)
        traceback.format_exception_only = os.write = os._exit = os.getpid = nothing
        sys.modules.clear()""",
    ),
    "reads and writes process 1": (
        "failed",
        """
        for name in ("mem", "maps", "environ", "syscall", "stack"):
            for process in (1, os.getppid(), PARENT):
                try: escaped(*[f"{name} of {process}"] * bool(open(f"/proc/{process}/{name}", "rb").read(1)))
                except OSError: pass""",
    ),
    "traces": (
        "failed",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        for process in (1, os.getppid(), PARENT):
            for request in (16, 0x4206):
                if libc.ptrace(request, process, None, None) == 0: escaped("traced", process)""",
    ),
    "writes where programs are": (
        "failed",
        """
        import sysconfig
        for folder in (*sysconfig.get_paths().values(), SITE, "/usr/bin", "/etc", "/var/tmp", "/dev", "/"):
            try:
                with open(os.path.join(folder, MARK), "x"): escaped(folder)
            except OSError: pass
        for file in (TEST_FILE, os.__file__, sys.executable):
            try:
                with open(file, "a"): escaped(file)
            except OSError: pass""",
    ),
    "leaves by a link": (
        "failed",
        """
        for name, target in (("one", SECRET_FILE), ("two", HOME), ("three", "../../../../.." + HOME)):
            os.symlink(target, name)
            try: escaped(open(name).read() if name == "one" else os.listdir(name))
            except OSError: pass
            try: escaped(open(os.path.join(name, MARK), "w") if name != "one" else open(name, "w"))
            except OSError: pass""",
    ),
    "becomes root and mounts": (
        "failed",
        """
        import ctypes
        libc = ctypes.CDLL(None)
        for become in (os.setuid, os.seteuid, os.setgid):
            try: escaped(become(0) or become.__name__)
            except OSError: pass
        libc.unshare(0x10000000)
        libc.unshare(0x00020000)
        for path in (b"/", b"/usr", b"/tmp"):
            if libc.mount(None, path, None, 32 | 4096, None) == 0 and path != b"/tmp":
                if os.access(path, os.W_OK): escaped(path)
        for number in (0, 254 << 8):
            try: escaped(os.mknod("device", 0o60600, number) or "mknod")
            except OSError: pass
        try: escaped(os.chroot("/proc/1/root") or os.listdir(HOME))
        except OSError: pass""",
    ),
    "waits for input": ("failed", "input()"),
    "asks the terminal": (
        "failed",
        "try: escaped(open('/dev/tty').read())\nexcept OSError: pass",
    ),
    "shares memory by name": (
        "failed",
        """
        from multiprocessing import shared_memory
        shared_memory.SharedMemory(name=MARK, create=True, size=2**20)
        os._exit(0)""",
    ),
}
"""Each with the outcomes it may have; what it reaches, it reports by `escaped`."""


@dataclass
class Around:
    """What a program must not reach: files, servers, this process; `mark` is in all names it gives."""

    folder: Path
    mark: str
    server: socket.socket
    hidden: socket.socket
    free: int

    @property
    def prelude(self) -> str:
        site = next((path for path in sys.path if path.endswith("site-packages")), "/")
        home = self.folder / "home"
        given: dict[str, Any] = {
            "MARK": self.mark,
            "HOME": str(home),
            "CANARY": str(self.folder / "canary"),
            "SECRET_FILE": str(home / f".secret-{self.mark}"),
            "PORT": self.server.getsockname()[1],
            "FREE": self.free,
            "PARENT": os.getpid(),
            "SITE": site,
            "TEST_FILE": str(Path(__file__).resolve()),
        }
        said = "\n".join(f"{name} = {value!r}" for name, value in given.items())
        escaped = "def escaped(*what):\n    if what: print('ESCAPED', *what)\n"
        return f"import os, signal, sys, time\n{said}\n{escaped}"

    def state(self) -> tuple[Any, ...]:
        """Return what a program must leave as it is: processes, files and their content, sockets."""
        processes = {process.pid for process in psutil.Process().children(recursive=True)}
        files = {
            str(path): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            for path in (*self.folder.rglob("*"), Path(__file__))
        }
        site = [path for path in sys.path if Path(path).is_dir()]
        where = (
            tempfile.gettempdir(),
            "/tmp",
            "/var/tmp",
            "/dev/shm",
            "/",
            "/etc",
            "/usr/bin",
            Path.cwd(),
            *site,
        )
        marked = [path for folder in where for path in Path(folder).glob(f"*{self.mark}*")]
        named = self.mark + "listening" in Path("/proc/net/unix").read_text()
        with socket.socket() as client:
            listening = client.connect_ex(("127.0.0.1", self.free)) == 0
        return processes, files, marked, named, listening

    def visitors(self) -> list[Any]:
        """Return who has connected to our servers."""
        found = []
        for server in (self.server, self.hidden):
            server.setblocking(False)
            try:
                found.append(server.accept())
            except BlockingIOError:
                continue
        return found


@pytest.fixture
def around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Around]:
    mark = f"hostile-{os.getpid()}-{time.monotonic_ns()}"
    for name in ("home", "canary", "temporary"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / f".secret-{mark}").write_text(SECRET)
    (tmp_path / "canary" / "bird").write_text("alive")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("PLANTED_KEY", "planted-key")
    monkeypatch.setattr(tempfile, "tempdir", None)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as hidden:
        hidden.bind(f"\0{mark}")
        hidden.listen()
        libc = ctypes.CDLL(None)
        libc.prctl(SUBREAPER, 1, 0, 0, 0)  # what a program leaves behind would become a child of ours
        yield Around(tmp_path, mark, server, hidden, port)
        libc.prctl(SUBREAPER, 0, 0, 0, 0)


@pytest.fixture(params=BOTH)
def walls(request: pytest.FixtureRequest, record_property: Any) -> Any:
    """Name walls; where they do not hold here, the reason is recorded, and all they must do is refuse."""
    if reason := sandbox.fault(request.param):
        record_property(f"{request.param} do not hold here", reason)
    return request.param


def run(program: str, walls: Any, **limits: Any) -> Ended | None:
    """Run a program; None where the walls do not hold here and have refused it."""
    chosen = Limits(**{"seconds": 30.0} | limits)
    reason = sandbox.fault(walls)
    if reason is None:
        return sandbox.run(program, chosen, walls)
    with pytest.raises(ParibusError, match=re.escape(reason)):
        sandbox.run(program, chosen, walls)
    return None


def test_one_kind_of_walls_holds_here_or_the_way_out_is_told() -> None:
    held = [walls for walls in BOTH if sandbox.fault(walls) is None]
    if held:
        assert sandbox.probe() == held[0]
        assert sandbox.available().split()[0] == held[0]
    else:
        with pytest.raises(ParibusError, match="cannot be contained"):
            sandbox.probe()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_program_is_contained(name: str, walls: Any, around: Around) -> None:
    outcomes, program = HOSTILE[name]
    before = around.state()
    seconds = SECONDS if "timed_out" in outcomes else 30.0
    source = f"{around.prelude}{textwrap.dedent(program)}\nassert False, 'the end'\n"
    ended = run(source, walls, seconds=seconds)
    assert around.state() == before
    assert around.visitors() == []
    if ended is None:
        return
    assert ended.outcome in outcomes.split(), ended
    assert "ESCAPED" not in ended.output, ended.output
    assert SECRET not in ended.output + ended.error
    assert len(ended.output) <= Limits().output_bytes
    assert len(ended.error) <= contained.LONGEST


def test_what_is_left_would_be_seen(around: Around) -> None:
    """The planted fault of the test above: a daemon, a file and a server that no walls hold."""
    before = around.state()
    program = f"""{around.prelude}
import socket
open(os.path.join(os.environ["TMPDIR"], MARK), "x").close()
if not os.fork():
    os.setsid()
    server = socket.create_server(("127.0.0.1", FREE))
    print("listening", flush=True)
    os.close(1)
    while True: time.sleep(1)
os._exit(0)"""
    subprocess.run([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE, check=True)
    after = around.state()
    (daemon,) = after[0] - before[0]
    os.kill(daemon, signal.SIGKILL)
    os.waitpid(daemon, 0)
    assert after[1] != before[1]
    assert len(after[2]) == 1
    assert after[4]


class TestPrograms:
    """What well-meant programs give."""

    def test_a_right_program_passes(self, walls: Any) -> None:
        program = "def double(x):\n    return 2 * x\nprint('said')\nassert double(4) == 8\n"
        if ended := run(program, walls):
            assert (ended.outcome, ended.error, ended.output) == ("passed", "", "said\n")
            assert ended.seconds > 0

    @pytest.mark.parametrize(
        ("program", "error"),
        [
            ("assert 1 == 2", "AssertionError"),
            ("assert 1 == 2, 'not equal: ü'", "AssertionError: not equal: ü"),
            ("def f(:", "SyntaxError: invalid syntax"),
            ("1 / 0", "ZeroDivisionError: division by zero"),
            ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
            ("import paribus", "ModuleNotFoundError: No module named 'paribus'"),
            ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
            ("a = '\0'", "source code string cannot contain null bytes"),
            ("raise SystemExit('done')", "SystemExit: done"),
            ("import os; os._exit(3)", "it ended with exit code 3 before its tests did"),
        ],
    )
    def test_a_wrong_program_fails_with_its_last_line(self, program: str, error: str, walls: Any) -> None:
        if ended := run(program, walls):
            assert ended.outcome == "failed"
            assert error in ended.error
            assert "\n" not in ended.error

    def test_a_program_is_the_main_module_alone_in_an_empty_folder(self, walls: Any) -> None:
        program = """
import __main__, os, random, sys, tempfile, threading, subprocess, multiprocessing
assert __name__ == "__main__" and __main__.__dict__ is globals()
assert not [name for name in globals() if name in ("supervise", "order", "token", "libc")]
assert os.getcwd() == os.path.expanduser("~") == tempfile.gettempdir() == "/tmp" and os.listdir() == []
assert "" not in sys.path and os.getuid() != 0
with open("file", "w") as file: file.write("text")
assert subprocess.run(["cat", "file"], capture_output=True, text=True).stdout == "text"
thread = threading.Thread(target=os.remove, args=("file",)); thread.start(); thread.join()
assert os.listdir() == []
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=print, args=("child",))
    process.start(); process.join()
    assert process.exitcode == 0
"""
        if ended := run(program, walls):
            assert ended.outcome == "passed", ended
            assert ended.output == "child\n"

    def test_a_fork_that_reaches_the_end_is_no_pass(self, walls: Any) -> None:
        for leaves in ("os._exit(0)", "sys.exit(0)", "raise AssertionError"):
            if ended := run(
                f"import os, sys, time\nif os.fork():\n    time.sleep(0.1)\n    {leaves}\n", walls
            ):
                assert ended.outcome == "failed"

    def test_sets_have_one_order(self, walls: Any) -> None:
        program = "print({'one', 'two', 'three', 'four'}, hash('five'))"
        first, second = run(program, walls), run(program, walls)
        assert first is second is None or (first and second and first.output == second.output)

    def test_a_long_program_runs_too(self, walls: Any) -> None:
        if ended := run("x = 0\n" + "x += 1\n" * 50_000 + "assert x == 50_000", walls):
            assert ended.outcome == "passed"

    def test_limits_are_those_that_were_set(self, walls: Any) -> None:
        program = "import time\nkept = bytearray(100 * 2**20)\ntime.sleep(0.4)\n"
        for limits, outcome in (
            ({}, "passed"),
            ({"seconds": 0.2}, "timed_out"),
            ({"memory_mib": 64}, "out_of_memory"),
        ):
            if ended := run(program, walls, **limits):
                assert ended.outcome == outcome


def descendants() -> set[int]:
    return {process.pid for process in psutil.Process().children(recursive=True)}


def test_a_program_ends_with_whoever_waits_for_it(walls: Any, around: Around) -> None:
    before = descendants()
    source = f"""
from paribus.score import sandbox
sandbox.fault({walls!r})
print("trying", flush=True)
sandbox.run("while True: pass", sandbox.Limits(seconds=60), {walls!r})"""
    caller = subprocess.Popen(
        [sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert caller.stdout is not None
    assert caller.stdout.readline() == "trying\n"
    if sandbox.fault(walls) is None:
        until = time.monotonic() + 30
        while len(descendants() - before) < 4 and time.monotonic() < until:
            time.sleep(0.01)
        assert len(descendants() - before) >= 4  # the caller, the walls, process 1 and the program
    caller.kill()
    caller.communicate()
    until = time.monotonic() + 30
    while descendants() != before and time.monotonic() < until:
        for orphan in descendants() - before:
            with suppress(ChildProcessError):
                os.waitpid(orphan, os.WNOHANG)
        time.sleep(0.01)
    assert descendants() == before


def test_an_interrupted_wait_leaves_nothing(walls: Any, around: Around) -> None:
    before = around.state()
    if sandbox.fault(walls) is not None:
        return
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("while True: pass", Limits(seconds=60), walls)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert around.state() == before


@pytest.fixture
def untried() -> Iterator[None]:
    """Let walls be tried anew, and what was found of changed ones be forgotten."""
    sandbox.fault.cache_clear()
    yield
    sandbox.fault.cache_clear()


def weakened(monkeypatch: pytest.MonkeyPatch, folder: Path, old: str, new: str) -> None:
    """Plant a fault in the process inside."""
    source = Path(contained.__file__).read_text()
    assert source.count(old) == 1
    changed = folder / "contained.py"
    changed.write_text(source.replace(old, new))
    monkeypatch.setattr(contained, "__file__", str(changed))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (" | 0x40000000", "", "it reaches the network"),
        ('order["limits"].items()', "()", "its memory has no limit"),
        ("        said = token\n", "        said = b''\n", "it ended with exit code 0 before its tests did"),
        (
            "except BaseException as error:\n        said =",
            "except BaseException:\n        said = token or",
            "early",
        ),
        ('"/proc", "proc"', '"/proc", "nothing"', "mount: "),
    ],
)
def test_walls_with_a_hole_are_found_out(
    old: str, new: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untried: None
) -> None:
    if sandbox.fault("namespaces") is not None:
        assert sandbox.fault("namespaces")
        return
    sandbox.fault.cache_clear()
    weakened(monkeypatch, tmp_path, old, new)
    assert reason in str(sandbox.fault("namespaces"))
    with pytest.raises(ParibusError, match="programs cannot be contained by namespaces"):
        sandbox.run("print(1)", walls="namespaces")


def test_without_walls_nothing_runs_and_the_missing_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untried: None
) -> None:
    weakened(monkeypatch, tmp_path, 'call("unshare", NAMESPACES)', 'call("unshare", -1)')
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ParibusError) as caught:
        sandbox.probe()
    message = str(caught.value)
    assert "bubblewrap: bwrap is not installed" in message
    assert "namespaces: the sandbox did not start: unshare: Invalid argument" in message
    assert "apt install bubblewrap" in message
    with pytest.raises(ParibusError, match="cannot be contained on this machine"):
        sandbox.run("raise SystemExit")
    with pytest.raises(ParibusError, match="Did you mean 'namespaces'"):
        sandbox.fault("namespace")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('echo "bwrap: setting up uid map: Permission denied" >&2; exit 1', "setting up uid map"),
        ('while [ "$1" != "--" ]; do shift; done; shift; exec "$@"', ""),
    ],
)
def test_a_bubblewrap_that_does_not_work_is_not_trusted(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untried: None
) -> None:
    """The second one lets the program run with no walls at all."""
    (tmp_path / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = sandbox.fault("bubblewrap")
    assert found
    assert reason in found
