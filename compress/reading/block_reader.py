"""Turns the blocks of a document into typed values, collecting what is wrong with each and where it stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from compress.reading.validation_errors import field_names, mistakes_in, name_of, numbers_from_booleans
from compress.reading.wording import expected, shown
from compress.reading.yaml_places import Document, Location
from eval.errors import UserError
from teachers.training.config import Training

Model = TypeVar("Model", bound=BaseModel)


class BlockReader:
    """Reads blocks and remembers every problem.

    Args:
        document: Where the blocks come from; its own problems come first.

    Attributes:
        problems: One sentence each, with its place.
    """

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems = document.problems

    def report(self, location: Location, sentence: str) -> None:
        """Add a problem of the value at ``location``."""
        self.problems.append(f"{self.document.place(location)}: {sentence}")

    def sorted_problems(self) -> list[str]:
        """Return the problems in the order of the file's lines; those without a line come first."""
        line = re.compile(re.escape(self.document.source) + r":(\d+): ")
        found = [(line.match(problem), problem) for problem in self.problems]
        return [problem for _, problem in sorted(found, key=lambda pair: int(pair[0][1]) if pair[0] else 0)]

    def block(self, model: type[Model], given: Any, location: Location, where: str) -> Model | None:
        """Read one block.

        Args:
            model: What it has to become.
            given: Its plain values.
            location: Where it stands in the document.
            where: What messages call it; empty for the top of the document.

        Returns:
            The typed block, or None if it has problems.
        """
        before = len(self.problems)
        if not isinstance(given, Mapping):
            self.report(location, f"{where}: got {shown(given)}, must be {expected(model)}")
            return None
        block, wrong = self._attempt(model, given, location, where)
        if block is None:
            # What is right so far may still hold a 'true' where a number belongs.
            rest = {key: value for key, value in given.items() if key not in wrong}
            block = _quietly(model, rest)
        for place in numbers_from_booleans(given, block):
            self._report(location, place, where, f"{name_of(place)}: got true or false, must be a number")
        return block if len(self.problems) == before else None

    def _attempt(
        self, model: type[Model], given: Mapping[str, Any], location: Location, where: str
    ) -> tuple[Model | None, set[Any]]:
        try:
            return model.model_validate(given), set()
        except ValidationError as error:
            also = Training.model_fields if "training" in field_names(model) else ()
            mistakes = mistakes_in(error, model, given, also)
            for mistake in mistakes:
                self._report(location, _as_written(mistake.location, given), where, mistake.sentence)
            return None, {_as_written(mistake.location, given)[0] for mistake in mistakes if mistake.location}
        except UserError as error:
            for problem in error.problems:
                self._report(location, (), where, problem)
        return None, set(given)

    def _report(self, location: Location, inside: Location, where: str, sentence: str) -> None:
        self.report((*location, *inside), f"{where}: {sentence}" if where else sentence)


def _as_written(location: Location, given: Any) -> Location:
    """Return where a field stands; those of a ``training`` block may be written beside the fields around it."""
    if not location or not isinstance(given, Mapping):
        return location
    first, *rest = location
    if first == "training" and rest and rest[0] in given and rest[0] not in (given.get("training") or {}):
        return tuple(rest)
    return (first, *_as_written(tuple(rest), given.get(first)))


def _quietly(model: type[Model], given: Mapping[str, Any]) -> Model | None:
    try:
        return model.model_validate(given)
    except (ValidationError, UserError):
        return None
