"""How often each cell is repeated: with a list of seeds, or with more and more until all is decided."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator

from paribus.errors import nearest
from paribus.plan.complaints import Problem, Problems, said
from paribus.statistics.sequential import Looks
from paribus.techniques import Settings

LEAST = 3
"""Seeds that an adaptive study begins with at least: two pairs bound nothing but an enormous difference."""
MOST = 200
"""Seeds that it can end with at most: boundaries are computed for every number up to there."""


class Repeat(Settings):
    """The seeds each cell is repeated with.

    With `until: decided` every cell gets the first `least` of them, and a further one is run only where a
    contrast needs it.
    """

    seeds: tuple[int, ...] = Field(min_length=1)
    until: Literal["decided"] | None = None
    least: int | None = None

    @field_validator("seeds")
    @classmethod
    def _usable(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        if twice:
            raise ValueError(f"the seed {twice[0]} is listed twice: every repeat needs a seed of its own")
        outside = [seed for seed in seeds if not 0 <= seed < 2**32]
        if outside:
            raise ValueError(f"the seed {outside[0]} is outside 0 to 4294967295")
        return seeds

    @property
    def looks(self) -> Looks | None:
        """Return the numbers of pairs at which an adaptive study decides; None where the seeds are fixed."""
        return Looks(self.least, len(self.seeds)) if self.until and self.least else None


def expanded(repeat: dict[str, Any], compare: Any) -> dict[str, Any]:
    """Write a range such as `3..20` as the seeds 0 to 19, of which the least number is 3.

    Raises Problems where a range and `until` do not stand together, or where nothing says how to decide.
    """
    seeds, until = repeat.get("seeds"), repeat.get("until")
    if "least" in repeat:
        raise _problem("least", "unknown key 'least' in repeat", nearest("least", ("seeds", "until")))
    if "until" not in repeat:
        if isinstance(seeds, dict) or (isinstance(seeds, str) and ".." in seeds):
            message = "from how many seeds to how many is for a study that ends when all is decided"
            raise _problem("seeds", message, "add `until: decided`, or list the seeds: [0, 1, 2]")
        return repeat
    if until != "decided":
        raise _problem("until", f"until must be decided, not {said(until)}", "write `until: decided`")
    least, most = _ends(seeds)
    _decidable(compare if isinstance(compare, dict) else {})
    return {**repeat, "seeds": list(range(most)), "least": least}


def _ends(seeds: Any) -> tuple[int, int]:
    """Read from how many seeds to how many: `3..20` or `{min: 3, max: 20}`."""
    ends: list[Any] = []
    if isinstance(seeds, str) and (found := re.fullmatch(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*", seeds)):
        ends = [int(found[1]), int(found[2])]
    elif isinstance(seeds, dict) and set(seeds) == {"min", "max"}:
        ends = [seeds["min"], seeds["max"]]
    if not ends or any(type(end) is not int for end in ends):
        message = f"seeds until all is decided must be from how many to how many, not {said(seeds)}"
        raise _problem("seeds", message, "write `seeds: 3..20` or `seeds: {min: 3, max: 20}`")
    least, most = ends
    if least < LEAST:
        message = f"{least} seed{'' if least == 1 else 's'} to begin with are too few for an interval"
        raise _problem("seeds", message, f"begin with {LEAST}: `seeds: {LEAST}..{max(most, LEAST + 1)}`")
    if most <= least:
        message = f"seeds from {least} to {most} leave nothing to add"
        way_out = f"write the lower number first: `seeds: {most}..{least}`" if LEAST <= most < least else None
        raise _problem("seeds", message, way_out or f"list the seeds, or end later: `seeds: {least}..20`")
    if most > MOST:
        message = f"{most} seeds are more than the {MOST} that boundaries are computed for"
        raise _problem("seeds", message, f"write `seeds: {least}..{MOST}`")
    return least, most


def _decidable(compare: dict[str, Any]) -> None:
    """Check that the study says by what it decides, and that this does not move as seeds are added."""
    for key, example in (("metric", "test.same_wording.loss"), ("margin", "0.02")):
        if compare.get(key) is None:
            message = f"a study that ends when all is decided must declare compare.{key}"
            raise _problem("until", message, f"add it, for example `compare: {{{key}: {example}}}`")
    if compare.get("at") == "equal_train_loss":
        message = "equal_train_loss is the loss that every arm reaches, and moves with every seed added"
        raise Problems(Problem(("compare", "at"), message, "decide at best_validation or last"))


def _problem(key: str, message: str, way_out: str) -> Problems:
    return Problems(Problem(("repeat", key), message, way_out))
