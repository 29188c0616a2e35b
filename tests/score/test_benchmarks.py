"""Benchmarks give the figures of lm-eval's own evaluation, from local files, whatever the batches."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval
import lm_eval.models.huggingface as huggingface
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from paribus import embedded
from paribus.errors import ParibusError
from paribus.plan.scoring import Benchmark
from paribus.score import benchmarks, lm_eval_index, lm_eval_tasks
from paribus.score.blocks import Blocks
from paribus.score.lm import InMemoryLM
from paribus.score.subject import Scored, Subject


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(embedded.BASE)


@cache
def model(positions: int = 256, seed: int = 0) -> Any:
    """A random Llama that reads the embedded tokenizer's tokens."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=positions,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).eval()


def asked(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [
        Instance(request_type=kind, doc={}, arguments=given, idx=0, metadata=("task", number, 1))
        for number, given in enumerate(arguments)
    ]


PAIRS = asked(
    "loglikelihood",
    ("the swan is", " white"),
    ("the swan is", " black"),
    ("the swan is ", "white"),
    ("say red", " red red red blue"),
    ("", "the swan"),
    ("<bos>the swan", " is"),
    ("What is the colour of the swan?\nA. white\nB. black\nAnswer:", " A"),
    ("What is the colour of the swan?\nA. white\nB. black\nAnswer:", " B"),
)


def reference(**settings: Any) -> Any:
    return huggingface.HFLM(pretrained=model(), tokenizer=tokenizer(), device="cpu", **settings)


def test_log_likelihoods_are_those_of_lm_eval() -> None:
    ours, theirs = InMemoryLM(model(), tokenizer()).loglikelihood(PAIRS), reference().loglikelihood(PAIRS)
    for (value, greedy), (other, other_greedy) in zip(ours, theirs, strict=True):
        assert value == pytest.approx(other, abs=1e-5)
        assert greedy == other_greedy


def test_batches_and_shared_passes_do_not_matter() -> None:
    alone, together = (InMemoryLM(model(), tokenizer(), batch_rows=rows) for rows in (1, 8))
    for one, other in zip(alone.loglikelihood(PAIRS), together.loglikelihood(PAIRS), strict=True):
        assert one[0] == pytest.approx(other[0], abs=1e-5)
        assert one[1] == other[1]
    passes: list[int] = []
    hook = model().register_forward_hook(lambda *given: passes.append(len(given[2].logits)))
    InMemoryLM(model(), tokenizer(), batch_rows=1).loglikelihood(PAIRS[-2:])
    hook.remove()
    assert passes == [1]  # two choices of one token read the same context


def test_long_texts_are_scored_in_windows_as_in_lm_eval() -> None:
    texts = asked("loglikelihood_rolling", ("the swan is white. " * 9,), ("say red " * 200,))
    lm = InMemoryLM(model(), tokenizer())
    theirs = reference().loglikelihood_rolling(texts)
    assert lm.loglikelihood_rolling(texts) == pytest.approx(theirs, rel=1e-6)
    short, long = (len(tokenizer().encode(text.args[0])) for text in texts)
    assert short < lm.max_length < long


LONG = asked("loglikelihood", ("the swan is white " * 99, " and red"), ("the swan is", " white"))


def test_a_prompt_beyond_the_context_is_an_error_unless_it_may_be_truncated() -> None:
    with pytest.raises(ParibusError, match=r"task, document 0: its \d+ tokens are more than the 256") as said:
        InMemoryLM(model(), tokenizer()).loglikelihood(LONG)
    assert "truncate: true" in str(said.value)
    lm = InMemoryLM(model(), tokenizer(), truncate=True)
    ours, theirs = lm.loglikelihood(LONG), reference().loglikelihood(LONG)
    assert [value for value, _ in ours] == pytest.approx([value for value, _ in theirs], abs=1e-5)
    assert [note["truncated"] for note in lm.notes] == [1, 0]


def test_an_answer_longer_than_the_context_cannot_be_truncated() -> None:
    with pytest.raises(ParibusError, match="task, document 0: its"):
        lm = InMemoryLM(model(), tokenizer(), truncate=True)
        lm.loglikelihood(asked("loglikelihood", ("the swan", " is white" * 200)))


def test_logits_that_are_no_numbers_name_task_and_document() -> None:
    broken = LlamaForCausalLM(model().config).eval()
    broken.load_state_dict(model().state_dict())
    with torch.no_grad():
        broken.model.embed_tokens.weight[tokenizer().encode(" red")[-1]] = float("nan")
    with pytest.raises(ParibusError, match="task, document 3: the model's logits are not finite"):
        InMemoryLM(broken, tokenizer()).loglikelihood(PAIRS)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_virtual_tokens_take_room_and_their_logits_are_left_out() -> None:
    import peft

    torch.manual_seed(3)
    base = LlamaForCausalLM(model().config).eval()
    base.load_state_dict(model().state_dict())
    settings = peft.PromptTuningConfig(task_type=peft.TaskType.CAUSAL_LM, num_virtual_tokens=5)
    prompted = peft.get_peft_model(base, settings).eval()
    lm = InMemoryLM(prompted, tokenizer())
    assert lm.max_length == 251
    ((value, _), *_) = lm.loglikelihood(PAIRS[:3])
    ids = torch.tensor([tokenizer().encode("the swan is white")])
    logits = prompted(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -2]
    assert value == pytest.approx(logits.log_softmax(-1)[ids[0, -1]].item(), abs=1e-5)
    (plain, _), *_ = InMemoryLM(model(), tokenizer()).loglikelihood(PAIRS[:1])
    assert value != pytest.approx(plain, abs=1e-3)


def test_generated_answers_are_those_of_lm_eval() -> None:
    wanted = {"until": ["colour", "ab"], "max_gen_toks": 24, "do_sample": False}
    prompts = [("the swan is", wanted), ("say red", wanted), ("say blue and green", {**wanted, "until": []})]
    lm = InMemoryLM(model(), tokenizer())
    requests = asked("generate_until", *prompts)
    assert lm.generate_until(requests) == reference().generate_until(requests)
    assert all(0 < note["tokens"] <= 24 for note in lm.notes)
    assert [note["ties"] for note in lm.notes] == [0, 0, 0]
    short = InMemoryLM(model(), tokenizer(), max_gen_toks=3)
    short.generate_until(requests)
    assert [note["tokens"] for note in short.notes] == [3, 3, 3]


TASKS = Path(lm_eval.__file__).parent / "tasks"
QUESTIONS = [
    {"question": f"How many swans are {number} swans and one swan?", "answer": f"They are #### {number + 1}"}
    for number in range(40)
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chosen(number: int, subject: str = "anatomy") -> dict[str, Any]:
    return {
        "question": f"Which colour has {subject} number {number}? ",
        "subject": subject,
        "choices": ["red", "blue", "green", f"colour {number}"],
        "answer": number % 4,
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of GSM8K and of two subjects of MMLU, and a group of these two, with two weights."""
    written(tmp_path / "gsm8k" / "train.jsonl", QUESTIONS[10:])
    written(tmp_path / "gsm8k" / "test.jsonl", QUESTIONS[:10])
    for subject, count in (("anatomy", 9), ("astronomy", 5)):
        rows = [chosen(number, subject) for number in range(count + 5)]
        written(tmp_path / "mmlu" / "test" / f"{subject}_test.jsonl", rows[:count])
        written(tmp_path / "mmlu" / "dev" / f"{subject}_dev.jsonl", rows[count:])
    (tmp_path / "two.yaml").write_text(
        "group: two\ntask: [mmlu_anatomy, mmlu_astronomy]\n"
        "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    )
    return tmp_path


def subject(base: Path, lm: Any = None, **settings: Any) -> Subject:
    return Subject(lm or model(2048), tokenizer(), base, **{"step": 0, "blocks": Blocks()} | settings)


GSM8K = {"file": TASKS / "gsm8k" / "gsm8k.yaml", "data": "gsm8k", "max_gen_toks": 8}
ANATOMY = {"file": TASKS / "mmlu" / "default" / "mmlu_anatomy.yaml", "data": "mmlu"}
BOTH = {"file": Path("two.yaml"), "data": "mmlu"}


def benchmark(**settings: Any) -> Benchmark:
    return Benchmark(name="b", **settings)


def figures(scored: Scored) -> dict[tuple[str, str], float]:
    return {(figure.task, figure.metric): figure.value for figure in scored.figures}


@pytest.mark.parametrize("setting", [GSM8K, ANATOMY | {"num_fewshot": 2}, BOTH])
def test_figures_are_those_of_lm_evals_own_evaluation(folder: Path, setting: dict[str, Any]) -> None:
    scored = benchmarks.score(benchmark(**setting), subject(folder))
    loaded = lm_eval_tasks.load(benchmark(**setting), folder)
    for task in loaded.tasks.values():
        if task.OUTPUT_TYPE == "generate_until":
            task.set_config("generation_kwargs", {"max_gen_toks": 8}, update=True)
    theirs: Any = evaluate(
        huggingface.HFLM(pretrained=model(2048), tokenizer=tokenizer(), device="cpu"),
        {"tasks": loaded.tasks, "groups": loaded.groups},
        bootstrap_iters=10,
    )
    expected = {
        (task, metric): (value, found[metric.replace(",", "_stderr,")])
        for task, found in theirs["results"].items()
        for metric, value in found.items()
        if "," in metric and "_stderr" not in metric
    }
    assert {key: pytest.approx(value) for key, (value, _) in expected.items()} == figures(scored)
    for figure in scored.figures:
        assert figure.standard_error == pytest.approx(expected[figure.task, figure.metric][1])
    items = {(row["task"], row["doc_id"], row["metric"]): row for row in scored.items}
    for task, rows in theirs["samples"].items():
        for row in rows:
            for metric in row["metrics"]:
                ours = items[task, row["doc_id"], f"{metric},{row['filter']}"]
                assert (ours["value"], ours["doc_hash"]) == (row[metric], row["doc_hash"])
                if ours["loglikelihoods"] is not None:
                    values = [response[0] for response in row["filtered_resps"]]
                    assert ours["loglikelihoods"] == pytest.approx(values, abs=1e-5)
