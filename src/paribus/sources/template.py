"""How a conversation becomes text: the tokenizer's chat template, or the texts alone."""

from __future__ import annotations

import hashlib
from typing import Literal

from paribus.errors import ModelError
from paribus.sources.blocks import DataBlock, EmbeddedData, Task
from paribus.sources.models import ModelFiles

PLAIN = "1: texts joined by a line break where none is; each answer ends with the end-of-text token"
"""The rule of the plain rendering and its version; another rule would be another content of every trial."""
CLASSIFIED = "1: the text, then the end-of-text token; the class is read at the last token"


def rendering(block: DataBlock, task: Task = "instruction") -> Literal["chat", "plain"]:
    """Return how a study's examples are rendered; text without sides is always plain."""
    if task != "instruction":
        return "plain"
    if isinstance(block, EmbeddedData):
        return "chat"
    return "plain" if block.form == "text" else block.template


def template_sha256(files: ModelFiles, block: DataBlock, task: Task = "instruction") -> str:
    """Return the hash of what examples are rendered in; ModelError where a chat template is missing."""
    plain = CLASSIFIED if task == "classification" else PLAIN
    return hashlib.sha256((chat_template(files, block, task) or plain).encode()).hexdigest()


def chat_template(files: ModelFiles, block: DataBlock, task: Task = "instruction") -> str | None:
    """Return the chat template, or None for plain text; raises ModelError where one is missing."""
    if rendering(block, task) == "plain":
        return None
    if files.template is None:
        plain = not isinstance(block, EmbeddedData)
        raise ModelError(
            f"the tokenizer in {str(files.path)!r} has no chat template.",
            way_out="Set data.template: plain, which joins the texts, or use an instruction-tuned model."
            if plain
            else "The embedded data is rendered as chat: use a model whose tokenizer has a chat template.",
        )
    return files.template
