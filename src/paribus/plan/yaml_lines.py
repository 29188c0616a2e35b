"""Read a YAML file as plain values and remember the line on which each was written."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from paribus.errors import Place, StudyError

Route = tuple[str | int, ...]
"""The way from the top of a document to a value: `("vary", "precision", 2)`."""

LARGEST = 200_000
"""Values a study may hold, aliases written out: far above any real one, and it stops alias bombs."""
_TAG = "tag:yaml.org,2002:"


@dataclass
class Document:
    """A YAML file: its plain values and the line, counted from 1, of every key and item."""

    path: Path
    text: str
    value: dict[str, Any] = field(default_factory=dict)
    lines: dict[Route, int] = field(default_factory=dict)

    def place(self, route: Route = ()) -> Place:
        """Say where a value stands, or the nearest thing around it that was written."""
        while route and route not in self.lines:
            route = route[:-1]
        return Place(self.path, self.lines.get(route))


def read(path: Path) -> Document:
    """Read a YAML 1.2 file whose top is a mapping; raises StudyError with the line of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise StudyError(
            f"byte {error.start} is not UTF-8 text",
            way_out="save the file in the encoding UTF-8",
            place=Place(path),
        ) from error
    except OSError as error:
        raise StudyError(f"cannot be read: {error.strerror}", place=Place(path)) from error
    return parse(text, path)


def parse(text: str, path: Path) -> Document:
    """Read YAML 1.2 from a text; `path` is the file it is said to come from."""
    document = Document(path, text)
    yaml = YAML(typ="safe", pure=True)
    try:
        top = yaml.compose(text)
        if not isinstance(top, MappingNode):
            raise _not_a_mapping(top, document)
        document.value = _Reader(yaml, document).value(top, ())
    except MarkedYAMLError as error:
        raise _syntax(error, document) from error
    except (YAMLError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise StudyError(f"not valid YAML: {reason}", place=Place(path, 1)) from error
    except RecursionError as error:
        raise StudyError("the values are nested too deeply to be a study", place=Place(path, 1)) from error
    return document


@dataclass
class _Reader:
    """Turns nodes into plain values and notes their lines."""

    yaml: YAML
    document: Document
    count: int = 0

    def value(self, node: Node, route: Route) -> Any:
        self.count += 1
        if self.count > LARGEST:
            raise self._error(node, f"holds more than {LARGEST} values once its aliases are written out")
        self.document.lines.setdefault(route, _line(node))
        if isinstance(node, MappingNode):
            return self._mapping(node, route)
        if isinstance(node, SequenceNode):
            return [self.value(item, (*route, i)) for i, item in enumerate(node.value)]
        return self._scalar(node)

    def _mapping(self, node: MappingNode, route: Route) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            here = (*route, key)
            if key in entries:
                first = self.document.lines[here]
                raise self._error(
                    key_node, f"the key {key!r} is written twice, first in line {first}", "keep one"
                )
            scalar = isinstance(value_node, ScalarNode) and value_node.value != ""
            self.document.lines[here] = _line(value_node if scalar else key_node)
            entries[key] = self.value(value_node, here)
        return entries

    def _key(self, node: Node) -> str:
        if node.tag == f"{_TAG}merge":
            raise self._error(node, "merge keys (<<) are not used in a study", "write the settings out")
        if not isinstance(node, ScalarNode) or node.tag != f"{_TAG}str":
            raise self._error(node, "a key must be a word", "put the key in quotes if it is meant so")
        return unicodedata.normalize("NFC", node.value)

    def _scalar(self, node: Node) -> Any:
        plain = node.tag.removeprefix(_TAG)
        if plain in ("str", "timestamp"):
            return node.value
        if plain not in ("int", "float", "bool", "null"):
            raise self._error(node, f"the tag {node.tag} is not used in a study", "write a plain value")
        return self.yaml.constructor.construct_object(node)

    def _error(self, node: Node, message: str, way_out: str | None = None) -> StudyError:
        return StudyError(message, way_out=way_out, place=Place(self.document.path, _line(node)))


def _line(node: Node) -> int:
    return node.start_mark.line + 1 if node.start_mark else 1


def _not_a_mapping(top: Node | None, document: Document) -> StudyError:
    if not document.text.strip() or not isinstance(top, ScalarNode | SequenceNode):
        message = "the file is empty"
    else:
        kind = "a list" if isinstance(top, SequenceNode) else "a single value"
        message = f"the file holds {kind}, where a study is keys and values"
    return StudyError(
        message, way_out="start it with `paribus: 1` and `name: ...`", place=Place(document.path, 1)
    )


def _syntax(error: MarkedYAMLError, document: Document) -> StudyError:
    """Say a syntax error in one line, tabs and forgotten quotes in words of their own."""
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    problem = (error.problem or "it cannot be read").strip()
    way_out = "look at this line and the one above it: indentation, brackets, quotes, colons"
    if "'\\t'" in problem:
        problem, way_out = "a tab stands where YAML allows only spaces", "indent with spaces"
    elif "another document" in problem:
        problem, way_out = "a second document starts here (---)", "one file holds one study"
    elif error.context_mark and error.context and error.context_mark.line + 1 != line:
        problem = f"{problem} ({error.context} that starts in line {error.context_mark.line + 1})"
    return StudyError(f"not valid YAML: {problem}", way_out=way_out, place=Place(document.path, line))
