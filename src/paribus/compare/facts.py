"""What one side of a comparison really had, by kind: what must be equal for a difference to be fair."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from paribus.compare.readings import At, Curve, Metric

if TYPE_CHECKING:
    from paribus.record.result import HeldoutScore
    from paribus.record.store import Recorded

Facts = Mapping[str, Any]
"""A kind's facts by the name of each part, a nameless one alone; None where it was not recorded."""
COMPUTING: Final = (
    "paribus", "torch", "transformers", "tokenizers", "accelerate", "peft", "datasets", "safetensors",
    "numpy", "bitsandbytes", "gguf",
)  # fmt: skip
"""Libraries that a loss can depend on; those that only read and write tables are none of them."""
OTHERWISE_NAMED: Final = ("effective_batch_size", "epochs", "max_steps", "max_length", "padding_free")
"""Training settings whose effect is in tokens, steps, batch or kernel and is compared there."""


@dataclass(frozen=True)
class Seen:
    """A trial as one side of a pair: what is recorded of it, and what of that is compared.

    `group` is the validation group that chooses the best point, `made_by` the provenance record.
    """

    recorded: Recorded
    score: HeldoutScore | None
    curve: Curve
    made_by: Mapping[str, Any]
    metric: Metric
    at: At
    group: str


def _differ(ours: Any, theirs: Any) -> bool:
    return ours != theirs


def _either(ours: int, theirs: int) -> bool:
    return bool(ours or theirs)


@dataclass(frozen=True)
class Kind:
    """One thing that arms must share; `unfair` says of two recorded values whether they do not."""

    name: str
    title: str
    read: Callable[[Seen], Facts]
    unfair: Callable[[Any, Any], bool] = _differ


def _tokens(seen: Seen) -> Facts:
    counts = seen.recorded.result.counts
    return {
        "tokens": counts and counts.tokens,
        "target tokens": counts and counts.target_tokens,
    }


def _steps(seen: Seen) -> Facts:
    counts = seen.recorded.result.counts
    return {"": counts and counts.optimizer_steps}


def _batch(seen: Seen) -> Facts:
    """Take what the trainer used; results from before that was recorded used what was set."""
    used = seen.recorded.result.resolved.get("effective_batch_size")
    return {"": used or seen.recorded.job.trial.training.effective_batch_size}


def _schedule(seen: Seen) -> Facts:
    settings = seen.recorded.job.trial.training.canonical()
    shared = {k: v for k, v in settings.items() if k not in OTHERWISE_NAMED}
    named = {k.replace("lr_scheduler_type", "schedule").replace("_", " "): v for k, v in shared.items()}
    return named | {"optimizer used": seen.recorded.result.resolved.get("optimizer")}


def _evaluation_set(seen: Seen) -> Facts:
    """Read which examples were scored and of how many targets, and on which validation a point was chosen."""
    split = seen.metric.split
    series = seen.curve.series(split, None if split == "train_sample" else seen.metric.group)
    reading = series[0] if series else None
    facts = {"examples": reading and reading.examples, "targets": reading and reading.targets}
    if split != "train_sample":
        facts[f"{split} content"] = _content(seen, split)
    if seen.at == "best_validation":
        facts["validation content"] = _content(seen, "validation")
    return facts


def _content(seen: Seen, split: str) -> Any:
    whole = seen.score.setting.get(f"{split}_sha256") if seen.score else None
    return whole[:12] if whole else None


def _evaluation_precision(seen: Seen) -> Facts:
    """Read how scores were computed; those of a model as it was trained were rounded as its arm is."""
    if seen.metric.quantity.endswith("_as_trained"):
        return {"": f"as trained in {seen.recorded.job.trial.precision.label}"}
    return {"": seen.recorded.result.resolved.get("scoring")}


def _checkpoint(seen: Seen) -> Facts:
    """Read how the point was found: at the end of training, or as the best of so many scored ones."""
    scored = [step for step in seen.curve.epochs() if step > 0]
    if seen.at in ("base", "last"):
        counts = seen.recorded.result.counts
        if counts is None:
            return {"": None}
        ended = max(scored, default=0) == counts.optimizer_steps
        return {"": "end of training" if ended else f"step {max(scored)} of {counts.optimizer_steps}"}
    chosen_from = [r for r in seen.curve.series("validation", seen.group) if r.step > 0]
    return {
        "scored every": seen.score.setting.get("every") if seen.score else None,
        "points": len(chosen_from if seen.at == "best_validation" else scored),
    }


def _template(seen: Seen) -> Facts:
    return {"": seen.recorded.job.trial.content.template_sha256[:12]}


def _dtype(seen: Seen) -> Facts:
    used = seen.recorded.result.resolved
    return {"weights": used.get("parameter_dtype"), "mixed precision": used.get("mixed_precision")}


def _attention(seen: Seen) -> Facts:
    return {"": seen.recorded.result.resolved.get("attention")}


def _attention_kernel(seen: Seen) -> Facts:
    return {"": seen.recorded.result.resolved.get("attention_kernel")}


def _libraries(seen: Seen) -> Facts:
    """Read the versions; a library that only one side has installed did nothing in the other."""
    found = seen.made_by.get("libraries", {})
    versions = {name: found[name] for name in COMPUTING if name in found}
    return versions | {"Python": seen.made_by.get("python")}


def _machine(seen: Seen) -> Facts:
    return {"": machine_class(seen.recorded)}


def machine_class(recorded: Recorded) -> str:
    """Name the machine a trial ran on; a limit on its memory makes no other machine of it."""
    return re.sub(r" limited to [^/]*", "", recorded.result.machine_class)


def _overlap(seen: Seen) -> Facts:
    if seen.metric.split != "test":
        return {}
    counted = seen.score.shared_prompts if seen.score else None
    return {"": None if counted is None else counted.get(seen.metric.group)}


KINDS: Final = (
    Kind("tokens", "Tokens seen in training", _tokens),
    Kind("optimizer_steps", "Optimizer steps", _steps),
    Kind("effective_batch", "Effective batch", _batch),
    Kind("schedule", "Learning rate, schedule, optimizer", _schedule),
    Kind("evaluation_set", "Evaluation set", _evaluation_set),
    Kind("evaluation_precision", "Evaluation precision", _evaluation_precision),
    Kind("checkpoint_rule", "Checkpoint rule", _checkpoint),
    Kind("template", "Template of the text", _template),
    Kind("dtype", "Dtype", _dtype),
    Kind("attention", "Attention", _attention),
    Kind("attention_kernel", "Attention kernel that ran", _attention_kernel),
    Kind("libraries", "Library versions", _libraries),
    Kind("machine", "Machine class", _machine),
    Kind("overlap", "Test prompts trained on", _overlap, _either),
)
