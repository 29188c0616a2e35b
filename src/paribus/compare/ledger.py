"""The ledger: every checkable claim of two documents, what settles it, and the verdict of what stands here.

A row is settled by computing it exactly, by a study that ran here, or by neither: then it is not run, and
says what it needs. A verdict rests on a file; without the file there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from paribus.compare.claim import Number, Word
from paribus.compare.recompute import Computed
from paribus.errors import ParibusError
from paribus.plan.complaints import as_error, nearest, translate
from paribus.plan.yaml_lines import read as read_yaml
from paribus.techniques.base import Settings

if TYPE_CHECKING:
    from paribus.compare.claim import Judged

Basis = Literal["computed", "ran", "hardware fact", "published source"]
FILE = "ledger.yaml"


class Row(Settings):
    """One claim in our own words; `lines` are those of the document, `table` names one that it prints.

    `studies` are those that test it here, the first that can decide first; `ready` those that would settle
    it where there is what it `needs`. `beside` is a published or hardware fact that a reader should know,
    with its source. `contradicts` lists rows in which the documents say otherwise.
    """

    id: str
    document: Literal["article", "chapter"]
    section: str
    lines: str
    type: str
    says: str
    table: str | None = None
    numbers: tuple[Number, ...] = ()
    studies: tuple[str, ...] = ()
    needs: str | None = None
    ready: tuple[str, ...] = ()
    beside: str = ""
    contradicts: tuple[str, ...] = ()


class Ledger(Settings):
    """All rows, in the order of the documents."""

    paribus: Literal[1]
    claims: tuple[Row, ...]

    @property
    def by_id(self) -> Mapping[str, Row]:
        """Return the rows by their ids."""
        return {row.id: row for row in self.claims}


@dataclass(frozen=True)
class Ruling:
    """A row with its verdict: on what kind of evidence, for which reason, in which file, and our figure."""

    row: Row
    verdict: Word
    reason: str
    basis: Basis | None = None
    evidence: str | None = None
    measured: tuple[Mapping[str, Any], ...] = ()
    ours: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the ruling as `paribus claims --json` prints it."""
        row = self.row
        return {
            "id": row.id, "document": row.document, "section": row.section, "lines": row.lines,
            "type": row.type, "table": row.table, "says": row.says, "verdict": self.verdict,
            "claimed": [number.to_json() for number in row.numbers], "measured": list(self.measured),
            "basis": self.basis, "reason": self.reason, "evidence": self.evidence, "ours": self.ours,
            "needs": row.needs, "ready": list(row.ready), "beside": row.beside,
            "contradicts": list(row.contradicts),
        }  # fmt: skip


@cache
def ledger() -> Ledger:
    """Read the ledger that ships with paribus; raises StudyError with the line of what is wrong in it."""
    with as_file(files("paribus.compare") / FILE) as path:
        document = read_yaml(path)
    try:
        return Ledger.model_validate(document.value)
    except ValidationError as error:
        raise as_error(document, translate(error, Ledger, document.value)) from error


def row(claim_id: str) -> Row:
    """Return one row; raises ParibusError with the nearest id where there is none of that name."""
    rows = ledger().by_id
    found = rows.get(claim_id.upper())
    if found is None:
        raise ParibusError(
            f"there is no claim {claim_id!r}",
            way_out=nearest(claim_id.upper(), rows) or "paribus claims lists them.",
        )
    return found


def rule(
    row: Row,
    computed: Mapping[str, Computed],
    evidence: str,
    judged: Mapping[str, tuple[str, Judged]],
    unread: Mapping[str, str] = MappingProxyType({}),
) -> Ruling:
    """Give a row its verdict: computed where it was, else by its study, else not run.

    `computed` is what was recorded of exact rows, in the file `evidence`; `judged` has the study's name and
    verdict for each row that a study with results tests, `unread` why a study cannot be read here.
    """
    study, ran = judged.get(row.id, ("", None))
    ours = ran.ours if ran else ""
    if row.id in computed:
        return _exact(row, computed[row.id], evidence, ours)
    if ran is None or ran.verdict == "not run":
        reasons = [ran.reason if ran else "", f"it needs {row.needs}" if row.needs else ""]
        reasons += [f"{name} cannot be read: {unread[name]}" for name in row.studies if name in unread]
        reason = "; ".join(filter(None, reasons)) or "nothing that settles it stands here"
        return Ruling(row, "not run", reason, evidence=study or None, ours=ours)
    return Ruling(row, ran.verdict, ran.reason, "ran", study, ours=ours)


def _exact(row: Row, found: Computed, evidence: str, ours: str) -> Ruling:
    """Judge what was computed: contradicted if one part fails, supported if each holds and none is left."""
    measured = {one.quantity: one.value for one in found.numbers}
    failed = [_told(number, measured[number.quantity]) for number in row.numbers
              if number.quantity in measured and not number.holds(measured[number.quantity])]  # fmt: skip
    failed += [f"{one.says}: no{_because(one.found)}" for one in found.statements if not one.holds]
    left = [number.quantity for number in row.numbers if number.quantity not in measured]
    verdict: Word = "contradicted" if failed else "not run" if left else "supported"
    held = [f"{one.says}{_because(one.found)}" for one in found.statements if one.holds]
    parts = failed or (
        [f"{', '.join(left)} cannot be computed; it needs {row.needs}"]
        if left
        else held or ["every printed number is met to its last digit"]
    )
    shown = tuple(one.to_json() for one in found.numbers)
    basis: Basis | None = None if verdict == "not run" else "computed"
    return Ruling(row, verdict, "; ".join(parts), basis, f"{evidence}#{row.id}", shown, ours)


def _told(number: Number, found: float) -> str:
    unit = f" {number.unit}" if number.unit else ""
    return f"{number.quantity} is {found:.6g}{unit}, claimed {number}"


def _because(found: str) -> str:
    return f" ({found})" if found else ""


def counts(rulings: Iterable[Ruling]) -> dict[Word, int]:
    """Count rulings by verdict, every verdict named."""
    words: Sequence[Word] = ("supported", "contradicted", "inconclusive", "not run")
    found = [ruling.verdict for ruling in rulings]
    return {word: found.count(word) for word in words}
