"""A question, read from YAML with the file and line in every error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator

from paribus.errors import Place, SettingError
from paribus.plan.repeat import Repeat
from paribus.plan.scoring import DECIDED, TaskScoring
from paribus.plan.trial import Training
from paribus.plan.yaml_lines import Document, Route
from paribus.sources.blocks import DataBlock, ModelBlock, Task
from paribus.statistics import Estimand
from paribus.techniques import (
    Accumulation,
    Checkpointing,
    Dropout,
    Fp32Master,
    MasterWeights,
    NoCheckpointing,
    Noise,
    NoStress,
    Precision,
    Settings,
    Stress,
    Tuning,
)
from paribus.techniques.precision.plain import Fp32
from paribus.techniques.tuning.full import Full

FILE = "study.yaml"
SPLITS = ("validation", "test")
COMPARED = "test"
"""The split of every metric that is compared: validation has chosen the point it is read at."""
QUANTITIES = ("loss", "accuracy")
AS_TRAINED = ("loss_as_trained", "accuracy_as_trained")
"""The figures a compared metric can name; the last two where `evaluate_in: as_trained` has them measured."""
Levels = dict[str, Any]
"""A level for each of some settings, by dotted name."""
Condition = dict[str, tuple[Any, ...]]
"""For each of some settings the levels that meet the condition; a word matches its kind."""


class Axis(Settings):
    """What one setting varies over: its levels, the axes crossed with it, the cells it applies to."""

    values: tuple[Any, ...] = Field(min_length=1)
    also: Condition = Field(default_factory=dict)
    when: Condition = Field(default_factory=dict)


class Exclusion(Settings):
    """Cells that are left out, with the reason shown in the plan."""

    where: Condition
    reason: str = Field(min_length=1)


class Inclusion(Settings):
    """A cell that the design has not: the levels it changes, and its seeds where these are fewer."""

    levels: Levels
    seeds: tuple[int, ...] | None = None


class HeldoutBlock(Settings):
    """When held-out loss is scored and on what; no `groups` means every group the data has.

    `evaluate_in: as_trained` scores every point twice: in fp32 with nothing rounded, which all decisions of
    training rest on, and computed as the arm trains.
    """

    every: Literal["epoch"] | int = "epoch"
    groups: tuple[str, ...] = ()
    train_sample: int = Field(default=64, ge=0)
    evaluate_in: Literal["fp32", "as_trained"] = "fp32"

    @field_validator("every")
    @classmethod
    def _positive(cls, every: str | int) -> str | int:
        if isinstance(every, int) and every < 1:
            raise ValueError(f"every must be epoch or at least 1 optimizer step, not {every}")
        return every


class Scores(Settings):
    """How each trial is scored: held-out loss, and any number of `tasks` by a name of the user's.

    Programs that a model wrote are run, in a sandbox, only where `allow_code_execution` says so.
    """

    heldout: HeldoutBlock = HeldoutBlock()
    tasks: dict[str, TaskScoring] = Field(default_factory=dict)
    allow_code_execution: bool = False

    @field_validator("tasks", mode="before")
    @classmethod
    def _named(cls, tasks: Any) -> Any:
        """Give each task its key as its name; what a plan decides is not to be written."""
        if not isinstance(tasks, dict):
            return tasks
        for key, task in tasks.items():
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", str(key)):
                raise SettingError(f"the task name {key!r} may hold letters, digits, - and _ alone")
            for decided in DECIDED if isinstance(task, dict) else ():
                if decided in task:
                    raise SettingError(f"{decided} of the task {key} is decided by the plan", "take it out")
        return {k: task | {"name": k} if isinstance(task, dict) else task for k, task in tasks.items()}


class Compare(Settings):
    """What is compared and what would count as equal; `margin` is in the unit of the metric.

    `baseline` and `controls` give levels that differ from the base cell. `expected_sd` is how much a paired
    difference is expected to vary over seeds, in that unit too, and serves the planning of seeds alone.
    """

    metric: str
    at: Literal["last", "best_validation", "equal_train_loss"] = "best_validation"
    margin: float | None = Field(default=None, gt=0)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    family: Literal["axis", "study"] = "axis"
    pair_by: Literal["seed"] = "seed"
    baseline: Levels = Field(default_factory=dict)
    controls: tuple[Levels, ...] = ()
    estimand: Estimand = "new_seeds_these_items"
    expected_sd: float | None = Field(default=None, gt=0)
    matched_by: Literal["tuning_budget"] | None = None

    @property
    def split(self) -> str:
        return self.metric.split(".", 1)[0]

    @property
    def group(self) -> str:
        return self.metric.split(".", 1)[1].rsplit(".", 1)[0]

    @property
    def quantity(self) -> str:
        return self.metric.rsplit(".", 1)[1]


class Resources(Settings):
    """What a trial is given and what an hour of it costs; never part of an identity.

    With `checkpoint_every` a trial saves where it stands every so many optimizer steps, and goes on from
    there after it was killed or stopped. `memory_gib` is the most memory a trial may allocate: of its device,
    or on a CPU beyond what it holds once the libraries are loaded. An out-of-memory outcome speaks of
    that limit, and is tried again under another.
    """

    devices_per_trial: Literal[1] = 1
    memory_gib: float | None = Field(default=None, gt=0)
    price_per_hour: float | None = Field(default=None, ge=0)
    checkpoint_every: int | None = Field(default=None, ge=1)


@dataclass(frozen=True)
class Source:
    """The file a study was read from. Two studies that say the same are equal, wherever they stand."""

    document: Document = field(compare=False)

    def __hash__(self) -> int:
        return 0


class Study(Settings):
    """What is held fixed, what varies, what repeats, what is scored and compared."""

    paribus: Literal[1]
    name: str = Field(min_length=1)
    question: str = ""
    task: Task = "instruction"
    model: ModelBlock
    data: DataBlock
    training: Training
    gradient_accumulation_steps: Accumulation = Accumulation(steps=1)
    neftune_noise_alpha: Noise = Noise(alpha=0)
    precision: Precision = Fp32()
    tuning: Tuning = Full()
    dropout: Dropout = Dropout()
    gradient_checkpointing: Checkpointing = NoCheckpointing()
    master_weights: MasterWeights = Fp32Master()
    stress: Stress = NoStress()
    design: Literal["grid", "one_factor_at_a_time", "leave_one_out"] = "grid"
    vary: dict[str, Axis] = Field(default_factory=dict)
    exclude: tuple[Exclusion, ...] = ()
    include: tuple[Inclusion, ...] = ()
    repeat: Repeat
    score: Scores = Scores()
    compare: Compare
    keep: Literal["none", "adapter", "best", "last", "all"] = "none"
    resources: Resources = Resources()

    _source: Source = PrivateAttr()

    @field_validator("name")
    @classmethod
    def _names_a_folder(cls, name: str) -> str:
        if (
            name != name.strip()
            or name.startswith(".")
            or any(c in '/\\:*?"<>|' or ord(c) < 32 for c in name)
        ):
            raise ValueError(
                f'the name {name!r} cannot name a folder: no / \\ : * ? " < > |, no dot in front'
            )
        if name == "reference":
            raise ValueError("the name 'reference' is taken: committed results stand in results/reference")
        return name

    @staticmethod
    def read(path: Path | str) -> Study:
        """Read a study from its folder or its file; raises StudyError that lists every problem found."""
        from paribus.plan.reading import read_study

        return read_study(Path(path))

    @property
    def file(self) -> Path:
        """Return the file the study was read from."""
        return self._source.document.path

    @property
    def folder(self) -> Path:
        """Return the folder that the study's relative paths start from."""
        return self.file.parent

    @property
    def text(self) -> str:
        """Return the study as it was written."""
        return self._source.document.text

    def place(self, *route: str | int) -> Place:
        """Say where in the file something was written."""
        return self._source.document.place(Route(route))

    @property
    def document(self) -> Document:
        """Return the file's lines, for errors found while planning."""
        return self._source.document
