"""Benchmarks give the figures of lm-eval's own evaluation, from local files, whatever the batches."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.models import huggingface
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from paribus import embedded
from paribus.errors import ParibusError
from paribus.plan.scoring import Benchmark
from paribus.score import benchmarks, lm_eval_tasks
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


def test_each_figure_has_its_chance_and_number_and_the_bases_floor(folder: Path) -> None:
    base = benchmarks.score(benchmark(**BOTH), subject(folder)).figures
    assert [(figure.task, figure.metric, figure.n) for figure in base] == [
        ("mmlu_anatomy", "acc,none", 9),
        ("mmlu_astronomy", "acc,none", 5),
        ("two", "acc,none", 14),
    ]
    assert {figure.chance for figure in base} == {0.25}
    assert {figure.unit for figure in base} == {"share of items"}
    assert base[2].value == pytest.approx((base[0].value * 9 + base[1].value * 5) / 14)
    assert {figure.at_floor for figure in base} == {True}
    trained = benchmarks.score(benchmark(**BOTH), subject(folder, step=7)).figures
    assert {(figure.step, figure.at_floor) for figure in trained} == {(7, None)}
    generated = benchmarks.score(benchmark(**GSM8K, limit=2), subject(folder)).figures
    assert [figure.metric for figure in generated] == [
        "exact_match,strict-match",
        "exact_match,flexible-extract",
    ]
    assert {(figure.value, figure.chance, figure.n, figure.at_floor) for figure in generated} == {
        (0.0, 0.0, 2, True)
    }


def test_items_have_what_the_model_gave_and_no_texts(folder: Path) -> None:
    scored = benchmarks.score(benchmark(**ANATOMY), subject(folder))
    assert [(row["task"], row["doc_id"], row["metric"]) for row in scored.items] == [
        ("mmlu_anatomy", number, "acc,none") for number in range(9)
    ]
    for number, row in enumerate(scored.items):
        best = max(range(4), key=lambda index: row["loglikelihoods"][index])
        assert row["value"] == float(best == number % 4)
        assert (row["tokens"], row["ties"], row["truncated"]) == (None, None, False)
    assert scored.counts == {"truncated": 0}
    texts = folder / "texts"
    generated = benchmarks.score(benchmark(**GSM8K), subject(folder, step=3, texts=texts))
    assert {(row["tokens"], row["loglikelihoods"]) for row in generated.items} == {(8, None)}
    assert set(generated.counts) == {"truncated", "ties"}
    assert "swan" not in json.dumps(generated.items)
    lines = [json.loads(line) for line in (texts / "b-3.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["doc_id"] for line in lines] == list(range(10))
    assert all(line["answer"] for line in lines)
    assert not (folder / "none").exists()


def test_limits_and_seeds(folder: Path) -> None:
    def prompts(**settings: Any) -> list[str]:
        seen: list[str] = []

        class Watched(InMemoryLM):
            def generate_until(self, requests: Any, disable_tqdm: bool = True) -> list[str]:
                seen.extend(request.args[0] for request in requests)
                return super().generate_until(requests)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("paribus.score.lm.InMemoryLM", Watched)
            benchmarks.score(benchmark(**GSM8K | settings), subject(folder))
        return seen

    state = random.getstate()
    first = prompts(limit=3)
    assert len(first) == 3
    assert prompts(limit=3) == first
    assert prompts(limit=99)[:3] == first
    assert len(prompts(limit=99)) == 10
    assert prompts(limit=3, seed=5) != first
    assert random.getstate() == state
    assert [prompt.count("####") for prompt in prompts(limit=2, num_fewshot=2)] == [2, 2]
    assert [prompt.count("####") for prompt in prompts(limit=2, num_fewshot=0)] == [0, 0]


def test_the_chat_template_stands_around_prompts_as_in_lm_eval(folder: Path) -> None:
    setting = benchmark(**GSM8K, num_fewshot=1)
    (task,) = lm_eval_tasks.load(setting, folder).tasks.values()
    lm, made = InMemoryLM(model(), tokenizer()), []
    for template in (lm.apply_chat_template, reference().apply_chat_template):
        task.set_fewshot_seed(1234)
        task.build_all_requests(
            limit=3, apply_chat_template=True, fewshot_as_multiturn=True, chat_template=template
        )
        made.append([request.args for request in task.instances])
    assert made[0] == made[1]
    assert made[0][0][0].startswith("<bos><user> Question: How many")
    benchmarks.score(setting.model_copy(update={"apply_chat_template": True, "limit": 1}), subject(folder))
    bare = AutoTokenizer.from_pretrained(embedded.BASE)
    bare.chat_template = None
    with pytest.raises(ParibusError, match="no chat template"):
        InMemoryLM(model(), bare).apply_chat_template([{"role": "user", "content": "a"}])
    bare.chat_template = "{{ raise_exception('no system') if messages[0].role == 'system' else 'x' }}"
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]
    assert InMemoryLM(model(), bare).apply_chat_template(turns) == "x"
    bare.chat_template = "{{ raise_exception('never') }}"
    with pytest.raises(ParibusError, match="refuses the prompt: never"):
        InMemoryLM(model(), bare).apply_chat_template(turns)


def test_an_interrupted_scoring_goes_on_where_it_stopped(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paribus.score.benchmark_run.BLOCK", 4)
    whole = benchmarks.score(benchmark(**BOTH), subject(folder))
    heard: list[tuple[int, int]] = []

    def interrupt(done: int, of: int) -> None:
        heard.append((done, of))
        if done == 9:
            raise KeyboardInterrupt

    kept = Blocks(folder / "blocks")
    with pytest.raises(KeyboardInterrupt):
        benchmarks.score(benchmark(**BOTH), subject(folder, blocks=kept, tell=interrupt))
    assert heard == [(4, 14), (8, 14), (9, 14)]
    passes: list[Any] = []
    hook = model(2048).register_forward_hook(lambda *given: passes.append(1))
    again = benchmarks.score(benchmark(**BOTH), subject(folder, blocks=kept))
    hook.remove()
    assert (again.figures, again.items, again.counts) == (whole.figures, whole.items, whole.counts)
    assert len(passes) == 2  # the second subject's two blocks alone


def test_nothing_of_lm_evals_chatter_is_shown(folder: Path, capfd: Any, caplog: Any) -> None:
    benchmarks.check(benchmark(**BOTH), folder)
    benchmarks.score(benchmark(**GSM8K, limit=1), subject(folder))
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("lm_eval")] == []


def test_truncated_prompts_are_counted(folder: Path) -> None:
    with pytest.raises(ParibusError, match="mmlu_anatomy, document 0: its") as said:
        benchmarks.score(benchmark(**ANATOMY), subject(folder, model(32)))
    assert "truncate: true" in str(said.value)
    scored = benchmarks.score(benchmark(**ANATOMY, truncate=True), subject(folder, model(32)))
    assert scored.counts == {"truncated": 9}
    assert all(row["truncated"] for row in scored.items)
    with pytest.raises(ParibusError, match="gsm8k, document 0: its"):
        benchmarks.score(benchmark(**GSM8K | {"limit": 1}), subject(folder, model(32)))
    with pytest.raises(ParibusError, match="gsm8k, document 0: its") as said:
        setting = benchmark(**GSM8K | {"limit": 1, "max_gen_toks": 99, "truncate": True})
        benchmarks.score(setting, subject(folder, model(32)))
    assert "max_gen_toks" in str(said.value)


OWN = """
task: own
output_type: multiple_choice
test_split: test
doc_to_text: "{{text}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{label}}"
process_docs: !function helpers.shuffled
metric_list: [{metric: acc}, {metric: mcc}]
"""
SHUFFLED = """
import random

def shuffled(docs):
    def one(doc):
        choices = list(doc["choices"])
        random.shuffle(choices)
        right = doc["choices"][doc["answer"]]
        return {"text": doc["question"], "choices": choices, "label": choices.index(right)}
    return docs.map(one, remove_columns=["answer", "question", "subject"])
"""


def test_a_users_own_task_may_have_python_code_and_draw_in_it(folder: Path) -> None:
    (folder / "own.yaml").write_text(OWN)
    (folder / "helpers.py").write_text(SHUFFLED)
    setting = benchmark(file=Path("own.yaml"), data="mmlu/test/anatomy_test.jsonl")
    one, other = (benchmarks.score(setting, subject(folder)) for _ in range(2))
    assert (one.figures, one.items) == (other.figures, other.items)
    assert [figure.metric for figure in one.figures] == ["acc,none", "mcc,none"]
    assert one.figures[1].chance is None
    assert one.figures[1].unit == "mcc"
    assert one.figures[1].standard_error is not None
    before = benchmarks.check(setting, folder)
    assert before == benchmarks.check(setting, folder)
    (folder / "helpers.py").write_text(SHUFFLED + "# another\n")
    assert benchmarks.check(setting, folder) != before


def test_the_hash_is_of_yaml_files_and_documents(folder: Path) -> None:
    hashes = {
        name: benchmarks.check(benchmark(**one), folder) for name, one in (("a", ANATOMY), ("g", GSM8K))
    }
    assert len(set(hashes.values())) == 2
    (folder / "mmlu" / "test" / "astronomy_test.jsonl").write_text("nothing it reads")
    assert benchmarks.check(benchmark(**ANATOMY), folder) == hashes["a"]
    rows = [chosen(number) for number in range(8)]
    written(folder / "mmlu" / "test" / "anatomy_test.jsonl", rows)
    assert benchmarks.check(benchmark(**ANATOMY), folder) != hashes["a"]
    written(folder / "gsm8k" / "train.jsonl", QUESTIONS[11:])
    assert benchmarks.check(benchmark(**GSM8K), folder) != hashes["g"]
