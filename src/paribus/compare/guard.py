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
from typing import TYPE_CHECKING, Any, Final, Literal

from paribus.compare import wording
from paribus.compare.contrast import Contrast, baseline_of, level_pairings
from paribus.compare.facts import KINDS, OTHERWISE_NAMED, Facts, Kind, Seen, machine_class

if TYPE_CHECKING:
    from paribus.compare.findings import Findings
    from paribus.plan.design import Cell

LENGTH: Final = frozenset({"tokens", "optimizer_steps", "checkpoint_rule"})
"""What follows from how long training is: with it goes how many points are scored along the way."""
DECLARES: Final[Mapping[str, frozenset[str]]] = {
    "model": frozenset({"tokens"}),
    "model.load_dtype": frozenset({"numerics", "evaluation_precision"}),
    "data": LENGTH,
    "data.template": frozenset({"tokens", "template"}),
    "training": LENGTH | {"effective_batch", "schedule", "numerics"},
    "training.epochs": LENGTH,
    "training.max_steps": LENGTH,
    "training.max_length": LENGTH,
    "training.effective_batch_size": LENGTH | {"effective_batch"},
    "training.padding_free": frozenset({"numerics"}),
    "precision": frozenset({"numerics"}),
}
"""What each axis changes by definition; a setting that is not named changes what its block does."""


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
        return f"{self.part} {_said(self.ours)} against {_said(self.theirs)}".strip()


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
            ", ".join(f"{d.part} {_said(getattr(d, side))}".strip() for d in self.differences)
            for side in ("ours", "theirs")
        )
        return Flag(self.kind.name, self.contrast.axis, self.contrast.level, ours, theirs, self.sentence)

    @property
    def sentence(self) -> str:
        """Say how the sides differ: `Optimizer steps: 32 against 64, in 1 of 3 pairs.`"""
        found, whole = max(d.pairs for d in self.differences), len(self.contrast.matched)
        some = f", in {found} of {whole} pairs" if found < whole else ""
        return f"{self.kind.title}: {'; '.join(map(str, self.differences))}{some}."


@dataclass(frozen=True)
class Checked:
    """What came of one kind over all comparisons of a study: a line, and one for each that differs."""

    kind: Kind
    word: Literal["same", "declared", "differ"]
    text: str
    items: tuple[str, ...] = ()


class Guard:
    """Compares the two sides of every contrast of a study in everything that must be equal."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self._facts: dict[tuple[Any, ...], Facts] = {}

    def checked(self, contrast: Contrast, cell: Cell | None = None) -> Contrast:
        """Return a contrast with its flags; `cell` is the one that is compared with the baseline."""
        found = (one.flag for one in self.compared(contrast, cell))
        return replace(contrast, flags=tuple(flag for flag in found if flag))

    def compared(self, contrast: Contrast, cell: Cell | None = None) -> list[Comparison]:
        """Compare the sides of a contrast, kind by kind."""
        levels = {contrast.axis: contrast.level} if contrast.axis else {}
        if self._base and cell and not levels:
            levels = wording.changed(cell.coordinates, self._base.coordinates)
        return [self._compared(kind, contrast, levels) for kind in KINDS]

    def _compared(self, kind: Kind, contrast: Contrast, changed: Mapping[str, str]) -> Comparison:
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
        declared = self._declared(kind.name, changed) if differences else None
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

    def _declared(self, kind: str, changed: Mapping[str, str]) -> str | None:
        """Name the axis that changes a kind by definition and can be told apart, or is matched."""
        for axis, level in changed.items():
            if kind in declares(axis):
                matched = axis.partition(".")[0] == "training" and self.findings.study.compare.matched_by
                if matched or (axis, level) in self._told_apart:
                    return axis
        return None

    @cached_property
    def _base(self) -> Cell | None:
        return baseline_of(self.findings.plan.cells)

    @cached_property
    def _told_apart(self) -> set[tuple[str, str]]:
        """Return the levels in which some cell alone differs from one at the baseline's level."""
        return {(axis, level) for axis, level, _ in level_pairings(self.findings.plan.cells)}

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Compare everything that the study contrasts: each level, and each cell that differs in several."""
        found = self.findings
        made = [one for contrast in found.primary_contrasts for one in self.compared(contrast)]
        for one in found.cells:
            if one.contrast and not one.contrast.axis:
                made += self.compared(one.contrast, one.cell)
        return [one for one in made if one.contrast.matched]

    @property
    def flags(self) -> list[Flag]:
        """Return every flag of the study, each once."""
        return list(dict.fromkeys(one.flag for one in self.comparisons if one.flag))

    @property
    def count(self) -> int:
        """Count the comparisons that have a pair at all."""
        return len({one.contrast for one in self.comparisons})

    @property
    def flagged(self) -> int:
        """Count the comparisons that are not fair."""
        return len({one.contrast for one in self.comparisons if one.flag})

    def summary(self) -> list[Checked]:
        """Say of each kind that could be compared what came of it."""
        return [found for kind in KINDS if (found := self._summary(kind))]

    def _summary(self, kind: Kind) -> Checked | None:
        own = [one for one in self.comparisons if one.kind == kind]
        shared = [facts for one in own for facts in one.shared if facts]
        different = [one for one in own if one.differences]
        if not shared and not different:
            return None
        undeclared = [one for one in different if one.flag]
        if undeclared:
            text = f"{len(undeclared)} of {_count(len(own))}:"
            return Checked(kind, "differ", text, tuple(map(_named, undeclared)))
        if different:
            axes = dict.fromkeys(wording.axis_name(one.declared_by or "") for one in different)
            alone = [one for one in different if one.contrast.axis] or different
            text = f"Changed by what varies, {wording.listed(list(axes))}:"
            return Checked(kind, "declared", text, tuple(map(_named, alone)))
        values = dict.fromkeys(map(_facts_said, shared))
        return Checked(kind, "same", next(iter(values)) if len(values) == 1 else "In each pair the same.")

    @property
    def unrecorded(self) -> list[str]:
        """Name what is not recorded of some trials and so was not compared there."""
        found: dict[str, dict[str, None]] = {}
        for one in self.comparisons:
            if one.unrecorded:
                found.setdefault(one.kind.title, {}).update(dict.fromkeys(filter(None, one.unrecorded)))
        return [f"{title} ({', '.join(parts)})" if parts else title for title, parts in found.items()]

    def machines(self, trials: Iterable[str]) -> list[str]:
        """Name the machine classes some trials ran on; speed is compared only where there is one."""
        return sorted({machine_class(self.findings.recorded[k]) for k in trials})

    def one_rate(self) -> float | None:
        """Return the learning rate that serves several ways of tuning and was searched for none of them."""
        study, cells = self.findings.study, self.findings.plan.cells
        kinds = {wording.kind(cell.coordinates.get("tuning", "")) for cell in cells}
        searched = study.compare.matched_by or {"training", "training.learning_rate"} & {*self.findings.axes}
        return None if len(kinds) < 2 or searched else study.training.learning_rate


def _named(comparison: Comparison) -> str:
    contrast = comparison.contrast
    axis = f"{wording.axis_name(contrast.axis)} " if contrast.axis else ""
    said = comparison.sentence.removeprefix(f"{comparison.kind.title}: ")
    return f"{axis}{wording.level_name(contrast.level)}: {said}"


def _count(number: int) -> str:
    return f"{number} comparison{'' if number == 1 else 's'}"


def _facts_said(facts: Facts) -> str:
    return ", ".join(f"{part} {_value(value)}".strip() for part, value in facts.items())


def _said(values: tuple[Any, ...]) -> str:
    shown = [_value(value) for value in values]
    return wording.listed(shown if len(shown) <= 3 else [*shown[:2], f"{len(shown) - 2} others"])


def _value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
