"""Claims on noise on the embeddings: the article's formula and listings beside the paper's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.shapes import tiny_llama
from paribus.techniques.base import Live
from paribus.techniques.noise import Noise

if TYPE_CHECKING:
    import torch

ALPHA = 5.0
WIDTH, LENGTH = 4096, 512
"""Llama-2-7B's width, and an example of usual length."""


def draw(noise: Noise, width: int, *lengths: int) -> torch.Tensor:
    """Draw the noise of one micro-batch, [rows, padded length, width]; its last row is the same example."""
    import torch

    names = tuple(f"example {len(lengths) - row}" for row in range(len(lengths)))
    live = Live(seed=0, example_ids=names, lengths=lengths)
    return noise.draw(live, torch.zeros(len(lengths), max(lengths), width))


def norm(values: torch.Tensor) -> float:
    """Return the Frobenius norm, summed in fp64."""
    return values.double().norm().item()


def of_transformers(width: int, length: int) -> torch.Tensor:
    """Draw the noise that transformers itself adds to one example's embeddings."""
    import torch
    from transformers.integrations.neftune import neftune_post_forward_hook

    embedding = torch.nn.Embedding(1, width).train()
    embedding.neftune_noise_alpha = ALPHA  # type: ignore[assignment]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = neftune_post_forward_hook(embedding, (), torch.zeros(1, length, width))
    return found


def a45() -> Computed:
    """Set the article's divisor, the root of L, beside the paper's, the root of L d."""
    article, paper = Noise(alpha=ALPHA, scaling="article"), Noise(alpha=ALPHA)
    loud, right = draw(article, WIDTH, LENGTH), draw(paper, WIDTH, LENGTH)
    unit = right / (ALPHA / math.sqrt(LENGTH * WIDTH))
    ratio, library = norm(loud) / norm(right), norm(of_transformers(64, LENGTH))
    return computed(
        {
            "uniform.low": unit.min().item(),
            "uniform.high": unit.max().item(),
            "norm of the article's noise": norm(loud),
            "norm of the paper's noise": norm(right),
            "article over paper": ratio,
            "norm of transformers' noise at width 64": library,
        },
        Statement(
            says="alpha is divided by the root of the length alone",
            holds=math.isclose(library, ALPHA * math.sqrt(64 / 3), rel_tol=0.1),
            found=f"paper and transformers divide by the root of length times width, so that the norm is "
            f"{library:.1f} at any; at width {WIDTH} the article's 5 is the paper's {ALPHA * ratio:.0f}",
        ),
    )


def a46() -> Computed:
    """See whether the width enters the article's noise: its values spread alike at any width."""
    widths = (64, 256, 1024)
    spread = {
        scaling: [norm(draw(Noise(alpha=ALPHA, scaling=scaling), w, 64)) / math.sqrt(64 * w) for w in widths]
        for scaling in ("article", "paper")
    }
    change = {scaling: found[0] / found[-1] for scaling, found in spread.items()}
    return computed(
        {f"spread at width 64 over width 1024, {scaling}": ratio for scaling, ratio in change.items()},
        Statement(
            says="the width is a parameter of the noise",
            holds=not math.isclose(change["article"], 1, rel_tol=0.02),
            found="from width 64 to 1024 the article's noise stays as it is, the paper's is divided by "
            f"{change['paper']:.1f}",
        ),
    )


def a48() -> Computed:
    """Run the two lines that fail: the embedding's argument, and the model whose mode is switched."""
    from torch import nn

    try:
        nn.Embedding(vocab_size=50, embedding_dim=8)  # type: ignore[call-arg]
        runs, found = True, ""
    except TypeError as error:
        runs, found = False, f"TypeError: {str(error).split('.')[-1]}"
    wrapper, model = nn.Sequential(nn.Embedding(50, 8)), nn.Linear(8, 8)
    model.eval()
    return computed(
        {},
        Statement(says="the example runs", holds=runs, found=found),
        Statement(
            says="the model's eval() silences the wrapped embedding",
            holds=not wrapper.training,
            found="the wrapper stands outside the model and stays in training mode",
        ),
    )


def a49() -> Computed:
    """Replace the forward of a model's embedding, train, evaluate and put it back."""
    import torch

    model, ids = tiny_llama(), torch.arange(8).unsqueeze(0)
    embedding = model.get_input_embeddings()
    original = embedding.forward

    def noisy(tokens: torch.Tensor) -> torch.Tensor:
        clean = original(tokens)
        if not model.training:
            return clean
        return clean + torch.empty_like(clean).uniform_(-1, 1) * ALPHA / clean.shape[1] ** 0.5

    clean = model.eval()(ids).logits
    embedding.forward = noisy
    silent = torch.equal(model.eval()(ids).logits, clean)
    with torch.random.fork_rng(devices=[]):
        loud = not torch.equal(model.train()(ids).logits, model(ids).logits)
    embedding.forward = original
    restored = torch.equal(model.train()(ids).logits, clean)
    return computed(
        {},
        Statement(says="in training two passes differ", holds=loud),
        Statement(says="in evaluation nothing is added", holds=silent),
        Statement(says="putting the forward back ends it", holds=restored),
    )


def a52() -> Computed:
    """Follow the decay of alpha, and call the listing's forward, which needs what it never keeps."""
    steps = (0, 300, 1000, 10_000)
    noise = Noise(alpha=ALPHA, scaling="article", schedule="article")
    alpha = {step: noise.alpha_at(Live(seed=0, steps=10_000, step=step)) for step in steps}

    class AsListed:
        def __init__(self) -> None:
            self.alpha, self.step = ALPHA, 0

        def forward(self, ids: Any) -> Any:
            return self.original_forward(ids)  # type: ignore[attr-defined]

    try:
        AsListed().forward(None)
        runs, found = True, ""
    except AttributeError as error:
        runs, found = False, f"AttributeError: {error}"
    return computed(
        {
            "alpha[0]": alpha[0],
            "decay a 1000 steps": alpha[1000] / alpha[0],
            "alpha[1000]": alpha[1000],
            "alpha[10000]": alpha[10_000],
            "decay in 300 steps": (100 * (1 - alpha[300] / alpha[0]), "%"),
        },
        Statement(says="the listing runs", holds=runs, found=found),
    )


def a54() -> Computed:
    """Count what autograd keeps of a forward pass with and without noise; time is not counted here."""
    import torch

    def kept(noise: float) -> int:
        sizes: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        embedding, head, ids = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32), torch.arange(8)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            embedded = embedding(ids)
            if noise:
                embedded = embedded + torch.zeros_like(embedded).uniform_(-1, 1) * noise / len(ids) ** 0.5
            head(embedded).sum()
        return sum(sizes)

    bare, noisy = kept(0), kept(ALPHA)
    return computed(
        {"extra.memory": (100 * (noisy - bare) / bare, "%")},
        Statement(
            says="nothing more is kept for the backward pass",
            holds=noisy == bare,
            found="the noise itself is gone when it has been added",
        ),
    )


def a59() -> Computed:
    """Take one example of 16 tokens beside one of 64 and alone, as a batch and its split have it."""
    change = {}
    for length in ("padded", "example"):
        noise = Noise(alpha=ALPHA, scaling="article", length=length)
        together, alone = draw(noise, 32, 64, 16)[1, :16], draw(noise, 32, 16)[0]
        change[length] = norm(alone) / norm(together)
    return computed(
        {"noise after the split over before, padded length": change["padded"],
         "noise after the split over before, own length": change["example"]},
        Statement(
            says="the split of a batch leaves the noise as it is",
            holds=math.isclose(change["padded"], 1, rel_tol=1e-6),
            found=f"with the padded length, as listed, an example's noise grows {change['padded']:.2f} times "
            "when a longer one leaves its micro-batch; with its own length it stays",
        ),
    )  # fmt: skip


def a90() -> Computed:
    """Judge the summary's formula as the listing's."""
    found = a45()
    return computed({one.quantity: one.value for one in found.numbers[2:]}, *found.statements)


ROWS = {"A45": a45, "A46": a46, "A48": a48, "A49": a49, "A52": a52, "A54": a54, "A59": a59, "A90": a90}
