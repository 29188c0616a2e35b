"""Keep a study and its results together: what was planned under a results folder, and what changed since.

`study.lock` holds, as JSON, the ids that were planned, what they had in common, the hashes of what they
read and the commits that hub models were found at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.errors import ChangedStudyError, Place, RecordError
from paribus.plan.content import hub_key
from paribus.plan.study import FILE, Study
from paribus.plan.trial import Job, Trial
from paribus.sources.blocks import HubModel
from paribus.sources.cache import write_whole

if TYPE_CHECKING:
    from paribus.plan.design import Plan

LOCK = "study.lock"
SCHEMA = 1


def write_lock(plan: Plan, folder: Path) -> None:
    """Write the study and its lock into a results folder; raises RecordError where it cannot be written."""
    lock = {
        "paribus": SCHEMA,
        "study": plan.study.name,
        "axes": list(plan.axes),
        "settings": _flat(_written(_baseline(plan))),
        "commits": _commits(plan, folder),
        "groups": sorted({job.group for job in plan.jobs}),
        "trials": [job.trial_id for job in plan.jobs],
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / FILE, plan.study.text.encode())
        write_whole(folder / LOCK, (json.dumps(lock, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise RecordError(
            f"the results folder cannot be written: {error.strerror}",
            way_out="free space or permissions there, or name another folder with --results",
            place=Place(error.filename or folder),
        ) from error


def check_change(plan: Plan, folder: Path, accept: bool = False) -> None:
    """Raise ChangedStudyError where a changed fixed value leaves none of the recorded trials in the plan.

    More values, seeds or scores are no change. With `accept` the new trials are run beside the recorded ones.
    """
    recorded = _recorded(folder)
    if accept or not recorded:
        return
    lock = read_lock(folder)
    planned = {job.group for job in plan.jobs}
    if planned & ({trial["group"] for trial in recorded} | set(lock.get("groups", ()))):
        return
    old = lock.get("settings") or _flat(_written(Trial.model_validate(recorded[0]["trial"])))
    fixed = set(plan.axes) & set(lock.get("axes", plan.axes))
    changes = _changes(old, _flat(_written(_baseline(plan))), fixed)
    if changes:
        raise _changed(plan.study, changes, len(recorded), folder)


def read_lock(folder: Path) -> dict[str, Any]:
    """Read a results folder's lock; empty where there is none or it is damaged: the results say the same."""
    try:
        lock = json.loads((folder / LOCK).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return lock if isinstance(lock, dict) and lock.get("paribus") == SCHEMA else {}


def pinned(study: Study, folder: Path) -> Study:
    """Return the study with every hub model at the commit at which its results were made."""
    commits: Mapping[str, str] = read_lock(folder).get("commits", {})

    def pin(block: Any) -> Any:
        commit = commits.get(hub_key(block)) if isinstance(block, HubModel) else None
        return block.model_copy(update={"revision": commit}) if commit else block

    if not commits:
        return study
    update: dict[str, Any] = {"model": pin(study.model)}
    axis = study.vary.get("model")
    if axis:
        values = tuple(map(pin, axis.values))
        update["vary"] = {**study.vary, "model": axis.model_copy(update={"values": values})}
    return study.model_copy(update=update)


def _commits(plan: Plan, folder: Path) -> dict[str, str]:
    """Return the commits of the plan's hub models, and under which names an earlier plan found them."""
    earlier = read_lock(folder).get("commits", {}).items()
    return {key: commit for key, commit in earlier if commit in plan.commits.values()} | plan.commits


def _recorded(folder: Path) -> list[dict[str, Any]]:
    """Read the jobs of the trials with a result; one that is damaged is the store's to name and set aside."""
    found = []
    for result in sorted(folder.glob("*/result.json")):
        try:
            job = json.loads(result.with_name("trial.json").read_bytes())
        except (FileNotFoundError, ValueError):
            continue
        if isinstance(job, dict) and set(Job.model_fields) >= {"group", "trial"} <= set(job):
            found.append(job)
    return found


def _baseline(plan: Plan) -> Trial:
    return plan.job(next(iter(plan.baseline.trials.values()))).trial


def _written(trial: Trial) -> dict[str, Any]:
    return trial.model_dump(mode="json", exclude={"seed"})


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Write nested settings under dotted names."""
    if not isinstance(value, dict):
        return {name: value}
    return {
        k: v for key, item in value.items() for k, v in _flat(item, f"{name}.{key}" if name else key).items()
    }


_CONTENT = {
    "content.model_sha256": ("model", "load_dtype"),
    "content.train_sha256": ("data", "loss_on"),
    "content.template_sha256": ("data.template", ""),
}
"""What each hash stands for: a block, and the one of its settings that shapes weights beside the content."""


def _changes(old: dict[str, Any], new: dict[str, Any], varied: set[str]) -> dict[str, tuple[Any, Any]]:
    """Compare what was fixed: setting -> (before, now).

    Where content stayed the same, the places it was found in do not count; where it changed, the settings
    that changed it are named, and the hash only where there are none.
    """
    differing = {
        name: (old.get(name), new.get(name))
        for name in [*old, *(name for name in new if name not in old)]
        if old.get(name) != new.get(name) and not any(name == v or name.startswith(f"{v}.") for v in varied)
    }
    for content, (block, shaping) in _CONTENT.items():
        inside = [n for n in differing if n == block or n.startswith(f"{block}.")]
        if content not in differing:
            for name in inside:
                if name != f"{block}.{shaping}" and block != "data.template":
                    del differing[name]
        elif inside or "data.template" in differing:
            del differing[content]
    return differing


def _changed(
    study: Study, changes: dict[str, tuple[Any, Any]], count: int, folder: Path
) -> ChangedStudyError:
    listed = "; ".join(_lines(changes))
    routes = (tuple(name.split(".")) for name in changes)
    written = next((route for route in routes if route in study.document.lines), ())
    trials = f"none of the {count} recorded trials is" if count > 1 else "the recorded trial is not"
    return ChangedStudyError(
        f"a fixed value changed under existing results, and {trials} part of the study any more: {listed}",
        way_out=f"set it back, or give the study another name, or go on with --accept-change: nothing in "
        f"{folder} is deleted",
        place=study.place(*written),
    )


def _lines(changes: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    for name, (before, now) in changes.items():
        if name.startswith("content."):
            what = name.removeprefix("content.").removesuffix("_sha256")
            yield f"the content of {what}: {str(before)[:12]} -> {str(now)[:12]}"
        else:
            yield f"{name}: {_word(before)} -> {_word(now)}"


def _word(value: Any) -> str:
    return "absent" if value is None else str(value)
