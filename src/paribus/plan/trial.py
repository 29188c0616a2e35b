"""One run, fully decided, and its identities.

A trial has two identities. `trial_id` is the hash of everything that shapes the weights; `score_id` is the
hash of a trial's id with one way of scoring it. Paths, names, machines and library versions are in neither.
"""

from __future__ import annotations

import hashlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from paribus.plan.scoring import TaskScoring, TaskSetting
from paribus.sources.blocks import DataBlock, ModelBlock, Task
from paribus.techniques import (
    Accumulation,
    Checkpointing,
    Dropout,
    Fp32Master,
    MasterWeights,
    NoCheckpointing,
    Noise,
    NoStress,
    Obstacle,
    Precision,
    Settings,
    Stress,
    Technique,
    Tuning,
    added_later,
)

CHECKPOINTS: Final = "checkpoints"
"""The folder in a trial's scratch folder that its checkpoints stand in until it is settled."""
SCORING: Final = "scoring"
"""The folder in it that finished blocks of a scoring stand in until then."""
Optimizer = Literal["adamw", "sgd", "adamw_8bit", "paged_adamw_32bit", "paged_adamw_8bit", "adafactor"]


class Training(Settings):
    """How every arm of a study trains: sizes count examples, lengths tokens, an epoch is one pass.

    `effective_batch_size` is micro-batch x gradient_accumulation_steps x ranks. `padding_free` lays the
    examples of a micro-batch end to end in one row, in which each sees itself alone: the same training,
    without the work on padding. `weight_decay` spares biases and norms.

    `optimizer`: `adamw` and `sgd` are torch's; `adamw_8bit` keeps its moments in 8 bits (Dettmers et al.
    2021, arXiv:2110.02861) and the paged ones in memory that moves between device and host (Dettmers et al.
    2023, arXiv:2305.14314, section 3), all by bitsandbytes; `adafactor` keeps the second moment as row and
    column sums and no first (Shazeer and Stern 2018, arXiv:1804.04235), at the study's learning rate.
    """

    effective_batch_size: int = Field(16, ge=1)
    epochs: int | None = Field(None, ge=1)
    max_steps: int | None = Field(None, ge=1)
    learning_rate: float = Field(2e-5, gt=0)
    lr_scheduler_type: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    warmup_steps: int = Field(0, ge=0)
    optimizer: Optimizer = "adamw"
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, ge=0)
    max_length: int = Field(1024, ge=2)
    padding_free: bool = added_later(False, as_if_absent=False)

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if (self.epochs is None) == (self.max_steps is None):
            raise ValueError("give either epochs or max_steps, and not both")
        return self

    def canonical(self) -> dict[str, Any]:
        """Leave out Adam's settings under another optimizer; a constant rate has one name, warm-up or not."""
        adam, constant = "adamw" in self.optimizer, self.lr_scheduler_type.startswith("constant")
        whole = {k: v for k, v in super().canonical().items() if adam or not k.startswith("adam_")}
        return whole | ({"lr_scheduler_type": "constant"} if constant else {})

    def obstacle(self) -> Obstacle | None:
        """Name what the optimizer needs and is not installed."""
        if not self.optimizer.endswith("bit") or find_spec("bitsandbytes"):
            return None
        reason = f"{self.optimizer} needs bitsandbytes, which is not installed"
        return Obstacle(reason, "pip install bitsandbytes, or set training.optimizer: adamw")


class Content(Settings):
    """Hashes of what a trial reads: the model's files, the training examples, and their template.

    `techniques` are those of what a technique reads, by axis.
    """

    model_sha256: str
    train_sha256: str
    template_sha256: str
    techniques: dict[str, str] = Field(default_factory=dict)


class Heldout(Settings):
    """Score held-out loss along the training curve and at its end.

    `every` is `epoch` or a number of optimizer steps, `train_sample` the number of training examples that are
    scored with noise off. `validation_sha256` and `test_sha256` are the content of what is scored.
    `evaluate_in: as_trained` adds what the model gives when it computes as in training.
    """

    kind: Literal["heldout"] = "heldout"
    every: Literal["epoch"] | int = "epoch"
    groups: tuple[str, ...] = ()
    train_sample: int = Field(64, ge=0)
    validation_sha256: str = ""
    test_sha256: str = ""
    evaluate_in: Literal["fp32", "as_trained"] = added_later("fp32", as_if_absent="fp32")


class Trial(Settings):
    """One run, fully decided. `model` and `data` say where content is found, `content` what it is."""

    task: Task
    model: ModelBlock
    data: DataBlock
    content: Content
    training: Training
    gradient_accumulation_steps: Accumulation
    neftune_noise_alpha: Noise
    precision: Precision
    tuning: Tuning
    dropout: Dropout = added_later(Dropout(), as_if_absent=Dropout())
    gradient_checkpointing: Checkpointing = added_later(NoCheckpointing(), as_if_absent=NoCheckpointing())
    master_weights: MasterWeights = added_later(Fp32Master(), as_if_absent=Fp32Master())
    stress: Stress = added_later(NoStress(), as_if_absent=NoStress())
    seed: int

    def canonical(self) -> dict[str, Any]:
        """Return what shapes the weights: content in place of the places it was found in."""
        whole = super().canonical()
        del whole["content"]
        for axis, sha256 in self.content.techniques.items():
            shaping = {name: value for name, value in whole[axis].items() if name != "path"}
            whole[axis] = shaping | {"sha256": sha256}
        return whole | {
            "model": {"sha256": self.content.model_sha256, **self.model.shaping()},
            "data": {
                "train_sha256": self.content.train_sha256,
                "template_sha256": self.content.template_sha256,
                **self.data.shaping(self.task),
            },
        }

    @property
    def trial_id(self) -> str:
        """Return the first 16 hex digits of the SHA-256 of the canonical form."""
        return identity(self.canonical())

    @property
    def group(self) -> str:
        """Return the identity of the trial without its seed: repeats of one cell share it."""
        return identity({k: v for k, v in self.canonical().items() if k != "seed"})

    @property
    def techniques(self) -> dict[str, Technique]:
        """Return the chosen level of each named axis, in the order they are applied to a model."""
        return {name: getattr(self, name) for name in APPLIED}

    def score_id(self, score: Heldout | TaskSetting) -> str:
        """Return the identity of one way of scoring this trial."""
        return identity({"trial": self.trial_id, "score": score.canonical()})


APPLIED = (
    "stress",
    "tuning",
    "precision",
    "master_weights",
    "gradient_checkpointing",
    "neftune_noise_alpha",
    "dropout",
    "gradient_accumulation_steps",
)
"""Order of application: what trains is decided first, then how its products are rounded, then the noise."""


class Unsupported(Settings):
    """A technique cannot run on this machine and model, or ran and had no effect."""

    outcome: Literal["unsupported"] = "unsupported"
    technique: str
    reason: str
    way_out: str


class Job(Settings):
    """What a worker gets, as `trial.json`: the trial, how to score it and what to keep of it.

    `checkpoint_every` counts optimizer steps; None saves no checkpoints. `memory_gib` is the most a trial may
    allocate; None sets no limit. None of these is in an id. Programs that a model wrote are run only with
    `allow_code_execution`.
    """

    trial_id: str
    group: str
    trial: Trial
    scores: tuple[Heldout, ...]
    tasks: tuple[TaskScoring, ...] = ()
    allow_code_execution: bool = False
    keep: Literal["none", "adapter", "best", "last", "all"] = "none"
    checkpoint_every: int | None = None
    memory_gib: float | None = None

    @property
    def score_ids(self) -> tuple[str, ...]:
        """Return the ids of all scores that are asked for."""
        return tuple(self.trial.score_id(setting) for setting in (*self.scores, *self.tasks))

    def write(self, path: Path) -> None:
        """Write the job as indented JSON."""
        path.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: Path) -> Job:
        """Read a job; raises pydantic's ValidationError where the file is not one."""
        return Job.model_validate_json(path.read_bytes())


def canonical_json(value: Any) -> str:
    """Write canonical JSON: sorted keys, no spaces, UTF-8 kept as it is."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def identity(value: Any) -> str:
    """Return the first 16 hex digits of the SHA-256 of a canonical value."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]
