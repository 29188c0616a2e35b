"""Every planted unfairness is flagged, each by its kind, and what is fair never is."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from made_results import FACTS, FixedContents, plan_of, record
from rich.console import Console

from paribus.compare import fairness, tables
from paribus.compare.answer import short_answer
from paribus.compare.claim import Claims, judge
from paribus.compare.facts import KINDS
from paribus.compare.findings import Findings
from paribus.compare.guard import Flag, declares
from paribus.compare.report import report
from paribus.plan.content import DataContent, ModelContent
from paribus.plan.design import expand
from paribus.plan.levels import names
from paribus.plan.study import Study
from paribus.plan.trial import Heldout, Job
from paribus.record.store import Store

ROOT = Path(__file__).parents[2]
LIBRARIES = {"torch": "2.13.0", "transformers": "5.24.0", "pandas": "3.1.1"}
RESOLVED = {
    "optimizer": "adamw_torch_fused", "effective_batch_size": 16, "mixed_precision": "no",
    "parameter_dtype": "float32", "scoring": "float32 weights", "attention": "sdpa",
    "attention_kernel": "flash_attention_for_cpu",
}  # fmt: skip
COUNTS = {
    "examples": 1024, "optimizer_steps": 64, "tokens": 16_592, "target_tokens": 4_456,
    "truncated_examples": 0,
}  # fmt: skip
TWO = "{neftune_noise_alpha: [0, 5]}"
Files = dict[str, Any]
"""What a trial left: `result`, `trial`, `score`, and `made_by`, the record of its provenance."""
Edit = Callable[[Files], None]
Edits = Callable[[Job], Edit | None]


def put(value: Any, *route: str) -> Edit:
    """Return what overwrites a recorded value."""

    def edit(files: Files) -> None:
        *way, last = route
        for name in way:
            files = files[name]
        files[last] = value

    return edit


def fewer_points(files: Files) -> None:
    """Leave out every second point of the curve, which ends where it did."""
    files["score"]["curve"] = [r for r in files["score"]["curve"] if r["step"] % 16 == 0]


PLANTED: dict[str, tuple[Edit, str]] = {
    "tokens": (put(15_000, "result", "counts", "tokens"), "tokens 15,000 against 16,592"),
    "optimizer_steps": (put(63, "result", "counts", "optimizer_steps"), "63 against 64"),
    "effective_batch": (put(8, "result", "resolved", "effective_batch_size"), "8 against 16"),
    "schedule": (put("sgd", "result", "resolved", "optimizer"), "optimizer used sgd against adamw_torch"),
    "evaluation_set": (
        put("other" * 12 + "othe", "score", "setting", "test_sha256"),
        "test content otherotherot against eeeeeeeeeeee",
    ),
    "evaluation_precision": (
        put("bfloat16 weights", "result", "resolved", "scoring"),
        "bfloat16 weights against float32 weights",
    ),
    "checkpoint_rule": (fewer_points, "points 4 against 8"),
    "template": (
        put("u" * 64, "trial", "trial", "content", "template_sha256"),
        f"{'u' * 12} against {'t' * 12}",
    ),
    "dtype": (put("bf16", "result", "resolved", "mixed_precision"), "mixed precision bf16 against no"),
    "attention": (put("eager", "result", "resolved", "attention"), "eager against sdpa"),
    "attention_kernel": (
        put("not fused", "result", "resolved", "attention_kernel"),
        "not fused against flash_attention_for_cpu",
    ),
    "libraries": (
        put({**LIBRARIES, "torch": "2.12.0", "pandas": "3.0.0"}, "made_by", "libraries"),
        "torch 2.12.0 against 2.13.0",
    ),
    "machine": (put("cuda/H/9.0", "result", "machine_class"), "cuda/H/9.0 against cpu/Test CPU/8GiB/none"),
    "overlap": (put({"same_wording": 3, "new_wording": 0}, "score", "shared_prompts"), "3 against 0"),
}  # fmt: skip
"""One unfairness of each kind, as an edit of what one arm recorded, with what should be said of it."""
moved = PLANTED["machine"][0]


def made(
    folder: Path, vary: str, edits: Callable[[Job], Edit | None] | None = None, **given: str
) -> Findings:
    """Record a study in which all is fair but what is edited."""
    plan, store = plan_of(folder / "study", vary=vary, **given), Store(folder / "results")
    for job in plan.jobs:
        record(store, job)
        rewritten(store, job, edits(job) if edits else None)
    return Findings(plan, store)


def rewritten(store: Store, job: Job, edit: Edit | None) -> None:
    """Add every fact that is compared to what a trial recorded, then edit one."""
    folder, name = store.folder(job.trial_id), job.trial.score_id(job.scores[0])
    places = {
        "result": folder / "result.json", "trial": folder / "trial.json",
        "score": folder / "scores" / f"{name}.json",
    }  # fmt: skip
    files: Files = {key: json.loads(path.read_text()) for key, path in places.items()}
    files["result"] |= {"resolved": {**RESOLVED}, "counts": {**COUNTS}}
    files["score"] |= {"shared_prompts": {"same_wording": 0, "new_wording": 0}}
    files["made_by"] = {"libraries": LIBRARIES, "python": "3.11.7"}
    if edit:
        edit(files)
    files["result"]["provenance"] = store.write_provenance(files["made_by"])
    for key, path in places.items():
        path.write_text(json.dumps(files[key]))


def at_alpha(alpha: int, edit: Edit, seeds: tuple[int, ...] = (0, 1, 2)) -> Edits:
    """Edit what the trials of one level recorded, at some seeds."""

    def edits(job: Job) -> Edit | None:
        here = job.trial.neftune_noise_alpha.alpha == alpha and job.trial.seed in seeds
        return edit if here else None

    return edits


def flagged(findings: Findings) -> list[tuple[str, str]]:
    return [(flag.kind, flag.level) for flag in fairness.flags(findings)]


def test_a_study_with_an_unfairness_of_each_kind_is_flagged_as_often_each_by_its_kind(tmp_path: Path) -> None:
    levels = dict(enumerate(PLANTED, start=1))
    vary = f"{{neftune_noise_alpha: [0, {', '.join(map(str, levels))}, 50]}}"

    def edits(job: Job) -> Edit | None:
        kind = levels.get(int(job.trial.neftune_noise_alpha.alpha))
        return PLANTED[kind][0] if kind else None

    findings = made(tmp_path, vary, edits, seeds="[0, 1]")
    assert flagged(findings) == [(kind, str(alpha)) for alpha, kind in levels.items()]
    assert len(levels) == len(KINDS) == 14
    assert {c.level: [flag.kind for flag in c.flags] for c in findings.primary_contrasts} == {
        **{str(alpha): [kind] for alpha, kind in levels.items()},
        "50": [],
    }


@pytest.mark.parametrize("kind", PLANTED)
def test_each_kind_is_named_with_its_difference_wherever_a_verdict_stands(kind: str, tmp_path: Path) -> None:
    edit, said = PLANTED[kind]
    findings = made(tmp_path, "{neftune_noise_alpha: [0, 5, 10]}", at_alpha(5, edit))
    (flag,) = fairness.flags(findings)
    title = next(one.title for one in KINDS if one.name == kind)
    assert (flag.kind, flag.axis, flag.level) == (kind, "neftune_noise_alpha", "5")
    assert flag.sentence.startswith(f"{title}: {said}")
    assert all(side in flag.sentence for side in (flag.ours.split(" ")[-1], flag.theirs.split(" ")[-1]))
    verdict = judge(claims(5), findings)[0]
    assert (verdict.verdict, verdict.reason) == ("not run", f"not a fair comparison. {flag.sentence}")
    assert judge(claims(10), findings)[0].verdict == "supported"


def claims(alpha: int) -> Claims:
    check = {"kind": "difference", "axis": "neftune_noise_alpha", "level": alpha, "expected": "better"}
    row = {"id": "A01", "document": "article", "says": "noise helps", "checks": [check]}
    return Claims.model_validate({"claims": [row]})


def test_a_fair_study_is_flagged_nowhere_and_every_kind_says_what_its_sides_share(tmp_path: Path) -> None:
    findings = made(tmp_path, "{neftune_noise_alpha: [0, 5], tuning: [full, lora]}", design="grid")
    assert fairness.flags(findings) == fairness.unrecorded(findings) == []
    found = {one.kind.name: (one.word, one.text) for one in fairness.checked(findings)}
    assert list(found) == list(PLANTED)
    assert {word for word, _ in found.values()} == {"same"}
    assert found["tokens"][1] == "tokens 16,592, target tokens 4,456"
    assert found["checkpoint_rule"][1] == "scored every epoch, points 8"
    assert (found["attention"][1], found["attention_kernel"][1]) == ("sdpa", "flash_attention_for_cpu")
    assert "Yes, in all that was checked" in report(findings.plan, findings.store)


class Recorded(FixedContents):
    """What a recorded trial read, for a model that is not here."""

    def __init__(self, store: Store) -> None:
        self.job = next(iter(store.recorded().values())).job

    def model(self, block: Any) -> ModelContent:
        file = getattr(self.job.trial.model, "gguf_file", None)
        return ModelContent(self.job.trial.content.model_sha256, FACTS, gguf_file=file)

    def data(self, block: Any) -> DataContent:
        groups: dict[str, Any] = dict.fromkeys(self.job.scores[0].groups, ())
        return DataContent(self.job.trial.content.train_sha256, {"validation": groups, "test": groups})

    def template(self, model: Any, data: Any) -> str:
        return self.job.trial.content.template_sha256

    def heldout(self, data: Any) -> Heldout:
        return self.job.scores[0]


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "results/reference").iterdir()))
def test_no_recorded_study_is_flagged(name: str) -> None:
    """They differ in tokens and steps where examples are what varies, and in nothing undeclared."""
    store, study = Store(ROOT / "results/reference" / name), Study.read(ROOT / "experiments" / name)
    elsewhere = study.model.source != "embedded"
    findings = Findings(expand(study, Recorded(store) if elsewhere else None), store)
    assert len(findings.finished) > 5
    assert findings.guard.comparisons
    assert fairness.flags(findings) == []
    assert all(not found.contrast.flags for found in findings.cells if found.contrast)


# What varies declares what it changes


def test_what_varies_declares_what_it_changes_and_nothing_else() -> None:
    assert declares("training.learning_rate") == declares("training.weight_decay") == {"schedule"}
    for axis in ("training.epochs", "training.max_steps", "data.train_examples"):
        assert declares(axis) == {"tokens", "optimizer_steps", "checkpoint_rule"}
    assert "effective_batch" in declares("training.effective_batch_size")
    assert declares("precision") == {"dtype", "attention_kernel", "evaluation_precision"}
    assert declares("gradient_accumulation_steps") == {"attention_kernel"}
    silent = ("tuning", "neftune_noise_alpha", "dropout", "tuning.r", "gradient_checkpointing")
    assert all(declares(axis) == frozenset() for axis in silent)
    some = {kind.name for kind in KINDS} - {"evaluation_set", "attention", "libraries", "machine", "overlap"}
    assert all(declares(axis) <= some for axis in names())


def test_a_declared_difference_is_named_and_no_flag(tmp_path: Path) -> None:
    """What is learnt of an example changes the targets seen. It changes no test set."""
    vary, more = "{data.loss_on: [completion, all]}", put(15_000, "result", "counts", "target_tokens")
    findings = made(tmp_path / "a", vary, lambda job: more if job.trial.data.loss_on == "all" else None)
    assert fairness.flags(findings) == []
    found = next(one for one in fairness.checked(findings) if one.kind.name == "tokens")
    assert (found.word, found.text) == ("declared", "Changed by what varies, loss on:")
    assert found.items == ("loss on all: target tokens 15,000 against 4,456",)
    other = PLANTED["evaluation_set"][0]
    unfair = made(tmp_path / "b", vary, lambda job: other if job.trial.data.loss_on == "all" else None)
    assert flagged(unfair) == [("evaluation_set", "all")]


INCLUDED = "{tuning: [full, lora]}\ninclude:\n  - {tuning: {kind: lora, r: 4}, training.learning_rate: 1e-3}"


def together(folder: Path, compare: str = "") -> Findings:
    """Make a study with an arm that has a learning rate of its own."""
    return made(folder, INCLUDED, compare=compare)


def test_a_setting_that_changes_with_the_technique_alone_is_a_flag_unless_it_was_tuned(
    tmp_path: Path,
) -> None:
    """LoRA at rank 4 has a learning rate that no other arm has: its effect cannot be told apart."""
    (flag,) = fairness.flags(together(tmp_path / "a"))
    assert (flag.kind, flag.axis, flag.level) == ("schedule", None, "lora r=4, 0.001")
    assert flag.sentence == "Learning rate, schedule, optimizer: learning rate 0.001 against 0.002."
    matched = together(tmp_path / "b", ", matched_by: tuning_budget")
    assert fairness.flags(matched) == []
    found = next(one for one in fairness.checked(matched) if one.kind.name == "schedule")
    assert found.items == ("LoRA r=4, 0.001: learning rate 0.001 against 0.002",)
    assert "matched_by: tuning_budget" in fairness.sheet(matched).note


def test_in_a_grid_every_setting_can_be_told_apart(tmp_path: Path) -> None:
    vary = "{tuning: [full, lora], training.warmup_steps: [0, 5]}"
    findings = made(tmp_path, vary, design="grid")
    assert any(found.contrast and found.contrast.axis is None for found in findings.cells)
    assert fairness.flags(findings) == []


def test_tuned_arms_are_not_said_to_share_an_untuned_rate(tmp_path: Path) -> None:
    vary = "{tuning: [full, lora]}"
    assert made(tmp_path / "a", vary).guard.one_rate() == 2e-3
    assert made(tmp_path / "b", vary, compare=", matched_by: tuning_budget").guard.one_rate() is None
    assert made(tmp_path / "c", TWO).guard.one_rate() is None


# What is compared: pairs, and what is recorded


def test_sides_are_compared_pair_by_pair(tmp_path: Path) -> None:
    """Another machine for both arms of a seed is fair, for one of them it is not."""
    both = made(tmp_path / "a", TWO, lambda job: moved if job.trial.seed == 1 else None)
    assert fairness.flags(both) == []
    one = made(tmp_path / "b", TWO, at_alpha(5, moved, seeds=(1,)))
    assert fairness.flags(one)[0].sentence.endswith(", in 1 of 3 pairs.")


def test_a_limit_on_memory_is_no_other_machine_and_a_plotting_library_computes_nothing(
    tmp_path: Path,
) -> None:
    limited = put("cpu/Test CPU/8GiB limited to 2GiB/none", "result", "machine_class")
    other_tables = put({**LIBRARIES, "pandas": "3.0.0"}, "made_by", "libraries")
    for name, edit in (("a", limited), ("b", other_tables)):
        assert fairness.flags(made(tmp_path / name, TWO, at_alpha(5, edit))) == []


def test_what_is_not_recorded_is_said_and_never_flagged(tmp_path: Path) -> None:
    def old(files: Files) -> None:
        del files["result"]["resolved"]["attention_kernel"], files["score"]["shared_prompts"]

    findings = made(tmp_path, TWO, at_alpha(5, old))
    assert fairness.flags(findings) == []
    assert fairness.unrecorded(findings) == ["Attention kernel that ran", "Test prompts trained on"]
    html = report(findings.plan, findings.store)
    assert "Not recorded, and so not compared: Attention kernel that ran; Test prompts trained on." in html
    kinds = [one.kind.name for one in fairness.checked(findings)]
    assert kinds == [kind for kind in PLANTED if kind not in ("attention_kernel", "overlap")]


def test_prompts_that_both_arms_were_trained_on_are_a_flag_for_both(tmp_path: Path) -> None:
    shared = PLANTED["overlap"][0]
    assert flagged(made(tmp_path / "a", TWO, lambda job: shared)) == [("overlap", "5")]
    elsewhere = put({"same_wording": 0, "new_wording": 3}, "score", "shared_prompts")
    assert flagged(made(tmp_path / "b", TWO, lambda job: elsewhere)) == []


@pytest.mark.parametrize(
    ("at", "edit", "said"),
    [
        ("last", put(72, "result", "counts", "optimizer_steps"), "step 64 of 72 against end of training"),
        ("last", put("w" * 64, "score", "setting", "validation_sha256"), ""),
        ("best_validation", put("w" * 64, "score", "setting", "validation_sha256"), f"{'w' * 12} against"),
        ("equal_train_loss", put(2, "score", "setting", "every"), "scored every 2 against epoch"),
    ],
)
def test_only_what_a_reading_depends_on_is_compared_for_it(
    tmp_path: Path, at: str, edit: Edit, said: str
) -> None:
    """Validation chooses nothing at the end of training; what is read before the end is not the end."""
    plan, store = plan_of(tmp_path / "study", vary=TWO), Store(tmp_path / "results")
    for job in plan.jobs:
        record(store, job)
        rewritten(store, job, at_alpha(5, edit)(job))
    (contrast,) = Findings(plan, store).contrasts(at)  # type: ignore[arg-type]
    kinds = ("checkpoint_rule", "evaluation_set")
    assert bool(said) == any(flag.kind in kinds for flag in contrast.flags)
    assert said in contrast.unfair


def test_a_control_that_is_not_fairly_compared_shows_nothing(tmp_path: Path) -> None:
    compare = ", controls: [{neftune_noise_alpha: 40}]"
    harm = partial(harmed, by=1.0)
    for name, edit, blind in (("a", harm, False), ("b", lambda f: (harm(f), moved(f)), True)):
        findings = made(tmp_path / name, TWO, at_alpha(40, edit), compare=compare)
        assert ("no declared control" in (findings.blind_to_loss() or "")) == blind


def harmed(files: Files, by: float) -> None:
    for reading in files["score"]["curve"]:
        reading["loss"] += by if reading["step"] else 0


# Where it is said


@pytest.fixture(scope="module")
def unfair(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    edit = put(8, "result", "resolved", "effective_batch_size")
    return made(tmp_path_factory.mktemp("unfair"), "{neftune_noise_alpha: [0, 5, 10]}", at_alpha(5, edit))


def test_the_report_marks_it_in_every_table_and_lists_what_was_checked(unfair: Findings) -> None:
    html = unescape(report(unfair.plan, unfair.store))
    (row,) = re.finditer(
        r'<tr class="unfair"><td colspan="\d+">† Effective batch: 8 against 16.</td></tr>', html
    )
    assert html.index("5 †</td>") < row.start()
    assert "better †</span>" in html
    assert "Not always: in 1 of 2 comparisons" in html
    assert html.index('id="effects"') < html.index('id="fair"') < html.index('id="overfitting"')
    section = html[html.index('id="fair"') : html.index('id="overfitting"')]
    assert all(kind.title in section for kind in KINDS)


def test_the_short_answer_counts_it_for_nothing(unfair: Findings) -> None:
    points = {point.head: point for point in short_answer(unfair)}
    assert points["In one sentence"].text.startswith("Of 2 levels on 1 axis, 1 improved and none worsened")
    assert points["In one sentence"].text.endswith("; 1 level not fairly compared.")
    assert points["Not a fair comparison"].items[0].endswith(" Effective batch: 8 against 16.")
    assert [item.startswith("NEFTune α 10") for item in points["Helped"].items] == [True]


def test_the_terminal_csv_latex_and_json_have_it_too(unfair: Findings) -> None:
    plan, store = unfair.plan, unfair.store
    console = Console(width=120, file=io.StringIO())
    tables.terminal(plan, store, console)
    assert isinstance(console.file, io.StringIO)
    shown = console.file.getvalue()
    assert "better †" in shown
    assert "† NEFTune α 5. Effective batch: 8 against 16." in shown
    rows = csv.DictReader(io.StringIO(tables.csv(plan, store)))
    assert [row["flags"] for row in rows] == ["", "effective_batch", ""]
    assert "better †" in tables.latex(plan, store)
    document = tables.rows(plan, store)["fairness"]
    flag = Flag("effective_batch", "neftune_noise_alpha", "5", "8", "16", "Effective batch: 8 against 16.")
    assert document["flags"] == [vars(flag)]
    assert document["checked"]["effective_batch"] == {
        "verdict": "differ", "finding": "In 1 of 2 comparisons:", "details": ["NEFTune α 5: 8 against 16"],
    }  # fmt: skip
    assert (document["checked"]["tokens"]["verdict"], document["not_recorded"]) == ("same", [])
    assert json.loads(json.dumps(document)) == document


def test_of_many_comparisons_the_first_are_named(tmp_path: Path) -> None:
    vary = "{neftune_noise_alpha: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}"

    def edits(job: Job) -> Edit | None:
        return moved if job.trial.neftune_noise_alpha.alpha else None

    findings = made(tmp_path, vary, edits, seeds="[0]")
    found = next(one for one in fairness.checked(findings) if one.kind.name == "machine")
    assert (found.text, len(found.items), found.items[-1]) == ("In 9 of 9 comparisons:", 7, "and 3 more")
