"""What a study found: every cell, contrast and failure, computed once from what is recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from paribus import statistics
from paribus.compare import adaptive
from paribus.compare.contrast import (
    Contrast,
    Read,
    Rules,
    baseline_of,
    cell_contrasts,
    level_contrasts,
)
from paribus.compare.guard import Guard
from paribus.compare.items import Item, item_values, mean_of
from paribus.compare.readings import (
    READINGS,
    SPLITS,
    TRAINED,
    At,
    Curve,
    Metric,
    common_train_loss,
    planned_scores,
    values,
)
from paribus.compare.ties import Place, cell_ties
from paribus.record.result import Crashed, Diverged, Killed, OutOfMemory, Skipped, Unsupported

if TYPE_CHECKING:
    from paribus.plan.design import Cell, Plan
    from paribus.record.result import HeldoutScore, TrialResult
    from paribus.record.store import Recorded, Store

NOISE: Final = "neftune_noise_alpha"


@dataclass(frozen=True)
class Failure:
    """A planned trial that did not finish: its outcome in a word and the reason in a sentence."""

    cell: Cell
    seed: int
    trial_id: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class CellFindings:
    """One cell: how many of its seeds finished, and its mean at each reading."""

    cell: Cell
    planned: int
    finished: int
    trials: tuple[str, ...]
    estimates: Mapping[At, statistics.Estimate]
    contrast: Contrast | None

    @property
    def share(self) -> str:
        """Write `2 of 3`."""
        return f"{self.finished} of {self.planned}"


class Findings:
    """Everything a report or table says about a study, each part computed when first asked for."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self.study, self.store, recorded = plan.study, store, store.recorded()
        self.replay = adaptive.replay(plan, recorded) if plan.study.repeat.looks else None
        self.plan = self.replay.plan if self.replay else plan
        planned = {job.trial_id for job in self.plan.jobs}
        self.recorded: dict[str, Recorded] = {k: v for k, v in recorded.items() if k in planned}
        compare = self.study.compare
        self.metric = Metric.parse(compare.metric, self.study.task)
        self.primary: At = compare.at
        looks = self.study.repeat.looks
        self.rules = Rules(compare.margin, compare.confidence, compare.family, looks, compare.estimand)
        self._provenance: dict[str, Mapping[str, Any]] = {}
        self._items: dict[tuple[At, Metric], dict[str, dict[Item, float]] | None] = {}

    @property
    def axes(self) -> tuple[str, ...]:
        """Name the axes that vary, in the order of the study."""
        return self.plan.axes

    @cached_property
    def one_at_a_time(self) -> bool:
        """Say whether every cell differs from the baseline in one axis at most."""
        return all(found.contrast is None or found.contrast.axis for found in self.cells)

    @cached_property
    def finished(self) -> set[str]:
        """Return the planned trials that trained to their end."""
        return {k for k, v in self.recorded.items() if v.result.result.outcome == "finished"}

    @cached_property
    def curves(self) -> dict[str, Curve]:
        """Return the held-out curves of the finished trials."""
        found = {k: Curve.of(self.planned_scores(k)) for k in sorted(self.finished)}
        return {k: curve for k, curve in found.items() if curve.epochs()}

    def planned_scores(self, trial_id: str) -> list[HeldoutScore]:
        """Return the scores of a trial that the study asks for now."""
        return planned_scores(self.plan.job(trial_id), self.recorded[trial_id].scores)

    @cached_property
    def common_level(self) -> float | None:
        """Return the train-sample loss that every finished trial reaches; controls, made to fail, aside."""
        arms = {k for cell in self.plan.cells if not cell.is_control for k in cell.trials.values()}
        return common_train_loss(curve for k, curve in self.curves.items() if k in arms)

    @property
    def baseline(self) -> Cell | None:
        """Return the cell everything is compared with."""
        return baseline_of(self.plan.cells)

    def values(self, at: At, metric: Metric | None = None) -> dict[str, float]:
        """Read a metric (the study's, unless another is named) of every finished trial."""
        metric = metric or self.metric
        group = self.metric.group if metric.split == "train_sample" else metric.group
        return values(self.curves, metric, at, self.common_level, group)

    def contrasts(self, at: At | None = None, metric: Metric | None = None) -> list[Contrast]:
        """Contrast every level with the baseline's at a reading (the study's primary one unless named)."""
        at, metric = at or self.primary, metric or self.metric
        return [self.guard.checked(contrast) for contrast in self._contrasts(self.read(at, metric))]

    def _contrasts(self, read: Read) -> list[Contrast]:
        return adaptive.contrasts(read, self.replay) if self.replay else level_contrasts(read)

    def read(self, at: At, metric: Metric) -> Read:
        """Read a metric at a reading of every finished trial."""
        found = self.values(at, metric)
        items = self._read_items(at, metric)
        return Read(self.plan.cells, found, self.finished, metric, at, self.rules, items)

    def _read_items(self, at: At, metric: Metric) -> dict[str, dict[Item, float]] | None:
        """Return the single items where the study speaks of new ones."""
        return self.items(at, metric) if self.rules.estimand == "new_seeds_and_items" else None

    def items(self, at: At, metric: Metric) -> dict[str, dict[Item, float]] | None:
        """Return the single items of a metric, read once; raises RecordError where they are not recorded."""
        if (at, metric) not in self._items:
            self._items[at, metric] = item_values(self, at, metric)
        return self._items[at, metric]

    @cached_property
    def ties(self) -> statistics.Ties[Place]:
        """Group the cells that are not told apart at the primary reading, in place of ranks."""
        return cell_ties(self.cells, self.read(self.primary, self.metric))

    @cached_property
    def guard(self) -> Guard:
        """Return what says whether the sides of a contrast share all but what is varied."""
        return Guard(self)

    def provenance(self, name: str) -> Mapping[str, Any]:
        """Return a provenance record, read once; empty where it is missing or damaged."""
        if name not in self._provenance:
            self._provenance[name] = self.store.provenance(name) or {}
        return self._provenance[name]

    @cached_property
    def primary_contrasts(self) -> list[Contrast]:
        """Contrast every level with the baseline's at the primary reading."""
        return self.contrasts()

    def metrics(self) -> list[Metric]:
        """Name every held-out metric that was scored, in a stable order."""
        groups = {(s, g) for curve in self.curves.values() for s in SPLITS for g in curve.groups(s)}
        twice = ("loss_as_trained", "accuracy_as_trained") if self.scored_as_trained else ()
        return [
            Metric(split, group, quantity)
            for split in SPLITS
            for group in sorted(g for s, g in groups if s == split)
            for quantity in ("loss", "accuracy", *twice)
        ]

    @cached_property
    def scored_as_trained(self) -> bool:
        """Say whether any trial was also scored computing as it trains."""
        series = (
            curve.series(s, g) for curve in self.curves.values() for s in SPLITS for g in curve.groups(s)
        )
        return any(found and found[-1].loss_as_trained is not None for found in series)

    def blind_to_loss(self) -> str | None:
        """Say why this study could not have seen a loss, or None where a declared control shows it can."""
        base = self.baseline
        trained, before = (_mean(self.values(at), base) for at in (self.primary, "base"))
        if trained is None or before is None or (trained < before) != self.metric.lower_is_better:
            return "the baseline is no better than the untrained model: this test could not have seen a loss"
        controls = [found for found in self.cells if found.cell.is_control]
        if any(c.verdict == "worse" and not c.flags for found in controls if (c := found.contrast)):
            return None
        why = "no declared control was found to harm" if controls else "no control known to harm is declared"
        return f"{why}: this test could not have seen a loss"

    def loudness(self, trials: Iterable[str]) -> float | None:
        """Return the RMS of the noise over that of the embeddings it met, as the trials' proofs have it.

        A mean over the finished ones; None where no noise was added. Beside alpha it says how loud that was:
        alpha alone does not carry across widths and lengths.
        """
        proofs = (self.recorded[k].result.proof.get(NOISE, {}) for k in trials if k in self.finished)
        ratios = [proof["ratio"] for proof in proofs if isinstance(proof.get("ratio"), float)]
        return fmean(ratios) if ratios else None

    @property
    def other_readings(self) -> list[At]:
        """Name the readings beside the primary one."""
        return [at for at in TRAINED if at != self.primary]

    @cached_property
    def cells(self) -> list[CellFindings]:
        """Summarise every cell, the baseline first, then in the order of the plan."""
        found: dict[At, dict[str, float]] = {at: self.values(at) for at in READINGS}
        beside = cell_contrasts(self.read(self.primary, self.metric))
        ordered = sorted(self.plan.cells, key=lambda cell: not cell.is_baseline)
        return [self._summary(c, found, beside.get(tuple(c.coordinates.values()))) for c in ordered]

    def _summary(
        self, cell: Cell, found: Mapping[At, Mapping[str, float]], contrast: Contrast | None
    ) -> CellFindings:
        trials = tuple(cell.trials.values())
        estimates = {}
        for at, by_trial in found.items():
            read = {k: by_trial[k] for k in trials if k in by_trial}
            estimate = mean_of(self.rules, read, self._read_items(at, self.metric))
            if estimate is not None:
                estimates[at] = estimate
        done = sum(k in self.finished for k in trials)
        if contrast is not None and self.baseline is not None:
            contrast = self.guard.checked(contrast, (cell, self.baseline))
        return CellFindings(cell, len(trials), done, trials, estimates, contrast)

    @cached_property
    def failures(self) -> list[Failure]:
        """List planned trials that ended without finishing, in the order of the plan, each once."""
        found: dict[str, Failure] = {}
        for cell in self.plan.cells:
            for seed, trial_id in cell.trials.items():
                known = self.recorded.get(trial_id)
                if known is not None and trial_id not in self.finished and trial_id not in found:
                    outcome = known.result.result.outcome
                    found[trial_id] = Failure(cell, seed, trial_id, outcome, reason(known.result))
        return list(found.values())

    @cached_property
    def missing(self) -> list[str]:
        """List planned trials with no recorded outcome."""
        return [job.trial_id for job in self.plan.jobs if job.trial_id not in self.recorded]

    @cached_property
    def outcomes(self) -> dict[str, int]:
        """Count recorded outcomes by name."""
        names = [known.result.result.outcome for known in self.recorded.values()]
        return {name: names.count(name) for name in sorted(set(names))}


def _mean(found: Mapping[str, float], cell: Cell | None) -> float | None:
    read = [found[k] for k in cell.trials.values() if k in found] if cell else []
    return fmean(read) if read else None


def reason(result: TrialResult) -> str:
    """Say in a sentence why a trial did not finish, sizes in GiB."""
    match result.result:
        case Diverged() as r:
            text = f"{r.quantity} was {r.value} at step {r.step}; its bound is {r.bound:g}"
        case OutOfMemory() as r:
            text = f"out of memory in {r.phase}{_sizes(r.requested_bytes, r.limit_bytes)}"
        case Unsupported() as r:
            named = "" if r.technique in r.reason else f"{r.technique}: "
            text = f"{named}{r.reason}" + (f". {r.way_out[:1].upper()}{r.way_out[1:]}" if r.way_out else "")
        case Skipped() as r:
            text = f"not started: predicted{_sizes(r.predicted_bytes, r.limit_bytes)} under {r.dtype_policy}"
        case Killed() as r:
            text = f"{r.cause} by signal {r.signal}" if r.signal else f"{r.cause} from outside"
        case Crashed() as r:
            text = f"{r.error} (in {r.where})"
        case _:
            text = "finished"
    return text


def _sizes(wanted: int | None, limit: int | None) -> str:
    wanted_text = f" {wanted / 2**30:.1f} GiB" if wanted is not None else ""
    return wanted_text + (f" of {limit / 2**30:.1f} GiB" if limit is not None else "")
