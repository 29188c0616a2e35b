"""A thin `transformers.Trainer`: hooks alone, and the name of no technique.

What it adds: an explicit order of examples, exact accumulation, a curve with a row for each optimizer step,
scoring by a callback with the stopwatch paused, and an end as soon as a loss or gradient is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import PrinterCallback, TrainerState

from paribus.record.result import Diverged
from paribus.techniques import Live, Technique
from paribus.techniques.tuning import weights
from paribus.train import packed, snapshot
from paribus.train.checkpoint import Checkpoints, device_name
from paribus.train.data import Encoded
from paribus.train.divergence import divergence, norm
from paribus.train.meter import Meter
from paribus.train.moments import Moments
from paribus.train.objective import NextToken, Objective
from paribus.train.order import Order
from paribus.train.reading import Moment, Reader, evaluating

Listener = Callable[[int, int, float], None]
"""Called after each optimizer step with its number, the number of steps in all and its loss."""


class AblationTrainer(Trainer):
    """Train on encoded rows; keep for the result `curve`, `order`, `meter`, `diverged`, `skipped_steps`.

    A row of the curve has step, epoch, loss (nats a target token over the whole optimizer step), grad_norm
    (before clipping; None where the step was skipped), parameter_norm (of what trains, after the step),
    learning_rate, tokens and target_tokens.
    `techniques` are asked for what divides a loss, what is added to it, whether a step is made, and what
    follows it.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        rows: Sequence[Encoded],
        live: Live,
        *,
        pad_token_id: int,
        readers: Sequence[Reader],
        listener: Listener,
        techniques: Sequence[Technique] = (),
        objective: Objective | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.rows, self.live, self.pad_token_id = rows, live, pad_token_id
        self.readers, self.listener = readers, listener
        self.techniques, self.objective = techniques, objective or NextToken()
        self.order = Order(live, [row.example_id for row in rows])
        self.meter = Meter(arguments.device)
        self.curve: list[dict[str, Any]] = []
        self.diverged: Diverged | None = None
        self.skipped_steps = self.examples = self.truncated_examples = self.padding_tokens = 0
        self.checkpoints, self.resumed_at = checkpoints, list[int]()
        self.epochs_before, self.at_epoch_end = 0, False
        self._counts = {"tokens": 0, "target_tokens": 0}
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=range(len(rows)),  # type: ignore[arg-type]  (anything with a length and items)
            data_collator=self._collate,
            compute_loss_func=self._loss,
            callbacks=[Moments(self)],
        )
        self.remove_callback(PrinterCallback)
        self.buffers = snapshot.buffer_digests(self.trained) if checkpoints else {}

    @property
    def trained(self) -> torch.nn.Module:
        """Return the model that trains, as the techniques left it."""
        assert isinstance(self.model, torch.nn.Module)
        return self.model

    @property
    def made_by(self) -> dict[str, Any]:
        """Say how this run computes; a checkpoint made otherwise would not end where this run ends."""
        return {
            "device": device_name(self.args.device),
            "micro_batch": self.args.per_device_train_batch_size,
            "micro_batches": self.args.gradient_accumulation_steps,
        }

    def resume(self) -> None:
        """Train, from the newest checkpoint that is whole and of this training if there is one."""
        found = None
        if self.checkpoints:
            found = self.checkpoints.newest(self.made_by, lambda path: snapshot.unfit(self.trained, path))
        self.train(resume_from_checkpoint=str(found) if found else None)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save what the Trainer saves, what trains of the model, and what was gathered along the way."""
        if self.checkpoints and not self.diverged:
            with self.meter.paused():
                self.checkpoints.write(self.state.global_step, self.made_by, self._fill)

    def _fill(self, folder: Path) -> None:
        weights.save(self.trained, folder / snapshot.WEIGHTS)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))
        self.state.save_to_json(str(folder / TRAINER_STATE_NAME))
        packed.write(snapshot.taken(self), folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Put back what `_fill` saved; the Trainer puts back the rest once there is an optimizer."""
        folder = Path(resume_from_checkpoint)
        weights.load(self.trained, folder / snapshot.WEIGHTS)
        step = TrainerState.load_from_json(str(folder / TRAINER_STATE_NAME)).global_step
        snapshot.put_back(self, packed.read(folder), step)

    def _init_training_state(self, *given: Any, **named: Any) -> tuple[int, int]:
        """Find the place in the epochs; those before count as given."""
        epochs, batches = super()._init_training_state(*given, **named)
        self.epochs_before, self.at_epoch_end = epochs, not batches
        self.order.pass_over(epochs)
        return epochs, batches

    def _collate(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """Pad a micro-batch; its row numbers go along, because batches are fetched before they are used."""
        batch = self.objective.collate([self.rows[index] for index in indices], self.pad_token_id)
        return {**batch, "rows": torch.tensor(indices)}

    def _get_train_sampler(self, train_dataset: Any = None) -> Order:
        return self.order

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> Any:
        """Fetch the micro-batches of one optimizer step, with the number of targets in all of them."""
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        targets = sum(self.objective.targets(batch["labels"]) for batch in batches)
        tokens = sum(len(self.rows[row].input_ids) for batch in batches for row in batch["rows"].tolist())
        self._counts = {"tokens": tokens, "target_tokens": targets}
        self.live.step_targets, self.live.window = targets, len(batches)
        self.live.micro_batches[len(batches)] += 1
        return batches, torch.tensor(targets)

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        """Say whose turn it is, then step as always."""
        rows = [self.rows[index] for index in inputs.pop("rows").tolist()]
        self.live.example_ids = tuple(row.example_id for row in rows)
        self.live.lengths = tuple(len(row.input_ids) for row in rows)
        self.live.targets = self.objective.targets(inputs["labels"])
        self.live.step = self.state.global_step
        self.examples += len(rows)
        self.truncated_examples += sum(row.truncated for row in rows)
        self.padding_tokens += len(rows) * max(self.live.lengths) - sum(self.live.lengths)
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            self._ask_for_step()
        return loss

    def _ask_for_step(self) -> None:
        """Have no step made where a technique says so: an optimizer does nothing without gradients.

        Accelerate is told as by a loss scaler of its own, and so the schedule waits.
        """
        made = [one.before_step(self.trained, self.live) for one in self.techniques]
        self.optimizer._is_overflow = not all(made)  # type: ignore[union-attr]
        if not all(made):
            self.trained.zero_grad()

    def _loss(self, outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        """Sum the losses of a micro-batch's targets over the targets of its optimizer step."""
        divisors = [given for one in self.techniques if (given := one.divisor(self.live)) is not None]
        loss = self.objective.summed(outputs.logits, labels) / (divisors or [self.live.step_targets])[0]
        penalties = (one.penalty(self.model, self.live) for one in self.techniques)  # type: ignore[arg-type]
        return loss + sum(penalty / self.live.window for penalty in penalties if penalty is not None)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """Give parameters with a learning rate of their own a group of their own."""
        optimizer = self.live.optimizer = super().create_optimizer(model)
        named = dict(self.model.named_parameters())  # type: ignore[union-attr]
        factors = {
            named[name]: factor
            for one in self.techniques
            for name, factor in one.learning_rate_factors(self.model).items()  # type: ignore[arg-type]
        }
        if factors:
            optimizer.param_groups[:] = [
                {**group, "lr": group["lr"] * factor, "params": chosen}
                for group in optimizer.param_groups
                for factor in sorted({1.0, *factors.values()})
                if (chosen := [p for p in group["params"] if factors.get(p, 1.0) == factor])
            ]
        return optimizer

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Note an optimizer step (the Trainer logs each); its last log, of all training, is left out."""
        if "loss" not in logs:
            return
        self.meter.step_done(self._counts["tokens"])
        step = self.state.global_step
        grad_norm = logs.get("grad_norm")
        if self.accelerator.optimizer_step_was_skipped:
            self.skipped_steps, grad_norm = self.skipped_steps + 1, None
        self.curve.append(
            {
                "step": step,
                "epoch": self.state.epoch,
                "loss": logs["loss"],
                "grad_norm": grad_norm,
                "parameter_norm": norm(p for p in self.trained.parameters() if p.requires_grad),
                "learning_rate": logs["learning_rate"],
                **self._counts,
            }
        )
        self.listener(step, self.state.max_steps, logs["loss"])
        self.diverged = divergence(step, loss=logs["loss"], grad_norm=grad_norm)
        if self.diverged:
            self.control.should_training_stop = True
        else:
            self.read("step")

    def read(self, moment: Moment) -> None:
        """Have the model scored: in evaluation mode, no gradients, no autocast, the stopwatch paused."""
        step = self.state.global_step
        due = [reader for reader in self.readers if reader.due(moment, step)]
        if not due or self.diverged:
            return
        with self.meter.paused(), evaluating(self.trained), torch.no_grad():
            for reader in due:
                reader.read_at = step
                reader.score(step, self.state.epoch or 0.0)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Count nothing: the Trainer's estimate walks all modules at every micro-batch and is not used."""
        return 0
