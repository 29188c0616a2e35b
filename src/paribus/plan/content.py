"""What the trials of a plan will read, by content: model, examples, template; each hashed once a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from paribus.errors import ParibusError, Place, StudyError, nearest
from paribus.plan.scoring import TaskSetting
from paribus.plan.study import SPLITS, Study
from paribus.plan.trial import Content, Heldout
from paribus.sources.blocks import DataBlock, HubModel, ModelBlock, PackageModel
from paribus.techniques import ModelFacts, Settings

T = TypeVar("T")


@dataclass(frozen=True)
class DataContent:
    """Hashes of a data block's examples, and the groups each split has; `validation` and `test` by group."""

    train_sha256: str
    scored: dict[str, dict[str, tuple[Any, ...]]]

    def groups(self, split: str) -> tuple[str, ...]:
        return tuple(self.scored[split])


@dataclass(frozen=True)
class ModelContent:
    """A model's hash and facts, the commit where it came from the hub, the GGUF file its weights are in."""

    sha256: str
    facts: ModelFacts
    commit: str | None = None
    gguf_file: str | None = None


class Contents(Protocol):
    """Where a plan learns what blocks hold."""

    def model(self, block: ModelBlock) -> ModelContent: ...
    def data(self, block: DataBlock) -> DataContent: ...
    def template(self, model: ModelBlock, data: DataBlock) -> str: ...
    def heldout(self, data: DataBlock) -> Heldout: ...


@dataclass
class Found:
    """Contents found in files, on the hub or in the package; every distinct block is read once.

    Errors of the sources get the line of the study's block.
    """

    study: Study
    _kept: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def model(self, block: ModelBlock) -> ModelContent:
        files = self._files(block)
        return ModelContent(files.sha256, files.facts, files.commit, files.gguf_file)

    def data(self, block: DataBlock) -> DataContent:
        from paribus.sources.load import content_sha256, load_splits

        def load() -> DataContent:
            splits = load_splits(block, self.study.folder, self.study.task)
            return DataContent(
                content_sha256(splits.train), {"validation": splits.validation, "test": splits.test}
            )

        return self._once("data", load, block)

    def template(self, model: ModelBlock, data: DataBlock) -> str:
        from paribus.sources.template import template_sha256

        return self._once(
            "template", lambda: template_sha256(self._files(model), data, self.study.task), model, data
        )

    def heldout(self, data: DataBlock) -> Heldout:
        return self._once("heldout", lambda: self._heldout(data), data)

    def _files(self, block: ModelBlock) -> Any:
        from paribus.sources.models import locate

        return self._once("model", lambda: locate(block, self.study.folder), block)

    def _heldout(self, data: DataBlock) -> Heldout:
        """Decide which groups are scored, and hash what they hold."""
        from paribus.sources.load import groups_sha256

        content, setting = self.data(data), self.study.score.heldout
        available = tuple(dict.fromkeys(group for split in SPLITS for group in content.groups(split)))
        groups = setting.groups or available
        self._check_groups(groups, available)
        hashes = {
            split: groups_sha256({g: content.scored[split].get(g, ()) for g in groups}) for split in SPLITS
        }
        return Heldout(
            every=setting.every,
            groups=groups,
            train_sample=setting.train_sample,
            evaluate_in=setting.evaluate_in,
            validation_sha256=hashes["validation"],
            test_sha256=hashes["test"],
        )

    def _check_groups(self, groups: tuple[str, ...], available: tuple[str, ...]) -> None:
        for index, group in enumerate(groups):
            if group not in available:
                place = self.study.place("score", "heldout", "groups", index)
                raise StudyError(
                    f"the data has no group {group!r}", way_out=nearest(group, available), place=place
                )
        compare = self.study.compare
        if compare.group not in groups:
            valid = [f"{compare.split}.{group}.{compare.quantity}" for group in groups]
            raise StudyError(
                f"the metric {compare.metric!r} names a group that is not scored",
                way_out=nearest(compare.metric, valid),
                place=self.study.place("compare", "metric"),
            )

    def _once(self, what: str, compute: Any, *blocks: Settings) -> Any:
        key = (what, *(block.model_dump_json() for block in blocks))
        if key not in self._kept:
            with placed(self.study.place("model" if what in ("model", "template") else "data")):
                self._kept[key] = compute()
        return self._kept[key]


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Give an error that has no place the line of the block it is about."""
    try:
        yield
    except ParibusError as error:
        if error.place is not None:
            raise
        raise type(error)(error.message, way_out=error.way_out, place=place) from error


def content_of(
    contents: Contents, model: ModelBlock, data: DataBlock, techniques: dict[str, str] | None = None
) -> Content:
    """Return the hashes that stand for a model, its data and what techniques read in a trial."""
    return Content(
        techniques=techniques or {},
        model_sha256=contents.model(model).sha256,
        train_sha256=contents.data(data).train_sha256,
        template_sha256=contents.template(model, data),
    )


def pinned(contents: Contents, model: ModelBlock) -> ModelBlock:
    """Return the block with what was found of it: the commit of a hub model, the GGUF file in a package."""
    found = contents.model(model)
    if isinstance(model, HubModel) and found.commit:
        return model.model_copy(update={"revision": found.commit})
    if isinstance(model, PackageModel):
        return model.model_copy(update={"gguf_file": found.gguf_file})
    return model


def task_settings(study: Study) -> tuple[Any, ...]:
    """Return the study's tasks with the hashes of what they read; errors get the line of the task."""

    def found(name: str, task: TaskSetting) -> TaskSetting:
        with placed(study.place("score", "tasks", name)):
            return task.model_copy(update={"content_sha256": task.content(study.folder)})

    return tuple(found(name, task) for name, task in study.score.tasks.items())


def hub_key(block: HubModel) -> str:
    """Name a hub model as a study wrote it: its name, and the revision where one was given."""
    return f"{block.name}@{block.revision}" if block.revision else block.name
