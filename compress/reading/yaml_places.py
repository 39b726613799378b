"""YAML in which every value knows its line, every error is reported at once, and no input is dangerous."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.constructor import SafeConstructor
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from compress.reading.variables import expand
from compress.reading.wording import shown
from eval.errors import UserError
from eval.files.paths import at_home

Location = tuple[str | int, ...]
"""Keys and list indices that lead from the top of a document to a value."""

TAG = "tag:yaml.org,2002:"
MOST_CHARACTERS = 1_000_000
MOST_VALUES = 10_000
"""Values of one document, those repeated by aliases counted each time."""
DEEPEST = 40


@dataclass
class Document:
    """What a YAML text says.

    Attributes:
        source: What messages call the text.
        data: Mappings with text keys, lists, text, numbers, true, false and None.
        places: File and line of each value.
        problems: What could not be read, one sentence each.
    """

    source: str
    data: Any = None
    places: dict[Location, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def place(self, location: Location) -> str:
        """Return where the value at ``location``, or the nearest thing around it, was written."""
        while location and location not in self.places:
            location = location[:-1]
        return self.places.get(location, self.source)


def decode(raw: bytes, source: str) -> str:
    """Return the text of a file.

    Raises:
        UserError: If it is not UTF-8; the line is named.
    """
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(f"{source}:{line}: not UTF-8 text (byte 0x{raw[error.start]:02x}); save it as UTF-8") from error


def read_yaml(text: str, source: str, environment: Mapping[str, str] | None = None) -> Document:
    """Read a YAML text without ever running code, importing names or expanding an alias bomb.

    Args:
        text: One document.
        source: What messages call it.
        environment: Values of ``${VAR}``; None takes those of the process.

    Returns:
        The document; errors that leave the rest readable stand in its ``problems``.

    Raises:
        UserError: If the text is not YAML at all, or too large, or too deep.
    """
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"{source}: longer than {MOST_CHARACTERS:,} characters")
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise UserError(_syntax(error, source)) from error
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise UserError(f"{source}:{line}: the character U+{error.character:04X} cannot stand in YAML") from error
    except RecursionError as error:
        raise UserError(f"{source}: nested deeper than {DEEPEST} levels") from error
    except (ValueError, OverflowError) as error:  # PyYAML lets those of int() and chr() through
        raise UserError(f"{source}: not valid YAML: a number or an escape is out of range") from error
    reader = _Reader(source, os.environ if environment is None else environment)
    if node is not None:
        reader.document.data = reader.value(node, ())
    return reader.document


def _syntax(error: yaml.MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{source}:{mark.line + 1}" if mark else source
    problem = str(error.problem or error.context or "it cannot be read")
    if "'\\t'" in problem:
        return f"{place}: a tab stands where only spaces may; indent with spaces"
    if "expected a single document" in (error.context or ""):
        return f"{place}: a second document begins here ('---'); write one recipe a file"
    context = error.context if error.context and error.problem else ""
    if context and error.context_mark and mark and error.context_mark.line < mark.line:
        context += f" that begins in line {error.context_mark.line + 1}"
    return f"{place}: not valid YAML: {problem}{f' ({context})' if context else ''}"


class _Reader:
    """Turns nodes into plain values, counting as it goes."""

    def __init__(self, source: str, environment: Mapping[str, str]) -> None:
        self.document = Document(source)
        self.environment = environment
        self.values = 0
        self.constructor = SafeConstructor()

    def value(self, node: Node, location: Location) -> Any:
        self._count(node, len(location))
        self.document.places.setdefault(location, self._place(node))
        if isinstance(node, MappingNode) and node.tag == TAG + "map":
            return self._mapping(node, location)
        if isinstance(node, SequenceNode) and node.tag == TAG + "seq":
            return [self.value(item, (*location, index)) for index, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node)
        return self._problem(node, f"the tag {shown(node.tag.replace(TAG, '!!'))} is not allowed here")

    def _mapping(self, node: MappingNode, location: Location) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, (key_node, value_node) in self._entries(node, len(location)).items():
            self.document.places[(*location, key)] = self._place(key_node)
            found[key] = self.value(value_node, (*location, key))
        return found

    def _entries(self, node: MappingNode, depth: int) -> dict[str, tuple[Node, Node]]:
        """Return the entries of a mapping, those merged in by ``<<`` first; its own win."""
        self._count(node, depth)
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key_node, value_node in node.value:
            if key_node.tag == TAG + "merge":
                sources = value_node.value if isinstance(value_node, SequenceNode) else [value_node]
                for source in sources:
                    if isinstance(source, MappingNode):
                        merged = self._entries(source, depth + 1) | merged
                    else:
                        self._problem(key_node, "'<<' merges a mapping or a list of mappings")
            elif not isinstance(key_node, ScalarNode):
                self._problem(key_node, "a key must be text")
            elif key_node.value in own:
                first = own[key_node.value][0].start_mark.line + 1
                self._problem(key_node, f"{shown(key_node.value)} is given twice, first in line {first}")
            else:
                own[key_node.value] = (key_node, value_node)
        return merged | own

    def _scalar(self, node: ScalarNode) -> Any:
        kind = node.tag.removeprefix(TAG)
        try:
            if kind == "int":
                return self.constructor.construct_yaml_int(node)
            if kind == "float":
                return self.constructor.construct_yaml_float(node)
            if kind == "bool":
                return self.constructor.construct_yaml_bool(node)
        except (ValueError, LookupError, OverflowError):
            return self._problem(node, f"{shown(node.value)} is not {'an' if kind == 'int' else 'a'} {kind}")
        if kind == "null":
            return None
        if kind not in ("str", "timestamp", "value"):
            return self._problem(node, f"the tag {shown(node.tag.replace(TAG, '!!'))} is not allowed here")
        text, problems = expand(node.value, self.environment)
        for problem in problems:
            self._problem(node, problem)
        return at_home(text)

    def _count(self, node: Node, depth: int) -> None:
        self.values += 1
        if self.values > MOST_VALUES:
            raise UserError(f"{self._place(node)}: more than {MOST_VALUES:,} values, aliases expanded")
        if depth > DEEPEST:
            raise UserError(f"{self._place(node)}: nested deeper than {DEEPEST} levels")

    def _place(self, node: Node) -> str:
        return f"{self.document.source}:{node.start_mark.line + 1}"

    def _problem(self, node: Node, sentence: str) -> None:
        self.document.problems.append(f"{self._place(node)}: {sentence}")
