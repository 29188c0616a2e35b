"""Models of a few thousand parameters, rows of unequal lengths, and a training run in a tenth of a second."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from paribus.plan.trial import Training
from paribus.techniques import Live, Technique
from paribus.train.data import Encoded
from paribus.train.reading import Reader
from paribus.train.session import Trained, optimizer_steps, train
from paribus.train.trainer import AblationTrainer

VOCABULARY = 48


def llama(seed: int = 0, dtype: torch.dtype = torch.float32) -> Any:
    """Two layers of width 32, tied embeddings, no biases."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).to(dtype)


def gpt2(seed: int = 0, dropout: float = 0.0) -> Any:
    """One layer of width 32 with biases, and Conv1D in place of nn.Linear."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=64,
        n_embd=32,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


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


def run(
    model: Any,
    *techniques: Technique,
    examples: Sequence[Encoded] | None = None,
    seed: int = 0,
    readers: Sequence[Reader] = (),
    trainer_class: type[AblationTrainer] = AblationTrainer,
    **training: Any,
) -> Run:
    """Train on one thread under some techniques; eight steps of eight examples unless told otherwise."""
    torch.set_num_threads(1)
    settings = {
        "effective_batch_size": 8,
        "max_steps": 8,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        **training,
    }
    if "epochs" in training:
        del settings["max_steps"]
    chosen = Training(**settings)
    examples = rows() if examples is None else examples
    live = Live(seed=seed, steps=optimizer_steps(chosen, len(examples)))
    with ExitStack() as stack:
        for technique in techniques:
            model = stack.enter_context(technique.applied(model, live))
        trained = train(
            model,
            examples,
            chosen,
            live,
            techniques=techniques,
            pad_token_id=0,
            readers=readers,
            listener=lambda step, steps, loss: None,
            folder=Path(tempfile.mkdtemp()),
            trainer_class=trainer_class,
        )
        proofs = [technique.proof(model, live) for technique in techniques]
        weights = {
            name: parameter.detach().clone()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
    return Run(trained, weights, proofs, live)


def distance(one: Run, other: Run) -> float:
    """Return the largest difference between the final weights of two runs."""
    assert one.weights.keys() == other.weights.keys()
    return max((one.weights[name] - other.weights[name]).abs().max().item() for name in one.weights)
