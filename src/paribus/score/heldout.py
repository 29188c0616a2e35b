"""Held-out loss of our own: a sum over targets, the same whatever the batches it was computed in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple, Protocol

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from paribus.plan.trial import Heldout
from paribus.record.result import HeldoutScore, Reading
from paribus.sources.blocks import Task

Split = Literal["train_sample", "validation", "test"]
NO_TARGET: Final = -100
TOKENS: Final = 2048
"""Padded tokens in a batch: more is no faster on one core."""
LOGITS: Final = 2**25
"""Logits in a batch at most, 128 MiB of fp32: with a large vocabulary they are what fills the memory."""


class Row(Protocol):
    """An encoded example: token ids and labels, -100 where a token is no target; a class is the last one."""

    @property
    def example_id(self) -> str: ...
    @property
    def input_ids(self) -> Sequence[int]: ...
    @property
    def labels(self) -> Sequence[int]: ...


class Item(NamedTuple):
    """One example at one point of training: summed loss in nats, targets, and how many came out right."""

    step: int
    split: Split
    group: str
    example_id: str
    loss_sum: float
    targets: int
    correct: int


class _Place(NamedTuple):
    split: Split
    group: str
    row: Row


class Scorer:
    """Scores one model again and again along its training, for one scoring setting.

    `held` maps validation and test to their groups' rows; of `train` a fixed sample is scored, the same for
    every seed and arm, as the group `all`. `groups` of the setting limits the groups; none named means all.
    """

    def __init__(
        self,
        setting: Heldout,
        train: Iterable[Row],
        held: Mapping[Split, Mapping[str, Sequence[Row]]],
        *,
        batch_tokens: int = TOKENS,
        task: Task = "instruction",
    ) -> None:
        self.setting, self.batch_tokens = setting, batch_tokens
        self._sums = _class_sums if task == "classification" else _token_sums
        sample = fixed_sample(train, setting.train_sample)
        self.places = [_Place("train_sample", "all", row) for row in sample]
        for split, groups in held.items():
            for group, rows in groups.items():
                if not setting.groups or group in setting.groups:
                    self.places += [_Place(split, group, row) for row in rows]
        self.curve: list[Reading] = []
        self._items: dict[int, list[Item]] = {}

    def read(
        self,
        model: Any,
        step: int,
        epoch: float,
        as_trained: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Add one reading of each split and group; the model is used as it is, in the mode it is in.

        Where the setting asks for it the model is read again inside `as_trained`, computing as in training.
        """
        self._items[step] = self._scored(model, step)
        readings = _readings(self._items[step], epoch)
        if self.setting.evaluate_in == "as_trained":
            with as_trained():
                rounded = _readings(self._scored(model, step), epoch)
            readings = [
                one.model_copy(update={"loss_as_trained": r.loss, "accuracy_as_trained": r.accuracy})
                for one, r in zip(readings, rounded, strict=True)
            ]
        self.curve += readings

    def _scored(self, model: Any, step: int) -> list[Item]:
        items: list[Item | None] = [None] * len(self.places)
        with torch.no_grad():
            for batch in self._batches(model.config.get_text_config().vocab_size):
                rows = [self.places[index].row for index in batch]
                for index, sums in zip(batch, self._sums(model, rows), strict=True):
                    split, group, row = self.places[index]
                    items[index] = Item(step, split, group, row.example_id, *sums)
        return [item for item in items if item is not None]

    def state(self) -> dict[str, Any]:
        """Return all readings so far, for a checkpoint."""
        return {
            "curve": [reading.model_dump() for reading in self.curve],
            "sums": {step: [[*item[-3:]] for item in items] for step, items in self._items.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from there with the same examples."""
        self.curve = [Reading(**reading) for reading in state["curve"]]
        self._items = {
            step: [
                Item(step, place.split, place.group, place.row.example_id, *sums)
                for place, sums in zip(self.places, rows, strict=True)
            ]
            for step, rows in state["sums"].items()
        }

    def _batches(self, vocabulary: int) -> Iterable[list[int]]:
        """Cut the rows, longest first, into batches of bounded size; padding is least between neighbours."""
        budget = max(1, min(self.batch_tokens, LOGITS // vocabulary))
        lengths = [len(place.row.input_ids) for place in self.places]
        order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
        while order:
            count = max(1, budget // lengths[order[0]])
            yield order[:count]
            order = order[count:]

    def pooled_validation_loss(self, step: int) -> float | None:
        """Return the loss over the validation targets of all groups at one step, or None without any."""
        items = [item for item in self._items[step] if item.split == "validation"]
        targets = sum(item.targets for item in items)
        return sum(item.loss_sum for item in items) / targets if targets else None

    def score(self, trial_id: str, score_id: str) -> HeldoutScore:
        """Return all readings so far."""
        setting = self.setting.model_dump(mode="json")
        return HeldoutScore(score_id=score_id, trial_id=trial_id, setting=setting, curve=tuple(self.curve))

    def items(self) -> list[dict[str, Any]]:
        """Return the rows of single examples: of the base model, of the end, and of each group's best point.

        The best point is the one of least validation loss of a group (the first of equals).
        """
        if not self._items:
            return []
        steps = {min(self._items), max(self._items), *self.best_steps().values()}
        return [item._asdict() for step in sorted(steps) for item in self._items[step]]

    def best_steps(self) -> dict[str, int]:
        """Return the step of least validation loss after training began, by group."""
        by_group: dict[str, list[Reading]] = defaultdict(list)
        for reading in self.curve:
            if reading.split == "validation" and reading.step > 0:
                by_group[reading.group].append(reading)
        return {group: min(readings, key=lambda r: r.loss).step for group, readings in by_group.items()}


def fixed_sample(rows: Iterable[Row], count: int) -> list[Row]:
    """Choose rows by a hash of their ids, so that neither seed nor order moves the sample."""
    return sorted(rows, key=lambda row: sha256(row.example_id.encode()).digest())[:count]


def _padded(model: Any, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """Pad rows on the right: under a causal mask no real token sees padding or moves from its position."""
    device = next(model.parameters()).device
    ids = pad_sequence([torch.tensor(row.input_ids) for row in rows], batch_first=True).to(device)
    lengths = torch.tensor([len(row.input_ids) for row in rows], device=device)
    mask = (torch.arange(ids.shape[1], device=device) < lengths.unsqueeze(1)).long()
    return {"input_ids": ids, "attention_mask": mask}


def _class_sums(model: Any, rows: Sequence[Row]) -> list[tuple[float, int, int]]:
    """Return each row's loss, its one target, and whether its class has the largest logit."""
    logits = model(**_padded(model, rows), use_cache=False).logits.float()
    classes = torch.tensor([row.labels[-1] for row in rows], device=logits.device)
    losses = cross_entropy(logits, classes, reduction="none").double()
    hits = (logits.argmax(-1) == classes).long()
    return list(zip(losses.tolist(), [1] * len(rows), hits.tolist(), strict=True))


def _token_sums(model: Any, rows: Sequence[Row]) -> list[tuple[float, int, int]]:
    """Return each row's summed loss, targets and right predictions; logits in fp32, summed in fp64."""
    given = _padded(model, rows)
    ids, device = given["input_ids"], given["input_ids"].device
    labels = pad_sequence(
        [torch.tensor(row.labels) for row in rows], batch_first=True, padding_value=NO_TARGET
    ).to(device)
    logits = model(**given, use_cache=False).logits
    logits = logits[:, -ids.shape[1] : -1]  # without those of virtual tokens in front
    targets = labels[:, 1:]
    wanted = targets != NO_TARGET
    chosen, right = logits[wanted].float(), targets[wanted]
    losses = torch.zeros(targets.shape, dtype=torch.float64, device=device)
    losses[wanted] = cross_entropy(chosen, right, reduction="none").double()
    hits = torch.zeros_like(targets)
    hits[wanted] = (chosen.argmax(-1) == right).long()
    return list(zip(losses.sum(1).tolist(), wanted.sum(1).tolist(), hits.sum(1).tolist(), strict=True))


def _readings(items: Iterable[Item], epoch: float) -> list[Reading]:
    """Sum items by split and group; a group without a target has no reading."""
    grouped: dict[tuple[Split, str], list[Item]] = defaultdict(list)
    for item in items:
        grouped[item.split, item.group].append(item)
    readings = []
    for (split, group), members in grouped.items():
        targets = sum(item.targets for item in members)
        if targets:
            readings.append(
                Reading(
                    step=members[0].step,
                    epoch=epoch,
                    split=split,
                    group=group,
                    loss=sum(item.loss_sum for item in members) / targets,
                    accuracy=sum(item.correct for item in members) / targets,
                    targets=targets,
                    examples=len(members),
                )
            )
    return readings
