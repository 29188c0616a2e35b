"""One row of the ledger with its verdict, computed on the spot and not read from what is recorded."""

from __future__ import annotations

from paribus.compare import ledger
from paribus.compare.ledger import Ruling
from paribus.compare.recompute import recompute


def judged(claim: str) -> Ruling:
    """Compute a row and rule on it."""
    return ledger.rule(ledger.row(claim), {claim: recompute(claim)}, "computed.json", {})


def numbers(claim: str) -> dict[str, float]:
    """Return what was computed of a row by quantity."""
    return {one.quantity: one.value for one in recompute(claim).numbers}


def failed(claim: str) -> list[str]:
    """Return the statements of a row that do not hold."""
    return [one.says for one in recompute(claim).statements if not one.holds]
