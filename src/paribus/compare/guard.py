"""Is it a fair comparison? The two sides of every pair must share all but what is varied.

An axis declares what it changes by definition: the learning rate its schedule, the number of epochs tokens
and steps. Where several axes change at once, one of them declares its part only if two cells of the design
differ in it alone, so that its effect can be told apart; a setting of training may also be declared by
`matched_by: tuning_budget`. Any other difference is a flag. A fact that is not recorded is not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from paribus.compare import wording
from paribus.compare.contrast import Contrast
from paribus.compare.facts import KINDS, OTHERWISE_NAMED, Facts, Kind, Seen, machine_class

if TYPE_CHECKING:
    from paribus.compare.findings import Findings
    from paribus.plan.design import Cell

LENGTH: Final = frozenset({"tokens", "optimizer_steps", "checkpoint_rule"})
"""What follows from how long training is: with it goes how many points are scored along the way."""
DECLARES: Final[Mapping[str, frozenset[str]]] = {
    "model": frozenset({"tokens"}),
    "model.load_dtype": frozenset({"dtype", "attention_kernel", "evaluation_precision"}),
    "data": LENGTH,
    "data.template": frozenset({"tokens", "template"}),
    "training": LENGTH | {"effective_batch", "schedule", "attention_kernel"},
    "training.epochs": LENGTH,
    "training.max_steps": LENGTH,
    "training.max_length": LENGTH,
    "training.effective_batch_size": LENGTH | {"effective_batch", "attention_kernel"},
    "training.padding_free": frozenset({"attention_kernel"}),
    "precision": frozenset({"dtype", "attention_kernel", "evaluation_precision"}),
    "gradient_accumulation_steps": frozenset({"attention_kernel"}),
}
"""What each axis changes by definition; a setting that is not named changes what its block does.

Torch chooses an attention kernel by dtype and mask, and a micro-batch of one row needs no mask.
"""


def declares(axis: str) -> frozenset[str]:
    """Return the kinds that an axis changes by definition; most techniques change none."""
    block, _, field = axis.partition(".")
    if block == "training" and field and field not in OTHERWISE_NAMED:
        return frozenset({"schedule"})
    return DECLARES.get(axis, DECLARES.get(block, frozenset()))


@dataclass(frozen=True)
class Flag:
    """One respect in which a comparison is not fair; `axis` is absent where cells differ in several."""

    kind: str
    axis: str | None
    level: str
    ours: str
    theirs: str
    sentence: str


@dataclass(frozen=True)
class Difference:
    """A part of a kind that differs: the values of each side over the pairs in which it does."""

    part: str
    ours: tuple[Any, ...]
    theirs: tuple[Any, ...]
    pairs: int

    def __str__(self) -> str:
        return f"{self.part} {said(self.ours)} against {said(self.theirs)}".strip()


@dataclass(frozen=True)
class Comparison:
    """One kind in one contrast: how its sides differ, the axis that declares it, what both sides share."""

    kind: Kind
    contrast: Contrast
    differences: tuple[Difference, ...]
    declared_by: str | None
    shared: tuple[Facts, ...]
    unrecorded: tuple[str, ...]

    @property
    def flag(self) -> Flag | None:
        """Return what is not fair here, if anything."""
        if not self.differences or self.declared_by:
            return None
        ours, theirs = (
            ", ".join(f"{d.part} {said(getattr(d, side))}".strip() for d in self.differences)
            for side in ("ours", "theirs")
        )
        sentence = f"{self.kind.title}: {self.difference}."
        return Flag(self.kind.name, self.contrast.axis, self.contrast.level, ours, theirs, sentence)

    @property
    def difference(self) -> str:
        """Say how the sides differ: `32 against 64, in 1 of 3 pairs`."""
        found, whole = max(d.pairs for d in self.differences), len(self.contrast.matched)
        some = f", in {found} of {whole} pairs" if found < whole else ""
        return f"{'; '.join(map(str, self.differences))}{some}"


class Guard:
    """Compares the two sides of every contrast of a study in everything that must be equal."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._facts: dict[tuple[Any, ...], Facts] = {}

    def checked(self, contrast: Contrast, cells: tuple[Cell, Cell] | None = None) -> Contrast:
        """Return a contrast with its flags; `cells` are its two where it is one of single cells."""
        found = (one.flag for one in self.compared(contrast, cells))
        return replace(contrast, flags=tuple(flag for flag in found if flag))

    def compared(self, contrast: Contrast, cells: tuple[Cell, Cell] | None = None) -> list[Comparison]:
        """Compare the sides of a contrast, kind by kind."""
        if contrast.axis or cells is None:
            declaring = [contrast.axis] if contrast.axis else []
        else:
            declaring = [axis for axis in cells[0].coordinates if self._declaring(axis, *cells)]
        return [self._compared(kind, contrast, declaring) for kind in KINDS]

    def _declaring(self, axis: str, one: Cell, other: Cell) -> bool:
        """Say whether two cells differ in an axis, and its effect can be told apart or is matched."""
        levels = {cell.coordinates[axis] for cell in (one, other)}
        if len(levels) < 2:
            return False
        if self.findings.study.compare.matched_by and axis.partition(".")[0] == "training":
            return True
        return any(levels <= alone for alone in self._alone[axis])

    @cached_property
    def _alone(self) -> dict[str, list[set[str]]]:
        """Return for each axis the sets of levels that cells have which differ in nothing else."""
        found: dict[str, dict[tuple[str, ...], set[str]]] = {}
        for cell in self.findings.plan.cells:
            for axis, level in cell.coordinates.items():
                rest = tuple(other for name, other in cell.coordinates.items() if name != axis)
                found.setdefault(axis, {}).setdefault(rest, set()).add(level)
        return {axis: [*sets.values()] for axis, sets in found.items()}

    def _compared(self, kind: Kind, contrast: Contrast, declaring: Iterable[str]) -> Comparison:
        pairs = [[self._read(kind, k, contrast) for k in pair] for pair in contrast.matched]
        missing, differences, shared = dict[str, None](), [], list[Facts]()
        for part in dict.fromkeys(part for ours, theirs in pairs for part in (*ours, *theirs)):
            both = [(ours[part], theirs[part]) for ours, theirs in pairs if part in ours and part in theirs]
            known = [pair for pair in both if None not in pair]
            if len(known) < len(both):
                missing[part] = None
            unfair = [pair for pair in known if kind.unfair(*pair)]
            if unfair:
                ours, theirs = (tuple(dict.fromkeys(side)) for side in zip(*unfair, strict=True))
                differences.append(Difference(part, ours, theirs, len(unfair)))
        if not differences:
            shared = [{k: v for k, v in ours.items() if v is not None} for ours, _ in pairs]
        declared = next((axis for axis in declaring if kind.name in declares(axis)), None)
        return Comparison(kind, contrast, tuple(differences), declared, tuple(shared), tuple(missing))

    def _read(self, kind: Kind, trial_id: str, contrast: Contrast) -> Facts:
        key = (kind.name, trial_id, contrast.metric, contrast.at)
        if key not in self._facts:
            self._facts[key] = kind.read(self._seen(trial_id, contrast))
        return self._facts[key]

    def _seen(self, trial_id: str, contrast: Contrast) -> Seen:
        findings = self.findings
        recorded, scores = findings.recorded[trial_id], findings.planned_scores(trial_id)
        made_by = findings.provenance(recorded.result.provenance)
        metric, at = contrast.metric, contrast.at
        group = findings.metric.group if metric.split == "train_sample" else metric.group
        score = next(iter(scores), None)
        return Seen(recorded, score, findings.curves[trial_id], made_by, metric, at, group)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Compare everything that the study contrasts: each level, and each cell that differs in several."""
        found = self.findings
        made = [one for contrast in found.primary_contrasts for one in self.compared(contrast)]
        for one in found.cells:
            if one.contrast and found.baseline and not one.contrast.axis:
                made += self.compared(one.contrast, (one.cell, found.baseline))
        return [one for one in made if one.contrast.matched]

    def machines(self, trials: Iterable[str]) -> list[str]:
        """Name the machine classes some trials ran on; speed is compared only where there is one."""
        return sorted({machine_class(self.findings.recorded[k]) for k in trials})

    def one_rate(self) -> float | None:
        """Return the learning rate that serves several ways of tuning and was searched for none of them."""
        study, cells = self.findings.study, self.findings.plan.cells
        kinds = {wording.kind(cell.coordinates.get("tuning", "")) for cell in cells}
        searched = study.compare.matched_by or {"training", "training.learning_rate"} & {*self.findings.axes}
        return None if len(kinds) < 2 or searched else study.training.learning_rate


def said(values: tuple[Any, ...]) -> str:
    shown = [written(one) for one in values]
    return wording.listed(shown if len(shown) <= 3 else [*shown[:2], f"{len(shown) - 2} others"])


def written(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
