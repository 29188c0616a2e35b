"""A study whose results are made from formulas, so that every number in a table can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any

from paribus.plan.content import DataContent, ModelContent
from paribus.plan.design import Plan, expand
from paribus.plan.study import Study
from paribus.plan.trial import Heldout, Job
from paribus.record.result import (
    Cost,
    Crashed,
    Finished,
    HeldoutScore,
    Outcome,
    Reading,
    TrialResult,
    Unsupported,
)
from paribus.record.store import Store
from paribus.techniques import ModelFacts

GROUPS = ("same_wording", "new_wording")
STUDY = """\
paribus: 1
name: {name}
question: {question}
model: {{source: embedded}}
data: {{source: embedded, train_examples: 128, validation_examples: 64, test_examples: 64}}
training: {{effective_batch_size: 16, epochs: 8, learning_rate: 2e-3, max_length: 128}}
design: {design}
vary: {vary}
repeat: {{seeds: {seeds}}}
score: {{heldout: {{every: epoch, groups: [same_wording, new_wording], train_sample: 64}}}}
compare: {{metric: test.same_wording.loss, at: best_validation, margin: 0.02{compare}}}
"""
USUAL = {
    "name": "quickstart",
    "question": "Which technique helps a tiny model?",
    "design": "one_factor_at_a_time",
    "seeds": "[0, 1, 2]",
    "compare": "",
}
QUICKSTART = """
  gradient_accumulation_steps: [1, 4]
  neftune_noise_alpha: [0, 5, 10]
  precision:
    - fp32
    - {kind: bf16, compute: emulated}
    - {kind: fp16, compute: emulated}
    - {kind: fp8, recipe: standard, compute: emulated}
  tuning:
    - full
    - lora
    - {kind: lora, r: 4, lora_alpha: 8, target_modules: all-linear}
    - bitfit"""
FACTS = ModelFacts(
    architecture="LlamaForCausalLM", model_type="llama", parameters=800_000, bias_parameters=0,
    hidden_size=128, layers=4, vocabulary=1_000, context_length=512,
)  # fmt: skip


class FixedContents:
    """Contents that never change, so that ids in snapshots do not either."""

    def model(self, block: Any) -> ModelContent:
        return ModelContent("m" * 64, FACTS)

    def data(self, block: Any) -> DataContent:
        return DataContent("d" * 64, {split: dict.fromkeys(GROUPS, ()) for split in ("validation", "test")})

    def template(self, model: Any, data: Any) -> str:
        return "t" * 64

    def heldout(self, data: Any) -> Heldout:
        return Heldout(groups=GROUPS, validation_sha256="v" * 64, test_sha256="e" * 64)


@dataclass(frozen=True)
class Effect:
    """What a level does to the formula: a shift of held-out loss, a slower fall, less overfitting."""

    shift: float = 0.0
    speed: float = 1.0
    over: float = 1.0


def plan_of(folder: Path, vary: str = QUICKSTART, **given: str) -> Plan:
    """Write a study file and plan it, with contents that never change."""
    folder.mkdir(parents=True, exist_ok=True)
    text = STUDY.format(vary=vary, **(USUAL | given))
    (folder / "study.yaml").write_text(text, encoding="utf-8")
    return expand(Study.read(folder), FixedContents())


def effect_of(job: Job) -> Effect:
    """Give every technique an effect: noise helps a little, LoRA overfits less, fp8 costs a little."""
    trial, found = job.trial, Effect()
    alpha, kind, tuning = trial.neftune_noise_alpha.alpha, trial.precision.kind, trial.tuning.kind
    if alpha:
        found = replace(found, shift=found.shift - 0.006 * alpha, over=found.over - 0.03 * alpha)
    found = replace(found, shift=found.shift + {"fp8": 0.031, "fp16": 0.001, "bf16": 0.004}.get(kind, 0.0))
    return replace(found, shift=found.shift - 0.12, speed=0.7, over=0.4) if tuning == "lora" else found


def wobble(job: Job, place: int) -> float:
    """Return a small number that depends on the trial and the place alone."""
    return (int(job.trial_id[:6], 16) * (place + 3) % 1009 / 1009 - 0.5) * 0.012


def curve(job: Job, effect: Effect) -> Iterator[Reading]:
    """Train loss falls, validation and test are U-shaped, new wordings stand above same wordings."""
    seed = job.trial.seed * 0.02
    for epoch in range(9):
        fall = exp(-epoch * effect.speed / 2.2)
        train = 0.5 + 4.6 * fall + 0.4 * seed
        yield _reading(epoch, "train_sample", "all", train + wobble(job, epoch) / 4)
        for offset, split in enumerate(("validation", "test")):
            for group, higher in (("same_wording", 0.0), ("new_wording", 0.17)):
                over = 0.11 * effect.over * max(0.0, epoch - 3)
                loss = 1.2 + 3.9 * exp(-epoch * effect.speed / 1.1) + over + effect.shift * (epoch > 0)
                loss += higher + seed + 0.01 * offset + wobble(job, 10 * (offset + 1) + epoch)
                yield _reading(epoch, split, group, loss)


def _reading(epoch: int, split: Any, group: str, loss: float) -> Reading:
    return Reading(
        step=8 * epoch, epoch=float(epoch), split=split, group=group, loss=round(loss, 6),
        accuracy=round(max(0.0, 0.9 - loss / 8), 6), targets=400, examples=64,
    )  # fmt: skip


def items_of(job: Job, readings: Iterable[Reading]) -> list[dict[str, Any]]:
    """Give every reading ten examples of unlike lengths whose sums are its loss and accuracy.

    An example is harder or easier than the mean by an amount of its own, and a little more by trial.
    """
    rows = []
    for reading in readings:
        targets = [31 + 2 * number for number in range(10)]  # 400 in all
        own = [(number - 4.5) * 0.05 + wobble(job, number) for number in range(10)]
        level = sum(shift * count for shift, count in zip(own, targets, strict=True)) / 400
        for number, (shift, count) in enumerate(zip(own, targets, strict=True)):
            rows.append(
                {
                    "step": reading.step, "split": reading.split, "group": reading.group,
                    "example_id": f"example {number}", "targets": count, "correct": count // 2,
                    "loss_sum": count * (reading.loss + shift - level),
                }
            )  # fmt: skip
    return rows


def record(
    store: Store,
    job: Job,
    outcome: Outcome | None = None,
    readings: Callable[[Job], Any] | None = None,
    items: Callable[[Job, Iterable[Reading]], list[dict[str, Any]]] | None = None,
) -> None:
    """Publish one trial's outcome and, where it finished, its curve and, if asked for, its items."""
    outcome = outcome or Finished()
    store.write_job(job)
    finished = outcome.outcome == "finished"
    if finished:
        found = tuple(readings(job) if readings else curve(job, effect_of(job)))
        score, name = job.scores[0], job.trial.score_id(job.scores[0])
        kept = HeldoutScore(score_id=name, trial_id=job.trial_id, setting=score.canonical(), curve=found)
        store.publish_score(kept, items(job, found) if items else None)
    alpha = job.trial.neftune_noise_alpha.alpha
    proof = {"neftune_noise_alpha": {"alpha": alpha, "noise_rms": 0.01 * alpha, "ratio": 0.021 * alpha}}
    cost = Cost(
        train_seconds=4.2, step_seconds_median=0.05, tokens_per_second=9_000.0,
        trainable_parameters=800_000, total_parameters=800_000,
    )  # fmt: skip
    store.publish_result(
        TrialResult(
            trial_id=job.trial_id, attempt=1, machine_class="cpu/Test CPU/8GiB/none", provenance="p" * 16,
            result=outcome, cost=cost if finished else None, proof=proof if finished and alpha else {},
        )
    )  # fmt: skip


def usual_outcome(job: Job) -> Outcome:
    """BitFit cannot run on a model without biases, and one LoRA trial crashed."""
    if job.trial.tuning.kind == "bitfit":
        return Unsupported(
            technique="bitfit", reason="the model has no bias parameters", way_out="Use a model with biases"
        )
    if job.trial.tuning.label.startswith("lora r=4") and job.trial.seed == 2:
        return Crashed(error="ValueError: no such layer", where="tuning/lora.py:40", log_tail="...")
    return Finished()


def quickstart_in(folder: Path) -> tuple[Plan, Store]:
    """Make the quickstart's cells with an outcome each: 26 finished, three unsupported, one crashed."""
    plan, store = plan_of(folder / "study"), Store(folder / "results")
    for job in plan.jobs:
        record(store, job, usual_outcome(job))
    return plan, store
