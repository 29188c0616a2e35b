"""Claims of the chapter on how much each way of tuning trains, stores and needs on a 7B model."""

from __future__ import annotations

from typing import Any, Final

from paribus.compare.recompute import Computed, Statement, computed
from paribus.compare.recompute.checkpointing import ATTENTION
from paribus.compare.recompute.low_rank import TRAINED_BYTES, b42, qlora_bytes, state_of_lora, trained
from paribus.compare.recompute.sharding import GB, ROUND_7B, held
from paribus.compare.shapes import SIZES, decoded, kept_bytes, on_meta, parameters

FEED_FORWARD: Final = ("gate_proj", "up_proj", "down_proj")
SEVEN: Final = "llama_2_7b"
PREFIX_TOKENS: Final = 20
SEQUENCE: Final = 2048


def _share(count: float, whole: float) -> float:
    """Return per cent of all parameters, the trained ones included, as peft prints it."""
    return 100 * count / (whole + count)


def b27() -> Computed:
    """Count the share that LoRA trains of Llama-2-7B with the chapter's listing."""
    whole = parameters(SEVEN)
    four, two = trained(SEVEN), trained(SEVEN, ("q_proj", "v_proj"))
    return computed(
        {
            "share": (_share(four, whole), "%"),
            "share.query_and_value": (_share(two, whole), "%"),
            "trained": four,
        }
    )


def b28() -> Computed:
    """Count the state of full tuning and of LoRA; what activations add depends on the batch."""
    return computed(
        {
            "full": (ROUND_7B * held(0, 1) / GB, "GB"),
            "lora.before_activations": (state_of_lora(SEVEN) / GB, "GB"),
        }
    )


def b29() -> Computed:
    """Count the bytes of one saved adapter, in fp32 as peft trains it and in 16 bits."""
    count = trained(SEVEN)
    fp32, half = 4 * count / 1e6, 2 * count / 1e6
    return computed(
        {"adapter.least": (fp32, "MB"), "adapter.most": (fp32, "MB"), "adapter.16_bits": (half, "MB")}
    )


def activations(name: str) -> float:
    """Bound the bytes of a step's activations: one sequence of 2,048 tokens, each layer checkpointed.

    An upper bound: in fp32, with all scores of attention of the layer that is computed again, and with
    logits and their gradient beside them.
    """
    import torch

    width, layers = SIZES[name]["hidden_size"], SIZES[name]["num_hidden_layers"]
    kept = []
    for count in (0, 1):
        hidden = torch.empty(1, SEQUENCE, width, device="meta", requires_grad=True)
        kept.append(kept_bytes(on_meta(name, num_hidden_layers=count), hidden))
    with torch.device("meta"):
        hidden = torch.empty(1, SEQUENCE, width)
        logits = decoded(on_meta(name, num_hidden_layers=0), hidden).numel() * 4
    return layers * hidden.numel() * 4 + kept[1] + 2 * logits


def needed(name: str) -> float:
    """Return the GB that QLoRA needs for that step, as an upper bound."""
    return (sum(qlora_bytes(name).values()) + activations(name)) / GB


def _fits(name: str, size: str) -> Computed:
    parts = {part: (count / GB, "GB") for part, count in qlora_bytes(name).items()}
    return computed(
        {
            "needed": (needed(name), "GB"),
            "parameters": (parameters(name) / 1e9, "billion"),
            "activations": (activations(name) / GB, "GB"),
            **parts,
        },
        Statement(
            says=f"one sequence of {SEQUENCE:,} tokens, checkpointed, leaves room on a card of {size} GB",
            holds=needed(name) < float(size),
            found=f"at most {needed(name):.1f} GB",
        ),
    )


def b36() -> Computed:
    """Add up what QLoRA of a 7B model needs."""
    return _fits(SEVEN, "24")


def b37() -> Computed:
    """Add up what QLoRA of a 33B model needs."""
    return _fits("llama_33b", "48")


def b40() -> Computed:
    """Count the shares of the table on Llama-2-7B, at the chapter's rank and with 20 virtual tokens."""
    whole, width, layers = parameters(SEVEN), SIZES[SEVEN]["hidden_size"], SIZES[SEVEN]["num_hidden_layers"]
    lora = [_share(trained(SEVEN, names), whole) for names in (ATTENTION, ATTENTION + FEED_FORWARD)]
    adapter = _share(_bottlenecks(width, 2 * layers), whole)
    prefix, prompt = (_share(PREFIX_TOKENS * width * each, whole) for each in (2 * layers, 1))
    biases = sum(p.numel() for name, p in on_meta(SEVEN).named_parameters() if name.endswith("bias"))
    return computed(
        {
            "lora.least": (min(lora), "%"),
            "lora.most": (max(lora), "%"),
            "adapter.least": (adapter, "%"),
            "adapter.most": (adapter, "%"),
            "prefix": (prefix, "%"),
            "prompt": (prompt, "%"),
            "bitfit": (_share(biases, whole), "%"),
            "bitfit.opt_6.7b": (_biases_of_opt(), "%"),
        },
        *_at_inference(prefix / prompt),
    )


def _bottlenecks(width: int, blocks: int) -> int:
    """Count the parameters of Houlsby's adapters at the usual reduction, by the module they are made of."""
    from torch.nn import ReLU

    from paribus.techniques import Adapter
    from paribus.techniques.tuning.bottleneck import Bottleneck

    one = Bottleneck(width, Adapter.model_validate({}).width(width), ReLU(), 1.0, 0)
    return blocks * sum(parameter.numel() for parameter in one.parameters())


def _biases_of_opt() -> float:
    """Return the per cent of biases in a model that has them, OPT-6.7B (arXiv:2205.01068)."""
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    sizes: dict[str, Any] = {
        "hidden_size": 4096,
        "ffn_dim": 16384,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    with torch.device("meta"):
        model = OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=4096, vocab_size=50272))
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    return 100 * sum(n for name, n in counts.items() if name.endswith("bias")) / sum(counts.values())


def _at_inference(ratio: float) -> tuple[Statement, ...]:
    """Say what each method leaves for inference, and that one share cannot be that of prefix and prompt."""
    from paribus.techniques import Lora, PrefixTuning, PromptTuning

    return (
        Statement(
            says="prefix and prompt tuning train about the same share",
            holds=ratio < 3,
            found=f"at any length a prefix trains {ratio:.0f} times as much, keys and values of every layer",
        ),
        Statement(
            says="LoRA merges; virtual tokens do not and take up the context",
            holds=Lora.merges and not PrefixTuning.merges and not PromptTuning.merges,
        ),
    )


def b57() -> Computed:
    """Read the recap of LoRA and QLoRA by the rows it sums up."""
    return computed(
        {
            "share": (_share(trained(SEVEN), parameters(SEVEN)), "%"),
            "needed": (needed(SEVEN), "GB"),
            "adapter_bytes_in_training": (TRAINED_BYTES * trained(SEVEN) / GB, "GB"),
        },
        *b42().statements,
    )


ROWS = {"B27": b27, "B28": b28, "B29": b29, "B36": b36, "B37": b37, "B40": b40, "B57": b57}
