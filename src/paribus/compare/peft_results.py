"""Results as huggingface/peft's method_comparison writes them: a file an arm, one seed, one test accuracy.

With one seed nothing is known of another; what can be known is how far the items that were asked tell two
arms apart. So each score stands with its binomial error, and arms share a letter unless these part them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from paribus.compare.sheets import Column, Sheet
from paribus.errors import ParibusError, Place, nearest
from paribus.statistics import Interval, Ties, binomial_error, binomial_ties, exact_interval

GSM8K_TEST: Final = 1319
"""Problems in the test split of GSM8K (Cobbe et al. 2021, arXiv:2110.14168), on which these are scored."""
SCORE, ITEMS = "test accuracy", "test samples"
SHARED = ("model_id", "seed", "max_steps", "batch_size", "max_seq_length")
"""Settings of training that arms should share; a difference in one is said beside the table."""


@dataclass(frozen=True)
class Run:
    """One file: the arm's name and method, and, where training succeeded, its score on how many items."""

    name: str
    file: str
    method: str
    status: str
    settings: Mapping[str, Any] = field(repr=False)
    score: float | None = None
    items: int | None = None

    @property
    def error(self) -> float | None:
        """Return the binomial standard error of the score."""
        return None if self.score is None or self.items is None else binomial_error(self.score, self.items)

    @property
    def interval(self) -> Interval | None:
        """Return the exact 95 % interval of the score, for other items like these and this seed."""
        if self.score is None or self.items is None:
            return None
        return exact_interval(round(self.score * self.items), self.items)


@dataclass(frozen=True)
class Comparison:
    """Every run of a folder, those with a score from best to worst, then the others."""

    runs: tuple[Run, ...]
    alpha: float = 0.05

    @cached_property
    def ties(self) -> Ties[str]:
        """Group the arms by their binomial errors, p adjusted by Holm over all pairs."""
        scores = {r.name: (r.score, r.items) for r in self.runs if r.score is not None and r.items}
        return binomial_ties(scores, self.alpha)

    @property
    def warnings(self) -> list[str]:
        """Say what stands in the way of comparing these arms."""
        scored = [run for run in self.runs if run.score is not None]
        return [*map(_differs, _unshared(scored)), *(w for run in scored if (w := _no_whole_number(run)))]

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as one document: arms with score, error and letters, groups, tested pairs."""
        groups = {
            letter: [name for name, own in self.ties.letters.items() if letter in own]
            for letter in sorted({letter for own in self.ties.letters.values() for letter in own})
        }
        pairs = [{"first": a, "second": b, "p_holm": p} for (a, b), p in self.ties.holm_p.items()]
        return {
            "paribus": 1,
            "metric": SCORE,
            "alpha": self.alpha,
            "arms": [self._arm(run) for run in self.runs],
            "groups": groups,
            "pairs": pairs,
            "warnings": self.warnings,
        }

    def _arm(self, run: Run) -> dict[str, Any]:
        found = {"name": run.name, "file": run.file, "method": run.method, "status": run.status}
        if run.score is None or run.interval is None:
            return found
        return found | {
            "score": run.score, "error": run.error, "low": run.interval.low, "high": run.interval.high,
            "items": run.items, "ties": self.ties.letters[run.name],
        }  # fmt: skip

    def sheet(self) -> Sheet:
        """Return the comparison as a table."""
        rows = [
            {
                "name": run.name,
                "method": run.method,
                "score": run.score,
                "error": run.error,
                "items": f"{run.items:,}" if run.items else run.status,
                "ties": self.ties.letters.get(run.name),
            }
            for run in self.runs
        ]
        columns = (
            Column("name", "Arm"), Column("method", "Method"), Column("score", "Test accuracy", "share"),
            Column("error", "Error", "share"), Column("items", "Items"), Column("ties", "Ties"),
        )  # fmt: skip
        told = sum(p < self.alpha for p in self.ties.holm_p.values())
        note = (
            "Arms that share a letter are not told apart. Error: binomial, of the items alone. "
            f"{told} of {len(self.ties.holm_p)} pairs differ (normal test, Holm over all pairs, "
            f"{1 - self.alpha:.0%} confidence). One seed each: what another would give is not in them."
        )
        return Sheet("peft", f"{len(self.runs)} arms from best to worst", columns, tuple(rows), note)


def read_folder(folder: Path, items: int | None = None) -> Comparison:
    """Read every run in a folder; `items` is how many each was scored on, where its file does not say.

    Raises ParibusError with file and key for a folder without runs and for a file that is not one.
    """
    if not folder.is_dir():
        raise ParibusError("there is no such folder", place=Place(folder), way_out="Name one with *.json.")
    runs = [_read(path, items) for path in sorted(folder.glob("*.json"))]
    if not runs:
        way_out = "Results of one task stand in method_comparison/<task>/results."
        raise ParibusError("no *.json stands here", place=Place(folder), way_out=way_out)
    names = [run.name for run in runs]
    named = [
        run if names.count(run.name) == 1 else Run(**{**vars(run), "name": Path(run.file).stem})
        for run in runs
    ]
    return Comparison(
        tuple(sorted(named, key=lambda run: (run.score is None, -(run.score or 0.0), run.name)))
    )


class _File:
    """One document, asked for one key at a time, so that an error can say which is missing and where."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.document = json.loads(path.read_bytes())
        except json.JSONDecodeError as error:
            raise ParibusError(f"this is no JSON: {error.msg}", place=Place(path, error.lineno)) from error
        except (OSError, UnicodeDecodeError) as error:
            raise ParibusError(f"cannot be read: {error}", place=Place(path)) from error

    def get(self, route: str, kinds: type | tuple[type, ...]) -> Any:
        """Return what stands at `train_info/metrics/-1/test accuracy`."""
        found, before = self.document, "the file"
        for key in route.split("/"):
            if key == "-1" and isinstance(found, list) and found:
                found = found[-1]
            elif isinstance(found, dict) and key in found:
                found = found[key]
            else:
                what = "last entry" if key == "-1" else repr(key)
                raise self.error(f"{before} has no {what}", _present(key, found))
            before = key
        if not isinstance(found, kinds) or isinstance(found, bool):
            names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
            raise self.error(f"{route.replace('/', '.')} must be {names}, not {found!r}")
        return found

    def error(self, message: str, way_out: str | None = None) -> ParibusError:
        return ParibusError(message, place=Place(self.path), way_out=way_out)


def _present(key: str, found: Any) -> str:
    if not found:
        return "It is empty."
    return nearest(key, map(str, found)) if isinstance(found, dict) else f"It is {type(found).__name__}."


def _read(path: Path, items: int | None) -> Run:
    file = _File(path)
    config = file.get("run_info/peft_config", (dict, type(None)))
    settings = file.get("run_info/train_config", dict)
    status = file.get("train_info/status", str)
    method = file.get("run_info/peft_config/peft_type", str) if config else "full fine-tuning"
    run = Run(file.get("run_info/experiment_name", str), path.name, method, status, settings)
    if status != "success":
        return run
    score = float(file.get(f"train_info/metrics/-1/{SCORE}", (int, float)))
    if not 0 <= score <= 1:
        raise file.error(
            f"{SCORE} must be a share between 0 and 1, not {score:g}", "Percents are divided by 100."
        )
    return Run(**{**vars(run), "score": score, "items": _items(file, items)})


def _items(file: _File, given: int | None) -> int:
    """Return how many items a score is of: as the file says, else as given, else those of GSM8K."""
    last = file.get("train_info/metrics/-1", dict)
    if ITEMS in last:
        found = int(file.get(f"train_info/metrics/-1/{ITEMS}", int))
        if found < 1:
            raise file.error(f"{ITEMS} must be at least 1, not {found}")
        return found
    data = file.document.get("meta_info", {})
    sets = data.get("dataset_info", {}) if isinstance(data, dict) else {}
    if given is None and "gsm8k" not in sets:
        way_out = "Say it for the whole folder: --items 1319."
        raise file.error("the file does not say how many items it was scored on", way_out)
    return given or GSM8K_TEST


def _unshared(runs: Sequence[Run]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield each setting that arms should share and do not, with the arms at each value."""
    for name in SHARED:
        by_value: dict[str, list[str]] = {}
        for run in runs:
            by_value.setdefault(str(run.settings.get(name, "not given")), []).append(run.name)
        if len(by_value) > 1:
            yield name, by_value


def _differs(found: tuple[str, dict[str, list[str]]]) -> str:
    name, by_value = found
    ordered = sorted(by_value.items(), key=lambda item: -len(item[1]))
    said = "; ".join(f"{value} in {_arms(arms)}" for value, arms in ordered)
    return f"the arms differ in {name}: {said}"


def _arms(arms: Sequence[str]) -> str:
    return arms[0] if len(arms) == 1 else f"{len(arms)} arms"


def _no_whole_number(run: Run) -> str | None:
    """Say where no whole number of items gives a score as it is written: then there were more or fewer."""
    assert run.score is not None and run.items
    digits = len(repr(run.score).partition(".")[2])
    near = round(run.score * run.items) / run.items
    if abs(near - run.score) <= 0.5 * 10.0**-digits + 1e-12:
        return None
    return f"{run.file}: no whole number of {run.items:,} items is a share of {run.score!r}; give --items"
