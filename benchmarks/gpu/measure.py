"""Step time and memory of ways to train on one GPU, part by part, in under eight minutes.

    python benchmarks/gpu/measure.py                      # Llama-2-7B's shapes, into results.jsonl
    python benchmarks/gpu/measure.py --tiny --to x.jsonl  # a few thousand weights, on a CPU too

Needs torch, transformers and peft, and no network. What else a part needs and does not find (bitsandbytes,
torchao, paribus, a device) makes it "not run", with the reason. Each part is written as it ends, as one line
of JSON; a part that stands in the file is not measured again, none is begun once the budget is spent, and one
that takes longer than its limit, or than what is left of the budget, is stopped and says so.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from parts import NotRun, Part, Products, lora, natively_against_emulated, out_of_memory, parts, qlora
from scaled import eight_bit_layers
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA_2_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
VOCABULARY = {"vocab_size": 32000, "max_position_embeddings": 4096}
REPEATS = 3
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class Rig:
    """The device, the shapes and how much of a batch is trained on."""

    device: str
    shapes: dict[str, int]
    batch: int
    length: int

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    def synchronise(self) -> float:
        """Wait for the device and return the time in seconds."""
        if self.cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def main() -> int:
    """Measure every part that is not in the file yet; 1 where one crashed."""
    given = _arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not given.tiny:
        print(
            "no CUDA device: nothing was measured (--tiny runs every part small, on a CPU)", file=sys.stderr
        )
        return 2
    rig = Rig(device, *((TINY | {"vocab_size": 128}, 8, 32) if given.tiny else (LLAMA_2_7B, 8, 1024)))
    done = {json.loads(line)["part"] for line in _lines(given.to)}
    started, crashed = time.monotonic(), 0
    for part in parts(rig.batch):
        if part.name in done:
            continue
        if time.monotonic() - started > given.budget_seconds:
            print(f"the budget of {given.budget_seconds:g} s is spent; run again from {part.name} on")
            break
        left = given.budget_seconds - (time.monotonic() - started)
        found = _measured(part, rig, min(given.part_seconds, left))
        crashed += found["outcome"] == "crashed"
        with given.to.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(f"{time.monotonic() - started:5.0f} s  {part.name}: {_words(found)}", flush=True)
    return int(crashed > 0)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Stop a part that takes longer, as soon as Python runs again: a kernel is waited for."""

    def stop(*_: Any) -> None:
        raise NotRun(f"stopped after {seconds:.3g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _measured(part: Part, rig: Rig, seconds: float) -> dict[str, Any]:
    """Return one part's line; exhausted memory, what is missing and too long a time are outcomes."""
    line: dict[str, Any] = {"part": part.name, "settings": asdict(part), **_made_on(rig)}
    if rig.cuda:
        torch.cuda.reset_peak_memory_stats()
    try:
        with _limited(seconds):
            line |= {"outcome": "finished", **_special(part, rig)}
    except NotRun as reason:
        line |= {"outcome": "not run", "reason": str(reason)}
    except torch.cuda.OutOfMemoryError as error:
        line |= {"outcome": "out_of_memory", "reason": str(error).splitlines()[0][:200]}
    except Exception as error:
        line |= {"outcome": "crashed", "reason": f"{type(error).__name__}: {error}"[:300]}
    if rig.cuda and line["outcome"] in ("finished", "out_of_memory"):
        line["bytes_allocated"] = torch.cuda.max_memory_allocated()
        line["bytes_reserved"] = torch.cuda.max_memory_reserved()
    gc.collect()
    if rig.cuda:
        torch.cuda.empty_cache()
    return line


def _special(part: Part, rig: Rig) -> dict[str, Any]:
    if part.what == "native against emulated":
        return natively_against_emulated(part.precision, rig.device)
    if part.what == "out of memory":
        return out_of_memory(rig.device)
    return _steps(part, rig)


def _steps(part: Part, rig: Rig) -> dict[str, Any]:
    """Train a few optimizer steps and return the median times of each phase, in seconds."""
    model = _model(part, rig)
    training = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(training, lr=1e-5, fused=rig.cuda)
    scaler = torch.amp.GradScaler(rig.device, enabled=part.precision == "fp16")
    ids = torch.randint(3, model.config.vocab_size, (part.rows, rig.length), device=rig.device)
    times: dict[str, list[float]] = {"forward": [], "backward": [], "optimizer": []}
    with _precision(part, model) as multiplied_by, _noise(part, model):
        with Products() as products:  # the first step warms up, and is in no time
            _optimizer_step(part, rig, model, optimizer, scaler, ids)
        for _ in range(REPEATS):
            one = _optimizer_step(part, rig, model, optimizer, scaler, ids)
            for phase, seconds in one.items():
                times[phase].append(seconds)
    return {
        **{f"seconds_{phase}": sorted(found)[REPEATS // 2] for phase, found in times.items()},
        "tokens": part.rows * rig.length,
        "trained_parameters": sum(parameter.numel() for parameter in training),
        "products_of_first_step": dict(products.dtypes.most_common()),
        "multiplied_by": multiplied_by,
    }


def _optimizer_step(
    part: Part, rig: Rig, model: Any, optimizer: Any, scaler: Any, ids: torch.Tensor
) -> dict[str, float]:
    """Accumulate the micro-batches of one step; the phases' times are summed over them."""
    spent = {"forward": 0.0, "backward": 0.0}
    dtype = DTYPES.get(part.precision)
    for rows in ids.chunk(part.accumulation):
        before = rig.synchronise()
        with torch.autocast(rig.device, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(input_ids=rows, labels=rows, use_cache=False).loss / part.accumulation
        between = rig.synchronise()
        scaler.scale(loss).backward()
        after = rig.synchronise()
        spent["forward"] += between - before
        spent["backward"] += after - between
    before = rig.synchronise()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    return spent | {"optimizer": rig.synchronise() - before}


def _model(part: Part, rig: Rig) -> Any:
    """Build the model with random weights on the device and put the way of tuning on it."""
    config = LlamaConfig(**VOCABULARY | rig.shapes)
    config._attn_implementation = "sdpa"
    stored = _stored(part)
    with torch.device(rig.device):
        before = torch.get_default_dtype()
        torch.set_default_dtype(stored)
        try:
            model: Any = LlamaForCausalLM(config)
        finally:
            torch.set_default_dtype(before)
    if part.tuning == "qlora":
        model = qlora(model, rig.device)
    if part.tuning in ("lora", "qlora"):
        model = lora(model)
    if part.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def _stored(part: Part) -> torch.dtype:
    """Return how weights are stored: as fp32 in full tuning, else in the format that they are multiplied in.

    Weights in 16 bits would make a part that is called fp32 or tf32 multiply in 16 bits.
    """
    if part.tuning == "qlora" or part.precision == "bf16 stored":
        return torch.bfloat16
    return torch.float32 if part.tuning == "full" else DTYPES.get(part.precision, torch.float32)


@contextmanager
def _precision(part: Part, model: Any) -> Iterator[str]:
    """Switch on tf32, and off again, or have layers multiply in 8 bits; yields whose products run."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if part.precision == "tf32" else "highest")
    try:
        other = "torch, tf32 allowed" if part.precision == "tf32" else "torch"
        yield eight_bit_layers(model) if part.precision == "fp8" else other
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def _noise(part: Part, model: Any) -> Iterator[None]:
    """Add NEFTune's noise to the embeddings: uniform, alpha / sqrt(length x width) (arXiv:2310.05914)."""

    def add(module: Any, _: Any, output: torch.Tensor) -> torch.Tensor:
        size = part.neftune_noise_alpha / (output.shape[1] * output.shape[2]) ** 0.5
        return output + torch.empty_like(output).uniform_(-size, size)

    if not part.neftune_noise_alpha:
        yield
        return
    handle = model.get_input_embeddings().register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()


def _made_on(rig: Rig) -> dict[str, Any]:
    import peft
    import transformers

    name = torch.cuda.get_device_name() if rig.cuda else "cpu"
    versions = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "peft": peft.__version__,
    }
    return {"device": name, "shapes": rig.shapes, "length": rig.length, "versions": versions}


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _words(line: dict[str, Any]) -> str:
    if line["outcome"] != "finished":
        return f"{line['outcome']}: {line['reason']}"
    shown = {k: v for k, v in line.items() if k.startswith(("seconds_", "bytes_", "loss"))}
    return ", ".join(f"{k} {v:.4g}" for k, v in shown.items() if isinstance(v, int | float))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "results.jsonl")
    parser.add_argument("--tiny", action="store_true", help="a model of a few thousand weights, on a CPU too")
    parser.add_argument("--budget-seconds", type=float, default=480)
    parser.add_argument("--part-seconds", type=float, default=60, help="the most that one part may take")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
