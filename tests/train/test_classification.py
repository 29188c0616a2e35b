"""A head for classes: it always trains, and batch statistics alone depend on who shares a micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, MixtralConfig, OPTConfig

import tiny
from paribus.machine import host
from paribus.plan.preflight import obstacle
from paribus.plan.trial import Heldout, Job, Training, Trial
from paribus.record.result import Finished
from paribus.score.heldout import Scorer
from paribus.sources.blocks import EmbeddedData, EmbeddedModel, Norm, Task
from paribus.sources.load import load_splits
from paribus.sources.models import locate
from paribus.techniques import Accumulation, BitFit, Fp8, Fp32, Full, Lora, NoEffect, Noise, Technique
from paribus.techniques.tuning import weights
from paribus.train.classifier import Classifier
from paribus.train.data import Encoded
from paribus.train.kept import load_kept
from paribus.train.model import drawn_model, load_model
from paribus.train.objective import OneOfClasses
from paribus.train.trainer import AblationTrainer
from paribus.worker import perform as room
from paribus.worker.perform import Performed, perform
from paribus.worker.unchanged import content

CLASSES = 3
NORMS: tuple[Norm, ...] = ("none", "layer", "group", "batch")


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARIBUS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def rows(count: int = 24) -> list[Encoded]:
    """Rows of unequal lengths; the class of each stands at its last token."""
    return [
        Encoded(
            row.example_id, row.input_ids, (*[-100] * (len(row.input_ids) - 1), n % CLASSES), False, False
        )
        for n, row in enumerate(tiny.rows(count))
    ]


class Trainer(AblationTrainer):
    """Learns classes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "objective": OneOfClasses()})


class Gradients(Technique):
    """Keeps the gradient of each step."""

    def after_step(self, model: Any, live: Any) -> None:
        named = model.named_parameters()
        live.observed["gradient"] = torch.cat([p.grad.flatten() for _, p in named if p.grad is not None])


def classifier(norm: Norm = "none", model: Any = tiny.llama, **settings: Any) -> Any:
    return Classifier(model(**settings), CLASSES, norm, 0).to(settings.get("dtype", torch.float32))


def run(model: Any, *techniques: Technique, **settings: Any) -> tiny.Run:
    settings = {"examples": rows(), "trainer_class": Trainer, "max_steps": 3, **settings}
    return tiny.run(model, *techniques, **settings)


def gradient(norm: Norm, steps: int, *techniques: Technique) -> torch.Tensor:
    """Return the gradient of one optimizer step of eight rows, in fp64."""
    model = classifier(norm, dtype=torch.float64)
    watched = Full(), *techniques, Accumulation(steps=steps), Gradients()
    return run(model, *watched, max_steps=1, max_grad_norm=0, warmup_steps=0).live.observed["gradient"]


@pytest.mark.parametrize("alpha", [0, 5])
@pytest.mark.parametrize("norm", NORMS)
def test_only_batch_statistics_depend_on_the_split(norm: Norm, alpha: float) -> None:
    whole, split = (gradient(norm, steps, Noise(alpha=alpha)) for steps in (1, 4))
    relative = float((split - whole).norm() / whole.norm())
    if norm == "batch":
        assert relative > 0.1
    else:
        assert relative < 1e-12


@pytest.mark.parametrize("tuning", [Full(), Lora(r=4)])
def test_running_statistics_survive_save_and_reload(tuning: Any, tmp_path: Path) -> None:
    def scored(model: Any) -> torch.Tensor:
        batch = OneOfClasses().collate(rows(6), 0)
        with torch.no_grad():
            return model.eval()(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits

    found: dict[str, torch.Tensor] = {}

    def keep(model: Any, live: Any) -> None:
        found["trained"] = scored(model)
        tuning.save(model, tmp_path)

    def reload(model: Any, live: Any) -> None:
        tuning.load(model, tmp_path)
        found["reloaded"] = scored(model)
        head = next(module for module in model.modules() if getattr(module, "always_trains", False))
        assert int(head.norm.num_batches_tracked) == 3
        head.norm.reset_running_stats()
        found["without statistics"] = scored(model)
        model.train()

    run(classifier("batch"), tuning, after=keep)
    run(classifier("batch"), tuning, before=reload, proofs=False)
    assert torch.equal(found["trained"], found["reloaded"])
    assert not torch.allclose(found["trained"], found["without statistics"])


@pytest.mark.parametrize("model", [tiny.llama, tiny.gpt2])
@pytest.mark.parametrize("norm", NORMS)
def test_a_row_is_read_at_its_last_real_token_whoever_is_beside_it(model: Any, norm: Norm) -> None:
    made, few = classifier(norm, model).eval(), rows(5)
    batch = OneOfClasses().collate(few, 0)
    together = made(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    alone = torch.cat([made(input_ids=torch.tensor([row.input_ids])).logits for row in few])
    assert together.shape == (5, CLASSES)
    assert torch.allclose(together, alone, atol=1e-5)


def test_the_head_starts_the_same_whatever_its_norm_and_otherwise_for_another_seed() -> None:
    starts = [Classifier(tiny.llama(), CLASSES, norm, 0).head.linear.weight for norm in NORMS]
    assert all(torch.equal(start, starts[0]) for start in starts)
    assert not torch.equal(starts[0], Classifier(tiny.llama(), CLASSES, "none", 1).head.linear.weight)
    assert float(starts[0].detach().std()) == pytest.approx(0.02, rel=0.2)


TUNINGS = {"full": Full(), "lora": Lora(), "bitfit": BitFit()}


@pytest.mark.parametrize("tuning", TUNINGS)
def test_the_head_trains_under_every_tuning_and_the_decoder_as_the_tuning_says(tuning: str) -> None:
    made = classifier("layer", tiny.gpt2)
    start = {name: p.detach().clone() for name, p in made.named_parameters()}
    done = run(made, TUNINGS[tuning])
    assert done.proofs[0]["heads_trained"] == [
        f"head.{part}.{name}" for part in ("linear", "norm") for name in ("bias", "weight")
    ]
    heads = {name for name in done.weights if ".head." in f".{name}"}
    assert len(heads) == 4
    for name in heads:
        assert not torch.equal(done.weights[name], start[name.removeprefix("base_model.model.")])
    beside = {name for name in done.weights if name not in heads}
    wanted = {"full": "", "lora": "lora_", "bitfit": ".bias"}[tuning]
    assert beside and all(wanted in name for name in beside)
    assert all(p.requires_grad for p in made.parameters())


def test_a_head_alone_is_no_effect_of_a_tuning() -> None:
    """A planted fault: the tuning's own parameters stand still."""

    def frozen(model: Any, live: Any) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("head." in name)

    with pytest.raises(NoEffect, match="no parameter moved"):
        run(classifier(), Full(), before=frozen)


def test_a_micro_batch_of_one_row_has_no_batch_statistics() -> None:
    with pytest.raises(NoEffect, match="a micro-batch of one row"):
        run(classifier("batch"), Full(), examples=rows(9))


def test_a_reading_is_the_loss_and_the_share_of_examples() -> None:
    made, few = classifier().eval(), rows(7)
    scorer = Scorer(
        Heldout(train_sample=0), [], {"test": {"all": few}}, task="classification", batch_tokens=30
    )
    scorer.read(made, 0, 0.0)
    (reading,) = scorer.curve
    logits = torch.cat([made(input_ids=torch.tensor([row.input_ids])).logits for row in few]).detach()
    labels = torch.tensor([row.labels[-1] for row in few])
    assert reading.loss == pytest.approx(float(cross_entropy(logits, labels)), rel=1e-5)
    assert reading.accuracy == pytest.approx(float((logits.argmax(1) == labels).double().mean()))
    assert (reading.targets, reading.examples) == (7, 7)


def job(task: Task, norm: Norm = "none", **chosen: Any) -> Job:
    """A trial of three steps on the embedded base."""
    data = EmbeddedData(train_examples=24, validation_examples=6, test_examples=6)
    model, folder = EmbeddedModel(classifier_norm=norm), Path()
    axes = {
        "gradient_accumulation_steps": Accumulation(),
        "neftune_noise_alpha": Noise(),
        "precision": Fp32(),
        "tuning": Full(),
    }
    trial = Trial(
        task=task,
        model=model,
        data=data,
        content=content(locate(model, folder), load_splits(data, folder, task), data, task),
        training=Training(effective_batch_size=8, epochs=1, learning_rate=2e-3, max_length=64),
        seed=0,
        **axes | chosen,
    )
    scores = (Heldout(train_sample=4),)
    return Job(trial_id=trial.trial_id, group=trial.group, trial=trial, scores=scores)


def done(given: Job, folder: Path) -> Performed:
    return perform(given, Path(), folder, lambda progress: None)


EVERYTHING = {
    "precision": Fp8(compute="emulated"),
    "neftune_noise_alpha": Noise(alpha=5),
    "gradient_accumulation_steps": Accumulation(steps=4),
}


@pytest.mark.parametrize(("task", "tuning"), [("classification", Lora(r=4)), ("pretrain", Full())])
def test_a_trial_with_every_technique(task: Task, tuning: Any, tmp_path: Path) -> None:
    performed = done(job(task, tuning=tuning, **EVERYTHING), tmp_path)
    assert performed.outcome == Finished()
    assert performed.proof["neftune_noise_alpha"]["examples"] == 24
    assert performed.proof["gradient_accumulation_steps"]["optimizer_steps_by_micro_batches"] == {"4": 3}
    assert performed.proof["precision"]["modules_converted"] > 0
    counts = performed.counts
    assert counts is not None
    groups = {(reading.split, reading.group, reading.examples) for reading in performed.scores[0].curve}
    if task == "classification":
        assert counts.target_tokens == counts.examples == 24
        assert performed.proof["model.classifier_norm"]["head_tensors_moved"] == 2
        assert performed.proof["tuning"]["heads_trained"] == ["head.linear.bias", "head.linear.weight"]
        assert ("test", "new_wording", 6) in groups
    else:
        assert counts.target_tokens == counts.tokens - 24
        assert groups == {("train_sample", "all", 4), ("validation", "all", 6), ("test", "all", 6)}
        assert performed.scores[0].curve[0].loss > 6


def test_another_norm_is_another_training_from_the_same_decoder(tmp_path: Path) -> None:
    runs = {norm: done(job("classification", norm), tmp_path) for norm in ("layer", "batch")}
    assert job("classification", "layer").trial_id != job("classification").trial_id
    first = {norm: one.steps[0]["loss"] for norm, one in runs.items()}
    assert first["layer"] != first["batch"]
    assert runs["batch"].proof["model.classifier_norm"]["batches_in_running_statistics"] == 3
    orders = {one.identity.order_sha256 for one in runs.values() if one.identity}
    assert len(orders) == 1
    assert runs["layer"].resolved["architecture"] == "LlamaModel with a head of 3 classes, norm layer"


@pytest.mark.parametrize(
    ("task", "tuning"), [("classification", Full()), ("classification", Lora(r=4)), ("pretrain", Full())]
)
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_kept_weights_score_as_the_run_did(task: Task, tuning: Any, tmp_path: Path) -> None:
    given = job(task, "batch" if task == "classification" else "none", tuning=tuning)
    given = given.model_copy(update={"keep": "last"})
    performed = done(given, tmp_path)
    (scorer,) = room.load(given, Path()).scorers.values()
    with load_kept(given, tmp_path / "last") as kept:
        scorer.read(kept, 3, 1.0)
    last = [reading for reading in performed.scores[0].curve if reading.step == 3]
    assert [one.loss for one in scorer.curve] == pytest.approx([one.loss for one in last], rel=1e-6)


def test_random_weights_are_keyed_by_seed_and_name() -> None:
    files = locate(EmbeddedModel(), Path())
    state = torch.get_rng_state()
    one, again, other = (dict(drawn_model(files, seed).named_parameters()) for seed in (0, 0, 1))
    assert torch.equal(state, torch.get_rng_state())
    loaded = dict(load_model(files).named_parameters())
    assert one.keys() == loaded.keys()
    for name, drawn in one.items():
        assert torch.equal(drawn, again[name])
        if "norm" not in name:
            assert not torch.equal(drawn, other[name])
            assert not torch.equal(drawn, loaded[name])
            assert float(drawn.detach().std()) == pytest.approx(0.09, rel=0.05)
    layers = [one[f"model.layers.{n}.mlp.up_proj.weight"] for n in (0, 1)]
    assert not torch.equal(*layers)


def test_what_makes_no_sense_is_refused_while_planning() -> None:
    facts = locate(EmbeddedModel(), Path()).facts
    found = obstacle(job("pretrain", tuning=Lora()).trial, facts, host())
    assert found is not None
    assert "every one of them as it was drawn" in found.reason
    assert "tuning: full" in found.way_out
    assert obstacle(job("pretrain").trial, facts, host()) is None
    single = job("classification", "batch", gradient_accumulation_steps=Accumulation(steps=8)).trial
    assert "single row" in getattr(obstacle(single, facts, host()), "reason", "")
    pairs = job("classification", "batch", gradient_accumulation_steps=Accumulation(steps=4)).trial
    assert obstacle(pairs, facts, host()) is None


def test_what_a_training_leaves_has_statistics_only_where_something_trains() -> None:
    made = classifier("batch")
    assert {"head.norm.running_mean", "head.norm.running_var"} < set(weights.learnt(made))
    assert not [name for name in weights.learnt(classifier("layer")) if "running" in name]
    assert not [name for name in weights.learnt(made) if "rotary" in name]


def test_the_head_is_as_wide_as_what_the_decoder_gives() -> None:
    """OPT may project the output of its layers to the width of its embeddings."""
    model = AutoModelForCausalLM.from_config(
        OPTConfig(
            vocab_size=64,
            hidden_size=16,
            word_embed_proj_dim=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            ffn_dim=24,
            max_position_embeddings=64,
        )
    )
    head = Classifier(model, CLASSES, "layer", 0).head
    assert head.linear.in_features == 8
    assert learns(model)


def test_a_mixture_of_experts_learns_classes() -> None:
    model = AutoModelForCausalLM.from_config(
        MixtralConfig(
            vocab_size=64,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=24,
            num_local_experts=2,
        )
    )
    assert learns(model)


def learns(model: Any) -> bool:
    """Train a classifier of a model a little; says whether its loss fell."""
    made = Classifier(model, CLASSES, "layer", 0)
    losses = tiny.run(
        made, Full(), examples=rows(), trainer_class=Trainer, max_steps=40, learning_rate=1e-2
    ).losses
    return losses[-1] < 0.9 * losses[0]
