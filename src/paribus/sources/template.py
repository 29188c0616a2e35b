"""How a conversation becomes text: the tokenizer's chat template, or the texts alone."""

from __future__ import annotations

import hashlib
from typing import Literal

from paribus.errors import ModelError
from paribus.sources.blocks import DataBlock, EmbeddedData
from paribus.sources.models import ModelFiles

PLAIN = "1: texts joined by a line break where none is; each answer ends with the end-of-text token"
"""The rule of the plain rendering and its version; another rule would be another content of every trial."""


def rendering(block: DataBlock) -> Literal["chat", "plain"]:
    """Return how a study's examples are rendered; running text has no sides and is always plain."""
    if isinstance(block, EmbeddedData):
        return "chat"
    return "plain" if block.form == "text" else block.template


def template_sha256(files: ModelFiles, block: DataBlock) -> str:
    """Return the hash of what examples are rendered in; ModelError where a chat template is missing."""
    return hashlib.sha256((chat_template(files, block) or PLAIN).encode()).hexdigest()


def chat_template(files: ModelFiles, block: DataBlock) -> str | None:
    """Return the chat template, or None for plain text; raises ModelError where one is missing."""
    if rendering(block) == "plain":
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
