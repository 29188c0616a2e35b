"""On whose behalf trials are tried, and which recorded outcomes that leaves standing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paribus.record.result import TrialResult


@dataclass(frozen=True)
class Rules:
    """On whose behalf and how often trials are tried.

    `retries` are the further attempts after one that ended so; `again` names recorded results to run once
    more (trial id -> the attempt that gave it); attempts up to the one in `forgiven` spend no retry.
    """

    machine_class: str
    provenance: str
    retries: Mapping[str, int] = field(default_factory=lambda: {"killed": 2, "crashed": 0})
    again: Mapping[str, int | None] = field(default_factory=dict)
    forgiven: Mapping[str, int] = field(default_factory=dict)


def replaceable(result: TrialResult, rules: Rules) -> bool:
    """Say whether a result makes room for another: it speaks of other machines, or is to be run again."""
    if not result.counts_on(rules.machine_class):
        return True
    return result.trial_id in rules.again and rules.again[result.trial_id] == result.attempt
