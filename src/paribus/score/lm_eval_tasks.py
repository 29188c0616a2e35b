"""lm-eval's tasks with the documents of our choice, from a user's files or as lm-eval has them from the hub.

Everything but the documents is lm-eval's own: prompts, few-shot examples, filters, metrics, aggregation.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from lm_eval.api.registry import METRIC_REGISTRY
from lm_eval.tasks._factory import TaskFactory
from lm_eval.tasks._index import Entry
from lm_eval.tasks._yaml_loader import load_yaml

from paribus.errors import ParibusError, Place, nearest
from paribus.plan.scoring import Benchmark
from paribus.score.lm_eval_calls import calling, hub_or_cache
from paribus.score.lm_eval_index import find
from paribus.score.local_tasks import LocalData, wanted
from paribus.sources.files import resolve

FUNCTION: Final = re.compile(r"!function\s+([\w.]+)\.\w+")


@dataclass
class Loaded:
    """Leaf tasks and groups by name; `files` are all YAML and Python files they were made of.

    `places` has the file and line of each document where they were read from local files.
    """

    tasks: dict[str, Any]
    groups: dict[str, Any]
    files: tuple[Path, ...]
    places: dict[str, list[Place]] = field(default_factory=dict)


def load(setting: Benchmark, base: Path) -> Loaded:
    """Load a task or group with its documents; raises ParibusError, which names what is missing and where."""
    data = None
    if setting.data is not None:
        data = LocalData(resolve(setting.data, base), setting.num_fewshot)
    manager, spec = find(setting, base)
    factory = _Factory(data)
    manager._factory = factory
    with calling(spec):
        found = manager.load(spec)
    unfed = [name for name in found["tasks"] if name not in factory.fed]
    if data and unfed:
        raise ParibusError(
            f"the task {unfed[0]!r} is defined within a group and cannot be fed from local files.",
            way_out="Write it as a YAML file of its own and name it by file:.",
        )
    for name, task in found["tasks"].items():
        _set_shots(setting, name, task)
    files = sorted({file for path in factory.files for file in _files_of(path)})
    return Loaded(found["tasks"], found.get("groups", {}), tuple(files), data.places if data else {})


class _Factory(TaskFactory):
    """lm-eval's own, which gives each leaf task our documents and refuses what we cannot score."""

    def __init__(self, data: LocalData | None) -> None:
        super().__init__()
        self.data = data
        self.files: list[Path] = []
        self.fed: set[str] = set()

    def _load_full_config(self, entry: Entry, overrides: Any = None) -> dict[str, Any]:
        if entry.yaml_path:
            self.files.append(Path(entry.yaml_path))
        return super()._load_full_config(entry, overrides)

    def _build_task(self, entry: Entry, overrides: Any) -> Any:
        raw = load_yaml(entry.yaml_path, resolve_func=False) if entry.yaml_path else entry.cfg or {}
        config = {**raw, **(overrides or {})}
        name = str(config.get("task"))
        _refuse(config)
        if self.data is None:
            with calling(name, wanted(config)), hub_or_cache():
                return super()._build_task(entry, overrides)
        if "class" in config:
            raise ParibusError(
                f"the task {name!r} is Python code that fetches its documents itself.",
                way_out="Leave data out; it can be fed from the hub alone.",
            )
        self.fed.add(name)
        documents = partial(_documents, self.data.dataset(config))
        with calling(name, _unknown_metric(config)):
            return super()._build_task(entry, {**(overrides or {}), "custom_dataset": documents})


def _documents(dataset: Any, **_: Any) -> Any:
    """Return the documents, whatever lm-eval passes on from the YAML."""
    return dataset


def _unknown_metric(config: dict[str, Any]) -> str | None:
    """Say which metric lm-eval does not have; it looks for such a one on the hub."""
    for metric in config.get("metric_list") or []:
        name = metric.get("metric")
        if isinstance(name, str) and not name.startswith("/") and name not in METRIC_REGISTRY:
            return f"lm-eval has no metric {name!r} of its own. {nearest(name, METRIC_REGISTRY)}"
    return None


def _refuse(config: dict[str, Any]) -> None:
    """Raise ParibusError for a task that runs programs, samples its answers or shows pictures."""
    name, generation = config.get("task"), config.get("generation_kwargs") or {}
    if config.get("unsafe_code"):
        raise ParibusError(
            f"the task {name!r} runs programs that the model wrote, without a sandbox.",
            way_out="Score HumanEval in paribus's sandbox in its place: {kind: code}.",
        )
    if generation.get("do_sample", bool(generation.get("temperature"))) or generation.get("num_beams", 1) > 1:
        raise ParibusError(
            f"the task {name!r} draws its answers or searches them by beams, and answers here are greedy.",
            way_out="Write a YAML file that includes it, with repeats: 1 and generation_kwargs: "
            "{do_sample: false, until: [...]}, and name it by file:.",
        )
    if config.get("doc_to_image") or config.get("doc_to_audio"):
        raise ParibusError(
            f"the task {name!r} shows the model pictures or sound.", way_out="Take another task."
        )


def _set_shots(setting: Benchmark, name: str, task: Any) -> None:
    """Set the number and the seed of few-shot examples, as lm-eval's own evaluation does."""
    fixed = task.get_config("num_fewshot")
    if setting.num_fewshot is None:
        task.set_config(key="num_fewshot", value=fixed or 0)
    elif fixed == 0 and setting.num_fewshot:
        raise ParibusError(
            f"the task {name!r} is fixed at no few-shot examples, and num_fewshot is {setting.num_fewshot}.",
            way_out="Leave num_fewshot out, or write a YAML file that includes the task and sets it.",
        )
    else:
        task.set_config(key="num_fewshot", value=setting.num_fewshot)
    task.set_fewshot_seed(seed=setting.seed)
    shots, split = task.config.num_fewshot, task.config.fewshot_config.split
    pool = len(task.sampler.df) - (split == task.config.test_split)
    if shots > pool:
        raise ParibusError(
            f"the task {name!r} shows {shots} few-shot examples, and there are {pool} to choose from.",
            way_out=f"Set num_fewshot to {pool} or fewer, or add documents to the split {split!r}.",
        )


def _files_of(path: Path) -> list[Path]:
    """Return a YAML file, all it includes, and the Python files beside it whose functions it names."""
    config = load_yaml(path, resolve_func=False, recursive=False)
    includes = config.get("include") or []
    includes = includes if isinstance(includes, list) else [includes]
    modules = FUNCTION.findall(path.read_text(encoding="utf-8"))
    beside = [path.parent / f"{module.replace('.', '/')}.py" for module in modules]
    inner = [file for include in includes for file in _files_of(path.parent / include)]
    return [path, *inner, *(file for file in beside if file.is_file())]


def content(loaded: Loaded) -> str:
    """Hash what the task is made of and every document it reads, wherever these came from."""
    whole = hashlib.sha256()
    whole.update(
        json.dumps(sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in loaded.files)).encode()
    )
    for name, task in sorted(loaded.tasks.items()):
        for split in sorted({split for split in _splits(task) if split in task.dataset}):
            whole.update(json.dumps([name, split]).encode())
            for row in task.dataset[split]:
                whole.update(
                    json.dumps(row, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
                )
    return whole.hexdigest()


def _splits(task: Any) -> list[str]:
    config = task.config
    named = (config.test_split, config.validation_split, config.training_split, config.fewshot_config.split)
    return [name for name in named if name]
