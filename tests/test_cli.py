"""The command line: documents on stdout alone, exit codes, help for everything, no traceback for a user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer.main
from syrupy.assertion import SnapshotAssertion

from paribus import cli
from paribus.techniques import AXES

STUDY = """\
paribus: 1
name: small
question: Does LoRA train at all?
model: {source: embedded}
data: {source: embedded, train_examples: 32, validation_examples: 8, test_examples: 8}
training: {effective_batch_size: 8, epochs: 2, learning_rate: 2e-3, max_length: 64}
precision: fp32
tuning: full
design: one_factor_at_a_time
vary:
  precision: [fp32, bf16]           # native bf16 ends unsupported on a CPU
  tuning: [full, lora]
repeat: {seeds: [0]}
score: {heldout: {every: epoch, groups: [same_wording], train_sample: 4}}
compare: {metric: test.same_wording.loss, at: last, margin: 0.02}
"""
STOPPED = """\
import signal
import sys
from paribus.__main__ import main
class Stop:
    def find_spec(self, name, *_):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Stop())
main()
"""
COMMANDS = [
    "run", "score", "plan", "status", "table", "report", "verify", "data", "init", "doctor", "techniques", "formats",
    "claims", "notebooks", "import",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name has spaces and no ASCII alone, with a study in it that has been run."""
    place = tmp_path_factory.mktemp("a studý with späces")
    (place / "study").mkdir()
    (place / "study/study.yaml").write_text(STUDY, encoding="utf-8")
    ran = paribus(place, "run", "study")
    assert ran.returncode == 0, ran.stderr
    return place


def paribus(place: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a user does, with a terminal of 100 columns."""
    return subprocess.run(
        [sys.executable, "-m", "paribus.cli", *words],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "100", "PARIBUS_CACHE": str(place / "cache"), **environment},
    )


def shape(value: Any) -> Any:
    """Return the keys of a document with the kinds of their values; what is keyed by data is left unnamed."""
    if isinstance(value, dict):
        return {key: "..." if key in OPEN else shape(item) for key, item in sorted(value.items())}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


OPEN = {
    "settings",
    "coordinates",
    "proof",
    "resolved",
    "libraries",
    "outcomes",
    "baseline",
    "metrics",
    "checked",
}


@pytest.mark.parametrize("command", ["plan", "status", "table", "data"])
def test_json_is_one_document_with_the_documented_keys(
    command: str, folder: Path, snapshot: SnapshotAssertion
) -> None:
    asked = paribus(folder, command, "study", "--json")
    assert asked.returncode == 0, asked.stderr
    document = json.loads(asked.stdout)
    assert shape(document) == snapshot
    for key in document:
        assert f"`{key}`" in (Path(__file__).parent.parent / "docs/json.md").read_text(encoding="utf-8")


def test_doctor_answers_in_json(folder: Path, snapshot: SnapshotAssertion) -> None:
    document = json.loads(paribus(folder, "doctor", "--json").stdout)
    document["devices"] = []  # differs between machines
    assert shape(document) == snapshot
    levels = {level["level"]: level["runs"] for level in document["axes"]["precision"]}
    assert levels["fp32"] == "native"
    assert set(levels) == {kind.model_fields["kind"].default for kind in AXES["precision"]}


def test_formats_answer_in_json(folder: Path, snapshot: SnapshotAssertion) -> None:
    document = json.loads(paribus(folder, "formats", "-0.1", "--json").stdout)
    assert shape(document) == snapshot


def test_plan_lists_every_trial_and_table_those_with_an_outcome(folder: Path) -> None:
    planned = json.loads(paribus(folder, "plan", "study", "--json").stdout)["trials"]
    rows = json.loads(paribus(folder, "table", "study", "--json").stdout)["rows"]
    assert {row["trial"]: row["outcome"] for row in rows} == {
        trial["id"]: "unsupported" if trial["unsupported"] else "finished" for trial in planned
    }
    assert sorted(row["outcome"] for row in rows) == ["finished", "finished", "unsupported"]
    empty = json.loads(paribus(folder, "table", "study", "--results", "none", "--json").stdout)
    assert empty["rows"] == []


def test_a_second_run_starts_nothing_and_shows_the_same(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.glob("results/small/*/*.json")}
    again = paribus(folder, "run", "study")
    assert again.returncode == 0
    assert "0 started now" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in folder.glob("results/small/*/*.json")} == before
    table = paribus(folder, "table", "study").stdout
    assert table.strip().splitlines()[:6] == again.stdout.strip().splitlines()[:6]


def test_the_report_opens_offline(folder: Path) -> None:
    made = paribus(folder, "report", "study", "--to", "my report.html")
    assert made.stdout.strip() == "my report.html"
    page = (folder / "my report.html").read_text(encoding="utf-8")
    assert "Does LoRA train at all?" in page
    assert "default-src 'none'" in page
    assert 'src="http' not in page and 'href="http' not in page


def test_verify_reruns_and_finds_the_same_hashes(folder: Path) -> None:
    checked = paribus(folder, "verify", "study", "--sample", "2")
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count("same") >= 8
    assert "differs" not in checked.stdout


def test_tables_for_papers(folder: Path) -> None:
    lines = paribus(folder, "table", "study", "--csv").stdout.splitlines()
    assert lines[0].startswith("precision,tuning,finished,planned")
    assert len(lines) == 1 + 3
    assert r"\begin{table}" in paribus(folder, "table", "study", "--latex").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan", "nowhere"], "nowhere"),
        (["plan", "broken"], "study.yaml:3"),
        (["table", "study", "--json", "--csv"], "exclude each other"),
        (["run", "study", "--retry", "crush"], "crashed"),
        (["run", "study", "--only", "zzzz"], "zzzz"),
        (["run", "study", "--max-workers", "0"], "max-workers"),
        (["init", "--model", "nowhere/at-all-here", "--data", "missing.jsonl"], "nowhere/at-all-here"),
        (["report", "study", "--to", "study/study.yaml/report.html"], "study/study.yaml"),
        (["formats", "a half"], "'a half' is not a number"),
    ],
)
def test_bad_input_exits_2_with_a_message(words: list[str], said: str, folder: Path) -> None:
    broken = folder / "broken"
    broken.mkdir(exist_ok=True)
    (broken / "study.yaml").write_text(STUDY.replace("question", "qestion"), encoding="utf-8")
    asked = paribus(folder, *words, HF_HUB_OFFLINE="1")
    assert asked.returncode == 2, (asked.stdout, asked.stderr)
    assert said in asked.stderr
    assert "Traceback" not in asked.stderr
    assert asked.stdout == ""


def test_an_unwritable_results_folder_is_said(folder: Path) -> None:
    (folder / "a file").write_text("in the way")
    asked = paribus(folder, "run", "study", "--results", "a file")
    assert asked.returncode == 2
    assert "a file" in asked.stderr
    assert "Traceback" not in asked.stderr


@pytest.mark.parametrize("command", ["run", "plan", "status", "table", "report", "verify"])
def test_a_file_in_the_place_of_the_results_is_named(command: str, folder: Path) -> None:
    (folder / "in the way").write_text("a file")
    asked = paribus(folder, command, "study", "--results", "in the way")
    assert asked.returncode == 2
    assert "in the way" in asked.stderr and "--results" in asked.stderr
    assert asked.stdout == ""


def test_a_dry_run_names_what_would_start_and_writes_nothing(folder: Path) -> None:
    def starting(*words: str) -> list[str]:
        asked = paribus(folder, "run", "study", "--dry-run", *words)
        assert asked.returncode == 0, asked.stderr
        return asked.stdout.partition("would start")[2].strip(": \n").split()

    rows = json.loads(paribus(folder, "plan", "study", "--json").stdout)["trials"]
    runnable = [row["id"] for row in rows if not row["unsupported"]]
    assert starting() == []
    assert starting("--results", "none") == runnable
    assert starting("--results", "none", "--only", runnable[1]) == runnable[1:2]
    assert not (folder / "none").exists()


def test_reading_commands_name_damage_and_run_makes_it_whole(folder: Path) -> None:
    damaged = next(folder.glob("results/small/*/curves.parquet")).with_name("result.json")
    damaged.write_text("{")
    for command in ("status", "table", "report"):
        asked = paribus(folder, command, "study")
        assert asked.returncode == 0, asked.stderr
        assert f"{damaged.parent.name}/result.json: is damaged" in asked.stdout + asked.stderr
    again = paribus(folder, "run", "study")
    assert "set aside" in again.stderr and "1 started now" in again.stdout
    assert json.loads(paribus(folder, "status", "study", "--json").stdout)["problems"] == []


def test_a_report_that_cannot_be_written_says_what_to_do(folder: Path) -> None:
    (folder / "a folder").mkdir()
    asked = paribus(folder, "report", "study", "--to", "a folder")
    assert asked.returncode == 2
    assert "a folder: the report cannot be written" in asked.stderr and "--to" in asked.stderr


def test_weights_that_have_no_place_are_said_before_anything_starts(folder: Path) -> None:
    cache = folder / "other cache"
    cache.mkdir()
    (cache / "scratch").symlink_to("/proc")  # a folder in which nobody may write
    asked = paribus(folder, "run", "study", "--results", "late", PARIBUS_CACHE=str(cache))
    assert asked.returncode == 2
    assert "folder for weights" in asked.stderr and "PARIBUS_CACHE" in asked.stderr
    assert not list(folder.glob("late/small/*/attempts"))


def test_a_full_disk_behind_the_output_says_what_to_do(folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with Path("/dev/full").open("w") as full:
        asked = subprocess.run(
            [sys.executable, "-m", "paribus", "status", "study", "--json"],
            cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert asked.returncode == 2
    assert "No space left" in asked.stderr and "Make room" in asked.stderr


def test_ctrl_c_is_quiet_while_the_program_loads() -> None:
    asked = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, text=True, check=False)
    assert (asked.returncode, asked.stderr) == (130, "")


def test_a_study_that_changed_under_results_is_not_run(folder: Path) -> None:
    changed = folder / "changed"
    changed.mkdir()
    text = STUDY.replace("2e-3", "1e-3")
    (changed / "study.yaml").write_text(text, encoding="utf-8")
    asked = paribus(folder, "run", "changed")
    assert asked.returncode == 2
    assert "learning_rate" in asked.stderr and "--accept-change" in asked.stderr


def test_ctrl_c_stops_within_two_seconds_and_goes_on_later(folder: Path) -> None:
    (folder / "long").mkdir()
    text = STUDY.replace("epochs: 2", "epochs: 400").replace("name: small", "name: long")
    (folder / "long/study.yaml").write_text(text, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "paribus.cli", "run", "long"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PARIBUS_CACHE": str(folder / "cache")},
    )
    deadline = time.monotonic() + 120
    while not list(folder.glob("results/long/*/attempts/*/progress.jsonl")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
    asked = time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=30)[1].decode()
    assert process.returncode == 130
    assert time.monotonic() - asked < 2
    assert "goes on from here" in said
    assert not list(folder.glob("results/long/*/result.json")) or "unsupported" in "".join(
        path.read_text() for path in folder.glob("results/long/*/result.json")
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.app([command, "--help"])
    assert left.value.code == 0
    assert len(capsys.readouterr().out) > 200


def test_every_command_and_option_is_described() -> None:
    group: Any = typer.main.get_command(cli.app)
    assert {*COMMANDS, "embedded"} == set(group.commands)
    for command in group.commands.values():
        assert command.help
        for parameter in command.params:
            assert getattr(parameter, "help", None), (command.name, parameter.name)
