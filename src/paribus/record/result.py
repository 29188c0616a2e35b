"""What became of a trial: a tagged union in which failure is a value with a type."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from paribus.plan.trial import Unsupported
from paribus.techniques.base import Settings

SCHEMA = 1


class Finished(Settings):
    """The trial trained to its end."""

    outcome: Literal["finished"] = "finished"


class Diverged(Settings):
    """A watched quantity left its bound; `value` is a word where it was not a finite number."""

    outcome: Literal["diverged"] = "diverged"
    step: int
    quantity: str
    value: float | Literal["nan", "inf", "-inf"]
    bound: float


class OutOfMemory(Settings):
    """The trial does not fit; sizes in bytes, absent where the allocator did not say."""

    outcome: Literal["out_of_memory"] = "out_of_memory"
    phase: str
    requested_bytes: int | None = None
    limit_bytes: int | None = None


class Skipped(Settings):
    """Predicted not to fit, and so not started; sizes in bytes."""

    outcome: Literal["skipped"] = "skipped"
    predicted_bytes: int
    limit_bytes: int
    dtype_policy: str


class Killed(Settings):
    """The worker was ended from outside."""

    outcome: Literal["killed"] = "killed"
    signal: int | None = None
    cause: Literal["killed", "preempted", "lost"] = "killed"


class Crashed(Settings):
    """The worker raised an error of its own."""

    outcome: Literal["crashed"] = "crashed"
    error: str
    where: str
    log_tail: str


Outcome = Annotated[
    Finished | Diverged | OutOfMemory | Unsupported | Skipped | Killed | Crashed,
    Field(discriminator="outcome"),
]


class Counts(Settings):
    """What passed through training over all epochs: real tokens, target tokens, truncated examples."""

    examples: int
    optimizer_steps: int
    tokens: int
    target_tokens: int
    truncated_examples: int


class Identity(Settings):
    """Hashes that a rerun must repeat: example order, initial and final trainable weights, loss curve."""

    order_sha256: str
    initial_weights_sha256: str
    final_weights_sha256: str
    loss_curve_sha256: str


class Cost(Settings):
    """Time and memory of training alone, scoring left out. Absent where it was not measured."""

    train_seconds: float
    step_seconds_median: float
    tokens_per_second: float
    peak_memory_bytes: int | None = None
    trainable_parameters: int
    total_parameters: int


class TrialResult(Settings):
    """One trial's outcome with its evidence, as `result.json` (under 4 KB).

    `proof` holds each technique's evidence by axis; `resolved` what was really used (dtype, attention kernel,
    micro-batch, optimizer class). Readings of held-out loss stand in `scores/<score-id>.json`.
    """

    paribus: int = SCHEMA
    trial_id: str
    attempt: int | None
    machine_class: str
    provenance: str
    result: Outcome
    resolved: dict[str, Any] = Field(default_factory=dict)
    counts: Counts | None = None
    identity: Identity | None = None
    cost: Cost | None = None
    proof: dict[str, dict[str, Any]] = Field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def counts_on(self, machine_class: str) -> bool:
        """Say whether this outcome settles the trial on a machine of that class.

        Trained outcomes and published failures count everywhere; out of memory, unsupported and skipped are
        facts about one class of machine.
        """
        machine_bound = ("out_of_memory", "unsupported", "skipped")
        return self.result.outcome not in machine_bound or self.machine_class == machine_class


class Reading(Settings):
    """Held-out figures of one split and group at one point of training.

    `loss` is the sum of target-token losses over the number of targets (nats a token), `accuracy` the share
    of target tokens predicted right. `loss_as_trained` and `accuracy_as_trained` are those of the model that
    computes as it does in training, rounded where it was; they are absent where only fp32 was asked for.
    """

    step: int
    epoch: float
    split: Literal["train_sample", "validation", "test"]
    group: str
    loss: float
    accuracy: float
    targets: int
    examples: int
    loss_as_trained: float | None = None
    accuracy_as_trained: float | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what was not measured."""
        return {name: value for name, value in write(self).items() if value is not None}


class HeldoutScore(Settings):
    """One trial's held-out scores, as `scores/<score-id>.json`; the base model stands in it at step 0.

    `shared_prompts` counts, for each test group, the different prompts that the trial trained on too; None
    where nobody counted.
    """

    paribus: int = SCHEMA
    score_id: str
    trial_id: str
    setting: dict[str, Any]
    curve: tuple[Reading, ...]
    shared_prompts: dict[str, int] | None = None


class Figure(Settings):
    """One number that a task gave of one model; `step` is 0 for the base model.

    `n` items stand behind it, `standard_error` is over them. `chance` is what guessing gives; `at_floor` says
    that the base was there or below, so that a loss cannot be seen. Values are in `unit`.
    """

    step: int
    task: str
    metric: str
    value: float
    n: int
    unit: str = "share of items"
    higher_is_better: bool = True
    standard_error: float | None = None
    chance: float | None = None
    at_floor: bool | None = None


class TaskScore(Settings):
    """What one task gave of a trial, before and after training, as `scores/<score-id>.json`.

    `counts` has what happened on the way to the last figures (truncated prompts, ties), `base_counts` to
    those of the base; `seconds` is what scoring the trained model took. `reads_sha256` is of all that was
    read.
    """

    paribus: int = SCHEMA
    score_id: str
    trial_id: str
    name: str
    setting: dict[str, Any]
    figures: tuple[Figure, ...]
    counts: dict[str, int] = Field(default_factory=dict)
    base_counts: dict[str, int] = Field(default_factory=dict)
    seconds: float | None = None
    reads_sha256: str = ""
    warnings: tuple[str, ...] = ()


Score = HeldoutScore | TaskScore
