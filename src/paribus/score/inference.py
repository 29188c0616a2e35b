"""What inference costs: time and memory of a model beside its base, and with its update merged into it.

In each round every variant answers the same prompt of random tokens once, and each round another one goes
first: what slows the machine down meets all alike. A ratio to the base is taken within a round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from paribus.errors import ParibusError
from paribus.plan.scoring import InferenceCost
from paribus.record.result import Figure
from paribus.score.subject import Scored, Subject
from paribus.score.variants import base_alone, copied, decoder, has_additions, last_logits, virtual_tokens

if TYPE_CHECKING:
    import torch

BASE: Final = "base"
UNMERGED: Final = "unmerged"
MERGED: Final = "merged"
TIMES: Final = {"prefill": "prefill_ms", "decode": "decode_ms_per_token"}

Variant = Callable[[], AbstractContextManager[Any]]
"""Opened, it gives the model to be timed."""


def check(setting: InferenceCost, base: Path) -> str:
    """Nothing is read."""
    return ""


def score(setting: InferenceCost, subject: Subject) -> Scored:
    """Time prefill and decoding of the model, of its base and of the merged model, in turns.

    The base is the model without what its tuning has put beside it. Merging changes the base's weights, so
    the others are timed on a copy; where memory has no room for one, the merged model is timed after them and
    a warning says so. Tuning that changes the base's own weights costs what the base costs, by construction.
    """
    _check_room(setting, subject)
    from paribus.techniques.tuning.saved import quiet

    with quiet():
        if subject.step == 0:
            return _alone(BASE, setting, subject)
        if not has_additions(subject.model):
            note = "the weights that train are the base's own: its cost is the base's, by construction"
            return _alone(UNMERGED, setting, subject, note)
        return _beside_base(setting, subject)


def _alone(name: str, setting: InferenceCost, subject: Subject, *notes: str) -> Scored:
    """Time a model that there is nothing to compare with."""
    rows, held = _timed({name: lambda: nullcontext(subject.model)}, setting, subject)
    return Scored(_figures(rows, held, setting, subject), rows, warnings=notes)


def _beside_base(setting: InferenceCost, subject: Subject) -> Scored:
    """Time a model that carries an adapter."""
    twin = copied(subject.model)
    model = subject.model if twin is None else twin
    variants: dict[str, Variant] = {BASE: lambda: base_alone(model), UNMERGED: lambda: nullcontext(model)}
    notes = []
    merged = subject.merged() if twin is not None else None
    if merged is not None:
        variants[MERGED] = lambda: nullcontext(merged)
    rows, held = _timed(variants, setting, subject)
    if twin is None and (merged := subject.merged()) is not None:
        late, size = _timed({MERGED: lambda: nullcontext(merged)}, setting, subject)
        rows, held = rows + late, held | size
        notes.append("memory has no room for the model twice: merged was timed after the others")
    if merged is None:
        notes.append("the update cannot be merged: there are no figures of the merged model")
    return Scored(_figures(rows, held, setting, subject), rows, warnings=tuple(notes))


def _check_room(setting: InferenceCost, subject: Subject) -> None:
    """Raise ParibusError unless the model generates, and its context holds what is asked for."""
    if not hasattr(subject.model, "generate"):
        raise ParibusError(
            f"{type(subject.model).__name__} writes no text, so that decoding cannot be timed.",
            way_out="Leave scores of kind inference_cost out of this study.",
        )
    limit = getattr(subject.model.config.get_text_config(), "max_position_embeddings", None)
    virtual = virtual_tokens(subject.model)
    needed = virtual + setting.prompt_tokens + setting.new_tokens
    if limit is not None and needed > limit:
        raise ParibusError(
            f"{virtual} virtual tokens, prompt_tokens: {setting.prompt_tokens} and "
            f"new_tokens: {setting.new_tokens} are more than the {limit} tokens that the model reads.",
            way_out=f"Set prompt_tokens and new_tokens to {limit - virtual} together, or less.",
        )


def _timed(
    variants: Mapping[str, Variant], setting: InferenceCost, subject: Subject
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return a row for each variant in each round, and the bytes each holds; a first round only warms up."""
    from paribus.score.adapters import _held

    ids, names, rows, held = _prompts(setting, subject), list(variants), [], {}
    for repeat in range(-1, setting.repeats):
        first = max(repeat, 0) % len(names)
        for name in names[first:] + names[:first]:
            with variants[name]() as model:
                if repeat < 0:
                    held[name] = _held(model)
                measured = _measured(model, ids, setting.new_tokens, held[name])
            if repeat >= 0:
                rows.append({"id": f"{name}-{repeat}", "variant": name, "repeat": repeat} | measured)
        subject.tell(repeat + 1, setting.repeats)
    return rows, held


def _prompts(setting: InferenceCost, subject: Subject) -> torch.Tensor:
    """Draw prompts [rows, tokens] of random tokens."""
    import torch

    generator = torch.Generator().manual_seed(subject.seed)
    vocabulary = subject.model.config.get_text_config().vocab_size
    shape = (setting.batch_size, setting.prompt_tokens)
    return torch.randint(vocabulary, shape, generator=generator).to(subject.model.device)


def _measured(model: Any, ids: torch.Tensor, new_tokens: int, held: int) -> dict[str, float]:
    """Time the prefill of prompts and then `new_tokens` greedy steps, each of one token a row.

    Peak memory, on a GPU alone, is what the model holds and what came on top of what there was before.
    """
    import torch

    before = 0
    if on_gpu := ids.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(ids.device)
        before = torch.cuda.memory_allocated(ids.device)
    with torch.inference_mode():
        start = _now(ids.device)
        token, cache = _step(model, ids)
        first, behind = _now(ids.device), decoder(model)
        for _ in range(new_tokens):
            token, cache = _step(behind, token, cache)
        last = _now(ids.device)
    row = {TIMES["prefill"]: 1e3 * (first - start), TIMES["decode"]: 1e3 * (last - first) / new_tokens}
    if on_gpu:
        row["peak_memory_bytes"] = held + torch.cuda.max_memory_allocated(ids.device) - before
    return row


def _step(model: Any, ids: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor, Any]:
    """Return the likeliest next token [rows, 1] and the cache of keys and values behind all that was read."""
    read = {} if cache is None else {"past_key_values": cache}
    output = model(input_ids=ids, use_cache=True, **read, **last_logits(model))
    return output.logits[:, -1:].argmax(-1), output.past_key_values


def _now(device: torch.device) -> float:
    """Return the time in seconds, when the device has done all it was given."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _figures(
    rows: Sequence[dict[str, Any]], held: Mapping[str, int], setting: InferenceCost, subject: Subject
) -> tuple[Figure, ...]:
    """Return the figures of each variant; its name is the figure's task."""
    found = []
    for variant, size in held.items():
        make = partial(Figure, step=subject.step, task=variant, higher_is_better=False)
        found += [figure for part in TIMES for figure in _speed(part, rows, variant, setting, make)]
        found.append(make(metric="held_bytes", value=size, n=1, unit="bytes"))
        virtual = virtual_tokens(subject.model) if variant == UNMERGED else 0
        found.append(make(metric="virtual_tokens", value=virtual, n=1, unit="tokens of context"))
        if peaks := _column(rows, variant, "peak_memory_bytes"):
            found.append(make(metric="peak_memory_bytes", value=max(peaks), n=len(peaks), unit="bytes"))
    return tuple(found)


def _speed(
    part: str,
    rows: Sequence[dict[str, Any]],
    variant: str,
    setting: InferenceCost,
    make: Callable[..., Figure],
) -> list[Figure]:
    """Return time, its spread, throughput and ratio to the base of one part, over the rounds."""
    tokens = setting.batch_size * (setting.prompt_tokens if part == "prefill" else 1)
    times, base = (_column(rows, name, TIMES[part]) for name in (variant, BASE))
    rates = [1e3 * tokens / time for time in times]
    ratios = [time / beside for time, beside in zip(times, base or times, strict=True)]
    spread = float(np.subtract(*np.percentile(times, [75, 25])))
    n = len(times)
    return [
        make(metric=TIMES[part], n=n, unit="ms", **_median(times)),
        make(metric=f"{TIMES[part]}_iqr", n=n, unit="ms", value=spread),
        make(
            metric=f"{part}_tokens_per_second",
            n=n,
            unit="tokens a second",
            **_median(rates) | {"higher_is_better": True},
        ),
        make(metric=f"{part}_ratio_to_base", n=n, unit="times the base", **_median(ratios)),
    ]


def _median(values: Sequence[float]) -> dict[str, Any]:
    """Return a median and its standard error, that of a normal sample with these quartiles."""
    low, middle, high = np.percentile(values, [25, 50, 75])
    error = np.sqrt(np.pi / 2 / len(values)) * (high - low) / 1.349
    return {"value": float(middle), "standard_error": float(error)}


def _column(rows: Sequence[dict[str, Any]], variant: str, name: str) -> list[float]:
    return [row[name] for row in rows if row["variant"] == variant and name in row]
