"""What one simulated scenario showed, and whether it is as it should be."""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np

SEED = 20261130
"""Set before the first run; every scenario draws from it and its own name."""
ERRORS = 3.5
"""Standard errors of simulation that an observed rate may be off."""
COVERAGE = 0.01
"""How far a coverage may be from its nominal value at most, simulation error of large runs included."""

Rule = Literal["about", "at most", "at least", "covers", "shown"]


@dataclass(frozen=True)
class Row:
    """One number of one scenario; `shown` promises nothing, `covers` is 95 ± 1 %. A rate has no unit."""

    topic: str
    scenario: str
    measure: str
    nominal: float | None
    observed: float
    of: int
    rule: Rule
    unit: str = ""

    @property
    def error(self) -> float:
        """Return the standard error of simulation, at the nominal rate where there is one."""
        rate = self.observed if self.nominal is None else self.nominal
        return sqrt(rate * (1 - rate) / self.of)

    @property
    def holds(self) -> bool | None:
        """Say whether it is as promised; None where nothing is."""
        if self.rule == "shown" or self.nominal is None:
            return None
        off, room = self.observed - self.nominal, ERRORS * self.error
        if self.rule == "covers":
            return bool(abs(off) <= max(COVERAGE, room))
        return bool({"about": abs(off) <= room, "at most": off <= room, "at least": off >= -room}[self.rule])

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}


def generator(*name: object) -> np.random.Generator:
    """Return the random numbers of a scenario."""
    return np.random.default_rng([SEED, zlib.crc32(" ".join(map(str, name)).encode())])
