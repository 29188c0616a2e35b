"""Claims that arithmetic or a tiny model settles exactly, computed from what the documents print.

Each module has `ROWS`: a function for each claim's id that computes every number the row prints, as the
document's own listing sets it, and says of each of its statements whether it holds. What was computed is
recorded in `computed.json`; verdicts are judged from that file, and a check computes it again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from pkgutil import iter_modules
from typing import Any

from paribus.errors import ParibusError
from paribus.techniques.base import Settings

FILE = "computed.json"
RELATIVE = 1e-6
"""How far apart two computed values may be, machines rounding differently."""


class Quantity(Settings):
    """A number that was computed, under the name the ledger gives it."""

    quantity: str
    value: float
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self.model_dump()


class Statement(Settings):
    """Something a row says without a number: whether it holds, and what was found."""

    says: str
    holds: bool
    found: str = ""


class Computed(Settings):
    """What came out for one row."""

    numbers: tuple[Quantity, ...] = ()
    statements: tuple[Statement, ...] = ()

    def differs(self, other: Computed) -> list[str]:
        """Say in what another computation of the row came out otherwise."""
        ours, theirs = _flat(self), _flat(other)
        names = [*ours, *(name for name in theirs if name not in ours)]
        return [
            f"{name}: {theirs.get(name)} recorded, {ours.get(name)} computed"
            for name in names
            if not _same(ours.get(name), theirs.get(name))
        ]


def computed(numbers: Mapping[str, tuple[float, str] | float], *statements: Statement) -> Computed:
    """Gather what a row's function found: `{quantity: value}` or `{quantity: (value, unit)}`."""
    pairs = {name: found if isinstance(found, tuple) else (found, "") for name, found in numbers.items()}
    listed = (Quantity(quantity=name, value=float(v), unit=unit) for name, (v, unit) in pairs.items())
    return Computed(numbers=tuple(listed), statements=statements)


def rows() -> dict[str, Callable[[], Computed]]:
    """Return the function of every claim that is computed, by its id."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return {claim: function for module in modules for claim, function in module.ROWS.items()}


def recompute(claim_id: str) -> Computed:
    """Compute one claim from nothing; raises ParibusError where no function computes it."""
    function = rows().get(claim_id.upper())
    if function is None:
        raise ParibusError(
            f"{claim_id} is not computed", way_out="paribus claims --json names the basis of every row."
        )
    return function()


def recorded() -> dict[str, Computed]:
    """Read what was computed before; nothing where the file is gone."""
    path = files("paribus.compare") / FILE
    if not path.is_file():
        return {}
    return {name: Computed.model_validate(one) for name, one in json.loads(path.read_text("utf-8")).items()}


def as_recorded(found: Mapping[str, Computed]) -> str:
    """Write what was computed as the text of `computed.json`."""
    listed = {name: one.model_dump(exclude_defaults=True) for name, one in sorted(found.items())}
    return json.dumps(listed, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _flat(found: Computed) -> dict[str, float | bool]:
    numbers: dict[str, float | bool] = {one.quantity: one.value for one in found.numbers}
    return numbers | {one.says: one.holds for one in found.statements}


def _same(one: float | bool | None, other: float | bool | None) -> bool:
    if one is None or other is None or isinstance(one, bool) or isinstance(other, bool):
        return one == other
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=1e-12)
