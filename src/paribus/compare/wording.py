"""Numbers and names as a reader sees them: one way of writing each, in tables, figures and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paribus.statistics import Estimate, Interval

if TYPE_CHECKING:
    from paribus.plan.design import Cell

AXIS_NAMES = {
    "gradient_accumulation_steps": "Accumulation",
    "neftune_noise_alpha": "NEFTune α",
    "precision": "Precision",
    "tuning": "Tuning",
    "dropout": "Dropout",
    "gradient_checkpointing": "Checkpointing",
    "master_weights": "Master weights",
    "stress": "Stress",
    "model": "Model",
}
READING_NAMES = {
    "base": "before training",
    "last": "end of training",
    "best_validation": "best validation loss",
    "equal_train_loss": "equal train loss",
}
READING_MEANINGS = {
    "last": "the model as training leaves it",
    "best_validation": "the scored point of least validation loss of the same group, read on test",
    "equal_train_loss": "where each curve first reaches the train loss that every arm reaches, interpolated",
}
UNFAIR = "†"
"""Marks a difference between sides that do not share all but what is varied."""
NOTHING = 1e-12
"""A difference below this is the rounding of sums in 64 bits: nothing to a reader."""
EMULATED = "emulated: an optimistic bound"


def number(value: float, digits: int = 3) -> str:
    """Write a number with a real minus sign."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", "−")


def signed(value: float, digits: int = 3) -> str:
    """Write a difference with its sign; one that rounds to zero is written by its order of magnitude."""
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        text = "0" if abs(value) < NOTHING else f"{value:+.0e}".replace("e-0", "e-")
        text = f"{value:+.{digits + 1}f}" if round(abs(value), digits + 1) else text
    return text.replace("-", "−")


def size(value: float, digits: int = 3) -> str:
    """Write how large something is, without a sign; small ones by their order of magnitude."""
    return signed(abs(value), digits).lstrip("+")


def interval(found: Interval, digits: int = 3) -> str:
    """Write an interval with signed ends."""
    return f"[{signed(found.low, digits)}, {signed(found.high, digits)}]"


def estimate(found: Estimate, digits: int = 3) -> str:
    """Write a mean ± half its interval, or the mean alone where one value has none."""
    half = found.half_width
    return number(found.mean, digits) + (f" ± {number(half, digits)}" if half is not None else "")


def difference(found: Estimate, digits: int = 3) -> str:
    """Write a signed mean difference with its interval."""
    return signed(found.mean, digits) + (f" {interval(found.interval, digits)}" if found.interval else "")


def p_value(p: float) -> str:
    """Write a p value to three places."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def axis_name(axis: str) -> str:
    """Name an axis for a reader; a dotted setting by its own last name."""
    return AXIS_NAMES.get(axis, axis.rpartition(".")[2].replace("_", " "))


def level_name(label: str) -> str:
    """Name a level for a reader: `fp16 (emulated)`, `LoRA r=4 α=8`, `5`."""
    words = label.split()
    if not words:
        return label
    kinds = {"lora": "LoRA", "bitfit": "BitFit"}
    name = kinds.get(words[0], words[0])
    settings = [
        word.removesuffix(".0").replace("lora_alpha=", "α=").replace("target_modules=", "on ")
        for word in words[1:]
        if not word.startswith("compute=") and word not in ("emulated", "native")
    ]
    marks = [word for w in words[1:] if (word := w.removeprefix("compute=")) in ("emulated", "native")]
    return " ".join([name, *settings]) + (f" ({', '.join(marks)})" if marks else "")


def is_emulated(label: str) -> bool:
    """Say whether a level's arithmetic is emulated."""
    return bool({"emulated", "compute=emulated"} & set(label.split()))


def kind(label: str) -> str:
    """Return the kind of a level: the first word of its label."""
    return label.split(" ", 1)[0]


def changed(coordinates: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """Return the axes in which a cell differs from the baseline."""
    return {axis: level for axis, level in coordinates.items() if base.get(axis) != level}


def cell_name(cell: Cell, base: Cell | None) -> str:
    """Name a cell by what differs from the baseline: `Precision fp16 (emulated)`."""
    different = changed(cell.coordinates, base.coordinates if base else {})
    if not different:
        return "baseline"
    return ", ".join(f"{axis_name(axis)} {level_name(level)}" for axis, level in different.items())


def listed(items: list[str], last: str = "and") -> str:
    """Join words as a sentence does: `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}" if items else ""
