"""Studies as texts, and contents that depend on no file."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paribus.plan.content import DataContent, ModelContent
from paribus.plan.design import Plan, expand
from paribus.plan.reading import parse_study
from paribus.plan.trial import Heldout
from paribus.sources.blocks import DataBlock, ModelBlock
from paribus.techniques import ModelFacts

QUICKSTART = Path(__file__).parents[2] / "experiments" / "quickstart" / "study.yaml"
FACTS = ModelFacts(
    architecture="LlamaForCausalLM",
    model_type="llama",
    parameters=800_000,
    bias_parameters=0,
    hidden_size=128,
    layers=4,
    vocabulary=600,
    context_length=256,
)
SHORT = """\
paribus: 1
name: short
model: {source: embedded}
data: {source: embedded}
training: {epochs: 2, max_length: 128}
repeat: {seeds: [0, 1]}
"""


class FixedContents:
    """Stands for files: the hash of a block is the hash of what the study says of it; notes what is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def model(self, block: ModelBlock) -> ModelContent:
        self.asked.append("model")
        return ModelContent(_sha(block.model_dump_json(exclude={"load_dtype"})), FACTS)

    def data(self, block: DataBlock) -> DataContent:
        self.asked.append("data")
        return DataContent(_sha(block.model_dump_json(exclude={"loss_on"})), {"validation": {}, "test": {}})

    def template(self, model: ModelBlock, data: DataBlock) -> str:
        return _sha("template")

    def heldout(self, data: DataBlock) -> Heldout:
        return Heldout(groups=("same_wording", "new_wording"))


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def plan(text: str) -> Plan:
    """Plan a study from a text, with contents that depend on no file."""
    return expand(parse_study(text), FixedContents())


def short(*lines: str) -> str:
    """Return the shortest study with more lines."""
    return SHORT + "\n".join(lines) + "\n"


def quickstart() -> str:
    """Return the quickstart study as it is committed."""
    return QUICKSTART.read_text(encoding="utf-8")


def line_of(text: str, part: str) -> int:
    """Return the line, counted from 1, on which a part of a text first stands."""
    return text[: text.index(part)].count("\n") + 1
