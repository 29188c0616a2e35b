"""One training run: a trial's settings in, its curve, order, cost and end out."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import TrainingArguments

from paribus.plan.trial import Training
from paribus.record.result import Cost, Counts, Diverged
from paribus.techniques import Live, NoEffect, Technique, sub_seed
from paribus.techniques.accumulation import AUTO
from paribus.techniques.tuning import weights
from paribus.train import optimizers
from paribus.train.checkpoint import Checkpoints
from paribus.train.data import Encoded
from paribus.train.fit import micro_batches
from paribus.train.flattened import check_separate
from paribus.train.kernels import attention_seen
from paribus.train.objective import NextToken, Objective
from paribus.train.optimizers import OPTIMIZERS
from paribus.train.reading import Reader
from paribus.train.trainer import AblationTrainer, Listener

SPLITS: Final = "gradient_accumulation_steps"
NUMBERS: Final = ("attention_dropout", "dropout", "layerdrop")
"""Attributes of modules that hold a rate of dropout, where no module of torch does the dropping."""


@dataclass(frozen=True)
class Trained:
    """What became of a training run; `curve` has a row for each optimizer step (see `AblationTrainer`)."""

    curve: list[dict[str, Any]]
    order_sha256: str
    counts: Counts
    cost: Cost | None
    diverged: Diverged | None
    resolved: dict[str, Any]
    warnings: tuple[str, ...]

    @property
    def curve_sha256(self) -> str:
        """Hash every loss to its last bit."""
        return hashlib.sha256("\n".join(float(row["loss"]).hex() for row in self.curve).encode()).hexdigest()


def train(
    model: Any,
    rows: Sequence[Encoded],
    training: Training,
    live: Live,
    *,
    techniques: Sequence[Technique],
    pad_token_id: int,
    readers: Sequence[Reader],
    listener: Listener,
    folder: Path,
    objective: Objective | None = None,
    trainer_class: type[AblationTrainer] = AblationTrainer,
    checkpoints: Checkpoints | None = None,
) -> Trained:
    """Train a model to which the techniques have been applied, on the device that is there.

    `folder` is where the Trainer may write. With `checkpoints` training goes on from the newest one that is
    whole. The model comes back on that device, in training mode.
    """
    missing = training.obstacle()
    if missing:
        raise NoEffect(training.optimizer, *missing)
    chosen = {name: value for one in techniques for name, value in one.trainer_arguments().items()}
    shared = {"pad_token_id": pad_token_id, "techniques": techniques}
    shared["objective"] = objective or NextToken(training.padding_free)

    def attempt(kind: type[AblationTrainer], few: Sequence[Encoded], small: Training, steps: int) -> None:
        settings = arguments(small, live.seed, folder, chosen | {SPLITS: steps})
        with _unchanged(model):
            kind(model, settings, few, live, readers=(), listener=lambda *_: None, **shared).train()

    if chosen.get(SPLITS) == AUTO:
        with without_dropout(model):
            chosen[SPLITS] = micro_batches(model, rows, training, live, attempt, trainer_class, folder)
    settings = arguments(training, live.seed, folder, chosen)
    with without_dropout(model) as rates, _unchanged(model):
        trainer = trainer_class(
            model,
            settings,
            rows,
            live,
            readers=readers,
            listener=listener,
            checkpoints=checkpoints,
            **shared,
        )
        apart = _checked_apart(trainer, rows) if training.padding_free else {}
        try:
            with attention_seen(model) as attention:
                trainer.resume()
        finally:
            trainer.meter.stop()
    warnings = []
    if rates:
        warnings.append(
            f"the model's own dropout ({', '.join(map(str, rates))}) was off in training: its draws would "
            "depend on how a batch is split, and so differ between arms"
        )
    if training.weight_decay and not optimizers.decayed(trainer.optimizer):
        warnings.append(
            f"weight_decay {training.weight_decay:g} changes nothing here: it spares biases and norms, and "
            "nothing else trains"
        )
    if trainer.skipped_steps:
        warnings.append(f"the loss scaler skipped {trainer.skipped_steps} optimizer steps that overflowed")
    kept = optimizers.evidence(trainer.optimizer)
    warnings += optimizers.shortfalls(training.optimizer, kept, settings.device)
    if checkpoints:
        warnings += [*checkpoints.warnings, *_unwritten(checkpoints)]
    cost = trainer.meter.cost(*_sizes(model))
    live.tokens_per_second = cost.tokens_per_second if cost else None
    return Trained(
        curve=trainer.curve,
        order_sha256=trainer.order.sha256,
        counts=_counts(trainer),
        cost=cost,
        diverged=trainer.diverged,
        resolved={
            "device": str(settings.device),
            "optimizer": str(OPTIMIZERS[training.optimizer]),
            **kept,
            "micro_batch": settings.per_device_train_batch_size,
            "effective_batch_size": settings.train_batch_size * settings.gradient_accumulation_steps,
            "steps": trainer.state.max_steps,
            "mixed_precision": settings.mixed_precision,
            "attention_kernel": str(attention),
            "threads": torch.get_num_threads() if settings.device.type == "cpu" else None,
            **_resumed(trainer.resumed_at),
            **(apart and {"padding_free": apart | {"padding_tokens_saved": trainer.padding_tokens}}),
        },
        warnings=tuple(warnings),
    )


def optimizer_steps(training: Training, rows: int) -> int:
    """Count the optimizer steps of a run over that many rows."""
    return training.max_steps or math.ceil(rows / training.effective_batch_size) * (training.epochs or 1)


def arguments(
    training: Training, seed: int, folder: Path, technique_arguments: Mapping[str, Any]
) -> TrainingArguments:
    """Spell out the Trainer's arguments; what an arm does not vary is the same for all.

    The seed feeds what has no sub-seed of its own; numpy takes 32 bits of it.
    """
    splits = technique_arguments.get(SPLITS, 1)
    scheduler = training.lr_scheduler_type
    if scheduler == "constant" and training.warmup_steps:
        scheduler = "constant_with_warmup"  # the Trainer's `constant` would ignore the warm-up
    settings = TrainingArguments(
        output_dir=str(folder),
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=training.effective_batch_size // splits,
        num_train_epochs=training.epochs or 1,
        max_steps=training.max_steps or -1,
        learning_rate=training.learning_rate,
        lr_scheduler_type=scheduler,
        warmup_steps=training.warmup_steps,
        optim=OPTIMIZERS[training.optimizer],
        adam_beta1=training.adam_beta1,
        adam_beta2=training.adam_beta2,
        adam_epsilon=training.adam_epsilon,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        seed=sub_seed(seed, "sampling") % 2**32,
        logging_strategy="steps",
        logging_steps=1,
        logging_nan_inf_filter=False,
        eval_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_num_workers=0,
        dataloader_drop_last=False,
        dataloader_pin_memory=False,
        **technique_arguments,
    )
    settings._n_gpu = min(settings.n_gpu, 1)  # several visible devices would split each batch among them
    return settings


def _checked_apart(trainer: AblationTrainer, rows: Sequence[Encoded]) -> dict[str, Any]:
    """Make sure that examples in one row stay apart; returns by how much their logits differ from alone."""
    if not getattr(trainer.objective, "padding_free", False):
        reason = f"the objective {type(trainer.objective).__name__} pads its rows"
        raise NoEffect("padding_free", reason, "set training.padding_free: false")
    return {"logits_differ_by": check_separate(trainer.model, rows)}


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[list[float]]:
    """Set every dropout of a model to zero for the length of a run; yields the rates that were not zero.

    Attention kernels take theirs from numbers on their modules (`attention_dropout` or `dropout`), decoders
    that skip whole layers at random theirs from `layerdrop`.
    """
    places: list[tuple[Any, str, float]] = []
    for module in model.modules():
        names = ("p",) if isinstance(module, torch.nn.Dropout) else NUMBERS
        for name in names:
            rate = vars(module).get(name)
            if isinstance(rate, float) and rate:
                places.append((module, name, rate))
    try:
        for module, name, _ in places:
            setattr(module, name, 0.0)
        yield sorted({rate for _, _, rate in places})
    finally:
        for module, name, rate in places:
            setattr(module, name, rate)


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Take off what accelerate puts on a model (marks, autocast around `forward`); put back `use_cache`."""
    before, cache = set(vars(model)), model.config.use_cache
    try:
        with optimizers.apart():
            yield
    finally:
        for name in set(vars(model)) - before:
            delattr(model, name)
        model.config.use_cache = cache


def _sizes(model: torch.nn.Module) -> tuple[int, int]:
    """Count the weights that train, and all."""
    parameters = list(model.parameters())
    trained = sum(weights.elements(p) for p in parameters if p.requires_grad)
    return trained, sum(weights.elements(p) for p in parameters)


def _resumed(steps: Sequence[int]) -> dict[str, Any]:
    """Say at which steps a run went on from a checkpoint, and how many attempts its steps are of."""
    return {"resumed": {"at_steps": list(steps), "attempts": len(steps) + 1}} if steps else {}


def _unwritten(checkpoints: Checkpoints) -> list[str]:
    missing = checkpoints.unwritten
    return [f"{len(missing)} checkpoints could not be written, first at {missing[0]}"] if missing else []


def _counts(trainer: AblationTrainer) -> Counts:
    return Counts(
        examples=trainer.examples,
        optimizer_steps=len(trainer.curve),
        tokens=sum(row["tokens"] for row in trainer.curve),
        target_tokens=sum(row["target_tokens"] for row in trainer.curve),
        truncated_examples=trainer.truncated_examples,
    )
