"""Models of a few thousand parameters, rows of unequal lengths, and a training run in a tenth of a second."""

from __future__ import annotations

import gc
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import peft  # noqa: F401  (loaded before what there is is frozen)
import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm

from paribus.plan.trial import Training
from paribus.sources.models import _facts
from paribus.sources.weights import Weights
from paribus.techniques import Live, ModelFacts, Technique
from paribus.train.checkpoint import Checkpoints
from paribus.train.data import Encoded
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.train.trainer import AblationTrainer

VOCABULARY = 48

gc.collect()
gc.freeze()  # every training ends with a full collection, which would walk through the libraries each time


SHARED: Final = {"vocab_size": VOCABULARY, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHAPE: Final = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def llama(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Two layers of width 32, tied embeddings, no biases."""
    return _made(LlamaForCausalLM, LlamaConfig(**SHARED, **SHAPE, tie_word_embeddings=True), seed, dtype)


def gpt2(seed: int = 0, dtype: torch.dtype = torch.float32, dropout: float = 0.0, layers: int = 1) -> Any:
    """Width 32 with biases, learned positions, and Conv1D in place of nn.Linear."""
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": layers, "n_head": 2}
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return _made(GPT2LMHeadModel, GPT2Config(**SHARED, **sizes, **rates), seed, dtype)


def qwen2(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Like Llama with biases on queries, keys and values, and a head of its own."""
    return _made(Qwen2ForCausalLM, Qwen2Config(**SHARED, **SHAPE, tie_word_embeddings=False), seed, dtype)


def mistral(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Like Llama with a head of its own and a window of attention that is shorter than most rows."""
    config = MistralConfig(**SHARED, **SHAPE, sliding_window=6, tie_word_embeddings=False)
    return _made(MistralForCausalLM, config, seed, dtype)


def opt(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Learned positions, biases, ReLU, dropout; its feed-forward layers have no module of their own."""
    sizes = {"hidden_size": 32, "word_embed_proj_dim": 32, "ffn_dim": 64, "max_position_embeddings": 64}
    config = OPTConfig(**SHARED, **sizes, num_hidden_layers=2, num_attention_heads=2, dropout=0.1)
    return _made(OPTForCausalLM, config, seed, dtype)


def gemma(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Scaled embeddings, norms by 1 + weight, heads wider than the width over their number."""
    return _made(GemmaForCausalLM, GemmaConfig(**SHARED, **SHAPE, head_dim=24), seed, dtype)


def _made(model_class: Any, config: Any, seed: int, dtype: torch.dtype) -> Any:
    """Draw a model's weights; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).to(dtype)
    return _with_double_norms(model) if dtype == torch.float64 else model


def _with_double_norms(model: Any) -> Any:
    """Let norms compute in fp64: transformers computes them in fp32 whatever the dtype of the weights.

    On Gemma that alone sets splits of a batch 2e-8 apart after 160 steps; without it they are 2e-16 apart.
    """
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.__class__ = _double(type(module))
    return model


@cache
def _double(norm: Any) -> Any:
    shift = 1.0 if norm is GemmaRMSNorm else 0.0

    def forward(self: Any, hidden: torch.Tensor) -> torch.Tensor:
        epsilon = self.eps if norm is GemmaRMSNorm else self.variance_epsilon
        return hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + epsilon) * (shift + self.weight)

    return type(f"Double{norm.__name__}", (norm,), {"forward": forward})


MODELS: Final[dict[str, Callable[..., Any]]] = {
    "llama": llama,
    "gpt2": partial(gpt2, layers=2),
    "qwen2": qwen2,
    "mistral": mistral,
    "opt": opt,
    "gemma": gemma,
}
"""Six architectures; each takes a seed and a dtype."""


@cache
def facts(name: str) -> ModelFacts:
    """Return what planning knows of one of `MODELS`, read from its config as for any model."""
    model = MODELS[name]()
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    shapes = {path: tuple(parameter.shape) for path, parameter in model.named_parameters()}
    return _facts(config, Weights((), shapes), Path(), chat=True)


def rows(count: int = 24, seed: int = 0) -> list[Encoded]:
    """Make rows of 4 to 14 tokens of which 1 to 6 are targets: every batch is uneven."""
    draw = random.Random(seed)
    made = []
    for index in range(count):
        prompt, answer = draw.randint(3, 8), draw.randint(1, 6)
        ids = tuple(draw.randrange(3, VOCABULARY) for _ in range(prompt + answer))
        labels = (-100,) * prompt + ids[prompt:]
        made.append(Encoded(f"row{seed}.{index}", ids, labels, truncated=index == 0, ends_with_eos=False))
    return made


@dataclass
class Run:
    """What a run left: its result, the final trainable weights (copies) and the proof of each technique."""

    trained: Trained
    weights: dict[str, torch.Tensor]
    proofs: list[dict[str, Any]]
    live: Live

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.trained.curve]


Watcher = Callable[[Any, Live], None]
"""Called with the model under its techniques and what the running step knows."""


def run(
    model: Any,
    *techniques: Technique,
    examples: Sequence[Encoded] | None = None,
    seed: int = 0,
    readers: Sequence[Reader] = (),
    trainer_class: type[AblationTrainer] = AblationTrainer,
    before: Watcher | None = None,
    after: Watcher | None = None,
    proofs: bool = True,
    checkpoints: Checkpoints | None = None,
    **training: Any,
) -> Run:
    """Train on one thread under some techniques; eight steps of eight examples unless told otherwise.

    `before` and `after` see the model when the techniques are applied and when it has been trained.
    """
    torch.set_num_threads(1)
    chosen = settings(**training)
    examples = rows() if examples is None else examples
    live = Live(seed=seed, steps=optimizer_steps(chosen, len(examples)))
    with ExitStack() as stack:
        for technique in techniques:
            model = stack.enter_context(technique.applied(model, live))
        if before:
            before(model, live)
        trained = train(
            model,
            examples,
            chosen,
            live,
            techniques=techniques,
            pad_token_id=0,
            readers=readers,
            listener=lambda step, steps, loss: None,
            folder=Path(stack.enter_context(tempfile.TemporaryDirectory())),
            trainer_class=trainer_class,
            checkpoints=checkpoints,
        )
        found = [technique.proof(model, live) for technique in techniques] if proofs else []
        weights = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        if after:
            after(model, live)
    return Run(trained, weights, found, live)


def settings(**training: Any) -> Training:
    """Return the settings of a training run: eight steps of eight examples unless told otherwise."""
    usual = {"effective_batch_size": 8, "max_steps": 8, "learning_rate": 1e-3, "warmup_steps": 2}
    if "epochs" in training:
        del usual["max_steps"]
    return Training(**usual | training)


def distance(one: Run, other: Run) -> float:
    """Return the largest difference between the final weights of two runs."""
    assert one.weights.keys() == other.weights.keys()
    return largest((one.weights[name] - other.weights[name]).abs().max().item() for name in one.weights)


def largest(sizes: Iterable[float]) -> float:
    """Return the largest of some sizes; one that is no number is beyond any limit."""
    return max(math.inf if math.isnan(size) else size for size in sizes)
