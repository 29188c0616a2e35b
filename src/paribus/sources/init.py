"""A first study for a model and a data file: `paribus init`."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paribus.embedded import world
from paribus.errors import DataError, ModelError, Place, StudyError, listed
from paribus.sources.blocks import EmbeddedModel, HubData, HubModel, ModelBlock, PackageModel, PathModel
from paribus.sources.detect import Detected, conversations, detect, lengths
from paribus.sources.examples import Turn, digest, numbered
from paribus.sources.files import read_rows
from paribus.sources.first import Sizes, share_aside, sizes
from paribus.sources.hub import hub_rows, hub_splits
from paribus.sources.load import divided
from paribus.sources.models import ModelFiles, locate

HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]*[\w-](:[\w.-]+)?(?<!json)(?<!jsonl)(?<!parquet)(?<!csv)(?<!tsv)")
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
"""The names under which a folder of data files holds each split."""


@dataclass(frozen=True)
class Written:
    """The study that was written, and what was decided for it, a sentence each."""

    path: Path
    decisions: tuple[str, ...]


@dataclass(frozen=True)
class _Data:
    """What was found of the data: files by split or a hub name, their form, the training conversations."""

    files: dict[str, Path]
    hub: HubData | None
    detected: Detected | None
    train: list[tuple[Turn, ...]]
    counts: dict[str, int]


def write_first_study(model: str, data: str, out: Path | None = None) -> Iterator[str]:
    """Write a first study and yield what to tell about it: where it is, what was decided, what to do next."""
    written = init(model, data, out)
    yield f"wrote {written.path}"
    yield from (f"  {line}" for line in written.decisions)
    folder = shlex.quote(str(written.path.parent))
    yield f"next: paribus data {folder} shows what the model will read; paribus run {folder} runs it"


def init(model: str, data: str, out: Path | None = None) -> Written:
    """Write a commented first study for a model and data and say what was decided; never overwrites one.

    `model` is `embedded`, a directory, a GGUF file, an installed package or a hub name; `data` is `embedded`,
    a file, a folder with train, validation and test files, or a hub name. Raises ModelError, DataError,
    StudyError.
    """
    block = _model(model)
    try:
        files = locate(block, Path())
    except ModelError as fault:
        if not isinstance(block, HubModel):
            raise
        raise ModelError(
            f"there is no directory {model!r}, and {fault.message}", way_out=fault.way_out, place=fault.place
        ) from fault
    found = _data(data)
    folder = out or Path("experiments") / _slug(f"{Path(model).stem}_{Path(data).stem}")
    target = folder / "study.yaml"
    if target.exists():
        raise StudyError(f"{str(target)!r} exists already.", way_out="Name another folder with --out DIR.")
    share = share_aside(len({digest(turns[:-1] or turns) for turns in found.train}))
    chosen = sizes(files.facts, lengths(found.train, files.path), _available(found, share), share)
    text = "\n".join(_lines(block, files, found, chosen, folder)) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as fault:
        raise StudyError(
            f"{str(target)!r} cannot be written: {fault.strerror}.",
            way_out="Name another folder with --out DIR.",
        ) from fault
    return Written(target, tuple(_decisions(block, files, found, chosen)))


def _model(name: str) -> ModelBlock:
    path = Path(name).expanduser()
    if name == "embedded":
        return EmbeddedModel()
    if path.exists():
        return PathModel(path=path)
    if name.isidentifier() and importlib.util.find_spec(name) is not None:
        return PackageModel(package=name)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not name.startswith(".") and path.suffix != ".gguf":
        return HubModel(name=name)
    raise ModelError(
        f"there is no model at {name!r}.",
        way_out="Give a directory, a GGUF file, a name on the hub such as owner/name, or the word embedded.",
    )


def _data(name: str) -> _Data:
    if name == "embedded":
        train = [
            (Turn("user", one.prompt), Turn("assistant", one.completion))
            for one in world.examples("train", "same_wording", 128)
        ]
        return _Data({}, None, None, train, {"train": 128, "validation": 64, "test": 64})
    files, hub = {}, None
    if HUB_NAME.fullmatch(name) and not Path(name).exists():
        hub = hub_splits(*name.split(":")) if ":" in name else hub_splits(name, None)
        given = {"train": hub.train, "validation": hub.validation, "test": hub.test}
        rows = {split: hub_rows(hub, split, Path()) for split, remote in given.items() if remote}
    else:
        files = _files(Path(name).expanduser())
        rows = {split: read_rows(path, f"--data ({split})") for split, path in files.items()}
    detected = detect(rows["train"], files.get("train", Path(name)))
    read = {split: conversations(found, detected) for split, found in rows.items()}
    counts = {split: len(found) for split, found in read.items()}
    return _Data(files, hub, detected, read["train"], counts)


def _files(path: Path) -> dict[str, Path]:
    """Return the file of each split: one file trains, a folder may hold all three."""
    if not path.is_dir():
        return {"train": path}
    kinds = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
    present = {file.stem: file for file in sorted(path.iterdir()) if file.suffix in kinds}
    found = {
        split: present[name] for split, names in SPLITS.items() for name in names[::-1] if name in present
    }
    if "train" not in found:
        raise DataError(
            f"the folder {str(path)!r} has no training file.",
            way_out=f"Name one file, or call it train.jsonl. Found: {listed(present) or 'nothing'}.",
        )
    return found


def _available(found: _Data, share: float) -> dict[str, int]:
    """Count the examples of each split as the study will read them; DataError where they are too few."""
    missing = {split: share for split in ("test", "validation") if split not in found.counts}
    try:
        left, aside = divided(numbered(found.train), missing)
    except DataError as fault:
        raise DataError(
            fault.message,
            place=Place(found.files["train"]) if found.files else None,
            way_out="Give more rows whose prompts differ, or a folder with a file for each split.",
        ) from fault
    return found.counts | {"train": len(left)} | {split: len(taken) for split, taken in aside.items()}


def _lines(block: ModelBlock, files: ModelFiles, found: _Data, chosen: Sizes, out: Path) -> Iterator[str]:
    """Yield the study's lines."""
    facts, group = files.facts, "all" if found.detected else "same_wording"
    noise = "Does NEFTune noise help this model on this data"
    yield "paribus: 1"
    yield f"name: {json.dumps(out.resolve().name, ensure_ascii=False)}"
    yield f"question: {noise}{', and does full fine-tuning beat LoRA' if chosen.full else ''}?"
    yield "task: instruction"
    size = f"{facts.architecture}, {_short(facts.parameters)} parameters"
    yield _noted(f"model: {_flow(_written(block, out))}", size)
    yield from _data_lines(files, found, chosen, out)
    yield from _training_lines(chosen)
    yield _noted("gradient_accumulation_steps: 1", "the base cell, which every other cell is compared with")
    yield "neftune_noise_alpha: 0"
    yield _noted("precision: fp32", "runs anywhere; on a GPU {kind: bf16} is faster")
    yield _noted("tuning: lora", "r: 8, lora_alpha: 16, target_modules: all-linear")
    yield _noted("design: one_factor_at_a_time", "or grid: every combination")
    yield "vary:"
    yield "  neftune_noise_alpha: [0, 5]"
    if chosen.full:
        yield "  tuning: [lora, full]"
    yield _noted("repeat: {seeds: [0, 1, 2]}", "three show the spread; more seeds show smaller differences")
    yield f"score: {{heldout: {{every: epoch, train_sample: {chosen.sample}}}}}"
    yield "compare:"
    yield f"  metric: test.{group}.loss"
    yield _noted("  at: best_validation", "last | best_validation | equal_train_loss; all are recorded")
    yield _noted("  margin: 0.02", "nats a target token that would count as no difference")
    yield "  confidence: 0.95"
    yield "keep: none"


def _training_lines(chosen: Sizes) -> Iterator[str]:
    yield _noted("training:", "held fixed for every arm")
    yield _noted(f"  effective_batch_size: {chosen.batch}", "= micro-batch x gradient_accumulation_steps")
    yield f"  epochs: {chosen.epochs}"
    rate = "for LoRA; full fine-tuning often wants a tenth of it" if chosen.full else "for LoRA"
    yield _noted(f"  learning_rate: {chosen.learning_rate}", rate)
    yield "  lr_scheduler_type: linear"
    yield f"  warmup_steps: {chosen.warmup}"
    yield "  optimizer: adamw"
    yield "  weight_decay: 0.0"
    yield "  max_grad_norm: 1.0"
    yield _noted(f"  max_length: {chosen.max_length}", "tokens; `paribus data` shows what longer texts lose")


def _data_lines(files: ModelFiles, found: _Data, chosen: Sizes, out: Path) -> Iterator[str]:
    yield "data:"
    whole = {"train": chosen.train, "validation": chosen.validation, "test": chosen.test}
    if found.detected is None:
        yield "  source: embedded"
        yield from (f"  {split}_examples: {count}" for split, count in whole.items())
        return
    yield f"  source: {'hub' if found.hub else 'files'}"
    for split, path in found.files.items():
        yield f"  {split}: {json.dumps(_relative(path, out), ensure_ascii=False)}"
    if found.hub:
        given = found.hub.model_dump(include={"name", "config", "validation", "test"})
        yield from (f"  {key}: {json.dumps(value)}" for key, value in given.items())
    for split in ("validation", "test"):
        if split not in found.counts:
            yield _noted(f"  {split}_share: {chosen.share}", "of the prompts, set aside by their hash")
    yield f"  form: {found.detected.form}"
    if found.detected.columns:
        yield f"  columns: {_flow(found.detected.columns)}"
    if found.detected.form != "text":
        chat = files.template is not None
        yield (
            "  template: chat" if chat else _noted("  template: plain", "the tokenizer has no chat template")
        )
    loss_on = "assistant" if any(len(turns) > 3 for turns in found.train) else "completion"
    yield _noted(f"  loss_on: {loss_on}", "completion: the last answer | assistant: every answer | all")
    yield from (f"  {split}_examples: {count}" for split, count in chosen.limits.items())


def _noted(line: str, note: str) -> str:
    return f"{line:<35} # {note}"


def _decisions(block: ModelBlock, files: ModelFiles, found: _Data, chosen: Sizes) -> Iterator[str]:
    facts = files.facts
    yield f"model: {block.source}, {facts.architecture} with {_short(facts.parameters)} parameters"
    if found.detected:
        columns = "".join(f", {field} from {column!r}" for field, column in found.detected.columns.items())
        yield f"data: the form {found.detected.form}{columns}"
        if found.detected.form != "text":
            yield (
                "rendered by the tokenizer's chat template"
                if files.template
                else "rendered plainly, since the tokenizer has no chat template"
            )
    yield f"splits: {chosen.train} to train, {chosen.validation} to validate, {chosen.test} to test"
    yield f"max_length {chosen.max_length}: {chosen.why_length}"
    yield f"effective batch {chosen.batch}, {_epochs(chosen.epochs)}: {chosen.steps} optimizer steps a trial"
    levels = (
        "LoRA against full fine-tuning and noise 0 against 5" if chosen.full else "noise 0 against 5 on LoRA"
    )
    yield f"{levels}, 3 seeds each, in fp32: {'9' if chosen.full else '6'} trials"
    yield from chosen.notes


def _written(block: ModelBlock, out: Path) -> dict[str, str]:
    written = {"source": block.source}
    match block:
        case PathModel():
            written["path"] = _relative(block.path, out)
        case PackageModel():
            written["package"] = block.package
        case HubModel():
            written["name"] = block.name
    return written


def _relative(path: Path, out: Path) -> str:
    """Return a path as a study in `out` reads it: absolute where it was given so."""
    return str(path) if path.is_absolute() else os.path.relpath(path, out)


def _flow(values: dict[str, str]) -> str:
    def word(value: str) -> str:
        return value if re.fullmatch(r"[A-Za-z_][\w./-]*", value) else json.dumps(value, ensure_ascii=False)

    return "{" + ", ".join(f"{key}: {word(value)}" for key, value in values.items()) + "}"


def _short(count: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)


def _epochs(count: int) -> str:
    return f"{count} epoch" + "s" * (count > 1)


def _slug(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_").lower() or "study"
