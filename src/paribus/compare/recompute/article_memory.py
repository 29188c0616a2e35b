"""Claims of the article on what training an 8B model takes, counted from the sizes of Llama-3-8B and Llama-2.

Training with Adam holds weights, gradients and two moments, whatever the batch: sixteen bytes a parameter in
fp32, and in mixed precision too, which keeps all four in fp32 (Micikevicius et al. 2018, arXiv:1710.03740).
"""

from __future__ import annotations

from functools import cache

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.shapes import GB, SIZES, gigabytes, kept_bytes, on_meta

MODEL = "llama_3_8b"
BATCH, MICRO = 32, 8
ACTIVATIONS = 40.0
"""GB that the article gives the activations of 32 samples; it names no length of a sample."""
TENSORS = 4
"""Weights, gradients and Adam's two moments."""
FP32 = 4


def state(name: str, bytes_each: float = FP32) -> float:
    """Return the GB of weights, gradients and Adam's moments of so many bytes each."""
    return gigabytes(name, TENSORS * bytes_each)


@cache
def activations(samples: int, tokens: int) -> float:
    """Measure the GB that autograd keeps of a forward pass of Llama-3-8B in fp32, nothing recomputed.

    One and two layers are measured on the meta device and the rest are added; the loss keeps its log softmax.
    """
    import torch

    one, two = (
        kept_bytes(
            on_meta(MODEL, num_hidden_layers=layers),
            torch.zeros(samples, tokens, SIZES[MODEL]["hidden_size"], device="meta"),
        )
        for layers in (1, 2)
    )
    of_loss = samples * tokens * SIZES[MODEL]["vocab_size"] * FP32
    return (one + (SIZES[MODEL]["num_hidden_layers"] - 1) * (two - one) + of_loss) / GB


@cache
def tokens_of(gigabytes: float, samples: int) -> int:
    """Find the length at which the activations of some samples come nearest to so many GB."""
    low, high = 1, 8192
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if activations(samples, middle) <= gigabytes else (low, middle)
    return min((low, high), key=lambda tokens: abs(activations(samples, tokens) - gigabytes))


def whole_and_accumulated() -> tuple[float, float]:
    """Return the GB of training on 32 samples at once and on four times 8, at the length that makes 40 GB."""
    tokens = tokens_of(ACTIVATIONS, BATCH)
    return state(MODEL) + activations(BATCH, tokens), state(MODEL) + activations(MICRO, tokens)


def a01() -> Computed:
    """Split the two printed figures into what grows with the batch and what is left at none."""
    per_sample = (80 - 20) / (BATCH - MICRO)
    left = 20 - MICRO * per_sample
    weights = gigabytes(MODEL, 2)
    return computed(
        {
            "left_at_batch_0": (left, "GB"),
            "weights.16_bit": (weights, "GB"),
            "weights_gradients_moments.fp32": (state(MODEL), "GB"),
        },
        Statement(
            says="20 GB at a batch of 8 and 80 GB at 32 leave room for the weights, which no batch changes",
            holds=left >= weights,
            found=f"they leave {left:g} GB at a batch of none; the weights alone take {weights:.1f} GB in 16 "
            f"bits, and training all of them with Adam {state(MODEL):.1f} GB before any activation",
        ),
        Statement(
            says="20 GB train the whole model on a batch of 8",
            holds=state(MODEL, 2) <= 20,
            found=f"weights, gradients and moments take {state(MODEL, 2):.1f} GB even in 16 bits throughout",
        ),
    )


def a06() -> Computed:
    """Count an 8B model's weights in each format, and all that Adam keeps in the same format."""
    bytes_each = {"fp32": 4, "fp16": 2, "fp8": 1}
    weights = {name: gigabytes(MODEL, width) for name, width in bytes_each.items()}
    least = {name: state(MODEL, width) for name, width in bytes_each.items()}
    printed = {"fp32": 32, "fp16": 16, "fp8": 8}
    return computed(
        {f"weights_alone.{name}": (value, "GB") for name, value in weights.items()}
        | {f"training_at_least.{name}": (value, "GB") for name, value in least.items()},
        *(
            Statement(
                says=f"{printed[name]} GB hold what training in {name.upper()} keeps",
                holds=value <= printed[name],
                found=f"only the weights; with gradients and moments in that format it is {value:.1f} GB",
            )
            for name, value in least.items()
        ),
    )


def a24() -> Computed:
    """Count weights, gradients and moments of Llama-3-8B, and find what 40 GB of activations mean."""
    weights, tokens = gigabytes(MODEL, FP32), tokens_of(ACTIVATIONS, BATCH)
    kept = activations(BATCH, tokens)
    total = state(MODEL) + kept
    return computed(
        {
            "weights": (weights, "GB"),
            "activations": (kept, "GB"),
            "gradients": (weights, "GB"),
            "optimizer": (2 * weights, "GB"),
            "total": (total, "GB"),
            "tokens_a_sample": tokens,
        },
        Statement(
            says="40 GB can be the activations of 32 samples",
            holds=abs(kept - ACTIVATIONS) < 1,
            found=f"at {tokens} tokens a sample in fp32 with nothing recomputed; no length is named",
        ),
        Statement(says="no single card of 80 GB holds it", holds=total > 80, found=f"{total:.1f} GB"),
    )


def a25() -> Computed:
    """Measure activations of 8 samples at the length at which those of 32 take 40 GB."""
    tokens = tokens_of(ACTIVATIONS, BATCH)
    whole, micro = activations(BATCH, tokens), activations(MICRO, tokens)
    return computed({"activations": (micro, "GB"), "reduction": (whole / micro, "x")})


def a26() -> Computed:
    """Sum both totals, and ask on which cards the smaller fits."""
    whole, accumulated = whole_and_accumulated()
    return computed(
        {
            "total.whole": (whole, "GB"),
            "total.accumulated": (accumulated, "GB"),
            "saving": (100 * (1 - accumulated / whole), "%"),
        },
        Statement(
            says="two A100 hold it",
            holds=accumulated <= 2 * 80,
            found="two of 80 GB do if weights, gradients and moments are shared out; two of 40 GB do not; "
            f"without sharding each must hold {accumulated:.0f} GB",
        ),
    )


def a34() -> Computed:
    """Set what training each model with Adam keeps beside the card that the table gives it."""
    models = {"7B": ("llama_2_7b", 4, 8), "13B": ("llama_2_13b", 2, 16), "70B": ("llama_2_70b", 1, 32)}
    found: dict[str, tuple[float, str] | float] = {}
    for size, (name, micro, steps) in models.items():
        found |= {
            f"memory.{size}": (state(name), "GB"),
            f"steps.{size}": BATCH // micro,
            f"effective_batch.{size}": micro * steps,
            f"weights_in_16_bits.{size}": (gigabytes(name, 2), "GB"),
        }
    return computed(found)


def a36() -> Computed:
    """Train a layer under autocast and read its dtypes, then halve the activations in the 138 GB."""
    import torch

    layer = torch.nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(layer.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        layer(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    kept = {
        "weights": [*layer.parameters()],
        "gradients": [p.grad for p in layer.parameters() if p.grad is not None],
        "moments": [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")],
    }
    dtypes = {name: sorted({str(t.dtype).removeprefix("torch.") for t in one}) for name, one in kept.items()}
    whole = whole_and_accumulated()[1]
    saved = activations(MICRO, tokens_of(ACTIVATIONS, BATCH)) / 2
    return computed(
        {"saving": (100 * saved / whole, "%")},
        Statement(
            says="under autocast weights, gradients and moments take half as much",
            holds=all(dtype in (["float16"], ["bfloat16"]) for dtype in dtypes.values()),
            found="; ".join(f"{name} {', '.join(dtype)}" for name, dtype in dtypes.items()),
        ),
    )


ROWS = {"A01": a01, "A06": a06, "A24": a24, "A25": a25, "A26": a26, "A34": a34, "A36": a36}
