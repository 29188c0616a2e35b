"""What happens when in a training: epochs counted, the stopwatch run, the model read, checkpoints saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import TrainerState

if TYPE_CHECKING:
    from paribus.train.trainer import AblationTrainer


class Moments(TrainerCallback):
    """The moments of training at which epochs are counted, the stopwatch runs and the model is read."""

    def __init__(self, trainer: AblationTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        trainer = self.trainer
        trainer.live.epoch = trainer.epochs_before - 1
        if not trainer.resumed_at:
            trainer.read("start")
        elif trainer.at_epoch_end:
            trainer.read("epoch")  # the checkpoint was saved before the reading
        trainer.meter.start()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        if self.trainer.accelerator.optimizer_step_was_skipped:
            return
        for technique in self.trainer.techniques:
            technique.after_step(self.trainer.model, self.trainer.live)  # type: ignore[arg-type]

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **__: Any) -> None:
        checkpoints = self.trainer.checkpoints
        if checkpoints and checkpoints.due(state.global_step, state.max_steps):
            control.should_save = True

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.trainer.live.epoch += 1

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        self.trainer.read("epoch")

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.trainer.meter.stop()
        self.trainer.read("end")
