"""The `model:` and `data:` blocks of a study: where a model and examples are found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paribus.techniques.base import Settings, added_later

Task = Literal["instruction", "classification", "pretrain"]
"""Learn answers; learn the class of a text; learn running text from random weights."""
Form = Literal["prompt_completion", "messages", "alpaca", "sharegpt", "text", "classification"]
EMBEDDED_GROUPS: dict[Task, tuple[str, ...]] = {
    "instruction": ("same_wording", "new_wording"),
    "classification": ("same_wording", "new_wording"),
    "pretrain": ("all",),
}
"""The groups that the embedded data is scored in, by task."""
Dtype = Literal["float32", "bfloat16", "float16"]
Norm = Literal["none", "layer", "group", "batch"]


class _Model(Settings):
    """`classifier_norm` is what normalises the hidden state that a classifier's head reads."""

    load_dtype: Dtype = "float32"
    classifier_norm: Norm = added_later("none", as_if_absent="none")

    def shaping(self) -> dict[str, Any]:
        """Return what of this block shapes the weights beside the model's content."""
        norm = {} if self.classifier_norm == "none" else {"classifier_norm": self.classifier_norm}
        return {"load_dtype": self.load_dtype} | norm


class EmbeddedModel(_Model):
    """The tiny Llama-architecture base that ships with paribus."""

    source: Literal["embedded"] = "embedded"


class PathModel(_Model):
    """A model directory; with `gguf_file` the weights come from that file in it."""

    source: Literal["path"] = "path"
    path: Path
    gguf_file: str | None = None


class PackageModel(_Model):
    """A model shipped as data by an installed Python package, found without importing it."""

    source: Literal["package"] = "package"
    package: str
    gguf_file: str | None = None


class HubModel(_Model):
    """A model on the hub; the study's lock pins `revision` to a commit."""

    source: Literal["hub"] = "hub"
    name: str
    revision: str | None = None


ModelBlock = Annotated[EmbeddedModel | PathModel | PackageModel | HubModel, Field(discriminator="source")]


class _Data(Settings):
    """`*_examples` limit how many examples are used, for validation and test in each group."""

    train_examples: int | None = Field(None, ge=1)
    validation_examples: int | None = Field(None, ge=1)
    test_examples: int | None = Field(None, ge=1)
    loss_on: Literal["completion", "assistant", "all"] = "completion"

    def learnt(self, task: Task) -> str:
        """Say what of an example is learnt: `loss_on`, every token of running text, or the label."""
        return {"instruction": self.loss_on, "pretrain": "all", "classification": "label"}[task]

    def shaping(self, task: Task) -> dict[str, Any]:
        """Return what of this block shapes the weights beside the examples' content."""
        return {"loss_on": self.learnt(task)}


class EmbeddedData(_Data):
    """The procedural world that ships with paribus: instructions, their classes, or running text, by task."""

    source: Literal["embedded"] = "embedded"


class _Table(_Data):
    form: Form = "prompt_completion"
    columns: dict[str, str] = Field(default_factory=dict)
    template: Literal["chat", "plain"] = "chat"
    validation_share: float = Field(0.1, gt=0, lt=0.5)
    test_share: float = Field(0.1, gt=0, lt=0.5)


class FilesData(_Table):
    """Examples in jsonl, json, parquet or csv files.

    Paths are relative to the study file; `${NAME}` is replaced by an environment variable. Where `validation`
    or `test` is missing, that share of `train` is set aside by a hash of each prompt.
    """

    source: Literal["files"] = "files"
    train: str
    validation: str | None = None
    test: str | None = None


class HubData(_Table):
    """A data set on the hub by name; `local` names files that are read in its place where they exist."""

    source: Literal["hub"] = "hub"
    name: str
    config: str | None = None
    revision: str | None = None
    train: str = "train"
    validation: str | None = None
    test: str | None = "test"
    local: dict[str, str] = Field(default_factory=dict)


DataBlock = Annotated[EmbeddedData | FilesData | HubData, Field(discriminator="source")]
