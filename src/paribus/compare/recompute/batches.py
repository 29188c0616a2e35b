"""Claims on batches: their cost, their speed, means of gradients, and shapes with a batch dimension."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paribus.compare.recompute import Computed, Statement, computed

if TYPE_CHECKING:
    import torch

VECTORS = ((2.5, -1.3, 0.8), (-0.5, 1.8, -1.2), (1.2, 0.3, 0.9))
SENTENCE = (101, 2031, 1921, 1921, 3613, 1501, 102)
SENTENCES = (
    SENTENCE,
    (101, 6821, 6956, 4510, 2209, 2523, 102),
    (101, 782, 1501, 6956, 3221, 102, 0),
    (101, 3315, 1104, 2209, 2523, 1446, 102),
)
"""Token ids of the article's lines 164 and 180-183, the third padded with 0."""
DRAWN = (
    (101, 2031, 1921, 102, 0, 0, 0),
    (101, 6821, 6956, 4510, 2209, 0),
    (101, 782, 1501, 6956, 3221, 0),
    (101, 3315, 1104, 2209, 2523, 0),
)
"""The rows of its diagram, lines 608-611."""
SCORES = ((2.3, 1.5), (0.8, 3.2), (2.1, 1.8), (1.2, 2.9))


def shape(name: str, found: Sequence[int]) -> dict[str, float]:
    """Name the lengths of a tensor's dimensions: `name[0]`, `name[1]`, ..."""
    return {f"{name}[{index}]": float(length) for index, length in enumerate(found)}


def refused(call: Callable[[], object]) -> str:
    """Say with which error and first sentence a call ends, or that it runs."""
    try:
        call()
    except (RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0].split('. ')[0].rstrip('.')}"
    return "nothing: it runs"


def a05() -> Computed:
    """Multiply eight cards by 24 hours by 3 dollars."""
    return computed({"cost": (8 * 24 * 3, "$ an epoch")})


def a07() -> Computed:
    """Time 1,000 samples of 10 ms and 32 batches of 15 ms, and count what each trains on."""
    samples, batches, rows = 1000, 32, 32
    alone, batched = samples * 10e-3, batches * 15e-3
    return computed(
        {
            "one_by_one": (alone, "s"),
            "in_batches": (batched, "s"),
            "speedup": (alone / batched, "x"),
            "updates.one_by_one": samples,
            "updates.in_batches": batches,
        },
        Statement(
            says="32 batches of 32 are the 1,000 samples that it trains one by one",
            holds=batches * rows == samples,
            found=f"they are {batches * rows:,}, and 32 updates are set against 1,000",
        ),
    )


def a08() -> Computed:
    """Average the three gradient vectors of the article."""
    mean = [sum(column) / len(VECTORS) for column in zip(*VECTORS, strict=True)]
    return computed({f"mean[{i}]": value for i, value in enumerate(mean)})


def a09() -> Computed:
    """Compare the gradient of a mean loss with the mean of the samples' gradients, in fp64."""
    import torch
    from torch.nn.functional import cross_entropy

    rows, labels, weight = _classifier(8)

    def gradient(chosen: slice) -> torch.Tensor:
        loss = cross_entropy(rows[chosen] @ weight.T, labels[chosen])
        return torch.autograd.grad(loss, weight)[0]

    whole = gradient(slice(8))
    parts = [gradient(slice(i, i + 1)) for i in range(8)]
    off = float((torch.stack(parts).mean(0) - whole).norm() / whole.norm())
    return computed(
        {"relative_error": off},
        Statement(
            says="the gradient of the samples' mean loss is the mean of their gradients",
            holds=off < 1e-12,
            found="up to rounding in fp64; a mean over tokens weighs each sample by its number of targets",
        ),
    )


def a10() -> Computed:
    """Send one sentence and four through an embedding and an encoder layer of width 768."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        embedding = torch.nn.Embedding(30000, 768)
        encoder = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
        found: dict[str, float] = {}
        for name, rows in (("single", SENTENCE), ("batch", SENTENCES)):
            ids = torch.tensor(rows, device="meta")
            embedded = embedding(ids)
            stages = {"ids": ids, "embeddings": embedded, "output": encoder(embedded)}
            for stage, tensor in stages.items():
                found |= shape(f"{name}.{stage}", tensor.shape)
    return computed(found)


def a11() -> Computed:
    """Compare one product of four rows with a 3072 x 768 matrix to the four products, in fp64."""
    import torch

    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(4, 768, dtype=torch.float64, generator=draw)
    weight = torch.randn(3072, 768, dtype=torch.float64, generator=draw)
    whole, alone = rows @ weight.T, [weight @ row for row in rows]
    largest = float((whole - torch.stack(alone)).abs().max())
    return computed(
        shape("single", alone[0].shape) | shape("batch", whole.shape),
        Statement(
            says="one product gives each sample what its own product gives",
            holds=largest < 1e-11,
            found="up to rounding in fp64",
        ),
    )


def a13() -> Computed:
    """Derive a weight's gradient from the outputs' and from the samples', and call autograd as listed."""
    import torch
    from torch.nn.functional import cross_entropy

    rows, labels, weight = _classifier(4)
    outputs = rows @ weight.T
    losses = cross_entropy(outputs, labels, reduction="none")
    (of_outputs,) = torch.autograd.grad(losses.mean(), outputs, retain_graph=True)
    outer = sum(torch.outer(g, x) for g, x in zip(of_outputs, rows, strict=True))
    own = sum(torch.autograd.grad(one, weight, retain_graph=True)[0] for one in losses)
    (right,) = torch.autograd.grad(losses.mean(), weight, retain_graph=True)
    losses.mean().backward()
    as_listed = refused(lambda: torch.autograd.grad(losses.mean(), outputs))
    return computed(
        shape("logits_gradient", of_outputs.shape)
        | {"divisor": float((own * right).sum() / right.norm() ** 2)},
        Statement(
            says="a weight's gradient is the sum of each sample's output gradient times its input",
            holds=torch.allclose(right, torch.as_tensor(outer), rtol=0, atol=1e-12),
            found=f"called after backward(), as it stands in the listing, autograd.grad says {as_listed}",
        ),
        Statement(
            says="with the mean loss it is the sum of the samples' own gradients over their number",
            holds=torch.allclose(right, torch.as_tensor(own) / 4, rtol=0, atol=1e-12),
        ),
    )


def a23() -> Computed:
    """Follow the diagram: its rows, the shapes after each stage, and the class with the larger score."""
    import torch

    classes = torch.tensor(SCORES).argmax(1) + 1
    with torch.device("meta"):
        ids = torch.zeros(4, 7, dtype=torch.long)
        hidden = torch.nn.Embedding(30000, 768)(ids)
        pooled = hidden.mean(1)
        logits = torch.nn.Linear(768, 2)(pooled)
    stages = {"ids": ids, "embeddings": hidden, "pooled": pooled, "logits": logits}
    shapes = {name: value for stage, one in stages.items() for name, value in shape(stage, one.shape).items()}
    lengths = [len(row) for row in DRAWN]
    return computed(
        shapes | {f"class[{i}]": float(found) for i, found in enumerate(classes)},
        Statement(
            says="the four rows that it draws are padded to seven tokens",
            holds=set(lengths) == {7},
            found=f"they have {', '.join(map(str, lengths))}; its classes count from 1, its labels from 0",
        ),
    )


def _classifier(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw rows of width 3, labels of two classes and a weight that takes a gradient, in fp64."""
    import torch

    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, dtype=torch.float64, generator=draw)
    weight = torch.randn(2, 3, dtype=torch.float64, generator=draw).requires_grad_()
    return x, torch.randint(2, (rows,), generator=draw), weight


ROWS = {
    "A05": a05, "A07": a07, "A08": a08, "A09": a09, "A10": a10, "A11": a11, "A13": a13, "A23": a23,
}  # fmt: skip
