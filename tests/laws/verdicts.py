"""Judge one cell of the matrix: a case under a law on a model."""

from __future__ import annotations

import traceback
import warnings
from typing import Literal, NamedTuple

from cases import Case
from exceptions import exception

import tiny
from laws import LAWS, Silent
from paribus.techniques import NoEffect

Kind = Literal["passed", "failed", "exception", "unsupported", "silent"]


class Verdict(NamedTuple):
    """What became of a cell; `size` is what the law measured, `note` says why it is not simply passed."""

    kind: Kind
    size: float | None = None
    note: str = ""


def judge(case: Case, law: str, model: str, thorough: bool = False) -> Verdict:
    """Measure a law and hold the size against its limit, or against the bounds of a named exception."""
    if obstacle := case.obstacle(model):
        return Verdict("unsupported", note=obstacle.reason)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            size = LAWS[law](case.on(model), tiny.MODELS[model], thorough)
    except Silent as said:
        return Verdict("silent", note=str(said))
    except NoEffect as found:
        return Verdict("unsupported", note=str(found))
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{place.filename.rpartition('/')[2]}:{place.lineno}"
        words = (str(error).splitlines() or [""])[0][:160]
        return Verdict("failed", note=f"{type(error).__name__} at {where}: {words}")
    return _against(case, law, model, size)


def _against(case: Case, law: str, model: str, size: float) -> Verdict:
    limit = LAWS[law].limit
    named = [one for name in dict.fromkeys((case.name, *case.parts)) if (one := exception(name, law, model))]
    if not named:
        return Verdict("passed", size) if size <= limit else Verdict("failed", size, f"over {limit:g}")
    least, most = named[0].least, max(one.most for one in named)
    if size <= limit and (len(case.parts) > 1 or named[0].chance):
        return Verdict("passed", size)
    if len(case.parts) == 1 and not size >= least:
        return Verdict("failed", size, f"a named exception of at least {least:g} was not found")
    if not size <= most:
        return Verdict("failed", size, f"more than the {most:g} of its named exception")
    return Verdict("exception", size, named[0].reason)
